package simulate

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/gofsdp/gofsdp/internal/simnet"
)

// Limits of the simulated jobs.
const (
	limit      = 30 * time.Second // comm.Config.Timeout
	joinLimit  = time.Minute      // comm.Config.JoinTimeout
	unanswered = 20 * time.Second // after which a host that is cut off is lost: mesh.Unanswered
	stuck      = 10 * time.Minute // a rank that is not back by then hangs
)

// What passes beside the times above until all ranks know of a fault: the times that comm states,
// and those of the model. Time in which a harmless fault holds a rank up does not count, see
// undisturbed.
const (
	computing = 1100 * time.Millisecond // a step of a rank and its disk: it learns of it when it calls a group
	reason    = time.Second             // a broken connection waits for its cause to become known: grace in comm
	asking    = 500 * time.Millisecond  // ranks tell what they are doing: patience in comm
	slowed    = time.Second             // ten messages of a handshake or of a collective over slow links
	slack     = computing + reason + asking + slowed
	resent    = 200 * time.Millisecond // after an isolation, until TCP tries again
)

// What a job takes if nothing goes wrong, about.
const (
	begins = 1200 * time.Millisecond // joining
	works  = 4 * time.Second         // the steps
)

// kind is what goes wrong.
type kind int

const (
	kill    kind = iota // a process ends
	freeze              // a process is stopped for longer than the limit
	cutOff              // a host is cut off for good
	cut                 // the connections of two ranks are reset
	flip                // a bit changes between two ranks
	stall               // a process is stopped for some seconds
	isolate             // a host is cut off for some seconds
	slow                // what two ranks say to each other takes longer, for some seconds
	kinds
)

func (k kind) String() string {
	return [...]string{"kill", "freeze", "cut off", "cut", "flip", "stall", "isolate", "slow"}[k]
}

// harmless tells whether a job has to survive it.
func (k kind) harmless() bool { return k >= stall }

// link tells whether it is between two ranks, both of which may be named for it.
func (k kind) link() bool { return k == cut || k == flip || k == slow }

// within is how long after a fault every rank has to know.
func (j *job) within(f *fault) time.Duration {
	switch {
	case f.kind == cutOff, f.kind == kill && j.unheard(f.ranks[0], f.at):
		return unanswered + slack
	case f.kind == kill, f.kind == cut:
		return slack
	}
	return limit + slack
}

// unheard reports whether what a rank says at a time, such as that its process has ended, never
// comes through: a host that is cut off for a while says it when TCP tries again. If it is cut off
// for good before then, only its silence tells.
func (j *job) unheard(rank int, at time.Duration) bool {
	for _, f := range j.struck { // in the order of time
		if (f.kind == isolate || f.kind == cutOff) && f.ranks[0] == rank && f.at <= at && at < f.at+f.how {
			at = f.at + f.how + resent
		}
	}
	return at > stuck
}

// undisturbed returns when so much time has passed since from in which no rank was stopped for a
// while, or cut off for a while: all wait for such a rank, and the limit is for time without any
// progress.
func (j *job) undisturbed(from, left time.Duration) time.Duration {
	for at := from; ; {
		end, held := at+left, false
		for _, f := range j.struck {
			switch until := f.at + f.how + resent; {
			case f.kind != stall && f.kind != isolate || until <= at:
			case f.at <= at:
				end, held = until, true
			case !held:
				end = min(end, f.at)
			}
			if held {
				break
			}
		}
		if !held {
			left -= end - at
		}
		at = end
		if left == 0 {
			return at
		}
	}
}

// fault is something that goes wrong with a rank, or between two.
type fault struct {
	kind
	later bool          // when the first rank has joined
	at    time.Duration // since then, or since the job began; since the latter once it has struck
	ranks [2]int        // the second for links
	how   time.Duration // long, or slow
	met   *simnet.Met   // of a cut or a flip, by whoever uses the link
}

// since returns from when on all have to learn of a fault that has struck, on the clock of at: a
// link that is broken, from when it is used. ok is false while that has not been.
func (f *fault) since(begun time.Time) (from time.Duration, ok bool) {
	if f.met == nil {
		return f.at, true
	}
	at := f.met.At()
	return at.Sub(begun), !at.IsZero()
}

func (f *fault) text(begun time.Time) string {
	who := fmt.Sprintf("rank %d", f.ranks[0])
	if f.link() {
		who = fmt.Sprintf("ranks %v", f.ranks)
	}
	text := fmt.Sprintf("%v: %v of %s (%v)", f.at, f.kind, who, f.how)
	if f.met != nil {
		from, ok := f.since(begun)
		text += fmt.Sprintf(", met %v at %v", ok, from)
	}
	return text
}

// drawFaults draws what goes wrong in a job of size ranks: some harmless things, and mostly one
// that is not.
func drawFaults(rng *rand.Rand, size int) (list []*fault) {
	add := func(k kind) {
		f := &fault{kind: k, at: time.Duration(rng.Int64N(int64(begins)))}
		if f.later = rng.IntN(4) > 0; f.later {
			f.at = time.Duration(rng.Int64N(int64(works)))
		}
		f.ranks[0] = rng.IntN(size)
		f.ranks[1] = (f.ranks[0] + 1 + rng.IntN(size-1)) % size
		switch k {
		case freeze, cutOff:
			f.how = time.Hour
		case slow:
			f.how = time.Duration(rng.Int64N(int64(100 * time.Millisecond)))
		case stall, isolate:
			f.how = time.Duration(rng.Int64N(int64(3 * time.Second)))
		}
		list = append(list, f)
	}
	for range 4 + rng.IntN(16) {
		add(stall + kind(rng.IntN(int(kinds-stall))))
	}
	for range [...]int{0, 1, 1, 1, 1, 1, 1, 2}[rng.IntN(8)] {
		add(kind(rng.IntN(int(stall))))
	}
	slices.SortFunc(list, func(a, b *fault) int { return cmp.Or(compare(a.later, b.later), cmp.Compare(a.at, b.at)) })
	return list
}

// compare orders false before true.
func compare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
