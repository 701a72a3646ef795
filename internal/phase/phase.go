// Package phase logs the progress of operations that may take long, such as reading a model:
//
//	p := phase.Begin("data: measuring samples", total)
//	defer p.End()
//	… p.Add(1)
//
// It logs the progress after a second, then after 5, 10, 20 and 40 more, and then once a minute. A
// fast operation logs nothing. If several ranks do the same, one logs: rank 0 of a launcher's job,
// or the first rank that begins in a process.
package phase

import (
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofsdp/gofsdp/internal/launch"
)

// A Phase is an operation under way. Its methods may be called by any goroutine. They do nothing if
// it is nil.
type Phase struct {
	what  string
	total int
	done  atomic.Int64
	begin time.Time

	mu    sync.Mutex
	timer *time.Timer
	wait  time.Duration // until the next line
	shown bool
	ended bool
}

// running has the phases of this process by name.
var running sync.Map

const (
	first   = time.Second
	next    = 5 * time.Second
	longest = time.Minute
)

// Begin begins a phase of total parts, or of an unknown number if total is 0. It returns nil if
// another rank logs.
func Begin(what string, total int) *Phase {
	if env, launched, err := launch.Parse(os.Getenv); err == nil && launched && env.Rank > 0 {
		return nil
	}
	p := &Phase{what: what, total: total, begin: time.Now(), wait: next}
	if _, other := running.LoadOrStore(what, p); other {
		return nil
	}
	p.mu.Lock() // show reads the timer
	defer p.mu.Unlock()
	p.timer = time.AfterFunc(first, p.show)
	return p
}

// Add counts n more parts as done.
func (p *Phase) Add(n int) {
	if p != nil {
		p.done.Add(int64(n))
	}
}

// show logs the progress.
func (p *Phase) show() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	p.shown = true
	p.log("for")
	p.timer.Reset(p.wait)
	p.wait = min(2*p.wait, longest)
}

// log logs the progress, and the time under a name.
func (p *Phase) log(name string) {
	args := []any{name, time.Since(p.begin).Round(100 * time.Millisecond)}
	switch done := p.done.Load(); {
	case p.total > 0:
		args = append([]any{"done", done, "of", p.total}, args...)
	case done > 0:
		args = append([]any{"done", done}, args...)
	}
	slog.Info(p.what, args...)
}

// End ends the phase. If it has logged something, it logs the time that the phase has taken.
func (p *Phase) End() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	p.ended = true
	p.timer.Stop()
	running.Delete(p.what)
	if p.shown {
		p.log("took")
	}
}
