package fsdp_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// counter is a GPT that can count to ten.
func counter() *nn.GPT { return &nn.GPT{Vocab: 10, Context: 8, Layers: 2, Dim: 16, Heads: 2} }

// Four virtual ranks train to the same bits on one rank, on two, three and four. Micro-batch k of
// rank r belongs to virtual rank k·ranks + r. On three ranks, only rank 0 has a second one.
func ExampleConfig_virtualRanks() {
	const virtual = 4
	norms := make(map[float64]int) // after 3 steps
	for ranks := 1; ranks <= virtual; ranks++ {
		err := comm.Run(context.Background(), ranks, func(ctx context.Context, g comm.Group) error {
			m, err := fsdp.Wrap(counter(), fsdp.Config{Group: g, WrapPolicy: fsdp.WrapTypes(&nn.Block{}), VirtualRanks: virtual})
			if err != nil {
				return err
			}
			defer m.Close()
			opt, err := optim.AdamW{}.New(m.Params())
			if err != nil {
				return err
			}
			norm := 0.0
			for step := range 3 {
				for first := 0; first < virtual; first += ranks {
					var batch []fsdp.Tensor // none if no virtual rank is left
					if v := first + g.Rank(); v < virtual {
						tokens, targets := counting(step+v, 2, 8)
						batch = []fsdp.Tensor{tokens, targets}
					}
					if _, err := m.Forward(ctx, batch...); err != nil {
						return err
					}
					if err := m.Backward(ctx); err != nil {
						return err
					}
				}
				if norm, err = m.ClipGradNorm(ctx, 1); err != nil {
					return err
				}
				if err := opt.Step(0.01); err != nil {
					return err
				}
				m.ZeroGrad()
			}
			if g.Rank() == 0 {
				norms[norm]++
			}
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("different results:", len(norms))
	// Output: different results: 1
}

// Four micro-batches make one step. The first three add up on each rank, and the last one sends the
// sum.
func ExampleSharded_NoSync() {
	err := comm.Run(context.Background(), 2, func(ctx context.Context, g comm.Group) error {
		m, err := fsdp.Wrap(counter(), fsdp.Config{Group: g, WrapPolicy: fsdp.WrapTypes(&nn.Block{})})
		if err != nil {
			return err
		}
		defer m.Close()
		micro := func(i int) error {
			tokens, targets := counting(i+5*g.Rank(), 2, 8)
			plan, err := m.Plan(tokens, targets)
			if err != nil {
				return err
			}
			if g.Rank() == 0 {
				fmt.Printf("micro-batch %d: %d reductions\n", i, plan.Reduces)
			}
			if _, err := m.Forward(ctx, tokens, targets); err != nil {
				return err
			}
			return m.Backward(ctx, fsdp.Scale(1./4))
		}
		err = m.NoSync(func() error {
			for i := range 3 {
				if err := micro(i); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		return micro(3)
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// micro-batch 0: 0 reductions
	// micro-batch 1: 0 reductions
	// micro-batch 2: 0 reductions
	// micro-batch 3: 3 reductions
}

// GPT-2 travels in 8 bits, but its embeddings, which are also the head, in bfloat16, and their
// gradients in float32. They are all of the unit "root", so there are no more collectives.
func ExamplePrecision() {
	model := &nn.GPT{Vocab: 50257, Context: 1024, Layers: 12, Dim: 768, Heads: 12, Tied: true}
	int8 := fsdp.Precision{Compute: fsdp.BFloat16, Gather: fsdp.Int8, Reduce: fsdp.Int8}
	mixed := int8
	mixed.TypesOf = func(c fsdp.CallInfo, _ fsdp.Param) (gather, reduce fsdp.DType) {
		if strings.HasPrefix(c.Name, "blocks.") {
			return fsdp.Int8, fsdp.Int8
		}
		return fsdp.BFloat16, fsdp.Float32
	}
	for _, p := range []fsdp.Precision{fsdp.BF16(), int8, mixed} {
		cfg := fsdp.Config{Group: comm.World{Ranks: 8}, WrapPolicy: fsdp.WrapTypes(&nn.Block{}), Precision: p}
		plan, err := fsdp.Planner{Model: model, Config: cfg, NewOptimizer: optim.AdamW{}.New, Batch: []fsdp.Shape{fsdp.Ints(1, 1024), fsdp.Ints(1, 1024)}}.Plan()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d gathers, %d MB sent\n", plan.Gathers, plan.Traffic/1e6)
	}
	// Output:
	// 46 gathers, 777 MB sent
	// 46 gathers, 285 MB sent
	// 46 gathers, 421 MB sent
}

// Gradients travel as float16. The scale keeps small ones above zero, and comes down where it makes
// large ones infinite: such a step is left out.
func ExampleSharded_Unscale() {
	ctx := context.Background()
	m, err := fsdp.Wrap(counter(), fsdp.Config{Precision: fsdp.Precision{Gather: fsdp.BFloat16, Reduce: fsdp.Float16}})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	opt, err := optim.AdamW{}.New(m.Params())
	if err != nil {
		log.Fatal(err)
	}
	scaler, err := optim.LossScale{Init: 1 << 20}.New()
	if err != nil {
		log.Fatal(err)
	}
	for updates := 0; updates < 2; {
		tokens, targets := counting(updates, 4, 8)
		if _, err := m.Forward(ctx, tokens, targets); err != nil {
			log.Fatal(err)
		}
		if err := m.Backward(ctx, fsdp.Scale(scaler.Scale())); err != nil {
			log.Fatal(err)
		}
		finite, err := m.Unscale(ctx, scaler)
		if err != nil {
			log.Fatal(err)
		}
		if !finite {
			continue // Unscale has dropped the gradients, and the scale has come down
		}
		if err := opt.Step(0.01); err != nil {
			log.Fatal(err)
		}
		m.ZeroGrad()
		updates++
	}
	fmt.Println("2 of", opt.Steps(), "updates done, the scale came down:", scaler.Scale() < 1<<20)
	// Output: 2 of 2 updates done, the scale came down: true
}

// The head is trained alone, then everything: the head's moments go on, those of the rest begin.
func ExampleSharded_Freeze() {
	ctx := context.Background()
	m, err := fsdp.Wrap(counter(), fsdp.Config{Frozen: func(name string) bool { return !strings.HasPrefix(name, "head") }})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	opt, err := optim.AdamW{}.New(m.Params())
	if err != nil {
		log.Fatal(err)
	}
	step := func() {
		tokens, targets := counting(opt.Steps(), 4, 8)
		if _, err := m.Forward(ctx, tokens, targets); err != nil {
			log.Fatal(err)
		}
		if err := m.Backward(ctx); err != nil {
			log.Fatal(err)
		}
		if err := opt.Step(0.01); err != nil {
			log.Fatal(err)
		}
		m.ZeroGrad()
	}
	for range 3 {
		step()
	}
	entries, err := m.Freeze(ctx, nil, opt)
	if err != nil {
		log.Fatal(err)
	}
	if opt, err = (optim.AdamW{}).New(m.Params()); err != nil {
		log.Fatal(err)
	}
	if err := opt.Adopt(3, entries); err != nil {
		log.Fatal(err)
	}
	step()
	for _, e := range opt.State() {
		if e.Name == "exp_avg" && (e.Param == "head.weight" || e.Param == "wte.weight") {
			fmt.Println(e.Param, "has seen", e.Steps, "updates")
		}
	}
	// Output:
	// wte.weight has seen 1 updates
	// head.weight has seen 4 updates
}

// Two forwards before their backwards: the better batch counts three times as much.
func ExampleSharded_Hold() {
	ctx := context.Background()
	m, err := fsdp.Wrap(counter(), fsdp.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	var passes []*fsdp.Pass
	for i := range 2 {
		tokens, targets := counting(i, 2, 8)
		if _, err := m.Forward(ctx, tokens, targets); err != nil {
			log.Fatal(err)
		}
		passes = append(passes, m.Hold())
	}
	better := 0
	if passes[1].Loss() < passes[0].Loss() {
		better = 1
	}
	for i, p := range passes {
		scale := 0.25
		if i == better {
			scale = 0.75
		}
		if err := p.Backward(ctx, fsdp.Scale(scale)); err != nil {
			log.Fatal(err)
		}
	}
	norms, err := m.GradNorms(ctx, fsdp.L2Norm)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(norms), "parameters have a gradient")
	// Output: 29 parameters have a gradient
}

// How much each parameter changes in a step, relative to its size.
func ExampleSharded_ParamNorms() {
	err := comm.Run(context.Background(), 2, func(ctx context.Context, g comm.Group) error {
		m, err := fsdp.Wrap(counter(), fsdp.Config{Group: g})
		if err != nil {
			return err
		}
		defer m.Close()
		tokens, targets := counting(5*g.Rank(), 2, 8)
		if _, err := m.Forward(ctx, tokens, targets); err != nil {
			return err
		}
		if err := m.Backward(ctx); err != nil {
			return err
		}
		params, err := m.ParamNorms(ctx, fsdp.L2Norm)
		if err != nil {
			return err
		}
		grads, err := m.GradNorms(ctx, fsdp.L2Norm)
		if err != nil {
			return err
		}
		name := "lnf.weight"
		if g.Rank() == 0 {
			fmt.Printf("%s: norm %.0f, gradient smaller: %v\n", name, params[name], grads[name] < params[name])
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: lnf.weight: norm 4, gradient smaller: true
}

// One rank changes a parameter that no rank has whole, and all have the result.
func ExampleSharded_Summon() {
	err := comm.Run(context.Background(), 3, func(ctx context.Context, g comm.Group) error {
		m, err := fsdp.Wrap(counter(), fsdp.Config{Group: g})
		if err != nil {
			return err
		}
		defer m.Close()
		err = m.Summon(ctx, []string{"lnf.weight"}, func(params map[string]*tensor.Dense) error {
			if g.Rank() == 0 {
				params["lnf.weight"].Float32s()[15] = 0.5
			}
			return nil
		}, fsdp.WriteBack(0))
		if err != nil {
			return err
		}
		for _, p := range m.Params() {
			if p.Name == "lnf.weight" && p.Offset+p.Value.Len() == 16 {
				last := optim.Host{F32: make([]float32, 2)}
				if err := p.Value.Slice(p.Value.Len()-2, p.Value.Len()).Read(last); err != nil {
					return err
				}
				fmt.Println(last.F32)
			}
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: [1 0.5]
}

// Units that are too small to be worth gathering twice stay whole for the pass.
func ExampleKeepBelow() {
	err := comm.Run(context.Background(), 2, func(ctx context.Context, g comm.Group) error {
		m, err := fsdp.Wrap(counter(), fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach(), Unit: fsdp.KeepBelow(1000)})
		if err != nil {
			return err
		}
		defer m.Close()
		tokens, targets := counting(0, 1, 8)
		plan, err := m.Plan(tokens, targets)
		if err != nil {
			return err
		}
		if g.Rank() > 0 {
			return nil
		}
		for _, p := range plan.Groups {
			fmt.Printf("%s: %d elements, %v\n", p.Name, p.Len, p.Strategy)
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// wte: 160 elements, ShardGradOp
	// wpe: 128 elements, ShardGradOp
	// blocks.0: 3280 elements, FullShard
	// blocks.1: 3280 elements, FullShard
	// lnf: 32 elements, ShardGradOp
	// head: 160 elements, ShardGradOp
}

// Each rank writes what it does in its passes to a file, which https://ui.perfetto.dev opens.
func ExampleConfig_traceDir() {
	dir, err := os.MkdirTemp("", "trace")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	err = comm.Run(context.Background(), 2, func(ctx context.Context, g comm.Group) error {
		m, err := fsdp.Wrap(counter(), fsdp.Config{Group: g, WrapPolicy: fsdp.WrapTypes(&nn.Block{}), Observers: []fsdp.Observer{fsdp.TraceDir(dir)}})
		if err != nil {
			return err
		}
		tokens, targets := counting(5*g.Rank(), 2, 8)
		if _, err := m.Forward(ctx, tokens, targets); err != nil {
			return errors.Join(err, m.Close())
		}
		return errors.Join(m.Backward(ctx), m.Close())
	})
	files, globbed := filepath.Glob(filepath.Join(dir, "rank-*.pftrace"))
	fmt.Println("files:", len(files), "error:", errors.Join(err, globbed))
	// Output: files: 2 error: <nil>
}
