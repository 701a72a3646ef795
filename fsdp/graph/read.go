package graph

import (
	"errors"
	"fmt"
	"slices"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/caught"
	"github.com/gofsdp/gofsdp/internal/exec"
)

// Model makes a model of an ordinary Gorgonia graph. The package comment explains how.
//
// cost is the loss: a single number of type float32 or float64, which is the type of all floats of
// the graph. inputs are the tensors of a batch, in the order of Forward's arguments; they may also
// be int. learnables are the parameters. Only nodes that cost and [Results] need count. The graph
// needs no call of gorgonia.Grad. Existing gradients are ignored.
//
// Model copies the values that are bound to learnables and constants, and only reads the graph. Do
// not use the graph during the call; afterwards it may be run, extended or dropped. The model keeps
// the copies, so every process holds the initial values whole. It never changes, so ranks of one
// process may share it.
//
// Errors name the node that causes them.
func Model(cost *gorgonia.Node, inputs, learnables gorgonia.Nodes, opts ...Option) (m fsdp.Model, err error) {
	defer func() {
		if err != nil {
			m, err = nil, fmt.Errorf("graph: %w", err)
		}
	}()
	defer caught.Panic(&err, "reading the graph") // Gorgonia panics on malformed nodes
	r := &reader{
		results: gorgonia.Nodes{cost},
		leaves:  make(map[*gorgonia.Node]value), index: make(map[*gorgonia.Node]int),
	}
	for _, o := range opts {
		o(r)
	}
	if err := r.check(inputs, learnables); err != nil {
		return nil, err
	}
	if err := r.readAll(); err != nil {
		return nil, err
	}
	for _, n := range learnables {
		if i, ok := r.index[n]; !ok || i >= r.trains {
			return nil, fmt.Errorf("learnable %q is not used by the cost", n.Name())
		}
	}
	return newModel(r, inputs, learnables)
}

// An Option changes the model that [Model] makes.
type Option func(*reader)

// Results adds nodes, such as predictions, to the results of the model: [fsdp.Sharded.Eval] returns
// them after the loss. They must be floats that are computed from the batch. Training skips nodes
// that only they need.
func Results(nodes ...*gorgonia.Node) Option {
	return func(r *reader) { r.results = append(r.results, nodes...) }
}

// Constants names leaves that are neither inputs nor learnables and keep the values bound to them,
// such as the initial state of a recurrent net. They are of the type of the cost, or int.
func Constants(nodes ...*gorgonia.Node) Option {
	return func(r *reader) { r.constants = append(r.constants, nodes...) }
}

// reader turns the nodes that the results need into values, arguments before results.
type reader struct {
	results, constants gorgonia.Nodes // the cost is the first result

	graph  *gorgonia.ExprGraph
	dtype  tensor.Dtype // of all floats
	leaves map[*gorgonia.Node]value
	index  map[*gorgonia.Node]int
	values []value
	trains int // number of values that cost needs
}

// check checks the nodes that the user names, and records the leaves among them.
func (r *reader) check(inputs, learnables gorgonia.Nodes) error {
	cost := r.results[0]
	if cost == nil {
		return errors.New("cost is nil")
	}
	if len(learnables) == 0 {
		return errors.New("there are no learnables")
	}
	r.dtype = cost.Dtype()
	if r.dtype != tensor.Float32 && r.dtype != tensor.Float64 {
		return fmt.Errorf("cost %q is %v: want float32 or float64", cost.Name(), r.dtype)
	}
	if exec.Numel(cost.Shape()) != 1 {
		return fmt.Errorf("cost %q has shape %v: it must be a single number", cost.Name(), cost.Shape())
	}
	for _, list := range []struct {
		what   string
		origin origin
		nodes  gorgonia.Nodes
	}{
		{"result", computed, r.results}, {"input", fromBatch, inputs},
		{"learnable", fromLearnable, learnables}, {"constant", fromConstant, r.constants},
	} {
		for i, n := range list.nodes {
			if n == nil {
				return fmt.Errorf("%s %d is nil", list.what, i)
			}
			if err := r.checkNode(n, list.origin, i); err != nil {
				return fmt.Errorf("%s %q %w", list.what, n.Name(), err)
			}
		}
	}
	// A separate graph over the same nodes: looking for a node writes to an index, and removals
	// leave the index of the user's graph stale.
	r.graph = cost.Graph().ExactSubgraphRoots(slices.Clone(r.results)...)
	return nil
}

