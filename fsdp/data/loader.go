package data

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"os"
	"sync/atomic"
	"time"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/provenance"
	"github.com/gofsdp/gofsdp/internal/launch"
)

// Config says how ranks share out samples, and how far ahead they are read. It is the same on all
// ranks but for Group.
type Config struct {
	// Group is that of the ranks, such as a comm.Group; what counts is this rank's number and how
	// many there are. nil means one rank, with a warning where a launcher or comm.Run has started
	// several.
	Group interface {
		Rank() int
		Size() int
	}
	// Batch is the number of samples of a step: of all ranks and micro batches together. Each gets
	// the same number, to within one. So a training on another number of ranks is the same
	// training.
	Batch int
	// Micro, if positive, is the largest number of samples that a rank takes at once. Steps that
	// leave a rank more are several micro batches, the same number on every rank: see
	// [Loader.StepEnds]. All of them are made before the first is yielded, as [Loader.Share] counts their
	// targets.
	Micro int
	// VirtualRanks, if set, is fsdp.Config's: a step is so many micro batches, each that of a virtual
	// rank, of which a rank takes an equal part. It has them in the order in which the passes of a step
	// stand for virtual ranks. They depend on Batch and VirtualRanks alone. Micro is 0 then.
	VirtualRanks int
	// NoSync says that all micro batches of a step but the last run inside NoSync, which decides that
	// order.
	NoSync bool
	// DropPartial leaves out the samples at the end of the source that fill no step.
	DropPartial bool
	// Workers is the number of goroutines that read samples and collate batches: 0 means 1.
	Workers int
	// Prefetch is how many bytes of batches are made ahead: 0 means 64 MiB. One batch always is,
	// and at most 64 are. A batch that is being made counts as the largest so far. The samples that a
	// batch is made of do not count.
	Prefetch int
}

// manyAhead is the largest number of batches that are made ahead.
const manyAhead = 64

// A Loader hands a rank its part of the samples of a source, batch by batch. Step k of all ranks
// together takes samples k·Batch to (k+1)·Batch-1. Rank 0 has the first of them, in order, the last
// rank the last ones, and likewise its micro batches.
//
// A loader belongs to one goroutine, except for Stats.
type Loader[T any] struct {
	config     Config
	src        Source[T]
	collate    Collate[T]
	rank, size int
	micros     int    // micro batches of a step
	name       string // of the source and the steps, the same on all ranks
	consumed   int    // samples that all ranks have consumed
	stepEnds   bool
	step       [][]fsdp.Tensor // this rank's batches of the step that was yielded last
	running    bool
	checked    bool // the first samples are read again, see readAgain

	slots   slots[T]
	counted counters
}

// counters are what Stats returns, and what workers and the loop share.
type counters struct {
	batches, samples, waited, made, largest, bytes atomic.Int64

	fresh atomic.Int64 // bytes of batches made since garbage was collected for them
}

// NewLoader returns a loader at the beginning of the source. A source without a step is an error: it is
// empty, or DropPartial leaves out all of its samples. Rank 0 warns where steps have fewer samples than
// ranks.
func NewLoader[T any](src Source[T], collate Collate[T], c Config) (*Loader[T], error) {
	l := &Loader[T]{config: c, src: src, collate: collate, size: 1}
	if c.Group != nil {
		l.rank, l.size = c.Group.Rank(), c.Group.Size()
	} else if others := launch.Others(os.Getenv); others != "" {
		slog.Warn("data: Config.Group is nil, so this rank reads all samples: give it the group of the ranks, "+
			"or comm.Local(1)[0] if that is meant", "but", others)
	}
	if err := l.check(); err != nil {
		return nil, fmt.Errorf("data: rank %d: NewLoader: %w", l.rank, err)
	}
	if parts := max(l.size, c.VirtualRanks); c.Batch < parts && l.rank == 0 {
		slog.Warn("data: a step has fewer samples than ranks, so some ranks never have any: raise Config.Batch, or use fewer ranks",
			"batch", c.Batch, "ranks", parts)
	}
	if l.config.Workers == 0 {
		l.config.Workers = 1
	}
	if l.config.Prefetch == 0 {
		l.config.Prefetch = 64 << 20
	}
	l.micros = 1
	if c.Micro > 0 {
		share := (c.Batch-1)/l.size + 1
		l.micros = (share-1)/c.Micro + 1
	}
	if c.VirtualRanks > 0 {
		l.micros = c.VirtualRanks / l.size
	}
	return l, nil
}

