package main

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/monitor"
)

// history is what is shown of the steps so far. What is exported is saved with them.
type history struct {
	Train, Validation []monitor.Point
	Loss, Seconds     average
	planned, memory   int // most bytes of a rank, foretold and counted
}

func (h *history) add(step int, loss float64, took time.Duration) {
	h.Train = append(h.Train, monitor.Point{Step: step, Loss: loss})
	h.Loss.add(loss)
	h.Seconds.add(took.Seconds())
}

// average is an exponential moving average without the pull to zero at its beginning, corrected as
// Adam's moments are.
type average struct{ Sum, Weight float64 }

func (a *average) add(x float64) {
	const keep = 0.95
	a.Sum = keep*a.Sum + (1-keep)*x
	a.Weight = keep*a.Weight + (1 - keep)
}

func (a *average) value() float64 { return a.Sum / a.Weight }

// progress returns what the progress line shows after a step.
func (t *trainer) progress(now moment, lr float64) monitor.Progress {
	t.history.memory = max(t.history.memory, now.memory)
	step := t.opt.Steps()
	done := t.done(step, now.elapsed)
	saving, saved := t.saves.progress()
	return monitor.Progress{
		Step: step, Steps: int(math.Round(float64(step) / done)), Estimated: t.budget > 0, Done: done,
		Loss:   t.history.Loss.value(),
		Speed:  float64(t.batch*t.context) / t.history.Seconds.value(),
		Memory: t.history.memory,
		LR:     lr,
		Left:   time.Duration(float64(now.elapsed) * (1 - done) / done),
		Saving: saving, Saved: saved,
	}
}

// plan returns what a step takes on a rank with the most rows.
func (t *trainer) plan() (*fsdp.Plan, error) {
	rows := (t.batch + t.ranks - 1) / t.ranks
	return t.model.Plan(t.data.batch(t.seed, 0, 0, rows, t.context)...)
}

// printPlan prints what the training will take, before it begins.
func (t *trainer) printPlan() error {
	p, err := t.plan()
	if err != nil {
		return err
	}
	t.history.planned = p.Peak()
	steps := "steps for " + monitor.Duration(t.budget)
	if t.steps > 0 {
		steps = monitor.Count(t.steps) + " steps"
	}
	t.screen.Printf("%s\n%d layers of %d channels and %d heads, %d %ss of context\n", t.screen.Title("plan"), t.layers, t.dim, t.heads, t.context, t.vocab.unit())
	t.screen.Printf("%d sequences a step, %s %ss of text; %s\n", t.batch, monitor.Count(t.batch*t.context), t.vocab.unit(), steps)
	t.screen.Printf("%v\n\n", p)
	return nil
}

// printResult prints the loss curve and the summary. took is the time of the training.
func (t *trainer) printResult(took time.Duration) {
	curve := monitor.Curve{Train: t.history.Train, Validation: t.history.Validation, Unit: t.vocab.unit(),
		Width: min(t.screen.Width(), 100), Height: 14, Color: t.screen.Color()}
	steps := t.opt.Steps()
	read := steps * t.batch * t.context
	final := t.history.Validation[len(t.history.Validation)-1].Loss
	t.screen.Printf("\n%s\n", curve)
	t.screen.Printf("%s\n", t.screen.Title("result"))
	t.screen.Printf("  %d steps over %s %ss of text in %s: %s\n", steps, monitor.Count(read), t.vocab.unit(), monitor.Duration(took),
		monitor.Rate(float64(read)/took.Seconds(), "tok"))
	copies := ""
	if t.saves.size > 0 {
		copies = fmt.Sprintf(" and %s to save", monitor.Bytes(t.saves.size))
	}
	t.screen.Printf("  memory per rank: %s at most, %s planned%s\n", monitor.Bytes(t.history.memory), monitor.Bytes(t.history.planned), copies)
	t.screen.Printf("  validation loss: %s, %.4f bits/byte\n", t.lossText(final), final/math.Ln2/t.data.bytesPerToken())
}

// lossText writes a loss in nats per token, and per byte.
func (t *trainer) lossText(loss float64) string {
	text := fmt.Sprintf("%.4f nats/byte", loss/t.data.bytesPerToken())
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
