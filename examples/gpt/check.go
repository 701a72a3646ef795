package main

import (
	"context"
	"errors"
	"fmt"
	"math"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/monitor"
)

// tolerance bounds the difference of a gradient on one rank and on many, relative to the largest
// gradient. The sums are the same, but added in another order, and float32 rounds each to 6e-8. In
// bfloat16 the gradients of activations are rounded to 4e-3 after a division by the rows of a rank, and gradients that travel
// in 8 bits to as much.
func (c *config) tolerance() float64 {
	if c.bf16 || c.int8 {
		return 2e-2
	}
	return 1e-5
}

// check computes every gradient of a small batch on all ranks of g, and on rank 0 alone, and
// returns a text that compares them, or an error if they differ by more than rounding. Only rank 0
// compares.
func check(ctx context.Context, c config, data *corpus, g comm.Group) (string, error) {
	if c.ranks == 1 {
		return "check: one rank, nothing to compare", nil
	}
	c.dropout, c.virtual, c.noSync = 0, 0, false // each rank draws its own
	c.batch = min(c.batch, 2*c.ranks+1)
	many, err := gradients(ctx, c, data, g)
	if err != nil {
		return "", fmt.Errorf("check: %w", err)
	}
	if g.Rank() != 0 {
		return "", nil
	}
	ranks := c.ranks
	c.ranks = 1
	one, err := gradients(ctx, c, data, comm.Local(1)[0])
	if err != nil {
		return "", fmt.Errorf("check: %w", err)
	}
	return compare(one, many).verdict(ranks, c.tolerance())
}

// gradients returns the gradient of every parameter on the first global batch, computed on the
// ranks of g.
func gradients(ctx context.Context, c config, data *corpus, g comm.Group) (grads map[string]*tensor.Dense, err error) {
	sharding := c.sharding()
	sharding.Group = g
	m, err := fsdp.WrapContext(ctx, c.model(), sharding)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	batches, err := data.batches(g, c)
	if err != nil {
		return nil, err
	}
	for batch, err := range batches.Batches(ctx) {
		if err != nil {
			return nil, err
		}
		if _, err := m.Forward(ctx, batch...); err != nil {
			return nil, err
		}
		if err := m.Backward(ctx, batches.Share()); err != nil {
			return nil, err
		}
		break // the first is enough
	}
	return m.FullGrads(ctx)
}

// comparison is how far two sets of gradients are apart.
type comparison struct {
	diff     float64 // largest difference of two elements; infinite if the parameters are not the same
	largest  float64 // largest element
	elements int
}

func compare(a, b map[string]*tensor.Dense) comparison {
	var c comparison
	if len(a) != len(b) {
		c.diff = math.Inf(1)
	}
	for name, x := range a {
		y, ok := b[name]
		if !ok || !x.Shape().Eq(y.Shape()) {
			c.diff = math.Inf(1)
			continue
		}
		u, v := x.Float32s(), y.Float32s()
		for i := range u {
			c.diff = max(c.diff, math.Abs(float64(u[i])-float64(v[i]))) // NaN stays
			c.largest = max(c.largest, math.Abs(float64(u[i])))
		}
		c.elements += len(u)
	}
	return c
}

// verdict puts c into words, or returns an error if the difference is more than rounding.
func (c comparison) verdict(ranks int, tolerance float64) (string, error) {
	if !(c.diff <= tolerance*c.largest) { // NaN fails too
		return "", fmt.Errorf("check: %d ranks differ from 1 rank by %.1e in a gradient; the largest gradient is %.1e",
			ranks, c.diff, c.largest)
	}
	return fmt.Sprintf("check: %d ranks equal 1 rank: largest gradient difference %.1e\n       over %s elements (largest gradient %.1e)",
		ranks, c.diff, monitor.Count(c.elements), c.largest), nil
}
