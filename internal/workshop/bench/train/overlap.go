package train

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/commtest"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/internal/workshop/bench/stats"
)

// latency is the time of a collective over the slow link without its bytes.
const latency = 50 * time.Microsecond

// lane is a prefetch depth on a link.
type lane struct {
	*contestant
	waiting  time.Duration // of rank 0, in all steps
	plan     *fsdp.Plan
	trainers [2]*trainer
	feed     func(t *trainer, rank, step int) // sets the batch of a step, or nil
}

// loss returns the mean of the ranks' last losses.
func (l *lane) loss() float64 { return (l.trainers[0].loss + l.trainers[1].loss) / 2 }

// wait returns the time of a step that rank 0 waits.
func (l *lane) wait() time.Duration { return l.waiting / time.Duration(len(l.times)) }

// overlap trains on two ranks over a link of a given bandwidth and prints how much of the
// communication each prefetch depth leaves exposed. The exposed time is the waiting time of a rank
// in a pass, minus its waiting time in the same schedule over an unlimited link, where it waits
// only for the other rank. It is printed as a share of the time that the link is busy.
func overlap(w io.Writer, s size, bandwidth float64, rounds int, seconds float64) error {
	depths := []int{fsdp.NoPrefetch, 1, 2}
	var slow, free []*lane
	for _, prefetch := range depths {
		for _, link := range []struct {
			lanes     *[]*lane
			bandwidth float64
			latency   time.Duration
		}{{&slow, bandwidth, latency}, {&free, 0, 0}} {
			l, err := newLane(s, fsdp.Precision{}, prefetch, link.bandwidth, link.latency)
			if err != nil {
				return err
			}
			defer l.close()
			*link.lanes = append(*link.lanes, l)
		}
	}
	for round := range rounds {
		for i := range depths {
			for _, l := range []*lane{slow[i], free[i]} {
				if err := l.run(seconds/2, round == 0); err != nil {
					return err
				}
			}
		}
	}
	fmt.Fprintf(w, "%s on 2 ranks over a link of %.0f MB/s and %v a collective: communication that is not hidden behind computation\n", s.name, bandwidth/1e6, latency)
	fmt.Fprintf(w, "  %-10s %11s %12s %9s %13s %11s %14s %9s\n", "prefetch", "ms a step", "without link", "MB sent", "link busy ms", "waiting ms", "without link", "exposed")
	for i, l := range slow {
		n := l.plan.Gathers + l.plan.Reduces
		busy := time.Duration(float64(l.plan.Traffic)/bandwidth*1e9) + time.Duration(n)*latency
		fmt.Fprintf(w, "  %-10d %11.1f %12.1f %9.1f %13.1f %11.1f %14.1f %8.0f%%\n", max(0, depths[i]), stats.Ms(stats.Median(l.times)), stats.Ms(stats.Median(free[i].times)),
			stats.MB(l.plan.Traffic), stats.Ms(busy), stats.Ms(l.wait()), stats.Ms(free[i].wait()), 100*(l.wait()-free[i].wait()).Seconds()/busy.Seconds())
	}
	return nil
}

// run runs steps for some seconds. The first time it runs one step more, which does not count.
func (l *lane) run(seconds float64, first bool) error {
	if first {
		if err := l.step(); err != nil {
			return err
		}
		l.waiting = 0
	}
	return l.race(seconds, false)
}

// newLane wraps a model on two goroutine ranks.
func newLane(s size, precision fsdp.Precision, prefetch int, bandwidth float64, latency time.Duration) (*lane, error) {
	l := &lane{}
	var err error
	l.contestant, err = newRanks(comm.Local(2), func(g comm.Group) (func() error, error) {
		cfg := fsdp.Config{Group: commtest.Slow(g, bandwidth, latency), WrapPolicy: fsdp.WrapTypes(&nn.Block{}), Precision: precision, Prefetch: prefetch}
		if g.Rank() == 0 {
			cfg.Observers = append(cfg.Observers, fsdp.TraceFunc(func(e fsdp.Event) {
				if e.Kind == "wait" || e.Kind == "drain" || e.Kind == "sync" {
					l.waiting += e.Duration
				}
			}))
		}
		t, err := newTrainer(context.Background(), s, cfg, s.Batch/2)
		if err != nil {
			return nil, err
		}
		if g.Rank() == 0 {
			l.plan, err = t.model.Plan(t.batch...)
		}
		l.trainers[g.Rank()] = t
		steps := 0
		return func() error {
			if l.feed != nil {
				l.feed(t, g.Rank(), steps)
			}
			steps++
			return t.step()
		}, err
	})
	return l, err
}
