// Package calibrate measures the times of a step on the cores of this machine, as rates of a
// plan.Cluster. It trains small models and records how long every operation of the engine takes,
// with the kernels, the transport and the caches of real training:
//
//	models, from 32 to 768 channels ──train──▶ samples ──fit──▶ a rate for each operation
//	on one rank, on all, and on one            (FLOPs, bytes, scores; seconds)
//	of as many threads as there are cores
//
// The network between hosts is not measured.
package calibrate

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/optim"
)

// A Calibration collects samples. It is for one goroutine, in a process that does nothing else.
type Calibration struct {
	Ranks      int    // of the host, at least 1
	Threads    int    // of one rank, measured in addition to one thread; as many as there are cores
	Transport  string // transport of the ranks, one of Transports
	Precisions []fsdp.Precision

	subjects []subject
	samples  map[sample][]float64 // seconds of each run
	rounds   int
}

// New returns a calibration for the given number of ranks over a transport.
func New(ranks int, transport string) *Calibration {
	return &Calibration{
		Ranks: ranks, Threads: runtime.NumCPU(), Transport: transport, Precisions: []fsdp.Precision{{}, fsdp.BF16()},
		subjects: subjects, samples: make(map[sample][]float64),
	}
}

// A sample is a measured operation and its sizes.
type sample struct {
	op                   string
	wide                 bool
	ranks, threads       int
	flops, bytes, scores int
	touched              int // bytes that a rank accesses in a step outside of kernels
}

// A subject is a model with the shape of its batch on a rank.
type subject struct {
	model       fsdp.Model
	vocab       int
	rows, width int
}

func gpt(layers, dim, heads, context, rows, vocab int) subject {
	return subject{&nn.GPT{Vocab: vocab, Context: context, Layers: layers, Dim: dim, Heads: heads}, vocab, rows, context}
}

// blocks makes each block a unit.
func (s subject) blocks() fsdp.Policy {
	if _, ok := s.model.(*nn.Llama); ok {
		return fsdp.WrapTypes(&nn.Layer{})
	}
	return fsdp.WrapTypes(&nn.Block{})
}

// subjects are the models, from small to large. They differ in width, length and head size, so that
// no two features of an operation grow together.
var subjects = []subject{
	gpt(2, 32, 2, 32, 2, 64), gpt(2, 64, 2, 64, 4, 128), gpt(2, 64, 4, 128, 1, 512), gpt(2, 96, 3, 96, 3, 96), gpt(2, 128, 2, 256, 2, 256),
	gpt(2, 128, 4, 64, 8, 256), gpt(2, 256, 8, 64, 2, 1024), gpt(2, 256, 4, 256, 2, 512), gpt(2, 384, 6, 256, 4, 256), gpt(1, 512, 8, 128, 4, 512),
	gpt(1, 768, 12, 256, 2, 256), gpt(1, 256, 2, 192, 2, 256),
	gpt(4, 768, 12, 64, 1, 256), // its parameters exceed all caches, as in real models
	{&nn.GPT{Vocab: 256, Context: 64, Layers: 1, Dim: 64, Heads: 2, Tied: true, FusedLoss: true, Dropout: 0.1}, 256, 4, 64},
	{&nn.GPT{Vocab: 1024, Context: 128, Layers: 1, Dim: 256, Heads: 4, Tied: true, FusedLoss: true, Dropout: 0.1}, 1024, 2, 128},
	{&nn.Llama{Vocab: 256, Layers: 1, Dim: 64, Heads: 4, KVHeads: 2, Hidden: 192}, 256, 4, 64},
	{&nn.Llama{Vocab: 512, Layers: 1, Dim: 256, Heads: 4, KVHeads: 2, Hidden: 768}, 512, 2, 128},
}

// ways are the configurations for training; each round uses another one for each model.
var ways = []fsdp.Config{{}, {Prefetch: fsdp.NoPrefetch}, {Strategy: fsdp.NoShard}, {Strategy: fsdp.ShardGradOp}}

// A round trains each model for at least some time and some steps.
const (
	enough   = 100 * time.Millisecond
	minSteps = 3
)

// Round trains every model once in every way and takes samples. It takes about ten seconds on two
// cores. More rounds reduce the effect of disturbances.
func (c *Calibration) Round(ctx context.Context) error {
	crews := []struct{ ranks, threads int }{{1, 1}}
	if c.Ranks > 1 {
		crews = append(crews, struct{ ranks, threads int }{c.Ranks, 1})
	}
	if c.Threads > 1 {
		crews = append(crews, struct{ ranks, threads int }{1, c.Threads})
	}
	defer func() { c.rounds++ }()
	for _, crew := range crews {
		for _, p := range c.Precisions {
			for i, s := range c.subjects {
				cfg := ways[(i+c.rounds)%len(ways)]
				cfg.Precision, cfg.Threads = p, crew.threads
				if err := c.train(ctx, crew.ranks, cfg, s); err != nil {
					return fmt.Errorf("calibrating %T on %d ranks of %d threads: %w", s.model, crew.ranks, crew.threads, err)
				}
			}
		}
	}
	return nil
}

// train trains a model on n ranks.
func (c *Calibration) train(ctx context.Context, n int, cfg fsdp.Config, s subject) (err error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(n * cfg.Threads))
	groups, err := Groups(ctx, n, c.Transport)
	if err != nil {
		return err
	}
	rec := &recorder{calibration: c, ranks: n, threads: cfg.Threads}
	exec.Watch = rec.instruction
	defer func() { exec.Watch = nil }()
	return Each(n, func(i int) error {
		err := rec.rank(ctx, groups[i], cfg, s)
		if err != nil {
			groups[i].Abort(err)
		}
		return errors.Join(err, groups[i].Close())
	})
}

