//go:build linux && cgo

package gpu

import (
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
	"github.com/gofsdp/gofsdp/optim"
)

// treeSum returns the canonical sum of vectors: the first half is the largest power of two.
func treeSum(list [][]float32) []float32 {
	if len(list) == 1 {
		return slices.Clone(list[0])
	}
	half := 1
	for 2*half < len(list) {
		half *= 2
	}
	sum := treeSum(list[:half])
	vec.Accumulate(sum, treeSum(list[half:]))
	return sum
}

// TestTree: the kernel of sums adds the elements of ranks in the order of package comm, and rounds
// once, whichever rank has the part.
func TestTree(t *testing.T) {
	double(t)
	d, rng := open(t, Options{}), rand.New(rand.NewPCG(7, 7))
	const n, most = 70, 17
	stride := engine.Part(n, 1)
	own, rest := whole(t, t, d, n), whole(t, t, d, most*stride)
	for _, reduce := range []comm.DType{comm.Float32, comm.BFloat16, comm.Float16} {
		l := flat(t, n, 1, 0)
		l.Reduce, l.Round = reduce, reduce
		g := local(t, t, d, l)
		stored := func(x []float32, room int) optim.Host {
			if reduce != comm.Float32 && len(x) > 0 {
				x = packed(x, reduce, 0)
			}
			return optim.Host{F32: append(slices.Clone(x), make([]float32, room-len(x))...)}
		}
		for _, ranks := range []int{1, 2, 3, 5, 6, 7, 8, most} {
			me := rng.IntN(ranks)
			var all [][]float32
			var others []float32
			for r := range ranks {
				x := wild(rng, stride)
				if reduce != comm.Float32 {
					x = narrowed(x, reduce, 1)
				}
				if all = append(all, x[:n]); r != me {
					others = append(others, x...)
				}
			}
			require.NoError(t, own.Write(stored(all[me], n)))
			require.NoError(t, rest.Write(stored(others, most*stride)))
			both(t, d, func() {
				at, scratch := own.(vector).addr(), rest.(vector).addr()
				require.NoError(t, g.launch(g.kernels.tree, 1, uint64(at), uint64(scratch), n, uint64(stride), uint64(ranks), uint64(me)))
			})
			want, got := treeSum(all), make([]float32, n)
			require.NoError(t, own.Read(optim.Host{F32: got}))
			if reduce == comm.Float32 {
				equal(t, want, got)
			} else {
				equal(t, narrowed(want, reduce, 1), unpacked(got, reduce))
			}
		}
	}
}

// unpacked returns the numbers of a 16-bit type that are at the beginning of x, as many as x has
// elements.
func unpacked(x []float32, t comm.DType) []float32 {
	list := make([]float32, len(x))
	for i, bits := range unsafe.Slice((*uint16)(unsafe.Pointer(&x[0])), len(x)) {
		if t == comm.BFloat16 {
			list[i] = half.BFloat16(bits).Float32()
		} else {
			list[i] = half.Float16(bits).Float32()
		}
	}
	return list
}