func (l *Loader[T]) check() error {
	switch {
	case l.src == nil:
		return errNil
	case l.collate == nil:
		return errors.New("the collate function is nil")
	case l.rank < 0 || l.rank >= l.size:
		return fmt.Errorf("the group has %d ranks", l.size)
	case l.config.Batch < 1 || l.config.Batch > math.MaxInt32:
		return fmt.Errorf("want a Batch of 1 to %d samples, it is %d", math.MaxInt32, l.config.Batch)
	case l.config.VirtualRanks < 0 || l.config.VirtualRanks%l.size != 0:
		return fmt.Errorf("VirtualRanks is %d: want a multiple of the %d ranks", l.config.VirtualRanks, l.size)
	case l.config.VirtualRanks > 0 && l.config.Micro > 0:
		return fmt.Errorf("VirtualRanks is %d, which makes the micro batches, and Micro %d: want one of them", l.config.VirtualRanks, l.config.Micro)
	case l.config.NoSync && l.config.VirtualRanks == 0:
		return errors.New("NoSync is set without VirtualRanks, whose order it is for")
	case l.config.Micro < 0 || l.config.Workers < 0 || l.config.Prefetch < 0:
		return fmt.Errorf("want nothing negative, Micro is %d, Workers %d, Prefetch %d", l.config.Micro, l.config.Workers, l.config.Prefetch)
	}
	if s, ok := l.src.(interface{ refused() error }); ok {
		if err := s.refused(); err != nil {
			return err
		}
	}
	switch n := l.src.Len(); {
	case n == 0:
		return fmt.Errorf("%s has no samples", describe(l.src))
	case l.Steps() == 0:
		return fmt.Errorf("DropPartial leaves out all of %s: it has %d samples, and a step %d", describe(l.src), n, l.config.Batch)
	}
	return nil
}

// Steps returns the number of steps in the whole source, or [Endless].
func (l *Loader[T]) Steps() int {
	n := l.src.Len()
	switch {
	case n == Endless:
		return Endless
	case l.config.DropPartial:
		return n / l.config.Batch
	}
	return n/l.config.Batch + min(1, n%l.config.Batch)
}

// MicroBatches returns the number of micro batches of a step.
func (l *Loader[T]) MicroBatches() int { return l.micros }

// StepEnds tells whether the batch that was yielded last is the last micro batch of its step. It
// says the same on every rank. Without Config.Micro
// and VirtualRanks every batch is.
func (l *Loader[T]) StepEnds() bool { return l.stepEnds }

// Share is [fsdp.Share] of the batches that this rank has in the step of the batch that was yielded
// last. With it the gradients of a step are those of the mean over its targets that count, or over
// its samples, however many ranks and micro batches share them out, and evenly or not:
//
//	err = m.Backward(ctx, loader.Share())
//
// If ranks read different sources, from different positions or in steps of different sizes, that Backward
// is an error on all of them, as is [fsdp.Sharded.Join] before it.
func (l *Loader[T]) Share() fsdp.BackwardOption { return fsdp.Share(l.step...).Source(l.name) }

// A Position is how far the ranks have come in a source. It is a value to save:
//
//	err := m.Save(ctx, dir, opt, fsdp.Extra("data", loader.Position()))
type Position struct {
	// Samples is the number of samples that all ranks together have consumed: all before this one.
	Samples int `json:"samples"`
	// Source describes the source.
	Source string `json:"source"`
}

// Position returns the position after the step that was yielded last; within a step of several
// micro batches, that before it. What was only read ahead does not count. It is the same on every
// rank while the loop goes well. When it ends with an error, as of another rank or of the context,
// [fsdp.Sharded.Join] may have kept back a batch that counts here: what is saved then is the position
// that the last step in the loop body had.
func (l *Loader[T]) Position() Position { return Position{l.consumed, describe(l.src)} }

// Resume goes to a position that any number of ranks has come to. Each rank must call it. The
// position of another source is an error; who knows that it has the same samples in the same order
// may change Position.Source.
func (l *Loader[T]) Resume(p Position) error {
	var err error
	switch here := describe(l.src); {
	case l.running:
		err = errRunning
	case p.Source != here:
		err = fmt.Errorf("the position is in %s, and this loader reads %s", p.Source, here)
	case p.Samples < 0 || p.Samples > l.src.Len():
		err = fmt.Errorf("the position is after %d samples, and there are %s", p.Samples, count(l.src.Len()))
	}
	if err != nil {
		return fmt.Errorf("data: rank %d: Resume: %w", l.rank, err)
	}
	l.consumed = p.Samples
	return nil
}

