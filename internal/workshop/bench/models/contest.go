package models

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/internal/workshop/bench/process"
)

// A contest has at least leastTurns turns. Several short passes are run at a time, so that there
// are manyTurns or a few times as many. A way that does not answer within patience hangs.
const (
	leastTurns, manyTurns = 3, 10
	patience              = 5 * time.Minute
)

// candidate is a way of a contest, in its own process.
type candidate struct {
	name        string
	torch, half bool // PyTorch's; in bfloat16
	process     *process.Process
	cancel      context.CancelFunc // ends the process at once
	times       [3][]time.Duration // of a pass, its forward and its backward, in each turn
	loss, norm  float64
	tolerance   float64 // of the loss
}

// job is the argument of a process.
type job struct {
	Contest string
	Way     int     // of ours
	Variant string  // of PyTorch's
	Half    bool    // compute in bfloat16
	Weights string  // the file with the weights, which the first way writes
	Inputs  []input // of an operation
}

// hold runs the ways of c in turns for some seconds.
func hold(ctx context.Context, c contest, o options) (list []*candidate, err error) {
	dir, err := os.MkdirTemp(o.dir, "contest")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	defer func() {
		for _, next := range list {
			next.close()
		}
	}()
	j := job{Contest: c.name, Weights: filepath.Join(dir, "weights.safetensors"), Inputs: c.op.in}
	for _, j.Half = range o.halves {
		for j.Way = range c.ways {
			next, err := startOurs(ctx, c, j)
			if err != nil {
				return list, err
			}
			list = append(list, next)
		}
		for _, j.Variant = range c.variants {
			if o.torch == nil {
				break
			}
			next, err := startTorch(ctx, c, j, o)
			if err != nil {
				return list, err
			}
			list = append(list, next)
		}
	}
	return list, takeTurns(list, o.seconds)
}

func startOurs(ctx context.Context, c contest, j job) (*candidate, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return start(ctx, &candidate{name: c.ways[j.Way].name, tolerance: c.tolerance()}, j, func(ctx context.Context, text string) *exec.Cmd {
		command := exec.CommandContext(ctx, self, RankCommand, text)
		command.Env = append(os.Environ(), "GOMAXPROCS=1")
		return command
	})
}

func startTorch(ctx context.Context, c contest, j job, o options) (*candidate, error) {
	name := strings.TrimSpace("PyTorch " + j.Variant)
	return start(ctx, &candidate{name: name, torch: true, tolerance: c.tolerance()}, j, func(ctx context.Context, text string) *exec.Cmd {
		return o.torch.Command(ctx, 1, filepath.Join(o.dir, "peers", c.script), text)
	})
}

// start starts a process, and returns after its first pass.
func start(ctx context.Context, c *candidate, j job, command func(context.Context, string) *exec.Cmd) (*candidate, error) {
	if c.half = j.Half; c.half {
		c.name += ", bfloat16"
	}
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	ctx, c.cancel = context.WithCancel(ctx)
	if c.process, err = process.Start(command(ctx, string(text))); err != nil {
		c.cancel()
		return nil, err
	}
	if err := c.pass(1); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// pass runs n passes and records the time of one.
func (c *candidate) pass(n int) error {
	defer time.AfterFunc(patience, c.cancel).Stop()
	text, err := c.process.Ask(fmt.Sprint(n))
	var forward, backward float64
	if err == nil {
		_, err = fmt.Sscan(text, &forward, &backward, &c.loss, &c.norm)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	for i, seconds := range []float64{forward + backward, forward, backward} {
		c.times[i] = append(c.times[i], time.Duration(seconds/float64(n)*1e9))
	}
	return nil
}

// compare compares the results of the last passes of two ways.
func (c *candidate) compare(first *candidate) error {
	loss, norm := c.tolerance, 1e-3
	if c.half {
		loss, norm = 2e-2, 1e-2 // PyTorch rounds the mean loss to bfloat16: a unit in its last place is 0.6 % of 5.5
	}
	if math.Abs(c.loss/first.loss-1) < loss && math.Abs(c.norm/first.norm-1) < norm {
		return nil
	}
	return fmt.Errorf("%s and %s are different models: their losses are %g and %g, and the norms of their gradients %g and %g",
		first.name, c.name, first.loss, c.loss, first.norm, c.norm)
}

func (c *candidate) close() {
	defer c.cancel()
	defer time.AfterFunc(patience, c.cancel).Stop()
	c.process.Stop()
}

// takeTurns runs passes of each candidate in turn, in a different order every time, so that a busy
// machine disturbs all alike. An earlier pass warms up.
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
	passes := max(1, int(seconds/float64(manyTurns*len(list))/first.times[0][1].Seconds()))
	for _, next := range list {
		next.times = [3][]time.Duration{}
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
