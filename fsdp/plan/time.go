package plan

import "cmp"

// A Timeline is a step as it would run on a cluster.
type Timeline struct {
	Events []Event // of the first two passes, in order of their beginning on each stream

	// Seconds of the whole step.
	Total         float64
	Compute       float64 // of computing on the device, without the slowdown by collectives
	Communication float64 // of collectives
	Exposed       float64 // of waits of the device for collectives
	Optimizer     float64

	MFU float64 // share of the device's peak, counting [Cost].Needed
	HFU float64 // the same, counting all FLOPs, recomputed ones included
}

// Stream is the stream on which an event runs.
type Stream uint8

// The streams.
const (
	Computing Stream = iota
	Communicating
)

// An Event is an operation in time.
type Event struct {
	Stream     Stream
	Pass       int // of the step, from 0
	Op         int // index in Pass.Ops, or -1 for the optimizer
	Begin, End float64
	Waiting    bool // the stream waits for data of the operation
}

// Time plays a step: the given number of passes, at least one, whose gradients add up, and an
// update. [Cluster.Check] must accept c.
func (p *Pass) Time(c *Cluster, passes int) *Timeline {
	r := &player{pass: p, c: c, t: new(Timeline)}
	r.measure()
	var first, second float64
	for i := range min(passes, 2) { // a third takes as long as the second
		r.play(i)
		if i == 0 {
			first = r.now
		}
		second = r.now - first
	}
	if passes > 2 {
		more := float64(passes) / 2
		r.t.Compute, r.t.Communication, r.t.Exposed = more*r.t.Compute, more*r.t.Communication, more*r.t.Exposed
		r.now += float64(passes-2) * second
	}
	r.update()
	r.t.Events = append(r.t.Events, Event{Op: -1, Begin: r.now, End: r.now + r.t.Optimizer})
	r.t.Total = r.now + r.t.Optimizer
	r.utilise(passes)
	return r.t
}

// player plays a pass.
type player struct {
	pass *Pass
	c    *Cluster
	t    *Timeline

	clock   clock        // of the host's cores
	ranks   int          // of a host
	threads int          // of a rank
	units   [][2]float64 // seconds of forward and backward
	now     float64      // time on the computing stream, which issues the collectives
	owed    float64      // time that ranks on the same core are behind
	free    float64      // when the communicating stream is free
	busy    []interval   // recent times when it was not free
	ready   []float64    // by group, the end of its collective in flight
	fresh   []bool       // by group, whether no call has run since it was issued
}

type interval struct{ begin, end float64 }

// measure computes the times of the units.
func (r *player) measure() {
	r.ranks = min(max(1, r.pass.Ranks), r.c.PerHost)
	touched := 0
	if len(r.pass.Ops) > 0 {
		touched = r.pass.Ops[r.pass.Peak()].Live.Total()
	}
	r.threads = min(max(1, r.pass.Threads), max(1, r.c.Cores)) // more have no core to run on
	r.clock = r.c.clock(r.ranks, r.threads, touched)
	for _, u := range r.pass.Units {
		var s [2]float64
		for i, list := range [...][]Work{u.Forward, u.Backward} {
			for _, w := range list {
				s[i] += r.seconds(w)
			}
			s[i] += r.busyTime(Forward+Kind(i)*(Backward-Forward), false, Work{Wide: true})
		}
		r.units = append(r.units, s)
	}
	r.ready, r.fresh = make([]float64, len(r.pass.Groups)), make([]bool, len(r.pass.Groups))
}

// slopes is a product whose result is multiplied by the slope of GELU, the operation gradient.
const slopes, gradient = "gelu linear dx", "gelu tanh grad"

// seconds returns how long operations take. A device whose products have no slopes multiplies in a
// separate kernel, unless a rate was measured for both.
func (r *player) seconds(w Work) (s float64) {
	_, measured := r.clock.usual[rateKey{slopes, w.Wide}]
	if w.Op == slopes && !r.c.Device.Slopes && !measured {
		size := w.Rows * w.Cols * 2
		if w.Wide {
			size *= 2
		}
		w.Bytes -= size // of the argument of GELU
		s = r.seconds(Work{Op: gradient, Class: Other, Count: w.Count, Bytes: 3 * size, Wide: w.Wide})
	}
	if t, ok := r.clock.seconds(rateKey{w.Op, w.Wide}, w); ok {
		return s + float64(w.Count)*t
	}
	return s + r.c.seconds(w)
}

// busyTime returns how long a rank itself is busy with an operation of the pass.
func (r *player) busyTime(k Kind, atOnce bool, w Work) float64 {
	if t, ok := r.clock.seconds(rateKey{k.String() + AtOnce, w.Wide}, w); ok && atOnce {
		return t
	}
	t, _ := r.clock.seconds(rateKey{k.String(), w.Wide}, w)
	return t
}

// agreement returns the link time of an exchange of a few words among all ranks. One precedes each
// half of a pass and, to clip gradients, an update has two. The ranks' own work for them was
// measured with passes and updates. Where devices compute, Software.Step includes all of it.
func (r *player) agreement() float64 {
	if r.c.Cores == 0 {
		return 0
	}
	return r.c.gather(0, r.pass.Ranks)
}

// update plays the update of a step.
func (r *player) update() {
	bytes := r.pass.Owned * r.pass.PerOwned
	r.t.Optimizer = r.moving(bytes)
	if t, ok := r.clock.seconds(rateKey{"update", true}, Work{Bytes: bytes}); ok {
		r.t.Optimizer = t * r.sharing()
	}
	r.t.Optimizer += r.moving(r.pass.Copied)
	if seconds := r.agreement(); seconds > 0 {
		r.t.Optimizer += 2 * (seconds + r.c.link(r.pass.Ranks).Late)
	}
	r.t.Optimizer += r.c.Software.Step
}

