#include "textflag.h"

// func vfork(call, a, b, c uintptr) (pid uintptr, errno uintptr)
//
// The child returns first, on the same stack, and its further calls write over the place where the
// return address was. So that is kept in a register, which each of the two processes has to itself.
TEXT ·vfork(SB),NOSPLIT|NOFRAME,$0-48
	MOVQ	call+0(FP), AX
	MOVQ	a+8(FP), DI
	MOVQ	b+16(FP), SI
	MOVQ	c+24(FP), DX
	XORL	R10, R10
	XORL	R8, R8
	POPQ	R12
	SYSCALL
	PUSHQ	R12
	CMPQ	AX, $0xfffffffffffff001
	JCC	failed
	MOVQ	AX, pid+32(FP)
	MOVQ	$0, errno+40(FP)
	RET
failed:
	NEGQ	AX
	MOVQ	$0, pid+32(FP)
	MOVQ	AX, errno+40(FP)
	RET
