package transport

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/mesh"
)

var (
	errFull   = errors.New("disk full")
	errHalted = errors.New("stopped")
)

// causeOf waits for the end of ctx and returns the cause.
func causeOf(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// stage is a Backend whose collectives end when the test says so.
type stage struct {
	results chan error // of the collective under way
	halt    chan struct{}
	split   func(context.Context) (Group, error)

	mu   sync.Mutex
	runs []uint64
	told []error
	over bool          // Stop has been called
	left []uint64      // the arguments of Leave
	slow chan struct{} // if there is one, Tell returns when it is closed
	late bool          // Tell or Stop has been called after it
}

func (b *stage) Run(ctx context.Context, seq uint64, _ *Call) error {
	b.mu.Lock()
	b.runs = append(b.runs, seq)
	b.mu.Unlock()
	select {
	case err := <-b.results:
		return err
	case <-b.halt:
		return errHalted
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (b *stage) Missing() []int { return []int{1} }

func (b *stage) Split(ctx context.Context, _ uint64, _ int, _ []int) (Group, error) {
	return b.split(ctx)
}

func (b *stage) Tell(err error) {
	if b.slow != nil {
		<-b.slow
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.told = append(b.told, err)
	b.late = b.late || b.left != nil
}

func (b *stage) Stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.over {
		close(b.halt)
	}
	b.over = true
	b.late = b.late || b.left != nil
}

func (b *stage) Leave(last uint64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = append(b.left, last)
	return nil
}

// staged returns rank 0 of three on a stage.
func staged() (*Serial, *stage) {
	b := &stage{results: make(chan error), halt: make(chan struct{})}
	return NewSerial("g", 0, 3, b), b
}

// onStage calls f with rank 0 of three in a bubble, and closes it.
func onStage(t *testing.T, f func(t *testing.T, s *Serial, b *stage)) {
	synctest.Test(t, func(t *testing.T) {
		s, b := staged()
		defer s.Close()
		f(t, s, b)
		require.NoError(t, s.Close())
		require.Len(t, b.left, 1)
		require.False(t, b.late)
	})
}

// reduce issues an operation.
func reduce(s *Serial) Work { return s.AllReduce(Of([]float32{1}).Named("h.3"), Sum) }

// waiting waits in a goroutine of its own.
func waiting(ctx context.Context, w Work) <-chan error {
	done := make(chan error, 1)
	go func() { done <- w.Wait(ctx) }()
	return done
}

// TestSerialLetsNewsOvertake breaks a connection, or has another rank be blamed,
// before the news of the reason is here.
func TestSerialLetsNewsOvertake(t *testing.T) {
	reason := &RankError{"g", 2, errFull}
	for name, effect := range map[string]error{
		"lost":           ErrLost,
		"another blamed": &RankError{"g", 1, errors.New("stopped")},
		"ended":          &RankError{"g", 1, ErrEnded},
	} {
		patience := Grace
		if errors.Is(effect, ErrEnded) { // which is no reason
			patience = mesh.Unanswered + Grace
		}
		t.Run(name, func(t *testing.T) {
			onStage(t, func(t *testing.T, s *Serial, b *stage) {
				done := waiting(t.Context(), reduce(s))
				b.results <- effect
				time.Sleep(patience * 3 / 4)
				s.Failed(reason)
				require.Equal(t, error(reason), <-done)
				require.Empty(t, b.told, "it was told already")
			})
		})
		t.Run(name+" for no other reason", func(t *testing.T) {
			onStage(t, func(t *testing.T, s *Serial, b *stage) {
				begin := time.Now()
				done := waiting(t.Context(), reduce(s))
				b.results <- effect
				err := <-done
				require.ErrorIs(t, err, effect)
				require.Equal(t, patience, time.Since(begin))
				require.Equal(t, []error{err}, b.told)
			})
		})
	}
	onStage(t, func(t *testing.T, s *Serial, b *stage) { // but not longer than the caller waits
		ctx, cancel := context.WithTimeout(t.Context(), Grace/4)
		defer cancel()
		begin := time.Now()
		done := waiting(ctx, reduce(s))
		b.results <- ErrLost
		require.Error(t, <-done)
		require.Equal(t, Grace/4, time.Since(begin))
	})
}

// TestSerialLeftSpares has a rank leave that has completed more than this one.
func TestSerialLeftSpares(t *testing.T) {
	onStage(t, func(t *testing.T, s *Serial, b *stage) {
		first := reduce(s)
		s.Left(1, 3)
		second, third, fourth := reduce(s), reduce(s), reduce(s)
		for range 3 { // without anybody who waits
			b.results <- nil
			synctest.Wait()
		}
		for _, w := range []Work{first, second, third} {
			require.NoError(t, w.Wait(t.Context()))
		}
		err := fourth.Wait(t.Context())
		require.Equal(t, &RankError{"g", 1, ErrClosed}, err)
		require.Equal(t, []uint64{1, 2, 3}, b.runs)
		require.Equal(t, err, reduce(s).Wait(t.Context()))
		require.Equal(t, err, s.AllReduce(Buffer{}, Sum).Wait(t.Context()), "the first failure is sticky")
		require.Empty(t, b.told)
	})
}

// TestSerialLeftThenFails has this rank fail in what a rank that has left spares:
// the others count on it.
func TestSerialLeftThenFails(t *testing.T) {
	onStage(t, func(t *testing.T, s *Serial, b *stage) {
		first, second, third := reduce(s), reduce(s), reduce(s)
		b.results <- nil
		s.Left(1, 2)
		err := third.Wait(t.Context())
		require.ErrorIs(t, err, ErrClosed)
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errFull)
		gaveUp := second.Wait(ctx)
		require.ErrorIs(t, gaveUp, errFull)
		require.Equal(t, []error{gaveUp}, b.told)
		require.True(t, b.over)
		for range 2 { // every operation keeps its answer
			require.NoError(t, first.Wait(t.Context()))
			require.Equal(t, gaveUp, second.Wait(t.Context()))
			require.Equal(t, err, third.Wait(t.Context()))
		}
		s.Left(2, 1)
		require.Equal(t, gaveUp, second.Wait(t.Context()))
	})
}

// TestSerialCloseDrains closes a handle under operations.
func TestSerialCloseDrains(t *testing.T) {
	closing := func(s *Serial) <-chan error {
		closed := make(chan error, 1)
		go func() { closed <- s.Close() }()
		synctest.Wait()
		return closed
	}
	t.Run("that complete", func(t *testing.T) {
		onStage(t, func(t *testing.T, s *Serial, b *stage) {
			first, second := reduce(s), reduce(s)
			closed := closing(s)
			require.ErrorIs(t, reduce(s).Wait(t.Context()), ErrClosed)
			b.results <- nil
			b.results <- nil
			require.NoError(t, <-closed)
			require.NoError(t, first.Wait(t.Context()))
			require.NoError(t, second.Wait(t.Context()))
			require.Equal(t, []uint64{2}, b.left)
		})
	})
	t.Run("that a rank which has left spares", func(t *testing.T) {
		onStage(t, func(t *testing.T, s *Serial, b *stage) {
			first, second := reduce(s), reduce(s)
			s.Left(1, 1)
			closed := closing(s)
			b.results <- nil
			require.NoError(t, <-closed)
			require.NoError(t, first.Wait(t.Context()))
			require.Equal(t, &RankError{"g", 1, ErrClosed}, second.Wait(t.Context()))
			require.Equal(t, []uint64{1}, b.left)
		})
	})
	t.Run("that do not", func(t *testing.T) {
		onStage(t, func(t *testing.T, s *Serial, b *stage) {
			first := waiting(t.Context(), reduce(s))
			synctest.Wait()
			second := reduce(s)
			begin := time.Now()
			closed, again := closing(s), closing(s)
			b.results <- nil
			require.NoError(t, <-closed)
			require.NoError(t, <-again)
			require.Equal(t, Grace, time.Since(begin))
			require.NoError(t, <-first)
			require.Equal(t, &RankError{"g", 0, ErrClosed}, second.Wait(t.Context()))
			require.Equal(t, []uint64{1}, b.left)
			require.Empty(t, b.told, "Leave tells it, and what is complete here")
		})
	})
}

// TestSerialRunsOnce has many wait for a collective that fails: it is not tried again.
func TestSerialRunsOnce(t *testing.T) {
	onStage(t, func(t *testing.T, s *Serial, b *stage) {
		w := reduce(s)
		var errs []<-chan error
		for range 20 {
			errs = append(errs, waiting(t.Context(), w))
		}
		synctest.Wait()
		b.results <- errFull
		for _, err := range errs {
			require.ErrorIs(t, <-err, errFull)
		}
		require.Equal(t, []uint64{1}, b.runs)
		require.Len(t, b.told, 1)
	})
}

// TestSerialCompleteAndCancelled ends the context of a waiter at the very moment at
// which what it waits for is complete.
func TestSerialCompleteAndCancelled(t *testing.T) {
	onStage(t, func(t *testing.T, s *Serial, b *stage) {
		w := reduce(s)
		synctest.Wait() // the group's own goroutine runs it
		ctx, cancel := context.WithCancel(t.Context())
		done := waiting(ctx, w)
		synctest.Wait()
		s.mu.Lock()
		cancel()
		s.done = 1
		s.waiters.Wake(s.done)
		s.mu.Unlock()
		require.NoError(t, <-done)
		b.results <- nil
		next := reduce(s)
		b.results <- nil
		require.NoError(t, next.Wait(t.Context()), "the group has not failed")
	})
}

// TestSerialHoldsBuffers has a waiter give up while the backend is in its buffers.
func TestSerialHoldsBuffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &stubborn{leave: make(chan struct{})}
		s := NewSerial("g", 0, 3, b)
		w := reduce(s)
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		done := waiting(ctx, w)
		synctest.Wait()
		select {
		case <-done:
			t.Fatal("Wait has returned")
		default:
		}
		close(b.leave)
		require.ErrorIs(t, <-done, context.Canceled)
		require.NoError(t, s.Close())
	})
}

