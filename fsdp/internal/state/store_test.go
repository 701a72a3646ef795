package state

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/optim"
)

// A stocked store is one whose every element is known.
type stocked struct {
	*Store
	t   *testing.T
	mem *memory
	opt optim.Optimizer
}

func newStocked(t *testing.T, g comm.Group, l *layout.Layout, out bool) *stocked {
	mem := newMemory(l)
	if out {
		mem.away()
	}
	s := &Store{Layout: l, Memory: mem, Team: plainTeam{t, g}, Compute: comm.Float32, Files: new(Files)}
	return &stocked{s, t, mem, adam(t, s)}
}

// element is the number that an element of a tensor has, or 0 in a store that has been cleared.
func element(p *Piece, i int) float32 {
	return float32(1 + 1000*p.Index + 10000*len(p.Entry) + p.Offset + i)
}

// each calls f with every piece and its elements, which f may change.
func (s *stocked) each(f func(p *Piece, x []float32)) {
	own, err := s.pieces(s.opt)
	require.NoError(s.t, err)
	for i := range own {
		h := room(own[i].Vec)
		require.NoError(s.t, own[i].Vec.Read(h))
		f(&own[i], h.F32)
		require.NoError(s.t, own[i].Vec.Write(h))
	}
}

// fill sets every element, and the counts; clear sets all to zero.
func (s *stocked) fill() {
	s.each(func(p *Piece, x []float32) {
		for i := range x {
			x[i] = element(p, i)
		}
	})
	entries := s.opt.State()
	for i := range entries {
		entries[i].Steps = 3
	}
	require.NoError(s.t, s.opt.Adopt(5, entries))
}

func (s *stocked) clear() {
	s.each(func(_ *Piece, x []float32) { clear(x) })
	entries := s.opt.State()
	for i := range entries {
		entries[i].Steps = 0
	}
	require.NoError(s.t, s.opt.Adopt(0, entries))
}

// require checks that all is as fill has left it, and that no scratch is taken.
func (s *stocked) require(what string) {
	s.each(func(p *Piece, x []float32) {
		for i := range x {
			require.Equal(s.t, element(p, i), x[i], "%s: %s", what, p.Name())
		}
		if p.Entry != "" {
			require.Equal(s.t, 3, p.Steps, what)
		}
	})
	require.Equal(s.t, 5, s.opt.Steps(), what)
	require.Zero(s.t, s.mem.taken, what)
}

// TestMovers takes the state out and in by every way, with shards and state in ordinary memory and
// out of reach.
func TestMovers(t *testing.T) {
	for _, out := range []bool{false, true} {
		dir := t.TempDir()
		require.NoError(t, comm.Run(t.Context(), 3, func(ctx context.Context, g comm.Group) error {
			shapes := [][]int{{31, 3}, {7}, {5, 11}, {}}
			s := newStocked(t, g, plainLayout(t, 3, g.Rank(), shapes...), out)
			none, with := NewOptions(ctx, Options{Root: Everywhere}), NewOptions(ctx, Options{Optimizer: s.opt})

			s.fill()
			var saver Saver
			require.NoError(t, saver.Save(ctx, s.Store, dir, s.opt, none, Meta{Forwards: 7}))
			s.clear()
			l, err := s.PlanLoad(ctx, dir, s.opt, none)
			require.NoError(t, err)
			require.True(t, l.Optimizer())
			require.NoError(t, l.Run(ctx))
			require.NoError(t, l.Close())
			require.Equal(t, 7, l.About.Forwards)
			s.require("Load")

			path := filepath.Join(dir, "model.safetensors")
			require.NoError(t, s.Export(ctx, path, with))
			s.clear()
			f, err := s.PlanImport(ctx, path, with)
			require.NoError(t, err)
			require.NoError(t, f.Run(ctx))
			require.NoError(t, f.Close())
			s.require("Import")

			whole := make(map[string][]byte)
			here, err := s.Values(ctx, none, func(x *Tensor) []byte {
				whole[x.Name()] = make([]byte, 4*x.Len())
				return whole[x.Name()]
			})
			require.NoError(t, err)
			require.True(t, here)
			full, err := s.FullOptim(ctx, s.opt, none)
			require.NoError(t, err)
			s.clear()
			if g.Rank() != 1 {
				whole, full = nil, nil
			}
			set, err := s.PlanSet(ctx, 1, func([]Tensor) error { return nil }, func(name string) []byte { return whole[name] })
			require.NoError(t, err)
			require.NoError(t, set.Run(ctx))
			set.Close()
			set, err = s.PlanSetOptim(ctx, 1, s.opt, full, none)
			require.NoError(t, err)
			require.NoError(t, set.Run(ctx))
			set.Close()
			s.require("LoadStateDict and LoadOptimStateDict")

			to := newStocked(t, g, cutLayout(t, layout.Whole, 3, g.Rank(), shapes...), out)
			m, err := s.PlanMove(ctx, s.opt)
			require.NoError(t, err)
			entries, err := m.Run(ctx, to.Layout, to.Memory)
			require.NoError(t, err)
			m.Close()
			require.NoError(t, to.opt.Adopt(s.opt.Steps(), entries))
			to.require("Freeze")
			return saver.Close()
		}))
	}
}
