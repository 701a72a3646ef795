package program

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// A pass is a chain of n units within a root, with a strategy, and the collectives that the package
// comment promises.
type pass struct {
	name   string
	spoil  func(g *Group)
	frozen int // units from the first on
	root   bool
	o      Options
	want   func(n, p, k int) Counts
}

// again is the number of n units that are gathered a second time, in backward.
func again(n, p int) int { return max(0, n-1-(p+1)/2) }

var passes = []pass{
	{name: "ZeRO-3", spoil: hold(Use, 4, 1), want: func(n, p, _ int) Counts { return Counts{1 + n + again(n, p), n + 1, 0} }},
	{name: "ZeRO-2", spoil: hold(Keep, 4, 1), want: func(n, _, _ int) Counts { return Counts{1 + n, n + 1, 0} }},
	{name: "DDP", spoil: hold(Always, 1, 4), want: func(n, _, _ int) Counts { return Counts{0, 0, n + 1} }},
	{name: "hybrid", spoil: hold(Use, 4, 3), want: func(n, p, _ int) Counts { return Counts{1 + n + again(n, p), n + 1, n + 1} }},
	{name: "hybrid ZeRO-2", spoil: hold(Keep, 4, 3), want: func(n, _, _ int) Counts { return Counts{1 + n, n + 1, n + 1} }},
	{name: "frozen units", spoil: hold(Use, 4, 3), frozen: 2, want: func(n, p, k int) Counts {
		return Counts{1 + n + again(n, p), n + 1 - k, n + 1 - k}
	}},
	{name: "frozen prefix", spoil: hold(Use, 4, 3), frozen: 2, root: true, want: func(n, p, k int) Counts {
		return Counts{1 + n + again(n-k, p), n - k, n - k}
	}},
	{name: "evaluation", spoil: hold(Use, 4, 3), o: Options{Eval: true}, want: func(n, _, _ int) Counts { return Counts{1 + n, 0, 0} }},
	{name: "NoSync", spoil: hold(Use, 4, 3), o: Options{NoSync: true}, want: func(n, p, _ int) Counts { return Counts{1 + n + again(n, p), 0, 0} }},
	{name: "one rank", spoil: hold(Use, 1, 1), want: func(_, _, _ int) Counts { return Counts{} }},
}

// hold gives groups a mesh, and units a hold; roots are kept if their parameters are cut at all.
func hold(h Hold, shards, replicas int) func(g *Group) {
	return func(g *Group) {
		g.Shards, g.Replicas = shards, replicas
		if g.Hold == Use || h == Always {
			g.Hold = h
		}
	}
}

// TestCounts holds the table of the package comment against real programs, and their traffic
// against that of so many collectives.
func TestCounts(t *testing.T) {
	for _, q := range passes {
		for n := 1; n <= 8; n++ {
			for depth := range 5 {
				m := rooted(n).each(q.spoil)
				k := min(q.frozen, n)
				for g := range m.Groups {
					m.Groups[g].Frozen = g == 0 && q.root || g > 0 && g <= k
				}
				o := q.o
				o.Prefetch = depth
				t.Run(fmt.Sprintf("%s/n=%d/p=%d", q.name, n, depth), func(t *testing.T) {
					p := compiled(t, m, o)
					require.Equal(t, q.want(n, depth, k), p.Counts())
					requireTraffic(t, p)
				})
			}
		}
	}
}

// requireTraffic requires that a rank sends what the collectives of a program send, if all groups
// are alike.
func requireTraffic(t *testing.T, p *Program) {
	const params, grads = 2400, 1200 // bytes that travel
	s := &Sizes{}
	for range p.Model.Groups {
		s.Group = append(s.Group, GroupSizes{Params: 4800, Grads: 4800, ParamsWire: params, GradsWire: grads, SumsWire: grads})
	}
	for range p.Model.Calls {
		s.Call = append(s.Call, CallSizes{Out: []int{8}, GradIn: []int{0}, KeepIn: []bool{false}, KeepOut: []bool{false}})
	}
	plan, err := NewPlan(p, s)
	require.NoError(t, err)
	n, S, R := p.Counts(), p.Model.Groups[0].Shards, p.Model.Groups[0].Replicas
	require.Equal(t, n.Gathers*params*(S-1)/S+n.Reduces*grads*(S-1)/S+n.Syncs*2*(grads/S)*(R-1)/R, plan.Traffic())
}

// TestRingTraffic is the rule of thumb: of a model of M bytes over N ranks, ZeRO-2 sends as much as
// data-parallel training, 2·M·(N-1)/N, and ZeRO-3 half as much again, but for what is not gathered
// twice.
func TestRingTraffic(t *testing.T) {
	const n, M, N = 20, 21 * 400, 4
	traffic := func(spoil func(g *Group)) int {
		p := compiled(t, rooted(n).each(spoil), Options{})
		s := &Sizes{Call: make([]CallSizes, n+2)}
		for c := range s.Call {
			s.Call[c] = CallSizes{Out: []int{8}, GradIn: []int{0}, KeepIn: []bool{false}, KeepOut: []bool{false}}
		}
		for range p.Model.Groups {
			s.Group = append(s.Group, GroupSizes{Params: 400, Grads: 400, ParamsWire: 400, GradsWire: 400, SumsWire: 400})
		}
		plan, err := NewPlan(p, s)
		require.NoError(t, err)
		return plan.Traffic()
	}
	ddp := traffic(hold(Always, 1, N))
	require.Equal(t, 2*M*(N-1)/N, ddp)
	require.Equal(t, ddp, traffic(hold(Keep, N, 1)))
	require.Equal(t, 3*ddp/2-2*400*(N-1)/N, traffic(hold(Use, N, 1)), "neither the root nor the last unit is gathered twice")
}

// TestZeroMesh sends nothing if a group says nothing of ranks: it is whole, and the only one.
func TestZeroMesh(t *testing.T) {
	p := compiled(t, chain(1).each(hold(Use, 0, 0)), Options{})
	require.Zero(t, p.Counts())
	plan, err := NewPlan(p, &Sizes{Group: []GroupSizes{{Params: 8, Grads: 8, ParamsWire: 8, GradsWire: 8, SumsWire: 8}}, Call: []CallSizes{{Out: []int{8}, GradIn: []int{0}, KeepIn: []bool{false}, KeepOut: []bool{false}}}})
	require.NoError(t, err)
	require.Zero(t, plan.Traffic())
}
