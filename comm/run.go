package comm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
)

// Run calls f on n ranks of a new in-process group, one goroutine each, and
// returns when all of them have.
//
// The context of a rank ends, with the failure as its cause, as soon as any rank
// fails: returns an error, panics, or exits its goroutine. The group is aborted
// with it, so that no rank waits for one that is gone. Run then returns the
// failure that came first, "rank 2: …", not the ones it led to; a panic carries
// its stack. A rank's handle is closed when its f returns.
//
// In a process that a launcher has started Run calls f once instead, on the rank
// of the environment, see [FromEnv]. The launcher's number of ranks counts then,
// not n.
func Run(ctx context.Context, n int, f func(context.Context, Group) error) error {
	if n < 1 {
		return fmt.Errorf("comm: cannot run %d ranks", n)
	}
	cfg, launched, err := ConfigFromEnv()
	if err != nil {
		return err
	}
	groups := localGroups(n, cmp.Or(cfg.Timeout, defaultTimeout))
	if launched {
		g, err := Connect(ctx, cfg)
		if err != nil {
			return err
		}
		groups = []Group{g}
	}
	return run(ctx, groups, f)
}

// run calls f with every handle.
func run(ctx context.Context, groups []Group, f func(context.Context, Group) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	failures := make(chan rankFailure, len(groups))
	var ranks sync.WaitGroup
	for _, g := range groups {
		ranks.Go(func() {
			err := errExited // what remains if f ends the goroutine
			defer func() {
				if v := recover(); v != nil {
					err = panicError(v)
				}
				if err != nil {
					fail := rankFailure{g.Rank(), err}
					failures <- fail // first, so that it precedes what it leads to
					cancel(fail.error())
					g.Abort(err)
				}
				// Frees peers that count on a rank which is done.
				if cerr := g.Close(); err == nil && cerr != nil {
					failures <- rankFailure{g.Rank(), cerr}
				}
			}()
			err = f(ctx, g)
		})
	}
	ranks.Wait()
	close(failures)
	var inOrder []rankFailure
	for f := range failures {
		inOrder = append(inOrder, f)
	}
	return rootCause(inOrder)
}

// rankFailure is how f ended on a rank.
type rankFailure struct {
	rank int
	err  error
}

// error returns the error with the name of the rank, unless it has that already.
func (f rankFailure) error() error {
	if name := fmt.Sprintf("rank %d: ", f.rank); !strings.Contains(f.err.Error(), name) {
		return fmt.Errorf("%s%w", name, f.err)
	}
	return f.err
}

// rootCause picks what went wrong from the failures of a run, in order of time.
// That is the first, unless it only reports what another rank did, and that rank
// tells by itself: a rank that closes its handle on the way out of a failing f
// may be overtaken by a peer. (A rank that was merely cancelled tells nothing.)
func rootCause(failures []rankFailure) error {
	if len(failures) == 0 {
		return nil
	}
	first := failures[0]
	blamed, ok := blames(first)
	if !ok {
		return first.error()
	}
	for _, f := range failures {
		if f.rank == blamed && !errors.Is(f.err, context.Canceled) {
			return f.error()
		}
	}
	return first.error()
}

// blames returns the other rank that f reports to have failed, if it does.
func blames(f rankFailure) (rank int, ok bool) {
	var e *RankError
	if errors.As(f.err, &e) && e.Group == worldName && e.Rank != f.rank {
		return e.Rank, true
	}
	return 0, false
}

// errExited is the failure of a rank whose f called runtime.Goexit, as FailNow of
// a test does.
var errExited = errors.New("goroutine ended without returning")

// panicError turns a recovered panic into an error that carries the stack.
func panicError(v any) error {
	if err, ok := v.(error); ok {
		return fmt.Errorf("panic: %w\n%s", err, debug.Stack())
	}
	return fmt.Errorf("panic: %v\n%s", v, debug.Stack())
}
