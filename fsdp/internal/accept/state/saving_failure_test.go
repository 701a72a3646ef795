package state_test

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/checkpoint/crashfs"
)

// A haltingFS calls halt before each operation that writes.
type haltingFS struct {
	checkpoint.FS
	halt func()
}

func (f haltingFS) Mkdir(dir string) error { f.halt(); return f.FS.Mkdir(dir) }

func (f haltingFS) Rename(from, to string) error { f.halt(); return f.FS.Rename(from, to) }

func (f haltingFS) SyncDir(dir string) error { f.halt(); return f.FS.SyncDir(dir) }

func (f haltingFS) Lock(path, owner string) (io.Closer, error) {
	f.halt()
	return f.FS.Lock(path, owner)
}

func (f haltingFS) Create(path string) (checkpoint.Handle, error) {
	f.halt()
	h, err := f.FS.Create(path)
	return haltingHandle{h, f.halt}, err
}

type haltingHandle struct {
	checkpoint.Handle
	halt func()
}

func (h haltingHandle) Write(b []byte) (int, error) { h.halt(); return h.Handle.Write(b) }

func (h haltingHandle) Sync() error { h.halt(); return h.Handle.Sync() }

// TestFailedPassSpares fails a pass on both ranks at every operation of a SaveAsync: the checkpoint
// is complete all the same.
func TestFailedPassSpares(t *testing.T) {
	operations := saveBesideFailure(t, -1)
	require.Greater(t, operations, 12)
	for at := range operations {
		saveBesideFailure(t, at)
	}
}

// saveBesideFailure fails a pass before operation at of a SaveAsync, or after all of it if that is
// negative, and returns how many operations there were.
func saveBesideFailure(t *testing.T, at int) int {
	const ranks = 2
	disk := crashfs.New()
	var count atomic.Int64
	reached, failed := make(chan struct{}), make(chan struct{})
	var both sync.WaitGroup
	both.Add(ranks)
	go func() { both.Wait(); close(failed) }()
	halt := func() {
		if int(count.Add(1))-1 == at {
			close(reached)
			<-failed
		}
	}
	kit.OnRanks(t, ranks, func(ctx context.Context, g comm.Group) {
		fail := false
		cfg := fsdp.Config{Group: g, Observers: []fsdp.Observer{fsdp.TraceFunc(func(fsdp.Event) {
			if fail && g.Rank() == 0 {
				panic("no more")
			}
		})}}
		m := kit.Wrap(t, kit.TinyGPT(1), cfg)
		opt := kit.AdamAndMomentum(t, m)
		require.NoError(t, m.Save(kit.OnFS(ctx, disk), "ckpt", opt, &fsdp.SaveOptions{Step: 1}))
		require.NoError(t, g.Barrier(ctx))
		saving, err := m.SaveAsync(kit.OnFS(ctx, haltingFS{disk, halt}), "ckpt", opt, &fsdp.SaveOptions{Step: 2})
		require.NoError(t, err)
		if at >= 0 {
			<-reached
		} else {
			<-saving.Done()
		}
		fail = true
		for err == nil { // rank 1 may have come to the end of a pass when rank 0 fails in it
			_, err = m.Forward(ctx, kit.GoodBatch(g.Rank())...)
		}
		require.ErrorContains(t, err, "no more")
		both.Done()
		require.NoError(t, saving.Wait(ctx), "operation %d", at)
		require.NotEmpty(t, saving.Path())
		require.NoError(t, m.Close())
	})
	<-failed
	kit.OnRanks(t, 1, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g})
		c, err := m.Load(kit.OnFS(ctx, disk), "ckpt", nil, nil)
		require.NoError(t, err)
		require.Equal(t, 2, c.Step, "operation %d", at)
	})
	return int(count.Load())
}
