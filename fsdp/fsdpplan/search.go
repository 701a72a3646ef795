package main

import (
	"cmp"
	"fmt"
	"slices"
	"sort"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/optim"
)

// A query is a question to answer for any number of ranks.
type query struct {
	*subject
	cluster   *plan.Cluster
	memory    int // bytes of a device
	batch     int // samples of a rank in a step
	from      int // the first micro batch to try, a power of two; 0 means 1
	seq       int
	threads   int // of each rank
	precision string
	optimizer string
}

// The choices, by name.
var (
	units      = map[string]fsdp.Policy{"blocks": blocks(1), "2 blocks": blocks(2), "4 blocks": blocks(4), "calls": fsdp.WrapEach(), "one unit": nil}
	strategies = map[string]fsdp.Strategy{}
	precisions = map[string]fsdp.Precision{
		"bf16": fsdp.BF16(), "bf16-reduce": {Compute: fsdp.BFloat16, Reduce: fsdp.BFloat16}, "fp32": {},
		"bf16-all": {Compute: fsdp.BFloat16, Reduce: fsdp.BFloat16, Master: fsdp.BFloat16},
	}
	newByName = map[string]func([]optim.Param) (optim.Optimizer, error){"adamw": optim.AdamW{}.New, "8bit": optim.AdamW{Bits: 8}.New, "16bit": optim.AdamW{Bits: 16}.New, "sgd": optim.SGD{}.New}
	recompute = []string{"full", "some", "none"}
)

func init() {
	for _, s := range []fsdp.Strategy{fsdp.FullShard, fsdp.ShardGradOp, fsdp.NoShard, fsdp.HybridShard, fsdp.HybridGradOp, fsdp.SecondaryShard} {
		strategies[s.String()] = s
	}
}

// space returns the settings to search.
func (q *query) space(ranks int) *plan.Space {
	s := &plan.Space{
		Units: []string{"blocks", "2 blocks", "4 blocks", "calls"}, Strategies: []string{"FullShard", "ShardGradOp", "NoShard"},
		Hybrid: []string{"HybridShard", "HybridGradOp"}, Recompute: recompute, Prefetch: []int{1, 2}, Samples: q.batch,
	}
	if q.hybrid(ranks) {
		s.Strategies, s.ShardRanks = append(s.Strategies, s.Hybrid...), []int{q.cluster.PerHost}
	}
	if ranks == 1 {
		s.Strategies, s.Units, s.Prefetch = []string{"NoShard"}, s.Units[:1], s.Prefetch[:1]
	}
	for micro := max(1, q.from); micro <= q.batch; micro *= 2 {
		if q.batch%micro == 0 {
			s.Micro = append(s.Micro, micro)
		}
	}
	return s
}

// hybrid reports whether a strategy can shard over the ranks of a host without changing bits.
func (q *query) hybrid(ranks int) bool {
	k := q.cluster.PerHost
	return k > 1 && k < ranks && ranks%k == 0 && k&(k-1) == 0
}

// config returns the configuration of a setting.
func (q *query) config(ranks int, s plan.Setting) fsdp.Config {
	cfg := fsdp.Config{
		Group: comm.World{Ranks: ranks}, WrapPolicy: units[s.Units], Strategy: strategies[s.Strategy], ShardRanks: s.ShardRanks,
		Prefetch: s.Prefetch, Precision: precisions[q.precision], Threads: q.threads,
	}
	if s.Prefetch == 0 {
		cfg.Prefetch = fsdp.NoPrefetch
	}
	switch s.Recompute {
	case "full":
		cfg.Activations.Recompute = blocks(1)
	case "none":
		cfg.Activations.Save = blocks(1)
	}
	return cfg
}

// plan plans a setting.
func (q *query) plan(ranks int, s plan.Setting) (*fsdp.Plan, error) {
	return fsdp.Planner{Model: q.model, Config: q.config(ranks, s), NewOptimizer: newByName[q.optimizer], Batch: q.subject.batch(s.Micro, q.seq)}.Plan()
}

