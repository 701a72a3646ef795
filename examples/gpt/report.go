package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"time"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/monitor"
	"github.com/gofsdp/gofsdp/optim"
)

// watch begins to show the run, or goes on from where a checkpoint has left it.
func (t *trainer) watch(from monitor.State) error {
	plan, err := t.plan()
	if err != nil {
		return err
	}
	t.mon, err = monitor.New(monitor.Config{
		Group: t.group, Steps: t.steps, Budget: t.budget, FLOPs: t.config.model().FLOPs(t.context), Model: t.model, Plan: plan,
		Out: t.screen, CurveUnit: "nats per " + t.vocab.unit(), State: from,
	})
	return err
}

// plan returns the plan of a pass on a rank with the most rows.
func (t *trainer) plan() (*fsdp.Plan, error) {
	parts := max(t.ranks, t.virtual)
	rows := (t.batch + parts - 1) / parts
	like := tensor.New(tensor.WithShape(rows, t.context), tensor.Of(tensor.Int)) // tokens, and targets
	return t.model.Plan(like, like)
}

// printPlan prints the memory and communication of the training, before it begins.
func (t *trainer) printPlan() error {
	p, err := t.plan()
	if err != nil {
		return err
	}
	steps := "steps for " + monitor.Duration(t.budget)
	if t.steps > 0 {
		steps = monitor.Count(t.steps) + " steps"
	}
	if t.virtual > 0 {
		steps += fmt.Sprintf("; as on %d ranks", t.virtual)
	}
	t.screen.Printf("%s\n%d layers of %d channels and %d heads, %d %ss of context\n", t.screen.Title("plan"), t.layers, t.dim, t.heads, t.context, t.vocab.unit())
	t.screen.Printf("%d sequences a step, %s %ss of text; %s\n", t.batch, monitor.Count(t.batch*t.context), t.vocab.unit(), steps)
	t.screen.Printf("%v\n\n", p)
	return nil
}

// printBits prints a hash of all parameters, of the optimizer's state and of the last losses. It is the
// same on all numbers of ranks that divide -virtual.
func (t *trainer) printBits(ctx context.Context) error {
	params, err := t.model.FullState(ctx, &fsdp.StateDictOptions{AllRanks: true})
	if err != nil {
		return err
	}
	state, err := t.model.FullOptimState(ctx, t.opt, nil)
	if err != nil || t.group.Rank() != 0 {
		return err
	}
	h := fnv.New64a()
	validation, _ := t.mon.Last("validation/loss")
	write := func(v any) { err = errors.Join(err, binary.Write(h, binary.LittleEndian, v)) }
	write([]float64{t.losses.Value(), validation})
	for _, name := range slices.Sorted(maps.Keys(params)) {
		write(params[name].Float32s())
	}
	for _, e := range state.Entries() {
		write(e.Data.(optim.Host).F32)
	}
	t.screen.Printf("  bits of %d virtual ranks: %016x\n", t.virtual, h.Sum64())
	return err
}

// printResult prints the loss curve and the summary.
func (t *trainer) printResult() error {
	if err := t.mon.Close(); err != nil {
		return err
	}
	if t.saves.size > 0 {
		t.screen.Printf("  beside it, to save: %s\n", monitor.Bytes(t.saves.size))
	}
	final, _ := t.mon.Last("validation/loss")
	t.screen.Printf("  validation loss: %s, %.4f bits/byte\n", t.lossText(final), t.bits(final))
	return nil
}

// bits returns the bits of a byte that a loss in nats per token stands for.
func (t *trainer) bits(loss float64) float64 { return loss / math.Ln2 / t.text.bytesPerToken() }

// lossText writes a loss in nats per token, and per byte.
func (t *trainer) lossText(loss float64) string {
	text := fmt.Sprintf("%.4f nats/byte", loss/t.text.bytesPerToken())
	if t.vocab.tokenizer != nil {
		text = fmt.Sprintf("%.4f nats/token, %s", loss, text)
	}
	return text
}

// printSample prints text from the model as it comes.
func (t *trainer) printSample(ctx context.Context) error {
	t.screen.Printf("\n%s at temperature %v\n", t.screen.Title("sample"), t.temperature)
	out := monitor.Filter{W: t.screen}
	t.screen.Printf("%s", t.screen.Title(t.prompt))
	begin := time.Now()
	written := 0
	err := t.sample(ctx, t.prompt, t.sampleBytes, func(text string) {
		out.Write([]byte(text)) // a screen reports no errors
		written += len(text)
	})
	if err != nil {
		return fmt.Errorf("sample: %w", err)
	}
	t.screen.Printf("\n(%d bytes in %.1fs)\n", written, time.Since(begin).Seconds())
	return nil
}
