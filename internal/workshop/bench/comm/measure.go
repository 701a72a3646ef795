package comm

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
)

// A batch should take batchSeconds, with at least one operation and at most maxIterations.
const (
	batchSeconds  = 0.04
	maxIterations = 1_000_000
)

// cell is an operation and a size that every candidate is measured at.
type cell struct {
	World int    `json:"world"`
	Op    string `json:"op"`
	Bytes int    `json:"bytes"` // of the full tensor
}

// fleet is the sessions of one world; those that fail are dropped.
type fleet struct {
	notes    io.Writer
	sessions []*session
}

// start starts all candidates that can run with this many ranks.
func (f *fleet) start(ctx context.Context, shop *workshop, entrants []candidate, world int) error {
	for _, c := range entrants {
		if c.maxWorld > 0 && world > c.maxWorld {
			fmt.Fprintf(f.notes, "%s: not at world %d: its ranks spin, and there are more of them than it is good at\n", c.name, world)
			continue
		}
		s, err := launch(shop, c, world)
		if err != nil {
			fmt.Fprintf(f.notes, "%s: %v\n", c.name, err)
			continue
		}
		f.sessions = append(f.sessions, s)
	}
	for _, s := range slices.Clone(f.sessions) {
		if err := s.connect(ctx); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			f.drop(s, err)
		}
	}
	return nil
}

// drop ends a session that failed.
func (f *fleet) drop(s *session, err error) {
	fmt.Fprintf(f.notes, "dropped: %v\n", err)
	s.close()
	f.sessions = slices.DeleteFunc(f.sessions, func(other *session) bool { return other == s })
}

func (f *fleet) close() {
	for _, s := range f.sessions {
		s.hangUp()
	}
	for _, s := range f.sessions {
		s.close()
	}
}

// runner is a session in a cell, with the results of calibration.
type runner struct {
	*session
	batch command
	times []float64 // seconds of one operation, by round
}

// measure returns the times of all candidates that support the cell, by name. It returns an error
// only when ctx ends.
func (f *fleet) measure(ctx context.Context, c cell, rounds int) (map[string][]float64, error) {
	var runners []*runner
	for _, s := range slices.Clone(f.sessions) {
		batch, err := s.calibrate(ctx, c)
		if err := f.judge(ctx, s, err); err != nil {
			return nil, err
		}
		if batch.iterations > 0 {
			runners = append(runners, &runner{session: s, batch: batch})
		}
	}
	for round := range rounds {
		// The order changes: an earlier runner may leave the caches hot or cold.
		for i := range runners {
			r := runners[(i+round)%len(runners)]
			if !slices.Contains(f.sessions, r.session) {
				continue
			}
			seconds, err := r.do(ctx, r.batch)
			if err := f.judge(ctx, r.session, err); err != nil {
				return nil, err
			}
			if err == nil {
				r.times = append(r.times, seconds/float64(r.batch.iterations))
			}
		}
	}
	times := map[string][]float64{}
	for _, r := range runners {
		if len(r.times) == rounds { // and it was not dropped meanwhile
			times[r.name] = r.times
		}
	}
	return times, nil
}

// judge handles the failure of a session: it notes a refusal, and drops the session for any other
// error. It returns the error when ctx ends.
func (f *fleet) judge(ctx context.Context, s *session, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case refused(err):
		fmt.Fprintf(f.notes, "not measured: %v\n", err)
	case err != nil:
		f.drop(s, err)
	}
	return nil
}

// calibrate checks the candidate at c and returns a batch of its fastest variant. A command without
// iterations means that the candidate does not support c. A refusal is returned only if no variant
// is right.
func (s *session) calibrate(ctx context.Context, c cell) (best command, err error) {
	fastest := math.Inf(1)
	for _, call := range s.calls(c.Op) {
		batch, seconds, callErr := s.calibrateCall(ctx, call, c.Bytes)
		if callErr != nil {
			err = callErr
			if !refused(err) {
				return command{}, err
			}
			continue
		}
		if seconds < fastest {
			fastest, best = seconds, batch
		}
	}
	if best.iterations > 0 {
		return best, nil
	}
	return command{}, err
}

// calibrateCall checks one call and returns a batch of it that takes long enough, and the seconds
// of one operation.
func (s *session) calibrateCall(ctx context.Context, call string, bytes int) (command, float64, error) {
	if _, err := s.do(ctx, command{check: true, op: call, bytes: bytes}); err != nil {
		return command{}, 0, err
	}
	batch := command{op: call, bytes: bytes, iterations: 1}
	for {
		seconds, err := s.do(ctx, batch)
		if err != nil {
			return command{}, 0, err
		}
		enough := seconds >= batchSeconds/4 || batch.iterations == maxIterations
		each := seconds / float64(batch.iterations)
		batch.iterations = iterations(batch.iterations, seconds)
		if enough {
			return batch, each, nil
		}
	}
}

// iterations returns the number of operations in a batch, given that n of them took the given
// seconds. Times of few are not trusted: the result is at most 16 times n.
func iterations(n int, seconds float64) int {
	want := float64(maxIterations)
	if seconds > 0 {
		want = math.Round(batchSeconds / seconds * float64(n))
	}
	return int(max(1, min(want, 16*float64(n), maxIterations)))
}

// measureWorld measures one world and reports to w while it goes on.
func measureWorld(ctx context.Context, w, notes io.Writer, shop *workshop, entrants []candidate, world int, opts options, record *record) error {
	f := &fleet{notes: notes}
	defer f.close()
	if err := f.start(ctx, shop, entrants, world); err != nil {
		return err
	}
	table := newTable(w, f.sessions, shop.plainLoopback)
	results := results{}
	for _, op := range opts.ops {
		table.title(world, op)
		for _, bytes := range sizes(op, opts.max) {
			c := cell{world, op, bytes}
			times, err := f.measure(ctx, c, opts.rounds)
			if err != nil {
				return err
			}
			results[c] = times
			record.add(c, times)
			table.row(c, times)
		}
	}
	verdicts := judgeTargets(results, world, opts.ops)
	record.Verdicts = append(record.Verdicts, verdicts...)
	table.verdicts(world, verdicts)
	return nil
}
