//go:build linux && cgo

package nccl

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// both runs a test with communicators that block and with others.
func both(t *testing.T, f func(t *testing.T, cfg Config)) {
	t.Run("blocking", func(t *testing.T) { f(t, Config{}) })
	t.Run("non-blocking", func(t *testing.T) { f(t, Config{NonBlocking: true}) })
}

// alone runs f with a device.
func alone(t testing.TB, f func(r *rank)) {
	t.Helper()
	require.NoError(t, caught(func() error {
		r := &rank{ctx: t.Context()}
		r.open(0)
		f(r)
		return r.close()
	}))
}

// eventually waits until f is true.
func eventually(ctx context.Context, f func() bool) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			panic(context.Cause(ctx))
		}
	}
}

func TestAbsentRank(t *testing.T) {
	both(t, func(t *testing.T, cfg Config) {
		doubles(t)
		id, err := NewUniqueID()
		require.NoError(t, err)
		alone(t, func(r *rank) {
			gone := errors.New("the others are gone")
			ctx, cancel := context.WithTimeoutCause(t.Context(), 30*time.Millisecond, gone)
			defer cancel()
			c, err := NewCommunicator(ctx, r.dev, 3, id, 1, cfg)
			require.ErrorIs(r, err, gone)
			require.ErrorContains(r, err, "rank 1 of 3: ncclCommInitRankConfig")
			require.Nil(r, c)
			_, err = NewCommunicator(ctx, r.dev, 3, id, 1, cfg)
			require.ErrorIs(r, err, gone)
		})
	})
}

func TestBadArguments(t *testing.T) {
	cuda, lib := doubles(t)
	id, err := NewUniqueID()
	require.NoError(t, err)
	alone(t, func(r *rank) {
		calls := lib.Calls("ncclCommInitRankConfig")
		for _, x := range []struct{ n, rank int }{{0, 0}, {2, 2}, {2, -1}, {1 << 40, 0}} {
			_, err := NewCommunicator(r.ctx, r.dev, x.n, id, x.rank, Config{})
			require.ErrorContains(r, err, "is not one of")
		}
		_, err := NewCommunicator(r.ctx, nil, 1, id, 0, Config{})
		require.ErrorContains(r, err, "the device is nil")
		closed := must(OpenDevice(1))
		check(closed.Close())
		_, err = NewCommunicator(r.ctx, closed, 1, id, 0, Config{})
		require.ErrorContains(r, err, "closed")
		_, err = NewCommunicator(r.ctx, r.dev, 1, id, 0, Config{MaxCTAs: 1 << 40})
		require.ErrorContains(r, err, "thread blocks")
		require.Equal(r, calls, lib.Calls("ncclCommInitRankConfig"), "nothing of this comes to NCCL")

		_, err = NewCommunicator(r.ctx, r.dev, 1, UniqueID{1}, 0, Config{})
		require.ErrorIs(r, err, InvalidArgument)
		drain(t, lib, "unique id is corrupted")
		cuda.Fail("cuCtxSetCurrent", 2, 201) // the first is of the check of the device
		_, err = NewCommunicator(r.ctx, r.dev, 1, id, 0, Config{})
		require.ErrorIs(r, err, UnhandledCUDAError)
		require.ErrorContains(r, err, "cuCtxSetCurrent: CUDA error 201")
	})
}

// The choices of a Config come to NCCL, which refuses these.
func TestConfig(t *testing.T) {
	doubles(t)
	id, err := NewUniqueID()
	require.NoError(t, err)
	alone(t, func(r *rank) {
		for _, x := range []struct {
			cfg  Config
			said string
		}{
			{Config{MinCTAs: 5, MaxCTAs: 4}, "CTAs"},
			{Config{ClusterSize: 9}, "cgaClusterSize"},
			{Config{Net: "carrier pigeon"}, "network plugin"},
		} {
			_, err := NewCommunicator(r.ctx, r.dev, 1, id, 0, x.cfg)
			require.ErrorIs(r, err, InvalidArgument)
			require.ErrorContains(r, err, x.said)
		}
		cfg := Config{Name: "a name that is kept in C memory", MinCTAs: 2, MaxCTAs: 4, ClusterSize: 8, Net: "Socket", Share: true}
		c := must(NewCommunicator(r.ctx, r.dev, 1, id, 0, cfg))
		require.Equal(r, 0, c.Rank())
		require.Equal(r, 1, c.Size())
		check(c.Finalize(r.ctx))
		check(c.Destroy())
	})
}

