package kit

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/fsdp"
)

// Watched is a configuration whose events are recorded, with everything that a test can know about
// the groups of the model from outside.
type Watched struct {
	Cfg      fsdp.Config
	prefetch int // depth
	Events   []fsdp.Event

	// reads reports whether the backward of a call reads a parameter, given by its full name
	reads func(call, param string) bool

	Params map[string][]string       // by call: full names; a tied parameter has the name of its owner
	Home   map[string]string         // by parameter: its group
	unit   map[string]string         // by group
	Plan   map[string]fsdp.GroupPlan // by group
}

// Watch returns cfg for one rank to wrap with.
func Watch(cfg fsdp.Config, reads func(call, param string) bool) *Watched {
	w := &Watched{Cfg: cfg, prefetch: cfg.Prefetch, reads: reads}
	switch cfg.Prefetch {
	case 0:
		w.prefetch = 1
	case fsdp.NoPrefetch:
		w.prefetch = 0
	}
	inner := cfg.WrapPolicy
	if inner == nil {
		inner = func(calls []fsdp.CallInfo) []string { return make([]string, len(calls)) }
	}
	w.Cfg.WrapPolicy = func(calls []fsdp.CallInfo) []string {
		names := inner(calls)
		w.learn(calls, names)
		return names
	}
	w.Cfg.Observers = append(w.Cfg.Observers, fsdp.TraceFunc(func(e fsdp.Event) { w.Events = append(w.Events, e) }))
	return w
}

// learn finds the group of every parameter: the trained and the frozen parameters of a unit are two
// groups.
func (w *Watched) learn(calls []fsdp.CallInfo, units []string) {
	w.Params, w.Home, w.unit = make(map[string][]string), make(map[string]string), make(map[string]string)
	units = slices.Clone(units)
	frozen := func(p fsdp.Param) bool { return w.Cfg.Frozen != nil && w.Cfg.Frozen(p.Name) }
	kinds := make(map[string]map[bool]bool)
	for i, c := range calls {
		if units[i] == "" {
			units[i] = "root"
		}
		for _, p := range c.Params {
			if kinds[units[i]] == nil {
				kinds[units[i]] = make(map[bool]bool)
			}
			kinds[units[i]][frozen(p)] = true
		}
	}
	for i, c := range calls {
		for _, p := range c.Params {
			group := units[i]
			if len(kinds[units[i]]) > 1 && frozen(p) {
				group += " (frozen)"
			}
			w.Home[p.Name], w.unit[group] = group, units[i]
		}
		first, _, _ := strings.Cut(c.Name, "#") // a repeated call has the parameters of the first
		for _, p := range c.Module.Params() {
			name := first + "." + p.Name
			if p.Tied != "" {
				name = p.Tied
			}
			w.Params[c.Name] = append(w.Params[c.Name], name)
		}
	}
}

// Planned takes the strategies of the groups from a plan, which must have the groups that the test
// expects.
func (w *Watched) Planned(t require.TestingT, p *fsdp.Plan) {
	w.Plan = make(map[string]fsdp.GroupPlan)
	for _, g := range p.Groups {
		w.Plan[g.Name] = g
		if g.Name == "root" && w.Cfg.Unit == nil {
			require.NotContains(t, []fsdp.Strategy{fsdp.FullShard, fsdp.HybridShard}, g.Strategy, "the root unit is kept")
		}
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(w.unit)), slices.Collect(maps.Keys(w.Plan)))
}

func (w *Watched) kept(group string) bool {
	s := w.Plan[group].Strategy
	return s == fsdp.ShardGradOp || s == fsdp.HybridGradOp
}

// place is a forward or backward in a trace.
type place struct {
	call     string
	backward bool
	reads    map[string]bool // groups that must be whole
	run      int             // that it belongs to
}

// Places finds the computations in a trace, the groups that each reads, and the runs: successive
// computations that read the same units. Groups kept since an earlier computation do not count for
// this, and a computation that reads no others belongs to the next run.
func (w *Watched) Places(events []fsdp.Event) []place {
	var places []place
	var units []string // of each place
	kept := make(map[string]bool)
	for _, e := range events {
		if e.Kind != "forward" && e.Kind != "backward" {
			continue
		}
		p := place{call: e.Call, backward: e.Kind == "backward", reads: make(map[string]bool)}
		gathered := make(map[string]bool)
		for _, name := range w.Params[e.Call] {
			group := w.Home[name]
			if w.Plan[group].Ranks == 1 || p.backward && !w.reads(e.Call, name) {
				continue
			}
			if p.reads[group] = true; !kept[group] {
				gathered[w.unit[group]] = true
			}
		}
		for group := range p.reads {
			kept[group] = w.kept(group)
		}
		places = append(places, p)
		units = append(units, strings.Join(slices.Sorted(maps.Keys(gathered)), ", "))
	}
	for i := len(places) - 2; i >= 0; i-- {
		if units[i] == "" {
			units[i] = units[i+1]
		}
	}
	for i := 1; i < len(places); i++ {
		if places[i].run = places[i-1].run; units[i] != units[i-1] {
			places[i].run++
		}
	}
	return places
}

