package train

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/commtest"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/internal/calibrate"
	"github.com/gofsdp/gofsdp/internal/workshop/bench/stats"
)

// Plan calibrates this machine, or reads a calibration, trains, and compares the times of steps
// with the predictions of package plan.
func Plan(ctx context.Context, w io.Writer, args []string) error {
	c := newCommand("bench plan")
	low := c.flags.Bool("bfloat16", false, "compute in bfloat16")
	file := c.flags.String("cluster", "", "file that fsdpplan -calibrate has written, instead of a calibration: to measure in pieces")
	only := c.flags.Int("prefetch", 0, "measure this depth on two ranks alone; -1 for none")
	if err := c.flags.Parse(args); err != nil {
		return err
	}
	if c.flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", c.flags.Arg(0))
	}
	list, err := sizesOf(c.names)
	if err != nil {
		return err
	}
	p := &prediction{seconds: c.seconds, calibration: calibrate.New(2, "goroutines")}
	if *low {
		p.precision = fsdp.BF16()
	}
	p.probe = &setting{size{name: "probe", Layers: 3, Dim: 160, Heads: 5, Context: 96, Batch: 4, Vocab: 256}, 2, 1, 1, rings(0, 200e6)}
	p.calibration.Precisions = []fsdp.Precision{p.precision}
	for _, s := range list {
		p.add(s, *only)
	}
	if *file != "" {
		text, err := os.ReadFile(*file)
		if err != nil {
			return err
		}
		if p.cluster, err = plan.Parse(text); err != nil {
			return err
		}
	}
	p.others = stats.Others()
	fmt.Fprintf(w, "%s, %d cores\n", processor(), runtime.NumCPU())
	for range c.rounds {
		if err := p.round(ctx); err != nil {
			return err
		}
	}
	return p.report(w)
}

// prediction trains under settings and compares.
type prediction struct {
	seconds     float64 // for each setting and round
	precision   fsdp.Precision
	calibration *calibrate.Calibration
	cluster     *plan.Cluster  // instead of the calibration, if there is one
	others      func() float64 // share of the cores that other processes use
	settings    []*setting
	probe       *setting // for the cost of waiting for a slow link, see late
}

// setting is a model, and a number of ranks and a prefetch depth, over some links.
type setting struct {
	size
	ranks, prefetch int
	threads         int // of each rank
	links           []*ring
}

// ring is a link of the given bytes/s, or without a limit if it is 0.
type ring struct {
	bandwidth float64
	times     []time.Duration
	kinds     map[string]time.Duration // time of rank 0 for operations of a kind, in all steps
	steps     int
}

// most returns the kind of operations with the largest error of prediction, and the error in
// milliseconds.
func (r *ring) most(dry *fsdp.Plan, t *plan.Timeline) (kind string, off float64) {
	kinds := make(map[string]float64)
	for k, d := range r.kinds {
		kinds[k] = -d.Seconds() / float64(r.steps)
	}
	for _, e := range t.Events {
		if e.Stream == plan.Computing && e.Op >= 0 && dry.Pass.Ops[e.Op].Kind != plan.Turn { // agreements between ranks are not operations
			kinds[dry.Pass.Ops[e.Op].Kind.String()] += e.End - e.Begin
		}
	}
	for k, d := range kinds {
		if math.Abs(d) > math.Abs(off) {
			kind, off = k, d
		}
	}
	return kind, 1e3 * off
}

// add adds the settings of a size, or only the settings with one prefetch depth.
func (p *prediction) add(s size, only int) {
	if only == 0 {
		p.settings = append(p.settings, &setting{s, 1, 1, 1, rings(0)}, &setting{s, 1, 1, 2, rings(0)})
	}
	for _, prefetch := range []int{fsdp.NoPrefetch, 1, 2} {
		if only != 0 && prefetch != only {
			continue
		}
		p.settings = append(p.settings, &setting{s, 2, prefetch, 1, rings(0, 400e6, 100e6)})
	}
}

func rings(bandwidths ...float64) (list []*ring) {
	for _, b := range bandwidths {
		list = append(list, &ring{bandwidth: b, kinds: make(map[string]time.Duration)})
	}
	return list
}

// round calibrates, and makes some steps under each setting.
func (p *prediction) round(ctx context.Context) error {
	if p.cluster == nil {
		if err := p.calibration.Round(ctx); err != nil {
			return err
		}
	}
	for _, s := range append([]*setting{p.probe}, p.settings...) {
		if err := p.train(ctx, s); err != nil {
			return fmt.Errorf("%s on %d ranks: %w", s.name, s.ranks, err)
		}
	}
	return nil
}

// config returns the configuration of a setting, without the group.
func (p *prediction) config(s *setting) fsdp.Config {
	return fsdp.Config{WrapPolicy: fsdp.WrapTypes(&nn.Block{}), Prefetch: s.prefetch, Threads: s.threads, Precision: p.precision}
}

// link is a group whose speed changes between steps. Nothing that a step needs is split from it.
type link struct{ comm.Group }

