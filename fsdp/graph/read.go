package graph

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/exec"
)

// Model makes a model of an ordinary Gorgonia graph. The comment of the package says how.
//
// cost is the loss: a single number of type float32 or float64, which is the type of all floats of
// the graph. inputs are the tensors of a batch, in the order in which Forward gets them; they may
// also be int. learnables are the parameters. Only what cost and the nodes of [Results] need counts.
// The graph needs no call of gorgonia.Grad, and gradients that it has already are ignored.
//
// Model copies the values that are bound to learnables and constants, and only reads the graph. The
// graph must not be used meanwhile; afterwards it may be run, extended or dropped. The model keeps
// the copies, so every process holds one of the initial values. It never changes: ranks of a process
// may share it. It names its inputs, so that errors do.
//
// An error names the node that is wrong, or of an operation that is refused.
func Model(cost *gorgonia.Node, inputs, learnables gorgonia.Nodes, opts ...Option) (fsdp.Model, error) {
	m, err := newModel(cost, inputs, learnables, opts)
	if err != nil {
		return nil, fmt.Errorf("graph: %w", err)
	}
	return m, nil
}

// An Option changes what Model makes of a graph.
type Option func(*graphReader)

// Results adds nodes, such as predictions, to the results of the model: [fsdp.Sharded.Eval] returns them after the loss.
// Training does not compute what only they need.
func Results(nodes ...*gorgonia.Node) Option {
	return func(r *graphReader) { r.results = append(r.results, nodes...) }
}

// Constants names leaves that are neither inputs nor learnables and keep the values bound to them, such as the initial
// state of a recurrent net.
func Constants(nodes ...*gorgonia.Node) Option {
	return func(r *graphReader) { r.constants = append(r.constants, nodes...) }
}

// origin says where a value of the graph comes from.
type origin uint8

const (
	fromBatch origin = iota
	fromLearnable
	fromConstant
	rebuilt  // computed in every call that uses it
	computed // computed in one call, and passed on to others
)

// graphValue is a node of the graph.
type graphValue struct {
	origin origin
	name   string // of the node
	shape  tensor.Shape
	dtype  tensor.Dtype
	index  int         // of a batch tensor or learnable, among its kind
	data   exec.Value  // of a learnable or constant
	hash   [8]byte     // of data
	op     gorgonia.Op // of a rebuilt or computed value
	args   []int       // its arguments
	reads  []int       // computed values and batch tensors that it needs, directly or through rebuilt values
	params []int       // learnables likewise
	apart  bool        // from the batch: it depends on learnables, constants and sizes alone, if by way of a number
}

// graphReader turns the nodes that the results need into values, arguments before results.
type graphReader struct {
	results, constants gorgonia.Nodes // of the options; results begins with the cost once read

	graph  *gorgonia.ExprGraph
	dtype  tensor.Dtype // of all floats
	leaves map[*gorgonia.Node]graphValue
	index  map[*gorgonia.Node]int
	values []graphValue
	trains int // how many of the values cost needs
}

func newModel(cost *gorgonia.Node, inputs, learnables gorgonia.Nodes, opts []Option) (m *graphModel, err error) {
	defer func() {
		if r := recover(); r != nil { // Gorgonia's answer to a node that was put together wrongly
			m, err = nil, fmt.Errorf("reading the graph panicked: %v", r)
		}
	}()
	r := &graphReader{leaves: make(map[*gorgonia.Node]graphValue), index: make(map[*gorgonia.Node]int)}
	for _, o := range opts {
		if o != nil {
			o(r)
		}
	}
	r.results = slices.Insert(r.results, 0, cost)
	if err := r.check(inputs, learnables); err != nil {
		return nil, err
	}
	if err := r.addLeaves(inputs, learnables); err != nil {
		return nil, err
	}
	for _, n := range r.results {
		if _, err := r.read(n); err != nil {
			return nil, err
		}
		if r.trains == 0 {
			r.trains = len(r.values)
		}
	}
	for _, n := range r.results {
		if v := r.values[r.index[n]]; v.origin != computed {
			return nil, fmt.Errorf("result %q is not a float that is computed from the batch", v.name)
		}
	}
	for _, n := range learnables {
		if i, ok := r.index[n]; !ok || i >= r.trains {
			return nil, fmt.Errorf("learnable %q is not used by the cost", n.Name())
		}
	}
	return newGraphModel(r, inputs, learnables)
}

