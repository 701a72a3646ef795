package train

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/internal/calibrate"
	"github.com/gofsdp/gofsdp/internal/workshop/bench/stats"
)

// Search calibrates this machine, draws small models, trains each on two ranks under many settings,
// and prints how the choice of Planner.Tune compares with the fastest of them and with the
// defaults.
func Search(ctx context.Context, w io.Writer, args []string) error {
	c := newCommand("bench search")
	models := c.flags.Int("models", 20, "small models, drawn at random")
	seed := c.flags.Uint64("seed", 1, "of what is drawn")
	if err := c.flags.Parse(args); err != nil {
		return err
	}
	if c.flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", c.flags.Arg(0))
	}
	cal := calibrate.New(2, "goroutines")
	cal.Precisions = cal.Precisions[:1]
	fmt.Fprintf(w, "%s, %d cores, load %.1f\n", processor(), runtime.NumCPU(), stats.Load())
	for range c.rounds {
		if err := cal.Round(ctx); err != nil {
			return err
		}
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	cluster := cal.Cluster("this", 1<<40)
	fmt.Fprintf(w, "%-38s %8s %21s %9s %9s %s\n", "", "settings", "best ms (quartiles)", "chosen", "defaults", "good")
	draw := rand.New(rand.NewPCG(*seed, 0))
	bad := 0
	for range *models {
		h := hunt{size: drawn(draw), cluster: cluster}
		if err := h.run(ctx, c.rounds, c.seconds); err != nil {
			return fmt.Errorf("%+v: %w", h.size, err)
		}
		if !h.report(w) {
			bad++
		}
	}
	_, err := fmt.Fprintf(w, "%d of %d choices are slower than the best by more than 3 %% and its spread, or than the defaults; load %.1f\n", bad, *models, stats.Load())
	return err
}

// drawn draws a model with its batch.
func drawn(r *rand.Rand) size {
	pick := func(list ...int) int { return list[r.IntN(len(list))] }
	heads := pick(2, 4)
	return size{
		name: "drawn", Layers: 2 + r.IntN(7), Dim: heads * pick(16, 32, 48), Heads: heads, Context: pick(16, 32, 64), Batch: 2 * pick(1, 2, 4), Vocab: pick(64, 256, 1000),
	}
}

// hunt trains a model under settings.
type hunt struct {
	size
	cluster *plan.Cluster
	tries   []*try // the choice, the defaults, then the others
	all     int    // settings that were tried at first
}

// try is a model in training under a setting, and how long its steps take.
type try struct {
	*contestant
	setting plan.Setting
	median  time.Duration
}

// String names the setting in short.
func (t *try) String() string {
	s := t.setting
	return fmt.Sprintf("%s by %s, prefetch %d, recompute %s", s.Strategy, s.Units, s.Prefetch, s.Recompute)
}

// finalists is how many settings are compared in the end, in addition to the choice and the
// defaults: among many settings, the fastest is partly fast by chance.
const finalists = 4

// run tries every setting of Tune for some steps. Then it runs three settings in turns: the fastest
// one, the one that Tune chooses, and the defaults.
func (h *hunt) run(ctx context.Context, rounds int, seconds float64) error {
	shape := fsdp.Ints(h.Batch/2, h.Context)
	tune := func(cfg fsdp.Config) (fsdp.Config, []plan.Choice, error) {
		cfg.Group = comm.World{Ranks: 2}
		return fsdp.Planner{Model: h.model(), Config: cfg, NewOptimizer: optimizer.New, Batch: []fsdp.Shape{shape, shape}}.Tune(h.cluster, 1<<40)
	}
	chosen, choices, err := tune(fsdp.Config{})
	if err != nil {
		return err
	}
	if err := h.open(ctx, choices[0].Setting, chosen); err != nil {
		return err
	}
	if err := h.open(ctx, plan.Setting{Units: "one unit", Strategy: "FullShard", Prefetch: 1, Recompute: "some"}, fsdp.Config{}); err != nil {
		return err
	}
	for _, c := range choices[1:] {
		if c.Prefetch > 1 || c.Units == "4 blocks" { // small models have almost no other steps with these
			continue
		}
		if err := h.open(ctx, c.Setting, config(c.Setting)); err != nil {
			return err
		}
	}
	h.all = len(h.tries)
	if err := h.race(1, 0.02); err != nil {
		return err
	}
	slices.SortFunc(h.tries[2:], func(a, b *try) int { return cmp.Compare(a.median, b.median) })
	for _, t := range h.tries[2+finalists:] {
		if err := t.close(); err != nil {
			return err
		}
	}
	h.tries = h.tries[:2+finalists]
	for _, t := range h.tries {
		t.times = nil
	}
	if err := h.race(10*rounds, seconds/100); err != nil {
		return err
	}
	for _, t := range h.tries {
		if err := t.close(); err != nil {
			return err
		}
	}
	return nil
}