// stubborn is a Backend that takes long to stop.
type stubborn struct {
	idle
	leave chan struct{}
}

func (d *stubborn) Run(context.Context, uint64, *Call) error { <-d.leave; return errHalted }
func (d *stubborn) Missing() []int                           { return nil }
func (d *stubborn) Tell(error)                               {}

// TestSerialCloseEndsSplit closes a handle while a group is being made of it.
func TestSerialCloseEndsSplit(t *testing.T) {
	splitting := func(s *Serial, b *stage) (made <-chan error) {
		ch := make(chan error, 1)
		go func() {
			_, err := s.Split(context.Background(), 1, 0)
			ch <- err
		}()
		b.results <- nil
		synctest.Wait()
		return ch
	}
	t.Run("before it is made", func(t *testing.T) {
		onStage(t, func(t *testing.T, s *Serial, b *stage) {
			b.split = func(ctx context.Context) (Group, error) { return nil, causeOf(ctx) }
			made := splitting(s, b)
			begin := time.Now()
			require.NoError(t, s.Close())
			require.Zero(t, time.Since(begin))
			require.ErrorIs(t, <-made, ErrClosed)
			require.Empty(t, b.told)
		})
	})
	t.Run("when it is made", func(t *testing.T) {
		onStage(t, func(t *testing.T, s *Serial, b *stage) {
			child, below := staged()
			b.split = func(ctx context.Context) (Group, error) {
				<-ctx.Done()
				return child, nil
			}
			made := splitting(s, b)
			require.NoError(t, s.Close())
			require.ErrorIs(t, <-made, ErrClosed)
			require.Equal(t, []uint64{0}, below.left)
		})
	})
}

