//go:build linux && cgo

package gpu_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/gpu"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/optim"
)

// onHost runs f where models compute on the host.
func onHost(_ *testing.T, f func()) { f() }

// onDoubles runs f where models compute on the doubles of GPUs, if they do anything.
func onDoubles(t *testing.T, f func()) {
	defer kit.UseGPU()()
	kit.CleanGPU(t)
	f()
}

// moving is the training of a GPT whose state moves between devices: AdamW, of which some
// parameters are in 8 and 16 bits, and averages.
func moving(t *testing.T, g comm.Group) (*fsdp.Sharded, optim.Optimizer) {
	m := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: g, WrapPolicy: kit.Blocks})
	narrow := optim.Rule{Match: func(p optim.Param) bool { return strings.HasPrefix(p.Name, "wte") }, Bits: new(8)}
	half := optim.Rule{Match: func(p optim.Param) bool { return strings.HasPrefix(p.Name, "blocks.0") }, Bits: new(16)}
	opt, err := optim.AdamW{WeightDecay: 0.1, Rules: []optim.Rule{optim.NoDecay(), narrow, half}}.New(m.Params())
	require.NoError(t, err)
	require.NoError(t, optim.EMA(opt, 0.9))
	return m, opt
}

// move loads the checkpoint in from, if that is a directory, trains for some steps, and saves and
// exports the result to another directory. It returns the losses of rank 0.
func move(t *testing.T, from, to string, steps int) (losses []float64) {
	require.NoError(t, os.Mkdir(to, 0o755))
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m, opt := moving(t, g)
		if from != "" {
			_, err := m.Load(ctx, from, opt, nil)
			require.NoError(t, err)
		}
		for step := range steps {
			loss := kit.ForwardBackward(t, ctx, m, kit.TinyBatch(opt.Steps(), g.Rank(), 2, kit.TinyContext))
			if g.Rank() == 0 {
				losses = append(losses, loss)
			}
			_, err := m.ClipGradNorm(ctx, 0.5)
			require.NoError(t, err)
			require.NoError(t, opt.Step(1e-2), "step %d", step)
			m.ZeroGrad()
		}
		require.NoError(t, m.Save(ctx, to, opt, nil))
		require.NoError(t, m.Export(ctx, filepath.Join(to, "model.safetensors"), &fsdp.ExportOptions{Optimizer: opt}))
		require.NoError(t, m.Close())
	})
	return losses
}

// drawn are the parts of a manifest that differ between trainings: the drawn name, and the
// checksum.
var drawn = regexp.MustCompile(`"(run|crc32c)":"[^"]*"`)

// files returns the contents of all files under a directory, by their path, without the drawn
// parts.
func files(t *testing.T, dir string) map[string]string {
	all := make(map[string]string)
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if filepath.Base(path) == "manifest.json" {
			data = drawn.ReplaceAll(data, nil)
		}
		all[strings.TrimPrefix(path, dir)] = string(data)
		return err
	}))
	return all
}

// TestGPUMoves saves on one device and loads on the other, both ways: what either writes of the
// same state are the same bytes, and the training goes on as it would have.
func TestGPUMoves(t *testing.T) {
	type device func(t *testing.T, f func())
	for _, v := range []struct {
		name         string
		begin, other device
	}{{"from host", onHost, onDoubles}, {"from GPU", onDoubles, onHost}} {
		t.Run(v.name, func(t *testing.T) {
			dir := t.TempDir()
			run := func(d device, from, to string, steps int) (losses []float64) {
				if from != "" {
					from = filepath.Join(dir, from)
				}
				d(t, func() { losses = move(t, from, filepath.Join(dir, to), steps) })
				return losses
			}
			run(v.begin, "", "begun", 3)
			run(v.begin, "begun", "same", 0)
			run(v.other, "begun", "moved", 0)
			want := files(t, filepath.Join(dir, "same"))
			require.Greater(t, len(want), 3)
			require.Equal(t, want, files(t, filepath.Join(dir, "moved")))
			stayed, moved := run(v.begin, "begun", "stayed", 3), run(v.other, "begun", "gone on", 3)
			require.InDeltaSlice(t, stayed, moved, 1e-5)
		})
	}
}

// TestGPUState sets, collects and freezes on the device: what was there comes back to the bit.
func TestGPUState(t *testing.T) {
	onGPU(t, func() {
		kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
			m, opt := moving(t, g)
			for range 2 {
				kit.ForwardBackward(t, ctx, m, kit.TinyBatch(opt.Steps(), g.Rank(), 2, kit.TinyContext))
				require.NoError(t, opt.Step(1e-2))
				m.ZeroGrad()
			}
			want, state := kit.StateBits(t, ctx, m), kit.StateOfAll(t, ctx, m, opt)
			full, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
			require.NoError(t, err)
			kit.ForwardBackward(t, ctx, m, kit.TinyBatch(9, g.Rank(), 2, kit.TinyContext))
			require.NoError(t, opt.Step(1e-2))
			require.NotEqual(t, want, kit.StateBits(t, ctx, m))
			if g.Rank() != 1 {
				full = nil
			}
			require.NoError(t, m.LoadStateDict(ctx, 1, full))
			kit.RequireSameBits(t, want, kit.StateBits(t, ctx, m))
			require.NoError(t, m.Close())

			m, opt = moving(t, g)
			for range 2 {
				kit.ForwardBackward(t, ctx, m, kit.TinyBatch(opt.Steps(), g.Rank(), 2, kit.TinyContext))
				require.NoError(t, opt.Step(1e-2))
				m.ZeroGrad()
			}
			kit.RequireSameBits(t, want, kit.StateBits(t, ctx, m), "the same training again")
			kit.RequireSameBits(t, state, kit.StateOfAll(t, ctx, m, opt))
			_, err = m.Freeze(ctx, func(name string) bool { return strings.HasPrefix(name, "blocks.0.") }, opt)
			require.NoError(t, err)
			kit.RequireSameBits(t, want, kit.StateBits(t, ctx, m))
			require.NoError(t, m.Close())
		})
	})
}

