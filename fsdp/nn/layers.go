package nn

import (
	"cmp"
	"fmt"

	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/op"
)

// defaultStd is the standard deviation of initial weights if none is given.
const defaultStd = 0.02

func weights(std float64) fsdp.Init { return fsdp.Normal(cmp.Or(std, defaultStd)) }

// Linear maps x [..., In] to x·weightᵀ + bias, [..., Out]. Parameters: weight [Out, In], its own or
// tied to the parameter that Tied names, bias [Out] unless NoBias, and the parameters of its
// adapter.
type Linear struct {
	In, Out int
	NoBias  bool
	Tied    string  // full name of a parameter of another call, such as an embedding's weight
	Std     float64 // of the initial weights; 0 means 0.02
	LoRA    LoRA
}

// Params implements fsdp.Module.
func (m *Linear) Params() []fsdp.Param {
	params := []fsdp.Param{{Name: "weight", Shape: []int{m.Out, m.In}, Init: weights(m.Std), Tied: m.Tied}}
	if !m.NoBias {
		params = append(params, fsdp.Param{Name: "bias", Shape: []int{m.Out}})
	}
	return append(params, m.LoRA.params(m.In, m.Out)...)
}

// Build implements fsdp.Module.
func (m *Linear) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	p, err := operands(b, in, 1, "weight")
	if err != nil {
		return nil, err
	}
	var bias *gorgonia.Node
	if !m.NoBias {
		if bias, err = b.Param("bias"); err != nil {
			return nil, err
		}
	}
	y, err := op.Linear(in[0], p[0], bias)
	if err != nil {
		return nil, err
	}
	return one(m.LoRA.add(b, y, in[0]))
}

// Embedding maps ints [...] to rows of its table, times Scale: [..., Dim]. Parameter: weight [Rows,
// Dim].
type Embedding struct {
	Rows, Dim int
	Scale     float64 // 0 means 1
	Std       float64 // of the initial weights; 0 means 0.02
}

// Params implements fsdp.Module.
func (m *Embedding) Params() []fsdp.Param {
	return []fsdp.Param{{Name: "weight", Shape: []int{m.Rows, m.Dim}, Init: weights(m.Std)}}
}

// Build implements fsdp.Module.
func (m *Embedding) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	p, err := operands(b, in, 1, "weight")
	if err != nil {
		return nil, err
	}
	y, err := op.Embedding(p[0], in[0])
	if err != nil || m.Scale == 0 {
		return gorgonia.Nodes{y}, err
	}
	return one(op.Scale(y, m.Scale))
}

// Positions adds a learned vector per position to x [B, T, Dim], T <= Rows. The positions are 0 to
// T-1, or a second input, ints [B, T] below Rows. Parameter: weight [Rows, Dim].
type Positions struct {
	Rows, Dim int
	Std       float64 // of the initial weights; 0 means 0.02
}

// Params implements fsdp.Module.
func (m *Positions) Params() []fsdp.Param {
	return []fsdp.Param{{Name: "weight", Shape: []int{m.Rows, m.Dim}, Init: weights(m.Std)}}
}

// Build implements fsdp.Module.
func (m *Positions) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	p, err := operandsOr(b, in, 1, "weight")
	if err != nil {
		return nil, err
	}
	if len(in) == 1 {
		if x := in[0]; x.Dims() == 3 && x.Shape()[1] > m.Rows {
			return nil, fmt.Errorf("the sequences of the batch have %d tokens, but the model has positions for only %d: cut the sequences, or raise Context (Rows of nn.Positions)", x.Shape()[1], m.Rows)
		}
		return one(op.AddPositions(in[0], p[0]))
	}
	if x, at := in[0].Shape(), in[1].Shape(); len(x) > 0 && !at.Eq(x[:len(x)-1]) {
		return nil, fmt.Errorf("positions are %v, want %v", at, x[:len(x)-1])
	}
	at, err := op.Embedding(p[0], in[1])
	if err != nil {
		return nil, err
	}
	return one(gorgonia.Add(in[0], at))
}

// Pointwise applies an activation to its input, for models that call their parts one by one.
type Pointwise struct{ Act Activation }

// Params implements [fsdp.Module]: there are none.
func (*Pointwise) Params() []fsdp.Param { return nil }

