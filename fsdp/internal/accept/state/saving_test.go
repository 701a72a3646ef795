package state_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/checkpoint/crashfs"
	"github.com/gofsdp/gofsdp/optim"
)

// gatedFS holds the files of ranks back until it is opened.
type gatedFS struct {
	checkpoint.FS
	open chan struct{}
}

func newGate(fsys checkpoint.FS) *gatedFS { return &gatedFS{fsys, make(chan struct{})} }

func (h *gatedFS) Create(path string) (checkpoint.Handle, error) {
	if strings.HasPrefix(filepath.Base(path), "rank-") {
		<-h.open
	}
	return h.FS.Create(path)
}

// TestSaveAsyncIsSave saves while the training goes on and compares the files with those of Save at
// the same step, byte for byte. Nothing is written before the training has changed everything.
func TestSaveAsyncIsSave(t *testing.T) {
	for _, offload := range kit.Memories(t) {
		for i, spread := range kit.Spreads {
			t.Run(spread.Name, func(t *testing.T) {
				dir := t.TempDir()
				gates := make([]*gatedFS, 3)
				for i := range gates {
					gates[i] = newGate(checkpoint.OS())
				}
				kit.OnRanks(t, 4, func(ctx context.Context, g comm.Group) {
					cfg := kit.Spreads[i].Config(4)
					cfg.Group, cfg.Precision, cfg.Offload.Dir, cfg.Poison = g, kit.Float64s, offload, true
					m := kit.Wrap(t, kit.Shapes["chain"], cfg)
					opt := kit.AdamAndMomentum(t, m)
					r := &kit.Resharder{Sharded: m, Group: g, Opt: opt, Compute: fsdp.Float64}
					var snapshot int
					for step := range 3 {
						r.Train(t, ctx, step, step+1)
						extra := &fsdp.SaveOptions{RankExtra: map[string]any{"rank": g.Rank()}}
						require.NoError(t, m.Save(ctx, filepath.Join(dir, "sync"), opt, extra))
						before := m.Memory()
						v, err := m.SaveAsync(kit.OnFS(ctx, gates[step]), filepath.Join(dir, "async"), opt, extra)
						require.NoError(t, err)
						done, total := v.Progress()
						require.Zero(t, done)
						require.Positive(t, v.Stalled())
						require.Empty(t, v.Path())
						grown := m.Memory()
						if step == 0 {
							snapshot = grown.Live - before.Live
							require.EqualValues(t, total, snapshot)
						} else {
							require.Equal(t, before, grown, "the memory of the first time serves again")
						}
						if offload != "" {
							require.Equal(t, grown.Live, grown.Mapped)
						}
						r.Train(t, ctx, step+1, step+2)
						require.NoError(t, g.Barrier(ctx))
						if g.Rank() == 0 {
							close(gates[step].open)
						}
						require.NoError(t, v.Wait(ctx))
						<-v.Done()
						done, total = v.Progress()
						require.Equal(t, total, done)
						require.NotEmpty(t, v.Path())
						_, err = m.Load(ctx, v.Path(), opt, nil) // goes back to where it was saved
						require.NoError(t, err)
					}
					require.NoError(t, m.Close())
					require.Zero(t, m.Memory().Live)
				})
				requireSameFiles(t, filepath.Join(dir, "sync"), filepath.Join(dir, "async"))
			})
		}
	}
}

// requireSameFiles compares directories.
func requireSameFiles(t *testing.T, a, b string) {
	files := 0
	require.NoError(t, filepath.WalkDir(a, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "lock" {
			return err
		}
		files++
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		got, err := os.ReadFile(filepath.Join(b, strings.TrimPrefix(path, a)))
		require.NoError(t, err)
		require.Equal(t, want, got, path)
		return nil
	}))
	require.GreaterOrEqual(t, files, 3*3)
}

