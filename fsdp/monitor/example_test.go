package monitor_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log"
	"os"
	"path/filepath"
	"strings"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/monitor"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

const length = 8

// counting yields sequences that count, 0 1 2 … 9 0 1, as tokens and the next token for each.
func counting(batches int) iter.Seq2[[]fsdp.Tensor, error] {
	return func(yield func([]fsdp.Tensor, error) bool) {
		for i := range batches {
			var x, y [length]int
			for t := range length {
				x[t], y[t] = (i+t)%10, (i+t+1)%10
			}
			shape := tensor.WithShape(1, length)
			if !yield([]fsdp.Tensor{tensor.New(shape, tensor.WithBacking(x[:])), tensor.New(shape, tensor.WithBacking(y[:]))}, nil) {
				return
			}
		}
	}
}

// Two ranks train on uneven data: rank 0 has 40 batches, rank 1 has 30. The loss that is shown is
// the mean over the tokens of both; a rank without a batch says 0 and counts for nothing. What is
// shown depends on the machine, so the example looks at what every rank knows.
func Example() {
	model := &nn.GPT{Vocab: 10, Context: length, Layers: 1, Dim: 16, Heads: 2}
	err := comm.Run(context.Background(), 2, func(ctx context.Context, g comm.Group) (err error) {
		m, err := fsdp.Wrap(model, fsdp.Config{Group: g})
		if err != nil {
			return err
		}
		defer m.Close()
		opt, err := optim.AdamW{}.New(m.Params())
		if err != nil {
			return err
		}
		mon, err := monitor.New(monitor.Config{Group: g, Model: m, Steps: 40, FLOPs: model.FLOPs(length), Out: os.Stderr})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, mon.Close()) }()
		for batch, err := range m.Join(ctx, counting(40-10*g.Rank())) {
			if err != nil {
				return err
			}
			loss, err := m.Forward(ctx, batch...)
			if err != nil {
				return err
			}
			if err := m.Backward(ctx); err != nil {
				return err
			}
			norm, err := m.ClipGradNorm(ctx, 1)
			if err != nil {
				return err
			}
			if err := opt.Step(0.02); err != nil {
				return err
			}
			m.ZeroGrad()
			tokens := 0
			if batch != nil {
				tokens = length
			}
			if err := mon.Step(ctx, tokens, monitor.Values{"loss": loss, "grad_norm": norm}); err != nil {
				return err
			}
		}
		if g.Rank() == 1 {
			last, _ := mon.Last("loss")
			fmt.Printf("%d steps, %d tokens, it has learned: %v\n", mon.State().Step, mon.State().Units, last < 0.5)
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: 40 steps, 560 tokens, it has learned: true
}

// A run is killed after step 5 and goes on from step 3, where it was last saved. Its file has each
// step once.
func ExampleMonitor_State() {
	dir, err := os.MkdirTemp("", "monitor")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "log.csv")
	var saved monitor.State // of a checkpoint: the value SaveOptions.Extra["monitor"], as Checkpoint.Extra returns it
	for _, last := range []int{5, 6} {
		mon, err := monitor.New(monitor.Config{State: saved, Writers: []monitor.Writer{monitor.CSV(path)}})
		if err != nil {
			log.Fatal(err)
		}
		for step := saved.Step + 1; step <= last; step++ {
			if err := mon.Step(context.Background(), 100, monitor.Values{"loss": 1 / float64(step)}); err != nil {
				log.Fatal(err)
			}
			if step == 3 {
				saved = mon.State()
			}
		}
		if err := mon.Close(); err != nil {
			log.Fatal(err)
		}
	}
	table, err := os.ReadFile(path)
	if err != nil {
		log.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		cells := strings.Split(line, ",")
		fmt.Println(cells[0], cells[2])
	}
	// Output:
	// step loss
	// 1 1
	// 2 0.5
	// 3 0.3333333333333333
	// 4 0.25
	// 5 0.2
	// 6 0.16666666666666666
}
