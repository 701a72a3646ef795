//go:build !purego

#include "textflag.h"

// STEP folds register A onto B by the powers K. T is a temporary.
#define STEP(A, B, K, T) \
	VPCLMULQDQ $0x00, K, A, T \
	VPCLMULQDQ $0x11, K, A, A \
	VPTERNLOGQ $0x96, B, T, A

// BEGIN loads the powers and the first 256 bytes at SI, with the remainder of what comes before.
#define BEGIN \
	VMOVD AX, X17 \
	VBROADCASTI32X4 0(DX), Z20 \
	VBROADCASTI32X4 16(DX), Z21 \
	VBROADCASTI32X4 32(DX), Z22 \
	VBROADCASTI32X4 48(DX), Z23 \
	VMOVDQU64 0(SI), Z0 \
	VMOVDQU64 64(SI), Z1 \
	VMOVDQU64 128(SI), Z2 \
	VMOVDQU64 192(SI), Z3

// END folds the 256 bytes that are left into 16, at DI.
#define END \
	STEP(Z0, Z3, Z21, Z16) \
	STEP(Z1, Z0, Z22, Z16) \
	STEP(Z2, Z1, Z23, Z16) \
	VMOVDQU64 64(DX), X20 \
	VMOVDQU64 80(DX), X21 \
	VMOVDQU64 96(DX), X22 \
	VEXTRACTI32X4 $1, Z2, X4 \
	VEXTRACTI32X4 $2, Z2, X5 \
	VEXTRACTI32X4 $3, Z2, X6 \
	STEP(X2, X6, X20, X16) \
	STEP(X4, X2, X21, X16) \
	STEP(X5, X4, X22, X16) \
	VMOVDQU64 X5, 0(DI) \
	VZEROUPPER

// func fold(rest *[16]byte, p *byte, n int, state uint32, powers *[7][2]uint64)
TEXT ·fold(SB), NOSPLIT, $0-40
	MOVQ rest+0(FP), DI
	MOVQ p+8(FP), SI
	MOVQ n+16(FP), CX
	MOVL state+24(FP), AX
	MOVQ powers+32(FP), DX
	BEGIN
	VPXORQ Z17, Z0, Z0

loop:
	ADDQ $256, SI
	SUBQ $256, CX
	JZ   last
	STEP(Z0, 0(SI), Z20, Z16)
	STEP(Z1, 64(SI), Z20, Z16)
	STEP(Z2, 128(SI), Z20, Z16)
	STEP(Z3, 192(SI), Z20, Z16)
	JMP  loop

last:
	END
	RET

// COPY is STEP with 64 bytes of the source, which go past the caches to the destination.
#define COPY(A, AT) \
	VMOVDQU64 AT(SI), Z8 \
	VMOVNTDQ  Z8, AT(R8) \
	STEP(A, Z8, Z20, Z16)

// func foldCopy(rest *[16]byte, dst, src *byte, n int, state uint32, powers *[7][2]uint64)
TEXT ·foldCopy(SB), NOSPLIT, $0-48
	MOVQ rest+0(FP), DI
	MOVQ dst+8(FP), R8
	MOVQ src+16(FP), SI
	MOVQ n+24(FP), CX
	MOVL state+32(FP), AX
	MOVQ powers+40(FP), DX
	BEGIN
	VMOVNTDQ Z0, 0(R8)
	VMOVNTDQ Z1, 64(R8)
	VMOVNTDQ Z2, 128(R8)
	VMOVNTDQ Z3, 192(R8)
	VPXORQ   Z17, Z0, Z0

loop:
	ADDQ $256, SI
	ADDQ $256, R8
	SUBQ $256, CX
	JZ   last
	COPY(Z0, 0)
	COPY(Z1, 64)
	COPY(Z2, 128)
	COPY(Z3, 192)
	JMP  loop

last:
	SFENCE
	END
	RET