// WholeAt returns the groups that are whole while place i computes: the groups of its run from it
// on, the groups of the next runs within the prefetch depth, and the kept groups that were read
// before and will be read again.
func (w *Watched) WholeAt(places []place, i int) map[string]bool {
	whole := make(map[string]bool)
	for j := i; j < len(places); j++ {
		for group := range places[j].reads {
			before := slices.ContainsFunc(places[:i], func(p place) bool { return p.reads[group] })
			if places[j].run <= places[i].run+w.prefetch || w.kept(group) && before {
				whole[group] = true
			}
		}
	}
	return whole
}

// Check compares the events of a pass with the rules of fully sharded training. While a call
// computes, exactly the groups of its window and the kept groups are whole. A group is freed
// directly after the last computation that reads it, before anything else happens. So nothing is
// gathered without use, or freed late.
func (w *Watched) Check(events []fsdp.Event) error {
	places, next := w.Places(events), 0
	whole, arrived := make(map[string]bool), make(map[string]bool)
	previous := ""
	for i, e := range events {
		at := fmt.Sprintf("event %d, %s %s%s", i, e.Kind, e.Group, e.Call)
		switch e.Kind {
		case "gather":
			if whole[e.Group] {
				return fmt.Errorf("%s: the unit is already gathered", at)
			}
			whole[e.Group] = true
		case "wait":
			if !whole[e.Group] || arrived[e.Group] {
				return fmt.Errorf("%s: no gather to wait for", at)
			}
			arrived[e.Group] = true
		case "forward", "backward":
			if want := w.WholeAt(places, next); !maps.Equal(want, whole) {
				return fmt.Errorf("%s: %v are whole, want %v", at, slices.Sorted(maps.Keys(whole)), slices.Sorted(maps.Keys(want)))
			}
			for group := range places[next].reads {
				if !arrived[group] {
					return fmt.Errorf("%s: %s has not arrived", at, group)
				}
			}
			next++
		case "free":
			switch {
			case !arrived[e.Group]:
				return fmt.Errorf("%s: the unit is not gathered", at)
			case previous != "forward" && previous != "backward" && previous != "free":
				return fmt.Errorf("%s: after a %s, not directly after a computation", at, previous)
			}
			delete(whole, e.Group)
			delete(arrived, e.Group)
		}
		previous = e.Kind
	}
	if len(whole) > 0 {
		return fmt.Errorf("units %v are still gathered at the end", slices.Sorted(maps.Keys(whole)))
	}
	return nil
}

// CheckReductions checks that every gradient is reduced once, directly after the last computation
// that adds to it, then summed over the replicas if there are shards and replicas, and then
// drained. Nothing else may be reduced. A pass without reductions must have none of these events.
func (w *Watched) CheckReductions(events []fsdp.Event, reduces bool) error {
	due := make(map[string]int) // by group: the last event that adds to its gradient
	for i, e := range events {
		for _, name := range w.Params[e.Call] {
			if group := w.Home[name]; e.Kind == "backward" && reduces && !w.Plan[group].Frozen {
				due[group] = i
			}
		}
	}
	reduced, synced, last := make(map[string]bool), make(map[string]bool), -1
	for i, e := range events {
		switch e.Kind {
		case "forward", "backward":
			last = i
		case "reduce":
			if at, ok := due[e.Group]; !ok || at != last || reduced[e.Group] {
				return fmt.Errorf("event %d, reduce %s: the last computation is event %d, but the gradient is complete after event %d (known: %t)", i, e.Group, last, at, ok)
			}
			reduced[e.Group] = true
		case "sync":
			if !reduced[e.Group] || synced[e.Group] {
				return fmt.Errorf("event %d, sync %s: the gradient is not reduced, or is already summed", i, e.Group)
			}
			synced[e.Group] = true
		case "drain":
			twice := w.Plan[e.Group].Ranks > 1 && w.Plan[e.Group].Replicas > 1
			if !reduced[e.Group] || due[e.Group] < 0 || synced[e.Group] != twice {
				return fmt.Errorf("event %d, drain %s: the gradient is not reduced everywhere, or is already drained", i, e.Group)
			}
			due[e.Group] = -1
		}
	}
	for group, at := range due {
		if at >= 0 {
			return fmt.Errorf("the gradient of %s is complete after event %d, but is not reduced or not drained", group, at)
		}
	}
	return nil
}

