package commtest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// testWatch checks that a watched group reports each collective once, in the order of time, and
// none before or after.
func (k kit) testWatch(t *testing.T) {
	must(t, k.group(t), func(ctx context.Context, g comm.Group) error {
		w, ok := g.(transport.Watcher)
		if !ok {
			return fmt.Errorf("%T is no transport.Watcher", g)
		}
		if err := g.Barrier(ctx); err != nil {
			return err
		}
		var mu sync.Mutex
		var seen []transport.Flight
		early, stopped := 0, w.Watch(func(transport.Flight) { t.Error("told after stop") })
		stopped()
		other := w.Watch(func(transport.Flight) { early++ })
		stop := w.Watch(func(f transport.Flight) {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, f)
		})
		var works []comm.Work
		small, large := make([]float32, 3), make([]float32, 1<<16)
		for range 3 {
			works = append(works, g.AllReduce(comm.Of(small).Named("small"), comm.Sum), g.AllReduce(comm.Of(large).Named("large"), comm.Max))
		}
		for _, work := range works {
			if err := work.Wait(ctx); err != nil {
				return err
			}
		}
		stop()
		stop() // does nothing
		if err := g.Barrier(ctx); err != nil {
			return err
		}
		if other(); early != len(works)+1 {
			return fmt.Errorf("rank %d: the other watcher has seen %d collectives, want %d", g.Rank(), early, len(works)+1)
		}
		mu.Lock()
		defer mu.Unlock()
		return compareFlights(g, seen, len(works))
	})
}

// compareFlights checks the reports of n collectives, from the second of g on.
func compareFlights(g comm.Group, seen []transport.Flight, n int) error {
	slices.SortFunc(seen, func(a, b transport.Flight) int { return cmp.Compare(a.Seq, b.Seq) })
	if len(seen) != n {
		return fmt.Errorf("rank %d: the watcher has seen %d collectives, want %d: %v", g.Rank(), len(seen), n, seen)
	}
	for i, f := range seen {
		call, bytes := `all-reduce float32[3] sum "small"`, 12
		if i%2 == 1 {
			call, bytes = `all-reduce float32[65536] max "large"`, 1<<18
		}
		if f.Rank != g.Rank() || f.Group == "" || f.Seq != seen[0].Seq+uint64(i) || f.Call != call || f.Bytes != bytes {
			return fmt.Errorf("rank %d: flight %d is %+v, want %s", g.Rank(), i, f, call)
		}
		if f.Began.Before(f.Issued) || f.Done.Before(f.Began) || i > 0 && f.Issued.Before(seen[i-1].Issued) {
			return fmt.Errorf("rank %d: the times of flight %d are out of order: %+v", g.Rank(), i, f)
		}
	}
	return nil
}
