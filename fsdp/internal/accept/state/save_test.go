package state_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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

// requireLatest loads the latest checkpoint on one rank and returns its step, which everything in
// it must be.
func requireLatest(t require.TestingT, fsys checkpoint.FS, dir string) int {
	f := kit.NewFiller(t, context.Background(), comm.Local(1)[0])
	defer f.Close()
	c, err := f.Load(kit.OnFS(context.Background(), fsys), dir, f.Opt, nil)
	require.NoError(t, err)
	f.Require(t, float64(c.Step))
	return c.Step
}

// TestSaveFaults lets one operation of one rank fail: every rank has an error that names rank and
// file, the previous checkpoint is what is loaded, nothing is left of the failed one, and the
// training goes on.
func TestSaveFaults(t *testing.T) {
	on := func(name, part string) func(crashfs.Op) bool {
		return func(o crashfs.Op) bool { return o.Name == name && strings.Contains(o.Path, part) }
	}
	for name, c := range map[string]struct {
		fault crashfs.Fault
		want  []string
	}{
		"no space on rank 2":       {crashfs.Fault{Only: on("write", "rank-00002"), At: 1, Err: syscall.ENOSPC}, []string{"rank 2", "rank-00002-of-00003.safetensors"}},
		"no permission on rank 1":  {crashfs.Fault{Only: on("create", "rank-00001"), Err: fs.ErrPermission}, []string{"rank 1", "rank-00001-of-00003.safetensors"}},
		"rank 0 cannot sync":       {crashfs.Fault{Only: on("sync", "rank-00000"), Err: syscall.EIO}, []string{"rank 0", "rank-00000-of-00003.safetensors"}},
		"all are full":             {crashfs.Fault{Only: on("write", "rank-"), Err: syscall.ENOSPC, Forever: true}, []string{"rank 0", "rank 2"}},
		"no directory":             {crashfs.Fault{Only: on("mkdir", "step-2"), Err: syscall.ENOSPC}, []string{"rank 0", "step-2"}},
		"the manifest is not made": {crashfs.Fault{Only: on("create", "manifest.json"), Err: syscall.ENOSPC}, []string{"rank 0", "manifest.json"}},
		"half of the manifest":     {crashfs.Fault{Only: on("write", "manifest.json"), Err: syscall.ENOSPC, Done: true}, []string{"rank 0", "manifest.json"}},
		"no name":                  {crashfs.Fault{Only: on("rename", "step-2"), Err: syscall.EIO}, []string{"rank 0", "step-2"}},
	} {
		for _, asynchronous := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/asynchronous %t", name, asynchronous), func(t *testing.T) {
				disk := crashfs.New()
				var writing sync.WaitGroup
				writing.Add(3)
				kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
					f := kit.NewFiller(t, ctx, g)
					defer f.Close()
					require.NoError(t, f.SaveStep(kit.OnFS(ctx, disk), kit.Ckpt, 1))
					require.NoError(t, g.Barrier(ctx))
					if g.Rank() == 0 {
						disk.Inject(c.fault)
					}
					require.NoError(t, g.Barrier(ctx))
					err := f.SaveAs(kit.OnFS(ctx, &kit.HookedFS{FS: disk, BeforeCreate: func(path string) {
						if strings.HasPrefix(filepath.Base(path), "rank-") { // the first that fails stops who is not there yet
							writing.Done()
							writing.Wait()
						}
					}}), asynchronous, kit.Ckpt, 2)
					for _, part := range c.want {
						require.ErrorContains(t, err, part)
					}
					if strings.Contains(c.want[0], fmt.Sprint(g.Rank())) {
						require.ErrorIs(t, err, c.fault.Err)
					}
					require.NoError(t, g.Barrier(ctx))
					if g.Rank() == 0 {
						disk.Inject(crashfs.Fault{})
						require.Equal(t, 1, requireLatest(t, disk, kit.Ckpt))
						require.Len(t, entries(t, disk, kit.Ckpt), 1, "the draft is gone")
					}
					f.Require(t, 2)
					kit.ForwardBackward(t, ctx, f.Sharded, kit.ShapeBatch(g.Rank()))
					require.NoError(t, f.Opt.Step(0.01))
					require.NoError(t, f.SaveAs(kit.OnFS(ctx, disk), asynchronous, kit.Ckpt, 3))
				})
				require.Equal(t, 3, requireLatest(t, disk, kit.Ckpt))
			})
		}
	}
}

