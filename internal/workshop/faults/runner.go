package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gofsdp/gofsdp/comm/commtest"
)

// runner runs cases in worker processes.
type runner struct {
	pool  pool
	slots chan struct{} // one for every case at a time
}

// newRunner creates a runner with the given number of cases at a time. All files of its cases are
// in one new directory.
func newRunner(parallel int) (*runner, error) {
	dir, err := os.MkdirTemp("", "gofsdp-faults-")
	if err != nil {
		return nil, err
	}
	return &runner{pool: pool{dir: dir}, slots: make(chan struct{}, max(1, parallel))}, nil
}

func (r *runner) close() error { return errors.Join(r.pool.close(), os.RemoveAll(r.pool.dir)) }

// verdict is the result of a case.
type verdict struct {
	Case   Case
	Wrong  []string      // empty if the case passes
	Struck bool          // the incident happened
	Detect time.Duration // from the incident until the last rank detected it
	Told   []string      // errors of the ranks, by rank of the world
	Ops    int           // completed operations of all ranks
	Bytes  int64
	Usage  []usage // of the remaining workers
}

// trial is a case under way.
type trial struct {
	c       Case
	workers []*worker // by rank; one for a local world
	events  chan event
	v       verdict

	struck time.Time               // the incident
	leaky  bool                    // a worker has left something behind
	seen   map[string]map[int]bool // ranks by their reports
	dead   map[int]bool            // workers that have ended
}

// event is a report of a worker, or its end.
type event struct {
	worker int
	report report
	end    bool
}

// These are limits for the stages of a case on a busy machine. They do not decide whether an error
// came in time.
const (
	joinTime  = 30 * time.Second
	checkTime = 30 * time.Second
)

// run runs a case.
func (r *runner) run(ctx context.Context, c Case) (v verdict) {
	t := &trial{c: c, v: verdict{Case: c, Told: make([]string, c.Ranks)}, seen: map[string]map[int]bool{}, dead: map[int]bool{}}
	dir, err := os.MkdirTemp(r.pool.dir, "case-")
	if err == nil {
		defer func() {
			if err := os.RemoveAll(dir); err != nil {
				v.Wrong = append(v.Wrong, err.Error())
			}
		}()
		err = t.start(&r.pool, dir)
	}
	if err == nil {
		err = t.stages(ctx)
	}
	if err != nil {
		t.v.Wrong = append(t.v.Wrong, err.Error())
	}
	t.stop(&r.pool, err != nil)
	return t.v
}

// start assigns the ranks to workers.
func (t *trial) start(p *pool, dir string) error {
	n := t.c.Ranks
	if t.c.Transport == "local" {
		n = 1
	}
	t.events = make(chan event, 8*t.c.Ranks) // more than a case has
	for i := range n {
		w, err := p.take(
			func(r report) { t.events <- event{worker: i, report: r} },
			func() { t.events <- event{worker: i, end: true} })
		if err != nil {
			return err
		}
		t.workers = append(t.workers, w)
	}
	for i, w := range t.workers {
		o := order{Case: &t.c, Ranks: []int{i}, Dir: dir}
		if n != t.c.Ranks {
			o.Ranks = o.Ranks[:0]
			for id := range t.c.Ranks {
				o.Ranks = append(o.Ranks, id)
			}
		}
		w.Say(o)
	}
	return nil
}

// stages runs the ranks through the stages of the case.
func (t *trial) stages(ctx context.Context) error {
	culprit, what := t.c.culprit(), t.c.Incident.What
	mute := -1 // the rank that cannot report before it may continue
	if what == commtest.Kill || silent(what) {
		mute = culprit
	}
	if err := t.await(ctx, "joined", -1, joinTime); err != nil {
		return err
	}
	t.proceed()
	if err := t.suspend(ctx); err != nil {
		return err
	}
	if err := t.await(ctx, "told", mute, grace+t.c.limit()); err != nil {
		return err
	}
	t.timing()
	if what == commtest.Stop && t.v.Struck {
		if err := resume(t.workers[culprit].OS); err != nil {
			return err
		}
		if err := t.await(ctx, "told", -1, checkTime); err != nil {
			return err
		}
	}
	gone := -1
	if what == commtest.Kill {
		gone = culprit
	}
	t.proceed()
	if err := t.await(ctx, "checked", gone, checkTime); err != nil {
		return err
	}
	t.proceed()
	if err := t.await(ctx, "closed", gone, checkTime); err != nil {
		return err
	}
	return t.await(ctx, "ended", gone, checkTime)
}