// TestSaveWaits has a save wait for the one under way: if that fails and nobody has asked, it
// returns the error, once.
func TestSaveWaits(t *testing.T) {
	for name, c := range map[string]struct {
		next  func(ctx context.Context, f *kit.Filler, disk checkpoint.FS) error
		told  bool // of the error
		asked bool // with Wait before
	}{
		"Save": {func(ctx context.Context, f *kit.Filler, disk checkpoint.FS) error {
			return f.SaveStep(kit.OnFS(ctx, disk), kit.Ckpt, 3)
		}, true, false},
		"SaveAsync": {func(ctx context.Context, f *kit.Filler, disk checkpoint.FS) error {
			return f.SaveAs(kit.OnFS(ctx, disk), true, kit.Ckpt, 3)
		}, true, false},
		"Save after Wait": {func(ctx context.Context, f *kit.Filler, disk checkpoint.FS) error {
			return f.SaveStep(kit.OnFS(ctx, disk), kit.Ckpt, 3)
		}, false, true},
		"Load": {func(ctx context.Context, f *kit.Filler, disk checkpoint.FS) error {
			c, err := f.Load(kit.OnFS(ctx, disk), kit.Ckpt, f.Opt, nil)
			if err == nil {
				require.Equal(t, 1, c.Step)
			}
			return err
		}, false, false},
		"Close":            {func(ctx context.Context, f *kit.Filler, disk checkpoint.FS) error { return f.Close() }, true, false},
		"Close after Wait": {func(ctx context.Context, f *kit.Filler, disk checkpoint.FS) error { return f.Close() }, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			disk := crashfs.New()
			gate := newGate(disk)
			kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
				f := kit.NewFiller(t, ctx, g)
				defer f.Close()
				require.NoError(t, f.SaveStep(kit.OnFS(ctx, disk), kit.Ckpt, 1))
				require.NoError(t, g.Barrier(ctx))
				f.Fill(2)
				v, err := f.SaveAsync(kit.OnFS(ctx, gate), kit.Ckpt, f.Opt, &fsdp.SaveOptions{Step: 2})
				require.NoError(t, err)
				ended, cancel := context.WithCancel(ctx)
				cancel()
				require.ErrorIs(t, v.Wait(ended), context.Canceled)
				require.NoError(t, g.Barrier(ctx), "nobody waits in vain once the gate is open")
				if g.Rank() == 0 {
					disk.Inject(crashfs.Fault{Only: func(o crashfs.Op) bool { return o.Name == "write" && strings.Contains(o.Path, "rank-00001") }, Err: syscall.ENOSPC})
					close(gate.open)
				}
				if c.asked {
					require.ErrorContains(t, v.Wait(ctx), "SaveAsync at step 2: ")
				}
				err = c.next(ctx, f, disk)
				if c.told {
					require.ErrorContains(t, err, "SaveAsync at step 2: ")
					require.ErrorContains(t, err, "rank-00001-of-00002.safetensors")
				} else {
					require.NoError(t, err)
				}
				if strings.HasPrefix(name, "Close") {
					return
				}
				if name == "Load" {
					require.ErrorContains(t, f.SaveStep(kit.OnFS(ctx, disk), kit.Ckpt, 3), "Save: SaveAsync at step 2: ")
				}
				require.NoError(t, f.SaveStep(kit.OnFS(ctx, disk), kit.Ckpt, 4))
			})
		})
	}
}

// TestCloseWaitsForSaving closes the model while a checkpoint is being written: it is complete
// afterwards.
func TestCloseWaitsForSaving(t *testing.T) {
	disk := crashfs.New()
	gate := newGate(disk)
	kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
		f := kit.NewFiller(t, ctx, g)
		f.Fill(7)
		brief, cancel := context.WithCancel(ctx)
		_, err := f.SaveAsync(kit.OnFS(brief, gate), kit.Ckpt, f.Opt, &fsdp.SaveOptions{Step: 7})
		require.NoError(t, err)
		cancel() // it was that of the copy
		var opening sync.WaitGroup
		if g.Rank() == 2 {
			opening.Go(func() { close(gate.open) })
		}
		require.NoError(t, f.Close())
		opening.Wait()
		require.NoError(t, g.Barrier(ctx), "the group is open")
	})
	require.Equal(t, 7, requireLatest(t, disk, kit.Ckpt))
}

// TestLoadWaitsForSaving loads what is still being written.
func TestLoadWaitsForSaving(t *testing.T) {
	disk := crashfs.New()
	gate := newGate(disk)
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		f := kit.NewFiller(t, ctx, g)
		defer f.Close()
		require.NoError(t, f.SaveStep(kit.OnFS(ctx, disk), kit.Ckpt, 1))
		f.Fill(2)
		_, err := f.SaveAsync(kit.OnFS(ctx, gate), kit.Ckpt, f.Opt, &fsdp.SaveOptions{Step: 2})
		require.NoError(t, err)
		f.Fill(3)
		var opening sync.WaitGroup
		if g.Rank() == 1 {
			opening.Go(func() { close(gate.open) })
		}
		c, err := f.Load(kit.OnFS(ctx, disk), kit.Ckpt, f.Opt, nil)
		require.NoError(t, err)
		require.Equal(t, 2, c.Step)
		f.Require(t, 2)
		opening.Wait()
	})
}

