package models

import (
	"embed"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

//go:embed peers
var scripts embed.FS

// contest is a function that is implemented in several ways.
type contest struct {
	name, doc string
	flops     float64 // of a forward and its backward, or 0
	batch     []fsdp.Tensor
	ways      []way     // our ways; the others are compared with the first
	op        operation // the operation of the only way, unless that has a model
	script    string    // PyTorch's script, in peers
	variants  []string  // variants of the script
}

// way is one of our ways.
type way struct {
	name  string
	model fsdp.Model
}

// tolerance is the largest difference of losses of c. For an operation these are norms, also for
// Dropout.
func (c contest) tolerance() float64 {
	if c.op.build != nil {
		return 1e-3
	}
	return 1e-4
}

// model is a function as a model, which returns the loss.
type model func(t *fsdp.Tape, in []fsdp.Ref) fsdp.Ref

func (f model) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	return []fsdp.Ref{f(t, in)}, nil
}

var contests = append([]contest{
	{
		name: "mlp", doc: "784, 512, 512 and 10 channels, 128 rows", flops: 6 * 128 * (784*512 + 512*512 + 512*10),
		batch: []fsdp.Tensor{floats(128, 784), ints(10, 128)},
		ways:  []way{{"nn", model(mlp)}}, script: "mlp.py", variants: []string{""},
	},
	decoder("gpt256", gpt(256), "gpt.py", ""),
	decoder("gpt512", gpt(512), "gpt.py", ""),
	decoder("gpt1024", gpt(1024), "gpt.py", ""),
	llamas(256),
	llamas(512),
	llamas(1024),
	bert(),
	t5(),
	vit(),
	{
		name: "digits", doc: "32 and 64 channels of 3x3, a dense layer of 128, 32 images of 28x28", flops: digitsFLOPs,
		batch: []fsdp.Tensor{floats(32, 1, 28, 28), ints(10, 32)},
		ways:  []way{{"nn", digits(false)}, {"Gorgonia's operations", digits(true)}}, script: "digits.py", variants: []string{"", "channels last"},
	},
	{
		name: "residual", doc: "a stem and a block of 64 channels of 3x3 with BatchNorm, 8 images of 32x32", flops: residualFLOPs,
		batch: []fsdp.Tensor{floats(8, 3, 32, 32), ints(10, 8)},
		ways:  []way{{"nn", model(residual)}}, script: "residual.py", variants: []string{"", "channels last"},
	},
}, operations...)

func mlp(t *fsdp.Tape, in []fsdp.Ref) fsdp.Ref {
	x := t.Call("fc", &nn.Linear{In: 784, Out: 512}, in[0])
	x = t.Call("act", &nn.Pointwise{}, x)
	x = t.Call("out", &nn.Linear{In: 512, Out: 512}, x)
	x = t.Call("act2", &nn.Pointwise{}, x)
	return t.Call("head", &nn.Head{Dim: 512, Classes: 10}, x, in[1])
}

// floats returns numbers between -1 and 1 that depend on their position.
func floats(shape ...int) *tensor.Dense {
	return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(fill(tensor.Shape(shape).TotalSize(), 0, float)))
}

// ints returns numbers below a bound that depend on their position.
func ints(below int, shape ...int) *tensor.Dense {
	v := fill(tensor.Shape(shape).TotalSize(), 0, func(i int) int { return integer(i, below) })
	return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(v))
}

// fill returns f(start), f(start+1) and so on.
func fill[T any](n, start int, f func(i int) T) []T {
	v := make([]T, n)
	for i := range v {
		v[i] = f(start + i)
	}
	return v
}

// integer returns a number below a bound that looks random.
func integer(i, below int) int {
	h := uint32(i) * 2654435761
	h = (h ^ h>>16) * 2246822519
	return int((h ^ h>>13) % uint32(below))
}

// float returns a number between -1 and 1.
func float(i int) float32 { return float32(integer(i, 1024))/512 - 1 }
