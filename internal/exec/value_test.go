package exec_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
)

// TestFromTensor shares memory both ways, for every element type.
func TestFromTensor(t *testing.T) {
	for _, backing := range []any{[]float32{1, 2, 3, 4, 5, 6}, []float64{1, 2, 3, 4, 5, 6}, []int{1, 2, 3, 4, 5, 6}} {
		d := tensor.New(tensor.WithShape(2, 3), tensor.WithBacking(backing))
		v, err := exec.FromTensor(d)
		require.NoError(t, err)
		require.Equal(t, 6, v.Len())
		back := v.Tensor()
		require.Equal(t, d.Shape(), back.Shape())
		require.Equal(t, backing, back.Data())
		v.Bytes[0] ^= 1
		require.Equal(t, d.Data(), back.Data())
	}
	scalar := exec.Value{DType: tensor.Float64, Bytes: exec.Bytes([]float64{7})}
	require.Equal(t, 1, scalar.Len())
	require.Equal(t, tensor.Shape{1}, scalar.Tensor().Shape())
}

// TestFromBatch takes integers of three types, and what FromTensor takes. The memory is shared
// unless the elements are of another size.
func TestFromBatch(t *testing.T) {
	for _, backing := range []any{[]int{1, -2, 3}, []int64{1, -2, 3}, []int32{1, -2, 3}} {
		d := tensor.New(tensor.WithShape(3, 1), tensor.WithBacking(backing))
		v, err := exec.FromBatch(d)
		require.NoError(t, err)
		require.Equal(t, tensor.Int, v.DType)
		require.Equal(t, tensor.Shape{3, 1}, v.Shape)
		require.Equal(t, []int{1, -2, 3}, exec.Data[int](v.Bytes))
		if d.Dtype().Size() == tensor.Int.Size() {
			require.NoError(t, d.SetAt(d.Get(2), 0, 0))
			require.Equal(t, []int{3, -2, 3}, exec.Data[int](v.Bytes))
		}
	}
	one, err := exec.FromBatch(tensor.New(tensor.FromScalar(int32(7))))
	require.NoError(t, err)
	require.Equal(t, []int{7}, exec.Data[int](one.Bytes))
	_, err = exec.FromBatch(tensor.New(tensor.WithBacking([]float32{1})))
	require.NoError(t, err)
	_, err = exec.FromBatch(tensor.New(tensor.WithBacking([]uint8{1})))
	require.ErrorContains(t, err, "uint8 is not supported")
	turned := tensor.New(tensor.WithShape(2, 2), tensor.WithBacking([]int32{1, 2, 3, 4}))
	require.NoError(t, turned.T())
	_, err = exec.FromBatch(turned)
	require.ErrorContains(t, err, "is a view")
}

// TestFromTensorRefuses views, column-major and sparse tensors, and element types that no kernel
// has.
func TestFromTensorRefuses(t *testing.T) {
	d := tensor.New(tensor.WithShape(2, 4), tensor.WithBacking([]float64{1, 2, 3, 4, 5, 6, 7, 8}))
	columns, err := d.Slice(nil, tensor.S(0, 2))
	require.NoError(t, err)
	turned := d.Clone().(*tensor.Dense)
	require.NoError(t, turned.T())
	var none *tensor.Dense
	for want, bad := range map[string]tensor.Tensor{
		"is a view or column-major": columns,
		"shape (4, 2) is a view":    turned,
		"shape (2, 2) is a view":    tensor.New(tensor.WithShape(2, 2), tensor.AsFortran([]float64{1, 2, 3, 4})),
		"int32 is not supported":    tensor.New(tensor.WithBacking([]int32{1})),
		"the tensor is nil":         none,
	} {
		_, err := exec.FromTensor(bad)
		require.ErrorContains(t, err, want)
	}
	_, err = exec.FromTensor(nil)
	require.ErrorContains(t, err, "the tensor is nil")
}
