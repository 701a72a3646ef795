// Package optimtest is the contract of [optim.Vec] as tests.
//
// An implementation passes it with one call:
//
//	func TestContract(t *testing.T) {
//		optimtest.TestVec(t, func(n int, float64s bool) optim.Vec { return alloc(n, float64s) })
//	}
//
// The kit reaches the elements by Read and Write only. It compares updates with the
// updates of [optim.Host] bit for bit.
package optimtest

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/optim/vec"
)

// lengths include none, one, no multiple of any register, and more than one block of a copy.
var lengths = []int{0, 1, 37, 1<<16 + 1}

// TestVec checks that the vectors that alloc returns keep the contract of [optim.Vec] and, if they
// implement them, the contracts of [vec.AdamVec], [vec.Adam8Vec], [vec.SGDVec], [vec.BFloat16Vec]
// and [vec.MuonVec]. alloc returns n elements of float32 or float64, with any contents, in new
// memory of one device.
func TestVec(t *testing.T, alloc func(n int, float64s bool) optim.Vec) {
	for _, float64s := range []bool{false, true} {
		for _, n := range lengths {
			k := &kit{n: n, float64s: float64s, alloc: alloc, rng: rand.New(rand.NewPCG(1, uint64(n)))}
			k.copies(t)
			k.slices(t)
			k.refusals(t)
			k.swap(t)
			k.adam(t)
			if _, ok := alloc(n, false).(vec.Adam8Vec); ok && !float64s {
				k.packed(t, optim.AdamW{WeightDecay: 0.1, Rules: rules(8)})
			}
			k.sgd(t)
			if _, ok := alloc(n, false).(vec.BFloat16Vec); ok && !float64s {
				k.packed(t, optim.AdamW{WeightDecay: 0.1, Rules: rules(16)})
				k.packed(t, optim.SGD{Momentum: 0.9, WeightDecay: 0.1, Rules: rules(16)})
				k.packed(t, optim.SGD{Momentum: 0.9, Nesterov: true, Rules: rules(16)})
			}
		}
		k := &kit{float64s: float64s, alloc: alloc, rng: rand.New(rand.NewPCG(1, 1))}
		if _, ok := alloc(1, float64s).(vec.MuonVec); ok {
			k.muon(t, optim.Muon{WeightDecay: 0.1}, 12, 5)
			k.muon(t, optim.Muon{NoNesterov: true, Steps: 4}, 5, 12)
		}
	}
}

// kit tests vectors of one length and type.
type kit struct {
	n        int
	float64s bool
	alloc    func(n int, float64s bool) optim.Vec
	rng      *rand.Rand
}

// host returns n zeros.
func (k *kit) host(n int) optim.Host {
	if k.float64s {
		return optim.Host{F64: make([]float64, n)}
	}
	return optim.Host{F32: make([]float32, n)}
}

// random returns n numbers in (0, 1].
func (k *kit) random(n int) optim.Host {
	h := k.host(n)
	for i := range h.F32 {
		h.F32[i] = 1 - k.rng.Float32()
	}
	for i := range h.F64 {
		h.F64[i] = 1 - k.rng.Float64()
	}
	return h
}

// copyOf returns a Host with the elements of v.
func (k *kit) copyOf(t *testing.T, v optim.Vec) optim.Host {
	h := k.host(v.Len())
	require.NoError(t, v.Read(h))
	return h
}

// vec returns a new vector with the elements of h.
func (k *kit) vec(t *testing.T, h optim.Host) optim.Vec {
	v := k.alloc(h.Len(), k.float64s)
	require.NoError(t, v.Write(h))
	return v
}

// copies checks that Read returns the elements that Write and Zero have set, and that neither keeps
// its argument.
func (k *kit) copies(t *testing.T) {
	want := k.random(k.n)
	from := k.copyOf(t, want)
	v := k.alloc(k.n, k.float64s)
	require.Equal(t, k.n, v.Len())
	require.Equal(t, k.float64s && k.n > 0, v.Float64() && k.n > 0)
	require.NoError(t, v.Write(from))
	require.NoError(t, from.Zero())
	require.Equal(t, want, k.copyOf(t, v), "Write keeps nothing of its argument")
	require.NoError(t, k.copyOf(t, v).Zero())
	require.Equal(t, want, k.copyOf(t, v), "Read gives no memory away")
	require.NoError(t, v.Zero())
	require.Equal(t, k.host(k.n), k.copyOf(t, v))
}

