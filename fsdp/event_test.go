package fsdp_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
)

// watched is a configuration whose events are recorded, with what a test can know from outside of
// the groups of the model.
type watched struct {
	cfg      fsdp.Config
	prefetch int // depth
	events   []fsdp.Event

	// reads tells whether the backward of a call reads a parameter, which is known by its full name.
	reads func(call, param string) bool

	params map[string][]string       // by call: full names, those tied to others by the name that owns them
	home   map[string]string         // by parameter: its group
	unit   map[string]string         // by group
	plan   map[string]fsdp.GroupPlan // by group
}

// watch returns cfg for one rank to wrap with.
func watch(cfg fsdp.Config, reads func(call, param string) bool) *watched {
	w := &watched{cfg: cfg, prefetch: cfg.Prefetch, reads: reads}
	switch cfg.Prefetch {
	case 0:
		w.prefetch = 1
	case fsdp.NoPrefetch:
		w.prefetch = 0
	}
	inner := cfg.Wrap
	if inner == nil {
		inner = func(calls []fsdp.CallInfo) []string { return make([]string, len(calls)) }
	}
	w.cfg.Wrap = func(calls []fsdp.CallInfo) []string {
		names := inner(calls)
		w.learn(calls, names)
		return names
	}
	w.cfg.Trace = func(e fsdp.Event) { w.events = append(w.events, e) }
	return w
}

// learn works out which group every parameter is in: the trained and the frozen ones of a unit are
// two.
func (w *watched) learn(calls []fsdp.CallInfo, units []string) {
	w.params, w.home, w.unit = make(map[string][]string), make(map[string]string), make(map[string]string)
	units = slices.Clone(units)
	frozen := func(p fsdp.Param) bool { return w.cfg.Frozen != nil && w.cfg.Frozen(p.Name) }
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
			w.home[p.Name], w.unit[group] = group, units[i]
		}
		first, _, _ := strings.Cut(c.Name, "#") // a repeated call has the parameters of the first
		for _, p := range c.Module.Params() {
			name := first + "." + p.Name
			if p.Tied != "" {
				name = p.Tied
			}
			w.params[c.Name] = append(w.params[c.Name], name)
		}
	}
}

// planned takes the strategies of the groups from a plan, which must have the groups that the test
// expects.
func (w *watched) planned(t require.TestingT, p *fsdp.Plan) {
	w.plan = make(map[string]fsdp.GroupPlan)
	for _, g := range p.Groups {
		w.plan[g.Name] = g
		if g.Name == "root" && w.cfg.StrategyOf == nil {
			require.NotContains(t, []fsdp.Strategy{fsdp.FullShard, fsdp.HybridShard}, g.Strategy, "the root unit is kept")
		}
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(w.unit)), slices.Collect(maps.Keys(w.plan)))
}

func (w *watched) kept(group string) bool {
	s := w.plan[group].Strategy
	return s == fsdp.ShardGradOp || s == fsdp.HybridGradOp
}

// place is a forward or backward in a trace.
type place struct {
	call     string
	backward bool
	reads    map[string]bool // groups that must be whole
	run      int             // that it belongs to
}

