package fsdp

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
)

// passes returns how many passes of each rank a step is, 0 if the configuration does not say.
func (c *Config) passes() int { return c.VirtualRanks / c.Group.Size() }

// checkVirtual returns why Config.VirtualRanks does not go with the rest, or nil. What it says of
// the model is in virtualModel.
func (c *Config) checkVirtual() error {
	v, n := c.VirtualRanks, c.Group.Size()
	switch {
	case v == 0:
		return nil
	case v < 0 || v%n != 0:
		return fmt.Errorf("Config.VirtualRanks is %d: want a multiple of the %d ranks", v, n)
	case n&(n-1) != 0 && v/n&(v/n-1) != 0:
		return fmt.Errorf("Config.VirtualRanks is %d on %d ranks: want a power of two of ranks, or of micro-batches on each, which are %d", v, n, v/n)
	case c.Device != nil:
		return errors.New("Config.VirtualRanks needs sums in the canonical order, and those of Config.Device are NCCL's")
	}
	return nil
}

// virtualModel returns why Config.VirtualRanks does not go with the model, or nil.
func virtualModel(c *Config, tr *trace, units []*unit) error {
	if c.VirtualRanks == 0 {
		return nil
	}
	if c.Divide == ByActive && tr.path().Varies() {
		return errors.New("Config.VirtualRanks: calls of the model may be absent, see Tape.Optional, and Config.Divide is ByActive: " +
			"which batches of a step have used a parameter is not known before its last")
	}
	for _, p := range tr.params {
		if p.Buffer {
			return fmt.Errorf("Config.VirtualRanks: the model has buffers, such as %s, and each rank has its own", p.Name)
		}
	}
	for _, u := range units {
		hybrid := u.strategy.cut() == layout.Some && c.ShardRanks > 1 && c.ShardRanks < c.Group.Size()
		switch {
		case u.group != nil:
			return fmt.Errorf("Config.VirtualRanks: unit %s has a group of its own by Config.GroupOf, whose parameters depend on the ranks", u.Name)
		case hybrid && c.ShardRanks&(c.ShardRanks-1) != 0:
			return fmt.Errorf("Config.VirtualRanks: %v over %d ranks sums in another order: want a power of two as Config.ShardRanks", u.strategy, c.ShardRanks)
		}
		for _, k := range u.kinds {
			if reduce := cmp.Or(k.Reduce, c.Precision.Reduce.comm()); hybrid && !k.Full && !k.Frozen && reduce != c.Precision.master().comm() {
				return fmt.Errorf("Config.VirtualRanks: %v rounds gradients that travel as %v twice: want Config.Precision.Reduce to be %v, or another strategy",
					u.strategy, reduce, c.Precision.master())
			}
		}
	}
	return nil
}

// errVirtual is that of calls that run passes in another order than that of the micro-batches of a
// step.
var errVirtual = errors.New("with Config.VirtualRanks passes run one after the other on all ranks, each Forward with its Backward: the order says which virtual rank a batch is of")
