package fsdp_test

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// decoderLayer is a block and what it then reads of the encoder's result: x + sigmoid(q·memᵀ)·mem
// for x and mem [rows, columns, dim], where q is linear in x.
type decoderLayer struct{ dim, heads int }

func (m *decoderLayer) block() *nn.Block  { return &nn.Block{Dim: m.dim, Heads: m.heads} }
func (m *decoderLayer) query() *nn.Linear { return &nn.Linear{In: m.dim, Out: m.dim, Std: 0.3} }

func (m *decoderLayer) Params() []fsdp.Param {
	return append(fsdp.Prefix("block", m.block()), fsdp.Prefix("query", m.query())...)
}

func (m *decoderLayer) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
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

// translating is an encoder and a decoder as those of T5: one embedding for both, every layer of the
// decoder reads what the encoder has made, and the head is tied to the embedding.
var translating = model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
	const dim, heads = 8, 2
	words := t.Call("tokens", &nn.Embedding{Rows: tinyVocab, Dim: dim}, in[0])
	mem := words
	for i := range 2 {
		mem = t.Call(fmt.Sprint("encoder.", i), &nn.Block{Dim: dim, Heads: heads, Full: true}, mem)
	}
	mem = t.Call("encoder.norm", &nn.RMSNorm{Dim: dim}, mem)
	x := words
	for i := range 3 {
		x = t.Call(fmt.Sprint("decoder.", i), &decoderLayer{dim, heads}, x, mem)
	}
	x = t.Call("decoder.norm", &nn.RMSNorm{Dim: dim}, x)
	return []fsdp.Ref{t.Call("head", &nn.Head{Dim: dim, Classes: tinyVocab, Tied: "tokens.weight"}, x, in[1])}, nil
})

// never selects nothing.
var never = fsdp.WrapNames(regexp.MustCompile("^never$"))

// TestEncoderDecoderPolicies wraps an encoder and a decoder by each policy: the units are those
// wanted, and training has the bits of one unit.
func TestEncoderDecoderPolicies(t *testing.T) {
	layers := fsdp.WrapTypes(&nn.Block{}, &decoderLayer{})
	norms := fsdp.WrapTypes(&nn.RMSNorm{})
	halves := regexp.MustCompile(`^(en|de)coder`)
	want := train(t, translating, 2, 3, 0.5, fsdp.Config{})
	for _, c := range []struct {
		name   string
		policy fsdp.Policy
		units  []string
	}{
		{"one type", fsdp.WrapTypes(&nn.Block{}), []string{"root", "encoder.0", "encoder.1"}},
		{"two types", layers, []string{"root", "encoder.0", "encoder.1", "decoder.0", "decoder.1", "decoder.2"}},
		{"a type twice, and a nil pointer", fsdp.WrapTypes(&decoderLayer{}, (*decoderLayer)(nil)), []string{"root", "decoder.0", "decoder.1", "decoder.2"}},
		{"each", fsdp.WrapEach(), []string{"tokens", "encoder.0", "encoder.1", "encoder.norm", "decoder.0", "decoder.1", "decoder.2", "decoder.norm"}},
		{"halves by name", fsdp.WrapNames(halves), []string{"root", "encoder", "decoder"}},
		{"by size", fsdp.WrapMinParams(1700), []string{"root", "tokens", "encoder.norm"}},
		{"any", fsdp.WrapAny(fsdp.WrapTypes(&nn.Block{}), nil, fsdp.WrapNames(halves)), []string{"root", "encoder.0", "encoder.1", "encoder", "decoder"}},
		{"any, twice the same", fsdp.WrapAny(layers, norms, layers), []string{"root", "encoder.0", "encoder.1", "encoder.norm", "decoder.0", "decoder.1", "decoder.2", "decoder.norm"}},
		{"all but", fsdp.WrapAllBut(fsdp.WrapAny(norms, fsdp.WrapTypes(&nn.Embedding{}))), []string{"root", "encoder.0", "encoder.1", "decoder.0", "decoder.1", "decoder.2"}},
		{"all but all but", fsdp.WrapAllBut(fsdp.WrapAllBut(fsdp.WrapTypes(&decoderLayer{}))), []string{"root", "decoder.0", "decoder.1", "decoder.2"}},
		{"all but nil", fsdp.WrapAllBut(nil), []string{"tokens", "encoder.0", "encoder.1", "encoder.norm", "decoder.0", "decoder.1", "decoder.2", "decoder.norm"}},
		{"any of none", fsdp.WrapAny(), []string{"root"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.units, unitsOf(t, translating, c.policy))
			cfg := fsdp.Config{Wrap: c.policy, Checkpoint: c.policy, Poison: true}
			requireSameBits(t, want, train(t, translating, 2, 3, 0.5, cfg))
		})
	}
}

// unitsOf returns the names of the units that a policy makes of a model of tokens and targets.
func unitsOf(t *testing.T, m fsdp.Model, p fsdp.Policy) (names []string) {
	plan, err := wrap(t, m, fsdp.Config{Wrap: p}).Plan(tinyBatch(0, 0, 1, 3)...)
	require.NoError(t, err)
	for _, g := range plan.Groups {
		names = append(names, g.Name)
	}
	return names
}

// TestPolicyOfAnotherLength: a policy that answers for other calls than it was given is refused also
// as a part of another.
func TestPolicyOfAnotherLength(t *testing.T) {
	two := func([]fsdp.CallInfo) []string { return []string{"a", "b"} }
	for _, p := range []fsdp.Policy{two, fsdp.WrapAny(fsdp.WrapEach(), two), fsdp.WrapAllBut(two)} {
		_, err := fsdp.Wrap(tinyGPT(1), fsdp.Config{Wrap: p})
		require.EqualError(t, err, "fsdp: rank 0: policy Config.Wrap returned 2 names for 5 calls")
	}
	require.Equal(t, []string{"x"}, fsdp.WrapAny(never, fsdp.WrapEach())([]fsdp.CallInfo{{Name: "x"}}), "without Wrap")
}
