//go:build linux && cgo

package gpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/blaslt"
	"github.com/gofsdp/gofsdp/internal/gpudouble"
	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
	"github.com/gofsdp/gofsdp/nccl"
	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/optim/optimtest"
	optimvec "github.com/gofsdp/gofsdp/optim/vec"
)

// room returns vectors of d, whose memory is freed at the end of the test.
func room(t testing.TB, d *Device) func(n int, float64s bool) optim.Vec {
	return func(n int, float64s bool) optim.Vec {
		if float64s {
			return elements(t, d, n, 8)
		}
		return elements(t, d, n, 4)
	}
}

// elements returns n elements of some bytes, whose memory is freed at the end of the test.
func elements(t testing.TB, d *Device, n, size int) optim.Vec {
	alloc := d.alloc
	if d.o.Offload {
		alloc = d.allocPinned
	}
	b, err := alloc(n*size, arena.State)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, d.wait(d.work))
		require.NoError(t, d.free(b))
	})
	return d.vector(b, size)
}

func TestContract(t *testing.T) {
	double(t)
	require.NoError(t, blaslt.Load(gpudouble.Build(t).CUBLASLT))
	for _, offload := range []bool{false, true} {
		d := open(t, Options{staging: 100_000, Offload: offload})
		t.Cleanup(func() { require.NoError(t, d.dropSlabs(func(*slabOf) bool { return true })) })
		optimtest.TestVec(t, room(t, d))
	}
}

// model is vectors of some pieces, one behind the other, and the same in ordinary memory.
type model struct {
	host [4]optim.Host
	vecs [4]optim.Vec
}

// newModel returns random vectors of n elements, all the same on both sides.
func newModel(t rapid.TB, alloc func(n int, float64s bool) optim.Vec, n int, float64s bool, rng *rand.Rand) *model {
	m := &model{}
	for i := range m.host {
		if float64s {
			m.host[i] = optim.Host{F64: make([]float64, n)}
		} else {
			m.host[i] = optim.Host{F32: make([]float32, n)}
		}
		for j := range m.host[i].F32 {
			m.host[i].F32[j] = float32(rng.NormFloat64() * math.Exp2(float64(rng.IntN(40)-20)))
		}
		for j := range m.host[i].F64 {
			m.host[i].F64[j] = rng.NormFloat64() * math.Exp2(float64(rng.IntN(80)-40))
		}
		m.vecs[i] = alloc(n, float64s)
	}
	for j := range m.host[3].F32 {
		m.host[3].F32[j] = abs(m.host[3].F32[j])
	}
	for j := range m.host[3].F64 {
		m.host[3].F64[j] = abs(m.host[3].F64[j])
	}
	for i := range m.host {
		require.NoError(t, m.vecs[i].Write(m.host[i]))
	}
	return m
}

func abs[T float32 | float64](x T) T { return max(x, -x) }

// same requires that both sides are the same bits.
func (m *model) same(t rapid.TB) {
	for i, want := range m.host {
		same(t, want, m.vecs[i])
	}
}

// same requires that a vector has these bits.
func same(t require.TestingT, want optim.Host, v optim.Vec) {
	got := optim.Host{F32: make([]float32, len(want.F32)), F64: make([]float64, len(want.F64))}
	require.NoError(t, v.Read(got))
	for j, w := range want.F32 {
		require.Equal(t, math.Float32bits(w), math.Float32bits(got.F32[j]), "element %d: %v, %v", j, w, got.F32[j])
	}
	for j, w := range want.F64 {
		require.Equal(t, math.Float64bits(w), math.Float64bits(got.F64[j]), "element %d: %v, %v", j, w, got.F64[j])
	}
}

