package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// A Setting is one way to train a model: the choices that do not change a bit of the result of a
// step, and how its samples are cut into passes. The caller that plans settings defines the names.
type Setting struct {
	Units      string // how calls are grouped into units
	Strategy   string
	ShardRanks int // for the hybrid strategies
	Prefetch   int
	Recompute  string // the part of calls that backward recomputes
	Micro      int    // samples in a pass
	Passes     int    // passes in a step
}

// String lists the choices.
func (s Setting) String() string {
	text := fmt.Sprintf("%s by %s", s.Strategy, s.Units)
	if s.ShardRanks > 0 {
		text += fmt.Sprintf(" over %d ranks", s.ShardRanks)
	}
	return text + fmt.Sprintf(", recompute %s, prefetch %d, %d × %d samples", s.Recompute, s.Prefetch, s.Passes, s.Micro)
}

// A Space is the settings to search.
type Space struct {
	Units, Strategies, Recompute []string
	ShardRanks                   []int // for the strategies that Hybrid names
	Hybrid                       []string
	Prefetch                     []int
	Micro                        []int // each must divide Samples
	Samples                      int   // samples in a step on one rank
}

// A Choice is a setting with its memory and time.
type Choice struct {
	Setting
	Memory int       // bytes at the peak
	Time   *Timeline // nil if it does not fit
	Misfit error     // why it does not fit
}

// Rate returns the samples per second on one rank.
func (c *Choice) Rate() float64 { return float64(c.Micro*c.Passes) / c.Time.Total }

// Search times every setting of a space. It returns those that fit in memory bytes, the fastest
// first, and after them those that do not fit, the smallest first. Settings that take equally long
// keep the order of the space, so the same call has the same result everywhere. Search calls pass
// once for each setting, to plan it.
func Search(space *Space, memory int, c *Cluster, pass func(Setting) (*Pass, error)) ([]Choice, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	list, err := space.settings()
	if err != nil {
		return nil, err
	}
	choices := make([]Choice, 0, len(list))
	for _, s := range list {
		p, err := pass(s)
		if err != nil {
			return nil, fmt.Errorf("plan: %v: %w", s, err)
		}
		choice := Choice{Setting: s, Memory: p.Ops[p.Peak()].Live.Total()}
		if choice.Misfit = p.Fits(memory); choice.Misfit == nil {
			choice.Time = p.Time(c, s.Passes)
		}
		choices = append(choices, choice)
	}
	slices.SortStableFunc(choices, better)
	return choices, nil
}

// better compares choices. A choice that fits is better than one that does not.
func better(a, b Choice) int {
	switch {
	case a.Time != nil && b.Time != nil:
		return cmp.Compare(b.Rate(), a.Rate())
	case a.Time != nil:
		return -1
	case b.Time != nil:
		return 1
	default:
		return cmp.Compare(a.Memory, b.Memory)
	}
}

// settings lists the settings of the space.
func (s *Space) settings() (list []Setting, err error) {
	for _, n := range []int{len(s.Units), len(s.Strategies), len(s.Recompute), len(s.Prefetch), len(s.Micro)} {
		if n == 0 {
			return nil, errors.New("plan: the space needs at least one choice each of units, strategy, recompute, prefetch and micro-batch")
		}
	}
	for _, micro := range s.Micro {
		if micro < 1 || s.Samples%micro != 0 {
			return nil, fmt.Errorf("plan: micro-batches of %d samples do not divide a step of %d samples", micro, s.Samples)
		}
		for _, strategy := range s.Strategies {
			for _, shards := range s.shardRanks(strategy) {
				for _, units := range s.Units {
					for _, recompute := range s.Recompute {
						for _, prefetch := range s.Prefetch {
							list = append(list, Setting{units, strategy, shards, prefetch, recompute, micro, s.Samples / micro})
						}
					}
				}
			}
		}
	}
	return list, nil
}

// shardRanks returns the choices of ShardRanks for a strategy, or just 0 if it is not hybrid.
func (s *Space) shardRanks(strategy string) []int {
	if slices.Contains(s.Hybrid, strategy) {
		return s.ShardRanks
	}
	return []int{0}
}