// places finds the computations in a trace, what each reads, and the runs: computations one after
// the other that read the same units. Groups that are kept since an earlier computation do not
// count for that, and a computation that reads nothing else belongs to the run after it.
func (w *watched) places(events []fsdp.Event) []place {
	var places []place
	var units []string // of each place
	kept := make(map[string]bool)
	for _, e := range events {
		if e.Kind != "forward" && e.Kind != "backward" {
			continue
		}
		p := place{call: e.Call, backward: e.Kind == "backward", reads: make(map[string]bool)}
		gathered := make(map[string]bool)
		for _, name := range w.params[e.Call] {
			group := w.home[name]
			if w.plan[group].Ranks == 1 || p.backward && !w.reads(e.Call, name) {
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

// wholeAt returns the groups that are whole while place i computes: those that it and the rest of
// its run read, those of the next runs as deep as the prefetch, and of what is kept what was read
// before and will be again.
func (w *watched) wholeAt(places []place, i int) map[string]bool {
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

// check holds the events of a pass against the rules of fully sharded training. While a call
// computes, exactly the groups of its window are whole, and those that are kept. A group is freed
// directly after the computation that read it last, before anything else happens. So nothing is
// gathered without use, or freed late.
func (w *watched) check(events []fsdp.Event) error {
	places, next := w.places(events), 0
	whole, arrived := make(map[string]bool), make(map[string]bool)
	previous := ""
	for i, e := range events {
		at := fmt.Sprintf("event %d, %s %s%s", i, e.Kind, e.Group, e.Call)
		switch e.Kind {
		case "gather":
			if whole[e.Group] {
				return fmt.Errorf("%s: it is there", at)
			}
			whole[e.Group] = true
		case "wait":
			if !whole[e.Group] || arrived[e.Group] {
				return fmt.Errorf("%s: nothing to wait for", at)
			}
			arrived[e.Group] = true
		case "forward", "backward":
			if want := w.wholeAt(places, next); !maps.Equal(want, whole) {
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
				return fmt.Errorf("%s: it is not there", at)
			case previous != "forward" && previous != "backward" && previous != "free":
				return fmt.Errorf("%s: after a %s, not directly after a computation", at, previous)
			}
			delete(whole, e.Group)
			delete(arrived, e.Group)
		}
		previous = e.Kind
	}
	if len(whole) > 0 {
		return fmt.Errorf("%v are whole at the end", slices.Sorted(maps.Keys(whole)))
	}
	return nil
}

// checkReductions checks that every gradient is reduced once, directly after the last computation
// that adds to it, then over the replicas if there are shards and replicas, and then drained, and
// that nothing else is. In a pass that does not reduce there is none of it.
func (w *watched) checkReductions(events []fsdp.Event, reduces bool) error {
	due := make(map[string]int) // by group: the last event that adds to its gradient
	for i, e := range events {
		for _, name := range w.params[e.Call] {
			if group := w.home[name]; e.Kind == "backward" && reduces && !w.plan[group].Frozen {
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
				return fmt.Errorf("event %d, reduce %s: the last computation was event %d, its gradient is complete with %d (%t)", i, e.Group, last, at, ok)
			}
			reduced[e.Group] = true
		case "sync":
			if !reduced[e.Group] || synced[e.Group] {
				return fmt.Errorf("event %d, sync %s: it is not reduced, or summed already", i, e.Group)
			}
			synced[e.Group] = true
		case "drain":
			twice := w.plan[e.Group].Ranks > 1 && w.plan[e.Group].Replicas > 1
			if !reduced[e.Group] || due[e.Group] < 0 || synced[e.Group] != twice {
				return fmt.Errorf("event %d, drain %s: it is not reduced everywhere, or drained already", i, e.Group)
			}
			due[e.Group] = -1
		}
	}
	for group, at := range due {
		if at >= 0 {
			return fmt.Errorf("the gradient of %s is complete with event %d, and not reduced or not drained", group, at)
		}
	}
	return nil
}

// schedule returns the events as a plan shows them.
func schedule(events []fsdp.Event) []string {
	var lines []string
	for _, e := range events {
		lines = append(lines, strings.TrimSpace(e.Kind+" "+e.Group+e.Call))
	}
	return lines
}

// gptReads: every call of a GPT reads parameters in backward, for the gradient of its input, but
// for the embeddings: tokens have no gradient, and that of a sum does not depend on what is added.
func gptReads(call, _ string) bool { return call != "wte" && call != "wpe" }

// requireStepsAsPlanned runs two steps, each followed by an evaluation, and checks events and
// memory on every rank.
func requireStepsAsPlanned(t require.TestingT, model fsdp.Model, world int, cfg fsdp.Config) {
	onRanks(t, world, func(ctx context.Context, g comm.Group) {
		w := watch(cfg, gptReads)
		w.cfg.Group = g
		m := wrap(t, model, w.cfg)
		for step := range 2 {
			batch := tinyBatch(step, g.Rank(), 1+step, 3)
			plan, err := m.Plan(batch...)
			require.NoError(t, err)
			w.planned(t, plan)
			require.Equal(t, plan.ShardBytes, m.Memory().Live)
			m.ResetPeak()
			w.events = nil
			forwardBackward(t, ctx, m, batch)
			require.Equal(t, plan.Peak(), m.Memory().Peak)
			require.Equal(t, plan.ShardBytes, m.Memory().Live)
			require.Equal(t, plan.Schedule, schedule(w.events))
			require.NoError(t, w.check(w.events))
			require.NoError(t, w.checkReductions(w.events, true))
			w.events = nil
			_, err = m.Eval(ctx, batch...)
			require.NoError(t, err)
			require.Equal(t, plan.ShardBytes, m.Memory().Live, "after an evaluation")
			require.NoError(t, w.check(w.events))
			require.NoError(t, w.checkReductions(w.events, false))
			require.NotContains(t, strings.Join(schedule(w.events), "\n"), "backward")
		}
	})
}

// TestJustInTime checks what is gathered when, and that counted memory peaks where the plan says,
// for every policy and prefetch depth.
func TestJustInTime(t *testing.T) {
	for name, policy := range wrapPolicies {
		for _, prefetch := range []int{fsdp.NoPrefetch, 0, 2, 3} {
			for _, checkpoint := range []fsdp.Policy{nil, blocks} {
				t.Run(fmt.Sprintf("%s/prefetch %d/checkpoint %t", name, prefetch, checkpoint != nil), func(t *testing.T) {
					model := tinyGPT(4)
					model.Tied = true
					cfg := fsdp.Config{Wrap: policy, Prefetch: prefetch, Checkpoint: checkpoint, Poison: true}
					requireStepsAsPlanned(t, model, 2, cfg)
				})
			}
		}
	}
}

// TestJustInTimeAtRandom does the same for random assignments of calls to units and random
// strategies.
func TestJustInTimeAtRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		model := tinyGPT(rapid.IntRange(0, 5).Draw(t, "layers"))
		model.Tied = rapid.Bool().Draw(t, "tied")
		cfg := drawnKnobs(t, "", model.Layers+4)
		kept := rapid.SliceOfN(rapid.Bool(), 5, 5).Draw(t, "kept")
		cfg.StrategyOf = func(u fsdp.UnitInfo) fsdp.Strategy {
			if kept[len(u.Name)%5] || u.Root {
				return fsdp.ShardGradOp
			}
			return u.Strategy
		}
		requireStepsAsPlanned(t, model, rapid.IntRange(1, 3).Draw(t, "world"), cfg)
	})
}

// TestUnitsAtOnce states what follows for a chain of units: no more than Prefetch+1 are whole at a
// time, and those always while there are that many to come.
func TestUnitsAtOnce(t *testing.T) {
	for prefetch, depth := range map[int]int{fsdp.NoPrefetch: 0, 0: 1, 2: 2, 3: 3} {
		onRanks(t, 2, func(ctx context.Context, g comm.Group) {
			w := watch(fsdp.Config{Group: g, Wrap: blocks, Prefetch: prefetch}, gptReads)
			m := wrap(t, tinyGPT(8), w.cfg)
			forwardBackward(t, ctx, m, good(0))
			whole, most := 0, 0
			for _, e := range w.events {
				if strings.HasPrefix(e.Group, "blocks.") {
					switch e.Kind {
					case "gather":
						whole++
					case "free":
						whole--
					}
				}
				most = max(most, whole)
			}
			require.Equal(t, depth+1, most, "prefetch %d", prefetch)
		})
	}
}

// TestOneRankGathersNothing: a rank that has all parameters computes with them where they are. Only
// those that are rounded on their way are gathered.
func TestOneRankGathersNothing(t *testing.T) {
	for name, narrow := range map[string]bool{"float32": false, "bfloat16": true} {
		t.Run(name, func(t *testing.T) {
			cfg := fsdp.Config{Wrap: blocks}
			if narrow {
				cfg.Precision.Gather = fsdp.BFloat16
			}
			w := watch(cfg, gptReads)
			m := wrap(t, tinyGPT(2), w.cfg)
			plan, err := m.Plan(good(0)...)
			require.NoError(t, err)
			forwardBackward(t, t.Context(), m, good(0))
			require.Equal(t, narrow, strings.Contains(strings.Join(schedule(w.events), "\n"), "gather"))
			require.Equal(t, plan.Peak(), m.Memory().Peak)
		})
	}
}

// TestEvents checks the fields of an event.
func TestEvents(t *testing.T) {
	w := watch(fsdp.Config{Wrap: blocks}, gptReads)
	m := wrap(t, tinyGPT(1), w.cfg)
	batch := tinyBatch(0, 0, 1, 3)
	forwardBackward(t, t.Context(), m, batch)
	plan, err := m.Plan(batch...)
	require.NoError(t, err)
	most := 0
	for i, e := range w.events {
		require.Zero(t, e.Rank)
		require.Equal(t, w.events[0].Pass, e.Pass, "forward and backward are one pass")
		require.GreaterOrEqual(t, e.Duration, 0*e.Duration)
		if i > 0 {
			require.False(t, e.Begin.Before(w.events[i-1].Begin))
		}
		most = max(most, e.Live)
	}
	require.LessOrEqual(t, most, plan.Peak())
	require.Greater(t, most, plan.ShardBytes)
}
