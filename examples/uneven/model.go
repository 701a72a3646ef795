package main

import (
	"fmt"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// speller is an encoder and a decoder of bytes. Every position of the decoder sees the encoder's
// state at its own position and those before, where the digits are.
type speller struct{ layers, dim, heads int }

// Inputs names the tensors of a batch: ints [B, length].
func (m *speller) Inputs() []string { return []string{"digits", "words so far", "words"} }

// Forward implements fsdp.Model.
func (m *speller) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	return []fsdp.Ref{m.decode(t, m.encode(t, in[0]), in[1], in[2])}, nil
}

// Programs returns the ways through the model that generation takes: encode maps digits to states
// [B, length, dim], decode maps those and the words so far to logits [B, length, vocab].
func (m *speller) Programs() map[string]fsdp.Program {
	return map[string]fsdp.Program{
		"encode": func(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
			return []fsdp.Ref{m.encode(t, in[0])}, nil
		},
		"decode": func(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
			return []fsdp.Ref{m.decode(t, in[0], in[1], in[1]).At(1)}, nil // the loss of these targets is not looked at
		},
	}
}

// encode returns the states of the digits.
func (m *speller) encode(t *fsdp.Tape, digits fsdp.Ref) fsdp.Ref {
	x := t.Call("encoder.tokens", &nn.Embedding{Rows: vocab, Dim: m.dim}, digits)
	x = t.Call("encoder.positions", &nn.Positions{Rows: length, Dim: m.dim}, x)
	return m.blocks(t, "encoder", x, true)
}

// decode returns the loss, whose call has the logits too.
func (m *speller) decode(t *fsdp.Tape, states, soFar, words fsdp.Ref) fsdp.Ref {
	x := t.Call("decoder.tokens", &nn.Embedding{Rows: vocab, Dim: m.dim}, soFar)
	x = t.Call("decoder.positions", &nn.Positions{Rows: length, Dim: m.dim}, x)
	x = t.Call("decoder.add", &nn.Add{}, x, states)
	x = m.blocks(t, "decoder", x, false)
	return t.Call("decoder.head", &nn.Head{Dim: m.dim, Classes: vocab}, x, words)
}

// blocks calls transformer blocks and a norm.
func (m *speller) blocks(t *fsdp.Tape, part string, x fsdp.Ref, full bool) fsdp.Ref {
	for i := range m.layers {
		x = t.Call(fmt.Sprintf("%s.%d", part, i), &nn.Block{Dim: m.dim, Heads: m.heads, Full: full, Act: nn.ReLU}, x)
	}
	return t.Call(part+".norm", &nn.LayerNorm{Dim: m.dim}, x)
}
