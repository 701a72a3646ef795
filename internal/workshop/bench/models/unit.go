package models

import (
	"context"
	"fmt"
	"math"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/half"
)

// compiled is an operation with memory for all its operands and results. Its arguments are
// parameters and inputs of a module, as in a model.
type compiled struct {
	low  bool // in bfloat16
	unit *exec.Unit
	run  exec.Runner
	call exec.Call
}

func (o *operation) compile(low bool) (*exec.Unit, error) {
	spec, sig := &exec.Spec{Build: o.module}, &exec.Signature{DType: tensor.Float32, Half: low, GradOut: []bool{true}}
	for i, in := range o.in {
		switch {
		case in.param:
			spec.Params = append(spec.Params, exec.Param{Name: fmt.Sprint(i), Shape: in.Shape})
			sig.HalfParam = append(sig.HalfParam, low && !in.Full)
		case in.Below > 0:
			sig.Inputs = append(sig.Inputs, exec.Input{Shape: in.Shape, DType: tensor.Int})
		default:
			sig.Inputs = append(sig.Inputs, exec.Input{Shape: in.Shape, DType: tensor.Float32, Grad: !in.Fixed, Half: low && !in.Full})
		}
	}
	return exec.Compile(spec, sig)
}

// module builds the module of the operation.
func (o *operation) module(b *exec.Builder, inputs []*G.Node) (G.Nodes, error) {
	var arguments G.Nodes
	for i, in := range o.in {
		if !in.param {
			arguments, inputs = append(arguments, inputs[0]), inputs[1:]
			continue
		}
		n, err := b.Param(fmt.Sprint(i))
		if err != nil {
			return nil, err
		}
		arguments = append(arguments, n)
	}
	y, err := o.build(arguments)
	return G.Nodes{y}, err
}

// open compiles an operation and fills its memory with the same numbers as ops.py.
func (o *operation) open(low bool) (*compiled, error) {
	u, err := o.compile(low)
	if err != nil {
		return nil, err
	}
	c := &compiled{low: low, unit: u, call: exec.Call{
		Saved: make([]byte, u.Saved), Work: make([]byte, max(u.Forward.Work, u.Backward.Work)), Train: true,
	}}
	m := &c.call
	for i, in := range o.in {
		v, gradient := in.numbers(i, low && !in.Full), []byte(nil)
		if !in.Fixed {
			gradient = make([]byte, len(v))
		}
		if in.param {
			m.Param, m.GradParam = append(m.Param, v), append(m.GradParam, make([]byte, 4*exec.Numel(in.Shape)))
		} else {
			m.In, m.GradIn = append(m.In, v), append(m.GradIn, gradient)
		}
	}
	v := input{Shape: u.OutShape[0]}.numbers(len(o.in), u.OutHalf[0])
	m.Out, m.GradOut = [][]byte{make([]byte, len(v))}, [][]byte{v}
	return c, nil
}

// numbers returns the elements of argument i, which differ from the other arguments of an
// operation.
func (in input) numbers(i int, low bool) []byte {
	n, start := exec.Numel(in.Shape), i*7919
	switch {
	case in.Below > 0:
		return exec.Bytes(fill(n, start, func(i int) int { return integer(i, in.Below) }))
	case low:
		return exec.Bytes(fill(n, start, func(i int) half.BFloat16 { return half.ToBFloat16(float(i)) }))
	default:
		return exec.Bytes(fill(n, start, float))
	}
}

// Forward implements subject.
func (c *compiled) Forward(context.Context) error { return c.run.Forward(c.unit, &c.call) }

// Backward implements subject.
func (c *compiled) Backward(context.Context) error { return c.run.Backward(c.unit, &c.call) }

// Found implements subject: it returns the norms of the result and of all gradients.
func (c *compiled) Found(context.Context) (result, gradients float64, err error) {
	result = squares(c.call.Out[0], c.unit.OutHalf[0])
	for _, g := range c.call.GradIn {
		gradients += squares(g, c.low)
	}
	for _, g := range c.call.GradParam {
		gradients += squares(g, false)
	}
	return math.Sqrt(result), math.Sqrt(gradients), nil
}

// Close implements subject.
func (c *compiled) Close() error { return nil }

// squares returns the sum of the squares of elements.
func squares(b []byte, low bool) (sum float64) {
	if low {
		for _, v := range exec.Data[half.BFloat16](b) {
			sum += float64(v.Float32()) * float64(v.Float32())
		}
		return sum
	}
	for _, v := range exec.Data[float32](b) {
		sum += float64(v) * float64(v)
	}
	return sum
}