// config returns the configuration of a setting, as Tune makes it.
func config(s plan.Setting) fsdp.Config {
	cfg := fsdp.Config{Prefetch: s.Prefetch}
	if s.Prefetch == 0 {
		cfg.Prefetch = fsdp.NoPrefetch
	}
	blocks := fsdp.WrapTypes(&nn.Block{})
	cfg.WrapPolicy = map[string]fsdp.Policy{"blocks": blocks, "calls": fsdp.WrapEach(), "2 blocks": pairs}[s.Units]
	switch s.Recompute {
	case "full":
		cfg.Activations.Recompute = blocks
	case "none":
		cfg.Activations.Save = fsdp.WrapEach()
	}
	cfg.Strategy = map[string]fsdp.Strategy{"FullShard": fsdp.FullShard, "ShardGradOp": fsdp.ShardGradOp, "NoShard": fsdp.NoShard}[s.Strategy]
	return cfg
}

// pairs puts two blocks each into a unit.
func pairs(calls []fsdp.CallInfo) []string {
	names, first, blocks := make([]string, len(calls)), "", 0
	for i, c := range calls {
		if _, ok := c.Module.(*nn.Block); ok {
			if blocks++; blocks%2 == 1 {
				first = c.Name
			}
			names[i] = first
		}
	}
	return names
}

// open begins to train under a setting.
func (h *hunt) open(ctx context.Context, s plan.Setting, cfg fsdp.Config) error {
	c, err := newRanks(comm.Local(2), func(g comm.Group) (func() error, error) {
		cfg := cfg
		cfg.Group = g
		t, err := newTrainer(ctx, h.size, cfg, h.Batch/2)
		if err != nil {
			return nil, err
		}
		return t.step, t.step()
	})
	if err != nil {
		return err
	}
	h.tries = append(h.tries, &try{contestant: c, setting: s})
	return nil
}

// race trains in turns.
func (h *hunt) race(rounds int, seconds float64) error {
	for range rounds {
		for _, t := range h.tries {
			if err := t.contestant.race(seconds, false); err != nil {
				return err
			}
		}
	}
	for _, t := range h.tries {
		t.median = stats.Median(t.times)
	}
	return nil
}

// report prints a row, and returns whether the choice is good.
func (h *hunt) report(w io.Writer) bool {
	best := slices.MinFunc(h.tries, func(a, b *try) int { return cmp.Compare(a.median, b.median) })
	chosen, defaults := h.tries[0], h.tries[1]
	times := slices.Sorted(slices.Values(best.times))
	n := len(times)
	low, high := times[n/4], times[(3*n-1)/4]
	ratio := func(a, b *try) float64 { return a.median.Seconds() / b.median.Seconds() }
	allowed := max(0.03, high.Seconds()/best.median.Seconds()-1)
	good := ratio(chosen, best) <= 1+allowed && ratio(chosen, defaults) <= 1+allowed
	fmt.Fprintf(w, "%2d × %3d, %d heads, %d × %2d, vocab %4d  %6d %9.2f (%.2f..%.2f) %8.3f× %8.3f× %-5v %s; best %s\n", h.Layers, h.Dim, h.Heads, h.Batch, h.Context, h.Vocab, h.all,
		stats.Ms(best.median), stats.Ms(low), stats.Ms(high), ratio(chosen, best), ratio(defaults, best), good, chosen, best)
	return good
}
