//go:build linux && cgo

package nccl

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
)

// life is a rank's part in all that a group does.
func life(m *member) error {
	sub, err := m.Split(m.me.ctx, m.Rank()%2, 0)
	if err == nil {
		err = sub.AllReduce(comm.Of([]float32{1}), comm.Sum).Wait(m.me.ctx)
	}
	if err != nil {
		m.Abort(err) // which the failure of a child does not do
		return err
	}
	n, host := m.Size(), make([]float32, 100)
	x, err := m.me.dev.Alloc(4 * 8 * n)
	if err != nil {
		m.Abort(err)
		return err
	}
	defer func() { check(x.Free()) }()
	whole, shard := f32s(x.Addr(), 8*n), f32s(x.Addr()+uintptr(4*8*m.Rank()), 8)
	counts := make([]int, n)
	for i := range counts {
		counts[i] = 8
	}
	for _, w := range []comm.Work{
		m.AllGather(whole, shard), m.ReduceScatter(shard, whole, comm.Sum), m.AllReduce(whole, comm.Max),
		m.Broadcast(whole, 0), m.Gather(whole, shard, counts, 1), m.AllReduce(comm.Of(host), comm.Sum),
		m.Broadcast(comm.Of(host), 1),
	} {
		if err := w.Wait(m.me.ctx); err != nil {
			return err
		}
	}
	return m.Barrier(m.me.ctx)
}

// Whatever call fails, every rank gets an error that names it, and nothing is left.
func TestGroupCallsFail(t *testing.T) {
	defer func(d time.Duration) { grace = d }(grace)
	grace = 10 * time.Second // on a busy machine, too, all ranks finalize
	cuda, lib := doubles(t)
	cfg := GroupConfig{Staging: 256}
	functions := map[string]bool{ // whether a failure is one of the group
		"cuStreamCreateWithPriority": true, "cuEventCreate": true, "cuMemAlloc": true, "cuMemAllocHost": true, "cuMemcpyHtoDAsync": true,
		"cuMemcpyDtoHAsync": true, "cuEventRecord": true, "cuEventQuery": true,
		"ncclGetUniqueId": true, "ncclCommInitRankConfig": true, "ncclCommSplit": true, "ncclGroupEnd": true, "ncclCommGetAsyncError": true,
		"ncclAllGather": true, "ncclReduceScatter": true, "ncclAllReduce": true, "ncclBroadcast": true, "ncclSend": true, "ncclRecv": true,
		"ncclCommFinalize": false,
	}
	for function, everywhere := range functions {
		t.Run(function, func(t *testing.T) {
			cuda.Clean(t)
			lib.Clean(t, "communicator")
			double, code := cuda, 999
			if function[:4] == "nccl" {
				double, code = lib, int(SystemError)
			}
			timed := function == "cuEventQuery" || function == "ncclCommGetAsyncError"
			before := double.Calls(function)
			for r, err := range groupOf(t, 3, cfg, life) {
				require.NoError(t, err, "rank %d", r)
			}
			calls := double.Calls(function) - before
			require.NotZero(t, calls)
			for _, nth := range []int{1, 2, (calls + 1) / 2, calls} {
				if nth > calls || timed && nth > 2 {
					continue // how often it is called is a matter of time
				}
				double.Fail(function, nth, code)
				errs := groupOf(t, 3, cfg, life)
				found := 0
				for r, err := range errs {
					if err != nil {
						found++
						require.ErrorContains(t, err, function, "rank %d, call %d", r, nth)
					}
				}
				require.NotZero(t, found, "call %d", nth)
				if everywhere && nth < calls-3 { // after that a rank may be through
					require.Equal(t, 3, found, "call %d: %v", nth, errs)
				}
			}
		})
	}
}

