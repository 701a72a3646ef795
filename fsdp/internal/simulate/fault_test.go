package simulate

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Limits of the simulated jobs.
const (
	limit      = 30 * time.Second // comm.Config.Timeout
	joinLimit  = time.Minute      // comm.Config.JoinTimeout
	unanswered = 20 * time.Second // after which a host that is cut off is lost
	slack      = 5 * time.Second  // for news to spread, and ranks to ask each other
	stuck      = 10 * time.Minute // a rank that is not back by then hangs
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

// within is how long after it every rank has to know.
func (k kind) within() time.Duration {
	switch k {
	case kill, cut:
		return slack
	case cutOff:
		return unanswered + slack
	}
	return limit + slack
}

// fault is something that goes wrong with a rank, or between two.
type fault struct {
	kind
	later bool          // when the first rank has joined
	at    time.Duration // since then, or since the job began; since the latter once it has struck
	ranks [2]int        // the second for links
	how   time.Duration // long, or slow
}

func (f *fault) String() string {
	who := fmt.Sprintf("rank %d", f.ranks[0])
	if f.link() {
		who = fmt.Sprintf("ranks %v", f.ranks)
	}
	return fmt.Sprintf("%v: %v of %s (%v)", f.at, f.kind, who, f.how)
}

// drawFaults draws what goes wrong in a job of size ranks: some harmless things, and mostly one that is not.
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
