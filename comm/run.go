package comm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/comm/internal/limit"
	"github.com/gofsdp/gofsdp/comm/internal/local"
	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/internal/launch"
)

// Run calls f on n ranks of a new in-process group, one goroutine each, and returns when
// all calls have returned.
//
// The context of every rank ends, with the failure as its cause, as soon as any rank
// fails: returns an error, panics, or exits its goroutine. The group is aborted with it,
// so that no rank waits for one that is gone. Run then returns the first failure, "rank
// 2: …", not the failures that it led to; a panic carries its stack. A rank's handle is
// closed when its f returns. If some rank has not returned 5 s after a failure, Run logs
// it on [slog.Default].
//
// In a process that a launcher has started Run calls f once instead, on the rank
// of the environment, see [FromEnv]. The launcher's number of ranks counts then,
// not n.
func Run(ctx context.Context, n int, f func(context.Context, Group) error) error {
	if n < 1 {
		return fmt.Errorf("comm: cannot run %d ranks, want at least 1", n)
	}
	cfg, launched, err := ConfigFromEnv()
	if err != nil {
		return err
	}
	groups := local.New(n, cmp.Or(cfg.Timeout, limit.Default))
	if launched {
		g, err := Connect(ctx, cfg)
		if err != nil {
			return err
		}
		groups = []Group{g}
	} else {
		launch.Goroutines.Add(int64(n))
		defer launch.Goroutines.Add(-int64(n))
	}
	return run(ctx, groups, f)
}

// run calls f with every handle.
func run(ctx context.Context, groups []Group, f func(context.Context, Group) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ends := make(chan rankEnd, 2*len(groups)) // a failure and the return of each
	for _, g := range groups {
		go func() {
			err := errExited // remains if f ends the goroutine
			defer func() {
				if v := recover(); v != nil {
					err = panicError(v)
				}
				if err != nil {
					fail := rankFailure{g.Rank(), err}
					ends <- rankEnd{rankFailure: fail} // first, so that it precedes its consequences
					cancel(fail.error())
					g.Abort(err)
				}
				// Frees peers that wait for a rank that has finished.
				cerr := g.Close()
				if err != nil {
					cerr = nil
				}
				ends <- rankEnd{rankFailure{g.Rank(), cerr}, true}
			}()
			err = f(ctx, g)
		}()
	}
	return rootCause(failures(ends, groups))
}

// failures returns the failures of a run in order when all ranks have returned. Meanwhile
// it warns of ranks that go on though another one has failed.
func failures(ends <-chan rankEnd, groups []Group) (list []rankFailure) {
	var left []int
	for _, g := range groups {
		left = append(left, g.Rank())
	}
	late := time.NewTimer(0)
	late.Stop()
	defer late.Stop()
	for len(left) > 0 {
		select {
		case e := <-ends:
			if e.err != nil {
				list = append(list, e.rankFailure)
			}
			if e.returned {
				left = slices.DeleteFunc(left, func(rank int) bool { return rank == e.rank })
			} else {
				late.Reset(lateAfter)
			}
		case <-late.C:
			late.Reset(lateAgain)
			slog.Warn("comm: a rank has failed, and Run waits for the other ranks to return", "failure", list[0].error(), "waits for ranks", left)
		}
	}
	return list
}

// How long after a failure Run says that it waits for other ranks, and how often again.
const (
	lateAfter = 5 * time.Second
	lateAgain = time.Minute
)

// rankEnd says that f has failed on a rank, or that the rank has returned.
type rankEnd struct {
	rankFailure
	returned bool
}

// rankFailure is how f ended on a rank.
type rankFailure struct {
	rank int
	err  error
}

// error returns the error with the name of the rank, unless it contains it already.
func (f rankFailure) error() error {
	if name := fmt.Sprintf("rank %d: ", f.rank); !strings.Contains(f.err.Error(), name) {
		return fmt.Errorf("%s%w", name, f.err)
	}
	return f.err
}

// rootCause picks the root cause from the failures of a run, in order of time. It is the
// first, unless that only reports another rank, and that rank reports its own failure: a
// rank that closes its handle on the way out of a failing f may be overtaken by a peer.
// (A rank that was merely cancelled reports nothing.)
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

// blames returns the other rank that f reports as failed, if it does.
func blames(f rankFailure) (rank int, ok bool) {
	var e *RankError
	if errors.As(f.err, &e) && e.Group == transport.WorldName && e.Rank != f.rank {
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
