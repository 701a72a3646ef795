//go:build amd64 && !purego

#include "textflag.h"

// Every function converts src_len elements, a multiple of 16, two registers of eight at a time. DI and SI point to the
// elements that come next, CX counts those that are left. A turn reads all of its elements before it writes any, on which
// conversion in place depends.

// func widenBFloat16AVX2(dst []float32, src []BFloat16)
TEXT ·widenBFloat16AVX2(SB), NOSPLIT, $0-48
	MOVQ dst_base+0(FP), DI
	MOVQ src_base+24(FP), SI
	MOVQ src_len+32(FP), CX
	SUBQ $16, CX
	JLT  done

loop:
	VPMOVZXWD (SI), Y0
	VPMOVZXWD 16(SI), Y1
	VPSLLD    $16, Y0, Y0
	VPSLLD    $16, Y1, Y1
	VMOVDQU   Y0, (DI)
	VMOVDQU   Y1, 32(DI)
	ADDQ      $32, SI
	ADDQ      $64, DI
	SUBQ      $16, CX
	JGE       loop

done:
	VZEROUPPER
	RET

// func narrowBFloat16AVX2(dst []BFloat16, src []float32, c float32)
TEXT ·narrowBFloat16AVX2(SB), NOSPLIT, $0-52
	MOVQ         dst_base+0(FP), DI
	MOVQ         src_base+24(FP), SI
	MOVQ         src_len+32(FP), CX
	VBROADCASTSS c+48(FP), Y12
	MOVL         $0x7fff, AX
	VMOVD        AX, X13
	VPBROADCASTD X13, Y13
	MOVL         $1, AX
	VMOVD        AX, X14
	VPBROADCASTD X14, Y14
	MOVL         $0x40, AX
	VMOVD        AX, X15
	VPBROADCASTD X15, Y15
	SUBQ         $16, CX
	JLT          done

loop:
	VMULPS (SI), Y12, Y0
	VMULPS 32(SI), Y12, Y1

	// The upper halves; of NaN they are the result, once made quiet.
	VPSRLD $16, Y0, Y2
	VPSRLD $16, Y1, Y3
	VPOR   Y15, Y2, Y4
	VPOR   Y15, Y3, Y5

	// The others after adding 0x7fff and the last bit that stays.
	VPAND  Y14, Y2, Y2
	VPAND  Y14, Y3, Y3
	VPADDD Y13, Y2, Y2
	VPADDD Y13, Y3, Y3
	VPADDD Y0, Y2, Y2
	VPADDD Y1, Y3, Y3
	VPSRLD $16, Y2, Y2
	VPSRLD $16, Y3, Y3

	VCMPPS    $3, Y0, Y0, Y0 // unordered: NaN
	VCMPPS    $3, Y1, Y1, Y1
	VPBLENDVB Y0, Y4, Y2, Y2
	VPBLENDVB Y1, Y5, Y3, Y3

	// Packing works within halves of 16 bytes: swap the middle quarters back.
	VPACKUSDW Y3, Y2, Y2
	VPERMQ    $0xd8, Y2, Y2
	VMOVDQU   Y2, (DI)
	ADDQ      $64, SI
	ADDQ      $32, DI
	SUBQ      $16, CX
	JGE       loop

done:
	VZEROUPPER
	RET

// VCVTNEPS2BF16 rounds as it should, but takes subnormal numbers for zeros. So conversion ends before 16 elements with
// one of those, and the result is how many were converted. Go's assembler does not know the instruction: the bytes are
// VCVTNEPS2BF16 Z0, Y0.

// func narrowBFloat16AVX512(dst []BFloat16, src []float32, c float32) int
TEXT ·narrowBFloat16AVX512(SB), NOSPLIT, $0-64
	MOVQ         dst_base+0(FP), DI
	MOVQ         src_base+24(FP), SI
	MOVQ         src_len+32(FP), CX
	VBROADCASTSS c+48(FP), Z12
	SUBQ         $16, CX
	JLT          done

loop:
	VMULPS      (SI), Z12, Z0
	VFPCLASSPSZ $0x20, Z0, K1 // subnormal
	KORTESTW    K1, K1
	JNZ         done
	LONG        $0x487ef262; WORD $0xc072
	VMOVDQU     Y0, (DI)
	ADDQ        $64, SI
	ADDQ        $32, DI
	SUBQ        $16, CX
	JGE         loop

done:
	SUBQ src_base+24(FP), SI
	SHRQ $2, SI
	MOVQ SI, ret+56(FP)
	VZEROUPPER
	RET

// func widenFloat16AVX2(dst []float32, src []Float16)
TEXT ·widenFloat16AVX2(SB), NOSPLIT, $0-48
	MOVQ dst_base+0(FP), DI
	MOVQ src_base+24(FP), SI
	MOVQ src_len+32(FP), CX
	SUBQ $16, CX
	JLT  done

loop:
	VCVTPH2PS (SI), Y0
	VCVTPH2PS 16(SI), Y1
	VMOVUPS   Y0, (DI)
	VMOVUPS   Y1, 32(DI)
	ADDQ      $32, SI
	ADDQ      $64, DI
	SUBQ      $16, CX
	JGE       loop

done:
	VZEROUPPER
	RET

// func narrowFloat16AVX2(dst []Float16, src []float32, c float32)
TEXT ·narrowFloat16AVX2(SB), NOSPLIT, $0-52
	MOVQ         dst_base+0(FP), DI
	MOVQ         src_base+24(FP), SI
	MOVQ         src_len+32(FP), CX
	VBROADCASTSS c+48(FP), Y12
	SUBQ $16, CX
	JLT  done

loop:
	VMULPS    (SI), Y12, Y0
	VMULPS    32(SI), Y12, Y1
	VCVTPS2PH $0, Y0, (DI) // to nearest, ties to even
	VCVTPS2PH $0, Y1, 16(DI)
	ADDQ      $64, SI
	ADDQ      $32, DI
	SUBQ      $16, CX
	JGE       loop

done:
	VZEROUPPER
	RET