// train makes steps under a setting, over each of its links.
func (p *prediction) train(ctx context.Context, s *setting) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(s.ranks * s.threads))
	local := comm.Local(s.ranks)
	links := make([]*link, s.ranks)
	var now *ring // whose steps are made
	c, err := newRanks(local, func(g comm.Group) (func() error, error) {
		l := &link{g}
		links[g.Rank()] = l
		cfg := p.config(s)
		cfg.Group = l
		if g.Rank() == 0 {
			cfg.Observers = append(cfg.Observers, fsdp.TraceFunc(func(e fsdp.Event) {
				if now != nil {
					now.kinds[e.Kind] += e.Duration
				}
			}))
		}
		t, err := newTrainer(ctx, s.size, cfg, s.Batch/s.ranks)
		if err != nil {
			return nil, err
		}
		return t.step, nil
	})
	if err != nil {
		return err
	}
	c.cores = s.ranks * s.threads
	for i, r := range s.links {
		for k, l := range links {
			l.Group = local[k]
			if r.bandwidth > 0 {
				l.Group = commtest.Slow(local[k], r.bandwidth, latency)
			}
		}
		if i == 0 { // caches are cold
			if err := c.step(); err != nil {
				return err
			}
		}
		now, c.times = r, nil
		if err := c.race(p.seconds, false); err != nil {
			return err
		}
		r.steps += len(c.times)
		r.times = append(r.times, c.times...)
	}
	return c.close()
}

// late returns by how many seconds a rank that waits for the slow link continues late: its timer is
// late, and meanwhile other threads used the core and its caches. It is the difference between the
// probe's time over the link and the prediction of everything else.
func (p *prediction) late(c *plan.Cluster) (late float64, err error) {
	free, slow := p.probe.links[0], p.probe.links[1]
	want := (stats.Median(slow.times) - stats.Median(free.times)).Seconds()
	for lo, hi := 0.0, 0.01; hi-lo > 1e-6; {
		late = (lo + hi) / 2
		_, a, err := p.predict(p.probe, free, c, late)
		if err != nil {
			return 0, err
		}
		_, b, err := p.predict(p.probe, slow, c, late)
		if err != nil {
			return 0, err
		}
		if b.Total-a.Total < want {
			lo = late
		} else {
			hi = late
		}
	}
	return late, nil
}

// predict returns how long a step takes on a cluster.
func (p *prediction) predict(s *setting, r *ring, c *plan.Cluster, late float64) (*fsdp.Plan, *plan.Timeline, error) {
	cfg := p.config(s)
	cfg.Group = comm.World{Ranks: s.ranks}
	shape := fsdp.Ints(s.Batch/s.ranks, s.Context)
	dry, err := fsdp.Planner{Model: s.model(), Config: cfg, NewOptimizer: optimizer.New, Batch: []fsdp.Shape{shape, shape}}.Plan()
	if err != nil {
		return nil, nil, err
	}
	slow := *c
	if r.bandwidth > 0 {
		slow.Inside = plan.Link{Bandwidth: r.bandwidth, Latency: latency.Seconds(), Late: late}
	}
	return dry, dry.Pass.Time(&slow, 1), nil
}

// report prints a row for each setting and link.
func (p *prediction) report(w io.Writer) error {
	c := p.cluster
	if c == nil {
		c = p.calibration.Cluster("this", 1<<30)
	}
	late, err := p.late(c)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "a rank that waits for the slow link continues %.2f ms late\n", 1e3*late)
	fmt.Fprintf(w, "%-8s %5s %7s %9s %10s %13s %24s %7s\n", "", "ranks", "threads", "prefetch", "MB/s", "predicted ms", "measured ms (quartiles)", "error")
	var errs []float64
	for _, s := range p.settings {
		for _, r := range s.links {
			dry, t, err := p.predict(s, r, c, late)
			if err != nil {
				return err
			}
			speed := "-"
			if r.bandwidth > 0 {
				speed = fmt.Sprintf("%.0f", r.bandwidth/1e6)
			}
			sorted := slices.Sorted(slices.Values(r.times))
			measured, n := stats.Median(r.times), len(sorted)
			e := t.Total/measured.Seconds() - 1
			errs = append(errs, math.Abs(e))
			kind, off := r.most(dry, t)
			fmt.Fprintf(w, "%-8s %5d %7d %9d %10s %13.1f %9.1f (%.1f..%.1f) n %d %+6.1f%%  %s %+.1f\n", s.name, s.ranks, s.threads, max(0, s.prefetch), speed, 1e3*t.Total,
				stats.Ms(measured), stats.Ms(sorted[n/4]), stats.Ms(sorted[(3*n-1)/4]), n, 100*e, kind, off)
		}
	}
	_, err = fmt.Fprintf(w, "errors: median %.1f %%, largest %.1f %%; others had %.1f %% of the cores\n", 100*stats.Median(errs), 100*slices.Max(errs), 100*p.others())
	return err
}
