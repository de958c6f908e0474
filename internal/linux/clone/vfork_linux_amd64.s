#include "textflag.h"

// func vfork(flags uintptr, pidfd *int32) (pid uintptr, errno uintptr)
//
// The child returns first, on the same stack, and its further calls write over the place where the
// return address was. So that is kept in a register, which each of the two processes has to itself.
TEXT ·vfork(SB),NOSPLIT|NOFRAME,$0-32
	MOVQ	flags+0(FP), DI
	XORL	SI, SI
	MOVQ	pidfd+8(FP), DX
	XORL	R10, R10
	XORL	R8, R8
	MOVL	$56, AX // clone
	POPQ	R12
	SYSCALL
	PUSHQ	R12
	CMPQ	AX, $0xfffffffffffff001
	JCC	failed
	MOVQ	AX, pid+16(FP)
	MOVQ	$0, errno+24(FP)
	RET
failed:
	NEGQ	AX
	MOVQ	$0, pid+16(FP)
	MOVQ	AX, errno+24(FP)
	RET
