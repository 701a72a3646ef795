package state

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
)

// Writes are the files that a rank writes, one Save or Export at a time. They implement ranks.Files. A
// write that does not end is left behind in its goroutine: it may still read the memory that it was given,
// so that stays allocated until it ends, and the next method that writes is refused until then.
type Writes struct {
	// Warn is called once for an operation that takes very long.
	Warn func(what string, d time.Duration)

	activity checkpoint.Activity
	mu       sync.Mutex
	left     *leftWrite // the last one
}

type leftWrite struct {
	what  string
	begin time.Time
	done  <-chan struct{}
}

// Oldest implements ranks.Files.
func (w *Writes) Oldest() (what string, begin time.Time) { return w.activity.Oldest() }

// Slow implements ranks.Files.
func (w *Writes) Slow(what string, d time.Duration) {
	if w.Warn != nil {
		w.Warn(what, d)
	}
}

// Leave implements ranks.Files.
func (w *Writes) Leave(what string, begin time.Time, done <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left = &leftWrite{what, begin, done}
}

// Left returns what ends with the write that was left behind, and an error that names it; or nil if there
// is none, or it has ended.
func (w *Writes) Left() (done <-chan struct{}, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.left == nil {
		return nil, nil
	}
	select {
	case <-w.left.done:
		w.left = nil
		return nil, nil
	default:
		return w.left.done, fmt.Errorf("%s, which began %v ago, has not ended: the file system does not answer",
			w.left.what, time.Since(w.left.begin).Round(time.Second))
	}
}

// Await waits until the write that was left behind has ended, or has taken so long. It returns what Left
// does.
func (w *Writes) Await(limit time.Duration) (done <-chan struct{}, err error) {
	w.mu.Lock()
	left := w.left
	w.mu.Unlock()
	if left != nil {
		timer := time.NewTimer(limit - time.Since(left.begin))
		defer timer.Stop()
		select {
		case <-left.done:
		case <-timer.C:
		}
	}
	return w.Left()
}

// short runs work that no other rank waits for, such as the removal of files, for a second at most.
func (w *Writes) short(work func() error) error {
	return ranks.Run(context.Background(), w, time.Second, func(context.Context) error { return work() })
}
