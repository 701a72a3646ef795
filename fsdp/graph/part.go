package graph

import (
	"fmt"
	"reflect"
	"slices"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/exec"
)

// graphModule is a part of a graph as a Module. Text describes what it computes and from which values; ranks compare it.
type graphModule struct {
	Text   []string
	params []fsdp.Param
	build  graphBuild // a function, because nothing is to look into the part
}

type graphBuild func(b builder, in []*gorgonia.Node) (gorgonia.Nodes, error)

// builder is what a part needs of a Builder: of fsdp's, or of the compiler's when the part is tried.
type builder interface {
	Param(name string) (*gorgonia.Node, error)
	Const(v float64) *gorgonia.Node
	ConstTensor(t *tensor.Dense) (*gorgonia.Node, error)
	DType() tensor.Dtype
	Graph() *gorgonia.ExprGraph
}

// Params implements Module.
func (m *graphModule) Params() []fsdp.Param { return m.params }

// Build implements Module.
func (m *graphModule) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	return m.build(b, in)
}

// graphPart is the part of a graph that a call computes: steps, each a value with arguments among the earlier steps.
type graphPart struct {
	steps  []graphStep
	params []fsdp.Param
	outs   []int        // steps
	dtype  tensor.Dtype // of floats

	values     []graphValue // of the graph
	inputs     []int        // values that come from outside
	learnables []int        // values of params
	members    map[int]bool // computed values of the part
	local      map[int]int  // step of each value
	made       *graphModule
}

// graphStep is a value in a part.
type graphStep struct {
	*graphValue
	args  []int // earlier steps
	given bool  // it is an input of the call
	slot  int   // which input or parameter it is
}

// newGraphPart returns the part that computes the values of list.
func newGraphPart(r *graphReader, list []int) *graphPart {
	p := &graphPart{dtype: r.dtype, values: r.values, members: make(map[int]bool), local: make(map[int]int)}
	for _, i := range list {
		p.members[i] = true
	}
	for _, i := range list {
		p.add(i)
	}
	return p
}

// add adds a value and what it needs, and returns its step.
func (p *graphPart) add(id int) int {
	if at, ok := p.local[id]; ok {
		return at
	}
	v := &p.values[id]
	s := graphStep{graphValue: v, given: v.origin == fromBatch || v.origin == computed && !p.members[id]}
	switch {
	case s.given:
		s.slot = len(p.inputs)
		p.inputs = append(p.inputs, id)
	case v.origin == fromLearnable:
		s.slot = len(p.learnables)
		p.learnables = append(p.learnables, id)
	default:
		for _, a := range v.args {
			s.args = append(s.args, p.add(a))
		}
	}
	p.local[id] = len(p.steps)
	p.steps = append(p.steps, s)
	return p.local[id]
}

// module returns the part as a module: that of an earlier part if it is the same, so that the steps of a recurrent net
// are compiled once.
func (p *graphPart) module(earlier []*graphPart) (*graphModule, error) {
	m := &graphModule{params: p.params, build: p.builder(p.outs)}
	for _, s := range p.steps {
		m.Text = append(m.Text, fmt.Sprintf("%s %v", s.text(), s.args))
	}
	m.Text = append(m.Text, fmt.Sprintf("outputs %v", p.outs))
	for _, e := range earlier {
		if slices.Equal(e.made.Text, m.Text) && p.same(e) {
			p.made = e.made
			return p.made, nil
		}
	}
	p.made = m
	return m, p.try()
}

// same tells whether parts whose texts are equal are. Those that own a parameter differ.
func (p *graphPart) same(q *graphPart) bool {
	return reflect.DeepEqual(p.params, q.params) && slices.EqualFunc(p.steps, q.steps, func(s, t graphStep) bool {
		return s.given || reflect.DeepEqual(s.op, t.op)
	})
}

