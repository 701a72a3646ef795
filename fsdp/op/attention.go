package op

import (
	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/ops"
)

// Attention configures how [SDPA] and [SelfAttention] combine queries, keys and values.
type Attention struct {
	// Heads is the number of heads of queries, at least 1.
	Heads int
	// KVHeads is the number of heads of keys and values, which divides Heads: query head h reads head
	// h/(Heads/KVHeads) (grouped queries, Ainslie et al., 2023, arXiv:2305.13245; with 1 multi-query
	// attention, Shazeer, 2019, arXiv:1911.02150). 0 means Heads.
	KVHeads int
	// Causal hides the keys j > i + Tk - Tq from query i. The last query sees every key, as it does
	// when it continues a sequence whose earlier keys are kept. A query before the first key sees
	// none.
	Causal bool
	// Window lets a causal query see only the last Window of its keys (Mistral's sliding window, Jiang
	// et al., 2023, arXiv:2310.06825). Without Causal a query sees the key at its position and
	// Window-1 keys on each side, as in the local layers of ModernBERT; there is no kernel for that
	// on a GPU. 0 means all.
	Window int
	// Scale multiplies q·k. 0 means 1/√Dh; T5 has 1.
	Scale float64
	// Mask is nil or ints [B, Tk]: it hides the keys where it is zero. Hidden keys and values must
	// be finite, too.
	Mask *gorgonia.Node
	// Positions is nil, or ints [B, T] for rows that have several documents each: the position of
	// each token in its document. A query sees the keys of its own document only. A document begins
	// where the position is 0; the first one of a row may begin later, if it continues from another
	// row. Queries and keys are of the same tokens. The documents of a row are computed one by one,
	// as if each had a row to itself, so keys of other documents take no time.
	Positions *gorgonia.Node
	// Bias is nil or [Heads, Tq, Tk], and added to the scaled scores of every sequence: relative
	// positions as in T5, ALiBi. In passes in bfloat16 it is float32.
	Bias *gorgonia.Node
}

func (a Attention) attributes() ops.Attention {
	return ops.Attention{Heads: a.Heads, KVHeads: a.KVHeads, Causal: a.Causal, Window: a.Window, Scale: a.Scale}
}

// SDPA returns scaled dot-product attention (Vaswani et al., 2017, arXiv:1706.03762) of Heads
// heads,
//
//	softmax(Scale·q·kᵀ + Bias)·v
//
// for q [B, Tq, Heads*Dh] and k and v [B, Tk, KVHeads*Dh]: [B, Tq, Heads*Dh]. Head h is columns
// [h*Dh, (h+1)*Dh). A query that sees no key gives zeros. q, k, v and Bias take gradients. The
// gradients of keys and values are summed over the heads that read them, the gradient of Bias over
// the batch, in order.
//
// The scores are never stored. Forward keeps the logarithm of the sum in each softmax, and backward
// computes the scores again, a block of queries at a time, as FlashAttention does (Dao et al.,
// 2022, arXiv:2205.14135). Keys that no query of a block sees, because of Causal, Window or zeros
// at the ends of Mask, take no time. Queries of heads that read the same keys are multiplied
// together. Threads share the heads of keys of all sequences or, in backward with a Bias, the heads
// of one sequence.
//
// Errors: widths that do not divide into heads, sequences and batches that do not fit each other, a
// Window that is negative, a Scale that is not finite. Positions that do not count up are an error
// of the pass.
func SDPA(q, k, v *gorgonia.Node, a Attention) (*gorgonia.Node, error) {
	return ops.SDPA(q, k, v, a.Mask, a.Positions, a.Bias, a.attributes())
}

// SelfAttention is [SDPA] of queries, keys and values that are joined in qkv [B, T,
// (Heads+2*KVHeads)*Dh], as one linear layer makes them: the last dimension has the heads of
// queries, then of keys, then of values. The result is [B, T, Heads*Dh]. qkv is read in place, and
// its gradient is written in place.
func SelfAttention(qkv *gorgonia.Node, a Attention) (*gorgonia.Node, error) {
	return ops.SelfAttention(qkv, a.Mask, a.Positions, a.Bias, a.attributes())
}