// in16 returns the vectors of both sides with values and gradients in bfloat16.
func (m *model) in16(t testing.TB, d *Device) (near, far [4]optim.Vec) {
	for i, h := range m.host {
		near[i], far[i] = h, m.vecs[i]
		if i < 2 {
			near[i], far[i] = optimvec.NewHost16(make([]half.BFloat16, h.Len())), elements(t, d, h.Len(), 2)
			require.NoError(t, near[i].Write(h))
			require.NoError(t, far[i].Write(h))
		}
	}
	return near, far
}

// read returns the elements of a vector of float32, which may store bfloat16.
func read(t require.TestingT, v optim.Vec) optim.Host {
	h := optim.Host{F32: make([]float32, v.Len())}
	require.NoError(t, v.Read(h))
	return h
}

// apply does a random operation on elements [from, to) of one side. All random numbers come from
// rng.
func apply(t rapid.TB, d *Device, vs [4]optim.Vec, from, to int, rng *rand.Rand) {
	p, g, m, v := vs[0].Slice(from, to), vs[1].Slice(from, to), vs[2].Slice(from, to), vs[3].Slice(from, to)
	switch rng.IntN(6) {
	case 0:
		require.NoError(t, m.Zero())
	case 1, 2:
		s := optimvec.AdamStep{
			LR: rng.Float64(), WeightDecay: rng.Float64(), Beta1: rng.Float64(), Beta2: rng.Float64(), Eps: 1e-8,
			BiasCorrection1: 0.5, BiasCorrection2Sqrt: 0.1, Decoupled: rng.IntN(2) == 0, Round: rounding(rng),
		}
		require.NoError(t, p.(optimvec.AdamVec).Adam(g, m, v, s))
	case 3:
		s := optimvec.SGDStep{LR: rng.Float64(), Momentum: rng.Float64(), Nesterov: rng.IntN(2) == 0, First: rng.IntN(2) == 0, Round: rounding(rng)}
		require.NoError(t, p.(optimvec.SGDVec).SGD(g, m, s))
	case 4:
		require.NoError(t, p.(optimvec.SGDVec).SGD(g, nil, optimvec.SGDStep{LR: -rng.Float64(), WeightDecay: -1, Round: rounding(rng)}))
	case 5:
		c := rng.NormFloat64()
		switch h := g.(type) {
		case optim.Host:
			vec.Scale(h.F32, float32(c))
			vec.Scale(h.F64, c)
		case optimvec.Host16:
			wide := read(t, h)
			vec.Scale(wide.F32, float32(c))
			require.NoError(t, h.Write(wide))
		default:
			require.NoError(t, d.Scale([]optim.Vec{g}, c))
		}
	}
}

// rounding returns a random Rounding, some of which begin a few elements before 2^32.
func rounding(rng *rand.Rand) optimvec.Rounding {
	return optimvec.Rounding{Key: rng.Uint64(), Offset: rng.IntN(2)*(1<<32-20) + rng.IntN(20)}
}

// TestUpdates applies random operations to random pieces: in ascending order, which one launch
// does, and in any other, with slices that overlap. The bits are those of the host.
func TestUpdates(t *testing.T) {
	cuda := double(t)
	devices := []*Device{open(t, Options{staging: 4096}), open(t, Options{Offload: true})}
	for _, checks := range []gpudouble.Check{gpudouble.Races | gpudouble.Unset, gpudouble.Reverse} {
		cuda.Checks(t, checks)
		rapid.Check(t, func(rt *rapid.T) {
			d := rapid.SampledFrom(devices).Draw(rt, "device")
			n := rapid.SampledFrom([]int{rapid.IntRange(1, 9000).Draw(rt, "some"), rapid.IntRange(1, 600).Draw(rt, "few"), 300, span + 5}).Draw(rt, "elements")
			rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
			m := newModel(rt, room(t, d), n, rapid.Bool().Draw(rt, "float64"), rng)
			ascending := rapid.Bool().Draw(rt, "ascending")
			at := 0
			for range rapid.IntRange(1, 12).Draw(rt, "operations") {
				from := rng.IntN(n + 1)
				if ascending {
					from = at
				}
				to := from + rng.IntN(n-from+1)
				at = to % n
				seed := rng.Uint64()
				apply(rt, d, [4]optim.Vec{m.host[0], m.host[1], m.host[2], m.host[3]}, from, to, rand.New(rand.NewPCG(seed, 1)))
				apply(rt, d, m.vecs, from, to, rand.New(rand.NewPCG(seed, 1)))
			}
			m.same(rt)
		})
	}
}

