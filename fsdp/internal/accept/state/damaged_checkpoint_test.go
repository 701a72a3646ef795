package state_test

import (
	"bytes"
	"context"
	"errors"
	"hash/crc32"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/checkpoint/crashfs"
)

// A damage is what has happened to a checkpoint, and when it shows.
type damage struct {
	do      func(t *testing.T, path string)
	message []string // parts of the error
	shows   moment
}

type moment int

const (
	atOnce   moment = iota // Load passes over the checkpoint
	opened                 // it is an error, and nothing has changed
	read                   // it is an error, and some has changed
	noDamage               // nor is another checkpoint taken for this one
)

// spoilt is the file that most damages are about.
const spoilt = "rank-00001-of-00003.safetensors"

var damages = map[string]damage{
	"a byte": {func(t *testing.T, path string) {
		change(t, filepath.Join(path, spoilt), func(b []byte) []byte { b[len(b)-100] ^= 1; return b })
	}, []string{"000002-step-2", spoilt, "exp_avg_sq:l", "] in bytes [", "damaged: CRC-32C is ", ", want "}, read},
	"truncated": {func(t *testing.T, path string) {
		change(t, filepath.Join(path, spoilt), func(b []byte) []byte { return b[:len(b)-1] })
	}, []string{spoilt, "damaged"}, atOnce},
	"missing": {func(t *testing.T, path string) {
		require.NoError(t, os.Remove(filepath.Join(path, spoilt)))
	}, []string{spoilt}, atOnce},
	"the manifest": {func(t *testing.T, path string) {
		change(t, filepath.Join(path, "manifest.json"), func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
	}, []string{"manifest", "damaged"}, atOnce},
	"a byte of a header": {func(t *testing.T, path string) {
		change(t, filepath.Join(path, spoilt), func(b []byte) []byte { b[20] ^= 1; return b })
	}, []string{"000002-step-2", spoilt + ": header: damaged: CRC-32C is "}, opened},
	"swapped names": {swapNames, []string{"000002-step-2", spoilt + ": header: damaged: the file has exp_avg"}, opened},
	"a newer format": {func(t *testing.T, path string) {
		change(t, filepath.Join(path, "manifest.json"), func(b []byte) []byte {
			return []byte(strings.Replace(string(b), `"format":2`, `"format":3`, 1))
		})
	}, []string{"unknown checkpoint format", "version 3", "reads versions 1 to 2"}, noDamage},
}

// swapNames swaps the names of the optimizer's two tensors of each parameter in a file, and makes
// the checksums right again.
func swapNames(t *testing.T, path string) {
	change(t, filepath.Join(path, checkpoint.ManifestName), func(text []byte) []byte {
		m, err := checkpoint.Decode(text)
		require.NoError(t, err)
		require.Equal(t, spoilt, m.Files[1].Name)
		start := m.Files[1].Size
		for _, tensor := range m.Tensors {
			for p := range tensor.All() {
				if p.File == 1 {
					start = min(start, p.At)
				}
			}
		}
		change(t, filepath.Join(path, spoilt), func(b []byte) []byte {
			header := strings.NewReplacer("exp_avg:", "exp_avg_sq:", "exp_avg_sq:", "exp_avg:").Replace(string(b[:start]))
			require.Equal(t, int(start), copy(b, header))
			m.Files[1].Header = crc32.Checksum(b[:start], crc32.MakeTable(crc32.Castagnoli))
			return b
		})
		text, err = m.Encode()
		require.NoError(t, err)
		return text
	})
}

// twoSaved saves two steps on three ranks, and returns the paths of the checkpoints.
func twoSaved(t *testing.T, dir string) (paths []string) {
	kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
		f := kit.NewFiller(t, ctx, g)
		defer f.Close()
		require.NoError(t, f.SaveStep(ctx, dir, 1))
		require.NoError(t, f.SaveStep(ctx, dir, 2))
	})
	for _, e := range entries(t, checkpoint.OS(), dir) {
		require.NoError(t, e.Err)
		paths = append(paths, e.Path)
	}
	return paths
}

