package data

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"os"
	"regexp"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/provenance"
	"github.com/gofsdp/gofsdp/internal/checksum"
	"github.com/gofsdp/gofsdp/internal/launch"
	"github.com/gofsdp/gofsdp/internal/phase"
)

// Config configures how ranks share samples, and how far ahead samples are read. It is the same on
// all ranks except for Group.
type Config struct {
	// Group is the group of the ranks, such as a comm.Group. Only this rank's number and the number
	// of ranks matter. nil means one rank, with a warning if a launcher or comm.Run has started
	// several.
	Group interface {
		Rank() int
		Size() int
	}
	// Batch is the number of samples of a step, over all ranks and micro batches. Each gets the
	// same number, to within one. So a training on another number of ranks is the same training.
	Batch int
	// Micro, if positive, is the largest number of samples that a rank takes at once. A step with
	// more samples for a rank is cut into several micro batches, the same number on every rank: see
	// [Loader.StepEnds]. All of them are made before the first is yielded, as [Loader.Share] counts
	// their targets.
	Micro int
	// VirtualRanks, if set, is the same as in fsdp.Config: a step has that many micro batches, one
	// for each virtual rank. The ranks share them in the order in which the passes of a step stand
	// for virtual ranks. If the ranks do not divide VirtualRanks, some of them get nil in the last
	// pass of a step. The micro batches depend only on Batch and VirtualRanks. Micro must be 0.
	VirtualRanks int
	// NoSync says that all micro batches of a step except the last run inside NoSync, which decides
	// the order of the micro batches.
	NoSync bool
	// DropPartial leaves out the samples at the end of the source that fill no step.
	DropPartial bool
	// Workers is the number of goroutines that read samples and collate batches: 0 means 1.
	Workers int
	// Prefetch is the size in bytes of the batches that are made ahead: 0 means 64 MiB. At least
	// one batch and at most 64 are made ahead. A batch in the making counts as much as the largest
	// so far. The samples of a batch do not count.
	Prefetch int
	// Progress names the loops over Batches, such as "validation". A loop that takes longer than a
	// second then logs how many steps are done. Leave it empty for a training that has a monitor.
	Progress string
}

// manyAhead is the largest number of batches that are made ahead.
const manyAhead = 64

// A Loader yields a rank's part of the samples of a source, batch by batch. Step k of all ranks
// together takes samples k·Batch to (k+1)·Batch-1. Rank 0 takes the first of them, in order, the
// last rank the last ones. The micro batches of a rank are cut likewise.
//
// A loader belongs to one goroutine, except for Stats.
type Loader[T any] struct {
	config     Config
	src        Source[T]
	collate    Collate[T]
	rank, size int
	micros     int    // number of micro batches in a step
	name       string // name of source and steps, the same on all ranks
	consumed   int    // samples that all ranks have consumed
	ended      bool   // a loop has reached the end of the source
	stepEnds   bool
	step       [][]fsdp.Tensor // this rank's batches of the step that was yielded last
	running    bool
	checked    bool // the first samples are read again, see readAgain
	summed     int  // number of samples of which sum is known, or 0
	sum        string

	slots   slots[T]
	counted counters
}

// counters are the counts of Stats, which workers and the loop share.
type counters struct {
	batches, samples, waited, made, largest, bytes atomic.Int64

	fresh atomic.Int64 // bytes of batches made since the last forced garbage collection
}

