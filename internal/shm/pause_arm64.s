//go:build !purego

#include "textflag.h"

// func Pause(n int)
TEXT ·Pause(SB), NOSPLIT, $0-8
	MOVD n+0(FP), R0
loop:
	SUBS $1, R0, R0
	BLT  done
	ISB  $15
	B    loop
done:
	RET

// func Ticks() uint64
TEXT ·Ticks(SB), NOSPLIT, $0-8
	MRS  CNTVCT_EL0, R0
	MOVD R0, ret+0(FP)
	RET
