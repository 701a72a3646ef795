package main

import (
	"fmt"
	"regexp"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

const (
	vocab  = 61 // tokens, a prime: shards end in the middle of rows
	length = 12 // tokens of a row
)

// model returns the model.
func (o *options) model() *nn.GPT {
	return &nn.GPT{
		Vocab: vocab, Context: length, Layers: 3, Dim: o.dim, Heads: 2,
		Tied: o.tied, Dropout: o.dropout, LoRA: nn.LoRA{Rank: o.lora},
	}
}

// optimizer returns an optimizer over params.
func (o *options) optimizer(params []optim.Param) (optim.Optimizer, error) {
	if o.sgd {
		return optim.SGD{Momentum: 0.9}.New(params)
	}
	return optim.AdamW{Beta2: 0.95, WeightDecay: 0.1, Rules: []optim.Rule{optim.NoDecay()}}.New(params)
}

// config returns the library's configuration on group g. Block 1 is cut over experts, if that is
// not nil.
func (o *options) config(g, experts comm.Group) (c fsdp.Config, err error) {
	c = fsdp.Config{
		Group: g, Seed: 7, WrapPolicy: calls(`^blocks\.\d+`),
		ShardRanks: o.shardRanks, Prefetch: o.prefetch, InFlight: o.inFlight, Offload: fsdp.Offload{Dir: o.offload},
		Frozen: matching(o.frozen), Ignored: matching(o.ignored),
		Activations: fsdp.Activations{Recompute: calls(o.recompute), Save: calls(o.keep), Offload: calls(o.spill)},
	}
	if c.Strategy, err = named(o.strategy, fsdp.FullShard, fsdp.SecondaryShard); err != nil {
		return c, err
	}
	if o.wide {
		c.Precision.Compute = fsdp.Float64
	}
	if o.gather != "" {
		if c.Precision.Gather, err = named(o.gather, fsdp.Float32, fsdp.Float16); err != nil {
			return c, err
		}
	}
	if o.reduce != "" {
		if c.Precision.Reduce, err = named(o.reduce, fsdp.Float32, fsdp.Float16); err != nil {
			return c, err
		}
	}
	if o.keepBelow > 0 {
		c.Unit = fsdp.KeepBelow(o.keepBelow)
	}
	if o.byRows {
		c.GradAverage = fsdp.ByWeights
	}
	if experts != nil {
		c.Unit = func(u *fsdp.UnitConfig) {
			if u.Name == "blocks.1" {
				u.Group = experts
			}
		}
	}
	return c, nil
}

// reshaped is o with another strategy and with units that hold less.
func (o options) reshaped() options {
	o.strategy, o.shardRanks, o.keepBelow = fsdp.ShardGradOp.String(), 0, 1000
	return o
}

// named returns the value from first to last that prints as name.
func named[T interface {
	~uint8
	fmt.Stringer
}](name string, first, last T) (T, error) {
	for v := first; v <= last; v++ {
		if v.String() == name {
			return v, nil
		}
	}
	return first, fmt.Errorf("no such %T: %q", first, name)
}

// matching returns a function that reports whether a name matches expr, or nil for "".
func matching(expr string) func(name string) bool {
	if expr == "" {
		return nil
	}
	return regexp.MustCompile(expr).MatchString
}

// calls returns a policy that selects the calls that match expr, nil for "".
func calls(expr string) fsdp.Policy {
	if expr == "" {
		return nil
	}
	return fsdp.WrapNames(regexp.MustCompile(expr))
}
