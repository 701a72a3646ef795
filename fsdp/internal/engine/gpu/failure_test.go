//go:build linux && cgo

package gpu

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/nccl"
	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/optim/vec"
)

// use does what vectors can do, over several halves of a staging, and returns the first error.
func use(d *Device, n int) (err error) {
	var blocks []*block
	defer func() { d.drop(blocks...) }()
	var v [4]optim.Vec
	for i := range v {
		b, err := d.alloc(4*n, arena.State)
		if err != nil {
			return err
		}
		blocks = append(blocks, b)
		v[i] = d.vector(b, 4)
	}
	host := optim.Host{F32: make([]float32, n)}
	p := v[0].(vector)
	for _, do := range []func() error{
		func() error { return v[1].Write(host) },
		v[2].Zero,
		func() error {
			return p.Adam(v[1], v[2], v[3], vec.AdamStep{BiasCorrection1: 1, BiasCorrection2Sqrt: 1})
		},
		func() error { return p.SGD(v[1], nil, vec.SGDStep{}) },
		func() error { return p.Read(host) },
		func() error { _, err := d.MaxAbs(v[:]); return err },
		func() error { _, err := d.Squares(v[:], []float64{1, 1, 1, 1}); return err },
		func() error { return d.Scale(v[:], 2) },
		func() error { return p.Read(host) },
	} {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

// TestFailures lets each call of the driver fail once: whoever comes next is told, the device has
// ended, unless there was no memory, and nothing is left.
func TestFailures(t *testing.T) {
	cuda := double(t)
	const n = 3000
	for _, call := range []string{
		"cuMemAlloc", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemsetD8Async", "cuEventRecord", "cuEventQuery", "cuStreamQuery",
		"cuLaunchKernel",
	} {
		d := open(t, Options{staging: 8000})
		before := cuda.Calls(call)
		require.NoError(t, use(d, n))
		calls := cuda.Calls(call) - before
		require.NotZero(t, calls, call)
		for nth := 1; nth <= min(calls, 12); nth++ {
			d := open(t, Options{staging: 8000})
			held, before := d.held, cuda.Calls(call)
			cuda.Fail(call, nth, 2)
			err := use(d, n)
			if asked := cuda.Calls(call) - before; asked < nth && strings.HasSuffix(call, "Query") { // fewer than before
				require.NoError(t, err)
				cuda.Fail(call, 0, 0)
				break
			}
			if err == nil { // it was in the wait for the memory to become free
				err = d.err()
			}
			require.ErrorContains(t, err, call, "number %d", nth)
			require.Equal(t, held, d.held)
			if call != "cuMemAlloc" {
				require.ErrorContains(t, d.err(), call)
				_, err := d.MaxAbs(nil)
				require.ErrorContains(t, err, call)
			}
		}
	}
}

// TestCloseTells: a failure that Close is the first to see is its error, and nothing is left.
func TestCloseTells(t *testing.T) {
	cuda := double(t)
	dev, err := nccl.OpenDevice(0)
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	d, err := New(dev, Options{})
	require.NoError(t, err)
	cuda.Fail("cuStreamQuery", 1, 719)
	defer cuda.Fail("cuStreamQuery", 0, 0)
	require.ErrorContains(t, d.Close(), "cuStreamQuery")
}

// TestAverages: an optimizer on the device keeps averages, swaps them, and gives its state to one
// on the host and back, with the same bits.
func TestAverages(t *testing.T) {
	cuda := double(t)
	waits := func() (n int) {
		for _, call := range []string{"cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync", "cuStreamQuery", "cuEventQuery", "cuStreamSynchronize"} {
			n += cuda.Calls(call)
		}
		return n
	}
	d := open(t, Options{staging: 8000})
	const n = 2500
	m := newModel(t, room(t, d), n, false, rand.New(rand.NewPCG(5, 5)))
	all := []optim.Rule{{Match: func(optim.Param) bool { return true }, Bits: new(8)}}
	for _, rules := range [][]optim.Rule{nil, all} {
		make := func(value, grad optim.Vec) optim.Optimizer {
			p := optim.Param{Name: "p", Shape: []int{n}, Value: value, Grad: grad}
			if _, near := value.(optim.Host); !near {
				p.Alloc = func(n int) (optim.Vec, error) { return room(t, d)(n, false), nil }
			}
			opt, err := optim.AdamW{WeightDecay: 0.1, Rules: rules}.New([]optim.Param{p})
			require.NoError(t, err)
			require.NoError(t, optim.EMA(opt, 0.9))
			return opt
		}
		near, far := make(m.host[0], m.host[1]), make(m.vecs[0], m.vecs[1])
		for range 3 {
			require.NoError(t, near.Step(0.1))
			require.NoError(t, far.Step(0.1))
		}
		m.same(t)
		for range 2 {
			require.NoError(t, optim.Swap(near))
			before := waits()
			require.NoError(t, optim.Swap(far))
			require.Equal(t, before, waits(), "a kernel swaps, and nothing waits")
			m.same(t)
		}
		require.NoError(t, near.Restore(far.Steps(), far.State()))
		require.NoError(t, near.Step(0.1))
		require.NoError(t, far.Step(0.1))
		m.same(t)
		require.NoError(t, far.Restore(near.Steps(), near.State()))
		require.NoError(t, near.Step(0.2))
		require.NoError(t, far.Step(0.2))
		m.same(t)
	}
}
