package fsdp

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/internal/exec"
)

// manifest is what all ranks must agree on, as text, so that a difference can be shown: one fact a
// line.
func manifest(cfg *Config, tr *trace, m *layout.Model, units []*unit) string {
	var b strings.Builder
	for _, field := range []struct {
		name  string
		value any
	}{
		{"Precision.Compute", cfg.Precision.Compute}, {"Precision.Gather", cfg.Precision.Gather}, {"Precision.Reduce", cfg.Precision.Reduce},
		{"Divide", cfg.Divide}, {"Prefetch", cfg.Prefetch}, {"InFlight", cfg.InFlight}, {"ShardRanks", cfg.ShardRanks}, {"Seed", cfg.Seed},
	} {
		fmt.Fprintf(&b, "Config.%s %v\n", field.name, field.value)
	}
	facts := make([]string, len(tr.params))
	for _, u := range units {
		for i, p := range u.members {
			facts[p] = fmt.Sprintf("%v, in unit %s", u.kinds[i], u.Name)
		}
	}
	for i, p := range tr.params {
		fmt.Fprintf(&b, "parameter %s %v: %s\n", p.Name, p.Shape, facts[i])
	}
	for i, c := range tr.calls {
		fmt.Fprintf(&b, "call %s: Checkpoint %t, Keep %t\n", c.name, tr.save[i] == exec.RecomputeAll, tr.save[i] == exec.SaveAll)
		fmt.Fprintf(&b, "call %s %v of %s\n", c.name, c.in, describe(c.module))
	}
	fmt.Fprintf(&b, "results %v\n", tr.results)
	for _, name := range programNames(m) {
		path := m.Paths[name]
		fmt.Fprintf(&b, "results %v of program %s\n", path.Results, name)
		for _, c := range path.Calls {
			fmt.Fprintf(&b, "call %s %v in program %s\n", c.Name, c.In, name)
		}
	}
	for _, u := range units {
		fmt.Fprintf(&b, "unit %s: %v", u.Name, u.strategy)
		if u.group != nil {
			fmt.Fprintf(&b, ", in a group of %d", u.group.Size())
		}
		fmt.Fprintln(&b)
	}
	return b.String()
}

// programNames returns the names of the programs other than Forward.
func programNames(m *layout.Model) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(m.Paths)), func(name string) bool { return name == "" })
}

// log tells the logger how the model lies, and what looks like a mistake.
func (s *Sharded) log(what string) {
	if s.cfg.Logger == nil {
		return
	}
	logger := s.cfg.Logger.With("rank", s.cfg.Group.Rank())
	for _, u := range s.units {
		logger.Debug("fsdp: unit", "name", u.Name, "strategy", u.strategy.String(), "elements", u.Len())
	}
	frozen, total := 0, 0
	for _, g := range s.layout.Groups {
		for _, p := range g.Flat.Params() {
			if total += p.Len(); g.Kind.Frozen {
				frozen += p.Len()
			}
		}
	}
	logger.Info("fsdp: "+what, "ranks", s.cfg.Group.Size(), "units", len(s.units), "groups", len(s.layout.Groups), "elements", total,
		"frozen", frozen, "shard bytes", s.layout.ShardBytes())
	if unused := unused(s.layout); len(unused) > 0 {
		logger.Warn("fsdp: the loss does not depend on some parameters: they get no gradient", "parameters", unused)
	}
	for _, field := range s.idleFields(s.trace) {
		logger.Warn("fsdp: Config."+field+" selects nothing", "calls", callNames(s.trace))
	}
	if s.cfg.ShardRanks > 0 && !slices.ContainsFunc(s.units, func(u *unit) bool { return u.strategy == HybridShard || u.strategy == HybridGradOp }) {
		logger.Warn("fsdp: Config.ShardRanks is set, but no unit has a hybrid strategy")
	}
}

// idleFields returns the fields of the configuration that select something and find nothing.
func (a *arrangement) idleFields(tr *trace) (fields []string) {
	any := func(is func(k layout.Kind) bool) bool {
		return slices.ContainsFunc(a.units, func(u *unit) bool { return slices.ContainsFunc(u.kinds, is) })
	}
	for _, f := range []struct {
		name       string
		set, found bool
	}{
		{"Wrap", a.cfg.Wrap != nil, slices.ContainsFunc(a.units, func(u *unit) bool { return !u.Root })},
		{"Checkpoint", a.cfg.Checkpoint != nil, slices.Contains(tr.save, exec.RecomputeAll)},
		{"Keep", a.cfg.Keep != nil, slices.Contains(tr.save, exec.SaveAll)},
		{"Spill", a.cfg.Spill != nil, slices.Contains(tr.spill, true)},
		{"Frozen", a.cfg.Frozen != nil, any(func(k layout.Kind) bool { return k.Frozen && !k.Buffer })},
		{"Ignored", a.cfg.Ignored != nil, any(func(k layout.Kind) bool { return k.Ignored })},
	} {
		if f.set && !f.found {
			fields = append(fields, f.name)
		}
	}
	return fields
}

// callNames returns the names of the calls, which policies select by.
func callNames(tr *trace) (names []string) {
	for _, c := range tr.calls {
		names = append(names, c.name)
	}
	return names
}

// unused returns the names of trained parameters that the loss does not depend on.
func unused(l *layout.Layout) (names []string) {
	used := make([]bool, len(l.Model.Params))
	for c, need := range l.Entries[""].NeedsBackward() {
		for _, p := range l.Entries[""].Calls[c].Params {
			used[p] = used[p] || need
		}
	}
	for p, q := range l.Model.Params {
		if !used[p] && !l.Groups[l.Home[p].Group].Kind.Frozen {
			names = append(names, q.Name)
		}
	}
	return names
}