// slices checks that a slice shares exactly its part of the memory.
func (k *kit) slices(t *testing.T) {
	want := k.random(k.n)
	v := k.vec(t, want)
	lo, hi := k.n/3, k.n-k.n/4
	part := v.Slice(lo, hi)
	require.Equal(t, hi-lo, part.Len())
	require.Equal(t, want.Slice(lo, hi), k.copyOf(t, part))

	inner := k.random((hi - lo) / 2)
	require.NoError(t, part.Slice(0, inner.Len()).Write(inner), "a slice of a slice")
	require.NoError(t, want.Slice(lo, lo+inner.Len()).Write(inner))
	require.NoError(t, v.Slice(hi, k.n).Zero())
	require.NoError(t, want.Slice(hi, k.n).Zero())
	require.Equal(t, want, k.copyOf(t, v))

	require.Zero(t, v.Slice(k.n, k.n).Len())
	require.Zero(t, v.Slice(0, 0).Len())
	for _, bad := range [][2]int{{-1, 0}, {0, k.n + 1}, {1, 0}} {
		require.Panics(t, func() { v.Slice(bad[0], bad[1]) }, "[%d:%d] of %d", bad[0], bad[1], k.n)
	}
}

// refusals checks that copies from and to other lengths and types are errors that change nothing.
func (k *kit) refusals(t *testing.T) {
	want := k.random(k.n)
	v := k.vec(t, want)
	other := optim.Host{F64: make([]float64, k.n)}
	if k.float64s {
		other = optim.Host{F32: make([]float32, k.n)}
	}
	wrong := []optim.Host{k.host(k.n + 1)}
	if k.n > 0 {
		wrong = append(wrong, k.host(k.n-1), other, optim.Host{})
	}
	for _, h := range wrong {
		require.Error(t, v.Write(h), "%d of %d elements", h.Len(), k.n)
		require.Error(t, v.Read(h), "%d of %d elements", h.Len(), k.n)
	}
	require.Equal(t, want, k.copyOf(t, v))
}

// swap checks that Swap, if there is one, exchanges the elements of two slices, after earlier
// operations.
func (k *kit) swap(t *testing.T) {
	if _, ok := k.alloc(k.n, k.float64s).(interface{ Swap(optim.Vec) error }); !ok {
		return
	}
	h, v := k.operands(t, 2)
	lo, hi := k.n/3, k.n-k.n/4
	require.NoError(t, v[0].Slice(lo, hi).(interface{ Swap(optim.Vec) error }).Swap(v[1].Slice(lo, hi)))
	before := k.copyOf(t, h[0].Slice(lo, hi))
	require.NoError(t, h[0].Slice(lo, hi).Write(k.copyOf(t, h[1].Slice(lo, hi))))
	require.NoError(t, h[1].Slice(lo, hi).Write(before))
	k.same(t, h, v)
	if u, ok := v[0].(vec.SGDVec); ok {
		require.NoError(t, u.SGD(v[1], nil, vec.SGDStep{LR: 0.1}))
		require.NoError(t, h[0].SGD(h[1], nil, vec.SGDStep{LR: 0.1}))
		require.NoError(t, v[0].(interface{ Swap(optim.Vec) error }).Swap(v[1]))
		h[0], h[1] = h[1], h[0]
		k.same(t, h, v)
	}
}

// same checks that vectors hold the same bits as others, one by one.
func (k *kit) same(t *testing.T, want []optim.Host, got []optim.Vec) {
	for i := range want {
		require.Equal(t, want[i], k.copyOf(t, got[i]), "vector %d of an update", i)
	}
}

// operands returns random vectors of both implementations, alike.
func (k *kit) operands(t *testing.T, count int) (hosts []optim.Host, vecs []optim.Vec) {
	for range count {
		h := k.random(k.n)
		hosts, vecs = append(hosts, h), append(vecs, k.vec(t, h))
	}
	return hosts, vecs
}

// adam checks the update of Adam and AdamW, several in a row.
func (k *kit) adam(t *testing.T) {
	if _, ok := k.alloc(k.n, k.float64s).(vec.AdamVec); !ok {
		return
	}
	h, v := k.operands(t, 4)
	for _, s := range []vec.AdamStep{
		{LR: 0.1, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, BiasCorrection1: 0.1, BiasCorrection2Sqrt: 0.5},
		{LR: 0.2, WeightDecay: 0.1, Beta1: 0.5, Beta2: 0.9, Eps: 1e-3, BiasCorrection1: 0.75, BiasCorrection2Sqrt: 0.9},
		{LR: 0.2, WeightDecay: 0.1, Beta1: 0, Beta2: 0, BiasCorrection1: 1, BiasCorrection2Sqrt: 1, Decoupled: true},
	} {
		require.NoError(t, h[0].Adam(h[1], h[2], h[3], s))
		require.NoError(t, v[0].(vec.AdamVec).Adam(v[1], v[2], v[3], s))
		k.same(t, h, v)
	}
}