// TestSerialSplitSaysWhy has a group not be made after another rank, which has its own by then, has
// left: that is not the reason.
func TestSerialSplitSaysWhy(t *testing.T) {
	onStage(t, func(t *testing.T, s *Serial, b *stage) {
		b.split = func(context.Context) (Group, error) {
			s.Left(2, 1)
			return nil, errFull
		}
		made := make(chan error, 1)
		go func() {
			_, err := s.Split(t.Context(), 1, 0)
			made <- err
		}()
		b.results <- nil
		require.ErrorIs(t, <-made, errFull)
		require.ErrorIs(t, s.Barrier(t.Context()), ErrClosed)
	})
}

// TestSerialLeavesLast closes a handle while the other ranks are being told that
// it has failed.
func TestSerialLeavesLast(t *testing.T) {
	onStage(t, func(t *testing.T, s *Serial, b *stage) {
		b.slow = make(chan struct{})
		go s.Abort(errFull)
		synctest.Wait()
		go s.Close()
		synctest.Wait()
		require.Empty(t, b.left)
		close(b.slow)
		require.NoError(t, s.Close())
		require.Len(t, b.told, 1)
	})
}

// TestSerialQuietAfterLeave has everything happen at once: the backend is used by
// nobody when it has left.
func TestSerialQuietAfterLeave(t *testing.T) {
	for range 100 {
		s, b := staged()
		w := reduce(s)
		var all sync.WaitGroup
		for _, f := range []func(){
			func() { s.Abort(errFull) },
			func() { s.Failed(&RankError{"g", 1, errFull}) },
			func() { s.Left(1, 7) },
			func() { s.Left(2, 0) },
			func() { _ = w.Wait(context.Background()) },
			func() { _ = reduce(s).Wait(context.Background()) },
			func() { b.results <- ErrLost },
			func() { _ = s.Close() },
			func() { _ = s.Close() },
		} {
			all.Go(f)
		}
		go func() { // whatever did not come to its end
			all.Wait()
			close(b.results)
		}()
		for open := true; open; {
			_, open = <-b.results
		}
		require.Len(t, b.left, 1)
		require.False(t, b.late)
	}
}