// entries returns the checkpoints and drafts in dir.
func entries(t require.TestingT, fsys checkpoint.FS, dir string) []checkpoint.Entry {
	list, err := checkpoint.List(context.Background(), fsys, dir)
	require.NoError(t, err)
	return list
}

// TestCrashDuringSave ends the process after every operation of a save in turn, and the power with
// it: what is loaded then is the old checkpoint or the new one, whole, and the next save succeeds.
func TestCrashDuringSave(t *testing.T) {
	steps := map[int]int{} // times that each was loaded
	for ops, done := 0, false; !done; ops++ {
		disk := crashfs.New()
		kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
			f := kit.NewFiller(t, ctx, g)
			require.NoError(t, f.SaveStep(kit.OnFS(ctx, disk), kit.Ckpt, 1))
			require.NoError(t, g.Barrier(ctx))
			if g.Rank() == 0 {
				disk.Kill(ops)
			}
			require.NoError(t, g.Barrier(ctx))
			err := f.SaveStep(kit.OnFS(ctx, disk), kit.Ckpt, 2, fsdp.SaveOptions{KeepLast: 1})
			if g.Rank() == 0 {
				done = err == nil
			}
			_ = f.Close() // the lock went with the process
		})
		for seed := range uint64(6) {
			after := disk.Crash(seed)
			step := requireLatest(t, after, kit.Ckpt)
			require.Contains(t, []int{1, 2}, step, "after %d operations, seed %d", ops, seed)
			require.True(t, !done || step == 2)
			steps[step]++
			f := kit.NewFiller(t, t.Context(), comm.Local(1)[0])
			_, err := f.Load(kit.OnFS(t.Context(), after), kit.Ckpt, f.Opt, nil) // KeepLast is about the same training
			require.NoError(t, err)
			require.NoError(t, f.SaveStep(kit.OnFS(t.Context(), after), kit.Ckpt, 3, fsdp.SaveOptions{KeepLast: 1}))
			require.Len(t, entries(t, after, kit.Ckpt), 1)
			require.Equal(t, 3, requireLatest(t, after, kit.Ckpt))
			require.NoError(t, f.Close())
		}
	}
	require.Greater(t, steps[1], 20)
	require.Greater(t, steps[2], 5)
}

// TestUnsharedDirectory gives one rank a disk of its own.
func TestUnsharedDirectory(t *testing.T) {
	disks := []*crashfs.FS{crashfs.New(), crashfs.New()}
	host, _ := os.Hostname()
	for _, err := range kit.ErrorsOf(t, 3, func(ctx context.Context, g comm.Group) error {
		return kit.NewFiller(t, ctx, g).Save(kit.OnFS(ctx, disks[g.Rank()/2]), kit.Ckpt, nil, nil)
	}) {
		require.ErrorContains(t, err, "rank 2")
		require.ErrorContains(t, err, fmt.Sprintf("checkpoints need a file system that all ranks share: host %q cannot read", host))
	}
	require.Empty(t, entries(t, disks[0], kit.Ckpt))
}

