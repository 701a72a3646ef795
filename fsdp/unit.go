package fsdp

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/program"
)

// rootName is what the root unit is called in events and messages.
const rootName = "root"

// unit is a set of parameters that is scheduled together. It has a flat group for each kind of parameters in it.
type unit struct {
	UnitInfo
	members  []int      // parameters of the model
	strategy Strategy   // decided
	group    comm.Group // of its own, or nil
	kinds    []kind     // of the members
}

// kind is what parameters of one flat group have in common.
type kind struct {
	buffer  bool // untrained state of one rank
	ignored bool // whole on every rank
	frozen  bool // not trained
	full    bool // never narrowed
}

// String names what is unusual about the kind.
func (k kind) String() string {
	var words []string
	for _, w := range []struct {
		is   bool
		name string
	}{{k.buffer, "buffers"}, {k.ignored, "ignored"}, {k.frozen && !k.buffer, "frozen"}, {k.full && !k.buffer && !k.ignored, "full"}} {
		if w.is {
			words = append(words, w.name)
		}
	}
	if words == nil {
		return "trained"
	}
	return strings.Join(words, " ")
}

// makeUnits applies the policies.
func (s *Sharded) makeUnits() error {
	infos := s.callInfos()
	names, err := s.cfg.Wrap.apply("Wrap", infos)
	if err != nil {
		return err
	}
	if err := s.savePolicies(infos); err != nil {
		return err
	}
	root := &unit{UnitInfo: UnitInfo{Name: rootName, Root: true}}
	s.units = []*unit{root}
	byName := map[string]*unit{"": root}
	kinds, err := s.paramKinds(infos)
	if err != nil {
		return err
	}
	for i, c := range s.trace.calls {
		if names[i] == rootName {
			return fmt.Errorf("policy Config.Wrap named the unit of call %q %q, which is the name of the root unit", c.name, rootName)
		}
		u := byName[names[i]]
		if u == nil && len(c.owned) > 0 {
			u = &unit{UnitInfo: UnitInfo{Name: names[i]}}
			byName[names[i]], s.units = u, append(s.units, u)
		}
		for _, p := range c.owned {
			u.Params = append(u.Params, s.trace.params[p].Param)
			u.members, u.kinds = append(u.members, p), append(u.kinds, kinds[p])
		}
	}
	s.units = slices.DeleteFunc(s.units, func(u *unit) bool { return len(u.members) == 0 })
	for _, u := range s.units {
		if err := u.decide(&s.cfg); err != nil {
			return fmt.Errorf("unit %s: %w", u.Name, err)
		}
	}
	return nil
}

// paramKinds returns the kind of every parameter.
func (s *Sharded) paramKinds(infos []CallInfo) (kinds []kind, err error) {
	name := ""
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("Config.Frozen, Ignored or Precision.Full panicked for parameter %s: %v", name, r)
		}
	}()
	for _, p := range s.trace.params {
		name = p.Name
		k := kind{buffer: p.Buffer}
		switch {
		case k.buffer:
			k.frozen, k.full = true, s.cfg.Precision.narrow()
		default:
			k.frozen = s.cfg.Frozen != nil && s.cfg.Frozen(name)
			k.ignored = s.cfg.Ignored != nil && s.cfg.Ignored(name)
			k.full = s.cfg.Precision.narrow() && (k.ignored || s.cfg.Precision.Full(infos[p.call], p.Param))
		}
		kinds = append(kinds, k)
	}
	return kinds, nil
}

