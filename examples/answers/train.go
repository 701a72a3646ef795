package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"iter"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/data"
	"github.com/gofsdp/gofsdp/fsdp/metrics"
	"github.com/gofsdp/gofsdp/fsdp/monitor"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/nn/hf/tokenizer"
	"github.com/gofsdp/gofsdp/optim"
)

//go:embed testdata/answers.jsonl
var answers []byte // the program runs in any directory

// conversations returns the lines of a file, or of the answers about this library.
func conversations(path string) (data.Source[tokenizer.Chat], error) {
	if path != "" {
		return data.OpenJSON[tokenizer.Chat](path)
	}
	var chats []tokenizer.Chat
	for line := range bytes.Lines(answers) {
		var c tokenizer.Chat
		if err := json.Unmarshal(line, &c); err != nil {
			return nil, fmt.Errorf("answers.jsonl: %w", err)
		}
		chats = append(chats, c)
	}
	return data.Of(chats), nil
}

// rows returns the tokens of conversations, and which of them belong to answers. It leaves out
// conversations without an answer in the first tokens.
func rows(words *tokenizer.Tokenizer, chats data.Source[tokenizer.Chat], limit int) data.Source[data.Labeled] {
	return data.Truncate(data.Map(chats, func(c tokenizer.Chat) (l data.Labeled, err error) {
		l.Tokens, l.Target, err = words.EncodeChat(c)
		return l, err
	}), limit)
}

// A loader makes batches of conversations, or of rows that several conversations share.
type loader interface {
	Batches(ctx context.Context) iter.Seq2[[]fsdp.Tensor, error]
	Share() fsdp.BackwardOption
	Steps() int
	Position() data.Position
	Resume(p data.Position) error
	Rewind() error
}

// loader returns batches of this rank's part of conversations, in another order in each epoch. Few
// widths make few programs to compile. With a name it logs its progress.
func (r *rank) loader(name string, chats data.Source[data.Labeled], epochs int) (loader, error) {
	c := data.Config{Group: r.group, Batch: r.batch, Progress: name}
	if !r.pack {
		return data.NewLoader(data.Shuffle(chats, 1, epochs), data.TokensAndLabels(data.MultipleOf(32)), c)
	}
	lengths := data.Measure(chats, func(l data.Labeled) int { return len(l.Tokens) })
	rows := data.PackLabeled(chats, lengths, r.limit+1)
	return data.NewLoader(data.Shuffle(rows, 1, epochs), data.TokensAndPositions[int](r.limit), c)
}

// targets returns the number of targets in a batch that count.
func targets(batch []fsdp.Tensor) (n int) {
	if batch == nil {
		return 0
	}
	for _, target := range batch[1].Data().([]int) {
		if target != nn.IgnoreTarget {
			n++
		}
	}
	return n
}

// A training is one rank's part of a training: of the base model or of an adapter.
type training struct {
	*fsdp.Sharded
	opt     optim.Optimizer
	batches loader
	rate    func(step int) float64
	mon     *monitor.Monitor
}

// train makes steps until one step, the end of the data, or an interruption on any rank.
func (t *training) train(ctx context.Context, until int, interrupted func() bool) error {
	for batch, err := range t.Join(ctx, t.batches.Batches(ctx)) {
		if err != nil {
			return err
		}
		loss, err := t.Forward(ctx, batch...)
		if err != nil {
			return err
		}
		if err := t.Backward(ctx, t.batches.Share()); err != nil {
			return err
		}
		if _, err := t.ClipGradNorm(ctx, 1); err != nil {
			return err
		}
		if err := t.opt.Step(t.rate(t.opt.Steps())); err != nil {
			return err
		}
		t.ZeroGrad()
		if err := t.mon.Step(ctx, targets(batch), monitor.Values{"loss": loss}); err != nil {
			return err
		}
		over, err := t.Any(ctx, interrupted())
		if over || err != nil || t.opt.Steps() >= until {
			return err
		}
	}
	return nil
}

// validate shows the mean loss of the targets that are held out.
func (t *tuning) validate(ctx context.Context) error {
	loss := &metrics.Mean{}
	if err := t.held.Rewind(); err != nil {
		return err
	}
	for batch, err := range t.Join(ctx, t.held.Batches(ctx)) {
		if err != nil {
			return err
		}
		out, err := t.Eval(ctx, batch...)
		if err != nil {
			return err
		}
		if batch == nil {
			continue // another rank has more
		}
		if err := loss.AddTensor(out[0], float64(targets(batch))); err != nil {
			return err
		}
	}
	values, err := metrics.Set{"loss": loss}.Reduce(ctx, t.group)
	if err != nil {
		return err
	}
	return t.mon.Eval(ctx, 1, values)
}