// TestTwoJobs saves from two jobs in one directory: the second is told who the first is, until that
// ends.
func TestTwoJobs(t *testing.T) {
	dir := t.TempDir()
	host, _ := os.Hostname()
	first := kit.NewFiller(t, t.Context(), comm.Local(1)[0])
	require.NoError(t, first.SaveStep(t.Context(), dir, 1))
	for _, asynchronous := range []bool{false, true} {
		for _, err := range kit.ErrorsOf(t, 2, func(ctx context.Context, g comm.Group) error {
			f := kit.NewFiller(t, ctx, g)
			defer f.Close()
			return f.SaveAs(ctx, asynchronous, dir, 2)
		}) {
			require.ErrorContains(t, err, fmt.Sprintf("rank 0: checkpoint: %s", filepath.Join(dir, "lock"))[8:])
			require.ErrorContains(t, err, fmt.Sprintf("host %s, pid %d", host, os.Getpid()))
		}
	}
	require.NoError(t, first.SaveStep(t.Context(), dir, 3))
	require.NoError(t, first.Close())
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		f := kit.NewFiller(t, ctx, g)
		require.NoError(t, f.SaveStep(ctx, dir, 4))
		require.NoError(t, f.Close())
	})
	require.Equal(t, 4, requireLatest(t, checkpoint.OS(), dir))
}

// requireMixed checks that nothing goes on with parameters of which only a part was loaded.
func requireMixed(t *testing.T, ctx context.Context, f *kit.Filler, g comm.Group) {
	const why = "has failed in the middle and left parameters partly loaded: call Load or Import again"
	_, err := f.Forward(ctx, kit.ShapeBatch(g.Rank())...)
	require.ErrorContains(t, err, why)
	require.ErrorContains(t, f.Backward(ctx), why)
	_, err = f.Eval(ctx, kit.ShapeBatch(g.Rank())...)
	require.ErrorContains(t, err, why)
	require.ErrorContains(t, f.Opt.Step(0.1), why)
	require.ErrorContains(t, f.Save(ctx, t.TempDir(), nil, nil), why)
	_, err = f.SaveAsync(ctx, t.TempDir(), nil, nil)
	require.ErrorContains(t, err, why)
}