// Each runs f for 0 to n-1 at once and waits.
func Each(n int, f func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// A recorder records the samples of a training.
type recorder struct {
	calibration    *Calibration
	ranks, threads int

	mu      sync.Mutex
	on      bool
	kernels time.Duration // since the last event; meaningful for one rank only
}

// take adds a sample.
func (r *recorder) take(s sample, took time.Duration) {
	s.ranks, s.threads = r.ranks, r.threads
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.on {
		r.calibration.samples[s] = append(r.calibration.samples[s], took.Seconds())
	}
}

// instruction is [exec.Watch]. For instructions that run together, the time is divided in
// proportion to their arithmetic.
func (r *recorder) instruction(list []exec.Instr, took time.Duration) {
	r.mu.Lock()
	r.kernels += took
	r.mu.Unlock()
	all := 0
	for i := range list {
		all += 1 + list[i].Cost().FLOPs
	}
	for i := range list {
		s, cost := sampleOf(&list[i], len(list) > 1), list[i].Cost()
		r.take(s, time.Duration(float64(took)*float64(1+cost.FLOPs)/float64(all)))
	}
}

// sampleOf returns the sample of an instruction, which may run together with others.
func sampleOf(in *exec.Instr, together bool) sample {
	cost := in.Cost()
	s := sample{op: string(in.Op.Kind), wide: !in.Half, bytes: cost.Read + cost.Written}
	if in.Op.Product != nil || in.Op.Attention != nil || together { // the time of others grows with the bytes
		s.flops = cost.FLOPs
	}
	if in.Op.Attention != nil {
		_, s.scores, _ = in.Op.Attention(in.Op)
	}
	return s
}

// rank trains on one rank.
func (r *recorder) rank(ctx context.Context, g comm.Group, cfg fsdp.Config, s subject) error {
	t := &tracer{recorder: r}
	cfg.Group, cfg.WrapPolicy = g, s.blocks()
	cfg.Observers = []fsdp.Observer{fsdp.TraceFunc(t.event)}
	m, err := fsdp.WrapContext(ctx, s.model, cfg)
	if err != nil {
		return err
	}
	opt, err := optim.AdamW{WeightDecay: 0.1}.New(m.Params())
	if err != nil {
		return err
	}
	x := make([]int, s.rows*s.width)
	for i := range x {
		x[i] = int(int64(i+g.Rank()*len(x)) * 2654435761 >> 7 % int64(s.vocab))
	}
	tokens := tensor.New(tensor.WithShape(s.rows, s.width), tensor.WithBacking(x))
	batch := []fsdp.Tensor{tokens, tokens}
	dry, err := m.Plan(batch...)
	if err != nil {
		return err
	}
	t.plan(dry.Pass)
	steps := minSteps
	for i := 0; i <= steps; i++ {
		begin := time.Now()
		if err := t.step(ctx, m, opt, batch); err != nil {
			return err
		}
		if i > 0 {
			continue
		}
		// The first step fills caches, so it does not count. The first rank decides how many
		// follow.
		count := []int64{int64(max(minSteps, enough/time.Since(begin)))}
		if err := g.Broadcast(comm.Of(count), 0).Wait(ctx); err != nil {
			return err
		}
		steps = int(count[0])
		r.mu.Lock()
		r.on = true
		r.mu.Unlock()
	}
	return m.Close()
}

// A tracer records the samples of a rank's passes.
type tracer struct {
	*recorder
	pass   *plan.Pass
	groups map[string]*plan.Group
	events time.Duration   // of this pass
	fresh  map[string]bool // groups without a call since their collective was issued

	touched int // bytes in a step
}

// plan describes the coming events.
func (t *tracer) plan(p *plan.Pass) {
	t.pass, t.groups, t.fresh = p, make(map[string]*plan.Group), make(map[string]bool)
	t.touched = p.Ops[p.Peak()].Live.Total()
	for i := range p.Groups {
		t.groups[p.Groups[i].Name] = &p.Groups[i]
	}
}

// step runs one training step.
func (t *tracer) step(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, batch []fsdp.Tensor) error {
	t.events = 0
	begin := time.Now()
	if _, err := m.Forward(ctx, batch...); err != nil {
		return err
	}
	if err := m.Backward(ctx); err != nil {
		return err
	}
	t.take(sample{op: "pass", wide: true}, time.Since(begin)-t.events)
	begin = time.Now()
	if _, err := m.ClipGradNorm(ctx, 1); err != nil {
		return err
	}
	if err := opt.Step(1e-4); err != nil {
		return err
	}
	m.ZeroGrad()
	t.take(sample{op: "update", wide: true, bytes: t.pass.Owned * t.pass.PerOwned, touched: t.touched}, time.Since(begin))
	return nil
}

// event is a TraceFunc of package fsdp.
func (t *tracer) event(e fsdp.Event) {
	t.events += e.Duration
	s := sample{op: e.Kind, wide: true}
	if g := t.groups[e.Group]; g != nil {
		kind := plan.Kind(0)
		for kind.String() != e.Kind {
			kind++
		}
		w := g.Work(kind)
		s.wide, s.bytes, s.flops, s.touched = w.Wide, w.Bytes, w.FLOPs, t.touched
	}
	t.mu.Lock()
	kernels := t.kernels
	t.kernels = 0
	t.mu.Unlock()
	switch e.Kind {
	case "forward", "backward":
		clear(t.fresh)
		if t.ranks == 1 { // with several ranks the kernels are mixed
			t.take(s, e.Duration-kernels)
		}
	case "gather", "reduce", "sync":
		t.take(s, e.Duration)
		t.fresh[e.Group] = true
	case "wait", "drain":
		if t.fresh[e.Group] {
			s.op += plan.AtOnce
		}
		t.take(s, e.Duration)
	}
}
