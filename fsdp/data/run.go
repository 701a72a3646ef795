package data

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/caught"
)

// A run is a loop over batches. Only the loop decides: it gives slots to the workers, in order, and
// takes them back in the same order, so a batch is made ahead exactly if its slot is in the queue.
//
//	free ──▶ queue: workers fill its slots ──▶ taken: the loop body has its batch ──▶ free
//
// A free slot keeps the memory of its samples. Its batch belongs to the loop body, which may keep
// it as long as it likes: the next batch of the slot has other memory.
type run[T any] struct {
	*Loader[T]
	into    func(i int, memory T) (T, error) // Into of the source, or nil
	start   int                              // samples consumed before the loop
	now     int                              // last iteration whose batch was taken from the queue
	asked   int                              // next iteration to be put into the queue
	jobs    chan *slot[T]
	stopped atomic.Bool
	workers sync.WaitGroup
}

// slots belong to a loader, which reuses them in the next loop.
type slots[T any] struct {
	free  []*slot[T]
	queue []*slot[T] // the oldest first
	taken []*slot[T] // slots of the current step
}

// slot is a batch with its samples.
type slot[T any] struct {
	lo, hi  int // its samples
	samples []T
	batch   Batch
	err     error
	check   bool          // whether to check that its samples are the same when they are read again
	done    chan struct{} // has an element when the batch is made
}

// start begins a loop.
func start[T any](l *Loader[T]) *run[T] {
	r := &run[T]{Loader: l, into: intoOf(l.src), start: l.consumed, jobs: make(chan *slot[T], manyAhead)}
	for range min(l.config.Workers, manyAhead) {
		r.workers.Go(func() {
			for s := range r.jobs {
				r.fill(s)
				r.collect()
			}
		})
	}
	return r
}

// stop ends the workers and takes back their batches.
func (r *run[T]) stop() {
	r.stopped.Store(true)
	close(r.jobs)
	r.workers.Wait()
	queue := r.slots.queue
	r.slots.queue = nil
	for _, s := range queue {
		select {
		case <-s.done:
		default: // all workers had ended before
		}
		r.free(s)
	}
	r.counted.made.Store(0)
}

// next returns the batch of an iteration, or nil if it has no samples of this rank.
func (r *run[T]) next(ctx context.Context, iteration int, s span) ([]fsdp.Tensor, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("before sample %d: %w", s.lo, err)
	}
	if iteration%r.micros == 0 {
		r.recycle()
		if err := r.take(ctx, iteration); err != nil {
			return nil, err
		}
	}
	r.ask() // one more, now that its size is known
	if s.lo == s.hi {
		return nil, nil
	}
	i := slices.IndexFunc(r.slots.taken, func(t *slot[T]) bool { return t.lo == s.lo })
	r.counted.made.Add(-1)
	r.counted.batches.Add(1)
	r.counted.samples.Add(int64(s.hi - s.lo))
	return r.slots.taken[i].batch.tensors, nil
}

// take takes the batches of a step from the queue. It waits until they are made.
func (r *run[T]) take(ctx context.Context, first int) error {
	for r.now = first; r.now < first+r.micros; r.now++ {
		span, ok := r.span(r.start, r.now)
		if r.ask(); !ok {
			return nil
		} else if span.lo == span.hi {
			continue
		}
		s := r.slots.queue[0]
		if err := r.wait(ctx, s); err != nil {
			return err
		}
		r.slots.queue = append(r.slots.queue[:0], r.slots.queue[1:]...)
		r.slots.taken = append(r.slots.taken, s)
		if s.err != nil {
			return s.err
		}
		r.step = append(r.step, s.batch.tensors)
	}
	return nil
}

// wait waits until the batch of a slot is made.
func (r *run[T]) wait(ctx context.Context, s *slot[T]) error {
	select {
	case <-s.done:
		return nil
	default:
	}
	begin := time.Now()
	select {
	case <-s.done:
	case <-ctx.Done():
		return fmt.Errorf("waiting for samples %d to %d: %w", s.lo, s.hi-1, context.Cause(ctx))
	}
	r.counted.waited.Add(int64(time.Since(begin)))
	return nil
}

// ahead returns how many batches may be in the queue: one until the size of a batch is known.
func (r *run[T]) ahead() int {
	largest := int(r.counted.largest.Load())
	if largest == 0 {
		return 1
	}
	return max(1, min(manyAhead, r.config.Prefetch/largest))
}

// recycle frees the slots of the step that the loop body has finished.
func (r *run[T]) recycle() {
	for _, s := range r.slots.taken {
		r.free(s)
	}
	r.slots.taken, r.step = r.slots.taken[:0], nil
}

// free leaves the batch of a slot to the loop body and keeps the slot for the next batch, unless
// there are too many slots.
func (r *run[T]) free(s *slot[T]) {
	r.counted.bytes.Add(-int64(s.batch.bytes))
	s.batch = Batch{}
	if len(r.slots.free)+len(r.slots.queue) <= r.ahead() {
		r.slots.free = append(r.slots.free, s)
	}
}

// mostGarbage is the number of bytes of batches between two garbage collections.
const mostGarbage = 64 << 20

// collect runs the garbage collector after mostGarbage bytes of batches. Go by itself would wait
// until the dead batches are as large as the live heap, which contains the model.
func (r *run[T]) collect() {
	if r.counted.fresh.Load() >= mostGarbage {
		r.counted.fresh.Store(0)
		runtime.GC()
	}
}

