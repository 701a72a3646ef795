package simulate

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// event is a change of the ranks of a job.
type event int

const (
	killed event = iota
	stopped
	isolated
	parted
	left
	returned
	replaced
	added
	halved
	witnessKilled
	witnessAgain
	events // their number
	ofRank0
	together
	meanwhile
	marks // their number
)

var eventTexts = [marks]string{
	"processes killed", "stopped for up to 3 minutes", "cut off", "in a part that is cut off", "left after a step, as planned",
	"back after a stop or a cut", "started in the place of a killed one", "started in addition",
	"in a half that is cut off from the other one", "times that the witness is killed", "times that the witness is started again", "",
	"of the losses, of rank 0 of its group", "of the losses, of several ranks at once", "of the losses, while others connect again",
}

// survived counts the events of some jobs.
type survived struct {
	jobs, ranks0, formed, joined, steps       int
	counts                                    [marks]int
	hangs, wrong, doubles, splits, incomplete int
}

func (c *survived) add(o *survived) {
	for i, n := range o.counts {
		c.counts[i] += n
	}
	mine, theirs := c.numbers(), o.numbers()
	for i := range mine {
		*mine[i].n += *theirs[i].n
	}
}

type counted struct {
	n    *int
	what string
}

func (c *survived) numbers() []counted {
	return []counted{
		{&c.jobs, "jobs"}, {&c.ranks0, "ranks in their first groups"}, {&c.formed, "groups"}, {&c.joined, "processes that joined later"}, {&c.steps, "steps of a rank"},
		{&c.hangs, "ranks that hang"}, {&c.wrong, "states or sums with wrong bits"}, {&c.doubles, "steps that a rank makes twice"},
		{&c.splits, "steps of a group after a later one has formed"}, {&c.incomplete, "ranks of calm jobs that end too early"},
	}
}

// total returns the number of events.
func (c *survived) total() (n int) {
	for _, k := range c.counts[:events] {
		n += k
	}
	return n
}

// String is a table.
func (c *survived) String() string {
	var b strings.Builder
	row := func(n int, text string) { fmt.Fprintf(&b, "%9d  %s\n", n, text) }
	for _, o := range c.numbers() {
		row(*o.n, o.what)
	}
	row(c.total(), "events")
	for i, n := range c.counts {
		if i != int(events) {
			row(n, "  "+eventTexts[i])
		}
	}
	return b.String()
}

// TestReconnect changes the ranks of jobs until SIMULATE_EVENTS events have happened, from
// SIMULATE_SEED on. SIMULATE_SIZE is the number of ranks of all jobs.
func TestReconnect(t *testing.T) {
	want, first := number("SIMULATE_EVENTS", 10), uint64(number("SIMULATE_SEED", 1))
	var mu sync.Mutex
	var total survived
	seed, said := first, time.Now()
	next := func() (uint64, bool) {
		mu.Lock()
		defer mu.Unlock()
		seed++
		return seed - 1, total.total() < want
	}
	note := func(t *testing.T, s *survival) {
		mu.Lock()
		defer mu.Unlock()
		total.add(&s.survived)
		if len(s.faulty) > 0 {
			t.Errorf("seed %d, %d ranks: %q", s.seed, s.size, s.faulty)
		}
	}
	t.Run("jobs", func(t *testing.T) {
		for w := range runtime.GOMAXPROCS(0) {
			t.Run(fmt.Sprint(w), func(t *testing.T) {
				t.Parallel()
				for seed, more := next(); more; seed, more = next() {
					synctest.Test(t, func(t *testing.T) {
						s := newSurvival(t.TempDir(), seed, number("SIMULATE_SIZE", sizeOf(seed)))
						s.run(t)
						note(t, s)
					})
					mu.Lock()
					if time.Since(said) > time.Minute {
						said = time.Now()
						t.Logf("up to seed %d:\n%v", seed, &total)
					}
					mu.Unlock()
				}
			})
		}
	})
	t.Logf("seeds %d to %d:\n%v", first, seed-1, &total)
	require.Zero(t, total.hangs)
}
