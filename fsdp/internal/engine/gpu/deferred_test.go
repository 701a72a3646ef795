//go:build linux && cgo

package gpu

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/gpudouble"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
	"github.com/gofsdp/gofsdp/nccl"
	"github.com/gofsdp/gofsdp/optim"
	optimvec "github.com/gofsdp/gofsdp/optim/vec"
)

// TestDeferred applies random operations to a gradient shard and to vectors that it updates. It
// finds the same bits as on the host, which does every operation at once.
func TestDeferred(t *testing.T) {
	cuda := double(t)
	devices := []*Device{open(t, Options{}), open(t, Options{Offload: true})}
	for _, checks := range []gpudouble.Check{gpudouble.Races | gpudouble.Unset, gpudouble.Reverse} {
		cuda.Checks(t, checks)
		rapid.Check(t, func(rt *rapid.T) {
			d := rapid.SampledFrom(devices).Draw(rt, "device")
			l := flat(rt, rapid.IntRange(1, 300).Draw(rt, "elements"), 2, 1)
			l.Store = rapid.SampledFrom([]comm.DType{comm.Float32, comm.BFloat16}).Draw(rt, "shards")
			l.Read, l.Gather, l.Reduce, l.Round = l.Store, l.Store, l.Store, l.Store
			g, n := local(t, rt, d, l), l.Flat.ShardLen()
			rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
			m := newModel(rt, room(t, d), n, false, rng)
			near, far := [4]optim.Vec{m.host[0], m.host[1], m.host[2], m.host[3]}, m.vecs
			if l.Store == comm.BFloat16 {
				near, far = m.in16(t, d)
			}
			require.NoError(rt, g.gradVec.Write(m.host[1]))
			far[1] = g.gradVec
			full := whole(t, rt, d, l.Flat.Len())
			sums := wild(rng, l.Flat.Len())
			if l.Reduce == comm.BFloat16 {
				require.NoError(rt, full.Write(optim.Host{F32: packed(sums, l.Reduce, 0)}))
				sums = narrowed(sums, l.Reduce, 1)
			} else {
				require.NoError(rt, full.Write(optim.Host{F32: sums}))
			}
			// change changes the gradient of the host by f, rounded to the type of the shard.
			change := func(f func(grad []float32)) {
				grad := read(rt, near[1])
				f(grad.F32)
				require.NoError(rt, near[1].Write(grad))
			}
			for _, what := range rapid.SliceOfN(rapid.SampledFrom([]string{"scale", "zero", "update", "drain", "place", "read", "norm"}), 1, 12).Draw(rt, "operations") {
				switch what {
				case "scale":
					c := rng.NormFloat64()
					change(func(grad []float32) { vec.Scale(grad, float32(c)) })
					require.NoError(rt, d.Scale([]optim.Vec{g.gradVec}, c))
				case "zero":
					require.NoError(rt, near[1].Zero())
					require.NoError(rt, g.gradVec.Zero())
				case "update":
					from := rng.IntN(n + 1)
					to, seed := from+rng.IntN(n-from+1), rng.Uint64()
					apply(rt, d, near, from, to, rand.New(rand.NewPCG(seed, 1)))
					apply(rt, d, far, from, to, rand.New(rand.NewPCG(seed, 1)))
				case "drain":
					change(func(grad []float32) { vec.AddScaled(grad, sums[n:], 0.7) })
					both(rt, d, func() { require.NoError(rt, g.finishReduce(g.d.wire, full.(vector).addr(), 0.7)) })
				case "place":
					_, _, err := g.gradVec.(nccl.Placed).Place()
					require.NoError(rt, err)
					require.Empty(rt, d.deferred)
				case "read":
					sameNumbers(rt, read(rt, near[1]).F32, g.gradVec)
				case "norm":
					got, err := d.MaxAbs([]optim.Vec{g.gradVec})
					require.NoError(rt, err)
					if most := float64(vec.MaxAbs(read(rt, near[1]).F32)); most == most {
						require.Equal(rt, most, got[0])
					}
				}
			}
			for i, v := range near {
				sameNumbers(rt, read(rt, v).F32, far[i])
			}
		})
	}
}

// sameNumbers requires that a vector has these bits, where NaN is NaN.
func sameNumbers(t rapid.TB, want []float32, v optim.Vec) {
	got := make([]float32, len(want))
	require.NoError(t, v.Read(optim.Host{F32: got}))
	equal(t, want, got)
}

// TestClippedStep counts the operations of steps with clipped gradients: the update scales, and the
// drain clears.
func TestClippedStep(t *testing.T) {
	cuda := double(t)
	d := open(t, Options{})
	l := flat(t, 100, 1, 0)
	g := local(t, t, d, l)
	first, err := d.alloc(l.ShardBytes(), arena.State)
	require.NoError(t, err)
	second, err := d.alloc(l.ShardBytes(), arena.State)
	require.NoError(t, err)
	full := whole(t, t, d, l.Flat.Len())
	for _, v := range []optim.Vec{d.vector(first, 4), d.vector(second, 4), full} {
		require.NoError(t, v.Zero())
	}
	require.NoError(t, d.work.Sync())
	for step := range 3 {
		kernels, sets := cuda.Calls("cuLaunchKernel"), cuda.Calls("cuMemsetD8Async")
		both(t, d, func() { require.NoError(t, g.finishReduce(g.d.wire, full.(vector).addr(), 1)) })
		require.NoError(t, d.Scale([]optim.Vec{g.gradVec}, 0.5))
		require.NoError(t, g.valueVec.(optimvec.AdamVec).Adam(g.gradVec, d.vector(first, 4), d.vector(second, 4), optimvec.AdamStep{Eps: 1, BiasCorrection1: 1}))
		require.NoError(t, g.gradVec.Zero())
		require.NoError(t, d.Wait())
		require.Equal(t, 2, cuda.Calls("cuLaunchKernel")-kernels, "step %d", step)
		require.Equal(t, sets, cuda.Calls("cuMemsetD8Async"), "step %d", step)
	}
	d.drop(first, second)
	require.Len(t, d.deferred, 1)
}