// search times all settings of a space.
//
// Memory that lasts from step to step does not depend on units, recomputation and micro batches. If
// it is too large with one setting, the plan of this setting stands for all settings of the
// strategy. A micro batch that is too large stands for larger ones. So most settings of a large
// model need no plan.
func (q *query) search(ranks int, space *plan.Space) ([]plan.Choice, error) {
	tooMuch := make(map[plan.Setting]*plan.Pass)
	return plan.Search(space, q.memory, q.cluster, func(s plan.Setting) (*plan.Pass, error) {
		strategy := plan.Setting{Strategy: s.Strategy}
		any := s
		any.Micro, any.Passes = 0, 0
		for _, key := range []plan.Setting{strategy, any} {
			if p := tooMuch[key]; p != nil {
				return p, nil
			}
		}
		p, err := q.plan(ranks, s)
		if err != nil {
			return nil, err
		}
		if live := peak(p.Pass); live.Shard+live.State > q.memory {
			tooMuch[strategy] = p.Pass
		} else if live.Total() > q.memory {
			tooMuch[any] = p.Pass
		}
		return p.Pass, nil
	})
}

// peak returns the memory at the peak.
func peak(p *plan.Pass) plan.Memory { return p.Ops[p.Peak()].Live }

// An answer is the best plan for a number of ranks, and the other choices.
type answer struct {
	ranks   int
	choices []plan.Choice
	fits    int // number of choices that fit
	best    *fsdp.Plan
}

// answer searches, and plans the best setting. If nothing fits, it also tries without prefetch.
func (q *query) answer(ranks int) (*answer, error) {
	space := q.space(ranks)
	choices, err := q.search(ranks, space)
	if err == nil && choices[0].Time == nil {
		space.Prefetch = []int{0}
		choices, err = q.search(ranks, space)
	}
	if err != nil {
		return nil, fmt.Errorf("%d ranks: %w", ranks, err)
	}
	a := &answer{ranks: ranks, choices: choices}
	for _, c := range choices {
		if c.Time != nil {
			a.fits++
		}
	}
	if a.best, err = q.plan(ranks, choices[0].Setting); err != nil {
		return nil, fmt.Errorf("%d ranks: %w", ranks, err)
	}
	return a, nil
}

// host returns the number of ranks of a host.
func (q *query) host() int { return max(1, q.cluster.PerHost/q.threads) }

// smallest is the value of -ranks that searches for a number.
const smallest = "smallest"

// fewest returns the answer for the fewest hosts on which a setting fits, or nil if any of the
// answers has one that fits.
func (q *query) fewest(answers []*answer) (*answer, error) {
	if slices.ContainsFunc(answers, func(a *answer) bool { return a.fits > 0 }) {
		return nil, nil
	}
	most := slices.MaxFunc(answers, func(a, b *answer) int { return cmp.Compare(a.ranks, b.ranks) }).ranks
	ranks, err := q.smallest(1 + most/q.host())
	if err != nil {
		return nil, err
	}
	return q.answer(ranks)
}

// smallest returns the ranks of the fewest hosts, at least a number, on which a setting fits, or
// the most ranks if none fits on any number. More ranks do not need more memory, except for
// padding. It tries only the settings with the least memory: fully sharded, the smallest micro
// batch, no prefetch.
func (q *query) smallest(least int) (ranks int, err error) {
	fits := func(hosts int) bool {
		s, choices := q.space(hosts*q.host()), []plan.Choice(nil)
		s.Strategies, s.Prefetch, s.Micro = s.Strategies[:1], []int{0}, s.Micro[:1]
		if err == nil {
			choices, err = q.search(hosts*q.host(), s)
		}
		return err != nil || choices[0].Time != nil
	}
	most := mostRanks / q.host()
	if !fits(most) {
		return most * q.host(), err
	}
	least = min(least, most)
	enough := least
	for enough < most && !fits(enough) {
		least, enough = enough+1, min(2*enough, most)
	}
	return (least + sort.Search(enough-least, func(i int) bool { return fits(least + i) })) * q.host(), err
}
