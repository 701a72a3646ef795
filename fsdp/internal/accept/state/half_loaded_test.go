package state_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/optim"
)

// TestFormerOptimizer hands an optimizer on that was made before Freeze, whether or not Freeze was
// given it. Its memory is used for other things.
func TestFormerOptimizer(t *testing.T) {
	dir := t.TempDir()
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		f := kit.NewFiller(t, ctx, g)
		defer f.Close()
		require.NoError(t, f.SaveStep(ctx, dir, 1))
		full, err := f.OptimStateDict(ctx, f.Opt, &fsdp.StateDictOptions{AllRanks: true})
		require.NoError(t, err)
		file := filepath.Join(dir, "model.safetensors")
		require.NoError(t, f.Export(ctx, file, &fsdp.ExportOptions{Optimizer: f.Opt}))

		_, err = f.Freeze(ctx, nil, nil)
		require.NoError(t, err)
		composed, err := optim.Compose(f.Opt)
		require.NoError(t, err)
		for _, former := range []optim.Optimizer{f.Opt, composed} {
			_, asyncErr := f.SaveAsync(ctx, dir, former, nil)
			_, stateErr := f.OptimStateDict(ctx, former, &fsdp.StateDictOptions{AllRanks: true})
			_, loadErr := f.Load(ctx, dir, former, nil)
			_, freezeErr := f.Freeze(ctx, nil, former)
			for _, err := range []error{
				f.Save(ctx, dir, former, nil), asyncErr, stateErr, loadErr, freezeErr, f.LoadOptimStateDict(ctx, 0, former, full, nil),
				f.Export(ctx, file+"2", &fsdp.ExportOptions{Optimizer: former}), f.Import(ctx, file, &fsdp.ImportOptions{Optimizer: former}), former.Step(0.1),
			} {
				require.ErrorContains(t, err, "made before Freeze, which has changed the trained parameters: make a new one of Sharded.Params")
			}
		}
		f.RequireTakenUp(t, ctx, dir)
	})
}

// TestHalfLoadedOptimizer breaks off a Load and then loads the parameters alone: the model goes on,
// but not with the optimizer of which only a part was loaded, until that is loaded again or there
// is a new one.
func TestHalfLoadedOptimizer(t *testing.T) {
	const why = "has failed in the middle: the optimizer is partly loaded: load it again, or make a new one of Sharded.Params"
	for name, breakOff := range map[string]func(ctx context.Context, f *kit.Filler, dir, file string, bad checkpoint.FS) error{
		"Load": func(ctx context.Context, f *kit.Filler, dir, file string, bad checkpoint.FS) error {
			_, err := f.Load(kit.OnFS(ctx, bad), dir, f.Opt, nil)
			return err
		},
		"Import": func(ctx context.Context, f *kit.Filler, dir, file string, bad checkpoint.FS) error {
			return f.Import(kit.OnFS(ctx, bad), file, &fsdp.ImportOptions{Optimizer: f.Opt})
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "model.safetensors")
			kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
				f := kit.NewFiller(t, ctx, g)
				defer f.Close()
				require.NoError(t, f.SaveStep(ctx, dir, 1))
				require.NoError(t, f.Export(ctx, file, &fsdp.ExportOptions{Optimizer: f.Opt}))
				for _, repair := range []func(){
					func() {
						_, err := f.Load(ctx, dir, f.Opt, nil)
						require.NoError(t, err)
					},
					func() { require.NoError(t, f.Import(ctx, file, &fsdp.ImportOptions{Optimizer: f.Opt})) },
					func() {
						var err error
						f.Opt, err = optim.AdamW{}.New(f.Params())
						require.NoError(t, err)
					},
				} {
					bad := &kit.Unreadable{FS: checkpoint.OS(), Rank: g.Rank()}
					require.ErrorContains(t, breakOff(ctx, f, dir, file, bad), kit.ErrDiskFull.Error())
					requireMixed(t, ctx, f, g)
					_, err := f.Load(ctx, dir, nil, nil)
					require.NoError(t, err)
					require.ErrorContains(t, f.Opt.Step(0.1), why)
					require.ErrorContains(t, f.Save(ctx, dir, f.Opt, nil), why)
					require.ErrorContains(t, f.Export(ctx, file+"2", &fsdp.ExportOptions{Optimizer: f.Opt}), why)
					_, err = f.OptimStateDict(ctx, f.Opt, &fsdp.StateDictOptions{AllRanks: true})
					require.ErrorContains(t, err, why)
					_, err = f.Freeze(ctx, nil, f.Opt)
					require.ErrorContains(t, err, why)
					require.NoError(t, f.Save(ctx, filepath.Join(dir, "without"), nil, nil))
					repair()
					kit.ForwardBackward(t, ctx, f.Sharded, kit.ShapeBatch(g.Rank()))
					require.NoError(t, f.Opt.Step(0.1))
					f.ZeroGrad()
					_, err = f.OptimStateDict(ctx, f.Opt, &fsdp.StateDictOptions{AllRanks: true})
					require.NoError(t, err)
				}
			})
		})
	}
}

// TestLoadIsSlow has the disk of rank 0 be slow to find a checkpoint, and that of rank 1 to open
// it: the others hear of it, as groups take a rank that says nothing for long for one that hangs.
func TestLoadIsSlow(t *testing.T) {
	dir := t.TempDir()
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		f := kit.NewFiller(t, ctx, g)
		require.NoError(t, f.SaveStep(ctx, dir, 1))
		require.NoError(t, f.Close())
	})
	for slow := range 2 {
		kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
			w := &beating{Group: g, beats: make(chan struct{}, 1000)}
			f := kit.NewFiller(t, ctx, w)
			defer f.Close()
			for len(w.beats) > 0 {
				<-w.beats
			}
			disk := &lateFS{FS: checkpoint.OS(), ended: ctx.Done()}
			if g.Rank() == slow {
				disk.beats = w.beats
			}
			_, err := f.Load(kit.OnFS(ctx, disk), dir, f.Opt, nil)
			require.NoError(t, err)
		})
	}
}

// beating is a group that tells of all-reduces, by which ranks say that they are busy.
type beating struct {
	comm.Group
	beats chan struct{}
}

func (b *beating) AllReduce(buf comm.Buffer, op comm.Op) comm.Work {
	b.beats <- struct{}{}
	return b.Group.AllReduce(buf, op)
}

// lateFS opens a manifest once ranks have heard of each other twice, the first time.
type lateFS struct {
	checkpoint.FS
	ended <-chan struct{}
	beats chan struct{} // nil if it is not late
}

func (l *lateFS) Open(path string) (checkpoint.Handle, error) {
	if l.beats != nil && filepath.Base(path) == checkpoint.ManifestName {
		for range 2 {
			select {
			case <-l.beats:
			case <-l.ended:
				return nil, context.DeadlineExceeded
			}
		}
		l.beats = nil
	}
	return l.FS.Open(path)
}
