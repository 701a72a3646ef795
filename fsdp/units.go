package fsdp

import (
	"context"
	"fmt"
	"slices"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/caught"
	"github.com/gofsdp/gofsdp/internal/exec"
)

// rootName is what the root unit is called in events and messages.
const rootName = "root"

// unit is what the configuration has decided for a set of parameters that is scheduled together.
type unit struct {
	UnitInfo
	members  []int         // parameters of the model
	kinds    []layout.Kind // of the members
	strategy Strategy
	group    comm.Group // of its own, or nil
}

// decideUnits applies the policies of cfg to the model.
func decideUnits(cfg *Config, tr *trace) ([]*unit, error) {
	names, err := cfg.Wrap.apply("Wrap", tr)
	if err != nil {
		return nil, err
	}
	kinds, err := paramKinds(cfg, tr)
	if err != nil {
		return nil, err
	}
	root := &unit{UnitInfo: UnitInfo{Name: rootName, Root: true}}
	units := []*unit{root}
	byName := map[string]*unit{"": root}
	for i, c := range tr.calls {
		if names[i] == rootName {
			return nil, fmt.Errorf("policy Config.Wrap named the unit of call %q %q, which is the name of the root unit", c.name, rootName)
		}
		u := byName[names[i]]
		if u == nil && len(c.owned) > 0 {
			u = &unit{UnitInfo: UnitInfo{Name: names[i]}}
			byName[names[i]], units = u, append(units, u)
		}
		for _, p := range c.owned {
			u.Params = append(u.Params, tr.params[p].Param)
			u.members, u.kinds = append(u.members, p), append(u.kinds, kinds[p])
		}
	}
	units = slices.DeleteFunc(units, func(u *unit) bool { return len(u.members) == 0 })
	for _, u := range units {
		if err := u.decide(cfg); err != nil {
			return nil, fmt.Errorf("unit %s: %w", u.Name, err)
		}
	}
	return units, nil
}

// paramKinds returns the kind of every parameter.
func paramKinds(cfg *Config, tr *trace) (kinds []layout.Kind, err error) {
	name := ""
	defer func() {
		if err != nil {
			err = fmt.Errorf("parameter %s: %w", name, err)
		}
	}()
	defer caught.Panic(&err, "Config.Frozen, Ignored or Precision.Full")
	narrow, infos := cfg.Precision.narrow(), tr.callInfos()
	for _, p := range tr.params {
		name = p.Name
		k := layout.Kind{Buffer: p.Buffer}
		switch {
		case k.Buffer:
			k.Frozen, k.Full = true, narrow
		default:
			k.Frozen = cfg.Frozen != nil && cfg.Frozen(name)
			k.Ignored = cfg.Ignored != nil && cfg.Ignored(name)
			k.Full = narrow && (k.Ignored || tr.wide[p.call] || cfg.Precision.Full(infos[p.call], p.Param))
		}
		kinds = append(kinds, k)
	}
	return kinds, nil
}

// decide asks the configuration for the unit's strategy and group.
func (u *unit) decide(cfg *Config) (err error) {
	defer caught.Panic(&err, "Config.StrategyOf or GroupOf")
	u.Strategy = cfg.Strategy
	if u.Root {
		u.Strategy = u.Strategy.kept()
	}
	if u.strategy = u.Strategy; cfg.StrategyOf != nil {
		if u.strategy = cfg.StrategyOf(u.UnitInfo); u.strategy >= strategies {
			return fmt.Errorf("Config.StrategyOf returned %v: to change nothing, return the unit's Strategy", u.strategy)
		}
	}
	named := u.strategy
	if named == cfg.Strategy.kept() { // which is what becomes of Config.Strategy in the root unit
		named = cfg.Strategy
	}
	if u.strategy.cut() == layout.Some && cfg.ShardRanks == 0 {
		return fmt.Errorf("%v needs Config.ShardRanks, the number of ranks that parameters are cut over: a divisor of %d, such as the ranks of a host",
			named, cfg.Group.Size())
	}
	if cfg.GroupOf != nil {
		u.group = cfg.GroupOf(u.UnitInfo)
	}
	if u.group == cfg.Group {
		u.group = nil
	}
	if u.group != nil && u.strategy != FullShard && u.strategy != ShardGradOp {
		return fmt.Errorf("Config.GroupOf gives a group of its own, over which %v is not possible: want FullShard or ShardGradOp", named)
	}
	return nil
}

