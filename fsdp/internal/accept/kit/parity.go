package kit

import (
	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// A ParityModel is a model with its batches and the selection of a policy by type.
type ParityModel struct {
	Name  string
	Model fsdp.Model
	Typed fsdp.Policy
	Batch func(seed, rows int) []fsdp.Tensor
}

// ParityModels have prime dimensions throughout, so that hardly any parameter is sharded evenly.
var ParityModels = []ParityModel{
	{
		"mlp", Model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
			x := t.Call("in", &nn.Linear{In: 7, Out: 11, Std: 0.4}, in[0])
			x = t.Call("mid", &nn.MLP{Dim: 11, Hidden: 13, Std: 0.4}, x)
			x = t.Call("norm", &nn.LayerNorm{Dim: 11}, x)
			return Regress(t, in, t.Call("out", &nn.Linear{In: 11, Out: 3, Std: 0.4}, x)), nil
		}), fsdp.WrapTypes(&nn.Linear{}),
		func(seed, rows int) []fsdp.Tensor {
			return []fsdp.Tensor{Floats(seed, rows, 7), Floats(seed+1, rows, 3)}
		},
	},
	{
		"tied gpt", &nn.GPT{Vocab: 13, Context: 5, Layers: 2, Dim: 7, Heads: 1, Tied: true}, Blocks,
		func(seed, rows int) []fsdp.Tensor {
			return []fsdp.Tensor{Tokens(seed, 13, rows, 5), Tokens(seed+1, 13, rows, 5)}
		},
	},
	{
		// A parameter of two units, a repeated call, and an unused parameter.
		"odd", Model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
			plain, twice := &Dense{Dim: 5}, &Dense{5, true}
			tied := &Module{[]fsdp.Param{Weight("own", 5, 5), {Name: "w", Shape: []int{5, 5}, Tied: "a.w"}}, plain.Graph}
			x := t.Call("a", plain, in[0])
			x = t.Call("b", plain, x)
			x = t.Call("c", tied, x)
			h := t.Call("cell", twice, x, in[1])
			h = t.Again("cell", h, x)
			return Regress(t, in, t.Call("d", &Module{twice.Params(), plain.Graph}, h)), nil
		}), fsdp.WrapTypes(&Dense{}),
		func(seed, rows int) []fsdp.Tensor {
			return []fsdp.Tensor{Floats(seed, rows, 5), Floats(seed+1, rows, 5)}
		},
	},
}

// A ParityPrecision is a set of element types, with the tolerance of the comparison with one
// process, relative to the largest element of a tensor. The tolerance is 0 if that process rounds
// so differently that the comparison is meaningless.
type ParityPrecision struct {
	Name                    string
	Compute, Gather, Reduce fsdp.DType
	Tolerance               float64
}

// Master returns the type of parameters and gradients outside of communication.
func (p ParityPrecision) Master() fsdp.DType {
	if p.Compute == fsdp.BFloat16 {
		return fsdp.Float32
	}
	return p.Compute
}

// ParityPrecisions are the types in which ParityModels are compared.
var ParityPrecisions = []ParityPrecision{
	{"float64", fsdp.Float64, fsdp.Float64, fsdp.Float64, 1e-12},
	{"float32", fsdp.Float32, fsdp.Float32, fsdp.Float32, 100 * 0x1p-23},
	{"bfloat16", fsdp.Float32, fsdp.BFloat16, fsdp.BFloat16, 0},
	{"float16", fsdp.Float32, fsdp.Float16, fsdp.Float16, 0},
	{"bfloat16 gathers", fsdp.Float32, fsdp.BFloat16, fsdp.Float32, 0},
	{"float16 gradients", fsdp.Float32, fsdp.Float32, fsdp.Float16, 0},
	{"bfloat16 computation", fsdp.BFloat16, fsdp.BFloat16, fsdp.Float32, 0},
	{"bfloat16 throughout", fsdp.BFloat16, fsdp.BFloat16, fsdp.BFloat16, 0},
}

// Momentum makes the optimizer of the matrix.
func Momentum(t require.TestingT, params []optim.Param) optim.Optimizer {
	opt, err := optim.SGD{Momentum: 0.9}.New(params)
	require.NoError(t, err)
	return opt
}

// Float64s computes in float64.
var Float64s = fsdp.Precision{Compute: fsdp.Float64}