// TestRankDiesWhileSaving ends one rank while all of them write, without a word to its model: the
// others are told by Wait and by Save, and what was there before is loaded.
func TestRankDiesWhileSaving(t *testing.T) {
	gone := errors.New("time for lunch")
	disk := crashfs.New()
	gates := []*gatedFS{newGate(disk), newGate(disk)}
	var waiting, told sync.WaitGroup
	waiting.Add(3)
	told.Add(2)
	err := comm.Run(t.Context(), 3, func(ctx context.Context, g comm.Group) error {
		f := kit.NewFiller(t, ctx, g)
		require.NoError(t, f.SaveStep(kit.OnFS(ctx, disk), kit.Ckpt, 1))
		f.Fill(2)
		v, err := f.SaveAsync(kit.OnFS(ctx, gates[g.Rank()/2]), kit.Ckpt, f.Opt, &fsdp.SaveOptions{Step: 2})
		require.NoError(t, err)
		waiting.Done()
		if g.Rank() == 2 {
			waiting.Wait()
			g.Abort(gone)
			require.NoError(t, g.Close())
			close(gates[1].open) // after the group has heard of it
			return gone
		}
		<-ctx.Done()
		close(map[int]chan struct{}{0: gates[0].open, 1: make(chan struct{})}[g.Rank()])
		err = v.Wait(context.Background())
		told.Done()
		told.Wait() // before another rank leaves, too
		require.ErrorContains(t, err, "rank 2")
		require.ErrorIs(t, f.Save(context.Background(), kit.Ckpt, nil, nil), gone)
		return f.Close()
	})
	require.ErrorIs(t, err, gone)
	require.Equal(t, 1, requireLatest(t, disk.Restart(), kit.Ckpt))
}

// TestSnapshotFits makes a snapshot of another size, and looks for it in the plan.
func TestSnapshotFits(t *testing.T) {
	disk := crashfs.New()
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: g, WrapPolicy: kit.Blocks})
		opt, err := optim.AdamW{}.New(m.Params())
		require.NoError(t, err)
		batch := kit.TinyBatch(0, g.Rank(), 2, 3)
		kit.ForwardBackward(t, ctx, m, batch)
		v, err := m.SaveAsync(kit.OnFS(ctx, disk), kit.Ckpt, opt, nil)
		require.NoError(t, err)
		require.NoError(t, v.Wait(ctx))
		_, err = m.Freeze(ctx, func(name string) bool { return strings.HasPrefix(name, "h.") }, opt)
		require.NoError(t, err)
		before := m.Memory().Live
		v, err = m.SaveAsync(kit.OnFS(ctx, disk), kit.Ckpt, nil, nil) // of another size
		require.NoError(t, err)
		_, total := v.Progress()
		require.Less(t, m.Memory().Live, before)
		require.NoError(t, v.Wait(ctx))
		plan, err := m.Plan(batch...)
		require.NoError(t, err)
		require.EqualValues(t, total, plan.SnapshotBytes)
		m.ResetPeak()
		kit.ForwardBackward(t, ctx, m, batch)
		require.Equal(t, plan.Peak(), m.Memory().Peak)
		require.NoError(t, m.Close())
	})
}

// TestSaveOverTransports saves while the training goes on, over the groups that processes have,
// until one rank leaves in the middle of it.
func TestSaveOverTransports(t *testing.T) {
	for name, change := range kit.Transports {
		t.Run(name, func(t *testing.T) {
			disk := crashfs.New()
			gate := newGate(disk)
			var begun, told sync.WaitGroup
			begun.Add(3)
			told.Add(3)
			kit.OnGroups(t, kit.Connect(t, 3, change), func(ctx context.Context, g comm.Group) {
				m := kit.NewResharder(t, g, g.Size(), fsdp.Float64, 5, nil)
				defer m.Close()
				m.Train(t, ctx, 0, 2)
				want := kit.StateBits(t, ctx, m.Sharded)
				v, err := m.SaveAsync(kit.OnFS(ctx, disk), kit.Ckpt, m.Opt, nil)
				require.NoError(t, err)
				m.Train(t, ctx, 2, 5)
				_, err = m.Load(kit.OnFS(ctx, disk), kit.Ckpt, m.Opt, nil)
				require.NoError(t, err)
				require.NoError(t, v.Wait(ctx))
				kit.RequireSameBits(t, want, kit.StateBits(t, ctx, m.Sharded))
				require.NoError(t, m.Save(kit.OnFS(ctx, disk), kit.Ckpt, m.Opt, nil))

				v, err = m.SaveAsync(kit.OnFS(ctx, gate), kit.Ckpt, m.Opt, nil)
				require.NoError(t, err)
				begun.Done()
				begun.Wait()
				if g.Rank() == 2 {
					require.NoError(t, g.Close())
					close(gate.open)
				}
				err = v.Wait(ctx)
				told.Done()
				told.Wait() // before another rank leaves, too
				require.ErrorContains(t, err, "rank 2")
				require.ErrorContains(t, m.Save(kit.OnFS(ctx, disk), kit.Ckpt, m.Opt, nil), "rank 2")
			})
		})
	}
}
