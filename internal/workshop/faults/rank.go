package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/commtest"
)

// rank runs one rank of a case.
type rank struct {
	c   Case
	id  int // in the world
	dir string
	say func(report)
	stages

	world, group comm.Group // group runs the program; nil on a rank that is not a member
	wrong        []string   // failures of checks
	ops          int        // operations complete
	bytes        int64      // bytes of the operations

	entered time.Time // beginning of the last call that waits
	knew    time.Time // time of the first error
}

// stages are the channels that a rank waits for. Each is closed when
type stages struct {
	begin  chan struct{} // every rank has joined
	struck chan struct{} // the incident has happened
	finish chan struct{} // every rank has reported the end of its program
	end    chan struct{} // every rank has checked for leftovers
}

// report is a worker's message to the parent.
type report struct {
	What  string // joined, struck, told, checked, closed; the worker sends ended
	Rank  int    // in the world
	At    time.Time
	Took  time.Duration `json:",omitempty"` // duration of the call that returned the first error
	Err   string        `json:",omitempty"` // the end of the program
	Wrong []string      `json:",omitempty"`
	Ops   int           `json:",omitempty"`
	Bytes int64         `json:",omitempty"`
	Usage usage         `json:",omitzero"`
}

func (r *rank) complain(format string, args ...any) {
	r.wrong = append(r.wrong, fmt.Sprintf("rank %d: ", r.id)+fmt.Sprintf(format, args...))
}

// tell reports that the rank has ended a stage, and the failures in it.
func (r *rank) tell(what string, err error) {
	t := report{What: what, Rank: r.id, At: time.Now(), Wrong: r.wrong, Ops: r.ops, Bytes: r.bytes}
	if err != nil {
		t.Err = err.Error()
	}
	if !r.knew.IsZero() {
		t.At, t.Took = r.knew, r.knew.Sub(r.entered)
	}
	r.say(t)
	r.wrong, r.ops, r.bytes = nil, 0, 0
}

// wait calls f, which may wait for other ranks, and measures the time of the first call that fails:
// the time that a rank computes between its calls is not the group's.
func (r *rank) wait(f func() error) error {
	if r.knew.IsZero() {
		r.entered = time.Now()
	}
	err := f()
	if err != nil && r.knew.IsZero() {
		r.knew = time.Now()
	}
	return err
}

// play runs the case. open returns the handle of the world.
func (r *rank) play(open func(context.Context) (comm.Group, error)) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	err := r.join(ctx, open)
	if err != nil {
		r.complain("joining: %v", err)
	}
	r.tell("joined", err)
	<-r.begin
	if err == nil {
		err = r.act(ctx)
		r.judge(err)
	}
	r.tell("told", err)
	<-r.finish
	if r.world != nil {
		r.afterwards(ctx, err)
	}
	r.tell("checked", nil)
	<-r.end
	r.leave()
	r.tell("closed", nil)
}

// join creates the groups, which must work at first.
func (r *rank) join(ctx context.Context, open func(context.Context) (comm.Group, error)) (err error) {
	if r.world, err = open(ctx); err != nil {
		return err
	}
	r.group = r.world
	if r.c.Sub {
		color := 0
		if r.c.place(r.id) < 0 {
			color = -1
		}
		if r.group, err = r.world.Split(ctx, color, -r.id); err != nil || r.group == nil {
			return err
		}
	}
	return r.group.Barrier(ctx)
}

// act runs the program with its incidents and returns the first error.
func (r *rank) act(ctx context.Context) error {
	if r.group == nil {
		if endsProcess(r.c.Incident.What) && r.c.Incident.What != commtest.Stop {
			return r.wait(func() error { return r.world.Barrier(ctx) }) // no other rank joins it
		}
		return nil
	}
	over := make(chan struct{})
	defer close(over)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // a rank that has become silent waits for it
		select {
		case <-r.finish:
			cancel()
		case <-over:
		}
	}()
	if r.c.Transport == "local" && silent(r.c.Incident.What) { // its own limit is too long for a case
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, r.c.limit())
		defer stop()
	}
	note := func(i commtest.Incident) {
		if i == r.c.Incident {
			r.say(report{What: "struck", Rank: r.id, At: time.Now()})
		}
	}
	g := commtest.Inject(r.group, note, r.c.Incident)
	if r.group.Rank() == r.c.Lag.Rank && r.c.Lag.What != "" {
		g = commtest.Faulty(r.group, r.lag)
	}
	if r.c.Steps > 0 {
		return r.ramble(ctx, g)
	}
	return r.program(ctx, g)
}

// lag delays this rank, if it must, until some time after the incident.
func (r *rank) lag(c commtest.Call) (none commtest.Fault) {
	if c.Seq != r.c.Lag.At.Seq {
		return none
	}
	select {
	case <-r.struck:
		time.Sleep(r.c.Lag.After)
	case <-time.After(grace): // the case fails: the incident did not happen
	}
	return none
}

// program is the target, alone or among others, followed by three sums in which the incident is
// detected at the latest. Ranks that share memory rarely use their connections, so the report of a
// broken one may take more sums.
func (r *rank) program(ctx context.Context, g comm.Group) error {
	first := []string{r.c.Collective}
	if r.c.Moment == momentFlight {
		first = []string{commtest.AllReduce, r.c.Collective, r.c.Collective, commtest.AllReduce}
	}
	seq, begin := 0, time.Now()
	for round := 0; round <= 3 || r.c.breaks() && time.Since(begin) < r.c.deadline(); round++ {
		batch := first
		if round > 0 {
			batch = []string{commtest.AllReduce}
		}
		var waits []func() error
		for _, kind := range batch {
			seq++
			waits = append(waits, r.issue(ctx, g, kind, seq))
		}
		if err := firstError(waits); err != nil {
			return err
		}
	}
	return nil
}