// arrange lays the units out in flat groups and finds the ranks that share them. It is a
// collective.
func arrange(ctx context.Context, team *ranks.Team, m *layout.Model, cfg Config, units []*unit) (*arrangement, error) {
	a := &arrangement{cfg: cfg, units: units}
	own, err := meet(ctx, team, units)
	if err != nil {
		return a, err
	}
	list := make([]layout.Unit, len(units))
	for i, u := range units {
		list[i] = layout.Unit{Name: u.Name, Members: u.members, Kinds: u.kinds, Cut: u.strategy.cut(), Keep: u.strategy.kept() == u.strategy, Own: own[i]}
	}
	p := cfg.Precision
	a.layout, err = layout.New(m, list, layout.Options{
		World: team.Size(), Rank: team.Rank(), ShardRanks: cfg.ShardRanks,
		Compute: p.master().comm(), Read: p.Compute.comm(), Gather: p.Gather.comm(), Reduce: p.Reduce.comm(),
	})
	if err != nil {
		return a, err
	}
	a.meshes = make([]ranks.Mesh, len(a.layout.Groups))
	for i := range a.layout.Groups {
		g := &a.layout.Groups[i]
		if a.meshes[i], err = team.Mesh(ctx, units[g.Unit].group, g.Ranks.Shards, g.Ranks.Replicas); err != nil {
			return a, fmt.Errorf("unit %s: %w", units[g.Unit].Name, err)
		}
	}
	return a, nil
}

// meet returns the ranks of the units that have groups of their own, by unit. Every rank learns of
// all those groups. It is a collective if there are any.
func meet(ctx context.Context, team *ranks.Team, units []*unit) ([]*layout.Own, error) {
	own := make([]*layout.Own, len(units))
	var mine []int64 // leader and rank in every group of the user's
	var err error
	for i, u := range units {
		if u.group == nil || err != nil {
			continue
		}
		leader, merr := team.Meet(ctx, u.group)
		if merr != nil {
			err = fmt.Errorf("unit %s: %w", u.Name, merr)
		}
		own[i] = &layout.Own{Ranks: u.group.Size(), Rank: u.group.Rank(), Leader: leader}
		mine = append(mine, int64(leader), int64(u.group.Rank()))
	}
	if mine == nil {
		return own, nil
	}
	if err != nil {
		abortOwn(units, err)
	}
	if _, err := team.Agree(ctx, &ranks.Ask{Call: "the meeting of the ranks of a group of GroupOf"}, err); err != nil {
		return nil, err
	}
	all, err := team.Each(ctx, "ranks of groups of GroupOf", mine)
	if err != nil {
		return nil, err
	}
	for at := 0; at < len(all); at += len(mine) {
		words := all[at:]
		for _, o := range own {
			if o != nil {
				leader := int(words[0])
				o.Table = append(o.Table, layout.Member{Leader: leader, Set: leader, Place: int(words[1])})
				words = words[2:]
			}
		}
	}
	return own, nil
}

// abortOwn fails the user's groups that this rank has met or was about to meet: their other ranks
// may be waiting for it there.
func abortOwn(units []*unit, err error) {
	for _, u := range units {
		if u.group != nil {
			u.group.Abort(err)
		}
	}
}

// callPolicies decides what each call keeps for backward, which of them keep it in files, and which
// stay in float32.
func callPolicies(cfg *Config, tr *trace) (err error) {
	var chosen [4][]string
	for i, p := range []struct {
		name   string
		policy Policy
	}{{"Checkpoint", cfg.Checkpoint}, {"Keep", cfg.Keep}, {"Spill", cfg.Spill}, {"Precision.Wide", cfg.Precision.Wide}} {
		if chosen[i], err = p.policy.apply(p.name, tr); err != nil {
			return err
		}
	}
	tr.save = make([]exec.Policy, len(tr.calls)) // exec.Balanced
	tr.spill, tr.wide = make([]bool, len(tr.calls)), make([]bool, len(tr.calls))
	for i, c := range tr.calls {
		checkpoint, keep := chosen[0][i] != "", chosen[1][i] != ""
		switch {
		case checkpoint && keep:
			return fmt.Errorf("call %q is selected by both Config.Checkpoint and Config.Keep", c.name)
		case checkpoint:
			tr.save[i] = exec.RecomputeAll
		case keep:
			tr.save[i] = exec.SaveAll
		}
		tr.spill[i] = chosen[2][i] != ""
		tr.wide[c.from] = tr.wide[c.from] || chosen[3][i] != ""
	}
	return nil
}