// check looks at the nodes that the user names.
func (r *graphReader) check(inputs, learnables gorgonia.Nodes) error {
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
		what  string
		nodes gorgonia.Nodes
	}{{"result", r.results}, {"input", inputs}, {"learnable", learnables}, {"constant", r.constants}} {
		for i, n := range list.nodes {
			switch {
			case n == nil:
				return fmt.Errorf("%s %d is nil", list.what, i)
			case n.Graph() != cost.Graph():
				return fmt.Errorf("%s %q is a node of another graph than the cost", list.what, n.Name())
			case list.what != "result" && n.Op() != nil:
				return fmt.Errorf("%s %q is computed by %v: it must be a leaf of the graph", list.what, n.Name(), n.Op())
			case !n.IsScalar() && len(n.Shape()) == 0:
				return fmt.Errorf("%s %q has no shape", list.what, n.Name())
			}
		}
	}
	// A graph of its own, over the same nodes: looking for a node writes to an index, which removals leave stale.
	r.graph = cost.Graph().ExactSubgraphRoots(slices.Clone(r.results)...)
	return nil
}

// addLeaves takes down what the user says of the leaves.
func (r *graphReader) addLeaves(inputs, learnables gorgonia.Nodes) error {
	kinds := []struct {
		what   string
		origin origin
		nodes  gorgonia.Nodes
	}{{"input", fromBatch, inputs}, {"learnable", fromLearnable, learnables}, {"constant", fromConstant, r.constants}}
	for _, k := range kinds {
		for i, n := range k.nodes {
			v := graphValue{origin: k.origin, name: n.Name(), shape: n.Shape(), dtype: n.Dtype(), index: i}
			if _, twice := r.leaves[n]; twice {
				return fmt.Errorf("%s %q is listed twice", k.what, v.name)
			}
			if v.dtype != r.dtype && (v.dtype != tensor.Int || k.origin == fromLearnable) {
				return fmt.Errorf("%s %q is %v, the cost is %v", k.what, v.name, v.dtype, r.dtype)
			}
			if k.origin != fromBatch {
				if err := v.copyData(n); err != nil {
					return fmt.Errorf("%s %q: %w", k.what, v.name, err)
				}
			}
			r.leaves[n] = v
		}
	}
	return nil
}

// read adds n and what it needs, and returns its index.
func (r *graphReader) read(n *gorgonia.Node) (int, error) {
	if i, ok := r.index[n]; ok {
		return i, nil
	}
	v, known := r.leaves[n]
	switch {
	case known:
	case n.Op() == nil:
		return 0, fmt.Errorf("node %q, of shape %v, is neither an input nor a learnable: list it, or give it to graph.Constants if it keeps its value", n.Name(), n.Shape())
	default:
		v = graphValue{name: n.Name(), op: n.Op(), shape: n.Shape(), dtype: n.Dtype()}
		if err := r.operation(&v, n); err != nil {
			return 0, err
		}
	}
	r.index[n] = len(r.values)
	r.values = append(r.values, v)
	return r.index[n], nil
}

