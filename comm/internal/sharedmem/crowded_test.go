package sharedmem

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/comm/internal/grouptest"
	"github.com/gofsdp/gofsdp/comm/internal/limit"
	"github.com/gofsdp/gofsdp/comm/internal/local"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// BenchmarkCrowded has several ranks of this process share one or two processors.
// For what it prints see [pace.report].
func BenchmarkCrowded(b *testing.B) {
	for _, procs := range []int{1, 2} {
		for _, n := range []int{2, 4, 8} {
			for _, c := range crowds {
				if n <= procs {
					continue
				}
				b.Run(fmt.Sprintf("procs=%d/ranks=%d/%s", procs, n, c.name), func(b *testing.B) {
					defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
					turnsPerNanosecond() // measured before there are ranks to disturb it
					var all pace
					for b.Loop() {
						gs, paces, errs := local.New(n, limit.Default), make([]pace, n), make([]error, n)
						grouptest.TimeRanks(gs, 1, func(g transport.Group) { paces[g.Rank()], errs[g.Rank()] = c.run(g) })
						if err := errors.Join(errs...); err != nil {
							b.Fatal(err)
						}
						all.add(paces[0])
					}
					all.Report(b)
				})
			}
		}
	}
}

// crowd is ranks that work and gather 64 bytes, again and again. While they work
// they make no call that the scheduler could come in by.
type crowd struct {
	name   string
	rounds int
	first  time.Duration // of work per round of rank 0
	others time.Duration // and of the others
	ahead  bool          // the collective is issued before the work and waited for behind it
}

// The scheduler lets others run after 10 ms: some work is longer.
var crowds = []crowd{
	{"even", 100, 200 * time.Microsecond, 200 * time.Microsecond, false},
	{"even ahead", 100, 200 * time.Microsecond, 200 * time.Microsecond, true},
	{"uneven", 10, 20 * time.Millisecond, 200 * time.Microsecond, false},
	{"uneven ahead", 10, 20 * time.Millisecond, 200 * time.Microsecond, true},
}

// pace is how long things take in a crowd.
type pace struct {
	with, without []float64 // seconds per round, and what the work takes without collectives
	meetings      []int64   // nanoseconds from the last rank's issue to the last return from Wait
}

func (p *pace) add(q pace) {
	p.with, p.without = append(p.with, q.with...), append(p.without, q.without...)
	p.meetings = append(p.meetings, q.meetings...)
}

// report prints, for one round of work and a collective,
//
//	us-exposed     what it takes longer than the work alone, measured in turn (best of the rounds)
//	x-work         the two as a ratio
//	us-meeting     from the last rank's issue to the last return from Wait, median; what
//	               the first to return works meanwhile on the same processor is in it
//	us-meeting-p99 the same, of one in a hundred
func (p *pace) Report(b *testing.B) {
	with, without := slices.Min(p.with), slices.Min(p.without)
	slices.Sort(p.meetings)
	b.ReportMetric((with-without)*1e6, "us-exposed")
	b.ReportMetric(with/without, "x-work")
	b.ReportMetric(float64(p.meetings[len(p.meetings)/2])/1e3, "us-meeting")
	b.ReportMetric(float64(p.meetings[len(p.meetings)*99/100])/1e3, "us-meeting-p99")
	b.ReportMetric(0, "ns/op") // of all rounds: says nothing
}

// run is one rank: it works alone, then works and meets, and agrees with the others
// on how long that has taken.
func (c *crowd) run(g transport.Group) (pace, error) {
	turns := turnsFor(c.others)
	if g.Rank() == 0 {
		turns = turnsFor(c.first)
	}
	whole, part := transport.Of(make([]uint8, 64)), transport.Of(make([]uint8, 64/g.Size()))
	issued, returned := make([]int64, c.rounds), make([]int64, c.rounds)
	without, err := c.together(g, func(int) error { spin(turns); return nil })
	if err != nil {
		return pace{}, err
	}
	with, err := c.together(g, func(k int) error {
		if !c.ahead {
			spin(turns)
		}
		issued[k] = time.Now().UnixNano()
		w := g.AllGather(whole, part)
		if c.ahead {
			spin(turns)
		}
		err := w.Wait(context.Background())
		returned[k] = time.Now().UnixNano()
		return err
	})
	if err != nil {
		return pace{}, err
	}
	for _, x := range [][]int64{issued, returned} {
		if err := g.AllReduce(transport.Of(x), transport.Max).Wait(context.Background()); err != nil {
			return pace{}, err
		}
	}
	for k := range returned {
		returned[k] -= issued[k]
	}
	return pace{[]float64{with}, []float64{without}, returned}, nil
}

// together calls f for every round and returns the seconds per round, from the first
// rank's beginning to the last one's end.
func (c *crowd) together(g transport.Group, f func(k int) error) (float64, error) {
	if err := g.Barrier(context.Background()); err != nil {
		return 0, err
	}
	begun := time.Now().UnixNano()
	for k := range c.rounds {
		if err := f(k); err != nil {
			return 0, err
		}
	}
	span := []int64{-begun, time.Now().UnixNano()}
	err := g.AllReduce(transport.Of(span), transport.Max).Wait(context.Background())
	return float64(span[0]+span[1]) / 1e9 / float64(c.rounds), err
}

// spin works for so many turns, without a call.
func spin(turns int) {
	x := uint64(turns)
	for range turns {
		x = x*6364136223846793005 + 1442695040888963407
	}
	worked.Store(x)
}

// worked is where the result of spin goes, so that it has to be computed.
var worked atomic.Uint64

// turnsFor returns how many turns of work take so long, if nobody else runs.
func turnsFor(d time.Duration) int { return int(float64(d) * turnsPerNanosecond()) }

// The best of many samples: others may disturb some.
var turnsPerNanosecond = sync.OnceValue(func() float64 {
	const sample = 1 << 16
	best := time.Duration(math.MaxInt64)
	for range 1000 {
		begin := time.Now()
		spin(sample)
		best = min(best, time.Since(begin))
	}
	return sample / float64(best)
})