// TestSaveArguments gives ranks arguments that are wrong, or do not agree. Nothing is written, and
// the model goes on.
func TestSaveArguments(t *testing.T) {
	dir := t.TempDir()
	foreign, err := optim.SGD{Momentum: 0.9}.New([]optim.Param{{Name: "x", Shape: []int{1}, Value: optim.Host{F64: []float64{1}}, Grad: optim.Host{F64: []float64{1}}}})
	require.NoError(t, err)
	for name, c := range map[string]struct {
		save func(ctx context.Context, f *kit.Filler, rank int) error
		want string
	}{
		"step": {func(ctx context.Context, f *kit.Filler, rank int) error {
			return f.Save(ctx, dir, f.Opt, &fsdp.SaveOptions{Step: 5 + rank})
		}, `ranks disagree about the arguments of Save: rank 0 has "step 5", rank 1 has "step 6"`},
		"negative step": {func(ctx context.Context, f *kit.Filler, rank int) error {
			return f.Save(ctx, dir, f.Opt, &fsdp.SaveOptions{Step: rank - 2})
		}, "option Step is -2: steps count from 0"},
		"keep": {func(ctx context.Context, f *kit.Filler, rank int) error {
			return f.Save(ctx, dir, f.Opt, &fsdp.SaveOptions{KeepLast: -1})
		}, "option KeepLast is -1: want a number of checkpoints"},
		"trained only": {func(ctx context.Context, f *kit.Filler, rank int) error {
			return f.Save(ctx, dir, f.Opt, &fsdp.SaveOptions{TrainedOnly: rank == 1})
		}, `ranks disagree about the arguments of Save: rank 0 has "TrainedOnly false", rank 1 has "TrainedOnly true"`},
		"directory": {func(ctx context.Context, f *kit.Filler, rank int) error {
			return f.Save(ctx, filepath.Join(dir, fmt.Sprint(rank)), f.Opt, nil)
		}, "ranks disagree about the arguments of Save: rank 0 has \"directory "},
		"no directory": {func(ctx context.Context, f *kit.Filler, rank int) error { return f.Save(ctx, "", f.Opt, nil) }, "the directory is empty: give the directory of the checkpoints"},
		"optimizer on one rank": {func(ctx context.Context, f *kit.Filler, rank int) error {
			if rank == 0 {
				return f.Save(ctx, dir, nil, &fsdp.SaveOptions{Step: 1})
			}
			return f.Save(ctx, dir, f.Opt, nil)
		}, `rank 0 has "no optimizer", rank 1 has "an optimizer"`},
		"of other pieces": {func(ctx context.Context, f *kit.Filler, rank int) error {
			pieces := f.Params()
			p := &pieces[0]
			p.Offset, p.Value, p.Grad = p.Offset+1, p.Value.Slice(1, p.Value.Len()), p.Grad.Slice(1, p.Grad.Len())
			opt, err := optim.AdamW{}.New(pieces)
			require.NoError(t, err)
			return f.Save(ctx, dir, opt, nil)
		}, "which differ from this rank's shard: make the optimizer from Sharded.Params without changes"},
		"another model's": {func(ctx context.Context, f *kit.Filler, rank int) error { return f.Save(ctx, dir, foreign, nil) },
			`the optimizer has momentum_buffer of "x", which is not a parameter of the model`},
		"another model's, without state": {func(ctx context.Context, f *kit.Filler, rank int) error {
			p := optim.Param{Name: "x", Shape: []int{2}, Value: optim.Host{F32: make([]float32, 2)}, Grad: optim.Host{F32: make([]float32, 2)}}
			opt, err := optim.SGD{}.New([]optim.Param{p})
			require.NoError(t, err)
			return f.Save(ctx, dir, opt, nil)
		}, `the optimizer updates "x", which is not a parameter of the model`},
		"of equal shards": {func(ctx context.Context, f *kit.Filler, rank int) error {
			pieces := f.Params()
			for i := range pieces {
				pieces[i].Value = optim.Host{F64: make([]float64, pieces[i].Value.Len())}
				pieces[i].Grad, pieces[i].Alloc = optim.Host{F64: make([]float64, pieces[i].Grad.Len())}, nil
			}
			opt, err := optim.AdamW{}.New(pieces)
			require.NoError(t, err)
			return f.Save(ctx, dir, opt, nil)
		}, "in other memory, such as another Sharded of the model: make the optimizer from this Sharded's Params"},
		"one waits": {func(ctx context.Context, f *kit.Filler, rank int) error {
			if rank == 0 {
				return f.Save(ctx, dir, f.Opt, nil)
			}
			_, err := f.SaveAsync(ctx, dir, f.Opt, nil)
			return err
		}, `rank 0 has "call of Save", rank 1 has "call of SaveAsync"`},
		"extra": {func(ctx context.Context, f *kit.Filler, rank int) error {
			return f.Save(ctx, dir, f.Opt, &fsdp.SaveOptions{Extra: map[string]any{"f": func() {}}})
		}, `Extra("f"): json: unsupported type: func()`},
		"extra of one rank": {func(ctx context.Context, f *kit.Filler, rank int) error {
			return f.Save(ctx, dir, f.Opt, &fsdp.SaveOptions{RankExtra: map[string]any{"c": map[bool]any{true: 1, false: make(chan int)}[rank == 0]}})
		}, `RankExtra("c"): json: unsupported type: chan int`},
		"method": {func(ctx context.Context, f *kit.Filler, rank int) error {
			if rank == 0 {
				return f.Save(ctx, dir, f.Opt, nil)
			}
			_, err := f.Load(ctx, dir, f.Opt, nil)
			return err
		}, "ranks disagree: "},
	} {
		t.Run(name, func(t *testing.T) {
			kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
				f := kit.NewFiller(t, ctx, g)
				require.ErrorContains(t, c.save(ctx, f, g.Rank()), c.want)
				kit.ForwardBackward(t, ctx, f.Sharded, kit.ShapeBatch(g.Rank()))
				require.NoError(t, f.Close())
				require.ErrorContains(t, f.Save(ctx, dir, f.Opt, nil), "the model is closed")
				_, err := f.SaveAsync(ctx, dir, f.Opt, nil)
				require.ErrorContains(t, err, "the model is closed")
				_, err = f.Load(ctx, dir, f.Opt, nil)
				require.ErrorContains(t, err, "the model is closed")
			})
			list, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, list)
		})
	}
}