// checkNode checks node i of a list. Unless it is a result, it becomes a leaf.
func (r *reader) checkNode(n *gorgonia.Node, o origin, i int) error {
	switch {
	case n.Graph() != r.results[0].Graph():
		return errors.New("belongs to another graph than the cost")
	case o != computed && n.Op() != nil:
		return fmt.Errorf("is computed by %v: it must be a leaf of the graph", n.Op())
	case !n.IsScalar() && len(n.Shape()) == 0:
		return errors.New("has no shape")
	case o == computed:
		return nil
	}
	v := value{origin: o, name: n.Name(), shape: n.Shape(), dtype: n.Dtype(), home: ref{batch, i}}
	if _, twice := r.leaves[n]; twice {
		return errors.New("is listed twice")
	}
	if v.dtype != r.dtype && (v.dtype != tensor.Int || o == fromLearnable) {
		return fmt.Errorf("is %v, the cost is %v", v.dtype, r.dtype)
	}
	if o != fromBatch {
		if err := v.copyData(n); err != nil {
			return err
		}
	}
	r.leaves[n] = v
	return nil
}

// readAll reads the results, the cost first.
func (r *reader) readAll() error {
	for _, n := range r.results {
		i, err := r.read(n)
		if err != nil {
			return err
		}
		if r.trains == 0 {
			r.trains = len(r.values)
		}
		if v := &r.values[i]; v.origin != computed {
			return fmt.Errorf("result %q is not a float that is computed from the batch", v.name)
		}
	}
	return nil
}

// read adds n and its arguments, and returns its index.
func (r *reader) read(n *gorgonia.Node) (int, error) {
	if i, ok := r.index[n]; ok {
		return i, nil
	}
	v, leaf := r.leaves[n]
	if !leaf {
		v = value{name: n.Name(), op: n.Op(), shape: n.Shape(), dtype: n.Dtype()}
		if v.op == nil {
			return 0, fmt.Errorf("node %q, of shape %v, is neither an input nor a learnable: "+
				"list it, or pass it to graph.Constants if its value is constant", v.name, v.shape)
		}
		if err := r.operation(&v, n); err != nil {
			return 0, err
		}
	}
	r.index[n] = len(r.values)
	r.values = append(r.values, v)
	return r.index[n], nil
}

// operation fills in the value of a node with an operation.
func (r *reader) operation(v *value, n *gorgonia.Node) error {
	if _, ok := v.op.(interface{ Value() gorgonia.Value }); ok {
		v.origin, v.op = fromConstant, nil
		if err := v.copyData(n); err != nil {
			return fmt.Errorf("constant %.40q %w", v.name, err)
		}
		return nil
	}
	v.invariant = opType(v.op) != "randomOp"
	for args := r.graph.From(n.ID()); args.Next(); {
		i, err := r.read(args.Node().(*gorgonia.Node))
		if err != nil {
			return err
		}
		v.args = append(v.args, i)
		switch a := &r.values[i]; a.origin {
		case fromBatch, computed:
			v.reads, v.invariant = append(v.reads, i), v.invariant && a.invariant
		case fromLearnable:
			v.params = append(v.params, i)
		case rebuilt:
			v.reads, v.params = append(v.reads, a.reads...), append(v.params, a.params...)
			v.invariant = v.invariant && a.invariant
		}
	}
	v.reads, v.params = unique(v.reads), unique(v.params)
	v.origin = r.originOf(v)
	return nil
}

// originOf reports whether v, which has an operation, is rebuilt in each call or computed in one. A
// value that is the same for every batch is rebuilt: passing on a value made of a weight would keep
// the memory of a whole weight. A single number made of learnables is passed on all the same. A
// value that is not of the graph's float type is rebuilt, because calls only pass on values of that
// type.
func (r *reader) originOf(v *value) origin {
	size := opType(v.op) == "sizeOp"
	v.invariant = v.invariant || size
	learned := len(v.params) > 0 ||
		slices.ContainsFunc(v.reads, func(i int) bool { return r.values[i].invariant })
	number := exec.Numel(v.shape) == 1 && learned && !size
	if v.invariant && !number || v.dtype != r.dtype {
		return rebuilt
	}
	return computed
}

func unique(list []int) []int {
	slices.Sort(list)
	return slices.Compact(list)
}