// beginner is a stage whose Begin returns when the test says so.
type beginner struct {
	*stage
	on chan struct{}
}

func (b *beginner) Begin(uint64, *Call) bool { <-b.on; return true }

// TestIssuedWhileOneIsBegun issues a second collective while the first is being begun: the group runs
// both, though nobody waits.
func TestIssuedWhileOneIsBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &beginner{&stage{results: make(chan error), halt: make(chan struct{})}, make(chan struct{})}
		s := NewSerial("g", 0, 2, b)
		go reduce(s)
		synctest.Wait()
		reduce(s)
		synctest.Wait() // the group has looked for something to run, in vain
		close(b.on)
		synctest.Wait()
		b.mu.Lock()
		require.Equal(t, []uint64{1}, b.runs)
		b.mu.Unlock()
		b.results <- nil
		b.results <- nil
		require.NoError(t, s.Close())
	})
}

// TestBegunIsLeftToWhoWaits: the goroutine of the group does not run a collective that its backend has begun.
func TestBegunIsLeftToWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &beginner{&stage{results: make(chan error, 1), halt: make(chan struct{})}, make(chan struct{})}
		close(b.on)
		s := NewSerial("g", 0, 2, b)
		w := reduce(s)
		require.Empty(t, s.wake)
		synctest.Wait()
		b.mu.Lock()
		require.Empty(t, b.runs)
		b.mu.Unlock()
		b.results <- nil
		require.NoError(t, w.Wait(t.Context()))
		require.NoError(t, s.Close())
	})
}

func TestSerialDoesNotAllocate(t *testing.T) {
	s := NewSerial("alone", 0, 1, idle{})
	x := Of(make([]float32, 8)).Named("x")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	require.Zero(t, testing.AllocsPerRun(100, func() {
		require.NoError(t, s.AllReduce(x, Sum).Wait(ctx))
	}))
	require.NoError(t, s.Close())
}

// idle is a Backend that has nothing to do.
type idle struct{ Backend }

func (idle) Run(context.Context, uint64, *Call) error { return nil }
func (idle) Stop()                                    {}
func (idle) Leave(uint64) error                       { return nil }
