// Lora shows how to adapt a pretrained language model by low-rank adapters (Hu et al., 2021,
// arXiv:2106.09685) while the model itself is frozen. A small GPT, sharded over two ranks, first
// learns Go code. It stands for weights that one would load. Then adapters learn the English of the
// code's comments. Frozen parameters are still sharded and gathered, but they have no gradient, no
// optimizer state and no reduction, and they keep their bits. A checkpoint leaves them out: the
// program has them already.
//
// It takes about a minute on two cores, and prints the plans, the losses and the memory of each
// stage. At this size a step's memory is mostly activations, which freezing hardly changes. The
// last lines are about a model that is mostly parameters: backward frees a frozen unit after each
// use, not at its end.
//
//	$ go run ./examples/lora
//	pretraining on code
//	parameters 391008, groups 4, ranks 2
//	  group                        parameters     whole  strategy     ranks
//	  root                              55488  222.0 kB  ShardGradOp  2
//	  3 × blocks.*                     111840  447.4 kB  FullShard    2
//	each rank
//	     1.6 MB  parameters and gradients
//	     1.6 MB  optimizer state
//	     9.9 MB  buffers of a pass, at most: groups, gradients, activations
//	    13.0 MB  together
//	    17.2 MB  in RAM: buffers, freed ones included, and 688.4 kB beside
//	     1.8 MB  sent in a pass, in 9 collectives
//	  loss before  code 5.569  prose 5.570 nats per byte
//	  checkpoint   4.73 MB
//	  loss after   code 2.555  prose 3.064 nats per byte
//	adapting to prose
//	parameters 427872, groups 7, ranks 2
//	  group                        parameters     whole  strategy     ranks
//	  root                              55488  222.0 kB  ShardGradOp  2
//	  3 × blocks.*                      12288   49.2 kB  FullShard    2
//	  3 × blocks.* (frozen)            111840  447.4 kB  FullShard    2
//	each rank
//	   929.5 kB  parameters and gradients
//	   147.5 kB  optimizer state
//	     9.5 MB  buffers of a pass, at most: groups, gradients, activations
//	    10.6 MB  together
//	    14.5 MB  in RAM: buffers, freed ones included, and 787.6 kB beside
//	     1.2 MB  sent in a pass, in 12 collectives
//	  loss before  code 2.555  prose 3.064 nats per byte
//	  checkpoint   0.47 MB
//	  loss after   code 3.340  prose 2.465 nats per byte
//	  the 41 pretrained tensors have the bits they had
//	merged into a plain GPT
//	  loss after   code 3.340  prose 2.465 nats per byte
//	memory of adapting 12 layers of 256 channels to 16 tokens on a rank
//	  frozen, freed after each use         holds 22.4 MB, 31.5 MB in a step
//	  frozen, freed at the end (computed)  holds 22.4 MB, 61.7 MB in a step
//	  nothing frozen                       holds 80.0 MB, 95.6 MB in a step
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/build"
	"io"
	"log"
	"os"
	"path/filepath"
	"slices"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/data"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

const (
	ranks  = 2
	batch  = 16 // rows of a step, over all ranks
	length = 64 // tokens of a row; a token is a byte
)

// adapter is added to each linear layer.
var adapter = nn.LoRA{Rank: 8, Alpha: 16}

// pretrained reports whether a parameter belongs to the model itself, not to an adapter.
func pretrained(name string) bool { return !nn.IsAdapter(name) }

// gpt returns the model, with adapters or without.
func gpt(l nn.LoRA) *nn.GPT {
	return &nn.GPT{Vocab: 256, Context: length, Layers: 3, Dim: 96, Heads: 4, Act: nn.ReLU, LoRA: l}
}

func main() {
	code, prose, err := texts()
	if err != nil {
		log.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "lora")
	if err != nil {
		log.Fatal(err)
	}
	err = comm.Run(context.Background(), ranks, func(ctx context.Context, g comm.Group) error {
		return (&rank{g, os.Stdout, dir, code, prose}).run(ctx, 400)
	})
	err = errors.Join(err, os.RemoveAll(dir))
	if err != nil {
		log.Fatal(err)
	}
}

// texts returns the code of some packages of the Go standard library, and the English of its
// comments.
func texts() (code, prose []byte, err error) {
	for _, path := range []string{"bytes", "crypto/tls", "database/sql", "go/types", "math/big", "net", "net/http", "os", "reflect", "runtime", "time"} {
		p, err := build.Import(path, "", 0)
		if err != nil {
			return nil, nil, fmt.Errorf("reading the source of the standard library: %w", err)
		}
		for _, name := range p.GoFiles {
			src, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				return nil, nil, err
			}
			for line := range bytes.Lines(src) {
				if english, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("// ")); ok {
					prose = append(append(prose, english...), '\n')
				} else {
					code = append(code, line...)
				}
			}
		}
	}
	return code, prose, nil
}

