package main

import (
	"math"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/data"
)

// loader hands a rank its rows of the batches.
type loader = data.Loader[[]int32]

// batches returns those to train on: windows of the text at all places, in a random order without
// end. Any number of ranks shares the same batches out.
func (c *corpus) batches(g comm.Group, like config) (*loader, error) {
	windows := data.Shuffle(data.Windows(c.train.tokens, like.context+1, 1), like.seed, data.Endless)
	return like.loader(g, windows)
}

// heldBatches returns those to evaluate on: windows spread evenly over the held-out text, enough to
// cover c.evalBytes of it and to fill batches.
func (c *corpus) heldBatches(g comm.Group, like config) (*loader, error) {
	tokens := float64(like.evalBytes) / c.bytesPerToken()
	count := int(math.Ceil(tokens/float64(like.batch*like.context))) * like.batch
	last := len(c.held.tokens) - like.context - 1
	return like.loader(g, data.Func(count, func(i int) ([]int32, error) {
		from := last * i / max(1, count-1)
		return c.held.tokens[from : from+like.context+1], nil
	}))
}

func (c *config) loader(g comm.Group, windows data.Source[[]int32]) (*loader, error) {
	return data.NewLoader(windows, data.TokensAndTargets[int32](c.context), data.Config{Group: g, Batch: c.batch, VirtualRanks: c.virtual, NoSync: c.noSync})
}