// NewLoader returns a loader at the beginning of the source. It returns an error if the source has
// no step: it is empty, or DropPartial leaves out all of its samples. Rank 0 warns if a step has
// fewer samples than ranks.
func NewLoader[T any](src Source[T], collate Collate[T], c Config) (*Loader[T], error) {
	l := &Loader[T]{config: c, src: src, collate: collate, size: 1}
	if c.Group != nil {
		l.rank, l.size = c.Group.Rank(), c.Group.Size()
	} else if others := launch.Others(os.Getenv); others != "" {
		slog.Warn("data: Config.Group is nil, so this rank reads all samples: give it the group of the ranks, "+
			"or comm.Local(1)[0] if this is intended", "but", others)
	}
	if err := l.check(); err != nil {
		return nil, fmt.Errorf("data: rank %d: NewLoader: %w", l.rank, err)
	}
	if parts := max(l.size, c.VirtualRanks); c.Batch < parts && l.rank == 0 {
		slog.Warn("data: a step has fewer samples than ranks, so some ranks never get a sample: raise Config.Batch, or use fewer ranks",
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
		l.micros = (c.VirtualRanks + l.size - 1) / l.size
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
		return fmt.Errorf("Config.Batch is %d: want 1 to %d, the samples of a step on all ranks together", l.config.Batch, math.MaxInt32)
	case l.config.VirtualRanks != 0 && l.config.VirtualRanks < l.size:
		return fmt.Errorf("VirtualRanks is %d: must be at least the %d ranks", l.config.VirtualRanks, l.size)
	case l.config.NoSync && l.config.VirtualRanks%l.size != 0:
		return fmt.Errorf("VirtualRanks is %d, which is no multiple of the %d ranks, so no micro batch may run inside NoSync: leave NoSync unset", l.config.VirtualRanks, l.size)
	case l.config.VirtualRanks > 0 && l.config.Micro > 0:
		return fmt.Errorf("VirtualRanks is %d and Micro is %d: both define the micro-batches, so set only one", l.config.VirtualRanks, l.config.Micro)
	case l.config.NoSync && l.config.VirtualRanks == 0:
		return errors.New("NoSync is set without VirtualRanks: it only defines their order")
	case l.config.Micro < 0 || l.config.Workers < 0 || l.config.Prefetch < 0:
		return fmt.Errorf("of the fields Micro %d, Workers %d and Prefetch %d none may be negative", l.config.Micro, l.config.Workers, l.config.Prefetch)
	}
	if s, ok := l.src.(interface{ refused() error }); ok {
		if err := s.refused(); err != nil {
			return err
		}
	}
	switch n := l.src.Len(); {
	case n == 0:
		return fmt.Errorf("%s has no samples: check what the source reads", describe(l.src))
	case l.Steps() == 0:
		return fmt.Errorf("DropPartial drops all of %s: it has %d samples, and a step has %d: lower Config.Batch", describe(l.src), n, l.config.Batch)
	}
	return nil
}

// Steps returns the number of steps in the whole source, or [Endless].
func (l *Loader[T]) Steps() int {
	if l.src.Len() == Endless {
		return Endless
	}
	return l.stepsFrom(0)
}

// stepsFrom returns the number of steps after the first samples, or 0 if the source has no end.
func (l *Loader[T]) stepsFrom(samples int) int {
	n := l.src.Len() - samples
	switch {
	case l.src.Len() == Endless:
		return 0
	case l.config.DropPartial:
		return n / l.config.Batch
	}
	return n/l.config.Batch + min(1, n%l.config.Batch)
}

// MicroBatches returns the number of micro batches of a step on each rank, with those that are nil.
func (l *Loader[T]) MicroBatches() int { return l.micros }

// StepEnds reports whether the batch that was yielded last is the last micro batch of its step. It
// returns the same on every rank. Without Config.Micro and VirtualRanks it is true for every batch.
func (l *Loader[T]) StepEnds() bool { return l.stepEnds }

// Share returns [fsdp.Share] of this rank's batches in the step that was yielded last. With it, the
// gradients of a step are the gradients of the mean over its targets that count, or over its
// samples, however ranks and micro batches share them, evenly or not:
//
//	err = m.Backward(ctx, loader.Share())
//
// If ranks read different sources, from different positions or in steps of different sizes, this
// Backward returns an error on all of them, as do [fsdp.Sharded.Join] and the first Forward before
// it.
func (l *Loader[T]) Share() fsdp.BackwardOption { return fsdp.Share(l.step...).Source(l.name) }

// A Position is the progress of the ranks in a source. Save it with a checkpoint:
//
//	err := m.Save(ctx, dir, opt, &fsdp.SaveOptions{Extra: map[string]any{"data": loader.Position()}})
type Position struct {
	// Samples is the number of samples that all ranks together have consumed: all samples before
	// this one.
	Samples int `json:"samples"`
	// Source describes the source.
	Source string `json:"source"`
	// Sum is a checksum of some samples, each made a batch: the first, the middle one and the last,
	// or, if the source is endless, the last of the first 65,536. It is empty in positions of earlier
	// versions, and if one of these samples cannot be read.
	Sum string `json:"sum,omitempty"`
}

// Position returns the position after the step that was yielded last. Within a step of several
// micro batches, it returns the position before the step. Samples that were only read ahead do not
// count. The position is the same on every rank unless the loop ends with an error, such as a
// failure of another rank or the end of the context. Then [fsdp.Sharded.Join] may have kept back a
// batch that counts here: save the position that the last step in the loop body had.
//
// The first call reads the samples of Sum.
func (l *Loader[T]) Position() Position {
	return Position{l.consumed, describe(l.src), l.checksum(l.src.Len())}
}

// checksum returns the Sum of positions in the first n samples of the source.
func (l *Loader[T]) checksum(n int) string {
	if l.summed == n {
		return l.sum
	}
	l.summed, l.sum = n, ""
	r, sum := run[T]{Loader: l}, uint32(0)
	last := n - 1
	if last == Endless-1 {
		last = 1<<16 - 1
	}
	for _, i := range [...]int{0, last / 2, last} {
		s := &slot[T]{lo: i, hi: i + 1}
		if r.read(s) != nil || r.combine(s) != nil {
			return "" // the loop reads the sample again, and returns the error
		}
		for _, t := range s.batch.tensors {
			sum = checksum.Update(sum, fmt.Append(nil, t.Dtype(), t.Shape()))
			sum = checksum.Update(sum, memoryOf(t))
		}
	}
	l.sum = fmt.Sprintf("%08x", sum)
	return l.sum
}

// Resume goes to a position that any number of ranks has reached. Each rank must call it. It
// returns an error for a position of another source. A caller that is certain that both have the
// same samples in the same order may change Position.Source. A source of Shuffle or Repeat, also in
// Map or Augment, may have another number of epochs. If the sources have the same description, but
// Position.Sum differs, rank 0 warns.
func (l *Loader[T]) Resume(p Position) error {
	var err error
	here, n := describe(l.src), l.src.Len()
	saved, known := samplesIn(p.Source, here, n)
	switch {
	case l.running:
		err = errRunning
	case !known:
		err = fmt.Errorf("the saved position belongs to %s, but this loader reads %s: use the source of the saved training, or begin without Resume", p.Source, here)
	case p.Samples < 0 || p.Samples > n:
		err = fmt.Errorf("the saved position is after %d samples, but the source has %s: use the source of the saved training, or begin without Resume", p.Samples, count(n))
	}
	if err != nil {
		return fmt.Errorf("data: rank %d: Resume: %w", l.rank, err)
	}
	l.consumed, l.ended = p.Samples, false
	if p.Sum != "" && l.rank == 0 && saved <= n {
		if sum := l.checksum(saved); sum != "" && sum != p.Sum {
			slog.Warn("data: Resume: some samples differ from the saved training, although the sources have the same description: "+
				"use the same files and functions, or clear Position.Sum if the change is intended", "source", p.Source)
		}
	}
	return nil
}

// epochsPattern matches the description of a source that begins with the same samples for any
// number of epochs: a Shuffle or Repeat, also in Map or Augment.
var epochsPattern = regexp.MustCompile(`^((?:Map\(|Augment\()*(?:Shuffle|Repeat)\(.*, )(\d+) epochs(\)(?:\)|, seed \d+\))*)$`)

// samplesIn returns the number of samples in the source that saved describes, if it equals the
// source of n samples that here describes, except for the number of epochs.
func samplesIn(saved, here string, n int) (samples int, ok bool) {
	if saved == here {
		return n, true
	}
	s, h := epochsPattern.FindStringSubmatch(saved), epochsPattern.FindStringSubmatch(here)
	if s == nil || h == nil || s[1] != h[1] || s[3] != h[3] {
		return 0, false
	}
	before, _ := strconv.Atoi(s[2]) // the largest int if it is larger
	now, _ := strconv.Atoi(h[2])
	if before < 1 || now < 1 || n/now > (Endless-1)/before {
		return 0, false
	}
	return n / now * before, true
}

// Rewind goes to the beginning, for example for another validation on the same samples.
func (l *Loader[T]) Rewind() error {
	return l.Resume(Position{Source: describe(l.src)})
}

// errRunning is the error of calls from within the loop.
var errRunning = errors.New("another loop over Batches is running")

// Stats counts what a loader has done since it was made.
type Stats struct {
	Batches int           // yielded
	Samples int           // samples of this rank in these batches
	Waited  time.Duration // time that the loop waited for a batch
	Ahead   int           // batches that are ready
	Bytes   int           // bytes of ready batches, and of the batch that was yielded last
}

// Stats returns the counts. It may be called at any time, by any goroutine.
func (l *Loader[T]) Stats() Stats {
	c := &l.counted
	return Stats{
		Batches: int(c.batches.Load()), Samples: int(c.samples.Load()), Waited: time.Duration(c.waited.Load()),
		Ahead: int(c.made.Load()), Bytes: int(c.bytes.Load()),
	}
}

// A span is an iteration: this rank's part of the samples of a step, or one micro batch of it.
type span struct {
	first, end int  // the samples of the step are first to end-1
	lo, hi     int  // this rank's are lo to hi-1: none if they are equal
	last       bool // the step ends with this iteration
}

// span returns an iteration of a loop that begins after start samples. ok is false after the end of
// the source.
func (l *Loader[T]) span(start, iteration int) (s span, ok bool) {
	first, micro, parts := start+iteration/l.micros*l.config.Batch, iteration%l.micros, cmp.Or(l.config.VirtualRanks, l.size*l.micros)
	left := min(l.config.Batch, l.src.Len()-first) // of this step
	if left <= 0 || left < l.config.Batch && l.config.DropPartial {
		return s, false
	}
	begin := func(k int) int { return part(l.config.Batch, k, parts) }
	// If rank 0 has no samples, no rank has: its parts are as large as any, and come first. But a
	// step of virtual ranks always has all its micro batches.
	over := func(micro int) bool { return l.config.VirtualRanks == 0 && begin(micro) >= left }
	if over(micro) {
		return s, false
	}
	k := l.rank*l.micros + micro
	if l.config.VirtualRanks > 0 && !l.config.NoSync {
		k = micro*l.size + l.rank // no samples if there is no such virtual rank
	}
	return span{
		first: first, end: first + left, lo: first + min(begin(k), left), hi: first + min(begin(k+1), left),
		last: micro == l.micros-1 || over(micro+1),
	}, true
}

// part returns the beginning of part k of n of the samples. The parts differ by at most one sample,
// and the first n/samples are not empty.
func part(samples, k, n int) int { return (samples*k + n - 1) / n }

// Batches ranges over this rank's batches from the position to the end of the source. Pass it to
// [fsdp.Sharded.Join]. All ranks make the same number of iterations. A rank without samples in an
// iteration gets nil: at the end of a source, the last step may have too few samples for all ranks.
//
// A batch belongs to the loop body, which may keep it. While the loop body runs, workers make the
// next batches. The workers end with the loop; Batches waits until they have read their current
// samples. If the loop body leaves the loop, the next call continues with the step after the
// position. After the end of the source the next loop has no batch, and rank 0 warns: see Rewind.
//
// If there is an error, the last iteration yields it: an error or a panic of the source or of the
// collate function, with the number of the sample, or the error of the context.
func (l *Loader[T]) Batches(ctx context.Context) iter.Seq2[[]fsdp.Tensor, error] {
	return func(yield func([]fsdp.Tensor, error) bool) {
		if l.running {
			yield(nil, fmt.Errorf("data: rank %d: Batches: %w", l.rank, errRunning))
			return
		}
		l.running = true
		defer func() { l.running = false }()
		if l.config.Group != nil { // otherwise the samples are this rank's own
			l.name = fmt.Sprintf("%s from sample %d on in steps of %d", describe(l.src), l.consumed, l.config.Batch)
		}
		var progress *phase.Phase
		if l.config.Progress != "" {
			progress = phase.Begin("data: "+l.config.Progress+", steps", l.stepsFrom(l.consumed))
		}
		defer progress.End()
		r := start(l)
		defer r.stop()
		defer func() { l.step = nil }()
		for i := 0; ; i++ {
			s, ok := l.span(r.start, i)
			if !ok {
				if i == 0 && l.ended && l.rank == 0 {
					slog.Warn("data: this loop over Batches has no batch, because an earlier one has reached the end of the source: "+
						"call Rewind before each further loop, or Shuffle for more epochs", "source", describe(l.src), "samples", l.consumed)
				}
				l.ended = true
				return
			}
			batch, err := r.next(ctx, i, s)
			if err != nil {
				yield(nil, fmt.Errorf("data: rank %d: %w", l.rank, err))
				return
			}
			l.stepEnds = s.last
			if s.last {
				l.consumed = s.end
			}
			if i == 0 && l.name != "" {
				batch = provenance.Set(batch, provenance.Provenance{Source: l.name, Ranks: l.size})
			}
			if !yield(batch, nil) {
				return
			}
			if s.last {
				progress.Add(1)
			}
		}
	}
}
