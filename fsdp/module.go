package fsdp

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/caught"
	"github.com/gofsdp/gofsdp/internal/exec"
)

// Tensor is a dense, row-major Gorgonia tensor of float32, float64 or int. In a batch, integers may
// be int64 and int32 too: modules see int.
type Tensor = tensor.Tensor

// A Module is a pure builder over Gorgonia nodes: it has parameters and says what it computes, but
// holds no values. It must not change once it is part of a wrapped model. Modules that are deeply
// equal and hold no pointers share one compiled program, so make them plain structs of numbers and
// strings, and pass them as pointers.
type Module interface {
	// Params lists the parameters. Their order defines the flat layout. Names are local to the
	// module.
	Params() []Param
	// Build adds the module to the graph of b and returns its outputs, of the graph's float type.
	// Inputs are nodes of known shape. Build must be deterministic; it is called for every new
	// input shape, and more than once.
	Build(b *Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error)
}

// A Param is a parameter of a module.
type Param struct {
	// Name within the module, such as "weight". The full name puts the name of the call before it:
	// "h.3.weight".
	Name  string
	Shape []int
	// Init gives the initial values; nil means zeros.
	Init Init
	// Tied makes this the parameter of another call, named in full, instead of a parameter of its
	// own. That call must come earlier in the model. Its Init counts, and the shapes must be equal.
	Tied string
	// Full says that the parameter is never rounded to 16 bits, to travel or for calls to read, unless
	// Config.Precision.Full decides. It is for small parameters that are sensitive to rounding,
	// such as the gains of norms.
	Full bool
	// Buffer says that this is no parameter but named state that is not trained, such as the
	// running statistics of a norm. Every rank has its own, whole; Build may give it a new value
	// with [Builder.Update]. It never travels, keeps the master type (see [Precision]), and is part of
	// StateDict.
	Buffer bool

	parts []reflect.Type // of its module that have it: see Prefix
}

// Len returns the number of elements.
func (p Param) Len() int { return exec.Numel(p.Shape) }

// Prefix returns the parameters of m with name + "." before each name, or unchanged if name is
// empty. A module that is made of others lists their parameters this way, and calls them by the
// same name in Build (see Builder.Call).
func Prefix(name string, m Module) []Param {
	params := slices.Clone(m.Params())
	for i := range params {
		p := &params[i]
		if name != "" {
			p.Name = name + "." + p.Name
		}
		p.parts = append(slices.Clip(p.parts), reflect.TypeOf(m))
	}
	return params
}

// A Builder gives a module's Build its parameters, constants and parts.
type Builder struct{ b *exec.Builder }

// Param returns the node of the parameter with that name among the module's Params.
func (b *Builder) Param(name string) (*gorgonia.Node, error) { return b.b.Param(name) }

// Call adds a part of the module: m, whose parameters are listed in the module's Params with the
// prefix name, or without one if name is empty.
func (b *Builder) Call(name string, m Module, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	if name == "" {
		return m.Build(b, in...)
	}
	out, err := m.Build(&Builder{b.b.Scope(name)}, in...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return out, nil
}

// Const returns a scalar constant. Use it in place of gorgonia.NewConstant, which merges constants
// by name.
func (b *Builder) Const(v float64) *gorgonia.Node { return b.b.Const(v) }

// ConstTensor returns a constant tensor. t must not be modified afterwards.
func (b *Builder) ConstTensor(t *tensor.Dense) (*gorgonia.Node, error) { return b.b.ConstTensor(t) }

// Stream returns a number for the random operation of that name. Every part of the module has a
// different one.
func (b *Builder) Stream(name string) uint32 { return b.b.Stream(name) }

// DType returns the float type of parameters and activations.
func (b *Builder) DType() tensor.Dtype { return b.b.DType() }

// Update gives the buffer of that name among the module's Params the value of n after each training
// forward. n must have its shape. The rest of the module sees the old value.
func (b *Builder) Update(name string, n *gorgonia.Node) error { return b.b.Update(name, n) }

// Graph returns the graph under construction.
func (b *Builder) Graph() *gorgonia.ExprGraph { return b.b.Graph() }

// spec describes m to the compiler.
func spec(m Module, params []Param) *exec.Spec {
	s := &exec.Spec{Build: func(b *exec.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) { return m.Build(&Builder{b}, in...) }}
	for _, p := range params {
		s.Params = append(s.Params, exec.Param{Name: p.Name, Shape: p.Shape, Buffer: p.Buffer})
	}
	return s
}

// moduleParams returns m's parameters after checking them.
func moduleParams(m Module) (params []Param, err error) {
	defer caught.Panic(&err, "method Params")
	params = m.Params()
	seen := make(map[string]bool)
	for _, p := range params {
		switch {
		case p.Name == "" || strings.ContainsAny(p.Name, " \t\n"):
			return nil, fmt.Errorf("parameter name %q is empty or has spaces", p.Name)
		case seen[p.Name]:
			return nil, fmt.Errorf("parameter %q is listed twice", p.Name)
		}
		seen[p.Name] = true
		if p.Buffer && p.Tied != "" {
			return nil, fmt.Errorf("parameter %q is a buffer and tied to %q: call the module that has it again instead", p.Name, p.Tied)
		}
		for _, d := range p.Shape {
			if d < 1 {
				return nil, fmt.Errorf("parameter %q has shape %v: dimensions must be positive", p.Name, p.Shape)
			}
		}
	}
	return params, nil
}