// TestGPUCopyState copies a training from two devices to one, and back: both keep its bits.
func TestGPUCopyState(t *testing.T) {
	onGPU(t, func() {
		kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
			m, opt := moving(t, g)
			kit.ForwardBackward(t, ctx, m, kit.TinyBatch(0, g.Rank(), 2, kit.TinyContext))
			require.NoError(t, opt.Step(1e-2))
			m.ZeroGrad()
			want, state := kit.StateBits(t, ctx, m), kit.StateOfAll(t, ctx, m, opt)
			one, err := g.Split(ctx, -g.Rank(), 0) // of rank 0
			require.NoError(t, err)
			var alone *fsdp.Sharded
			var own optim.Optimizer
			if one != nil {
				alone, own = moving(t, one)
			}
			require.NoError(t, fsdp.CopyState(ctx, m, alone, opt, own))
			require.NoError(t, m.Close())
			if alone != nil {
				kit.RequireSameBits(t, want, kit.StateBits(t, ctx, alone))
				kit.RequireSameBits(t, state, kit.StateOfAll(t, ctx, alone, own))
			}
			m, opt = moving(t, g)
			require.NoError(t, fsdp.CopyState(ctx, alone, m, own, opt))
			kit.RequireSameBits(t, want, kit.StateBits(t, ctx, m))
			kit.RequireSameBits(t, state, kit.StateOfAll(t, ctx, m, opt))
			if alone != nil {
				require.NoError(t, alone.Close())
			}
			require.NoError(t, m.Close())
		})
	})
}

// TestGPUMemoryCheckpoint: one device continues when the other is lost, with the bits of the last
// step.
func TestGPUMemoryCheckpoint(t *testing.T) {
	onGPU(t, func() {
		kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
			m, opt := moving(t, g)
			var last fsdp.MemoryCheckpoint
			for step := range 2 {
				kit.ForwardBackward(t, ctx, m, kit.TinyBatch(step, g.Rank(), 2, kit.TinyContext))
				require.NoError(t, opt.Step(1e-2))
				m.ZeroGrad()
				require.NoError(t, last.Save(ctx, m, opt, nil))
			}
			want, state := kit.StateBits(t, ctx, m), kit.StateOfAll(t, ctx, m, opt)
			one, err := g.Split(ctx, -g.Rank(), 0) // of rank 0
			require.NoError(t, err)
			require.NoError(t, opt.Step(1e-2)) // of a step that is lost
			require.NoError(t, m.Close())
			if one == nil {
				return
			}
			m, opt = moving(t, one)
			_, err = last.Load(ctx, m, opt)
			require.NoError(t, err)
			kit.RequireSameBits(t, want, kit.StateBits(t, ctx, m))
			kit.RequireSameBits(t, state, kit.StateOfAll(t, ctx, m, opt))
			require.NoError(t, m.Close())
		})
	})
}

// TestGPUOffload: shards and state in memory of the host change no bit of a training, and the
// device holds less.
func TestGPUOffload(t *testing.T) {
	cuda := kit.CleanGPU(t)
	_, err := fsdp.Wrap(kit.TinyGPT(1), fsdp.Config{Offload: fsdp.Offload{Pinned: true}})
	require.ErrorContains(t, err, "Config.Offload.Pinned is set, but there is no Config.Device")
	for _, precision := range []fsdp.Precision{{}, fsdp.BF16(), in16} {
		var want [2]kit.Bits
		var bytes [2]int
		for i, offload := range []bool{false, true} {
			onDevices(t, 2, func(ctx context.Context, g comm.Group, dev *gpu.Device) {
				m := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: g, Device: dev, Offload: fsdp.Offload{Pinned: offload}, WrapPolicy: kit.Blocks, Precision: precision})
				update := kit.Updater(t, m, 0.5)
				for step := range 3 {
					kit.ForwardBackward(t, ctx, m, kit.TinyBatch(step, g.Rank(), 2, kit.TinyContext))
					update(ctx)
				}
				got := kit.StateBits(t, ctx, m)
				require.NoError(t, g.Barrier(ctx))
				if g.Rank() == 0 {
					want[i], bytes[i] = got, cuda.Live("bytes")
				}
				require.NoError(t, g.Barrier(ctx))
				require.NoError(t, m.Close())
			})
		}
		kit.RequireSameBits(t, want[0], want[1])
		require.Less(t, bytes[1], bytes[0])
	}
}