// TestExtras reads back what was saved beside the model.
func TestExtras(t *testing.T) {
	dir := t.TempDir()
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		f := kit.NewFiller(t, ctx, g)
		opts := &fsdp.SaveOptions{Extra: map[string]any{"rank": g.Rank(), "name": "tiny"}}
		if g.Rank() == 1 {
			opts.RankExtra = map[string]any{"position": 1<<60 + 1}
		}
		require.NoError(t, f.Save(ctx, dir, nil, opts))
	})
	f := kit.NewFiller(t, t.Context(), comm.Local(1)[0])
	c, err := f.Load(t.Context(), dir, nil, nil)
	require.NoError(t, err)
	latest, err := fsdp.LatestCheckpoint(dir)
	require.NoError(t, err)
	require.Equal(t, latest, c.Path)
	require.Equal(t, []int{0, 2}, []int{c.Step, c.World})
	var n int
	var s string
	require.NoError(t, c.Extra("rank", &n))
	require.NoError(t, c.Extra("name", &s))
	require.Equal(t, "0 tiny", fmt.Sprint(n, " ", s))
	require.NoError(t, c.RankExtra("position", 1, &n))
	require.Equal(t, 1<<60+1, n)
	require.ErrorIs(t, c.RankExtra("position", 0, &n), fsdp.ErrNoExtra)
	require.ErrorIs(t, c.Extra("scaler", &n), fsdp.ErrNoExtra)
	require.ErrorContains(t, c.Extra("scaler", &n), latest+`: Extra "scaler": not in the checkpoint, which has ["name" "rank"] there`)
	require.ErrorContains(t, c.Extra("name", &n), `json: cannot unmarshal string into Go value of type int: it was saved as "tiny"`)
	require.ErrorContains(t, c.RankExtra("position", 2, &n), `RankExtra "position" of rank 2: the checkpoint was written by 2 ranks`)
}

// TestKeepLast removes old checkpoints, and only those.
func TestKeepLast(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "notes.txt"), []byte("mine"), 0o600))
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		f := kit.NewFiller(t, ctx, g)
		for step := range 6 {
			require.NoError(t, f.SaveStep(ctx, dir, step, fsdp.SaveOptions{KeepLast: 2}))
		}
		require.NoError(t, f.SaveStep(ctx, dir, 6))
		require.NoError(t, f.Close())
	})
	var steps []int
	for _, e := range entries(t, checkpoint.OS(), dir) {
		require.NoError(t, e.Err)
		steps = append(steps, e.Step)
	}
	require.Equal(t, []int{4, 5, 6}, steps)
	require.FileExists(t, filepath.Join(dir, "notes.txt"))
}

// TestReplicasSaveOnce counts the bytes on disk: of what several ranks hold, one writes, and they
// take turns.
func TestReplicasSaveOnce(t *testing.T) {
	for _, c := range []struct {
		cfg   fsdp.Config
		files int // a rank that writes nothing has none
	}{
		{fsdp.Config{Strategy: fsdp.NoShard, WrapPolicy: fsdp.WrapEach()}, 4},
		{fsdp.Config{Strategy: fsdp.HybridShard, ShardRanks: 2, WrapPolicy: fsdp.WrapEach()}, 4},
		{fsdp.Config{Strategy: fsdp.NoShard}, 1},
	} {
		dir := t.TempDir()
		kit.OnRanks(t, 4, func(ctx context.Context, g comm.Group) {
			cfg := c.cfg
			cfg.Group, cfg.Precision = g, kit.Float64s
			m := kit.Wrap(t, kit.Shapes["chain"], cfg)
			require.NoError(t, m.Save(ctx, dir, nil, nil))
		})
		latest, err := fsdp.LatestCheckpoint(dir)
		require.NoError(t, err)
		r, err := checkpoint.OpenReader(context.Background(), checkpoint.OS(), latest)
		require.NoError(t, err)
		elements := 0
		for _, tensor := range r.Manifest().Tensors {
			for p := range tensor.All() {
				elements += p.Len
			}
		}
		require.Equal(t, 4*kit.ShapeDim*kit.ShapeDim, elements)
		require.Len(t, r.Manifest().Files, c.files)
		require.NoError(t, r.Close())
	}
}

