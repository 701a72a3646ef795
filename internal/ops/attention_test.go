package ops_test

import (
	"math"
	"testing"

	"github.com/gofsdp/gofsdp/internal/ops"
)

// TestAttentionMistakes builds attention on arguments that do not fit.
func TestAttentionMistakes(t *testing.T) {
	for want, op := range map[string]operation{
		"attention: qkv is (2, 9), want [B T (H+2*KV)*Dh]":                                    on(attention(3, true, false), []int{2, 9}),
		"attention: qkv is (2, 3, 12), want a multiple of 9 columns, the number of its heads": on(attention(3, true, false), []int{2, 3, 12}),
		"attention: 0 query heads are not a positive multiple of 0 key heads":                 on(attention(0, true, false), []int{2, 3, 12}),
		"attention bias: bias is (2, 3, 4), want [heads 3 3] for qkv (2, 3, 12)":              on(joined(ops.Attention{Heads: 2}, true, false), []int{2, 3, 12}, []int{2, 3, 4}),
		"attention bias: bias is (3, 3, 3), want 2 heads":                                     on(joined(ops.Attention{Heads: 2}, true, false), []int{2, 3, 12}, []int{3, 3, 3}),
		"attention: mask is (2), want [2 3] for qkv (2, 3, 12)":                               onInts(attention(2, true, true), []float64{1, 1}, []int{2}, []int{2, 3, 12}),
		"attention: mask is float64, want int":                                                on(attention(2, true, true), []int{2, 3, 12}, []int{2, 3}),
		"sdpa: q is (2, 3, 8) and k is (2, 5, 6), want 2 and 2 heads of equal width":          on(sdpa(ops.Attention{Heads: 2}, false, false), []int{2, 3, 8}, []int{2, 5, 6}, []int{2, 5, 6}),
		"sdpa: v is (2, 4, 8), want [2 5 8] for q (2, 3, 8)":                                  on(sdpa(ops.Attention{Heads: 2}, false, false), []int{2, 3, 8}, []int{2, 5, 8}, []int{2, 4, 8}),
		"sdpa: k is (1, 5, 8), want [2 Tk KV*Dh] for q (2, 3, 8)":                             on(sdpa(ops.Attention{Heads: 2}, false, false), []int{2, 3, 8}, []int{1, 5, 8}, []int{1, 5, 8}),
		"sdpa: q is (3, 8), want [B Tq H*Dh]":                                                 on(sdpa(ops.Attention{Heads: 2}, false, false), []int{3, 8}, []int{5, 8}, []int{5, 8}),
		"sdpa: q is (1, 3, 8) and k is (1, 3, 8), want 3 and 3 heads of equal width":          on(sdpa(ops.Attention{Heads: 3}, false, false), []int{1, 3, 8}, []int{1, 3, 8}, []int{1, 3, 8}),
		"sdpa: 4 query heads are not a positive multiple of 3 key heads":                      on(sdpa(ops.Attention{Heads: 4, KVHeads: 3}, false, false), []int{1, 3, 8}, []int{1, 3, 6}, []int{1, 3, 6}),
		"sdpa: 0 query heads are not a positive multiple of 0 key heads":                      on(sdpa(ops.Attention{}, false, false), []int{1, 3, 8}, []int{1, 3, 6}, []int{1, 3, 6}),
		"sdpa: window -1: want a positive one, or 0":                                          on(sdpa(ops.Attention{Heads: 2, Window: -1, Causal: true}, false, false), []int{1, 3, 8}, []int{1, 3, 8}, []int{1, 3, 8}),
		"sdpa: scale is NaN, want a finite number":                                            on(sdpa(ops.Attention{Heads: 2, Scale: math.NaN()}, false, false), []int{1, 3, 8}, []int{1, 3, 8}, []int{1, 3, 8}),
		"sdpa bias: bias is (1, 3, 3), want 2 heads":                                          on(sdpa(ops.Attention{Heads: 2}, true, false), []int{1, 3, 8}, []int{1, 3, 8}, []int{1, 3, 8}, []int{1, 3, 3}),
		"sdpa bias: bias is (2, 3, 4), want [heads 3 3] for q (1, 3, 8)":                      on(sdpa(ops.Attention{Heads: 2}, true, false), []int{1, 3, 8}, []int{1, 3, 8}, []int{1, 3, 8}, []int{2, 3, 4}),
		"attention: positions are (2), want (2, 3)":                                           onInts(joined(ops.Attention{Heads: 2, Packed: true}, false, false), []float64{1, 1}, []int{2}, []int{2, 3, 12}),
		"sdpa: positions are (1, 2), want (1, 3)":                                             onInts(sdpa(ops.Attention{Heads: 2, Packed: true}, false, false), []float64{1, 1}, []int{1, 2}, []int{1, 3, 8}, []int{1, 3, 8}, []int{1, 3, 8}),
		"sdpa: positions are (1, 3), want (1, 5)":                                             onInts(sdpa(ops.Attention{Heads: 2, Packed: true}, false, false), []float64{0, 1, 2}, []int{1, 3}, []int{1, 3, 8}, []int{1, 5, 8}, []int{1, 5, 8}),
		"sdpa: mask is (1, 2), want [1 3] for q (1, 3, 8)":                                    onInts(sdpa(ops.Attention{Heads: 2}, false, true), []float64{1, 1}, []int{1, 2}, []int{1, 3, 8}, []int{1, 3, 8}, []int{1, 3, 8}),
	} {
		requireMistake(t, want, op)
	}
}
