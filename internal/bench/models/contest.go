package models

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/gofsdp/gofsdp/internal/bench/process"
	"github.com/gofsdp/gofsdp/internal/bench/stats"
	"github.com/gofsdp/gofsdp/internal/bench/torch"
)

// A contest has leastTurns at least. Short passes are run many at a time, so that there are manyTurns
// or a few times as many. A way that does not answer for patience is hung.
const (
	leastTurns, manyTurns = 3, 10
	patience              = 5 * time.Minute
)

// candidate is a way of a contest, in a process.
type candidate struct {
	name       string
	torch      bool
	process    *process.Process
	cancel     context.CancelFunc // ends the process at once
	times      []time.Duration    // of a pass, in each turn
	loss, norm float64
}

// hold has the ways of c take turns for some seconds, and prints a table.
func hold(ctx context.Context, w io.Writer, c contest, t *torch.Torch, dir string, seconds float64) (err error) {
	dir, err = os.MkdirTemp(dir, "contest")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var list []*candidate
	defer func() {
		for _, next := range list {
			next.close()
		}
	}()
	enter := func(next *candidate, err error) error {
		if err != nil {
			return err
		}
		list = append(list, next)
		return next.pass(1)
	}
	weights := filepath.Join(dir, "weights.safetensors")
	for i := range c.ways {
		if err := enter(startOurs(ctx, c, i, weights)); err != nil {
			return err
		}
	}
	for _, variant := range c.variants {
		if t == nil {
			break
		}
		if err := enter(startTorch(ctx, c, t, variant, weights, filepath.Dir(dir))); err != nil {
			return err
		}
	}
	if err := takeTurns(list, seconds); err != nil {
		return err
	}
	report(w, c, list)
	return nil
}

// job is what a process of ours is told.
type job struct {
	Contest string
	Way     int
	Weights string // the file with the weights, which the first way writes
}

func startOurs(ctx context.Context, c contest, way int, weights string) (*candidate, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(job{c.name, way, weights})
	if err != nil {
		return nil, err
	}
	return start(ctx, &candidate{name: c.ways[way].name}, func(ctx context.Context) *exec.Cmd {
		command := exec.CommandContext(ctx, self, RankCommand, string(text))
		command.Env = append(os.Environ(), "GOMAXPROCS=1")
		return command
	})
}

func startTorch(ctx context.Context, c contest, t *torch.Torch, variant, weights, dir string) (*candidate, error) {
	text, err := json.Marshal(map[string]string{"Weights": weights, "Variant": variant})
	if err != nil {
		return nil, err
	}
	return start(ctx, &candidate{name: "PyTorch " + variant, torch: true}, func(ctx context.Context) *exec.Cmd {
		return t.Command(ctx, 1, filepath.Join(dir, "peers", c.script), string(text))
	})
}

func start(ctx context.Context, c *candidate, command func(context.Context) *exec.Cmd) (*candidate, error) {
	ctx, c.cancel = context.WithCancel(ctx)
	var err error
	if c.process, err = process.Start(command(ctx)); err != nil {
		c.cancel()
		return nil, err
	}
	return c, nil
}

// pass runs n passes and notes what one of them took.
func (c *candidate) pass(n int) error {
	defer time.AfterFunc(patience, c.cancel).Stop()
	text, err := c.process.Ask(fmt.Sprint(n))
	var seconds float64
	if err == nil {
		_, err = fmt.Sscan(text, &seconds, &c.loss, &c.norm)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	c.times = append(c.times, time.Duration(seconds/float64(n)*1e9))
	return nil
}

// compare compares what the last passes of two ways found.
func (c *candidate) compare(first *candidate) error {
	if math.Abs(c.loss/first.loss-1) < 1e-4 && math.Abs(c.norm/first.norm-1) < 1e-3 {
		return nil
	}
	return fmt.Errorf("%s has loss %g and gradients of norm %g, %s %g and %g: they are not the same model",
		first.name, first.loss, first.norm, c.name, c.loss, c.norm)
}

func (c *candidate) close() {
	defer c.cancel()
	defer time.AfterFunc(patience, c.cancel).Stop()
	c.process.Stop()
}

// takeTurns runs passes of each candidate in turn, in an order that is another one every time, so
// that a busy machine disturbs all alike. The pass before warms up.
func takeTurns(list []*candidate, seconds float64) error {
	first := list[0]
	for _, next := range list {
		if err := next.compare(first); err != nil {
			return err
		}
		if err := next.pass(1); err != nil {
			return err
		}
	}
	passes := max(1, int(seconds/float64(manyTurns*len(list))/first.times[1].Seconds()))
	for _, next := range list {
		next.times = nil
	}
	rnd := rand.New(rand.NewPCG(1, 0))
	for turn, begin := 0, time.Now(); turn < leastTurns || time.Since(begin).Seconds() < seconds; turn++ {
		for _, i := range rnd.Perm(len(list)) {
			if err := list[i].pass(passes); err != nil {
				return err
			}
		}
	}
	return nil
}

// report prints a row for each candidate: the median of its passes and their range, its rate, and
// ratios to the first.
func report(w io.Writer, c contest, list []*candidate) {
	fmt.Fprintf(w, "\n%s: %s\n  %-26s %28s %8s %12s %6s\n", c.name, c.doc, "", "ms a pass (min..max, n)", "GFLOP/s", "of the first", "ours")
	for _, next := range list {
		rate, ours := "-", ""
		if c.flops > 0 {
			rate = fmt.Sprintf("%.1f", c.flops/stats.Median(next.times).Seconds()/1e9)
		}
		if next.torch {
			ours = fmt.Sprintf("%.2fx", stats.Ratio(next.times, list[0].times))
		}
		fmt.Fprintf(w, "  %-26s %28s %8s %11.2fx %6s\n", next.name, stats.Spread(next.times), rate,
			stats.Ratio(list[0].times, next.times), ours)
	}
}
