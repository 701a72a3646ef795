//go:build !purego

#include "textflag.h"

// func cpuidVendor(name *[12]byte)
TEXT ·cpuidVendor(SB), NOSPLIT, $0-8
	XORL  AX, AX
	XORL  CX, CX
	CPUID
	MOVQ  name+0(FP), DI
	MOVL  BX, 0(DI)
	MOVL  DX, 4(DI)
	MOVL  CX, 8(DI)
	RET