// The texts by which fsdprun knows a failure that another start would end with, too, and of what it
// says then.
const (
	hopeless = "a restart does not help: "
	remedy   = "000001-step-1 is older and complete, but its data is not checked: " +
		"to load it, set AllowOlder: new(true) or FSDP_ALLOW_OLDER=true, or run fsdprun -older"
)

// TestDamage damages the last of two checkpoints. What is found before anything changes leaves the
// model as it was; what is found while it is read makes it useless until the other one is loaded.
// Which of the two is taken, and how loudly, is AllowOlder's to say.
func TestDamage(t *testing.T) {
	for name, c := range damages {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			paths := twoSaved(t, dir)
			c.do(t, paths[1])
			kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
				var log bytes.Buffer
				f := kit.LoggingFiller(t, ctx, g, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})))
				defer f.Close()
				load := func(dir string, older *bool) error {
					log.Reset()
					f.Fill(5)
					loaded, err := f.Load(ctx, dir, f.Opt, &fsdp.LoadOptions{AllowOlder: older})
					if err != nil {
						return err
					}
					require.Equal(t, paths[0], loaded.Path)
					f.Require(t, 1)
					require.Equal(t, g.Rank() == 0, log.Len() > 0)
					if g.Rank() == 0 {
						for _, part := range append(c.message, "skips a damaged checkpoint", paths[0], paths[1], `"steps lost"=1`) {
							require.Contains(t, log.String(), part)
						}
					}
					return nil
				}
				refused := func(err error, parts ...string) {
					for _, part := range append(c.message, parts...) {
						require.ErrorContains(t, err, part)
					}
					require.NotErrorIs(t, err, fsdp.ErrNoCheckpoint)
				}
				switch c.shows {
				case noDamage:
					refused(load(dir, nil))
					refused(load(dir, new(true)))
					refused(load(dir, new(false)))
				case atOnce:
					require.NoError(t, load(dir, nil))
					require.NoError(t, load(dir, new(true)))
					refused(load(dir, new(false)), hopeless, remedy)
				default:
					refused(load(dir, nil), hopeless, remedy)
					require.NoError(t, load(dir, new(true)))
					refused(load(dir, new(false)), hopeless, remedy)
				}
				var itself []string // of the error for a directory that is the damaged checkpoint
				if c.shows != noDamage {
					itself = []string{hopeless, paths[0] + " is older: load it by its path"}
				}
				refused(load(paths[1], nil), itself...)
				if c.shows == read {
					requireMixed(t, ctx, f, g)
				} else {
					f.Require(t, 5)
					kit.ForwardBackward(t, ctx, f.Sharded, kit.ShapeBatch(g.Rank()))
					require.NoError(t, f.Opt.Step(0.1))
				}
				refused(load(paths[1], new(true)), itself...)
				first, err := f.Load(ctx, paths[0], f.Opt, nil)
				require.NoError(t, err)
				require.Equal(t, 1, first.Step)
				f.Require(t, 1)
				kit.ForwardBackward(t, ctx, f.Sharded, kit.ShapeBatch(g.Rank()))
				require.NoError(t, f.Opt.Step(0.1))
				require.NoError(t, f.SaveStep(ctx, filepath.Join(dir, "another"), 3))
			})
		})
	}
}

// change rewrites a file.
func change(t *testing.T, path string, f func([]byte) []byte) {
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, f(b), 0o600))
}

// TestDamageEverywhere damages all checkpoints: nobody starts anew without noticing.
func TestDamageEverywhere(t *testing.T) {
	for name, last := range map[string]damage{"data": damages["a byte"], "manifest": damages["the manifest"]} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			paths := twoSaved(t, dir)
			damages["truncated"].do(t, paths[0])
			last.do(t, paths[1])
			if last.shows == atOnce {
				_, err := fsdp.LatestCheckpoint(dir)
				require.ErrorContains(t, err, hopeless+"checkpoint: no whole checkpoint is left in "+dir)
			}
			for _, older := range []*bool{nil, new(true), new(false)} {
				for _, err := range kit.ErrorsOf(t, 2, func(ctx context.Context, g comm.Group) error {
					f := kit.NewFiller(t, ctx, g)
					defer f.Close()
					_, err := f.Load(ctx, dir, f.Opt, &fsdp.LoadOptions{AllowOlder: older})
					return err
				}) {
					require.ErrorContains(t, err, hopeless)
					require.ErrorContains(t, err, "no older ")
					require.NotErrorIs(t, err, fsdp.ErrNoCheckpoint)
				}
			}
		})
	}
}