// rank is one of the ranks.
type rank struct {
	group       comm.Group
	out         io.Writer
	dir         string // for checkpoints
	code, prose []byte
}

// run trains a model on code, adapts it to prose, and merges the adapters into its weights. Then it
// shows the memory that freezing saves.
func (r *rank) run(ctx context.Context, steps int) error {
	if r.group.Rank() != 0 {
		r.out = io.Discard
	}
	before, err := r.stage(ctx, "pretraining on code", gpt(nn.LoRA{}), nil, nil, training{"code", r.code, steps, 3e-3})
	if err != nil {
		return err
	}
	adapted, err := r.stage(ctx, "adapting to prose", gpt(adapter), pretrained, before, training{"prose", r.prose, steps / 2, 1e-2})
	if err != nil {
		return err
	}
	for name, v := range before {
		if !slices.Equal(v.Float32s(), adapted[name].Float32s()) {
			return fmt.Errorf("%s is frozen and has changed", name)
		}
	}
	fmt.Fprintf(r.out, "  the %d pretrained tensors have the bits they had\n", len(before))
	if err := adapter.Merge(adapted); err != nil {
		return err
	}
	if _, err := r.stage(ctx, "merged into a plain GPT", gpt(nn.LoRA{}), nil, adapted, training{}); err != nil {
		return err
	}
	return r.memory(ctx)
}

// training is the text that a model learns from, and how long it learns.
type training struct {
	name  string // of the text, and of the directory of its checkpoint
	text  []byte
	steps int
	lr    float64 // highest learning rate
}

// stage shards a model, gives it weights, which only rank 0 needs to have, trains it and returns
// its weights.
func (r *rank) stage(ctx context.Context, title string, model fsdp.Model, frozen func(string) bool, from map[string]*tensor.Dense, t training) (weights map[string]*tensor.Dense, err error) {
	m, err := fsdp.WrapContext(ctx, model, fsdp.Config{Group: r.group, WrapPolicy: fsdp.WrapTypes(&nn.Block{}), Frozen: frozen, Seed: 1})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if err := m.LoadStateDict(ctx, 0, from); err != nil {
		return nil, err
	}
	fmt.Fprintln(r.out, title)
	if t.steps > 0 {
		if err := r.train(ctx, m, t); err != nil {
			return nil, err
		}
	}
	if err := r.report(ctx, m, "after"); err != nil {
		return nil, err
	}
	return m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
}

// windows returns a loader of windows of a text in random order. held chooses the last twentieth of
// the text, which is held out, or the rest.
func (r *rank) windows(text []byte, held bool) (*data.Loader[[]byte], error) {
	cut := len(text) - len(text)/20
	part := text[:cut]
	if held {
		part = text[cut:]
	}
	rows := data.Shuffle(data.Windows(part, length+1, 1), 1, data.Endless)
	return data.NewLoader(rows, data.TokensAndTargets[byte](length), data.Config{Group: r.group, Batch: batch})
}

// train trains m, each rank on its part of the batches.
func (r *rank) train(ctx context.Context, m *fsdp.Sharded, t training) error {
	opt, err := optim.AdamW{Rules: []optim.Rule{optim.NoDecay()}}.New(m.Params())
	if err != nil {
		return err
	}
	rows := tensor.New(tensor.WithShape(batch/r.group.Size(), length), tensor.Of(tensor.Int))
	plan, err := m.Plan(rows, rows)
	if err != nil {
		return err
	}
	fmt.Fprintln(r.out, plan)
	if err := r.report(ctx, m, "before"); err != nil {
		return err
	}
	batches, err := r.windows(t.text, false)
	if err != nil {
		return err
	}
	lr := optim.WarmupCosine(t.lr, t.lr/10, t.steps/20, t.steps)
	for batch, err := range batches.Batches(ctx) {
		if err != nil {
			return err
		}
		if _, err := m.Forward(ctx, batch...); err != nil {
			return err
		}
		if err := m.Backward(ctx, batches.Share()); err != nil {
			return err
		}
		if _, err := m.ClipGradNorm(ctx, 1); err != nil {
			return err
		}
		if err := opt.Step(lr(opt.Steps())); err != nil {
			return err
		}
		m.ZeroGrad()
		if opt.Steps() == t.steps {
			break
		}
	}
	return r.save(ctx, m, opt, filepath.Join(r.dir, t.name))
}