// decide asks the configuration for the unit's strategy and group.
func (u *unit) decide(cfg *Config) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("Config.StrategyOf or GroupOf panicked: %v", r)
		}
	}()
	u.Strategy = cfg.Strategy
	if u.Root {
		u.Strategy = u.Strategy.kept()
	}
	if u.strategy = u.Strategy; cfg.StrategyOf != nil {
		if u.strategy = cfg.StrategyOf(u.UnitInfo); u.strategy >= strategies {
			return fmt.Errorf("Config.StrategyOf returned %v: to change nothing, return the unit's Strategy", u.strategy)
		}
	}
	if hybrid := u.strategy == HybridShard || u.strategy == HybridGradOp; hybrid && cfg.ShardRanks == 0 {
		return fmt.Errorf("%v needs Config.ShardRanks, the number of ranks that parameters are cut over: a divisor of %d, such as the ranks of a host",
			u.strategy, cfg.Group.Size())
	}
	if cfg.GroupOf != nil {
		u.group = cfg.GroupOf(u.UnitInfo)
	}
	if u.group == cfg.Group {
		u.group = nil
	}
	if u.group != nil && u.strategy != FullShard && u.strategy != ShardGradOp {
		return fmt.Errorf("Config.GroupOf gives a group of its own, over which %v is not possible: want FullShard or ShardGradOp", u.strategy)
	}
	return nil
}

// hold returns how long the parameters of a kind stay whole in a pass.
func (u *unit) hold(k kind, p Precision) program.Hold {
	switch {
	case k.buffer, k.ignored, u.strategy == NoShard && (k.full || p.Gather == p.Compute):
		return program.Always
	case u.strategy == FullShard, u.strategy == HybridShard:
		return program.Use
	default:
		return program.Keep
	}
}

// ordered returns the distinct kinds of the unit, the usual one first.
func (u *unit) ordered() []kind {
	list := make([]kind, 0, 1)
	for _, k := range u.kinds {
		if !slices.Contains(list, k) {
			list = append(list, k)
		}
	}
	label := func(k kind) string {
		if k == (kind{}) {
			return ""
		}
		return k.String()
	}
	slices.SortFunc(list, func(a, b kind) int { return strings.Compare(label(a), label(b)) })
	return list
}

// makeGroups lays the units out in flat groups and describes the model to the scheduler. It is a collective.
func (s *Sharded) makeGroups(ctx context.Context) error {
	s.groups, s.home = nil, make([]place, len(s.trace.params))
	s.model = &program.Model{}
	for _, u := range s.units {
		kinds := u.ordered()
		for _, k := range kinds {
			m, err := s.meshes.of(ctx, u, k)
			if err != nil {
				return fmt.Errorf("unit %s: %w", u.Name, err)
			}
			name := u.Name
			if len(kinds) > 1 && k != (kind{}) {
				name += " (" + k.String() + ")"
			}
			var params []int
			for i, p := range u.members {
				if u.kinds[i] == k {
					s.home[p] = place{len(s.groups), len(params)}
					params = append(params, p)
				}
			}
			f, err := newFlatGroup(name, s.trace, params, m, k, s.cfg.Precision)
			if err != nil {
				return err
			}
			f.peers = s.cfg.Group
			if u.group != nil {
				f.peers = u.group
			}
			f.hold = u.hold(k, s.cfg.Precision)
			s.groups = append(s.groups, f)
			s.model.Groups = append(s.model.Groups, f.schedule(u.Name))
		}
	}
	for i, p := range s.trace.params {
		s.model.Params = append(s.model.Params, program.Param{Name: p.Name, Group: s.home[i].group})
	}
	s.entries = map[string]*entry{"": {s.trace, s.trace.model(s.model)}}
	s.model = s.entries[""].model
	for name, tr := range s.traces {
		s.entries[name] = &entry{tr, tr.model(s.model)}
	}
	return nil
}

// entry is a way through the model: its Forward, or another of its programs.
type entry struct {
	*trace
	model *program.Model
}

// model describes the calls to the scheduler, with the parameters and groups of like.
func (tr *trace) model(like *program.Model) *program.Model {
	m := &program.Model{Inputs: tr.inputs, Params: like.Params, Groups: like.Groups, Results: tr.results}
	for _, c := range tr.calls {
		m.Calls = append(m.Calls, program.Call{Name: c.name, In: c.in, Params: c.params})
	}
	return m
}
