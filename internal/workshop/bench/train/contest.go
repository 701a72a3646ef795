package train

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"time"

	"github.com/gofsdp/gofsdp/internal/calibrate"
	"github.com/gofsdp/gofsdp/internal/peak"
	"github.com/gofsdp/gofsdp/internal/workshop/bench/stats"
)

// A table has at least leastTurns turns. Several short steps are run at a time, so that there are
// manyTurns or a few times as many.
const leastTurns, manyTurns = 3, 10

// contest is the ways of a table, which train a model of one size in turns.
type contest struct {
	size
	precision precision
	list      []*candidate
	kernels   map[bool]peak.Kernel // under true for bfloat16
	rates     map[load][]float64   // of a core, in each turn
}

// load is the peak kernel of a core, and how many cores run it at once.
type load struct {
	bfloat16 bool
	cores    int
}

func (c *candidate) load() load { return load{c.Precision != float32s, c.cores()} }

// hold makes the ways train s in turns for some seconds, and prints a table.
func hold(ctx context.Context, w io.Writer, s size, p precision, ways []way, t *peer, seconds float64) (err error) {
	c := &contest{size: s, precision: p, kernels: peak.Kernels(), rates: make(map[load][]float64)}
	dir, err := os.MkdirTemp("", "train")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	defer func() {
		for _, c := range c.list {
			c.close()
		}
	}()
	if err := c.start(ctx, ways, t, dir); err != nil {
		return err
	}
	if err := c.takeTurns(seconds); err != nil {
		return err
	}
	c.report(w)
	return nil
}

// start starts all candidates. The first draws the weights, which PyTorch's candidates start with
// too. Ours start one after the other, as ranks that connect keep a core busy and may have
// real-time priority. PyTorch's candidates load for seconds, so they start together.
func (c *contest) start(ctx context.Context, ways []way, t *peer, dir string) error {
	var slow []*candidate
	for i, w := range ways {
		next, err := start(ctx, c.size, w, t, dir, i == 0)
		if err != nil {
			return err
		}
		c.list = append(c.list, next)
		if w.torch {
			slow = append(slow, next)
		} else if _, err := next.run(0); err != nil {
			return err
		}
	}
	return calibrate.Each(len(slow), func(i int) error {
		_, err := slow[i].run(0)
		return err
	})
}

// takeTurns runs steps of each candidate in turn, in a different order every time, so that a busy
// machine disturbs all alike. One earlier step warms up. The peak of the cores is measured in every
// turn too.
func (c *contest) takeTurns(seconds float64) error {
	var first time.Duration
	for i, next := range c.list {
		t, err := next.run(1)
		if err != nil {
			return err
		}
		if i == 0 {
			first = t
		}
	}
	steps := max(1, int(seconds/float64(manyTurns*len(c.list))/first.Seconds()))
	rnd := rand.New(rand.NewPCG(1, 0))
	for turn, begin := 0, time.Now(); turn < leastTurns || time.Since(begin).Seconds() < seconds; turn++ {
		c.measurePeaks()
		for _, i := range rnd.Perm(len(c.list)) {
			next := c.list[i]
			t, err := next.run(steps)
			if err != nil {
				return err
			}
			next.times = append(next.times, t)
		}
		if err := c.compare(turn); err != nil {
			return err
		}
	}
	return nil
}

// measurePeaks measures the peak of the cores under the loads of all candidates.
func (c *contest) measurePeaks() {
	done := make(map[load]bool)
	for _, next := range c.list {
		l := next.load()
		if k, ok := c.kernels[l.bfloat16]; ok && !done[l] {
			done[l] = true
			c.rates[l] = append(c.rates[l], k.Rate(l.cores))
		}
	}
}

// compare compares the losses after the first turn: candidates that do not train the same model on
// the same data in the same way have other losses. Later losses differ by more than the first
// roundings.
func (c *contest) compare(turn int) error {
	for _, next := range c.list {
		tolerance := 1e-3
		if next.Precision != float32s {
			tolerance = 3e-2
		}
		if first := c.list[0]; turn == 0 && !(math.Abs(next.loss/first.loss-1) < tolerance) {
			return fmt.Errorf("the losses differ: %g of %q and %g of %q", first.loss, first.name, next.loss, next.name)
		}
	}
	return nil
}

// report prints a row for each candidate: the median of its steps and their range, the ratio to the
// first, and for PyTorch the ratio to the fastest of ours on as many cores. Ratios are taken turn
// by turn.
func (c *contest) report(w io.Writer) {
	fmt.Fprintf(w, "\n%s, %s: %d layers, %d channels, %d heads, %d x %d tokens, %.1f GFLOP a step\n",
		c.name, c.precision, c.Layers, c.Dim, c.Heads, c.Batch, c.Context, c.flops()/1e9)
	fmt.Fprintf(w, "  %-26s %5s %28s %9s %8s %8s %9s %6s\n", "", "cores", "ms a step (min..max, n)", "tokens/s", "GFLOP/s", "of peak", "of 1 rank", "ours")
	for _, next := range c.list {
		t, share, faster := stats.Median(next.times), "-", ""
		flops := c.flops() / t.Seconds() / float64(next.cores())
		if rates := c.rates[next.load()]; len(rates) > 0 {
			share = fmt.Sprintf("%.1f%%", 100*flops/stats.Median(rates))
		}
		if ours := c.fastest(next.load()); next.torch && ours != nil {
			faster = fmt.Sprintf("%.2fx", stats.Ratio(next.times, ours.times))
		}
		fmt.Fprintf(w, "  %-26s %5d %28s %9.0f %8.1f %8s %8.2fx %6s\n", next.name, next.cores(), stats.Spread(next.times),
			float64(c.tokens())/t.Seconds(), flops/1e9, share, stats.Ratio(c.list[0].times, next.times), faster)
	}
	for _, l := range []load{{false, 1}, {false, 2}, {true, 1}, {true, 2}} {
		if rates := c.rates[l]; len(rates) > 0 {
			fmt.Fprintf(w, "  %-26s %5d %28s %9s %8.1f\n", c.kernels[l.bfloat16].Name, l.cores, "", "", stats.Median(rates)/1e9)
		}
	}
}

// fastest returns the fastest of ours under a load, or nil.
func (c *contest) fastest(l load) (fastest *candidate) {
	for _, next := range c.list {
		if !next.torch && next.load() == l && (fastest == nil || stats.Median(next.times) < stats.Median(fastest.times)) {
			fastest = next
		}
	}
	return fastest
}
