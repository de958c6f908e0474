#include "textflag.h"

// func int80(nr int32) int32
//
// A system call of the i386 table, without arguments.
TEXT ·int80(SB),NOSPLIT,$0-12
	MOVL	nr+0(FP), AX
	XORL	BX, BX
	XORL	CX, CX
	XORL	DX, DX
	INT	$0x80
	MOVL	AX, ret+8(FP)
	RET
