//go:build amd64 && !purego

#include "textflag.h"

// The functions for AVX2 convert src_len elements, a multiple of 16, two registers of eight at a time. DI and SI point to the
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

// The two that follow convert any number of elements, 16 at a time, the last ones by mask K1. AX is 16.

// func widenBFloat16AVX512(dst []float32, src []BFloat16)
TEXT ·widenBFloat16AVX512(SB), NOSPLIT, $0-48
	MOVQ dst_base+0(FP), DI
	MOVQ src_base+24(FP), SI
	MOVQ src_len+32(FP), CX
	SUBQ $64, CX
	JLT  few

many:
	VPMOVZXWD (SI), Z0
	VPMOVZXWD 32(SI), Z1
	VPMOVZXWD 64(SI), Z2
	VPMOVZXWD 96(SI), Z3
	VPSLLD    $16, Z0, Z0
	VPSLLD    $16, Z1, Z1
	VPSLLD    $16, Z2, Z2
	VPSLLD    $16, Z3, Z3
	VMOVDQU32 Z0, (DI)
	VMOVDQU32 Z1, 64(DI)
	VMOVDQU32 Z2, 128(DI)
	VMOVDQU32 Z3, 192(DI)
	ADDQ      $128, SI
	ADDQ      $256, DI
	SUBQ      $64, CX
	JGE       many

few:
	ADDQ $64, CX
	JZ   done
	MOVL $-1, R8
	MOVQ $16, AX

loop:
	CMPQ        CX, AX
	CMOVQLT     CX, AX
	BZHIL       AX, R8, BX
	KMOVW       BX, K1
	VPMOVZXWD.Z (SI), K1, Z0
	VPSLLD      $16, Z0, Z0
	VMOVDQU32   Z0, K1, (DI)
	ADDQ        $32, SI
	ADDQ        $64, DI
	SUBQ        AX, CX
	JNZ         loop

done:
	VZEROUPPER
	RET

// VCVTNEPS2BF16 rounds as it should, but takes subnormal numbers for zeros. Where 16 elements have one of those, they
// are rounded as AVX2 does it. Go's assembler does not know the instruction: the bytes are VCVTNEPS2BF16 Z0, Y1.

// func narrowBFloat16AVX512(dst []BFloat16, src []float32, c float32)
TEXT ·narrowBFloat16AVX512(SB), NOSPLIT, $0-52
	MOVQ         dst_base+0(FP), DI
	MOVQ         src_base+24(FP), SI
	MOVQ         src_len+32(FP), CX
	VBROADCASTSS c+48(FP), Z12
	MOVL         $0x7fff, AX
	VPBROADCASTD AX, Z13
	MOVL         $1, AX
	VPBROADCASTD AX, Z14
	MOVL         $-1, R8
	MOVL         $0xffff, BX
	KMOVW        BX, K1
	MOVQ         $16, AX
	TESTQ        CX, CX
	JZ           done

loop:
	CMPQ        CX, AX
	JLT         last

turn:
	VMULPS.Z    (SI), Z12, K1, Z0
	VFPCLASSPSZ $0x20, Z0, K2 // subnormal
	LONG        $0x487ef262; WORD $0xc872
	KORTESTW    K2, K2
	JNZ         subnormal

store:
	VMOVDQU16 Y1, K1, (DI)
	ADDQ      $64, SI
	ADDQ      $32, DI
	SUBQ      AX, CX
	JNZ       loop

done:
	VZEROUPPER
	RET

last:
	MOVQ  CX, AX
	BZHIL AX, R8, BX
	KMOVW BX, K1
	JMP   turn

subnormal:
	VPSRLD       $16, Z0, Z2
	VPANDD       Z14, Z2, Z2
	VPADDD       Z13, Z2, Z2
	VPADDD       Z0, Z2, Z2
	VPSRLD       $16, Z2, Z2
	VFPCLASSPSZ  $0x81, Z0, K2 // NaN: as rounded already
	KNOTW        K2, K2
	VPMOVZXWD    Y1, Z1
	VMOVDQA32    Z2, K2, Z1
	VPMOVDW      Z1, Y1
	JMP          store

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
