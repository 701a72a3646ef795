//go:build linux && cgo

package gpu

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/gpudouble"
	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
	"github.com/gofsdp/gofsdp/internal/program"
	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/shard"
)

// flat returns the layout of a group of one parameter with n elements, cut over some places.
func flat(t require.TestingT, n, places, place int) *layout.Group {
	f, err := shard.New([]shard.Param{{Name: "p", Shape: []int{n}}}, places, shard.DefaultAlign)
	require.NoError(t, err)
	return &layout.Group{
		Name: "unit", Hold: program.Use, Flat: f, Ranks: layout.Ranks{World: places, Shards: places, Place: place, Replicas: 1},
		Compute: comm.Float32, Store: comm.Float32, Read: comm.Float32, Gather: comm.Float32, Reduce: comm.Float32, Round: comm.Float32,
	}
}

// local returns what of a group is on a device without links. It is freed at the end of the test.
func local(t testing.TB, rt rapid.TB, d *Device, l *layout.Group) *group {
	g := &group{Group: l, d: d}
	require.NoError(rt, g.alloc())
	t.Cleanup(func() { d.drop(g.value, g.grad, g.copied) })
	return g
}

// wild returns n random numbers, some of which no 16-bit type has.
func wild(rng *rand.Rand, n int) []float32 {
	list := make([]float32, n)
	for i := range list {
		list[i] = float32(rng.NormFloat64() * math.Exp2(float64(rng.IntN(60)-35)))
		if rng.IntN(50) == 0 {
			list[i] = []float32{0, float32(math.Inf(-1)), float32(math.NaN()), 65520, 0x1p-149, math.MaxFloat32}[rng.IntN(6)]
		}
	}
	return list
}

// narrowed returns c·x in a 16-bit type, widened again.
func narrowed(x []float32, t comm.DType, c float32) []float32 {
	list := make([]float32, len(x))
	for i, v := range x {
		if t == comm.BFloat16 {
			list[i] = half.ToBFloat16(c * v).Float32()
		} else {
			list[i] = half.ToFloat16(c * v).Float32()
		}
	}
	return list
}

// equal requires the same numbers, where NaN is NaN.
func equal(t rapid.TB, want, got []float32) {
	require.Len(t, got, len(want))
	for i, w := range want {
		require.True(t, math.Float32bits(w) == math.Float32bits(got[i]) || w != w && got[i] != got[i], "element %d of %d: %v, %v", i, len(want), w, got[i])
	}
}

// whole is a full buffer of float32 elements.
func whole(t testing.TB, rt rapid.TB, d *Device, n int) optim.Vec {
	b, err := d.alloc(4*n, arena.Gathered)
	require.NoError(rt, err)
	t.Cleanup(func() { d.drop(b) })
	return d.vector(b, 4)
}

// both lets each stream come after the other, as passes do.
func both(t rapid.TB, d *Device, f func()) {
	require.NoError(t, d.fork())
	f()
	require.NoError(t, d.join(onWire))
}

var sixteen = []comm.DType{comm.BFloat16, comm.Float16}

// TestRounds: values that change their type in place are the host's, in any order of blocks.
func TestRounds(t *testing.T) {
	cuda := double(t)
	devices := []*Device{open(t, Options{}), open(t, Options{Offload: true})}
	for _, checks := range []gpudouble.Check{gpudouble.Races | gpudouble.Unset, gpudouble.Reverse} {
		cuda.Checks(t, checks)
		rapid.Check(t, func(rt *rapid.T) {
			d := rapid.SampledFrom(devices).Draw(rt, "device")
			n := rapid.OneOf(rapid.IntRange(1, 300), rapid.SampledFrom([]int{alone, alone + 1, 2*alone - 1, 4*alone + 3})).Draw(rt, "elements")
			places := rapid.IntRange(1, 3).Draw(rt, "places")
			l := flat(rt, n, places, rapid.IntRange(0, places-1).Draw(rt, "place"))
			l.Gather, l.Reduce = rapid.SampledFrom(sixteen).Draw(rt, "gather"), rapid.SampledFrom(sixteen).Draw(rt, "reduce")
			l.Round = l.Reduce
			g := local(t, rt, d, l)
			rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
			full := whole(t, rt, d, l.Flat.Len())
			at := full.(vector).addr()
			c := rapid.SampledFrom([]float32{1, 0.5, 1.0 / 3}).Draw(rt, "factor")

			grads, before := wild(rng, l.Flat.Len()), wild(rng, l.Flat.ShardLen())
			start, written := grads, g.Compute
			if l.Reduce == comm.BFloat16 && rapid.Bool().Draw(rt, "written in bfloat16") {
				start, written, c = packed(grads, l.Reduce, 0), l.Reduce, 1
			}
			require.NoError(rt, full.Write(optim.Host{F32: start}))
			require.NoError(rt, g.gradVec.Write(optim.Host{F32: before}))
			both(rt, d, func() {
				_, _, err := g.startReduce(at, written, c)
				require.NoError(rt, err)
				require.NoError(rt, g.finishReduce(g.d.wire, at, 0.7))
			})
			want := slices.Clone(before)
			own := l.Ranks.Place * l.Flat.ShardLen()
			vec.AddScaled(want, narrowed(grads, l.Reduce, c)[own:own+len(want)], 0.7)
			got := make([]float32, len(want))
			require.NoError(rt, g.gradVec.Read(optim.Host{F32: got}))
			equal(rt, want, got)

			low := wild(rng, l.Flat.Len())
			require.NoError(rt, full.Write(optim.Host{F32: packed(low, l.Gather, len(low))}))
			value := wild(rng, l.Flat.ShardLen())
			require.NoError(rt, g.valueVec.Write(optim.Host{F32: value}))
			both(rt, d, func() {
				_, _, err := g.startGather(at)
				require.NoError(rt, err)
				require.NoError(rt, g.finishGather(at))
			})
			copy(low[own:], value)
			got = make([]float32, len(low))
			require.NoError(rt, full.Read(optim.Host{F32: got}))
			equal(rt, narrowed(low, l.Gather, 1), got)
		})
	}
}

