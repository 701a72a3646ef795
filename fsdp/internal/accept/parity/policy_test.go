package parity_test

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// TestEncoderDecoderPolicies wraps an encoder and a decoder by each policy: the units are those
// wanted, and training has the bits of one unit.
func TestEncoderDecoderPolicies(t *testing.T) {
	layers := fsdp.WrapTypes(&nn.Block{}, &kit.DecoderLayer{})
	norms := fsdp.WrapTypes(&nn.RMSNorm{})
	halves := regexp.MustCompile(`^(en|de)coder`)
	want := kit.Train(t, kit.Translating, 2, 3, 0.5, fsdp.Config{})
	for _, c := range []struct {
		name   string
		policy fsdp.Policy
		units  []string
	}{
		{"one type", fsdp.WrapTypes(&nn.Block{}), []string{"root", "encoder.0", "encoder.1"}},
		{"two types", layers, []string{"root", "encoder.0", "encoder.1", "decoder.0", "decoder.1", "decoder.2"}},
		{"a type twice, and a nil pointer", fsdp.WrapTypes(&kit.DecoderLayer{}, (*kit.DecoderLayer)(nil)), []string{"root", "decoder.0", "decoder.1", "decoder.2"}},
		{"each", fsdp.WrapEach(), []string{"tokens", "encoder.0", "encoder.1", "encoder.norm", "decoder.0", "decoder.1", "decoder.2", "decoder.norm"}},
		{"halves by name", fsdp.WrapNames(halves), []string{"root", "encoder", "decoder"}},
		{"by size", fsdp.WrapMinParams(1700), []string{"root", "tokens", "encoder.norm"}},
		{"any", fsdp.WrapAny(fsdp.WrapTypes(&nn.Block{}), nil, fsdp.WrapNames(halves)), []string{"root", "encoder.0", "encoder.1", "encoder", "decoder"}},
		{"any, twice the same", fsdp.WrapAny(layers, norms, layers), []string{"root", "encoder.0", "encoder.1", "encoder.norm", "decoder.0", "decoder.1", "decoder.2", "decoder.norm"}},
		{"all but", fsdp.WrapAllBut(fsdp.WrapAny(norms, fsdp.WrapTypes(&nn.Embedding{}))), []string{"root", "encoder.0", "encoder.1", "decoder.0", "decoder.1", "decoder.2"}},
		{"all but all but", fsdp.WrapAllBut(fsdp.WrapAllBut(fsdp.WrapTypes(&kit.DecoderLayer{}))), []string{"root", "decoder.0", "decoder.1", "decoder.2"}},
		{"all but nil", fsdp.WrapAllBut(nil), []string{"tokens", "encoder.0", "encoder.1", "encoder.norm", "decoder.0", "decoder.1", "decoder.2", "decoder.norm"}},
		{"any of none", fsdp.WrapAny(), []string{"root"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.units, unitsOf(t, kit.Translating, c.policy))
			cfg := fsdp.Config{WrapPolicy: c.policy, Activations: fsdp.Activations{Recompute: c.policy}, Poison: true}
			kit.RequireSameBits(t, want, kit.Train(t, kit.Translating, 2, 3, 0.5, cfg))
		})
	}
}

// unitsOf returns the names of the units that a policy makes of a model of tokens and targets.
func unitsOf(t *testing.T, m fsdp.Model, p fsdp.Policy) (names []string) {
	plan, err := kit.Wrap(t, m, fsdp.Config{WrapPolicy: p}).Plan(kit.TinyBatch(0, 0, 1, 3)...)
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
		_, err := fsdp.Wrap(kit.TinyGPT(1), fsdp.Config{WrapPolicy: p})
		require.EqualError(t, err, "fsdp: rank 0: policy Config.WrapPolicy returned 2 names for 5 calls")
	}
	require.Equal(t, []string{"x"}, fsdp.WrapAny(kit.Never, fsdp.WrapEach())([]fsdp.CallInfo{{Name: "x"}}), "without Wrap")
}
