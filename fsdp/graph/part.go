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

// module is a part of a graph as an fsdp.Module. Ranks compare its Text, which describes the
// computation and its values, and its parameters.
type module struct {
	Text   []string
	params []fsdp.Param
	build  func(b builder, in []*gorgonia.Node) (gorgonia.Nodes, error) // hides the part
}

// Params implements fsdp.Module.
func (m *module) Params() []fsdp.Param { return m.params }

// Build implements fsdp.Module.
func (m *module) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	return m.build(b, in)
}

// builder is the common interface of *fsdp.Builder and *exec.Builder: the compiler tries a part
// without fsdp.
type builder interface {
	Param(name string) (*gorgonia.Node, error)
	Const(v float64) *gorgonia.Node
	ConstTensor(t *tensor.Dense) (*gorgonia.Node, error)
	DType() tensor.Dtype
	Graph() *gorgonia.ExprGraph
}

// part is the computation of a call: steps, each a value with arguments among the earlier steps.
type part struct {
	steps  []step
	params []fsdp.Param
	outs   []int        // steps
	dtype  tensor.Dtype // of floats
	module *module      // possibly the module of an earlier part

	call   int         // index of the call
	values []value     // of the graph
	inputs []int       // values from outside
	local  map[int]int // step of each value
}

// step is a value in a part.
type step struct {
	*value
	args  []int // earlier steps
	given bool  // it is an input of the call
	slot  int   // index of the input or parameter
}

// newPart returns the part of a call that computes the values of list. Values that other calls read
// become outputs of the part.
func newPart(r *reader, call int, list []int) *part {
	p := &part{dtype: r.dtype, call: call, values: r.values, local: make(map[int]int)}
	for _, i := range list {
		at := p.add(i)
		if v := &p.values[i]; v.leaves {
			v.home.out = len(p.outs)
			p.outs = append(p.outs, at)
		}
	}
	return p
}

// add adds a value and its arguments, and returns its step.
func (p *part) add(i int) int {
	if at, ok := p.local[i]; ok {
		return at
	}
	v := &p.values[i]
	s := step{value: v}
	switch {
	case v.origin == fromLearnable:
		s.slot = len(p.params)
		q := fsdp.Param{Name: v.param, Shape: v.shape, Tied: v.full}
		if q.Tied == "" {
			q.Init = v.init()
		}
		p.params = append(p.params, q)
	case v.origin == fromBatch, v.origin == computed && v.home.call != p.call:
		s.given, s.slot = true, len(p.inputs)
		p.inputs = append(p.inputs, i)
	default:
		for _, a := range v.args {
			s.args = append(s.args, p.add(a))
		}
	}
	p.local[i] = len(p.steps)
	p.steps = append(p.steps, s)
	return p.local[i]
}

// compile sets the part's module. If an earlier part is the same, they share its module, so that
// the steps of a recurrent net are compiled once.
func (p *part) compile(earlier []*part) error {
	m := &module{params: p.params}
	m.build = func(b builder, in []*gorgonia.Node) (gorgonia.Nodes, error) { return p.build(b, in, p.outs) }
	for _, s := range p.steps {
		m.Text = append(m.Text, fmt.Sprintf("%s %v", s.text(), s.args))
	}
	m.Text = append(m.Text, fmt.Sprintf("outputs %v", p.outs))
	for _, e := range earlier {
		if slices.Equal(e.module.Text, m.Text) && p.same(e) {
			p.module = e.module
			return nil
		}
	}
	p.module = m
	return p.try()
}

// same reports whether parts with equal texts are equal. Parts that own a parameter differ:
// functions, such as their Init, are never deeply equal.
func (p *part) same(q *part) bool {
	return reflect.DeepEqual(p.params, q.params) &&
		slices.EqualFunc(p.steps, q.steps, func(s, t step) bool {
			return s.given || reflect.DeepEqual(s.op, t.op)
		})
}

// text describes the step, including the contents of parameters and constants.
func (s *step) text() string {
	switch {
	case s.given:
		return fmt.Sprintf("input %v%v", s.dtype, s.shape)
	case s.origin == fromLearnable:
		return fmt.Sprintf("parameter %v%v %x", s.dtype, s.shape, s.hash)
	case s.origin == fromConstant:
		return fmt.Sprintf("value %v%v %x", s.dtype, s.shape, s.hash)
	default:
		return fmt.Sprintf("%v %v%v", s.op, s.dtype, s.shape)
	}
}

// build adds the part to the graph of b and returns the nodes of the steps outs.
func (p *part) build(b builder, in []*gorgonia.Node, outs []int) (gorgonia.Nodes, error) {
	if b.DType() != p.dtype {
		return nil, fmt.Errorf("the graph has type %v, but Config.Precision computes in %v", p.dtype, b.DType())
	}
	nodes := make(gorgonia.Nodes, len(p.steps))
	for i := range p.steps {
		var err error
		if nodes[i], err = p.node(&p.steps[i], b, in, nodes); err != nil {
			return nil, fmt.Errorf("node %q: %w", p.steps[i].name, err)
		}
	}
	return pick(nodes, outs), nil
}

// pick returns the nodes at the indices at.
func pick(nodes gorgonia.Nodes, at []int) gorgonia.Nodes {
	list := make(gorgonia.Nodes, len(at))
	for i, j := range at {
		list[i] = nodes[j]
	}
	return list
}

// node adds a step to the graph of b. nodes are the nodes of the earlier steps.
func (p *part) node(s *step, b builder, in, nodes gorgonia.Nodes) (*gorgonia.Node, error) {
	switch {
	case s.given:
		n := in[s.slot]
		if !slices.Equal(n.Shape(), s.shape) || n.Dtype() != s.dtype {
			return nil, fmt.Errorf("the batch is %v%v, but the graph was built for %v%v: pad the batch to this shape, or build and wrap a graph for the other shape, and copy the parameters by StateDict and LoadStateDict", n.Dtype(), n.Shape(), s.dtype, s.shape)
		}
		return n, nil
	case s.origin == fromLearnable:
		return b.Param(p.params[s.slot].Name)
	case s.origin == fromConstant:
		return s.constant(b)
	case len(s.args) == 0:
		return s.random(b), nil
	default:
		return gorgonia.ApplyOp(s.op, pick(nodes, s.args)...)
	}
}

// random adds an operation without arguments, for which ApplyOp finds no graph: random numbers.
func (s *step) random(b builder) *gorgonia.Node {
	typ := gorgonia.WithType(s.dtype)
	if len(s.shape) > 0 {
		typ = gorgonia.WithType(gorgonia.TensorType{Dims: len(s.shape), Of: s.dtype})
	}
	return gorgonia.NewUniqueNode(typ, gorgonia.WithOp(s.op), gorgonia.WithShape(s.shape...), gorgonia.In(b.Graph()))
}

// try compiles the module, as the first evaluation would, so that errors can name the node.
func (p *part) try() error {
	sig := &exec.Signature{DType: p.dtype, Threads: 1}
	for _, i := range p.inputs {
		sig.Inputs = append(sig.Inputs, exec.Input{Shape: p.values[i].shape, DType: p.values[i].dtype})
	}
	_, err := exec.Shared.Unit(p.module, p.spec(p.outs), sig)
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

// spec describes the part with the outputs outs to the compiler.
func (p *part) spec(outs []int) *exec.Spec {
	s := &exec.Spec{}
	s.Build = func(b *exec.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) { return p.build(b, in, outs) }
	for _, q := range p.params {
		s.Params = append(s.Params, exec.Param{Name: q.Name, Shape: q.Shape})
	}
	return s
}