func TestDuplicateDevice(t *testing.T) {
	both(t, func(t *testing.T, cfg Config) {
		doubles(t)
		id, err := NewUniqueID()
		require.NoError(t, err)
		errs := each(2, func(i int) error {
			r := &rank{}
			r.open(0)
			defer func() { check(r.close()) }()
			_, err := NewCommunicator(t.Context(), r.dev, 2, id, i, cfg)
			return err
		})
		require.Error(t, errs[0])
		require.Error(t, errs[1])
		require.ErrorIs(t, errors.Join(errs...), InvalidUsage)
	})
}

func TestSplit(t *testing.T) {
	both(t, func(t *testing.T, cfg Config) {
		doubles(t)
		inWorld(t, 4, cfg, func(r *rank) error {
			cfg := cfg // of this rank
			cfg.Name = "half"
			c := must(r.Split(r.ctx, r.Rank()%2, -r.Rank(), cfg)) // {2, 0} and {3, 1}
			require.Equal(r, 2, c.Size())
			require.Equal(r, 1-r.Rank()/2, c.Rank())
			r.alloc(2, func(p uintptr) {
				r.put(p+uintptr(c.Rank()), []byte{byte(r.Rank())})
				check(c.AllGather(p+uintptr(c.Rank()), p, 1, Uint8, r.stream.Handle()))
				require.Equal(r, []byte{byte(r.Rank()%2 + 2), byte(r.Rank() % 2)}, r.get(p, 2))
			})
			none := must(c.Split(r.ctx, NoColor, 0, cfg))
			require.Nil(r, none)
			check(c.Finalize(r.ctx))
			check(c.Destroy())

			color := 7
			if r.Rank() == 1 {
				color = NoColor
			}
			c = must(r.Split(r.ctx, color, 0, cfg))
			require.Equal(r, r.Rank() == 1, c == nil)
			if c != nil {
				require.Equal(r, 3, c.Size())
				check(c.Finalize(r.ctx))
				check(c.Destroy())
			}
			_, err := r.Split(r.ctx, -2, 0, cfg)
			require.ErrorContains(r, err, "color -2")
			return nil
		})
	})
}

// A Split that a rank does not take part in ends with its context, and the parent with it.
func TestSplitAlone(t *testing.T) {
	both(t, func(t *testing.T, cfg Config) {
		doubles(t)
		over := make(chan struct{})
		errs := world(t, 2, cfg, func(r *rank) error {
			if r.Rank() == 0 {
				defer close(over)
				ctx, cancel := context.WithTimeout(r.ctx, 30*time.Millisecond)
				defer cancel()
				_, err := r.Split(ctx, 0, 0, cfg)
				require.ErrorIs(r, err, context.DeadlineExceeded)
				return r.AsyncError()
			}
			<-over
			return errors.New("not taking part")
		})
		require.ErrorIs(t, errs[0], ErrClosed)
		require.ErrorContains(t, errs[1], "not taking part")
	})
}

// Streams that wait for a rank which never comes go on after an abort, and nothing is
// written any more.
func TestAbort(t *testing.T) {
	both(t, func(t *testing.T, cfg Config) {
		doubles(t)
		aborted := make(chan struct{})
		errs := world(t, 3, cfg, func(r *rank) error {
			if r.Rank() == 2 {
				<-aborted
				return errors.New("gone")
			}
			r.alloc(4, func(p uintptr) {
				r.put(p, []byte{1, 2, 3, 4})
				s := r.stream.Handle()
				check(r.AllReduce(p, p, 4, Uint8, Sum, s))
				check(r.AllReduce(p, p, 4, Uint8, Sum, s))
				done, err := r.stream.Query()
				check(err)
				require.False(r, done)
				if r.Rank() == 0 {
					check(r.Abort())
					check(r.Abort())
					close(aborted)
				} else { // learns of it
					eventually(r.ctx, func() bool { return r.AsyncError() != nil })
					require.ErrorIs(r, r.AsyncError(), RemoteError)
					require.ErrorIs(r, r.AllReduce(p, p, 4, Uint8, Sum, s), RemoteError)
					require.ErrorIs(r, r.Destroy(), RemoteError)
					check(r.Abort())
				}
				require.Equal(r, []byte{1, 2, 3, 4}, r.get(p, 4))
			})
			return ErrClosed
		})
		require.ErrorContains(t, errs[2], "gone")
	})
}

