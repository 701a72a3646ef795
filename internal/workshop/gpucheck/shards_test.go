//go:build gpu && linux && cgo

package gpucheck

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/fsdp/plan"
)

// transfers measures the kernels of a flat group of n elements: narrowing of parameters before they
// are gathered, draining of gradients that were reduced, and filling of gradients with zeros. It
// launches them as fsdp/internal/engine/gpu does, and checks the last element that each writes.
func (s *rates) transfers(n int) {
	const pattern = 0x3f3f3f3f // 0.75, rounded up in float32 and bfloat16
	x, y := math.Float32frombits(pattern), uint32(pattern)
	var at [3]uintptr // the shard, the sums of the ranks, and what travels in bfloat16
	for i := range at {
		m, err := s.dev.Alloc(4 * n)
		require.NoError(s, err)
		defer func() { require.NoError(s, m.Free()) }()
		at[i] = m.Addr()
		require.NoError(s, s.stream.Set(at[i], byte(y), 4*n))
	}
	one := uint64(math.Float32bits(1))
	for _, k := range []struct {
		what        string
		bytes       int
		kernel      string
		perBlock    int // elements
		args        []uint64
		last        uintptr // address of the last word that it writes
		first, then uint32  // that word after the first run and the second
	}{
		{"fill", 4 * n, "", 0, nil, at[0] + uintptr(4*n-4), 0, 0},
		{"drain", 12 * n, "transfer_drain_f32", 256, []uint64{uint64(at[0]), uint64(at[1]), uint64(n), one, 0}, at[0] + uintptr(4*n-4), y, math.Float32bits(x + x)},
		{"narrow", 6 * n, "transfer_narrow_bf16", 4096, []uint64{uint64(at[2]), uint64(at[1]), 0, uint64(n), one}, at[2] + uintptr(2*n-4), y, y},
	} {
		run := func() error { return s.stream.Set(at[0], 0, 4*n) }
		if k.kernel != "" {
			f, err := s.engine.Function(k.kernel)
			require.NoError(s, err)
			run = func() error {
				return f.LaunchArgs(s.stream, [3]int{(n + k.perBlock - 1) / k.perBlock, 1, 1}, [3]int{256, 1, 1}, 0, k.args)
			}
		}
		for i, want := range []uint32{k.first, k.then} {
			require.NoError(s, run())
			require.Equal(s, want, word(s.T, s.dev, s.stream, k.last), "%s, run %d", k.what, i)
		}
		took := s.time(k.what, run)
		if k.what == "drain" {
			g := plan.Group{Shards: 1, Replicas: 1, Params: 2 * n, Grads: 4 * n, Stored: 4 * n}
			w := g.Work(plan.Drain)
			w.Op = k.what
			s.kernels.AddWork(w, took)
		}
		s.print(fmt.Sprintf("shards: %s (%d)", k.what, n), took, k.bytes, 0)
	}
}

// update measures the rest of a step after the backward of a model with some layers: clipping,
// which reads the gradients twice and scales them, AdamW, and ZeroGrad. Clipping waits for the GPU,
// so the host takes the time.
func (s *rates) update(layers int) {
	z := scale().training
	z.Batch, z.Layers = 1, layers
	g := newTrainer(s.T, z, nil)
	defer g.end()
	tokens, targets := z.batch(0)
	pass, err := g.model.Plan(tokens, targets)
	require.NoError(s, err)
	_, err = g.model.Forward(s.Context(), tokens, targets)
	require.NoError(s, err)
	require.NoError(s, g.model.Backward(s.Context()))
	n := g.parameters()
	var all time.Duration
	for _, k := range []struct {
		what  string
		bytes int
		run   func() error
	}{
		{"clip", 16 * n, func() error {
			norm, err := g.model.ClipGradNorm(s.Context(), 1e-3) // so little that it always scales
			require.Positive(s, norm)
			return err
		}},
		{"AdamW", 28 * n, func() error { return g.opt.Step(1e-4) }},
		{"ZeroGrad", 4 * n, func() error { g.model.ZeroGrad(); return nil }},
	} {
		took := g.time(k.what, k.run)
		all += took
		s.print(fmt.Sprintf("update: %s (%d)", k.what, n), took, k.bytes, 0)
	}
	s.kernels.AddWork(plan.Work{Op: "update", Wide: true, Bytes: pass.Pass.Owned * pass.Pass.PerOwned}, all)
}

// time returns how long a run of f takes, as the host sees it: the median of three measurements of
// some runs.
func (g *trainer) time(what string, f func() error) time.Duration {
	run := func(times int) time.Duration {
		g.wait()
		begin := time.Now()
		for range times {
			require.NoError(g.t, f(), what)
		}
		g.wait()
		return max(time.Since(begin), time.Microsecond) / time.Duration(times)
	}
	run(1) // kernels are loaded
	times := int(min(max(5*scale().patience/run(1), 1), 50))
	list := []time.Duration{run(times), run(times), run(times)}
	slices.Sort(list)
	return list[1]
}