// Rewind goes to the beginning, as for another validation on the same samples.
func (l *Loader[T]) Rewind() error {
	return l.Resume(Position{Source: describe(l.src)})
}

// errRunning is that of calls from within the loop.
var errRunning = errors.New("a loop over Batches is under way")

// Stats counts what a loader has done since it was made.
type Stats struct {
	Batches int           // yielded
	Samples int           // in them: of this rank
	Waited  time.Duration // that the loop stood still because the next batch was not there
	Ahead   int           // batches that are ready
	Bytes   int           // of batches that are ready, and of the one that was yielded last
}

// Stats returns the counts. It may be called at any time, by any goroutine.
func (l *Loader[T]) Stats() Stats {
	c := &l.counted
	return Stats{
		Batches: int(c.batches.Load()), Samples: int(c.samples.Load()), Waited: time.Duration(c.waited.Load()),
		Ahead: int(c.made.Load()), Bytes: int(c.bytes.Load()),
	}
}

// A span is an iteration: what this rank has of the samples of a step, one micro batch.
type span struct {
	first, end int  // the samples of the step are first to end-1
	lo, hi     int  // this rank's are lo to hi-1: none if these are equal
	last       bool // the step ends with this iteration
}

// span returns an iteration of a loop that starts after some samples. Once the source is used up
// there is none.
func (l *Loader[T]) span(start, iteration int) (s span, ok bool) {
	first, micro, parts := start+iteration/l.micros*l.config.Batch, iteration%l.micros, l.size*l.micros
	left := min(l.config.Batch, l.src.Len()-first) // of this step
	if left <= 0 || left < l.config.Batch && l.config.DropPartial {
		return s, false
	}
	begin := func(k int) int { return part(l.config.Batch, k, parts) }
	// Where rank 0 has nothing, no rank has: its parts are as large as any, and in front. But a step of
	// virtual ranks has as many micro batches as any.
	over := func(micro int) bool { return l.config.VirtualRanks == 0 && begin(micro) >= left }
	if over(micro) {
		return s, false
	}
	k := l.rank*l.micros + micro
	if l.config.VirtualRanks > 0 && !l.config.NoSync {
		k = micro*l.size + l.rank
	}
	return span{
		first: first, end: first + left, lo: first + min(begin(k), left), hi: first + min(begin(k+1), left),
		last: micro == l.micros-1 || over(micro+1),
	}, true
}

// part returns where part k of n begins among some samples: parts differ by one at most, and the
// first n/samples are not empty.
func part(samples, k, n int) int { return (samples*k + n - 1) / n }

// Batches ranges over this rank's batches from the position on, to the end of the source. It is
// what [fsdp.Sharded.Join] takes. All ranks make the same number of iterations. A rank that has no
// samples in one gets nil: at the end of a source the samples of the last step may not suffice for
// all.
//
// A batch belongs to the loop body, which may keep it. While the loop body runs, workers make the
// batches after it. They end with the loop; Batches waits for those that are just reading a sample.
// A loop that was left goes on in the next call with the step after the position.
//
// The last iteration yields an error if there is one: of the source or of the collate function,
// with the number of the sample, a panic of theirs, or the context's.
func (l *Loader[T]) Batches(ctx context.Context) iter.Seq2[[]fsdp.Tensor, error] {
	return func(yield func([]fsdp.Tensor, error) bool) {
		if l.running {
			yield(nil, fmt.Errorf("data: rank %d: Batches: %w", l.rank, errRunning))
			return
		}
		l.running = true
		defer func() { l.running = false }()
		if l.config.Group != nil { // else the samples are this rank's own
			l.name = fmt.Sprintf("%s from sample %d on in steps of %d", describe(l.src), l.consumed, l.config.Batch)
		}
		r := start(l)
		defer r.stop()
		defer func() { l.step = nil }()
		for i := 0; ; i++ {
			s, ok := l.span(r.start, i)
			if !ok {
				return
			}
			batch, err := r.next(ctx, i, s)
			if err != nil {
				yield(nil, fmt.Errorf("data: rank %d: %w", l.rank, err))
				return
			}
			if l.stepEnds = s.last; s.last {
				l.consumed = s.end
			}
			forget := func() {}
			if i == 0 && l.name != "" {
				forget = provenance.Set(batch, provenance.Provenance{Source: l.name, Ranks: l.size})
			}
			more := yield(batch, nil)
			if forget(); !more {
				return
			}
		}
	}
}
