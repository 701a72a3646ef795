package exec

import (
	"fmt"
	"reflect"
	"strings"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// typeName returns the name of op's type with its package. Most of Gorgonia's operation types are
// not exported, so they can only be recognised by name.
func typeName(op G.Op) string { return strings.TrimPrefix(reflect.TypeOf(op).String(), "*") }

func isReshape(op G.Op) bool { return typeName(op) == "gorgonia.reshapeOp" }

// runStock runs a stock operation. Its arguments get new headers, because some operations transpose
// them in place. Its result, which may alias an argument, is copied to out unless out has no
// memory.
func runStock(op G.Op, out Value, in []G.Value) (v G.Value, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	if v, err = op.Do(in...); err == nil && out.Bytes != nil {
		err = store(out, v)
	}
	return v, err
}

// store copies v, the result of a stock operation, to dst.
func store(dst Value, v G.Value) error {
	switch v := v.(type) {
	case *G.F32:
		v32 := float32(*v)
		return storeBytes(dst, Bytes([]float32{v32}), tensor.Float32)
	case *G.F64:
		v64 := float64(*v)
		return storeBytes(dst, Bytes([]float64{v64}), tensor.Float64)
	case *tensor.Dense:
		if v.RequiresIterator() || v.DataOrder().IsColMajor() {
			var ok bool
			if v, ok = v.Materialize().(*tensor.Dense); !ok {
				return fmt.Errorf("cannot materialise a result of shape %v", dst.Shape)
			}
		}
		src, err := FromTensor(v)
		if err != nil {
			return err
		}
		return storeBytes(dst, src.Bytes, src.DType)
	default:
		return fmt.Errorf("result is a %T, want a tensor or a number", v)
	}
}

func storeBytes(dst Value, src []byte, dt tensor.Dtype) error {
	if dt != dst.DType || len(src) != len(dst.Bytes) {
		return fmt.Errorf("result is %d bytes of %v, want %v of %v", len(src), dt, dst.Shape, dst.DType)
	}
	copy(dst.Bytes, src)
	return nil
}

// stockValue wraps v for a stock operation, which expects scalars as scalars.
func stockValue(v Value) G.Value {
	if len(v.Shape) > 0 {
		return v.Tensor()
	}
	switch v.DType {
	case tensor.Float32:
		return G.NewF32(Data[float32](v.Bytes)[0])
	case tensor.Float64:
		return G.NewF64(Data[float64](v.Bytes)[0])
	default:
		return G.NewI(Data[int](v.Bytes)[0])
	}
}
