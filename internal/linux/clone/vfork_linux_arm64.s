#include "textflag.h"

// func vfork(flags uintptr, pidfd *int32) (pid uintptr, errno uintptr)
//
// The return address is in the link register, which each of the two processes has to itself.
TEXT ·vfork(SB),NOSPLIT|NOFRAME,$0-32
	MOVD	flags+0(FP), R0
	MOVD	$0, R1
	MOVD	pidfd+8(FP), R2
	MOVD	$0, R3
	MOVD	$0, R4
	MOVD	$220, R8 // clone
	SVC
	CMN	$4095, R0
	BCS	failed
	MOVD	R0, pid+16(FP)
	MOVD	ZR, errno+24(FP)
	RET
failed:
	NEG	R0, R0
	MOVD	ZR, pid+16(FP)
	MOVD	R0, errno+24(FP)
	RET
