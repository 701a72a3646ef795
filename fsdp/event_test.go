package fsdp_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
)

// watched is a configuration whose events and whose assignment of parameters to groups are recorded.
type watched struct {
	cfg    fsdp.Config
	events []fsdp.Event
	home   map[string]string          // by parameter: its group
	uses   map[string]map[string]bool // by call: the groups of its parameters
}

// watch returns cfg for one rank to wrap with.
func watch(cfg fsdp.Config) *watched {
	w := &watched{cfg: cfg}
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

func (w *watched) learn(calls []fsdp.CallInfo, names []string) {
	w.home, w.uses = make(map[string]string), make(map[string]map[string]bool)
	for i, c := range calls {
		if w.uses[c.Name] == nil {
			w.uses[c.Name] = make(map[string]bool)
		}
		group := names[i]
		if group == "" {
			group = "root"
		}
		for _, p := range c.Params {
			w.home[p.Name] = group
			w.uses[c.Name][group] = true
		}
		for _, p := range c.Module.Params() {
			if p.Tied != "" {
				w.uses[c.Name][w.home[p.Tied]] = true
			}
		}
	}
}

// widest returns the most groups that one call needs at once, without the root.
func (w *watched) widest() int {
	widest := 1
	for _, groups := range w.uses {
		n := len(groups)
		if groups["root"] {
			n--
		}
		widest = max(widest, n)
	}
	return widest
}

// requireJustInTime checks the events of one pass against the rules of fully sharded training.
func (w *watched) requireJustInTime(t require.TestingT, events []fsdp.Event, prefetch int) {
	resident := make(map[string]bool) // gathered and not yet freed
	used := make(map[string]bool)     // by a call since it was gathered
	counts := make(map[string]int)
	for i, e := range events {
		at := fmt.Sprintf("event %d, %s %s%s", i, e.Kind, e.Group, e.Call)
		counts[e.Kind+" "+e.Group]++
		switch e.Kind {
		case "gather":
			require.False(t, resident[e.Group], at)
			resident[e.Group], used[e.Group] = true, false
			n := len(resident)
			if resident["root"] {
				n--
			}
			require.LessOrEqual(t, n, (prefetch+1)*w.widest(), "groups gathered at once: %s", at)
		case "forward", "backward":
			for g := range w.uses[e.Call] {
				require.True(t, resident[g], "%s needs group %s", at, g)
				used[g] = true
			}
		case "free":
			require.True(t, resident[e.Group], at)
			require.True(t, used[e.Group], "%s: nothing used it", at)
			delete(resident, e.Group)
		}
	}
	require.Empty(t, resident, "left gathered")
	for key, n := range counts {
		kind, group, _ := strings.Cut(key, " ")
		if pair := map[string]string{"gather": "free", "wait": "gather", "reduce": "drain", "drain": "reduce"}[kind]; pair != "" {
			require.Equal(t, n, counts[pair+" "+group], "%s and %s of group %s", kind, pair, group)
		}
		if kind == "reduce" {
			require.Equal(t, 1, n, "reductions of group %s", group)
		}
	}
	w.requireRootOutermost(t, events)
}

// requireRootOutermost checks that the root group, if there is one, is gathered first and freed last.
func (w *watched) requireRootOutermost(t require.TestingT, events []fsdp.Event) {
	var order []string
	for _, e := range events {
		if e.Kind == "gather" || e.Kind == "free" {
			order = append(order, e.Kind+" "+e.Group)
		}
	}
	if slices.Contains(order, "gather root") {
		require.Equal(t, "gather root", order[0])
		require.Equal(t, "free root", order[len(order)-1])
	}
}

// schedule returns the events as a plan shows them.
func schedule(events []fsdp.Event) []string {
	var lines []string
	for _, e := range events {
		lines = append(lines, strings.TrimSpace(e.Kind+" "+e.Group+e.Call))
	}
	return lines
}

// requireStepsAsPlanned runs two steps, each followed by an evaluation, and checks events and memory on every rank.
func requireStepsAsPlanned(t require.TestingT, model fsdp.Model, world, prefetch int, cfg fsdp.Config) {
	onRanks(t, world, func(ctx context.Context, g comm.Group) {
		w := watch(cfg)
		w.cfg.Group = g
		m := wrap(t, model, w.cfg)
		for step := range 2 {
			batch := tinyBatch(step, g.Rank(), 1+step, 3)
			plan, err := m.Plan(batch...)
			require.NoError(t, err)
			require.Equal(t, plan.ShardBytes, m.Memory().Live)
			m.ResetPeak()
			w.events = nil
			forwardBackward(t, ctx, m, batch)
			require.Equal(t, plan.Peak(), m.Memory().Peak)
			require.Equal(t, plan.ShardBytes, m.Memory().Live)
			require.Equal(t, plan.Schedule, schedule(w.events))
			w.requireJustInTime(t, w.events, prefetch)
			w.events = nil
			_, err = m.Eval(ctx, batch...)
			require.NoError(t, err)
			require.Equal(t, plan.ShardBytes, m.Memory().Live, "after an evaluation")
			w.requireJustInTime(t, w.events, prefetch)
			require.NotContains(t, strings.Join(schedule(w.events), "\n"), "backward")
		}
	})
}

// TestJustInTime checks what is gathered when, and that counted memory peaks where the plan says, for every policy and
// prefetch depth.
func TestJustInTime(t *testing.T) {
	depth := map[int]int{fsdp.NoPrefetch: 0, 0: 1, 2: 2, 3: 3}
	for name, policy := range wrapPolicies {
		for prefetch, groups := range depth {
			for _, checkpoint := range []fsdp.Policy{nil, blocks} {
				t.Run(fmt.Sprintf("%s/prefetch %d/checkpoint %t", name, prefetch, checkpoint != nil), func(t *testing.T) {
					model := tinyGPT(4)
					model.Tied = true
					cfg := fsdp.Config{Wrap: policy, Prefetch: prefetch, Checkpoint: checkpoint, Poison: true}
					requireStepsAsPlanned(t, model, 2, groups, cfg)
				})
			}
		}
	}
}

// TestJustInTimeAtRandom does the same for random assignments of calls to units.
func TestJustInTimeAtRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		model := tinyGPT(rapid.IntRange(0, 5).Draw(t, "layers"))
		model.Tied = rapid.Bool().Draw(t, "tied")
		cfg := drawnKnobs(t, "", model.Layers+4)
		prefetch := cfg.Prefetch
		switch prefetch {
		case 0:
			prefetch = 1
		case fsdp.NoPrefetch:
			prefetch = 0
		}
		requireStepsAsPlanned(t, model, rapid.IntRange(1, 3).Draw(t, "world"), prefetch, cfg)
	})
}

// TestEvents checks the fields of an event.
func TestEvents(t *testing.T) {
	w := watch(fsdp.Config{Wrap: blocks})
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