// text describes the step, contents of parameters and constants included.
func (s *graphStep) text() string {
	switch {
	case s.given:
		return fmt.Sprintf("input %v%v", s.dtype, s.shape)
	case s.origin == fromLearnable:
		return fmt.Sprintf("parameter %v%v %x", s.dtype, s.shape, s.hash)
	case s.op == nil:
		return fmt.Sprintf("value %v%v %x", s.dtype, s.shape, s.hash)
	default:
		return fmt.Sprintf("%v %v%v", s.op, s.dtype, s.shape)
	}
}

// builder returns a function that builds the part and returns the nodes of outs.
func (p *graphPart) builder(outs []int) graphBuild {
	return func(b builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
		if b.DType() != p.dtype {
			return nil, fmt.Errorf("the graph computes in %v, Config.Precision.Compute is %v", p.dtype, b.DType())
		}
		nodes := make(gorgonia.Nodes, len(p.steps))
		for i := range p.steps {
			var err error
			if nodes[i], err = p.node(&p.steps[i], b, in, nodes); err != nil {
				return nil, fmt.Errorf("node %q: %w", p.steps[i].name, err)
			}
		}
		list := make(gorgonia.Nodes, len(outs))
		for i, at := range outs {
			list[i] = nodes[at]
		}
		return list, nil
	}
}

// node adds a step to the graph of b.
func (p *graphPart) node(s *graphStep, b builder, in, nodes gorgonia.Nodes) (*gorgonia.Node, error) {
	switch {
	case s.given:
		n := in[s.slot]
		if !slices.Equal(n.Shape(), s.shape) || n.Dtype() != s.dtype {
			return nil, fmt.Errorf("it gets %v%v, the graph is made for %v%v", n.Dtype(), n.Shape(), s.dtype, s.shape)
		}
		return n, nil
	case s.origin == fromLearnable:
		return b.Param(p.params[s.slot].Name)
	case s.origin == fromConstant:
		return s.constant(b)
	}
	args := make(gorgonia.Nodes, len(s.args))
	for i, a := range s.args {
		args[i] = nodes[a]
	}
	return gorgonia.ApplyOp(s.op, args...)
}

// constant adds a constant to the graph of b.
func (s *graphStep) constant(b builder) (*gorgonia.Node, error) {
	switch {
	case len(s.shape) > 0:
		return b.ConstTensor(exec.Value{Shape: s.shape, DType: s.dtype, Bytes: s.data.Bytes}.Tensor())
	case s.dtype == tensor.Float64:
		return b.Const(exec.Data[float64](s.data.Bytes)[0]), nil
	case s.dtype == tensor.Float32:
		return b.Const(float64(exec.Data[float32](s.data.Bytes)[0])), nil
	default:
		return b.Graph().AddNode(gorgonia.NewConstant(exec.Data[int](s.data.Bytes)[0])), nil
	}
}

// try compiles the module, as the first evaluation would, to find what is refused while the node can be named.
func (p *graphPart) try() error {
	sig := &exec.Signature{DType: p.dtype}
	for _, i := range p.inputs {
		sig.Inputs = append(sig.Inputs, exec.Input{Shape: p.values[i].shape, DType: p.values[i].dtype})
	}
	_, err := exec.Shared.Unit(p.made, p.spec(p.outs), sig)
	if err == nil {
		return nil
	}
	for i, s := range p.steps { // find the first that fails as the only output
		if s.given || s.op == nil || s.dtype != p.dtype {
			continue
		}
		if _, err := exec.Compile(p.spec([]int{i}), sig); err != nil {
			return fmt.Errorf("node %q: %w", s.name, err)
		}
	}
	return err
}

// spec describes the part with these outputs to the compiler.
func (p *graphPart) spec(outs []int) *exec.Spec {
	build := p.builder(outs)
	s := &exec.Spec{Build: func(b *exec.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) { return build(b, in) }}
	for _, q := range p.params {
		s.Params = append(s.Params, exec.Param{Name: q.Name, Shape: q.Shape})
	}
	return s
}