// TestSaveInJoin saves in a loop in which some ranks have run out of batches, and between a Forward
// and its Backward.
func TestSaveInJoin(t *testing.T) {
	dir := t.TempDir()
	var want, got kit.Bits
	run := func(ctx context.Context, g comm.Group, from string, to int, save func(m *fsdp.Sharded, opt optim.Optimizer, step int)) kit.Bits {
		m := kit.Wrap(t, kit.DropoutGPT(), fsdp.Config{Group: g, WrapPolicy: kit.Blocks, GradAverage: fsdp.ByActive})
		defer m.Close()
		opt, err := optim.AdamW{}.New(m.Params())
		require.NoError(t, err)
		first := 0
		if from != "" {
			c, err := m.Load(ctx, from, opt, nil)
			require.NoError(t, err)
			first = c.Step
		}
		step := first
		for batch, err := range m.Join(ctx, kit.Batches(max(0, 2*g.Rank()+1-first), func(i int) []fsdp.Tensor { return kit.TinyBatch(first+i, g.Rank(), 2, 3) })) {
			require.NoError(t, err)
			_, err = m.Forward(ctx, batch...)
			require.NoError(t, err)
			require.NoError(t, m.Backward(ctx))
			require.NoError(t, opt.Step(0.01))
			m.ZeroGrad()
			step++
			save(m, opt, step)
		}
		require.Equal(t, to, step)
		return kit.StateBits(t, ctx, m)
	}
	kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
		b := run(ctx, g, "", 5, func(m *fsdp.Sharded, opt optim.Optimizer, step int) {
			if step == 4 {
				require.NoError(t, m.Save(ctx, dir, opt, nil))
			}
		})
		if g.Rank() == 0 {
			want = b
		}
	})
	kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
		b := run(ctx, g, dir, 5, func(*fsdp.Sharded, optim.Optimizer, int) {})
		if g.Rank() == 0 {
			got = b
		}
	})
	kit.RequireSameBits(t, want, got)
}

// TestSaveLeavesThePass saves between a Forward and its Backward, which go on as if nothing had
// been.
func TestSaveLeavesThePass(t *testing.T) {
	disk := crashfs.New()
	kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
		var want kit.Bits
		for _, save := range []bool{false, true} {
			m := kit.Wrap(t, kit.DropoutGPT(), fsdp.Config{Group: g, WrapPolicy: kit.Blocks, Prefetch: 2, Poison: true})
			_, err := m.Forward(ctx, kit.TinyBatch(0, g.Rank(), 2, 5)...)
			require.NoError(t, err)
			if save {
				require.NoError(t, m.Save(kit.OnFS(ctx, disk), kit.Ckpt, nil, nil))
				v, err := m.SaveAsync(kit.OnFS(ctx, disk), kit.Ckpt, nil, nil)
				require.NoError(t, err)
				require.NoError(t, v.Wait(ctx))
			}
			require.NoError(t, m.Backward(ctx))
			got := kit.GradBits(t, ctx, m)
			if want == nil {
				want = got
			}
			kit.RequireSameBits(t, want, got)
			require.NoError(t, m.Close())
		}
	})
}

// TestSaveContext ends the context of one rank in the middle of a save: the others are told.
func TestSaveContext(t *testing.T) {
	gone := errors.New("time for lunch")
	shared := crashfs.New()
	for _, err := range kit.ErrorsOf(t, 3, func(ctx context.Context, g comm.Group) error {
		f := kit.NewFiller(t, ctx, g)
		defer f.Close()
		disk := checkpoint.FS(shared)
		if g.Rank() == 0 {
			var cancel context.CancelCauseFunc
			ctx, cancel = context.WithCancelCause(ctx)
			disk = &kit.HookedFS{FS: disk, BeforeCreate: func(string) { cancel(gone) }}
		}
		return f.Save(kit.OnFS(ctx, disk), kit.Ckpt, f.Opt, nil)
	}) {
		require.ErrorContains(t, err, gone.Error())
	}
}