// TestUpdatesIn16Bits: updates of values and gradients in bfloat16, with state of 32 and of 16
// bits, and of averages of such values, have the bits of the host, also if a factor of the
// gradients is deferred. So do the norms of such vectors.
func TestUpdatesIn16Bits(t *testing.T) {
	cuda := double(t)
	devices := []*Device{open(t, Options{staging: 4096}), open(t, Options{Offload: true})}
	host, err := engine.NewHost(engine.HostOptions{Threads: 1})
	require.NoError(t, err)
	defer func() { require.NoError(t, host.Close()) }()
	for _, checks := range []gpudouble.Check{gpudouble.Races | gpudouble.Unset, gpudouble.Reverse} {
		cuda.Checks(t, checks)
		rapid.Check(t, func(rt *rapid.T) {
			d := rapid.SampledFrom(devices).Draw(rt, "device")
			n := rapid.IntRange(1, 600).Draw(rt, "elements")
			if rapid.IntRange(0, 20).Draw(rt, "large") == 20 {
				n += span
			}
			rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
			m := newModel(rt, room(t, d), n, false, rng)
			near, far := m.in16(t, d)
			if rapid.Bool().Draw(rt, "gradients as a shard") {
				far[1].(vector).b.gradient = 2
			}
			for range rapid.IntRange(1, 8).Draw(rt, "operations") {
				from, to := 0, n
				if rng.IntN(2) == 0 {
					from = rng.IntN(n)
					to = from + rng.IntN(n-from)
				}
				seed := rng.Uint64()
				for _, side := range [][4]optim.Vec{near, far} {
					rng := rand.New(rand.NewPCG(seed, 1))
					if rng.IntN(2) == 0 {
						applyIn16(rt, side, rng)
					} else {
						apply(rt, d, side, from, to, rng)
					}
				}
			}
			for i, v := range near {
				same(rt, read(rt, v), far[i])
			}
			most, err := d.MaxAbs(far[:])
			require.NoError(rt, err)
			want, err := host.MaxAbs(near[:])
			require.NoError(rt, err)
			require.Equal(rt, want, most)
			squares, err := d.Squares(far[:], most)
			require.NoError(rt, err)
			wantSquares, err := host.Squares(near[:], most)
			require.NoError(rt, err)
			require.Equal(rt, wantSquares, squares)
		})
	}
}

// applyIn16 does a random update with state in 16 bits, which is in the first half of vectors of
// float32, or moves the state, as an average, towards the values.
func applyIn16(t rapid.TB, vs [4]optim.Vec, rng *rand.Rand) {
	p, g, words := vs[0], vs[1], vec.Words16(vs[0].Len())
	m, v := vs[2].Slice(0, words), vs[3].Slice(0, words)
	state := optim.Host{F32: make([]float32, words)}
	for i := range state.F32 { // two numbers that are positive and finite
		state.F32[i] = math.Float32frombits(rng.Uint32() & 0x3fff3fff)
	}
	switch rng.IntN(4) {
	case 0, 1:
		require.NoError(t, m.Write(state))
		require.NoError(t, v.Write(state))
		require.NoError(t, p.(optimvec.BFloat16Vec).Adam16(g, m, v, rounding(rng), optimvec.AdamStep{
			LR: rng.Float64(), WeightDecay: rng.Float64(), Beta1: rng.Float64(), Beta2: rng.Float64(), Eps: 1e-8,
			BiasCorrection1: 0.5, BiasCorrection2Sqrt: 0.1, Decoupled: rng.IntN(2) == 0, Round: rounding(rng),
		}))
	case 2:
		require.NoError(t, m.Write(state))
		require.NoError(t, p.(optimvec.BFloat16Vec).SGD16(g, m, rounding(rng), optimvec.SGDStep{
			LR: rng.Float64(), Momentum: rng.Float64(), Nesterov: rng.IntN(2) == 0, First: rng.IntN(2) == 0, Round: rounding(rng),
		}))
	case 3:
		require.NoError(t, vs[2].(optimvec.SGDVec).SGD(p, nil, optimvec.SGDStep{LR: -rng.Float64(), WeightDecay: -1}))
	}
}