// ask puts batches into the queue until it is full, or the source used up. It searches at most
// manyAhead iterations ahead, as a rank may have no samples in any of them.
func (r *run[T]) ask() {
	for len(r.slots.queue) < r.ahead() && r.asked <= r.now+manyAhead {
		next, ok := r.span(r.start, r.asked)
		if !ok {
			return
		}
		if r.asked++; next.lo == next.hi {
			continue
		}
		var s *slot[T]
		if n := len(r.slots.free); n > 0 {
			s, r.slots.free = r.slots.free[n-1], r.slots.free[:n-1]
		} else {
			s = &slot[T]{done: make(chan struct{}, 1)}
		}
		s.lo, s.hi, s.check = next.lo, next.hi, r.rank == 0 && !r.checked
		r.checked = true
		r.slots.queue = append(r.slots.queue, s)
		r.jobs <- s // never blocks: jobs has room for every slot of the queue
	}
}

var errEnded = errors.New("the source or the collate function ended its goroutine, as t.FailNow does")

// fill makes the batch of a slot.
func (r *run[T]) fill(s *slot[T]) {
	s.err = errEnded // unless source and collate function return
	var again *slot[T]
	defer func() {
		made := int64(s.batch.bytes)
		r.counted.bytes.Add(made)
		r.counted.fresh.Add(made)
		for {
			largest := r.counted.largest.Load()
			if made <= largest || r.counted.largest.CompareAndSwap(largest, made) {
				break
			}
		}
		r.counted.made.Add(1)
		s.done <- struct{}{}
		if again != nil {
			var alone sync.WaitGroup // the source may end the goroutine
			slot := again            // a captured again would be an allocation for each batch
			alone.Go(func() { r.readAgain(slot) })
			alone.Wait()
		}
	}()
	if s.err = r.read(s); s.err == nil && !r.stopped.Load() {
		s.err = r.combine(s)
	}
	if s.check && s.err == nil && s.batch.doubt != "" {
		slog.Warn("data: "+s.batch.doubt, "source", describe(r.src))
	}
	if s.check && s.err == nil && !r.stopped.Load() {
		const most = 8 // if half of the samples change, all 8 stay the same by chance with probability 1/256
		again = &slot[T]{lo: s.lo, hi: min(s.hi, s.lo+most), samples: s.samples}
		s.samples = nil // so that no worker overwrites them
	}
}

// readAgain reads samples of a slot again, and warns if they or their batch differ now. The loop
// body already has the batch.
func (r *run[T]) readAgain(s *slot[T]) {
	batch := func(samples []T) (b Batch, err error) {
		defer caught.Panic(&err, "the collate function")
		return b, r.collate(&b, samples)
	}
	samples := s.samples[:s.hi-s.lo]
	s.samples = nil
	first, err := batch(samples)
	if err != nil {
		return // it only takes whole batches
	}
	const advice = "the training depends on the order of workers, the number of ranks and resumption: " +
		"write results into new memory, not into the sample, and take random numbers from data.Augment"
	place := slog.Group("samples", "first", s.lo, "last", s.hi-1)
	if same, err := batch(samples); err != nil || !first.equal(&same) {
		slog.Warn("data: the collate function returns different batches for the same samples, so "+advice, place, "err", err)
	} else if err := r.read(s); err != nil {
		slog.Warn("data: reading a sample again returns an error, so "+advice, "source", describe(r.src), "err", err)
	} else if same, err := batch(samples); err != nil || !first.equal(&same) {
		slog.Warn("data: reading a sample again changes the memory of the sample that was read before, so every epoch changes it further: "+
			"a function of Map or Func must write its result into new memory", "source", describe(r.src), place)
	} else if same, err := batch(s.samples); len(s.samples) == len(samples) && (err != nil || !first.equal(&same)) {
		slog.Warn("data: samples change when they are read again, so "+advice, "source", describe(r.src), place)
	}
}

// read reads the samples of a slot.
func (r *run[T]) read(s *slot[T]) (err error) {
	i := s.lo
	defer func() {
		if err != nil {
			err = fmt.Errorf("sample %d: %w", i, err)
		}
	}()
	defer caught.Panic(&err, "the source")
	s.samples = slices.Grow(s.samples[:0], s.hi-s.lo)
	earlier := s.samples[:s.hi-s.lo]
	for ; i < s.hi && !r.stopped.Load(); i++ {
		sample, err := r.sample(i, earlier[i-s.lo])
		if err != nil {
			return err
		}
		s.samples = append(s.samples, sample)
	}
	return nil
}

// sample reads a sample, into the memory of an earlier one if the source can.
func (r *run[T]) sample(i int, earlier T) (T, error) {
	if into := r.into; into != nil {
		return into(i, earlier)
	}
	return r.src.At(i)
}

// combine makes a batch of the samples of a slot.
func (r *run[T]) combine(s *slot[T]) (err error) {
	defer func() {
		if of, ok := err.(*rowError); ok {
			err = fmt.Errorf("sample %d: %w", s.lo+of.row, of.err)
		} else if err != nil {
			err = fmt.Errorf("samples %d to %d: %w", s.lo, s.hi-1, err)
		}
	}()
	defer caught.Panic(&err, "the collate function")
	if err := r.collate(&s.batch, s.samples); err != nil {
		return err
	}
	if len(s.batch.tensors) == 0 {
		return errors.New("the collate function returned no tensors: call Stack, Column, Pad, Mask or Tensor for each tensor that the model takes")
	}
	return nil
}