// stall runs f on two ranks that have launched a collective, w, that does not end: the
// stream of rank 1 is held back until a rank has aborted its communicator. A limit that is
// not 0 is that of collectives, but not of making the group.
func stall(t *testing.T, limit time.Duration, f func(m *member, w comm.Work) error) []error {
	cuda, lib := doubles(t)
	var launched sync.WaitGroup
	launched.Add(2)
	return groupOf(t, 2, GroupConfig{}, func(m *member) (err error) {
		m.backend.launcher.timeout = cmp.Or(limit, defaultTimeout)
		m.me.alloc(16, func(x uintptr) {
			if m.Rank() == 1 {
				cuda.Pause(t, m.backend.launcher.stream.Handle())
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				<-m.backend.halt
				eventually(m.me.ctx, func() bool { return lib.Live("communicator") < 2 })
				if m.Rank() == 1 {
					cuda.Resume(t, m.backend.launcher.stream.Handle())
				}
			}()
			defer func() { <-done }()
			w := m.AllReduce(f32s(x, 4), comm.Sum)
			err = m.WaitOn(m.me.ctx, m.me.stream, w)
			launched.Done()
			launched.Wait()
			if err == nil {
				err = f(m, w)
			}
		})
		return err
	})
}

func TestGroupTimeout(t *testing.T) {
	errs := stall(t, 50*time.Millisecond, func(m *member, w comm.Work) error {
		return w.Wait(m.me.ctx)
	})
	for r, err := range errs {
		require.ErrorIs(t, err, comm.ErrTimeout, "rank %d", r)
		require.ErrorContains(t, err, `all-reduce #1 "x"`, "rank %d", r)
	}
}

func TestGroupAborts(t *testing.T) {
	cause := errors.New("out of coffee")
	for aborter := range 2 {
		errs := stall(t, 0, func(m *member, w comm.Work) error {
			if m.Rank() == aborter {
				m.Abort(cause)
			}
			return w.Wait(m.me.ctx)
		})
		for r, err := range errs {
			var blame *comm.RankError
			require.ErrorAs(t, err, &blame, "rank %d", r)
			require.Equal(t, aborter, blame.Rank)
			require.Equal(t, "nccl", blame.Group)
			require.ErrorIs(t, err, cause, "rank %d", r)
		}
	}
}

func TestGroupCancelled(t *testing.T) {
	cause := errors.New("deadline of the step")
	errs := stall(t, 0, func(m *member, w comm.Work) error {
		ctx, cancel := context.WithCancelCause(m.me.ctx)
		defer cancel(nil)
		if m.Rank() == 0 {
			time.AfterFunc(time.Millisecond, func() { cancel(cause) })
		}
		return w.Wait(ctx)
	})
	for r, err := range errs {
		var blame *comm.RankError
		require.ErrorAs(t, err, &blame, "rank %d", r)
		require.Zero(t, blame.Rank)
		require.ErrorIs(t, err, cause, "rank %d", r)
	}
}

// A rank that closes the group in the middle of a collective does not leave the others
// waiting for it.
func TestGroupClosedInside(t *testing.T) {
	errs := stall(t, 0, func(m *member, w comm.Work) error {
		if m.Rank() == 1 {
			check(m.Close())
		}
		return w.Wait(m.me.ctx)
	})
	for r, err := range errs {
		var blame *comm.RankError
		require.ErrorAs(t, err, &blame, "rank %d", r)
		require.Equal(t, 1, blame.Rank, "rank %d", r)
		require.ErrorIs(t, err, comm.ErrClosed, "rank %d", r)
	}
}

// The failure of a group reaches the groups split from it as it is, also on a rank that was
// waiting for the others when it came.
func TestGroupFailsItsParts(t *testing.T) {
	doubles(t)
	cause := errors.New("parent aborted")
	errs := groupOf(t, 2, GroupConfig{}, func(m *member) error {
		sub := must(m.Split(m.me.ctx, 0, m.Rank())).(*Group)
		check(m.Barrier(m.me.ctx))
		if m.Rank() == 1 {
			that(nil, "no meeting", m.backend.meeting.enter())
			m.Abort(cause)
			m.backend.tasks.Wait() // for all that Abort has begun
		}
		<-sub.backend.halt
		return sub.backend.reason(nil)
	})
	for r, err := range errs {
		var blame *comm.RankError
		require.ErrorAs(t, err, &blame, "rank %d", r)
		require.Equal(t, 1, blame.Rank, "rank %d", r)
		require.ErrorIs(t, err, cause, "rank %d", r)
	}
}

// No buffer is touched once an operation has failed.
func TestGroupLetsGo(t *testing.T) {
	doubles(t)
	host := make([]float32, 64)
	errs := groupOf(t, 2, GroupConfig{}, func(m *member) error {
		if m.Rank() == 1 {
			return m.Barrier(m.me.ctx)
		}
		err := m.AllReduce(comm.Of(host), comm.Sum).Wait(m.me.ctx)
		host[0] = 7 // the race detector looks
		return err
	})
	for _, err := range errs {
		var mismatch *comm.MismatchError
		require.ErrorAs(t, err, &mismatch)
	}
	require.Equal(t, float32(7), host[0])
}

