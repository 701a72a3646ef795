package main

import (
	"encoding/binary"
	"math/rand/v2"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
)

// batch returns rows lo to hi of the global batch of a step: tokens and targets, ints [hi-lo,
// context]. Each row is a window at a place that depends on the seed, the step and the row, so that
// any number of ranks shares the same global batch out.
func (c *corpus) batch(seed uint64, step, lo, hi, context int) []fsdp.Tensor {
	return windows(c.train.tokens, lo, hi, context, func(row int) int {
		return source(seed, "batch", step, row).IntN(len(c.train.tokens) - context)
	})
}

// heldBatch returns rows lo to hi of the windows that the model is evaluated on, count in all,
// spread over the held-out text evenly. They are the same at every evaluation.
func (c *corpus) heldBatch(count, lo, hi, context int) []fsdp.Tensor {
	last := len(c.held.tokens) - context - 1
	return windows(c.held.tokens, lo, hi, context, func(row int) int { return last * row / max(1, count-1) })
}

// windows cuts a window of context tokens, and one more for the last target, from text at the start
// of each row.
func windows(text []int32, lo, hi, context int, start func(row int) int) []fsdp.Tensor {
	n := (hi - lo) * context
	x, y := make([]int, n), make([]int, n)
	for row := range hi - lo {
		from := start(lo + row)
		for t := range context {
			x[row*context+t] = int(text[from+t])
			y[row*context+t] = int(text[from+t+1])
		}
	}
	shape := tensor.WithShape(hi-lo, context)
	return []fsdp.Tensor{tensor.New(shape, tensor.WithBacking(x)), tensor.New(shape, tensor.WithBacking(y))}
}

// source returns the random numbers of a purpose, of at most eight letters, at a pair of counters.
// ChaCha8 makes streams independent whose keys differ in a bit, so counters can be the key.
func source(seed uint64, purpose string, i, j int) *rand.Rand {
	var key [32]byte
	copy(key[:8], purpose)
	binary.LittleEndian.PutUint64(key[8:], seed)
	binary.LittleEndian.PutUint64(key[16:], uint64(i))
	binary.LittleEndian.PutUint64(key[24:], uint64(j))
	return rand.New(rand.NewChaCha8(key))
}
