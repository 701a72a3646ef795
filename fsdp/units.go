package fsdp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/fsdp/internal/state"
	"github.com/gofsdp/gofsdp/internal/caught"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/shard"
)

// rootName is the name of the root unit in events and messages.
const rootName = "root"

// unit is a set of parameters that is scheduled together, with the decisions of the configuration.
type unit struct {
	UnitConfig
	members  []int         // parameters of the model
	kinds    []layout.Kind // of the members
	strategy Strategy
	group    comm.Group // separate group, or nil
	at       shard.Cut
	cut      string // at as text, "" if it is anywhere
}

// decideUnits applies the policies of cfg to the model.
func decideUnits(cfg *Config, tr *trace) ([]*unit, error) {
	names, err := cfg.WrapPolicy.apply("WrapPolicy", tr)
	if err != nil {
		return nil, err
	}
	kinds, err := paramKinds(cfg, tr)
	if err != nil {
		return nil, err
	}
	root := &unit{UnitConfig: UnitConfig{Name: rootName, Root: true}}
	units := []*unit{root}
	byName := map[string]*unit{"": root}
	for i, c := range tr.calls {
		if names[i] == rootName {
			return nil, fmt.Errorf("policy Config.WrapPolicy named the unit of call %q %q, which is the name of the root unit", c.name, rootName)
		}
		u := byName[names[i]]
		if u == nil && len(c.owned) > 0 {
			u = &unit{UnitConfig: UnitConfig{Name: names[i]}}
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
	defer caught.Panic(&err, "Config.Frozen, Ignored, Precision.Full or TypesOf")
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
			if cfg.Precision.TypesOf != nil && !k.Full {
				err = cfg.typesOf(&k, infos[p.call], p.Param)
			}
		}
		if err != nil {
			return nil, err
		}
		kinds = append(kinds, k)
	}
	return kinds, nil
}

// decide asks the configuration for the unit's strategy and group.
func (u *unit) decide(cfg *Config) (err error) {
	defer caught.Panic(&err, "Config.Unit")
	u.Strategy = cfg.Strategy
	if u.Root {
		u.Strategy = u.Strategy.kept()
	}
	u.strategy = u.Strategy
	asked := u.UnitConfig
	if cfg.Unit != nil {
		cfg.Unit(&asked)
	}
	if u.strategy = asked.Strategy; u.strategy >= strategies {
		return fmt.Errorf("Config.Unit set Strategy to %v, which is unknown: to keep the strategy, do not set it", u.strategy)
	}
	named := u.strategy
	if named == cfg.Strategy.kept() { // the strategy that the root unit gets for Config.Strategy
		named = cfg.Strategy
	}
	if u.strategy.overSome() && cfg.ShardRanks == 0 {
		return fmt.Errorf("%v needs Config.ShardRanks, the number of ranks to cut parameters over: a divisor of %d, such as the number of ranks on a host",
			named, cfg.Group.Size())
	}
	if u.strategy == SecondaryShard && cfg.Device != nil {
		return errors.New("SecondaryShard runs only on the processor: Config.Device keeps no second copy of parameters")
	}
	if u.group = asked.Group; u.group == cfg.Group {
		u.group = nil
	}
	if u.group != nil && u.strategy != FullShard && u.strategy != ShardGradOp {
		return fmt.Errorf("Config.Unit gives the unit its own group, over which %v is not supported: want FullShard or ShardGradOp", named)
	}
	u.cutAt(asked.Cut)
	return nil
}

// cutAt asks once for the blocks of all parameters, which every rank has to agree on.
func (u *unit) cutAt(c shard.Cut) {
	if c.Block == nil && c.Weights == nil {
		return
	}
	u.at.Weights = slices.Clone(c.Weights)
	list := make([]int, len(u.Params))
	if c.Block != nil {
		blocks := make(map[string]int)
		for i, p := range u.Params {
			list[i] = c.Block(shard.Param{Name: p.Name, Shape: p.Shape})
			blocks[p.Name] = list[i]
		}
		u.at.Block = func(p shard.Param) int { return blocks[p.Name] }
	}
	u.cut = fmt.Sprintf("blocks of %v, weights %v", list, u.at.Weights)
}

// arrange lays the units out in flat groups and finds the ranks that share them. It is a
// collective.
func arrange(ctx context.Context, team *ranks.Team, m *layout.Model, cfg Config, units []*unit, dev engine.Device) (*arrangement, error) {
	a := &arrangement{cfg: cfg, units: units}
	own, err := meet(ctx, team, units)
	if err != nil {
		return a, err
	}
	if err = a.lay(m, own, dev); err != nil {
		return a, err
	}
	a.meshes = make([]ranks.Mesh, len(a.layout.Groups))
	for i := range a.layout.Groups {
		g := &a.layout.Groups[i]
		if a.meshes[i], err = team.Mesh(ctx, units[g.Unit].group, g.Ranks.Shards, g.Ranks.Replicas); err != nil {
			return a, fmt.Errorf("unit %s: %w", units[g.Unit].Name, err)
		}
		if n := g.Ranks.Second; n > 0 {
			if a.meshes[i].Second, err = team.Second(ctx, n); err != nil {
				return a, fmt.Errorf("unit %s: %w", units[g.Unit].Name, err)
			}
		}
	}
	return a, nil
}

