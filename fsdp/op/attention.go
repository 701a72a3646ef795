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
