// Offload shows where the memory of a training is, with and without files: in the plan and by the
// counts of the system, and what files cost in time. It trains a small GPT on one rank, with four
// configurations.
//
//	go run ./examples/offload -dir /scratch
//
// It takes about ten seconds on two cores. The directory should be on a disk: tmpfs is RAM. This is
// the output with enough RAM for everything and a disk that reads half a gigabyte a second:
//
//	MB                           planned            resident
//	                        RAM    files  anonymous    files  ms/step      loss
//	all in RAM            335.1      0.0      340.0     11.8      269  2.375505
//	blocks recomputed     289.4      0.0      294.7     12.0      315  2.375505
//	state in files        104.5    230.7      109.6    242.7      269  2.375505
//	and activations        49.2    293.8       54.4    305.8      275  2.375505
//
// The system keeps pages of files in RAM while it has room. It may drop all of them, so only the
// rest must fit in RAM: the planned RAM, and about 5 MB for the process itself.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

func main() {
	dir := flag.String("dir", os.TempDir(), "directory for the files")
	layers := flag.Int("layers", 8, "blocks of the model")
	dim := flag.Int("dim", 384, "width of the model")
	rows := flag.Int("rows", 8, "sequences of 64 tokens in a batch")
	flag.Parse()
	model := &nn.GPT{Vocab: 256, Context: 64, Layers: *layers, Dim: *dim, Heads: *dim / 32}
	if err := run(context.Background(), os.Stdout, model, *rows, *dir); err != nil {
		log.Fatal(err)
	}
}

// run trains under every configuration and prints a line about each.
func run(ctx context.Context, w io.Writer, model *nn.GPT, rows int, dir string) error {
	blocks := fsdp.WrapTypes(&nn.Block{})
	fmt.Fprintf(w, "%-18s %17s %19s\n", "MB", "planned", "resident")
	fmt.Fprintf(w, "%-18s %8s %8s %10s %8s %8s %9s\n", "", "RAM", "files", "anonymous", "files", "ms/step", "loss")
	for _, c := range []struct {
		name string
		cfg  fsdp.Config
	}{
		{"all in RAM", fsdp.Config{}},
		{"blocks recomputed", fsdp.Config{Activations: fsdp.Activations{Recompute: blocks}}},
		{"state in files", fsdp.Config{Offload: fsdp.Offload{Dir: dir}}},
		{"and activations", fsdp.Config{Offload: fsdp.Offload{Dir: dir}, Activations: fsdp.Activations{Offload: blocks}}},
	} {
		c.cfg.WrapPolicy = blocks
		r, err := train(ctx, model, c.cfg, batch(model, rows))
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		fmt.Fprintf(w, "%-18s %8s %8s %10s %8s %8d %9.6f\n", c.name,
			mb(r.plan.Resident()), mb(r.plan.MappedBytes), mb(r.anonymous), mb(r.files), r.step.Milliseconds(), r.loss)
	}
	return nil
}

// result has the numbers that are printed about a training.
type result struct {
	plan             *fsdp.Plan
	anonymous, files int // bytes of the process in RAM at the turn of a pass, or -1
	step             time.Duration
	loss             float64
}

const steps = 6

// train makes a few steps and measures.
func train(ctx context.Context, model *nn.GPT, cfg fsdp.Config, batch []fsdp.Tensor) (r result, err error) {
	m, err := fsdp.WrapContext(ctx, model, cfg)
	if err != nil {
		return r, err
	}
	defer func() {
		err = cmp.Or(err, m.Close())
		debug.FreeOSMemory() // for the next one to be measured
	}()
	opt, err := optim.AdamW{}.New(m.Params())
	if err != nil {
		return r, err
	}
	if r.plan, err = m.Plan(batch...); err != nil {
		return r, err
	}
	var times []time.Duration
	for range steps {
		begin := time.Now()
		if r.loss, err = m.Forward(ctx, batch...); err != nil {
			return r, err
		}
		forward := time.Since(begin)
		debug.FreeOSMemory() // now all resident memory is in use
		r.anonymous, r.files = resident()
		begin = time.Now()
		if err := m.Backward(ctx); err != nil {
			return r, err
		}
		if err := opt.Step(1e-4); err != nil {
			return r, err
		}
		m.ZeroGrad()
		times = append(times, forward+time.Since(begin))
	}
	slices.Sort(times)
	r.step = times[len(times)/2]
	return r, nil
}

// batch returns sequences in which each token follows from the one before.
func batch(model *nn.GPT, rows int) []fsdp.Tensor {
	in, out := make([]int, rows*model.Context), make([]int, rows*model.Context)
	for i := range in {
		in[i] = i * 7 % model.Vocab
		out[i] = (i + 1) * 7 % model.Vocab
	}
	return []fsdp.Tensor{
		tensor.New(tensor.WithShape(rows, model.Context), tensor.WithBacking(in)),
		tensor.New(tensor.WithShape(rows, model.Context), tensor.WithBacking(out)),
	}
}

// resident returns the bytes of this process that are in RAM: those that nothing but RAM holds, and
// those that are also in a file and may be dropped. It returns -1 where the system does not say.
func resident() (anonymous, files int) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return -1, -1
	}
	field := func(name string) (kib int) {
		_, rest, _ := strings.Cut(string(status), name+":")
		if _, err := fmt.Sscan(rest, &kib); err != nil {
			return -1
		}
		return kib << 10
	}
	return field("RssAnon"), field("RssFile")
}

// mb is n bytes in megabytes.
func mb(n int) string {
	if n < 0 {
		return "?"
	}
	return fmt.Sprintf("%.1f", float64(n)/1e6)
}
