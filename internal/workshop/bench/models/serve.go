package models

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/gofsdp/gofsdp/fsdp"
)

// RankCommand is the subcommand by which Run starts this program again, as one of our ways.
const RankCommand = "models-rank"

// subject is the function whose passes a process runs.
type subject interface {
	Forward(context.Context) error
	Backward(context.Context) error
	// Found returns the loss and the norm of all gradients of the last pass.
	Found(context.Context) (loss, norm float64, err error)
	Close() error
}

// Serve runs a way of a contest, as text describes. For every line of in, a number of passes, it
// runs these passes and writes to out the seconds of their forwards and backwards, the loss and the
// norm of the gradients.
func Serve(ctx context.Context, in io.Reader, out io.Writer, text string) (err error) {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	s, err := open(ctx, j)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	for lines := bufio.NewScanner(in); lines.Scan(); {
		n, err := strconv.Atoi(lines.Text())
		if err != nil {
			return err
		}
		var forward, backward time.Duration
		for range n {
			begin := time.Now()
			if err := s.Forward(ctx); err != nil {
				return err
			}
			middle := time.Now()
			if err := s.Backward(ctx); err != nil {
				return err
			}
			forward, backward = forward+middle.Sub(begin), backward+time.Since(middle)
		}
		loss, norm, err := s.Found(ctx)
		if err != nil {
			return err
		}
		fmt.Fprintln(out, forward.Seconds(), backward.Seconds(), loss, norm)
	}
	return nil
}

func open(ctx context.Context, j job) (subject, error) {
	i := slices.IndexFunc(contests, func(c contest) bool { return c.name == j.Contest })
	if i < 0 {
		return nil, fmt.Errorf("unknown contest %q", j.Contest)
	}
	c := contests[i]
	if c.op.build != nil {
		return c.op.open(j.Half)
	}
	var config fsdp.Config
	if j.Half {
		config.Precision = fsdp.BF16()
	}
	m, err := fsdp.WrapContext(ctx, c.ways[j.Way].model, config)
	if err != nil {
		return nil, err
	}
	if j.Way == 0 && !j.Half {
		err = m.Export(ctx, j.Weights, nil)
	} else {
		err = m.Import(ctx, j.Weights, nil)
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return &wrapped{Sharded: m, batch: c.batch}, nil
}

// wrapped is a model.
type wrapped struct {
	*fsdp.Sharded
	batch []fsdp.Tensor
	loss  float64
}

// Forward implements subject.
func (w *wrapped) Forward(ctx context.Context) (err error) {
	w.ZeroGrad()
	w.loss, err = w.Sharded.Forward(ctx, w.batch...)
	return err
}

// Backward implements subject.
func (w *wrapped) Backward(ctx context.Context) error { return w.Sharded.Backward(ctx) }

// Found implements subject.
func (w *wrapped) Found(ctx context.Context) (loss, norm float64, err error) {
	norm, err = w.ClipGradNorm(ctx, math.MaxFloat32)
	return w.loss, norm, err
}