// packed returns a buffer of len(x) float32 that has x in a 16-bit type, behind the given number of
// such elements.
func packed(x []float32, t comm.DType, from int) []float32 {
	list := make([]float32, len(x))
	bits := unsafe.Slice((*uint16)(unsafe.Pointer(&list[0])), 2*len(x))[from:]
	for i, v := range x {
		if t == comm.BFloat16 {
			bits[i] = uint16(half.ToBFloat16(v))
		} else {
			bits[i] = uint16(half.ToFloat16(v))
		}
	}
	return list
}

// TestShardsIn16Bits: parameters that ranks keep in bfloat16 travel with their bits, without a
// kernel, and sums of both types are added to gradients in bfloat16 with one rounding to the
// nearest.
func TestShardsIn16Bits(t *testing.T) {
	cuda := double(t)
	for i, reduce := range []comm.DType{comm.Float32, comm.BFloat16, comm.Float32, comm.BFloat16} {
		d := open(t, Options{Offload: i > 1})
		l := flat(t, 100, 3, 2)
		l.Store, l.Read, l.Gather, l.Reduce, l.Round = comm.BFloat16, comm.BFloat16, comm.BFloat16, reduce, reduce
		g, rng := local(t, t, d, l), rand.New(rand.NewPCG(5, uint64(i)))
		n, full := l.Flat.ShardLen(), whole(t, t, d, l.Flat.Len())
		require.Equal(t, 2*n, g.value.Len())
		value, before, sums := wild(rng, n), wild(rng, n), wild(rng, l.Flat.Len())
		require.NoError(t, g.valueVec.Write(optim.Host{F32: value}))
		require.NoError(t, g.gradVec.Write(optim.Host{F32: before}))
		if reduce == comm.BFloat16 {
			require.NoError(t, full.Write(optim.Host{F32: packed(sums, reduce, 0)}))
			sums = narrowed(sums, reduce, 1)
		} else {
			require.NoError(t, full.Write(optim.Host{F32: sums}))
		}
		both(t, d, func() { require.NoError(t, g.finishReduce(g.d.wire, full.(vector).addr(), 0.7)) })
		before = narrowed(before, comm.BFloat16, 1)
		vec.AddScaled(before, sums[2*n:3*n], 0.7)
		sameNumbers(t, narrowed(before, comm.BFloat16, 1), g.gradVec)

		launches := cuda.Calls("cuLaunchKernel")
		both(t, d, func() {
			_, op, err := g.startGather(full.(vector).addr())
			require.NoError(t, err)
			if op.Send != 0 {
				require.Equal(t, g.value.Addr(), op.Send)
			}
			require.NoError(t, g.finishGather(full.(vector).addr()))
		})
		require.Equal(t, launches, cuda.Calls("cuLaunchKernel"))
		here := vector{d, full.(vector).b, 2, 2 * n, 3 * n}
		sameNumbers(t, narrowed(value, comm.BFloat16, 1), here)
	}
}

// TestExact: parameters and gradients that travel as they are.
func TestExact(t *testing.T) {
	double(t)
	for i := range 4 {
		d, float64s := open(t, Options{Offload: i > 1}), i%2 > 0
		l := flat(t, 100, 3, 2)
		if float64s {
			l.Compute, l.Store, l.Read, l.Gather, l.Reduce, l.Round = comm.Float64, comm.Float64, comm.Float64, comm.Float64, comm.Float64, comm.Float64
		}
		g := local(t, t, d, l)
		n, size := l.Flat.ShardLen(), l.Compute.Size()
		b, err := d.alloc(l.Flat.Len()*size, arena.Gathered)
		require.NoError(t, err)
		full := d.vector(b, size)
		m := newModel(t, room(t, d), n, float64s, rand.New(rand.NewPCG(4, 4)))
		require.NoError(t, g.valueVec.Write(m.host[0]))
		require.NoError(t, g.gradVec.Write(m.host[1]))
		both(t, d, func() {
			_, _, err := g.startGather(b.Addr())
			require.NoError(t, err)
			require.NoError(t, g.finishGather(b.Addr()))
			require.NoError(t, g.finishReduce(g.d.wire, b.Addr(), 0.3))
		})
		vec.AddScaled(m.host[1].F32, m.host[0].F32, 0.3)
		vec.AddScaled(m.host[1].F64, m.host[0].F64, 0.3)
		same(t, m.host[0], full.Slice(2*n, 3*n))
		same(t, m.host[1], g.gradVec)
		d.drop(b)
	}
}