// lay lays the units out in flat groups of a device. own has the ranks of the units with separate
// groups.
func (a *arrangement) lay(m *layout.Model, own []*layout.Own, dev engine.Device) (err error) {
	list := make([]layout.Unit, len(a.units))
	for i, u := range a.units {
		list[i] = layout.Unit{Name: u.Name, Members: u.members, Kinds: u.kinds, Cut: u.strategy.cut(), At: u.at, Keep: u.strategy.kept() == u.strategy,
			Second: u.strategy == SecondaryShard, Own: own[i]}
	}
	p := a.cfg.Precision
	a.layout, err = layout.New(m, list, layout.Options{
		World: a.cfg.Group.Size(), Rank: a.cfg.Group.Rank(), ShardRanks: a.cfg.ShardRanks,
		Compute: p.wide().comm(), Store: p.Master.comm(), Read: p.Compute.comm(), Gather: p.Gather.comm(), Reduce: p.Reduce.comm(),
		Copies: dev.Rounds(),
		Late:   a.cfg.passes() > 1, // only a sum over all virtual ranks may be rounded
	})
	return err
}

// peers returns the ranks that have the pieces of a parameter.
func (a *arrangement) peers(p int) *optim.Peers {
	home := a.layout.Home[p]
	g := &a.layout.Groups[home.Group]
	return &optim.Peers{
		Group: cmp.Or(a.units[g.Unit].group, a.cfg.Group), Places: g.Ranks.Shards, Exact: a.cfg.VirtualRanks > 0,
		Span: func(place int) shard.Span { return g.Span(place, home.Index) },
	}
}

// fewGathers is how often a pass gathers a unit without a warning: FullShard does so for forward
// and for backward, and again for a layer that the model calls a second time.
const fewGathers = 4

// warnOfGathers warns of units that a pass gathers many times, as units of WrapEach in a recurrent
// net: between two calls of such a unit there are calls of others.
func (s *session) warnOfGathers() {
	logger := s.cfg.warner(s.team.Rank())
	gathers, err := s.engine.Gathers()
	if logger == nil || err != nil { // the first pass returns the error
		return
	}
	most, units, all := 0, 0, 0
	for i, n := range gathers {
		all += n
		if n > fewGathers {
			units++
		}
		if n > gathers[most] {
			most = i
		}
	}
	if units > 0 {
		logger.Warn("fsdp: a pass gathers some units many times, because calls of other units run between their calls: give these calls one unit in Config.WrapPolicy "+
			"or leave them to the root unit, or set Strategy to ShardGradOp, which keeps the units gathered during a pass", "unit", s.layout.Groups[most].Name,
			"gathers", gathers[most], "units", units, "gathers of all", all)
	}
}

// meet returns the ranks of the units that have separate groups, by unit. Every rank gets the ranks
// of all those groups. It is a collective if there are any. If the same units share a group on
// every rank, the group is sent once.
func meet(ctx context.Context, team *ranks.Team, units []*unit) ([]*layout.Own, error) {
	own := make([]*layout.Own, len(units))
	var each, once []*layout.Own // of units, and of groups as they first come
	var alike []string           // of units, the place in once
	at := make(map[comm.Group]int)
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
		if _, known := at[u.group]; !known {
			at[u.group], once = len(once), append(once, own[i])
		}
		each, alike = append(each, own[i]), append(alike, strconv.Itoa(at[u.group]))
	}
	if each == nil {
		return own, nil
	}
	if err != nil {
		abortOwn(units, err)
	}
	ans, err := team.Agree(ctx, &ranks.Ask{Call: "the meeting of the ranks of a group of Config.Unit", Round: true, Schedule: state.Hash(alike...)}, err)
	if err != nil {
		return nil, err
	}
	if !ans.Known {
		return own, tell(ctx, team, each)
	}
	for i, u := range units {
		if u.group != nil {
			own[i] = once[at[u.group]]
		}
	}
	return own, tell(ctx, team, once)
}

// tell fills the tables of groups. Every rank has the same number of groups.
func tell(ctx context.Context, team *ranks.Team, own []*layout.Own) error {
	var mine []int64
	for _, o := range own {
		mine = append(mine, int64(o.Leader), int64(o.Rank))
	}
	all, err := team.Each(ctx, "ranks of groups of Config.Unit", mine)
	if err != nil {
		return err
	}
	for i, o := range own {
		o.Table = make([]layout.Member, team.Size())
		for rank := range o.Table {
			words := all[rank*len(mine)+2*i:]
			o.Table[rank] = layout.Member{Leader: int(words[0]), Set: int(words[0]), Place: int(words[1])}
		}
	}
	return nil
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

// callPolicies decides what each call keeps for backward, which calls keep it in files, and which
// calls stay in float32.
func callPolicies(cfg *Config, tr *trace) (err error) {
	var chosen [4][]string
	for i, p := range []struct {
		name   string
		policy Policy
	}{{"Activations.Recompute", cfg.Activations.Recompute}, {"Activations.Save", cfg.Activations.Save}, {"Activations.Offload", cfg.Activations.Offload}, {"Precision.Wide", cfg.Precision.Wide}} {
		if chosen[i], err = p.policy.apply(p.name, tr); err != nil {
			return err
		}
	}
	tr.save = make([]exec.Policy, len(tr.calls)) // exec.Balanced
	tr.spill, tr.wide = make([]bool, len(tr.calls)), make([]bool, len(tr.calls))
	for i, c := range tr.calls {
		recompute, save := chosen[0][i] != "", chosen[1][i] != ""
		switch {
		case recompute && save:
			return fmt.Errorf("call %q is selected by both Config.Activations.Recompute and Save", c.name)
		case recompute:
			tr.save[i] = exec.RecomputeAll
		case save:
			tr.save[i] = exec.SaveAll
		}
		tr.spill[i] = chosen[2][i] != ""
		tr.wide[c.from] = tr.wide[c.from] || chosen[3][i] != ""
	}
	return nil
}
