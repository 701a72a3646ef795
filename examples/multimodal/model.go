package main

import (
	"fmt"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/op"
)

// captioner is a GPT that reads images: a tower looks at them, and what it sees takes the place of
// tokens.
type captioner struct{ layers, dim, heads int }

// Inputs names the tensors of a batch. One of text alone has nil for images and where.
func (m *captioner) Inputs() []string { return []string{"tokens", "targets", "images", "where"} }

// Forward implements fsdp.Model.
func (m *captioner) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	text := t.Call("wte", &nn.Embedding{Rows: vocab, Dim: m.dim}, in[0])

	seen := t.Call("vision.patches", &nn.Patches{Channels: 1, Height: side, Width: side, Size: patch, Dim: m.dim}, t.Optional(in[2]))
	for i := range m.layers {
		seen = t.Call(fmt.Sprintf("vision.layers.%d", i), m.layer(), seen)
	}
	seen = t.Call("vision.norm", &nn.LayerNorm{Dim: m.dim}, seen)
	x := t.Call("splice", splice{}, text, seen, t.Optional(in[3])).Or(text)

	x = t.Call("wpe", &nn.Positions{Rows: length, Dim: m.dim}, x)
	for i := range m.layers {
		x = t.Call(fmt.Sprintf("blocks.%d", i), &nn.Block{Dim: m.dim, Heads: m.heads}, x)
	}
	x = t.Call("lnf", &nn.LayerNorm{Dim: m.dim}, x)
	return []fsdp.Ref{t.Call("head", &nn.Head{Dim: m.dim, Classes: vocab}, x, in[1])}, nil
}

// layer returns one of the tower.
func (m *captioner) layer() *nn.Layer {
	return &nn.Layer{Attn: nn.Attention{Dim: m.dim, Heads: m.heads}, MLP: nn.MLP{Dim: m.dim, Hidden: 4 * m.dim}}
}

// splice replaces rows of text [B, T, dim] by those of seen [I, P, dim]. where, ints [B, T], names for
// each place a row of both, one after the other.
type splice struct{}

// Params implements fsdp.Module.
func (splice) Params() []fsdp.Param { return nil }

// Build implements fsdp.Module.
func (splice) Build(_ *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	var rows [2]*gorgonia.Node
	for i, x := range in[:2] {
		var err error
		s := x.Shape()
		if rows[i], err = gorgonia.Reshape(x, tensor.Shape{s[0] * s[1], s[2]}); err != nil {
			return nil, err
		}
	}
	all, err := gorgonia.Concat(0, rows[0], rows[1])
	if err != nil {
		return nil, err
	}
	y, err := op.Embedding(all, in[2])
	return gorgonia.Nodes{y}, err
}
