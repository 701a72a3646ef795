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

// origin is the source of a value in the graph.
type origin uint8

const (
	fromBatch origin = iota
	fromLearnable
	fromConstant
	rebuilt  // computed in every call that uses it
	computed // computed in one call, which passes it on
)

// value is a node of the graph.
type value struct {
	origin origin
	name   string // of the node
	shape  tensor.Shape
	dtype  tensor.Dtype

	// For a learnable or constant.
	data  exec.Value // a copy, owned by the model
	hash  [8]byte    // of data
	param string     // name of the learnable's parameter within a call
	full  string     // its full name in the model, once a call owns it

	// For a rebuilt or computed value.
	op        gorgonia.Op
	args      []int // its arguments
	reads     []int // computed values and batch tensors that it needs, directly or through rebuilt values
	params    []int // learnables that it needs, likewise
	invariant bool  // the same for every batch: made only of learnables, constants and sizes

	// For a batch tensor or computed value.
	home   ref  // where other calls find it
	leaves bool // other calls read it, or it is a result
}

// copyData copies the value that is bound to n.
func (v *value) copyData(n *gorgonia.Node) (err error) {
	if v.data, err = copyOf(n.Value()); err != nil {
		return err
	}
	one := v.data.Len() == 1 && exec.Numel(v.shape) == 1
	if !one && !slices.Equal(v.data.Shape, v.shape) {
		return fmt.Errorf("has a value of shape %v, the node has %v", v.data.Shape, v.shape)
	}
	v.data.Shape = v.shape
	sum := sha256.Sum256(v.data.Bytes)
	v.hash = [8]byte(sum[:])
	return nil
}

// copyOf returns a copy of v.
func copyOf(v gorgonia.Value) (exec.Value, error) {
	var t *tensor.Dense
	switch v := v.(type) {
	case nil:
		return exec.Value{}, errors.New("has no value: bind one by WithValue, WithInit or Let")
	case gorgonia.Scalar:
		t = tensor.New(tensor.FromScalar(v.Data()))
	case *tensor.Dense:
		if t, _ = v.Materialize().(*tensor.Dense); t == v { // no view, not transposed: no copy yet
			t = v.Clone().(*tensor.Dense)
		}
	default:
		return exec.Value{}, fmt.Errorf("has a value of type %T: want a dense tensor or a number", v)
	}
	data, err := exec.FromTensor(t)
	if err != nil {
		err = fmt.Errorf("has an unsupported value: %w", err)
	}
	return data, err
}

// init returns the data as the initial values of a parameter.
func (v *value) init() fsdp.Init {
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

// constant adds the data to the graph of b.
func (v *value) constant(b builder) (*gorgonia.Node, error) {
	switch {
	case len(v.shape) > 0:
		return b.ConstTensor(v.data.Tensor())
	case v.dtype == tensor.Float64:
		return b.Const(exec.Data[float64](v.data.Bytes)[0]), nil
	case v.dtype == tensor.Float32:
		return b.Const(float64(exec.Data[float32](v.data.Bytes)[0])), nil
	default:
		return b.Graph().AddNode(gorgonia.NewConstant(exec.Data[int](v.data.Bytes)[0])), nil
	}
}

// opType returns the name of the type of a stock operation. Most of these types are not exported.
func opType(op gorgonia.Op) string {
	name := reflect.TypeOf(op).String()
	return name[strings.LastIndex(name, ".")+1:]
}
