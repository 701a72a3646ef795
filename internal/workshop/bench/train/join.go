package train

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/internal/workshop/bench/stats"
)

// joinMode is how two ranks run a step.
type joinMode int

const (
	plainLoop joinMode = iota
	joinEven
	joinAlone
	joinCalls // inside Join, with its flags too
	joinModes
	joinFlags   joinMode = -1 // no step, only the exchanges of many iterations
	joinNothing joinMode = -2 // the exchanges of many JoinCalls without a call
)

// exchanges is the number of exchanges that these two measure.
const exchanges = 200

func (m joinMode) String() string {
	return [...]string{"plain loop", "Join, both have batches", "Join, rank 1 has none", "JoinCalls in Join"}[m]
}

// joining prints for each size the cost of Join on two ranks: if both have batches, compared with
// the plain loop, and if one has none.
func joining(w io.Writer, list []size, rounds int, seconds float64) error {
	for _, s := range list {
		if err := joiningOf(w, s, rounds, seconds); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

func joiningOf(w io.Writer, s size, rounds int, seconds float64) (err error) {
	j, err := newJoiner(s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.close()) }()
	for mode := joinNothing; mode < joinModes; mode++ { // compiles, and lets rank 1 learn the schedule
		if _, err := j.time(mode); err != nil {
			return err
		}
	}
	j.busy = [joinModes][]time.Duration{}
	for round := range rounds {
		if err := j.race(uint64(round), seconds); err != nil {
			return err
		}
	}
	j.report(w, s)
	return nil
}

// joiner is a model on two ranks that runs steps in all modes, with no other difference.
type joiner struct {
	*contestant
	mode  joinMode                   // of the step that both ranks run next
	times [joinModes][]time.Duration // of steps
	busy  [joinModes][]time.Duration // of rank 1 in them
	flags []time.Duration            // of an exchange
	calls []time.Duration            // of a JoinCalls without a call
}

func newJoiner(s size) (*joiner, error) {
	j := &joiner{}
	var err error
	j.contestant, err = newRanks(comm.Local(2), func(g comm.Group) (func() error, error) {
		watch, cfg := &stopwatch{Group: g}, fsdp.Config{Group: g, WrapPolicy: fsdp.WrapTypes(&nn.Block{})}
		if g.Rank() == 1 {
			cfg.Group = watch
		}
		t, err := newTrainer(context.Background(), s, cfg, s.Batch/2)
		if err != nil {
			return nil, err
		}
		batch := t.batch
		return func() error {
			begin, waited := time.Now(), watch.waited
			err := t.run(j.mode, g.Rank(), batch)
			if g.Rank() == 1 && j.mode >= 0 {
				j.busy[j.mode] = append(j.busy[j.mode], time.Since(begin)-(watch.waited-waited))
			}
			return err
		}, nil
	})
	return j, err
}

// run runs a step in a mode.
func (t *trainer) run(mode joinMode, rank int, batch []fsdp.Tensor) error {
	ctx := context.Background()
	switch {
	case mode == joinFlags:
		return t.idle(ctx, batch)
	case mode == joinNothing:
		return t.nothing(ctx)
	case mode == joinAlone && rank == 1:
		return t.joined(ctx)
	case mode == joinCalls:
		t.around = func(passes func() error) error { return t.model.JoinCalls(ctx, passes) }
		defer func() { t.around = nil }()
		return t.joined(ctx, batch)
	case mode != plainLoop:
		return t.joined(ctx, batch)
	}
	t.batch = batch
	return t.step()
}

// joined runs a step in the first iteration of Join over some batches, and leaves the loop there:
// the exchange that finds its end would be one more than a step has.
func (t *trainer) joined(ctx context.Context, batches ...[]fsdp.Tensor) error {
	for batch, err := range t.model.Join(ctx, fsdp.Batches(batches...)) {
		if err != nil {
			return err
		}
		t.batch = batch
		return t.step()
	}
	return errors.New("no rank has a batch")
}

// idle goes through Join and does nothing.
func (t *trainer) idle(ctx context.Context, batch []fsdp.Tensor) error {
	for _, err := range t.model.Join(ctx, fsdp.Batches(slices.Repeat([][]fsdp.Tensor{batch}, exchanges-1)...)) {
		if err != nil {
			return err
		}
	}
	return nil
}

// nothing makes no call in many JoinCalls.
func (t *trainer) nothing(ctx context.Context) error {
	for range exchanges {
		if err := t.model.JoinCalls(ctx, func() error { return nil }); err != nil {
			return err
		}
	}
	return nil
}

// time runs a step in a mode.
func (j *joiner) time(mode joinMode) (time.Duration, error) {
	j.mode = mode
	begin := time.Now()
	err := j.step()
	return time.Since(begin), err
}

// race runs a step in each mode, in a different order every time, for some seconds. So the garbage
// and caches of a step do not always affect the same mode.
func (j *joiner) race(seed uint64, seconds float64) error {
	order := []joinMode{plainLoop, joinEven, joinAlone, joinCalls}
	rnd := rand.New(rand.NewPCG(seed, 0))
	for begin := time.Now(); ; {
		rnd.Shuffle(len(order), func(a, b int) { order[a], order[b] = order[b], order[a] })
		for _, mode := range order {
			t, err := j.time(mode)
			if err != nil {
				return err
			}
			j.times[mode] = append(j.times[mode], t)
		}
		if time.Since(begin).Seconds() > seconds {
			break
		}
	}
	t, err := j.time(joinFlags)
	if err != nil {
		return err
	}
	j.flags = append(j.flags, t/exchanges)
	t, err = j.time(joinNothing)
	j.calls = append(j.calls, t/exchanges)
	return err
}

// report prints a row for each mode, and the time of an exchange of flags without late ranks, alone
// and as JoinCalls. That is the real cost; in the rows it is hidden in the noise of a step.
func (j *joiner) report(w io.Writer, s size) {
	fmt.Fprintf(w, "%s: %d layers, %d channels, 2 ranks with %d sequences of %d bytes\n", s.name, s.Layers, s.Dim, s.Batch/2, s.Context)
	fmt.Fprintf(w, "  %-26s %28s %10s %15s %10s\n", "", "ms a step (min..max, n)", "of plain", "rank 1 busy ms", "of plain")
	for mode, times := range j.times {
		fmt.Fprintf(w, "  %-26s %28s %9.2f%% %15.2f %9.2f%%\n", joinMode(mode),
			stats.Spread(times),
			100*stats.Ratio(times, j.times[plainLoop]), stats.Ms(stats.Median(j.busy[mode])), 100*stats.Ratio(j.busy[mode], j.busy[plainLoop]))
	}
	fmt.Fprintf(w, "  JoinCalls in Join takes %.2f%% of the time of Join alone\n", 100*stats.Ratio(j.times[joinCalls], j.times[joinEven]))
	step := stats.Median(j.times[plainLoop]).Seconds()
	flag, calls := stats.Median(j.flags).Seconds(), stats.Median(j.calls).Seconds()
	fmt.Fprintf(w, "  an exchange of flags takes %.1f µs, %.4f%% of a step; JoinCalls without a call %.1f µs, %.4f%%\n", flag*1e6, 100*flag/step, calls*1e6, 100*calls/step)
}

// stopwatch is a group that adds up the waiting time of its rank. In this time ranks of one process
// also move bytes.
type stopwatch struct {
	comm.Group
	waited time.Duration
}

func (s *stopwatch) AllGather(dst, src comm.Buffer) comm.Work {
	return timed{s.Group.AllGather(dst, src), s}
}

func (s *stopwatch) ReduceScatter(dst, src comm.Buffer, op comm.Op) comm.Work {
	return timed{s.Group.ReduceScatter(dst, src, op), s}
}

func (s *stopwatch) AllReduce(buf comm.Buffer, op comm.Op) comm.Work {
	return timed{s.Group.AllReduce(buf, op), s}
}

// timed is a collective under way.
type timed struct {
	comm.Work
	watch *stopwatch
}

// Wait implements comm.Work.
func (t timed) Wait(ctx context.Context) error {
	begin := time.Now()
	defer func() { t.watch.waited += time.Since(begin) }()
	return t.Work.Wait(ctx)
}
