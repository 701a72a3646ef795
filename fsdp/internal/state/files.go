package state

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
)

// Files runs the file operations of a rank, of one method at a time. It implements ranks.Files.
// Work that does not end is left behind in its goroutine. It may still use the memory that it was
// given, so that memory stays allocated until it ends, and the next method is refused until then.
type Files struct {
	// Warn is called once for an operation that takes very long.
	Warn func(what string, d time.Duration)

	activity checkpoint.Activity
	mu       sync.Mutex
	left     *leftWork // the last one
}

type leftWork struct {
	what  string
	begin time.Time
	done  <-chan struct{}
}

// on returns fsys for a method that begins. Operations of earlier methods do not count any more.
func (f *Files) on(fsys checkpoint.FS) checkpoint.FS {
	f.activity.Forget()
	return f.activity.On(fsys)
}

// Oldest implements ranks.Files.
func (f *Files) Oldest() (what string, begin time.Time) { return f.activity.Oldest() }

// Slow implements ranks.Files.
func (f *Files) Slow(what string, d time.Duration) {
	if f.Warn != nil {
		f.Warn(what, d)
	}
}

// Leave implements ranks.Files.
func (f *Files) Leave(what string, begin time.Time, done <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left = &leftWork{what, begin, done}
}

// Left returns a channel that is closed when the work left behind has ended, and an error that
// names it. It returns nil if there is no such work, or it has ended.
func (f *Files) Left() (done <-chan struct{}, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.left == nil {
		return nil, nil
	}
	select {
	case <-f.left.done:
		f.left = nil
		return nil, nil
	default:
		return f.left.done, fmt.Errorf("%s has not ended for %v: the file system does not answer",
			f.left.what, time.Since(f.left.begin).Round(time.Second))
	}
}

// Await waits until the work left behind has ended, or has taken limit. It returns the results of
// Left.
func (f *Files) Await(limit time.Duration) (done <-chan struct{}, err error) {
	f.mu.Lock()
	left := f.left
	f.mu.Unlock()
	if left != nil {
		timer := time.NewTimer(limit - time.Since(left.begin))
		defer timer.Stop()
		select {
		case <-left.done:
		case <-timer.C:
		}
	}
	return f.Left()
}

// short runs work that no other rank waits for, such as removing or closing files, for a second at
// most.
func (f *Files) short(work func() error) error {
	return ranks.Run(context.Background(), f, time.Second, func(context.Context) error { return work() })
}