// save writes a checkpoint without frozen parameters, and prints its size. A Load of it needs a
// model that has them: Load checks that they are the same.
func (r *rank) save(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, dir string) error {
	if err := m.Save(ctx, dir, opt, &fsdp.SaveOptions{TrainedOnly: true}); err != nil {
		return err
	}
	path, err := fsdp.LatestCheckpoint(dir)
	if err != nil {
		return err
	}
	files, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	size := 0
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			return err
		}
		size += int(info.Size())
	}
	fmt.Fprintf(r.out, "  checkpoint   %.2f MB\n", float64(size)/1e6)
	return nil
}

// report prints the losses on the held-out parts of the texts, as means over all ranks.
func (r *rank) report(ctx context.Context, m *fsdp.Sharded, when string) error {
	var loss [2]float64
	for i, text := range [][]byte{r.code, r.prose} {
		batches, err := r.windows(text, true)
		if err != nil {
			return err
		}
		const count = 10
		n := 0
		for batch, err := range batches.Batches(ctx) {
			if err != nil {
				return err
			}
			out, err := m.Eval(ctx, batch...)
			if err != nil {
				return err
			}
			loss[i] += float64(out[0].Data().([]float32)[0]) / count
			if n++; n == count {
				break
			}
		}
	}
	if err := r.group.AllReduce(comm.Of(loss[:]), comm.Avg).Wait(ctx); err != nil {
		return err
	}
	fmt.Fprintf(r.out, "  loss %-6s  code %.3f  prose %.3f nats per byte\n", when, loss[0], loss[1])
	return nil
}

// wide is a model whose memory is mostly parameters, as in large models: a batch of one row of a
// few tokens has few activations.
var wide = nn.GPT{Vocab: 256, Context: 16, Layers: 12, Dim: 256, Heads: 4, Act: nn.ReLU, LoRA: adapter}

// memory prints the memory that freezing the pretrained parameters of wide saves, and the part that
// is due to freeing each unit after each use in backward instead of all of them at its end.
func (r *rank) memory(ctx context.Context) error {
	trained, err := r.footprint(ctx, nil)
	if err != nil {
		return err
	}
	frozen, err := r.footprint(ctx, pretrained)
	if err != nil {
		return err
	}
	fmt.Fprintf(r.out, "memory of adapting %d layers of %d channels to %d tokens on a rank\n", wide.Layers, wide.Dim, wide.Context)
	for _, row := range []struct {
		name       string
		held, most int
	}{
		{"frozen, freed after each use", frozen.held, frozen.most},
		{"frozen, freed at the end (computed)", frozen.held, frozen.late},
		{"nothing frozen", trained.held, trained.most},
	} {
		fmt.Fprintf(r.out, "  %-36s holds %.1f MB, %.1f MB in a step\n", row.name, float64(row.held)/1e6, float64(row.most)/1e6)
	}
	return nil
}

// footprint is the memory of one pass on a rank, in bytes.
type footprint struct {
	held int // shards of parameters and gradients, and optimizer state
	most int // live at once during the pass, without scratch
	late int // the same if frozen units were freed at the end of backward; this is computed
}

// footprint runs a pass of wide and looks at its events. The memory with late freeing follows from
// them: the same buffers, but each frozen group that is freed in backward stays to the end.
func (r *rank) footprint(ctx context.Context, frozen func(string) bool) (f footprint, err error) {
	var events []fsdp.Event
	m, err := fsdp.WrapContext(ctx, &wide, fsdp.Config{
		Group: r.group, WrapPolicy: fsdp.WrapTypes(&nn.Block{}), Frozen: frozen, Observers: []fsdp.Observer{fsdp.TraceFunc(func(e fsdp.Event) { events = append(events, e) })},
	})
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if _, err := (optim.AdamW{}).New(m.Params()); err != nil {
		return f, err
	}
	row := tensor.New(tensor.WithShape(1, wide.Context), tensor.Of(tensor.Int))
	plan, err := m.Plan(row, row)
	if err != nil {
		return f, err
	}
	if _, err := m.Forward(ctx, row, row); err != nil {
		return f, err
	}
	if err := m.Backward(ctx); err != nil {
		return f, err
	}
	whole := make(map[string]int) // bytes of the frozen groups
	for _, g := range plan.Groups {
		if g.Frozen {
			whole[g.Name] = g.Bytes
		}
	}
	f.held = plan.ShardBytes + plan.StateBytes
	turned, kept := false, 0
	for _, e := range events {
		f.most, f.late = max(f.most, e.Live), max(f.late, e.Live+kept)
		if turned = turned || e.Kind == "turn"; turned && e.Kind == "free" {
			kept += whole[e.Group]
		}
	}
	return f, nil
}