// Schedule returns the events as a plan shows them.
func Schedule(events []fsdp.Event) []string {
	var lines []string
	for _, e := range events {
		lines = append(lines, strings.TrimSpace(e.Kind+" "+e.Group+e.Call))
	}
	return lines
}

// CheckFrees checks the documented rule about units in backward. A group is freed directly after
// its last use, under every strategy. Among the units that are not kept, in the order of backward,
// unit i is freed before unit i+1+prefetch is gathered, the next that does not fit the window. Kept
// units are not gathered in backward.
func (w *Watched) CheckFrees(events []fsdp.Event) error {
	back := events[slices.IndexFunc(events, func(e fsdp.Event) bool { return e.Kind == "turn" }):]
	used, freed := make(map[string]int), make(map[string]int) // by group: last event
	gathered := make(map[string]int)                          // by unit: first event
	var units []string
	for i, e := range back {
		switch unit := w.unit[e.Group]; e.Kind {
		case "gather":
			if w.kept(e.Group) {
				return fmt.Errorf("%s is kept, but is gathered in backward", e.Group)
			}
			if _, again := gathered[unit]; !again {
				gathered[unit] = i
			}
		case "backward":
			for _, name := range w.Params[e.Call] {
				group := w.Home[name]
				if unit := w.unit[group]; w.reads(e.Call, name) && w.Plan[group].Ranks > 1 {
					if used[group] = i; !w.kept(group) && !slices.Contains(units, unit) {
						units = append(units, unit)
					}
				}
			}
		case "free":
			freed[e.Group] = i
		}
	}
	for group := range freed {
		if _, ok := used[group]; !ok {
			return fmt.Errorf("%s is freed in backward, but backward does not read it", group)
		}
	}
	for group, last := range used {
		for i := last + 1; i <= max(freed[group], last+1); i++ {
			if i == len(back) || back[i].Kind != "free" {
				return fmt.Errorf("%s is not freed directly after backward %s, its last use", group, back[last].Call)
			}
		}
		if k := slices.Index(units, w.unit[group]) + 1 + w.prefetch; !w.kept(group) && k < len(units) {
			if at, ok := gathered[units[k]]; ok && at < freed[group] {
				return fmt.Errorf("%s is gathered before %s is freed", units[k], group)
			}
		}
	}
	return nil
}

// Shards returns the bytes that a rank keeps of values and gradients.
func (w *Watched) Shards() (bytes int) {
	for _, p := range w.Plan {
		copies := 2
		if p.Frozen {
			copies = 1
		}
		bytes += copies * p.Bytes / p.Ranks
	}
	return bytes
}

// Bytes returns the bytes of the given whole groups.
func (w *Watched) Bytes(groups map[string]bool) (bytes int) {
	for group := range groups {
		bytes += w.Plan[group].Bytes
	}
	return bytes
}

// Seconds returns the bytes of second copies that are live at event i: of groups that are gathered
// twice, from the first wait to the last.
func (w *Watched) Seconds(events []fsdp.Event, i int) (bytes int) {
	for group, p := range w.Plan {
		var waits []int
		for k, e := range events {
			if e.Kind == "wait" && e.Group == group {
				waits = append(waits, k)
			}
		}
		if len(waits) > 1 && waits[0] < i && i < waits[len(waits)-1] && p.Strategy == fsdp.SecondaryShard && w.Cfg.ShardRanks < p.Ranks {
			bytes += p.Bytes / w.Cfg.ShardRanks
		}
	}
	return bytes
}

// Late returns the events with frees of frozen groups moved to the end of backward.
func (w *Watched) Late(events []fsdp.Event) []fsdp.Event {
	turn := slices.IndexFunc(events, func(e fsdp.Event) bool { return e.Kind == "turn" })
	list, frees, more := slices.Clone(events[:turn]), []fsdp.Event(nil), 0
	for _, e := range events[turn:] {
		if e.Live += more; e.Kind == "free" && w.Plan[e.Group].Frozen {
			frees = append(frees, e)
			more += w.Plan[e.Group].Bytes
		} else {
			list = append(list, e)
		}
	}
	return append(list, frees...)
}
