package op

import (
	"cmp"

	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// Rotary configures the columns that [Rope] turns, and the angles.
type Rotary struct {
	// HeadDim is the number of columns of a head.
	HeadDim int
	// Heads is the number of heads at the beginning of a row; 0 means that it has nothing else.
	// Columns after them are passed on: the values in a row of queries, keys and values.
	Heads int
	// Dims, an even number, is the number of columns of each head that are turned, the first ones;
	// 0 means all.
	Dims int
	// Interleaved pairs columns 2i and 2i+1 of a head, as GPT-J and the original code of Llama do.
	// Otherwise columns i and i + Dims/2 are a pair, as in GPT-NeoX and in all of Hugging Face's
	// Llama.
	Interleaved bool
	// Base is the base of the angles; 0 means 10000. Pair i turns by Base^(-2i/Dims) per position.
	Base float64
	// Context is the number of positions if they are given; 0 means T. The table of cosines and
	// sines takes Context·Dims numbers.
	Context int
	// Scaling stretches the angles over longer contexts than in a model's training.
	Scaling RopeScaling
}

// RopeScaling makes the angles of [Rope] smaller. With only Factor, positions are divided by it
// (Chen et al., 2023, arXiv:2306.15595). With Original it is the scaling of Llama 3.1 (rope_type
// "llama3" in Hugging Face's files): the angle of a pair that makes n = Original·angle/2π turns in
// Original positions is kept if n >= HighFreq, divided by Factor if n <= LowFreq, and linear in n
// between.
type RopeScaling struct {
	Factor            float64 // 0 means 1
	LowFreq, HighFreq float64
	Original          int // positions that the model was trained on first
}

// Rope turns pairs of columns of each head of x [..., T, d] by angles that are proportional to the
// position of the row: rotary position embeddings (Su et al., 2021, arXiv:2104.09864). A pair (u,
// v) at position p becomes (u·cos θ - v·sin θ, u·sin θ + v·cos θ), θ = p times the angle of the
// pair, so that the product of a query and a key depends on the difference of their positions.
//
// positions are ints [..., T] in [0, Context), for sequences that are packed in one row or decoded
// with a cache; nil means 0 to T-1. A position that is out of range is an error of the pass. The
// cosines and sines are computed in float64, once for each compiled program. The gradient turns
// back by the same angles, and keeps nothing.
func Rope(x, positions *gorgonia.Node, r Rotary) (*gorgonia.Node, error) {
	of := kernel.Rotary{Heads: r.Heads, HeadDim: r.HeadDim, Dims: cmp.Or(r.Dims, r.HeadDim), Interleaved: r.Interleaved}
	return ops.Rope(x, positions, ops.Angles{
		Rows: r.Context, Base: cmp.Or(r.Base, 10000), Factor: cmp.Or(r.Scaling.Factor, 1),
		Low: r.Scaling.LowFreq, High: r.Scaling.HighFreq, Original: r.Scaling.Original,
	}, of)
}
