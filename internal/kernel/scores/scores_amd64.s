//go:build !purego

#include "textflag.h"

// Columns 0 to 15.
DATA iota<>+0(SB)/8, $0x0000000100000000
DATA iota<>+8(SB)/8, $0x0000000300000002
DATA iota<>+16(SB)/8, $0x0000000500000004
DATA iota<>+24(SB)/8, $0x0000000700000006
DATA iota<>+32(SB)/8, $0x0000000900000008
DATA iota<>+40(SB)/8, $0x0000000b0000000a
DATA iota<>+48(SB)/8, $0x0000000d0000000c
DATA iota<>+56(SB)/8, $0x0000000f0000000e
GLOBL iota<>(SB), RODATA|NOPTR, $64

// (ln 2)^i / i! for i from 0 to 6, log2 e, and -Inf.
DATA consts<>+0(SB)/4, $0x3f800000
DATA consts<>+4(SB)/4, $0x3f317218
DATA consts<>+8(SB)/4, $0x3e75fdf0
DATA consts<>+12(SB)/4, $0x3d635847
DATA consts<>+16(SB)/4, $0x3c1d955b
DATA consts<>+20(SB)/4, $0x3aaec3ff
DATA consts<>+24(SB)/4, $0x39218489
DATA consts<>+28(SB)/4, $0x3fb8aa3b
DATA consts<>+32(SB)/4, $0xff800000
GLOBL consts<>(SB), RODATA|NOPTR, $36

// CONSTANTS loads them: Z21 to Z27 the polynomial, Z16 log2 e, Z31 the columns.
#define CONSTANTS \
	VMOVDQU32    iota<>(SB), Z31      \
	VBROADCASTSS consts<>+0(SB), Z21  \
	VBROADCASTSS consts<>+4(SB), Z22  \
	VBROADCASTSS consts<>+8(SB), Z23  \
	VBROADCASTSS consts<>+12(SB), Z24 \
	VBROADCASTSS consts<>+16(SB), Z25 \
	VBROADCASTSS consts<>+20(SB), Z26 \
	VBROADCASTSS consts<>+24(SB), Z27 \
	VBROADCASTSS consts<>+28(SB), Z16

// SPAN reads the span at R10: Z28 is Lo, Z29 how many columns it has, and the columns from R12 to R13,
// multiples of 32, contain it. It uses AX, BX, CX and DX.
#define SPAN \
	MOVLQSX      (R10), AX  \
	MOVLQSX      4(R10), BX \
	ADDQ         $8, R10    \
	MOVQ         BX, CX     \
	SUBQ         AX, CX     \
	XORQ         DX, DX     \
	TESTQ        CX, CX     \
	CMOVQLE      DX, AX     \
	CMOVQLE      DX, BX     \
	CMOVQLE      DX, CX     \
	VPBROADCASTD AX, Z28    \
	VPBROADCASTD CX, Z29    \
	MOVQ         AX, R12    \
	ANDQ         $~31, R12  \
	LEAQ         31(BX), R13 \
	ANDQ         $~31, R13

// MASKS sets K1 and K2 for the 32 columns from DX on: those in the span.
#define MASKS \
	VPBROADCASTD DX, Z0          \
	VPADDD       Z31, Z0, Z0     \
	VPSUBD       Z28, Z0, Z0     \
	VPCMPUD      $1, Z29, Z0, K1 \
	VPADDD       Z30, Z0, Z0     \
	VPCMPUD      $1, Z29, Z0, K2