// firstError waits for all and returns the first error.
func firstError(waits []func() error) (first error) {
	for _, wait := range waits {
		err := wait()
		if first == nil {
			first = err
		}
	}
	return first
}

// issue issues a collective and returns a function that waits for it and checks it.
func (r *rank) issue(ctx context.Context, g comm.Group, kind string, seq int) (wait func() error) {
	var err error
	switch kind {
	case commtest.Barrier:
		err = r.wait(func() error { return g.Barrier(ctx) })
	case commtest.Split:
		var child comm.Group
		err = r.wait(func() (err error) {
			child, err = g.Split(ctx, 0, -g.Rank())
			return err
		})
		if err == nil && !r.differs() && (child == nil || child.Size() != g.Size() || child.Rank() != g.Size()-1-g.Rank()) {
			r.complain("split #%d gave %v", seq, child)
		}
	default:
		return r.trial(ctx, g, r.c.trial(kind, seq))
	}
	if err == nil {
		r.ops++
	}
	return func() error { return err }
}

// trial issues t and returns a function that waits for it and checks the values.
func (r *rank) trial(ctx context.Context, g comm.Group, t commtest.Trial) (wait func() error) {
	w, check := t.Issue(g)
	return func() error {
		if err := r.wait(func() error { return w.Wait(ctx) }); err != nil {
			return err
		}
		if err := check(); err != nil && !r.differs() {
			r.complain("%v", err)
		}
		r.ops++
		r.bytes += int64(t.Len * t.Type.Size())
		return nil
	}
}

// differs reports whether this rank makes a call that differs from the program's. Such a call may
// complete here before it fails.
func (r *rank) differs() bool { return r.c.Incident.What.Mismatch() && r.id == r.c.culprit() }

// ramble runs random collectives, up to six in flight, and then waits for every rank: as in
// program, until the report of a broken connection has arrived.
func (r *rank) ramble(ctx context.Context, g comm.Group) error {
	rng := rand.New(rand.NewPCG(r.c.Seed, uint64(r.c.Number)))
	own := rand.New(rand.NewPCG(r.c.Seed, uint64(r.id))) // ranks need not wait in the same way
	for left := r.c.Steps; left > 0; {
		batch := 1 + rng.IntN(min(6, left))
		var waits []func() error
		for range batch {
			waits = append(waits, r.trial(ctx, g, commtest.RandomTrial(rng, g.Size(), r.c.Bytes)))
		}
		own.Shuffle(len(waits), func(i, j int) { waits[i], waits[j] = waits[j], waits[i] })
		if err := firstError(waits); err != nil {
			return err
		}
		left -= batch
	}
	for begin := time.Now(); ; {
		err := r.wait(func() error { return g.Barrier(ctx) })
		if err != nil || !r.c.breaks() || time.Since(begin) > r.c.deadline() {
			return err
		}
	}
}

// afterwards checks the guarantees after every rank has detected the incident. err is the error of
// this rank.
func (r *rank) afterwards(ctx context.Context, err error) {
	what := r.c.Incident.What
	if r.group != nil && err != nil {
		r.later(ctx, err)
	}
	if whole := what == commtest.Delay || what == ""; whole || r.c.Sub && !endsProcess(what) {
		given, cancel := context.WithTimeout(ctx, grace+spare)
		defer cancel()
		if err := r.world.Barrier(given); err != nil {
			r.complain("the world should still work: %v", err)
		}
	}
	if r.c.Transport != "local" && !(what == commtest.Close && r.id == r.c.culprit()) {
		r.checkReport(ctx)
	}
}

// grace is the limit for an operation that cannot fail, or has already failed.
const grace = 5 * time.Second

// later requires that later operations fail like the first, without waiting.
func (r *rank) later(ctx context.Context, first error) {
	if r.c.Incident.What == commtest.Drop && r.id == r.c.culprit() {
		return // it has no error
	}
	given, cancel := context.WithTimeout(ctx, grace+spare)
	defer cancel()
	x := []float32{1}
	for _, err := range []error{
		r.group.AllReduce(comm.Of(x), comm.Sum).Wait(given),
		r.group.Barrier(given),
	} {
		if err == nil || err.Error() != first.Error() {
			r.complain("later operation: %v, but before: %v", err, first)
			return
		}
	}
}

// checkReport requires an answer from every remaining rank.
func (r *rank) checkReport(ctx context.Context) {
	given, cancel := context.WithTimeout(ctx, grace+spare)
	defer cancel()
	g := r.group
	if g == nil {
		g = r.world
	}
	all, err := comm.Report(given, g)
	if err != nil || len(all) != g.Size() {
		r.complain("report: %d answers, %v", len(all), err)
		return
	}
	spoilt := endsProcess(r.c.Incident.What) || r.c.Incident.What == commtest.Close
	for i, s := range all {
		if s.Err != "" && (i == g.Rank() || !spoilt) {
			r.complain("report: %v", s)
		}
	}
	if given.Err() != nil && !spoilt {
		r.complain("report took %v", grace+spare)
	}
}

// leave closes the world, in time.
func (r *rank) leave() {
	if r.world == nil {
		return
	}
	begin := time.Now()
	if err := r.world.Close(); err != nil {
		r.complain("close: %v", err)
	}
	if took := time.Since(begin); took > 2*time.Second+spare {
		r.complain("close took %v", took)
	}
}