// operation fills in the value of a node with an operation.
func (r *graphReader) operation(v *graphValue, n *gorgonia.Node) error {
	if _, ok := v.op.(interface{ Value() gorgonia.Value }); ok {
		v.origin, v.op = fromConstant, nil
		if err := v.copyData(n); err != nil {
			return fmt.Errorf("constant %.40q: %w", v.name, err)
		}
		return nil
	}
	v.apart = true
	for args := r.graph.From(n.ID()); args.Next(); {
		i, err := r.read(args.Node().(*gorgonia.Node))
		if err != nil {
			return err
		}
		v.args = append(v.args, i)
		switch a := r.values[i]; a.origin {
		case fromBatch, computed: // a computed value that is apart is a number made of parameters
			v.reads, v.apart = append(v.reads, i), v.apart && a.apart
		case fromLearnable:
			v.params = append(v.params, i)
		case rebuilt:
			v.reads, v.params, v.apart = append(v.reads, a.reads...), append(v.params, a.params...), v.apart && a.apart
		}
	}
	v.reads, v.params = unique(v.reads), unique(v.params)
	v.apart = v.apart || opType(v.op) == "sizeOp"
	learned := len(v.params) > 0 || slices.ContainsFunc(v.reads, func(i int) bool { return r.values[i].apart })
	number := exec.Numel(v.shape) == 1 && learned && opType(v.op) != "sizeOp"
	v.origin = computed
	if v.apart && !number || v.dtype != r.dtype {
		v.origin = rebuilt
	}
	return nil
}

// opType returns the name of the type of a stock operation, most of which are not exported.
func opType(op gorgonia.Op) string {
	name := reflect.TypeOf(op).String()
	return name[strings.LastIndex(name, ".")+1:]
}

func unique(list []int) []int {
	slices.Sort(list)
	return slices.Compact(list)
}

// copyData takes a copy of the value of a leaf or constant.
func (v *graphValue) copyData(n *gorgonia.Node) error {
	data, err := boundValue(n)
	switch {
	case err != nil:
		return err
	case data.DType != v.dtype:
		return fmt.Errorf("its value is %v, the node %v", data.DType, v.dtype)
	case !slices.Equal(data.Shape, v.shape) && (data.Len() != 1 || exec.Numel(v.shape) != 1):
		return fmt.Errorf("its value has shape %v, the node %v", data.Shape, v.shape)
	}
	sum := sha256.Sum256(data.Bytes)
	v.data, v.hash = data, [8]byte(sum[:])
	return nil
}

// boundValue returns a copy of the value of a leaf or constant. A number comes in shape (1).
func boundValue(n *gorgonia.Node) (exec.Value, error) {
	var t *tensor.Dense
	switch v := n.Value().(type) {
	case nil:
		return exec.Value{}, errors.New("it has no value: bind one by WithValue, WithInit or Let")
	case *gorgonia.F64:
		t = tensor.New(tensor.WithShape(1), tensor.WithBacking([]float64{float64(*v)}))
	case *gorgonia.F32:
		t = tensor.New(tensor.WithShape(1), tensor.WithBacking([]float32{float32(*v)}))
	case *gorgonia.I:
		t = tensor.New(tensor.WithShape(1), tensor.WithBacking([]int{int(*v)}))
	case *tensor.Dense:
		if t, _ = v.Materialize().(*tensor.Dense); t == v { // neither a view nor transposed: no copy yet
			t = v.Clone().(*tensor.Dense)
		}
	default:
		return exec.Value{}, fmt.Errorf("its value is a %T: want a dense tensor or a number", v)
	}
	v, err := exec.FromTensor(t)
	if err != nil {
		return v, fmt.Errorf("its value: %w", err)
	}
	return v, nil
}

// init returns the learnable's value as an Init.
func (v *graphValue) init() fsdp.Init {
	data := v.data
	return func(_ fsdp.Stream, first int, dst []float64) {
		if data.DType == tensor.Float64 {
			copy(dst, exec.Data[float64](data.Bytes)[first:])
			return
		}
		for i, x := range exec.Data[float32](data.Bytes)[first:][:len(dst)] {
			dst[i] = float64(x)
		}
	}
}