// NCCL leaves a group open on the thread of a Destroy that finds a failure first.
func TestDestroyAfterAFailureNobodySaw(t *testing.T) {
	both(t, func(t *testing.T, cfg Config) {
		doubles(t)
		enqueued := make(chan struct{})
		errs := world(t, 2, cfg, func(r *rank) error {
			r.alloc(4, func(p uintptr) {
				if r.Rank() == 0 {
					<-enqueued
					check(r.Abort())
					return
				}
				check(r.AllReduce(p, p, 4, Uint8, Sum, r.stream.Handle()))
				close(enqueued)
				check(r.stream.Sync())
				require.ErrorIs(r, r.Destroy(), RemoteError)
				check(r.Abort())
			})
			return ErrClosed
		})
		for _, err := range errs {
			require.ErrorIs(t, err, ErrClosed)
		}
	})
}

// A call that hangs in NCCL, because it connects the ranks, returns when another goroutine
// aborts the communicator.
func TestAbortOfACall(t *testing.T) {
	both(t, func(t *testing.T, cfg Config) {
		_, lib := doubles(t)
		t.Setenv("FSDP_DOUBLE_NCCL_CONNECT", "1")
		over := make(chan struct{})
		errs := world(t, 2, cfg, func(r *rank) error {
			if r.Rank() == 1 {
				<-over
				return errors.New("not taking part")
			}
			defer close(over)
			returned := make(chan error, 1)
			r.alloc(4, func(p uintptr) {
				before := lib.Calls("ncclAllReduce")
				go func() { returned <- r.AllReduce(p, p, 4, Uint8, Sum, r.stream.Handle()) }()
				eventually(r.ctx, func() bool { return lib.Calls("ncclAllReduce") > before })
				check(r.AsyncError())
				check(r.Abort())
				require.ErrorIs(r, <-returned, ErrClosed)
			})
			return r.AsyncError()
		})
		require.ErrorIs(t, errs[0], ErrClosed)
		require.ErrorContains(t, errs[1], "not taking part")
	})
}

func TestFinalizeOfAHungCollective(t *testing.T) {
	both(t, func(t *testing.T, cfg Config) {
		doubles(t)
		over := make(chan struct{})
		errs := world(t, 2, cfg, func(r *rank) error {
			if r.Rank() == 1 {
				<-over
				return errors.New("not taking part")
			}
			defer close(over)
			r.alloc(4, func(p uintptr) {
				check(r.AllReduce(p, p, 4, Uint8, Sum, r.stream.Handle()))
				ctx, cancel := context.WithTimeout(r.ctx, 30*time.Millisecond)
				defer cancel()
				require.ErrorIs(r, r.Finalize(ctx), context.DeadlineExceeded)
				check(r.stream.Sync())
			})
			return r.Destroy()
		})
		require.ErrorIs(t, errs[0], ErrClosed)
		require.ErrorContains(t, errs[1], "not taking part")
	})
}

