package engine

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
	"github.com/gofsdp/gofsdp/optim"
	optimvec "github.com/gofsdp/gofsdp/optim/vec"
)

// TestHostGrads makes random changes of gradients, and the same changes at once of a copy. All that
// can be seen has the same bits.
func TestHostGrads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(t, "n")
		drawn := rapid.Float32Range(-4, 4)
		some := func(n int) optim.Host { return optim.Host{F32: rapid.SliceOfN(drawn, n, n).Draw(t, "elements")} }
		want := make([]float32, n)
		memory := optim.Host{F32: make([]float32, n)}
		memory.F32[0] = 7 // cleared with the rest
		g := hostGrad{newHostGrads(memory), 0, n}
		whole := func(change func(optim.Vec)) {
			change(g)
			change(optim.Host{F32: want})
		}
		for range rapid.IntRange(1, 12).Draw(t, "changes") {
			at := rapid.IntRange(0, n).Draw(t, "at")
			switch op := rapid.IntRange(0, 7).Draw(t, "change"); op {
			case 0:
				whole(func(v optim.Vec) { require.NoError(t, v.Zero()) })
			case 1:
				c := rapid.SampledFrom([]float64{0.5, 1.0 / 3, 1, -2, 0}).Draw(t, "factor")
				g.times(c)
				vec.Scale(want, float32(c))
			case 2:
				sums, c := some(n), float64(drawn.Draw(t, "c"))
				cleared := g.cleared
				d := g.drain()
				d.add(0, optim.Host{F32: sums.F32[:at]}, c)
				d.add(at, optim.Host{F32: sums.F32[at:]}, c)
				d.end()
				if cleared {
					vec.ScaleTo(want, float32(c), sums.F32)
				} else {
					vec.AddScaled(want, sums.F32, float32(c))
				}
			case 3:
				part := some(n - at)
				whole(func(v optim.Vec) { require.NoError(t, v.Slice(at, n).Write(part)) })
			case 4:
				whole(func(v optim.Vec) { require.NoError(t, v.Slice(0, at).Zero()) })
			case 5:
				value, other := some(n), make([]float32, n)
				copy(other, value.F32)
				step := optimvec.SGDStep{LR: 0.5, WeightDecay: 0.25}
				require.NoError(t, value.Slice(at, n).(optim.Host).SGD(g.Slice(at, n), nil, step))
				require.NoError(t, optim.Host{F32: other[at:]}.SGD(optim.Host{F32: want[at:]}, nil, step))
				same(t, other, value.F32)
			case 6:
				require.Equal(t, float64(vec.MaxAbs(want[at:])), g.Slice(at, n).(hostGrad).Largest())
			case 7:
				sums, cleared := some(n), g.cleared
				require.Equal(t, cleared, g.replace(func() (optim.Host, bool) { return sums, true }))
				if cleared {
					copy(want, sums.F32)
				}
			}
			if rapid.Bool().Draw(t, "look") {
				require.Equal(t, float64(vec.MaxAbs(want)), g.Largest())
				read := optim.Host{F32: make([]float32, n)}
				require.NoError(t, g.Read(read))
				same(t, want, read.F32)
			}
		}
		same(t, want, g.Elements().F32)
	})
}

// TestHostGradsDeferred: clipping and clearing do not touch the memory before a reader must see
// them, and the largest magnitude of a drain is known without a pass.
func TestHostGradsDeferred(t *testing.T) {
	memory := []float32{3, -4}
	g := hostGrad{newHostGrads(optim.Host{F32: memory}), 0, 2}
	d := g.drain()
	d.add(0, optim.Host{F32: []float32{1, -2}}, 0.5)
	d.end()
	require.Equal(t, []float32{0.5, -1}, memory, "stored over the 3 and the -4")
	memory[0] = 9 // behind its back
	require.Equal(t, 1.0, g.Largest())
	memory[0] = 0.5
	g.times(0.5)
	require.Equal(t, []float32{0.5, -1}, memory)
	elements, factor := g.Scaled()
	require.Equal(t, memory, elements.F32)
	require.Equal(t, 0.5, factor)
	require.NoError(t, g.Zero())
	require.Equal(t, []float32{0.5, -1}, memory)
	require.Equal(t, []float32{0, 0}, g.Elements().F32)
}

// same requires equal bits, of zeros too.
func same(t require.TestingT, want, got []float32) {
	for i := range want {
		require.Equal(t, math.Float32bits(want[i]), math.Float32bits(got[i]), "element %d: %v, %v", i, want[i], got[i])
	}
}

// TestTakeSums has whole gradients become the shard: only if the shard is clear, and has gradients
// of the type and memory of the same source.
func TestTakeSums(t *testing.T) {
	shards := arena.New(arena.Sources{})
	alloc := func(fill byte) *arena.Block {
		b, err := shards.Alloc(8, arena.Gradient)
		require.NoError(t, err)
		for i := range b.Data {
			b.Data[i] = fill
		}
		return b
	}
	f := &flatGroup{Group: &layout.Group{Compute: comm.Float32, Store: comm.Float32, Reduce: comm.Float32, Round: comm.Float32}, grad: alloc(1)}
	f.grads = newHostGrads(optim.Host{F32: elements[float32](f.grad.Data)})
	g, full, was := hostGrad{f.grads, 0, 2}, alloc(2), f.grad.Data
	sums := full.Data
	require.True(t, f.takeSums(shards, full))
	require.Same(t, &sums[0], &f.grad.Data[0])
	require.Same(t, &was[0], &full.Data[0], "the pass frees the former memory of the shard")
	require.Equal(t, elements[float32](sums), g.Elements().F32)
	require.False(t, f.takeSums(shards, alloc(3)), "the shard is not clear")
	require.NoError(t, g.Zero())
	longer, err := shards.Alloc(12, arena.Gradient)
	require.NoError(t, err)
	require.False(t, f.takeSums(shards, longer))
	f.Reduce = comm.BFloat16
	require.False(t, f.takeSums(shards, alloc(3)))
	require.Equal(t, []float32{0, 0}, g.Elements().F32)
}
