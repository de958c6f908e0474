#include "textflag.h"

// func vfork(call, a, b, c uintptr) (pid uintptr, errno uintptr)
//
// The return address is in the link register, which each of the two processes has to itself.
TEXT ·vfork(SB),NOSPLIT|NOFRAME,$0-48
	MOVD	call+0(FP), R8
	MOVD	a+8(FP), R0
	MOVD	b+16(FP), R1
	MOVD	c+24(FP), R2
	MOVD	$0, R3
	MOVD	$0, R4
	SVC
	CMN	$4095, R0
	BCS	failed
	MOVD	R0, pid+32(FP)
	MOVD	ZR, errno+40(FP)
	RET
failed:
	NEG	R0, R0
	MOVD	ZR, pid+32(FP)
	MOVD	R0, errno+40(FP)
	RET