// suspend stops all ranks for a while after the incident, if the case requires it.
func (t *trial) suspend(ctx context.Context) error {
	if t.c.Suspend == 0 {
		return nil
	}
	late := time.After(joinTime + spare)
	for !t.v.Struck {
		select {
		case e := <-t.events:
			t.take(e)
		case <-late:
			return fmt.Errorf("the incident has not happened within %v", joinTime+spare)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for _, w := range t.workers {
		if err := suspend(w.OS); err != nil {
			return err
		}
	}
	time.Sleep(t.c.Suspend) // nothing can happen meanwhile
	for _, w := range t.workers {
		if err := resume(w.OS); err != nil {
			return err
		}
	}
	return nil
}

// await returns when all ranks except one have sent a given report.
func (t *trial) await(ctx context.Context, what string, but int, limit time.Duration) error {
	limit += spare
	n := t.c.Ranks
	if what == "ended" {
		n = len(t.workers) // each sends it once
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		var missing []int
		for r := range n {
			if r != but && !t.seen[what][r] {
				missing = append(missing, r)
			}
		}
		if len(missing) == 0 {
			return nil
		}
		for _, r := range missing {
			if w := min(r, len(t.workers)-1); t.dead[w] {
				return fmt.Errorf("rank %d: its process ended: %s", r, &t.workers[w].Stderr)
			}
		}
		select {
		case e := <-t.events:
			t.take(e)
		case <-timer.C:
			return fmt.Errorf("ranks %v have not %s within %v, stacks in %s", missing, what, limit, t.stacks(missing))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// take records a report of a worker.
func (t *trial) take(e event) {
	r := e.report
	switch {
	case e.end:
		t.dead[e.worker] = true
		return
	case r.What == "struck":
		if !t.v.Struck {
			t.struck, t.v.Struck = r.At, true
			if t.c.Lag.What != "" {
				t.workers[min(t.c.world(t.c.Lag.Rank), len(t.workers)-1)].Say(order{Struck: true})
			}
		}
		return
	case r.What == "told":
		t.v.Told[r.Rank] = r.Err
		absent := t.c.Lag.What != "" && r.Rank == t.c.world(t.c.Lag.Rank) || silent(t.c.Incident.What) && r.Rank == t.c.culprit()
		if r.Err != "" && !absent && t.v.Struck {
			t.v.Detect = max(t.v.Detect, min(r.At.Sub(t.struck), r.Took))
		}
	case r.What == "ended" && len(r.Wrong) > 0:
		t.leaky = true // the next case must not inherit it
	case r.What == "ended":
		t.v.Usage = append(t.v.Usage, r.Usage)
	}
	t.v.Wrong = append(t.v.Wrong, r.Wrong...)
	t.v.Ops += r.Ops
	t.v.Bytes += r.Bytes
	if t.seen[r.What] == nil {
		t.seen[r.What] = map[int]bool{}
	}
	t.seen[r.What][r.Rank] = true
}

// timing checks that the incident happened and that all ranks detected it in time.
func (t *trial) timing() {
	switch {
	case !t.v.Struck && t.c.Steps == 0 && t.c.Incident.What != "":
		t.v.Wrong = append(t.v.Wrong, "the incident did not happen")
	case t.v.Detect > t.c.deadline():
		t.v.Wrong = append(t.v.Wrong, fmt.Sprintf("the last rank knew after %v, %v are allowed", t.v.Detect.Round(time.Millisecond), t.c.deadline()))
	}
}

// proceed lets the ranks continue.
func (t *trial) proceed() {
	for _, w := range t.workers {
		w.Say(order{})
	}
}

// stacks ends the processes of the given ranks, and returns the file with the stacks of their
// goroutines.
func (t *trial) stacks(ranks []int) string {
	f, err := os.CreateTemp("", "gofsdp-faults-stacks-")
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	for _, r := range ranks {
		w := t.workers[min(r, len(t.workers)-1)]
		dumpStacks(w.OS)
		select {
		case <-w.Gone:
		case <-time.After(5 * time.Second):
		}
		fmt.Fprintf(f, "rank %d\n%s\n", r, &w.Stderr)
	}
	return f.Name()
}

// stop returns the workers to the pool, or ends those that cannot be used again.
func (t *trial) stop(p *pool, spoilt bool) {
	for i, w := range t.workers {
		fit := !spoilt && !t.leaky && t.seen["ended"][i]
		if fit {
			p.give(w)
		} else {
			w.listen(nil, nil)
			w.kill()
		}
	}
}
