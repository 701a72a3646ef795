package op

import (
	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/ops"
)

// SelfAttention returns multi-head scaled dot-product attention (Vaswani et al., 2017,
// arXiv:1706.03762) over qkv [B, T, 3*D], whose last dimension is q, k and v one after the other,
// each of heads heads of D/heads columns: [B, T, D]. The scores are never stored; backward computes
// them again. causal hides later positions. mask, nil or ints [B, T], hides the keys where it is
// zero; a query that sees no key gives zeros.
func SelfAttention(qkv, mask *gorgonia.Node, heads int, causal bool) (*gorgonia.Node, error) {
	return ops.SelfAttention(qkv, mask, heads, causal)
}

// Attend says how queries, keys and values meet in [SDPA].
type Attend struct {
	// Heads is the number of heads of queries, at least 1.
	Heads int
	// KVHeads is the number of heads of keys and values, which divides Heads: query head h reads head
	// h/(Heads/KVHeads) (grouped queries, Ainslie et al., 2023, arXiv:2305.13245; with 1 multi-query
	// attention, Shazeer, 2019, arXiv:1911.02150). 0 means Heads.
	KVHeads int
	// Causal hides from query i the keys j > i + Tk - Tq: the last query sees every key, as one does
	// that continues a sequence whose earlier keys are kept. A query before the first key sees none.
	Causal bool
	// Window lets a causal query see only the last Window of its keys (Mistral's sliding window, Jiang
	// et al., 2023, arXiv:2310.06825). 0 means all. The others cost nothing.
	Window int
	// Scale multiplies q·k. 0 means 1/√Dh; T5 has 1.
	Scale float64
	// Mask is nil or ints [B, Tk]: it hides the keys where it is zero. Hidden keys and values must be
	// finite all the same.
	Mask *gorgonia.Node
	// Bias is nil or [Heads, Tq, Tk], and added to the scaled scores of every sequence: the relative
	// positions of T5 or ALiBi. In passes in bfloat16 it is float32.
	Bias *gorgonia.Node
}

// SDPA returns scaled dot-product attention (Vaswani et al., 2017, arXiv:1706.03762) of Heads heads,
//
//	softmax(Scale·q·kᵀ + Bias)·v
//
// for q [B, Tq, Heads*Dh] and k and v [B, Tk, KVHeads*Dh]: [B, Tq, Heads*Dh]. Head h is columns
// [h*Dh, (h+1)*Dh). A query that sees no key gives zeros. q, k, v and Bias take gradients; those of
// keys and values are summed over the heads that read them, that of Bias over the batch, in order.
//
// The scores are never stored: forward keeps the logarithm of the sum in each softmax, and backward
// computes them again, a block of queries at a time, as FlashAttention does (Dao et al., 2022,
// arXiv:2205.14135). Keys behind Causal, before Window, and at the ends of Mask are skipped, in
// blocks. Threads share the heads of all sequences; in backward those of keys, and with Bias those of
// one sequence.
//
// Errors: widths that do not divide into heads, sequences and batches that do not fit each other, a
// Window that is negative or without Causal, a Scale that is not finite.
func SDPA(q, k, v *gorgonia.Node, a Attend) (*gorgonia.Node, error) {
	return ops.ScaledDotProduct(q, k, v, a.Mask, a.Bias, ops.SDPA{
		Heads: a.Heads, KVHeads: a.KVHeads, Causal: a.Causal, Window: a.Window, Scale: a.Scale,
	})
}
