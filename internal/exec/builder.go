package exec

import (
	"crypto/sha256"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// A Spec describes a module to compile.
type Spec struct {
	Params []Param
	// Build adds the module to the graph behind b and returns its outputs. It must be
	// deterministic: it is called more than once, and the graphs are compared.
	Build func(b *Builder, in []*G.Node) (G.Nodes, error)
}

// A Param is a parameter of a module, or a buffer: named state that is not trained, such as running
// statistics. A buffer has no gradient; it changes by Builder.Update.
type Param struct {
	Name   string
	Shape  []int
	Buffer bool
}

// A Builder gives Build access to the graph, the parameters and constants.
type Builder struct {
	*graph
	prefix string
}

// graph is the state that a Builder shares with its scopes.
type graph struct {
	g       *G.ExprGraph
	dtype   tensor.Dtype
	salt    string // makes names, and so hashes, differ between two traces of one module
	specs   []Param
	params  map[string]*G.Node
	updates G.Nodes            // by parameter: the new value of a buffer, or nil
	consts  map[*G.Node]string // constants of Const and ConstTensor, with a text that identifies each
	tensors map[*G.Node]Value  // values of the ConstTensor constants
	shared  int                // bytes of constants that another unit has allocated
	half    bool               // values are computed in bfloat16
	wide    map[*G.Node]bool   // but for these
	forms   map[*G.Node]Form   // storage forms that differ from the value's type; decided before programs are assembled
}

// Graph returns the graph being built.
func (b *Builder) Graph() *G.ExprGraph { return b.g }

// DType returns the float type of the parameters and activations.
func (b *Builder) DType() tensor.Dtype { return b.dtype }

// Scope returns a Builder that looks parameters up under prefix + ".".
func (b *Builder) Scope(prefix string) *Builder { return &Builder{b.graph, b.prefix + prefix + "."} }

// Stream returns a number for the random operation of that name in this scope. Operations of one
// module need different numbers. A module that is used several times has one scope for each use.
func (b *Builder) Stream(name string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(b.prefix + name))
	return h.Sum32()
}

// Param returns the node of a parameter of the module.
func (b *Builder) Param(name string) (*G.Node, error) {
	if n, ok := b.params[b.prefix+name]; ok {
		return n, nil
	}
	return nil, fmt.Errorf("no parameter %q in Params", b.prefix+name)
}

// Update makes n the value of the named buffer after a forward in training. Param keeps returning
// the old value. n may be any node. No gradient flows through an update.
func (b *Builder) Update(name string, n *G.Node) error {
	name = b.prefix + name
	i := slices.IndexFunc(b.specs, func(p Param) bool { return p.Name == name })
	switch {
	case i < 0:
		return fmt.Errorf("update of %q: Params has no such parameter", name)
	case !b.specs[i].Buffer:
		return fmt.Errorf("update of %q: it is a parameter to train, not a buffer", name)
	case b.updates[i] != nil:
		return fmt.Errorf("update of %q: it has been updated before", name)
	case n == nil:
		return fmt.Errorf("update of %q: the value is nil", name)
	case n.Graph() != b.g:
		return fmt.Errorf("update of %q: the value is a node of another graph", name)
	case n.Dtype() != b.dtype || !slices.Equal(n.Shape(), b.specs[i].Shape):
		return fmt.Errorf("update of %q: the value is %v of shape %v, want %v of shape %v",
			name, n.Dtype(), n.Shape(), b.dtype, tensor.Shape(b.specs[i].Shape))
	}
	b.updates[i] = n
	return nil
}

// Const returns a scalar constant of the graph's float type.
func (b *Builder) Const(v float64) *G.Node {
	if b.dtype == tensor.Float32 {
		return b.scalar(float32(v), fmt.Sprintf("const float32 %v", float32(v)))
	}
	return b.scalar(v, fmt.Sprintf("const float64 %v", v))
}

func (b *Builder) scalar(v any, id string) *G.Node {
	n := b.g.AddNode(G.NewConstant(v, G.WithName(b.salt+id)))
	b.consts[n] = id
	return n
}

// ConstTensor returns a constant tensor. t must not be modified afterwards.
//
// Gorgonia merges constants of equal name. It also merges tensors that print alike, although it
// prints only the ends of a long tensor. So a constant tensor is an input of the graph here, named
// by a hash of its contents. Constants made by gorgonia.NewConstant are refused.
func (b *Builder) ConstTensor(t *tensor.Dense) (*G.Node, error) {
	v, err := FromTensor(t)
	if err != nil {
		return nil, fmt.Errorf("constant: %w", err)
	}
	id := fmt.Sprintf("const %v%v %x", v.DType, v.Shape, sha256.Sum256(v.Bytes))
	n := b.input(id, v.DType, v.Shape)
	b.consts[n], b.tensors[n] = id, v
	return n, nil
}

func (b *Builder) input(name string, dt tensor.Dtype, shape []int) *G.Node {
	name = b.salt + name
	if len(shape) == 0 {
		return G.NewScalar(b.g, dt, G.WithName(name))
	}
	return G.NewTensor(b.g, dt, len(shape), G.WithName(name), G.WithShape(shape...))
}

// newBuilder returns a Builder over an empty graph with the nodes of params.
func newBuilder(dtype tensor.Dtype, params []Param, salt string) *Builder {
	b := &Builder{graph: &graph{
		g: G.NewGraph(G.WithGraphName(strings.TrimSpace(salt + "module"))), dtype: dtype, salt: salt,
		specs: params, updates: make(G.Nodes, len(params)),
		params: make(map[string]*G.Node), consts: make(map[*G.Node]string), tensors: make(map[*G.Node]Value),
	}}
	for _, p := range params {
		b.params[p.Name] = b.input("param "+p.Name, dtype, p.Shape)
	}
	return b
}
