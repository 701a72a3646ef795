package record

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/internal/checksum"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/hashes"
	"github.com/gofsdp/gofsdp/internal/program"
	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/shard"
)

// onRank1 runs f on rank 1 of 2.
func onRank1(t *testing.T, f func(g comm.Group)) {
	require.NoError(t, comm.Run(t.Context(), 2, func(_ context.Context, g comm.Group) error {
		if g.Rank() == 1 {
			f(g)
		}
		return nil
	}))
}

// TestOpen: starts and models have files of their own, none is written over, and ranks are those of
// the launcher.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	onRank1(t, func(g comm.Group) {
		open := func(model int) error {
			f, err := Open(dir, g, model)
			if err == nil {
				err = f.Close()
			}
			return err
		}
		t.Setenv("RANK", "1")
		t.Setenv("WORLD_SIZE", "2")
		require.NoError(t, open(1))
		require.ErrorIs(t, open(1), os.ErrExist)
		require.NoError(t, open(2))
		t.Setenv("TORCHELASTIC_RESTART_COUNT", "2")
		require.NoError(t, open(2))
		for _, name := range []string{"", "model-2", "start-3/model-2"} {
			require.FileExists(t, filepath.Join(dir, name, "rank-1"+hashes.Suffix))
		}
		t.Setenv("WORLD_SIZE", "4")
		require.EqualError(t, open(3), "rank 1 of a group of 2 is process 1 of 4: hashes need a group of all processes of the job")
	})
}

// sharded has one group, whose vectors can also be out of reach.
type sharded struct {
	engine.Shards
	value, grad optim.Vec
}

func (s sharded) Value(int) optim.Vec { return s.value }
func (s sharded) Grad(int) optim.Vec  { return s.grad }

// far is a vector that has to be read, with an error or without.
type far struct {
	optim.Vec
	err error
}

func (f far) Slice(lo, hi int) optim.Vec { return far{f.Vec.Slice(lo, hi), f.err} }
func (f far) Read(to optim.Host) error   { return errors.Join(f.Vec.Read(to), f.err) }

// recordedRun records two passes of a step, one of the next, and one after a Load, whose shards a
// function gives. It returns what Close does.
func recordedRun(t *testing.T, dir string, shards func(v []float32) optim.Vec) (err error) {
	flat, wrong := shard.New([]shard.Param{{Name: "w", Shape: []int{3}}}, 2, 1) // rank 1 has one element, and padding
	require.NoError(t, wrong)
	l := &layout.Layout{Groups: []layout.Group{{Flat: flat, Ranks: layout.Ranks{Shards: 2, Place: 1}}}}
	onRank1(t, func(g comm.Group) {
		f, wrong := Open(dir, g, 1)
		require.NoError(t, wrong)
		pass := func(number int) {
			s := sharded{value: shards([]float32{1, 0}), grad: shards([]float32{float32(number), 0})}
			f.Begin(&engine.Pass{Compiled: &engine.Compiled{}, Number: number, Batch: []exec.Value{{Bytes: []byte{7}}}}, l, s)
			f.Step(&engine.Step{Pass: number, Op: program.Op{Kind: program.Drain}, Last: true}, l, s)
		}
		f.Begin(&engine.Pass{Compiled: &engine.Compiled{Variant: engine.Variant{Eval: true}}, Number: 1}, l, nil)
		pass(2)
		pass(3)
		f.Updated()
		pass(4)
		f.At(9)
		pass(5)
		err = f.Close()
	})
	return err
}

// TestWhatIsRecorded: parameters are in the first pass of a step, and each piece is hashed without
// its padding, wherever it lies.
func TestWhatIsRecorded(t *testing.T) {
	host := func(v []float32) optim.Vec { return optim.Host{F32: v} }
	for name, shards := range map[string]func(v []float32) optim.Vec{
		"host": host,
		"far":  func(v []float32) optim.Vec { return far{host(v), nil} },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, recordedRun(t, dir, shards))
			file, err := os.Open(filepath.Join(dir, "rank-1"+hashes.Suffix))
			require.NoError(t, err)
			defer file.Close()
			r, err := hashes.NewReader(file)
			require.NoError(t, err)
			require.Equal(t, []int{1, 2}, []int{r.Rank, r.Ranks})
			piece := func(k hashes.Kind, v float32) hashes.Entry {
				return hashes.Entry{Kind: k, Name: "w", From: 2, To: 3, Bytes: 4, Sum: checksum.Update(0, exec.Bytes([]float32{v}))}
			}
			for i, step := range []int{0, 0, 1, 9} {
				var want []hashes.Entry
				if i != 1 {
					want = append(want, piece(hashes.Param, 1))
				}
				want = append(want, hashes.Entry{Kind: hashes.Batch, Bytes: 1, Sum: checksum.Update(0, []byte{7})}, piece(hashes.Grad, float32(2+i)))
				p, err := r.Next()
				require.NoError(t, err)
				require.Equal(t, &hashes.Pass{Head: hashes.Head{Number: 2 + i, Step: step, Virtual: -1}, Entries: want}, p)
			}
			_, err = r.Next()
			require.ErrorIs(t, err, io.EOF)
		})
	}
}

// TestCloseReturnsTheFirstError also of vectors that cannot be read. Standard error has it at once,
// and once.
func TestCloseReturnsTheFirstError(t *testing.T) {
	gone := errors.New("gone")
	written := captureStderr(t)
	require.ErrorIs(t, recordedRun(t, t.TempDir(), func(v []float32) optim.Vec { return far{optim.Host{F32: v}, gone} }), gone)
	require.Equal(t, "fsdp: rank 1: from step 0 on hashes are not recorded any more: gone: free some space, or choose another directory\n", written())
}

// TestCloseReportsItsError: some file systems say only then that the disk is full.
func TestCloseReportsItsError(t *testing.T) {
	written := captureStderr(t)
	f, err := Open(t.TempDir(), comm.Local(1)[0], 1)
	require.NoError(t, err)
	require.NoError(t, f.file.Close())
	require.ErrorIs(t, f.Close(), os.ErrClosed)
	require.Contains(t, written(), "fsdp: rank 0: from step 0 on hashes are not recorded any more")
}

// captureStderr collects standard error until the test ends.
func captureStderr(t *testing.T) (written func() string) {
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	require.NoError(t, err)
	before := os.Stderr
	os.Stderr = file
	t.Cleanup(func() {
		os.Stderr = before
		require.NoError(t, file.Close())
	})
	return func() string {
		text, err := os.ReadFile(file.Name())
		require.NoError(t, err)
		return string(text)
	}
}

// TestNoFile: where nothing is recorded, nothing happens.
func TestNoFile(t *testing.T) {
	var f *File
	f.At(1)
	f.Updated()
	f.Begin(nil, nil, nil)
	f.Step(nil, nil, nil)
	require.NoError(t, f.Close())
}
