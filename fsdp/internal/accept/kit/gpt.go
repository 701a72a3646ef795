package kit

import (
	"fmt"
	"regexp"

	"github.com/stretchr/testify/require"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// TinyVocab and TinyContext bound the tokens and the length of the sequences of a TinyGPT.
const (
	TinyVocab   = 13
	TinyContext = 6
)

// TinyGPT is a language model of a few thousand parameters.
func TinyGPT(layers int) *nn.GPT {
	return &nn.GPT{Vocab: TinyVocab, Context: TinyContext, Layers: layers, Dim: 8, Heads: 2}
}

// TinyBatch returns the batch of a rank in a step: tokens and targets [rows, cols].
func TinyBatch(step, rank, rows, cols int) []fsdp.Tensor {
	seed := 2 * (1000*step + rank)
	return []fsdp.Tensor{Tokens(seed, TinyVocab, rows, cols), Tokens(seed+1, TinyVocab, rows, cols)}
}

// GoodBatch is a batch that every tiny GPT accepts.
func GoodBatch(rank int) []fsdp.Tensor { return TinyBatch(0, rank, 2, 3) }

// Around returns a model that calls mid between an embedding and a head, so that other calls have
// parameters too.
func Around(mid fsdp.Module) Model {
	return func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := t.Call("wte", &nn.Embedding{Rows: TinyVocab, Dim: 8}, in[0])
		x = t.Call("mid", mid, x)
		return []fsdp.Ref{t.Call("head", &nn.Head{Dim: 8, Classes: TinyVocab}, x, in[1])}, nil
	}
}

// DecoderLayer is a block that also reads the encoder's result: x + sigmoid(q·memᵀ)·mem for x and
// mem [rows, columns, dim], where q is linear in x.
type DecoderLayer struct{ dim, heads int }

func (m *DecoderLayer) block() *nn.Block { return &nn.Block{Dim: m.dim, Heads: m.heads} }

func (m *DecoderLayer) query() *nn.Linear { return &nn.Linear{In: m.dim, Out: m.dim, Std: 0.3} }

// Params implements fsdp.Module.
func (m *DecoderLayer) Params() []fsdp.Param {
	return append(fsdp.Prefix("block", m.block()), fsdp.Prefix("query", m.query())...)
}

// Build implements fsdp.Module.
func (m *DecoderLayer) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	x, err := b.Call("block", m.block(), in[0])
	if err != nil {
		return nil, err
	}
	q, err := b.Call("query", m.query(), x...)
	if err != nil {
		return nil, err
	}
	scores, err := gorgonia.BatchedMatMul(q[0], in[1], false, true)
	if err != nil {
		return nil, err
	}
	if scores, err = gorgonia.Sigmoid(scores); err != nil {
		return nil, err
	}
	read, err := gorgonia.BatchedMatMul(scores, in[1])
	if err != nil {
		return nil, err
	}
	sum, err := gorgonia.Add(x[0], read)
	return gorgonia.Nodes{sum}, err
}

// Translating is an encoder and a decoder like T5's: one embedding for both, every layer of the
// decoder reads the encoder's result, and the head is tied to the embedding.
var Translating = Model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
	const dim, heads = 8, 2
	words := t.Call("tokens", &nn.Embedding{Rows: TinyVocab, Dim: dim}, in[0])
	mem := words
	for i := range 2 {
		mem = t.Call(fmt.Sprint("encoder.", i), &nn.Block{Dim: dim, Heads: heads, Full: true}, mem)
	}
	mem = t.Call("encoder.norm", &nn.RMSNorm{Dim: dim}, mem)
	x := words
	for i := range 3 {
		x = t.Call(fmt.Sprint("decoder.", i), &DecoderLayer{dim, heads}, x, mem)
	}
	x = t.Call("decoder.norm", &nn.RMSNorm{Dim: dim}, x)
	return []fsdp.Ref{t.Call("head", &nn.Head{Dim: dim, Classes: TinyVocab, Tied: "tokens.weight"}, x, in[1])}, nil
})

// Never selects nothing.
var Never = fsdp.WrapNames(regexp.MustCompile("^never$"))

// Tiny64 wraps a tiny GPT in float64.
func Tiny64(t require.TestingT, g comm.Group) *fsdp.Sharded {
	return Wrap(t, TinyGPT(2), fsdp.Config{Group: g, WrapPolicy: Blocks, Precision: Float64s, Poison: true})
}

// DropoutGPT is a tiny GPT that drops a lot.
func DropoutGPT() *nn.GPT {
	m := TinyGPT(2)
	m.Dropout = 0.4
	return m
}

// Masked returns rows of tokens with targets. rows are the numbers of targets that count in each.
func Masked(rows ...int) []fsdp.Tensor {
	const width = 6
	var x, y []int
	for i, n := range rows {
		for k := range width {
			x = append(x, (5*i+n+k*k)%7)
			if k < width-n {
				y = append(y, nn.IgnoreTarget)
			} else {
				y = append(y, (3*i+n+k)%7)
			}
		}
	}
	shape := tensor.WithShape(len(rows), width)
	return []fsdp.Tensor{tensor.New(shape, tensor.WithBacking(x)), tensor.New(shape, tensor.WithBacking(y))}
}
