package comm

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/comm/internal/limit"
)

// A rank that waits for others to join logs so after firstWord, and again every nextWord, so that
// users do not see silence until JoinTimeout.
const (
	firstWord = 5 * time.Second
	nextWord  = 30 * time.Second

	defaultJoinTimeout = 5 * time.Minute

	mostNamed = 32 // ranks named in one message
)

// joining is a rank on its way into the job.
type joining struct {
	cfg       Config
	next      time.Duration // waited time at which the next message is due
	fail      func(error)   // ends joining
	unrelated *slog.Logger  // logs unrelated processes

	mu    sync.Mutex
	what  string       // the pending step of the other ranks, such as "join"
	whom  func() []int // ranks with this step pending
	cause error        // of the wait, if known
}

// startJoining returns a context that ends after JoinTimeout. Until done is called, the rank logs
// which ranks it waits for.
func startJoining(ctx context.Context, cfg Config) (_ context.Context, j *joining, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	j = &joining{cfg: cfg, next: min(firstWord, cfg.JoinTimeout/2), fail: cancel, whom: func() []int { return nil }}
	j.unrelated = slog.New(sparing{cfg.Logger.Handler(), &spared{}})
	stop := limit.Watch(cfg.JoinTimeout, func(waited time.Duration) {
		switch {
		case waited >= cfg.JoinTimeout:
			cancel(fmt.Errorf("timed out after %v (the limit is FSDP_JOIN_TIMEOUT, or Config.JoinTimeout)", cfg.JoinTimeout))
		case waited >= j.next:
			j.next += nextWord
			j.say(waited)
		}
	})
	return ctx, j, func() { stop(); cancel(nil) }
}

// waitsFor sets the reason why the rank waits: the ranks that whom returns have not yet done the step
// named by what.
func (j *joining) waitsFor(what string, whom func() []int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.what, j.whom, j.cause = what, whom, nil
}

// otherRanks returns all ranks but this one.
func (j *joining) otherRanks() (ranks []int) {
	for r := range j.cfg.Size {
		if r != j.cfg.Rank {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// note records why the wait has not ended yet.
func (j *joining) note(cause error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.cause = cause
}

// say logs which ranks this rank waits for and where, if it waits for any.
func (j *joining) say(waited time.Duration) {
	j.mu.Lock()
	what, whom, cause := j.what, j.whom(), j.cause
	j.mu.Unlock()
	if len(whom) == 0 {
		return
	}
	details := []any{"at", j.cfg.Rendezvous, "for", waited.Round(time.Second), "FSDP_JOIN_TIMEOUT", j.cfg.JoinTimeout}
	if cause != nil {
		details = append(details, "because", cause)
	}
	more := ""
	if n := len(whom); n > mostNamed {
		whom, more = whom[:mostNamed], fmt.Sprintf(" and %d more", n-mostNamed)
	}
	text := fmt.Sprintf("comm: rank %d of %d waits for ranks %v%s to %s", j.cfg.Rank, j.cfg.Size, whom, more, what)
	j.cfg.Logger.Warn(text, details...)
}