func TestRanksThatDisagree(t *testing.T) {
	for name, f := range map[string]func(r *rank, p, s uintptr) error{
		"count": func(r *rank, p, s uintptr) error { return r.AllReduce(p, p, 4-r.Rank(), Uint8, Sum, s) },
		"op":    func(r *rank, p, s uintptr) error { return r.AllReduce(p, p, 4, Uint8, RedOp(r.Rank()), s) },
		"type":  func(r *rank, p, s uintptr) error { return r.AllReduce(p, p, 4, DataType(r.Rank()), Sum, s) },
		"root":  func(r *rank, p, s uintptr) error { return r.Broadcast(p, p, 4, Uint8, r.Rank(), s) },
		"size of a message": func(r *rank, p, s uintptr) error {
			return r.Group([]Op{
				{Kind: Send, Send: p, Count: 3 - r.Rank(), Peer: 1 - r.Rank()},
				{Kind: Recv, Recv: p + 4, Count: 3 - r.Rank(), Peer: 1 - r.Rank()},
			}, s)
		},
		"lost operation of a group": func(r *rank, p, s uintptr) error {
			group := []Op{
				{Kind: AllReduce, Send: p, Recv: p, Count: 4},
				{Kind: Broadcast, Send: p, Recv: p, Count: 4},
				{Kind: AllReduce, Send: p, Recv: p, Count: 4},
			}
			if r.Rank() == 1 {
				group = append(group[:1], group[2:]...)
			}
			return r.Group(group, s)
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, lib := doubles(t)
			for i, err := range world(t, 2, Config{}, func(r *rank) (err error) {
				r.alloc(8, func(p uintptr) {
					check(f(r, p, r.stream.Handle()))
					check(r.stream.Sync())
					eventually(r.ctx, func() bool { err = r.AsyncError(); return err != nil })
				})
				require.Equal(r, err, r.AllReduce(0, 0, 0, Uint8, Sum, r.stream.Handle()), "the first error stays")
				require.Equal(r, err, r.Finalize(r.ctx))
				return err
			}) {
				require.True(t, errors.Is(err, InvalidUsage) || errors.Is(err, RemoteError), "rank %d: %v", i, err)
				require.ErrorContains(t, err, fmt.Sprintf("rank %d of 2", i))
			}
			drain(t, lib, "rank")
		})
	}
}

// What NCCL refuses leaves the communicator as it was.
func TestRefusedCalls(t *testing.T) {
	cuda, lib := doubles(t)
	inWorld(t, 1, Config{}, func(r *rank) error {
		s := r.stream.Handle()
		other := must(OpenDevice(1))
		foreign := must(other.Alloc(8))
		m := must(r.dev.Alloc(8))
		freed := m.Addr()
		check(m.Free())
		host := must(r.dev.AllocHost(8))
		r.alloc(8, func(p uintptr) {
			for i, err := range []error{
				r.AllReduce(p, p, 9, Uint8, Sum, s),
				r.AllReduce(p, p, 3, Float32, Sum, s),
				r.AllReduce(0, p, 8, Uint8, Sum, s),
				r.AllReduce(p, freed, 8, Uint8, Sum, s),
				r.AllReduce(host.Addr(), p, 8, Uint8, Sum, s),
				r.AllReduce(p, foreign.Addr(), 8, Uint8, Sum, s),
				r.AllReduce(p, p+1, 4, Uint8, Sum, s),
				r.AllReduce(p, p, 8, DataType(12), Sum, s),
				r.AllReduce(p, p, 8, Uint8, Avg+3, s),
				r.AllReduce(p, p, 8, Float8E5M2, Sum, s),
				r.AllReduce(p, p, -1, Uint8, Sum, s),
				r.Broadcast(p, p, 8, Uint8, 1, s),
				r.Send(p, 8, Uint8, -1, s),
				r.Group([]Op{{Kind: Recv, Recv: p, Count: 1}, {Kind: 99}}, s),
			} {
				require.ErrorIs(r, err, InvalidArgument, i)
				require.ErrorContains(r, err, "rank 0 of 1")
			}
			require.ErrorContains(r, r.Group([]Op{{Kind: Send, Send: p, Count: 1}, {Kind: Recv, Recv: p + 4, Count: 5}}, s),
				"ncclRecv, operation 2 of a group of 2: invalid argument")
			check(r.AllReduce(p, p, 8, Uint8, Sum, s))
			check(r.stream.Sync())
			check(r.AsyncError())
		})
		check(host.Free())
		check(foreign.Free())
		return other.Close()
	})
	drain(t, cuda, "not of device memory", "freed")
	drain(t, lib, "another device", "overlap")
}

func TestClosed(t *testing.T) {
	doubles(t)
	for name, end := range map[string]func(r *rank) error{
		"destroyed": func(r *rank) error { return errors.Join(r.Finalize(r.ctx), r.Destroy()) },
		"aborted":   func(r *rank) error { return r.Abort() },
	} {
		t.Run(name, func(t *testing.T) {
			for _, err := range world(t, 1, Config{}, func(r *rank) error {
				check(end(r))
				check(r.Abort())
				_, split := r.Split(r.ctx, 0, 0, Config{})
				for i, err := range []error{
					r.AllGather(0, 0, 1, Int8, 0), r.AsyncError(), split, r.Finalize(r.ctx),
				} {
					require.ErrorIs(r, err, ErrClosed, i)
				}
				return r.Destroy()
			}) {
				require.ErrorIs(t, err, ErrClosed)
			}
		})
	}
}