// EXP2 sets x and y to the exponentials of x and y, and to zero outside of K1 and K2. It uses Z10 to
// Z13.
#define EXP2(x, y) \
	VMULPS         Z16, x, x         \
	VMULPS         Z16, y, y         \
	VRNDSCALEPS    $0, x, Z10        \
	VRNDSCALEPS    $0, y, Z11        \
	VSUBPS         Z10, x, x         \
	VSUBPS         Z11, y, y         \
	VMOVAPS        Z27, Z12          \
	VMOVAPS        Z27, Z13          \
	VFMADD213PS    Z26, x, Z12       \
	VFMADD213PS    Z26, y, Z13       \
	VFMADD213PS    Z25, x, Z12       \
	VFMADD213PS    Z25, y, Z13       \
	VFMADD213PS    Z24, x, Z12       \
	VFMADD213PS    Z24, y, Z13       \
	VFMADD213PS    Z23, x, Z12       \
	VFMADD213PS    Z23, y, Z13       \
	VFMADD213PS    Z22, x, Z12       \
	VFMADD213PS    Z22, y, Z13       \
	VFMADD213PS    Z21, x, Z12       \
	VFMADD213PS    Z21, y, Z13       \
	VSCALEFPS.Z    Z10, Z12, K1, x   \
	VSCALEFPS.Z    Z11, Z13, K2, y

// ROUND sets Z20 to Z18 and Z19, rounded: VCVTNE2PS2BF16 Z18, Z19, Z20.
#define ROUND LONG $0x4067a262; WORD $0xe272

// func softmaxAVX512(p *half.BFloat16, s *float32, ldp, lds, cols, rows int, spans *Span, stats *[MostRows][2]float32)
TEXT ·softmaxAVX512(SB), NOSPLIT, $0-64
	MOVQ p+0(FP), DI
	MOVQ s+8(FP), SI
	MOVQ cols+32(FP), R8
	MOVQ rows+40(FP), R9
	MOVQ spans+48(FP), R10
	MOVQ stats+56(FP), R11
	CONSTANTS
	MOVL         $16, AX
	VPBROADCASTD AX, Z30

row:
	SPAN

	// Zeros outside of the span.
	VXORPS X1, X1, X1
	XORQ   DX, DX

before:
	CMPQ      DX, R12
	JGE       within
	VMOVUPS   Z1, (DI)(DX*2)
	ADDQ      $32, DX
	JMP       before

within:
	MOVQ R13, DX

after:
	CMPQ    DX, R8
	JGE     largest
	VMOVUPS Z1, (DI)(DX*2)
	ADDQ    $32, DX
	JMP     after

largest:
	VBROADCASTSS consts<>+32(SB), Z4
	VMOVAPS      Z4, Z5
	MOVQ         R12, DX
	CMPQ         DX, R13
	JGE          max

maxima:
	MASKS
	VMAXPS (SI)(DX*4), Z4, K1, Z4
	VMAXPS 64(SI)(DX*4), Z5, K2, Z5
	ADDQ   $32, DX
	CMPQ   DX, R13
	JLT    maxima

max:
	VMAXPS        Z5, Z4, Z4
	VEXTRACTF64X4 $1, Z4, Y5
	VMAXPS        Y5, Y4, Y4
	VEXTRACTF128  $1, Y4, X5
	VMAXPS        X5, X4, X4
	VPERMILPS     $0x4e, X4, X5
	VMAXPS        X5, X4, X4
	VPERMILPS     $0xb1, X4, X5
	VMAXPS        X5, X4, X4
	VMOVSS        X4, (R11)
	VBROADCASTSS  X4, Z17
	VXORPS        X6, X6, X6
	VXORPS        X7, X7, X7
	MOVQ          R12, DX
	CMPQ          DX, R13
	JGE           sum

exponentials:
	MASKS
	VMOVUPS (SI)(DX*4), Z18
	VMOVUPS 64(SI)(DX*4), Z19
	VSUBPS  Z17, Z18, Z18
	VSUBPS  Z17, Z19, Z19
	EXP2(Z18, Z19)
	VADDPS  Z18, Z6, Z6
	VADDPS  Z19, Z7, Z7
	VMOVUPS Z18, (SI)(DX*4)
	VMOVUPS Z19, 64(SI)(DX*4)
	ADDQ    $32, DX
	CMPQ    DX, R13
	JLT     exponentials