// TestOneLaunch counts: a step of an optimizer over many pieces, with rules, is one launch, and
// what is over maxPieces is one more.
func TestOneLaunch(t *testing.T) {
	cuda := double(t)
	d := open(t, Options{})
	alloc := room(t, d)
	const n = maxPieces + 100
	values, grads := alloc(10*n, false), alloc(10*n, false)
	require.NoError(t, values.Zero())
	require.NoError(t, grads.Zero())
	var params []optim.Param
	for i := range n {
		params = append(params, optim.Param{
			Name: fmt.Sprint("p", i), Shape: []int{9 + i%2}, Value: values.Slice(10*i, 10*i+9+i%2), Grad: grads.Slice(10*i, 10*i+9+i%2),
			Alloc: func(n int) (optim.Vec, error) { return alloc(n, false), nil },
		})
	}
	odd := optim.Rule{Match: func(p optim.Param) bool { return p.Shape[0] == 9 }, WeightDecay: new(0.0), LRScale: new(2.0)}
	opt, err := optim.AdamW{WeightDecay: 0.1, Rules: []optim.Rule{odd}}.New(params)
	require.NoError(t, err)
	before := cuda.Calls("cuLaunchKernel")
	require.NoError(t, opt.Step(0.1))
	require.Equal(t, 2, cuda.Calls("cuLaunchKernel")-before)
	require.NoError(t, d.work.Sync())
	require.Zero(t, testing.AllocsPerRun(40, func() {
		require.NoError(t, opt.Step(0.1))
		require.NoError(t, d.work.Sync())
	}), "allocations of a step")
}

// TestPlace: what others give to the stream of a vector comes after its updates and before it is
// read.
func TestPlace(t *testing.T) {
	double(t)
	d := open(t, Options{})
	alloc := room(t, d)
	v, g := alloc(5, false), alloc(5, false)
	require.NoError(t, v.Zero())
	require.NoError(t, g.Write(optim.Host{F32: []float32{1, 2, 3, 4, 5}}))
	require.NoError(t, v.(optimvec.SGDVec).SGD(g, nil, optimvec.SGDStep{LR: -1})) // put off
	at, s, err := v.Slice(1, 3).(nccl.Placed).Place()
	require.NoError(t, err)
	require.NoError(t, s.Set(at, 0, 8))
	got := make([]float32, 5)
	require.NoError(t, v.Read(optim.Host{F32: got}))
	require.Equal(t, []float32{1, 0, 0, 4, 5}, got)
}

// TestOneMemory: updates of the same elements are in order, also if these lie behind others that
// one of the updates takes of the same memory.
func TestOneMemory(t *testing.T) {
	double(t)
	d := open(t, Options{})
	all := room(t, d)(20, false)
	require.NoError(t, all.Write(optim.Host{F32: make([]float32, 20)}))
	other := room(t, d)(10, false)
	require.NoError(t, other.Write(optim.Host{F32: make([]float32, 10)}))
	low, high := all.Slice(0, 10), all.Slice(10, 20).(vector)
	for _, grad := range []optim.Vec{low, other} {
		require.NoError(t, high.SGD(grad, nil, optimvec.SGDStep{LR: 1}))
		require.Equal(t, 1, d.updates.n, "they share no launch")
	}
	require.NoError(t, high.Flush())
}