// A call of NCCL that waits for a rank that has failed returns.
func TestGroupLaunchHangs(t *testing.T) {
	t.Setenv("FSDP_DOUBLE_NCCL_CONNECT", "1")
	cuda, _ := doubles(t)
	for nth := range 6 {
		cuda.Fail("cuMemcpyHtoDAsync", 1+nth, 999)
		start := time.Now()
		errs := groupOf(t, 2, GroupConfig{Staging: 64}, func(m *member) error {
			return m.AllReduce(comm.Of(make([]float32, 100)), comm.Sum).Wait(m.me.ctx)
		})
		for r, err := range errs {
			require.ErrorContains(t, err, "cuMemcpyHtoD", "rank %d", r)
		}
		require.Less(t, time.Since(start), time.Minute)
	}
}

// A call of NCCL that waits for a rank that does not come returns in time.
func TestGroupLaunchTimesOut(t *testing.T) {
	t.Setenv("FSDP_DOUBLE_NCCL_CONNECT", "1")
	doubles(t)
	errs := groupOf(t, 2, GroupConfig{}, func(m *member) (err error) {
		m.backend.launcher.timeout = 100 * time.Millisecond
		m.me.alloc(16, func(x uintptr) {
			if m.Rank() == 1 { // stays before the call
				m.backend.launcher.communicator.mu.Lock()
				go func() {
					<-m.backend.halt
					m.backend.launcher.communicator.mu.Unlock()
				}()
			}
			err = m.AllReduce(f32s(x, 4), comm.Sum).Wait(m.me.ctx)
		})
		return err
	})
	for r, err := range errs {
		require.ErrorIs(t, err, comm.ErrTimeout, "rank %d", r)
	}
}

// New fails on every rank if it does on one.
func TestNewFails(t *testing.T) {
	doubles(t)
	boot := comm.Local(3)
	errs := each(3, func(r int) error {
		var dev *Device
		if r != 1 {
			dev = must(OpenDevice(r))
			defer func() { check(dev.Close()) }()
		}
		g, err := New(t.Context(), boot[r], dev, GroupConfig{})
		that(nil, "a group", g == nil)
		return err
	})
	for r, err := range errs {
		require.ErrorContains(t, err, "rank 1", "rank %d", r)
		require.ErrorContains(t, err, "the device is nil", "rank %d", r)
	}
	for r, err := range each(3, func(r int) error { return boot[r].Barrier(t.Context()) }) {
		require.NoError(t, err, "the group it was made over goes on, rank %d", r)
	}
}

// Ranks whose configurations differ do not get a group.
func TestNewDiffers(t *testing.T) {
	doubles(t)
	boot := comm.Local(2)
	for r, err := range each(2, func(r int) error {
		dev := must(OpenDevice(r))
		defer func() { check(dev.Close()) }()
		_, err := New(t.Context(), boot[r], dev, GroupConfig{Staging: 100 + r})
		return err
	}) {
		var mismatch *comm.MismatchError
		require.ErrorAs(t, err, &mismatch, "rank %d", r)
		require.ErrorContains(t, err, "100 bytes of staging")
	}
}

func TestGroupConfig(t *testing.T) {
	for _, cfg := range []GroupConfig{{Timeout: -1}, {Staging: -1}, {Communicator: Config{Share: true}}} {
		_, err := New(t.Context(), comm.Local(1)[0], nil, cfg)
		require.ErrorContains(t, err, "nccl: GroupConfig ")
	}
}

func TestPlace(t *testing.T) {
	pairs := []int64{7, 3, -1, 0, 1 << 40, -9, 7, -3, 1 << 40, -9}
	for r, want := range [][2]int{{0, 1}, {NoColor, 0}, {1, 0}, {0, 0}, {1, 1}} {
		color, key := place(pairs, r)
		if want[0] >= 0 {
			want[0] = color // below
		}
		require.Equal(t, want, [2]int{color, key}, "rank %d", r)
	}
	a, _ := place(pairs, 0)
	b, _ := place(pairs, 3)
	c, _ := place(pairs, 2)
	require.Equal(t, a, b)
	require.NotEqual(t, a, c)
}