sum:
	VADDPS        Z7, Z6, Z6
	VEXTRACTF64X4 $1, Z6, Y7
	VADDPS        Y7, Y6, Y6
	VEXTRACTF128  $1, Y6, X7
	VADDPS        X7, X6, X6
	VPERMILPS     $0x4e, X6, X7
	VADDPS        X7, X6, X6
	VPERMILPS     $0xb1, X6, X7
	VADDPS        X7, X6, X6
	VMOVSS        X6, 4(R11)
	VDIVSS        X6, X21, X6
	VBROADCASTSS  X6, Z6
	MOVQ          R12, DX
	CMPQ          DX, R13
	JGE           next

scaled:
	VMULPS  (SI)(DX*4), Z6, Z18
	VMULPS  64(SI)(DX*4), Z6, Z19
	ROUND
	VMOVUPS Z20, (DI)(DX*2)
	ADDQ    $32, DX
	CMPQ    DX, R13
	JLT     scaled

next:
	MOVQ ldp+16(FP), AX
	LEAQ (DI)(AX*2), DI
	MOVQ lds+24(FP), AX
	LEAQ (SI)(AX*4), SI
	ADDQ $8, R11
	DECQ R9
	JNZ  row
	VZEROUPPER
	RET

// func slopesAVX512(p, ds *half.BFloat16, s, dp *float32, ld, lds, cols, rows int, spans *Span, lse, delta *float32)
TEXT ·slopesAVX512(SB), NOSPLIT, $0-88
	MOVQ p+0(FP), DI
	MOVQ ds+8(FP), R15
	MOVQ s+16(FP), SI
	MOVQ dp+24(FP), R14
	MOVQ cols+48(FP), R8
	MOVQ rows+56(FP), R9
	MOVQ spans+64(FP), R10
	CONSTANTS
	MOVL         $16, AX
	VPBROADCASTD AX, Z30

row:
	SPAN
	MOVQ   lse+72(FP), R11
	MOVQ   delta+80(FP), BX
	VXORPS X1, X1, X1
	XORQ   DX, DX

before:
	CMPQ    DX, R12
	JGE     within
	VMOVUPS Z1, (DI)(DX*2)
	VMOVUPS Z1, (R15)(DX*2)
	ADDQ    $32, DX
	JMP     before

within:
	MOVQ R13, DX

after:
	CMPQ    DX, R8
	JGE     columns
	VMOVUPS Z1, (DI)(DX*2)
	VMOVUPS Z1, (R15)(DX*2)
	ADDQ    $32, DX
	JMP     after

columns:
	MOVQ R12, DX
	CMPQ DX, R13
	JGE  next

turn:
	MASKS
	VMOVUPS  (SI)(DX*4), Z18
	VMOVUPS  64(SI)(DX*4), Z19
	VSUBPS   (R11)(DX*4), Z18, Z18
	VSUBPS   64(R11)(DX*4), Z19, Z19
	EXP2(Z18, Z19)
	ROUND
	VMOVUPS  Z20, (DI)(DX*2)
	VMOVUPS  (R14)(DX*4), Z4
	VMOVUPS  64(R14)(DX*4), Z5
	VSUBPS   (BX)(DX*4), Z4, Z4
	VSUBPS   64(BX)(DX*4), Z5, Z5
	VMULPS.Z Z4, Z18, K1, Z18
	VMULPS.Z Z5, Z19, K2, Z19
	ROUND
	VMOVUPS  Z20, (R15)(DX*2)
	ADDQ     $32, DX
	CMPQ     DX, R13
	JLT      turn

next:
	MOVQ ld+32(FP), AX
	LEAQ (DI)(AX*2), DI
	LEAQ (R15)(AX*2), R15
	MOVQ lds+40(FP), AX
	LEAQ (SI)(AX*4), SI
	LEAQ (R14)(AX*4), R14
	DECQ R9
	JNZ  row
	VZEROUPPER
	RET
