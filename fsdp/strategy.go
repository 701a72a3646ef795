package fsdp

import (
	"fmt"

	"github.com/gofsdp/gofsdp/comm"

	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/shard"
)

// A Strategy decides which parts of a unit are cut over the ranks, and when its parameters are
// whole. All give the same bits, the hybrid ones if ShardRanks is a power of two and gradients do
// not travel in 16 bits. With N ranks, a unit of P bytes and AdamW, each rank holds and sends per
// step:
//
//	                parameters gradients state  whole         gathers            gradients are
//	FullShard       P/N        P/N       2P/N   while in use  forward, backward  reduce-scattered
//	ShardGradOp     P/N        P/N       2P/N   pass          forward            reduce-scattered
//	NoShard         P          P         2P     always        none               all-reduced
//	HybridShard     P/S        P/S       2P/S   while in use  over S ranks       both
//	SecondaryShard  P/N, P/S   P/N       2P/N   while in use  over N, over S     reduce-scattered
//
//	                sends
//	FullShard       3P(N-1)/N
//	ShardGradOp     2P(N-1)/N
//	NoShard         2P(N-1)/N
//	HybridShard     3P(S-1)/S + 2P/S·(R-1)/R
//	SecondaryShard  2P(N-1)/N + P(S-1)/S
//
// HybridShard cuts over S = Config.ShardRanks ranks, such as the ranks of a host, and has R = N/S
// replicas. Most of the traffic stays among the S, and only a piece of P/S is summed over the
// replicas. SecondaryShard cuts over all N. From the first gather of a unit on, each rank keeps 1/S
// of the gathered parameters, in the type in which they travelled, until backward has gathered them
// among the S ranks.
// That saves one gather between hosts for up to P/S of memory in a pass. Under every strategy the
// gradients of a unit are whole from their first writer to the end of their reduction.
//
// A pass over a chain of n units between two calls of the root unit takes exactly these
// collectives:
//
//	                all-gathers:                             reduce-scatters  all-reduces
//	                forward  backward
//	FullShard       1+n      max(0, n-1-⌈Prefetch/2⌉)        1+n              0
//	ShardGradOp     1+n      0                               1+n              0
//	NoShard         0        0                               0                1+n
//	HybridShard     1+n      max(0, n-1-⌈Prefetch/2⌉)        1+n              1+n, of pieces
//	HybridGradOp    1+n      0                               1+n              1+n, of pieces
//	SecondaryShard  1+n      max(0, n-1-⌈Prefetch/2⌉)        1+n              0
//
// The last units are still whole when backward comes to them, so FullShard sends a little less than
// the first table says. Its root unit is kept as under ShardGradOp: gathered once, and freed after
// its last use. A unit that backward does not read is not gathered for it, and a frozen unit is not
// reduced. A pass inside NoSync reduces nothing. An evaluation is the forward alone. If one rank
// has all of a unit, it computes with the parameters in place, as under NoShard, unless they are
// rounded. If a GPU computes in bfloat16, such a rank has a copy in bfloat16 of the units that
// ShardGradOp or NoShard keeps whole. Adam, AdamW and SGD write it with the parameters, and no pass
// gathers them.
type Strategy uint8

// The strategies.
const (
	FullShard   Strategy = iota // ZeRO-3: Rajbhandari et al., 2020, arXiv:1910.02054
	ShardGradOp                 // ZeRO-2, with the parameters cut between passes
	NoShard                     // DDP: Li et al., 2020, arXiv:2006.15704
	// HybridShard is FullShard over ShardRanks ranks, with replicas as in DDP (MiCS: Zhang et al.,
	// 2022, arXiv:2205.00119).
	HybridShard
	HybridGradOp // ShardGradOp over ShardRanks ranks, likewise
	// SecondaryShard is FullShard whose backward gathers from a second copy of the parameters, cut
	// over ShardRanks ranks (hpZ of ZeRO++: Wang et al., 2023, arXiv:2306.10209). Not with
	// Config.Device.
	SecondaryShard
	strategies
)

// String returns the strategy's name.
func (s Strategy) String() string {
	names := [strategies]string{"FullShard", "ShardGradOp", "NoShard", "HybridShard", "HybridGradOp", "SecondaryShard"}
	if s < strategies {
		return names[s]
	}
	return fmt.Sprintf("Strategy(%d)", uint8(s))
}

// kept returns the strategy that cuts as s does and keeps gathered parameters for the pass.
func (s Strategy) kept() Strategy {
	switch s {
	case FullShard, SecondaryShard:
		return ShardGradOp
	case HybridShard:
		return HybridGradOp
	default:
		return s
	}
}

// cut returns the ranks over which the strategy cuts parameters: none, some or all.
func (s Strategy) cut() layout.Cut {
	switch s {
	case NoShard:
		return layout.Whole
	case HybridShard, HybridGradOp:
		return layout.Some
	default:
		return layout.All
	}
}

// overSome reports whether the strategy cuts something over Config.ShardRanks.
func (s Strategy) overSome() bool { return s.cut() == layout.Some || s == SecondaryShard }

// A UnitConfig describes a unit to Config.Unit, which may change the last three fields.
type UnitConfig struct {
	Name   string  // that the wrap policy gave it, or "root"
	Root   bool    // the unit of all parameters that the policy gave none
	Params []Param // with full names

	// Strategy is what Config.Strategy means for the unit.
	Strategy Strategy
	// Group, if set, is a separate process group. This rank must be part of that group, over which
	// the unit is sharded. Ranks in different groups have different parameters under the same
	// names, with different initial values, such as the experts of a mixture. All ranks of such a
	// group must give it for the unit, and all groups of a unit must have the same size. Gradients
	// are summed over the group and still divided by all ranks of Config.Group: they are the
	// gradients of the mean loss of all.
	Group comm.Group
	// Cut decides where parameters may be cut, and which part each rank gets:
	// shard.Cut{Block: shard.Whole} leaves every parameter whole on one rank,
	// shard.Cut{Block: shard.Rows(1)} cuts between rows, Weights suit machines of unequal memory.
	// All shards of a group have the same length, so ranks that own less have padding: see
	// [Plan].CutBytes. Nothing else depends on it: results have the same bits, and checkpoints load
	// under any other cut.
	Cut shard.Cut
}

// Len returns the number of parameter elements.
func (u *UnitConfig) Len() int { return countElements(u.Params) }

// KeepBelow returns a Config.Unit that keeps units of fewer than n elements whole from their first
// use in a pass to their last: their memory costs less than gathering them twice costs time.
// DeepSpeed calls n the persistence threshold.
func KeepBelow(n int) func(*UnitConfig) {
	return func(u *UnitConfig) {
		if u.Len() < n {
			u.Strategy = u.Strategy.kept()
		}
	}
}

// countElements returns the elements of all params.
func countElements(params []Param) int {
	n := 0
	for _, p := range params {
		n += p.Len()
	}
	return n
}
