//go:build !purego

#include "textflag.h"

// func Pause(n int)
TEXT ·Pause(SB), NOSPLIT, $0-8
	MOVQ n+0(FP), CX
loop:
	SUBQ $1, CX
	JLT  done
	PAUSE
	JMP  loop
done:
	RET

// func Ticks() uint64
TEXT ·Ticks(SB), NOSPLIT, $0-8
	RDTSC
	SHLQ $32, DX
	ORQ  DX, AX
	MOVQ AX, ret+0(FP)
	RET