// Every function may fail. The error has its name, and nothing is left behind.
func TestInjectedFailures(t *testing.T) {
	steps := map[string]func(r *rank, p uintptr) error{
		"ncclAllGather":     func(r *rank, p uintptr) error { return r.AllGather(p, p, 1, Int8, r.stream.Handle()) },
		"ncclReduceScatter": func(r *rank, p uintptr) error { return r.ReduceScatter(p, p, 1, Int8, Sum, r.stream.Handle()) },
		"ncclAllReduce":     func(r *rank, p uintptr) error { return r.AllReduce(p, p, 1, Int8, Sum, r.stream.Handle()) },
		"ncclBroadcast":     func(r *rank, p uintptr) error { return r.Broadcast(p, p, 1, Int8, 0, r.stream.Handle()) },
		"ncclReduce":        func(r *rank, p uintptr) error { return r.Reduce(p, p, 1, Int8, Sum, 0, r.stream.Handle()) },
		"ncclSend":          func(r *rank, p uintptr) error { return r.Send(p, 1, Int8, 0, r.stream.Handle()) },
		"ncclRecv":          func(r *rank, p uintptr) error { return r.Recv(p, 1, Int8, 0, r.stream.Handle()) },
		"ncclGroupStart":    pair,
		"ncclGroupEnd":      pair,
		"ncclCommSplit":     func(r *rank, _ uintptr) error { _, err := r.Split(r.ctx, 0, 0, Config{}); return err },
		"ncclCommUserRank":  func(r *rank, _ uintptr) error { _, err := r.Split(r.ctx, 0, 0, Config{}); return err },
		"ncclCommGetAsyncError": func(r *rank, _ uintptr) error {
			return r.AsyncError()
		},
		"ncclCommFinalize": func(r *rank, _ uintptr) error { return r.Finalize(r.ctx) },
	}
	_, lib := doubles(t)
	for name, f := range steps {
		t.Run(name, func(t *testing.T) {
			errs := world(t, 1, Config{}, func(r *rank) (err error) {
				r.alloc(8, func(p uintptr) {
					lib.Fail(name, 1, int(SystemError))
					err = f(r, p)
				})
				return err
			})
			require.ErrorIs(t, errs[0], SystemError)
			if name == "ncclGroupStart" {
				name = "ncclGroupEnd" // of the group as a whole
			}
			var e *Error
			require.ErrorAs(t, errs[0], &e)
			if e.Size == 1 {
				require.ErrorContains(t, errs[0], "of 1: "+name)
			} else {
				require.ErrorContains(t, errs[0], name)
			}
			require.ErrorContains(t, errs[0], "injected")
		})
	}
	lib.Fail("ncclGetUniqueId", 1, int(SystemError))
	_, err := NewUniqueID()
	require.ErrorContains(t, err, "ncclGetUniqueId: system error: ncclGetUniqueId: injected")
	id, err := NewUniqueID()
	require.NoError(t, err)
	alone(t, func(r *rank) {
		lib.Fail("ncclCommInitRankConfig", 1, int(InternalError))
		_, err := NewCommunicator(r.ctx, r.dev, 1, id, 0, Config{Name: "x"})
		require.EqualError(r, err, `nccl: rank 0 of 1 of "x": ncclCommInitRankConfig: internal error: ncclCommInitRankConfig: injected by a test`)
	})
}

func pair(r *rank, p uintptr) error {
	return r.Group([]Op{{Kind: Send, Send: p, Count: 1}, {Kind: Recv, Recv: p + 4, Count: 1}}, r.stream.Handle())
}

// Destroy and Abort that fail say so, and the communicator is closed.
func TestFailingEnd(t *testing.T) {
	_, lib := doubles(t)
	errs := world(t, 1, Config{}, func(r *rank) error {
		lib.Fail("ncclCommAbort", 1, int(InternalError))
		err := r.Abort()
		require.ErrorContains(r, err, "ncclCommAbort: internal error")
		return err
	})
	require.ErrorIs(t, errs[0], InternalError)
}
