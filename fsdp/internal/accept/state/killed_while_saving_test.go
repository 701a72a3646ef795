package state_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
)

// killDir names the directory in which a process is to save until it is killed.
const killDir = "FSDP_TEST_SAVE_UNTIL_KILLED"

// TestKilledWhileSaving kills a process that saves in a loop, at a random moment, twenty times.
// Each time the latest checkpoint is whole, and none that was complete is lost; the next process
// goes on from it.
func TestKilledWhileSaving(t *testing.T) {
	dir := t.TempDir()
	random := rand.New(rand.NewPCG(1, 2))
	last := 0
	for range 20 {
		saved := killAfter(t, dir, 1+random.IntN(120))
		step := 0
		if _, err := fsdp.LatestCheckpoint(dir); !errors.Is(err, fsdp.ErrNoCheckpoint) {
			step = requireLatest(t, checkpoint.OS(), dir)
		}
		require.GreaterOrEqual(t, step, max(saved, last))
		last = step
	}
	require.Greater(t, last, 20)
	drafts := 0
	for _, e := range entries(t, checkpoint.OS(), dir) {
		if e.Err != nil {
			drafts++
		}
	}
	require.LessOrEqual(t, drafts, 2, "each process removes what the one before has left: one that was written, and one removed")
}

// killAfter runs a process that saves in dir and kills it once it has written a number of lines. It
// returns the last step that the process knew to be saved.
func killAfter(t *testing.T, dir string, lines int) (saved int) {
	child := exec.Command(os.Args[0], "-test.run=^TestSaveUntilKilled$")
	child.Env = append(os.Environ(), killDir+"="+dir)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	read := bufio.NewScanner(out)
	for ; read.Scan(); lines-- {
		_, _ = fmt.Sscanf(read.Text(), "saved %d", &saved)
		if lines == 0 {
			require.NoError(t, child.Process.Kill())
		}
	}
	require.Error(t, child.Wait(), "it was killed")
	require.Negative(t, lines)
	return saved
}

// TestSaveUntilKilled is what the process does: it has two ranks, which tell of every operation on
// files.
func TestSaveUntilKilled(t *testing.T) {
	dir := os.Getenv(killDir)
	if dir == "" {
		return
	}
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		f := kit.NewFiller(t, ctx, g)
		first := 0
		if c, err := f.Load(ctx, dir, f.Opt, nil); err == nil {
			first = c.Step
			f.Require(t, float64(first))
		} else {
			require.ErrorIs(t, err, fsdp.ErrNoCheckpoint)
		}
		for step := first + 1; ; step++ {
			require.NoError(t, f.SaveAs(kit.OnFS(ctx, tellingFS{checkpoint.OS()}), step%2 == 0, dir, step, fsdp.SaveOptions{KeepLast: 2}))
			if g.Rank() == 0 {
				fmt.Println("saved", step)
			}
		}
	})
}

// tellingFS tells of operations before it does them. Its output ends with whoever reads it.
type tellingFS struct{ checkpoint.FS }

func (f tellingFS) Mkdir(dir string) error {
	fmt.Println("mkdir")
	return f.FS.Mkdir(dir)
}

func (f tellingFS) Rename(from, to string) error {
	fmt.Println("rename")
	return f.FS.Rename(from, to)
}

func (f tellingFS) RemoveAll(path string) error {
	fmt.Println("remove")
	return f.FS.RemoveAll(path)
}

func (f tellingFS) SyncDir(dir string) error {
	fmt.Println("syncdir")
	return f.FS.SyncDir(dir)
}

func (f tellingFS) Lock(path, owner string) (io.Closer, error) {
	fmt.Println("lock")
	return f.FS.Lock(path, owner)
}

func (f tellingFS) Create(path string) (checkpoint.Handle, error) {
	fmt.Println("create")
	h, err := f.FS.Create(path)
	return tellingHandle{h}, err
}

type tellingHandle struct{ checkpoint.Handle }

func (h tellingHandle) Write(b []byte) (int, error) {
	fmt.Println("write")
	return h.Handle.Write(b)
}

func (h tellingHandle) Sync() error {
	fmt.Println("sync")
	return h.Handle.Sync()
}