// TestAllowOlderSkipsMore damages the data of the last two of three checkpoints, each on another
// rank, and lets the environment allow the first.
func TestAllowOlderSkipsMore(t *testing.T) {
	dir := t.TempDir()
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		f := kit.NewFiller(t, ctx, g)
		defer f.Close()
		for step := 1; step <= 3; step++ {
			require.NoError(t, f.SaveStep(ctx, dir, step))
		}
	})
	for rank, name := range []string{"000002-step-2/rank-00000-of-00002.safetensors", "000003-step-3/rank-00001-of-00002.safetensors"} {
		change(t, filepath.Join(dir, filepath.FromSlash(name)), func(b []byte) []byte { b[len(b)-1-rank] ^= 1; return b })
	}
	for _, value := range []string{"true", "1", "maybe", "false"} {
		t.Setenv("FSDP_ALLOW_OLDER", value)
		kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
			f := kit.NewFiller(t, ctx, g)
			defer f.Close()
			c, err := f.Load(ctx, dir, f.Opt, nil)
			switch value {
			case "maybe":
				require.ErrorContains(t, err, "FSDP_ALLOW_OLDER=maybe is neither true nor false")
				return
			case "false":
				require.ErrorContains(t, err, "000003-step-3: rank-00001-of-00002.safetensors: ")
				return
			}
			require.NoError(t, err)
			require.Equal(t, 1, c.Step)
			f.Require(t, 1)
		})
	}
}

// TestAllowOlderIsAgreed gives ranks other options.
func TestAllowOlderIsAgreed(t *testing.T) {
	dir := t.TempDir()
	twoSaved(t, dir)
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		f := kit.NewFiller(t, ctx, g)
		defer f.Close()
		_, err := f.Load(ctx, dir, f.Opt, &fsdp.LoadOptions{AllowOlder: new(g.Rank() == 0)})
		require.ErrorContains(t, err, "ranks disagree about the arguments of Load: rank 0 has \"AllowOlder true\", rank 1 has \"AllowOlder false\"")
	})
}

// TestLoadEndsWithItsContext has no answer of the file system on one rank.
func TestLoadEndsWithItsContext(t *testing.T) {
	disk := crashfs.New()
	f := kit.NewFiller(t, t.Context(), comm.Local(1)[0])
	require.NoError(t, f.SaveStep(kit.OnFS(t.Context(), disk), kit.Ckpt, 1))
	require.NoError(t, f.Close())
	for muted := range 2 {
		back := make(chan struct{})
		stop := errors.New("enough")
		kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
			f := kit.NewFiller(t, ctx, g)
			defer f.Close()
			var fsys checkpoint.FS = disk
			if g.Rank() == muted {
				fsys = kit.Mute{FS: disk, Back: back}
			}
			ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Millisecond, stop)
			defer cancel()
			_, err := f.Load(kit.OnFS(ctx, fsys), kit.Ckpt, f.Opt, nil)
			require.ErrorContains(t, err, stop.Error())
		})
		close(back)
	}
}

// TestWarningWithoutLogger warns of a damaged checkpoint where no Logger is set: to slog.Default.
func TestWarningWithoutLogger(t *testing.T) {
	log := kit.CaptureDefault(t)
	dir := t.TempDir()
	paths := twoSaved(t, dir)
	damages["missing"].do(t, paths[1])
	f := kit.NewFiller(t, t.Context(), comm.Local(1)[0])
	defer f.Close()
	_, err := f.Load(t.Context(), dir, f.Opt, nil)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(log(), "Load skips a damaged checkpoint"))
}
