//go:build mpi && cgo && unix

package mpi

import (
	"context"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// memory reads what the run time has counted.
type memory struct{ mallocs uint64 }

func (m *memory) read() {
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	m.mallocs = s.Mallocs
}

// late has one rank not come: the others name it.
func late(t *rank) {
	t.join(2 * time.Second)
	g, err := t.Split(t.ctx(), 0, 0)
	require.NoError(t, err)
	require.Equal(t, 2*time.Second, transport.Timeout(g), "how often ranks that work for long have to be heard of")
	last := t.Size() - 1
	if t.Rank() == last {
		gate{last}.wait(t)
	}
	err = sum(t.ctx(), g)
	blamed(t, err, last, comm.ErrTimeout)
	require.ErrorContains(t, err, "all-reduce #1")
	require.ErrorContains(t, err, "no progress for 2s")
	if t.Rank() == 0 {
		gate{last}.open(t)
	}
	require.NoError(t, t.Close()) // closes g and is in good order
}

// stalled has a rank stop in the middle of a transfer: the other one gives it up
// and keeps the memory, and no rank finalizes MPI.
func stalled(t *rank) {
	t.join(2 * time.Second) // more than counts of a stall of the machine
	g, err := t.Split(t.ctx(), 0, 0)
	require.NoError(t, err)
	x := make([]float32, 1<<20)
	if t.Rank() == 0 {
		err := g.AllReduce(comm.Of(x), comm.Sum).Wait(t.ctx())
		require.ErrorIs(t, err, comm.ErrTimeout)
		require.ErrorContains(t, err, "abandon")
		require.Len(t, kept.pins, 1)
		require.ErrorIs(t, g.Barrier(t.ctx()), comm.ErrTimeout)
		require.ErrorContains(t, t.Close(), "abandoned")
		gate{1}.open(t)
		return
	}
	backend := t.world.childList()[0]
	c := &transport.Call{Kind: transport.KindAllReduce, Dst: comm.Of(x), Src: comm.Of(x)}
	backend.seq.Store(1)
	require.NoError(t, backend.send(t.ctx(), 1, c))
	require.NoError(t, backend.agree(t.ctx(), 1))
	<-backend.halt
	require.ErrorIs(t, g.Barrier(t.ctx()), comm.ErrTimeout) // what rank 0 said
	require.ErrorContains(t, t.Close(), "abandoned")
	gate{1}.wait(t) // a process that exits without MPI_Finalize may end the job
}

// alone has a rank close the world without the other one, which has failed it.
func alone(t *rank) {
	t.join(2 * time.Second) // more than counts of a stall of the machine
	if t.Rank() == 1 {
		gate{1}.wait(t)
		os.Exit(0) // without closing
	}
	begin := time.Now()
	err := t.Close()
	require.ErrorContains(t, err, "[1]")
	require.Less(t, time.Since(begin), time.Minute)
	t.through() // before mpirun ends the job
	gate{1}.open(t)
}

// abandons has a rank give up a call that the other one makes at the same time:
// it happens on both or on neither, and nothing is left behind in MPI.
func abandons(t *rank) {
	t.join(time.Minute)
	for i := range 200 {
		g, err := t.Split(t.ctx(), 0, 0)
		require.NoError(t, err)
		x, ctx := make([]float32, 20000), t.ctx()
		if t.Rank() == 0 {
			short, cancel := context.WithTimeout(ctx, time.Duration(i)*2*time.Microsecond)
			defer cancel()
			ctx = short
		}
		for err == nil {
			err = g.AllReduce(comm.Of(x), comm.Sum).Wait(ctx)
		}
		blamed(t, err, 0, context.DeadlineExceeded)
		require.NoError(t, g.Close())
		require.NoError(t, t.Barrier(t.ctx()))
	}
	require.NoError(t, t.Close())
}

// killed has a process die: mpirun ends the job.
func killed(t *rank) {
	t.join(time.Minute)
	require.NoError(t, t.Barrier(t.ctx()))
	if t.Rank() == 1 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	_ = t.Barrier(t.ctx())
	os.Exit(1) // the rank that is killed counts, whatever the others saw
}