// sharing returns how many threads of ranks share a core.
func (r *player) sharing() float64 {
	if r.c.Cores == 0 {
		return 1
	}
	return max(1, float64(r.ranks*r.threads)/float64(r.c.Cores))
}

// play plays the operations of a pass.
func (r *player) play(pass int) {
	beside, _ := r.clock.seconds(rateKey{"pass", true}, Work{})
	r.now += beside
	for i, op := range r.pass.Ops {
		if seconds := r.agreement(); seconds > 0 && (op.Kind == Turn || i == 0) { // after the collectives in flight
			r.wait(pass, i, max(r.now, r.free)+seconds)
		}
		r.busyWith(pass, i, op)
		switch op.Kind {
		case Gather:
			g := &r.pass.Groups[op.Group]
			r.collect(pass, i, r.c.gather(g.Params, cmp.Or(op.Second, g.Shards))+r.rounding(g))
		case Reduce:
			g := &r.pass.Groups[op.Group]
			if g.Shards > 1 {
				r.collect(pass, i, r.c.gather(g.Grads, g.Shards))
			} else {
				r.collect(pass, i, r.c.reduce(g.sums(), 1, g.Replicas))
			}
		case Sync:
			g := &r.pass.Groups[op.Group]
			r.collect(pass, i, r.c.reduce(g.sums(), g.Shards, g.Replicas))
		case Wait, Drain:
			r.wait(pass, i, r.ready[op.Group])
		case Forward, Backward:
			r.compute(pass, i, r.units[r.pass.Calls[op.Call].Unit][half(op.Kind)])
		}
	}
	r.wait(pass, len(r.pass.Ops)-1, r.free)
}

// busyWith plays the rank's own work for a collective.
func (r *player) busyWith(pass, i int, op Op) {
	if op.Group < 0 {
		return
	}
	g := &r.pass.Groups[op.Group]
	if r.c.Cores == 0 && op.Kind == Drain && g.Shards*g.Replicas <= 1 && g.Grads == g.Stored {
		return // a device writes such gradients where they belong
	}
	w := g.Work(op.Kind)
	if op.Second > 0 {
		w.Bytes = g.Params - g.Params/op.Second
	}
	if s := r.busyTime(op.Kind, r.fresh[op.Group], w); s > 0 {
		r.t.Events = append(r.t.Events, Event{Computing, pass, i, r.now, r.now + s, true})
		r.t.Exposed += s
		r.now += s
		r.owed += (r.sharing() - 1) * s
	}
}

// rounding returns how long a device rounds the parameters of a group that it has all of.
func (r *player) rounding(g *Group) float64 {
	if r.c.Cores > 0 || g.Shards > 1 || g.Wide() {
		return 0
	}
	return r.moving(g.Stored + g.Params)
}

// moving returns how long a device reads and writes bytes.
func (r *player) moving(bytes int) float64 {
	return float64(bytes) / (r.c.Device.Bandwidth * r.c.Software.Memory)
}

// collect issues a collective, which begins when the earlier ones have ended.
func (r *player) collect(pass, op int, seconds float64) {
	group := r.pass.Ops[op].Group
	r.fresh[group] = true
	begin := max(r.now, r.free, r.ready[group])
	end := begin + seconds
	r.ready[group] = end
	if seconds == 0 {
		return
	}
	r.free = end
	r.t.Communication += seconds
	r.t.Events = append(r.t.Events, Event{Communicating, pass, op, begin, end, false})
	for len(r.busy) > 0 && r.busy[0].end <= r.now {
		r.busy = r.busy[1:]
	}
	r.busy = append(r.busy, interval{begin, end})
}

// wait lets the computing stream wait. Meanwhile the ranks that share the core run, each up to the
// place of this one, so that their work hides the link as well as its own work does.
func (r *player) wait(pass, op int, until float64) {
	if until > r.now {
		until += r.c.link(r.pass.Ranks).Late
	}
	until = max(until, r.now+r.owed)
	r.owed = 0
	if until <= r.now {
		return
	}
	r.t.Events = append(r.t.Events, Event{Computing, pass, op, r.now, until, true})
	r.t.Exposed += until - r.now
	r.now = until
}

// compute runs a call, slower while a collective runs.
func (r *player) compute(pass, op int, seconds float64) {
	begin, left := r.now, seconds
	slow := 1 + r.c.Software.Overlap
	for _, b := range r.busy {
		if b.end <= r.now {
			continue
		}
		if alone := b.begin - r.now; alone > 0 {
			if left <= alone {
				break
			}
			left -= alone
			r.now = b.begin
		}
		beside := (b.end - r.now) / slow
		if left <= beside {
			r.now += left * slow
			left = 0
			break
		}
		left -= beside
		r.now = b.end
	}
	r.now += left
	clear(r.fresh)
	r.owed += (r.sharing() - 1) * seconds
	r.t.Compute += seconds
	r.t.Events = append(r.t.Events, Event{Computing, pass, op, begin, r.now, false})
}

// utilise sets the utilisations.
func (r *player) utilise(passes int) {
	cost, peak := r.pass.Cost(), r.t.Total*r.c.Device.Peak
	r.t.MFU = float64(passes) * float64(cost.Needed) / peak
	r.t.HFU = float64(passes) * float64(cost.FLOPs) / peak
}

// half returns 0 for Forward and 1 for Backward.
func half(k Kind) int {
	if k == Backward {
		return 1
	}
	return 0
}