// rules returns a rule that keeps all state in the given number of bits.
func rules(bits int) []optim.Rule {
	return []optim.Rule{{Match: func(optim.Param) bool { return true }, Bits: &bits}}
}

// packed checks the update of an optimizer whose state has fewer bits, on a piece that begins
// inside a block of 8-bit state.
func (k *kit) packed(t *testing.T, config interface {
	New([]optim.Param) (optim.Optimizer, error)
}) {
	h, v := k.operands(t, 2)
	make := func(value, grad optim.Vec) optim.Optimizer {
		opt, err := config.New([]optim.Param{{
			Name: "p", Shape: []int{k.n + 300}, Offset: 100, Value: value, Grad: grad,
			Alloc: func(n int) (optim.Vec, error) {
				if _, host := value.(optim.Host); host {
					return k.host(n), nil
				}
				return k.alloc(n, false), nil
			},
		}})
		require.NoError(t, err)
		return opt
	}
	want, got := make(h[0], h[1]), make(v[0], v[1])
	for range 3 {
		require.NoError(t, want.Step(0.1))
		require.NoError(t, got.Step(0.1))
		k.same(t, h, v)
	}
	for i, e := range got.State() {
		data := k.copyOf(t, want.State()[i].Data)
		require.Equal(t, data, k.copyOf(t, e.Data), e.Name)
		if k.n < 2 {
			continue
		}
		lo, hi := k.n/3, k.n-k.n/4 // a slice shares exactly its part of the memory
		for _, v := range []optim.Vec{want.State()[i].Data, e.Data} {
			require.Equal(t, data.Slice(lo, hi), k.copyOf(t, v.Slice(lo, hi)), e.Name)
			require.NoError(t, v.Slice(lo, hi).Zero())
		}
		require.Equal(t, k.copyOf(t, want.State()[i].Data), k.copyOf(t, e.Data), e.Name)
	}
}

// sgd checks the update of SGD with and without momentum, several in a row.
func (k *kit) sgd(t *testing.T) {
	if _, ok := k.alloc(k.n, k.float64s).(vec.SGDVec); !ok {
		return
	}
	h, v := k.operands(t, 3)
	for _, s := range []vec.SGDStep{
		{LR: 0.1, WeightDecay: 0.1},
		{LR: -0.1, WeightDecay: -1}, // as optim.EMA has it
		{LR: 0.1, Momentum: 0.9, First: true},
		{LR: 0.1, Momentum: 0.9, WeightDecay: 0.1},
		{LR: 0.1, Momentum: 0.5, Nesterov: true},
	} {
		p := v[0].(vec.SGDVec)
		if s.Momentum == 0 {
			require.NoError(t, h[0].SGD(h[1], nil, s))
			require.NoError(t, p.SGD(v[1], nil, s))
		} else {
			require.NoError(t, h[0].SGD(h[1], h[2], s))
			require.NoError(t, p.SGD(v[1], v[2], s))
		}
		k.same(t, h, v)
	}
}

// muon compares steps of Muon with those on a Host. Momentum has the same bits. Products may add in
// another order.
func (k *kit) muon(t *testing.T, config optim.Muon, rows, cols int) {
	k.n = rows * cols
	h, v := k.operands(t, 2)
	param := optim.Param{Name: "w", Shape: []int{rows, cols}, Value: h[0], Grad: h[1]}
	on := param
	on.Value, on.Grad = v[0], v[1]
	on.Alloc = func(n int) (optim.Vec, error) { return k.alloc(n, k.float64s), nil }
	want, err := config.New([]optim.Param{param})
	require.NoError(t, err)
	got, err := config.New([]optim.Param{on})
	require.NoError(t, err)
	for range 2 {
		next := k.random(k.n)
		require.NoError(t, h[1].Write(next))
		require.NoError(t, v[1].Write(next))
		require.NoError(t, want.Step(0.1))
		require.NoError(t, got.Step(0.1))
	}
	state := []optim.Host{k.copyOf(t, want.State()[0].Data)}
	k.same(t, state, []optim.Vec{got.State()[0].Data})
	value := k.copyOf(t, v[0])
	if k.float64s {
		require.InDeltaSlice(t, h[0].F64, value.F64, 1e-10)
	} else {
		require.InDeltaSlice(t, h[0].F32, value.F32, 1e-4)
	}
}