// Build implements [fsdp.Module].
func (p *Pointwise) Build(_ *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	if err := arguments(in, 1); err != nil {
		return nil, err
	}
	return one(p.Act.apply(in[0]))
}

// Activation is an element-wise function.
type Activation uint8

// The activations. The zero value is GELU.
const (
	GELU     Activation = iota // exact, by erf
	GELUTanh                   // the tanh approximation
	ReLU
	SiLU // x·σ(x)
	Tanh
	Sigmoid
)

func (a Activation) apply(x *gorgonia.Node) (*gorgonia.Node, error) {
	switch a {
	case GELU:
		return op.GELU(x)
	case GELUTanh:
		return op.GELUTanh(x)
	case ReLU:
		return op.ReLU(x)
	case SiLU:
		return op.SiLU(x)
	case Tanh:
		return op.Tanh(x)
	case Sigmoid:
		return op.Sigmoid(x)
	default:
		return nil, fmt.Errorf("unknown activation %d", a)
	}
}

// gate returns act(gate)·up for x [..., 2*d], whose rows are gate and up.
func (a Activation) gate(x *gorgonia.Node) (*gorgonia.Node, error) {
	switch a {
	case GELU:
		return op.GEGLU(x, nil)
	case GELUTanh:
		return op.GEGLUTanh(x, nil)
	case ReLU:
		return op.ReGLU(x, nil)
	case SiLU:
		return op.SwiGLU(x, nil)
	case Sigmoid:
		return op.GLU(x, nil)
	default:
		return nil, fmt.Errorf("no gated linear unit has activation %d: want GELU, GELUTanh, ReLU, SiLU or Sigmoid", a)
	}
}

// arguments checks the number of inputs.
func arguments(in []*gorgonia.Node, want int) error {
	if len(in) != want {
		return fmt.Errorf("%d inputs, want %d", len(in), want)
	}
	return nil
}

// operands checks the number of inputs and returns the named parameters.
func operands(b *fsdp.Builder, in []*gorgonia.Node, want int, names ...string) (params []*gorgonia.Node, err error) {
	if err := arguments(in, want); err != nil {
		return nil, err
	}
	params = make([]*gorgonia.Node, len(names))
	for i, name := range names {
		if params[i], err = b.Param(name); err != nil {
			return nil, err
		}
	}
	return params, nil
}

// operandsOr does the same for a module with one optional further input.
func operandsOr(b *fsdp.Builder, in []*gorgonia.Node, want int, names ...string) ([]*gorgonia.Node, error) {
	if len(in) < want || len(in) > want+1 {
		return nil, fmt.Errorf("%d inputs, want %d or %d", len(in), want, want+1)
	}
	return operands(b, in[:want], want, names...)
}

// one makes the result of a module with a single output.
func one(n *gorgonia.Node, err error) (gorgonia.Nodes, error) {
	if err != nil {
		return nil, err
	}
	return gorgonia.Nodes{n}, nil
}

// chain passes x through functions one after another, up to the first error.
func chain(x *gorgonia.Node, steps ...func(*gorgonia.Node) (*gorgonia.Node, error)) (*gorgonia.Node, error) {
	var err error
	for _, step := range steps {
		if x, err = step(x); err != nil {
			return nil, err
		}
	}
	return x, nil
}

// part returns a step that calls a part of the module with one input and one output.
func part(b *fsdp.Builder, name string, m fsdp.Module) func(*gorgonia.Node) (*gorgonia.Node, error) {
	return func(x *gorgonia.Node) (*gorgonia.Node, error) {
		out, err := b.Call(name, m, x)
		if err != nil {
			return nil, err
		}
		return out[0], nil
	}
}

// keep returns a step that calls a part with more inputs than x, and appends its results after the
// first to kept.
func keep(b *fsdp.Builder, name string, m fsdp.Module, more []*gorgonia.Node, kept *gorgonia.Nodes) func(*gorgonia.Node) (*gorgonia.Node, error) {
	return func(x *gorgonia.Node) (*gorgonia.Node, error) {
		out, err := b.Call(name, m, append(gorgonia.Nodes{x}, more...)...)
		if err != nil {
			return nil, err
		}
		*kept = append(*kept, out[1:]...)
		return out[0], nil
	}
}
