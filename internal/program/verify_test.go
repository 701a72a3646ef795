package program

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// with returns p with other operations.
func (p Program) with(ops ...[]Op) *Program {
	p.Ops = slices.Concat(ops...)
	return &p
}

// TestVerifyNoticesDroppedOperations drops and doubles every operation of random programs.
func TestVerifyNoticesDroppedOperations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := randomProgram(t)
		for i, op := range p.Ops {
			require.Error(t, Verify(p.with(p.Ops[:i], p.Ops[i+1:])), "without operation %d, %s", i, p.Text(op))
			require.Error(t, Verify(p.with(p.Ops[:i], p.Ops[i:i+1], p.Ops[i:])), "with operation %d twice, %s", i, p.Text(op))
		}
		require.Error(t, Verify(p.with(p.Ops, []Op{{Kind(9), 0, -1}})))
	})
}

// TestVerifyNoticesMovedOperations moves one operation of a random program to another place. It is
// noticed, unless the operation may overtake all those between, for one of the reasons that
// harmless lists.
func TestVerifyNoticesMovedOperations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := randomProgram(t)
		from, to := rapid.IntRange(0, len(p.Ops)-1).Draw(t, "from"), rapid.IntRange(0, len(p.Ops)-1).Draw(t, "to")
		op := p.Ops[from]
		moved := slices.Insert(slices.Delete(slices.Clone(p.Ops), from, from+1), to, op)
		if Verify(p.with(moved)) != nil {
			return
		}
		for _, over := range p.Ops[min(from, to) : max(from, to)+1] {
			if over != op {
				a, b := op, over
				if to < from {
					a, b = over, op
				}
				require.NotEmpty(t, harmless(p, a, b), "%s moves from %d to %d, over %s", p.Text(op), from, to, p.Text(over))
			}
		}
	})
}

// TestVerifyNoticesSwappedOperations swaps every two neighbours of random programs. It is noticed
// if their order matters; if not, it is only refused where it leaves more in memory or in flight
// than there may be.
func TestVerifyNoticesSwappedOperations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := randomProgram(t)
		for i := 1; i < len(p.Ops); i++ {
			a, b := p.Ops[i-1], p.Ops[i]
			reason := harmless(p, a, b)
			err := Verify(p.with(p.Ops[:i-1], []Op{b, a}, p.Ops[i+1:]))
			switch {
			case reason == "":
				require.Error(t, err, "operation %d, %s, before %s", i, p.Text(b), p.Text(a))
			case err != nil:
				require.Regexp(t, "the limit is [0-9]+$|after their last use$", err, "%s before %s, though %s", p.Text(b), p.Text(a), reason)
			}
		}
	})
}

// harmless says why b, which follows a in a program, may also come before it, as far as the two are
// concerned; it returns nothing if it may not. Counted limits, of units in memory and bytes in
// flight, are another matter.
func harmless(p *Program, a, b Op) string {
	computes := func(op Op) bool { return op.Call >= 0 }
	switch {
	case a.Group >= 0 && b.Group >= 0:
		switch {
		case a.Group != b.Group:
			return "they are about different groups"
		case (a.Kind >= Reduce) != (b.Kind >= Reduce):
			return "parameters and gradients are different memory"
		}
	case computes(a) && computes(b):
		if !computesAfter(p, a, b) {
			return "neither computes what the other reads, or writes a gradient first that the other adds to"
		}
	case !computes(a) && !computes(b):
		return "the turn tells calls apart, not collectives"
	case a.Kind == Turn || b.Kind == Turn:
		return ""
	case computes(a):
		return harmlessToCall(p, a, b)
	default:
		return harmlessToCall(p, b, a)
	}
	return ""
}

// harmlessToCall says why the operation of a group may stand on either side of a computation.
func harmlessToCall(p *Program, call, op Op) string {
	switch {
	case op.Kind == Drain || op.Kind == Sync:
		return "the reduction has begun, so that the gradient was complete"
	case op.Kind == Reduce && !slices.Contains(writes(p, call), op.Group):
		return "the call writes another gradient"
	case op.Kind != Reduce && !slices.Contains(finds(p, call), op.Group):
		return "the call reads other parameters"
	case op.Kind == Gather:
		return "the call reads the parameters of another gather, which is waited for and freed by itself"
	}
	return ""
}

// computesAfter tells whether b must come after a because it reads what a computes, or adds to a
// gradient that a is the first to write.
func computesAfter(p *Program, a, b Op) bool {
	m, first := p.Model, p.Model.First()
	if a.Kind != b.Kind {
		return true // the turn is between them
	}
	if a.Kind == Backward {
		for j, q := range m.Calls[a.Call].Params {
			if first[a.Call][j] && slices.Contains(m.Calls[b.Call].Params, q) {
				return true
			}
		}
		a, b = b, a // gradients flow the other way
	}
	return slices.ContainsFunc(m.Calls[b.Call].In, func(r Ref) bool { return r.Call == a.Call })
}

// TestVerifyNoticesLateFrees moves all frees to the end, with and without the gathers that this
// makes needless, for any depth and hold: parameters that no call needs any more do not wait for
// the end of the pass.
func TestVerifyNoticesLateFrees(t *testing.T) {
	for n := 3; n <= 8; n++ {
		for _, prefetch := range []int{0, 1, 2, 4, math.MaxInt} {
			for _, hold := range []Hold{Use, Keep} {
				p := compiled(t, chain(n).each(func(g *Group) { g.Hold = hold }), Options{Prefetch: prefetch})
				var ops, once, frees []Op
				gathered := make(map[Op]bool)
				for _, op := range p.Ops {
					if op.Kind == Free {
						frees = append(frees, op)
						continue
					}
					ops = append(ops, op)
					if op.Kind == Gather || op.Kind == Wait {
						if gathered[op] {
							continue
						}
						gathered[op] = true
					}
					once = append(once, op)
				}
				require.Error(t, Verify(p.with(ops, frees)))
				slices.SortFunc(frees, func(a, b Op) int { return a.Group - b.Group })
				err := Verify(p.with(once, slices.Compact(frees)))
				if hold == Use && prefetch < n-1 {
					require.ErrorContains(t, err, fmt.Sprintf("%d units are resident, the limit is %d", prefetch+2, prefetch+1))
				} else {
					require.ErrorContains(t, err, "are still gathered after their last use")
				}
			}
		}
	}
}

// TestVerifyBoundsResidency gathers ahead of a free, so that one group more is resident than the
// depth allows; groups that are kept, and those of one unit, do not count.
func TestVerifyBoundsResidency(t *testing.T) {
	p := compiled(t, chain(5), Options{Prefetch: 1})
	i := slices.Index(p.Ops, Op{Gather, 2, -1})
	require.Equal(t, Op{Free, 0, -1}, p.Ops[i-1])
	early := [][]Op{p.Ops[:i-1], {p.Ops[i], p.Ops[i-1]}, p.Ops[i+1:]}
	require.EqualError(t, Verify(p.with(early...)), "program: operation 4, gather h.2: 3 units are resident, the limit is 2")
	p.Model.Groups[1].Unit, p.Model.Groups[2].Unit = "u", "u"
	require.NoError(t, Verify(p.with(early...)))
	p.Model.Groups[1].Unit, p.Model.Groups[2].Unit, p.Model.Groups[1].Hold = "", "", Keep
	require.NoError(t, Verify(p.with(early...)))

	wide := rooted(3)
	wide.Calls[1].Params = []int{0, 1} // a kept group does not make the call wide
	p = compiled(t, wide, Options{})
	i = slices.Index(p.Ops, Op{Gather, 2, -1})
	require.Equal(t, Op{Free, 1, -1}, p.Ops[i-1])
	require.ErrorContains(t, Verify(p.with(p.Ops[:i-1], []Op{p.Ops[i], p.Ops[i-1]}, p.Ops[i+1:])), "2 units are resident, the limit is 1")
}

// TestVerifyBoundsFlight puts a gather before the wait that makes room for it.
func TestVerifyBoundsFlight(t *testing.T) {
	p := compiled(t, chain(3), Options{Prefetch: 2, InFlight: 100})
	i := slices.Index(p.Ops, Op{Gather, 1, -1})
	wait := slices.Index(p.Ops, Op{Wait, 0, -1})
	require.Less(t, wait, i)
	require.EqualError(t, Verify(p.with(p.Ops[:wait], p.Ops[i:i+1], p.Ops[wait:i], p.Ops[i+1:])),
		"program: operation 1, gather h.1: 200 bytes are in flight, the limit is 100")
}

// TestVerifyMessages breaks one rule at a time.
func TestVerifyMessages(t *testing.T) {
	const (
		gather0 = iota // of a chain of two without prefetch, whose shards have replicas
		wait0
		forward0
		free0
		gather1
		wait1
		forward1
		turn
		backward1
		free1
		reduce1
	)
	p := compiled(t, chain(2).each(func(g *Group) { g.Replicas = 2 }), Options{})
	require.Equal(t, Reduce, p.Ops[reduce1].Kind)
	ops := p.Ops
	plain := compiled(t, chain(2), Options{})
	silent := compiled(t, chain(2), Options{NoSync: true})
	eval := compiled(t, chain(2), Options{Eval: true})
	frozen := chain(2)
	frozen.Groups[0].Frozen, frozen.Groups[0].Hold = true, Always
	half := compiled(t, frozen, Options{})
	full := compiled(t, chain(2).each(func(g *Group) { g.Hold = Always }), Options{})
	for want, bad := range map[string]*Program{
		"operation 1, forward h.0: parameters of group h.0 are not gathered":                                p.with(ops[:wait0], ops[forward0:]),
		"operation 0, wait h.0: the group has no gather in flight":                                          p.with(ops[wait0:]),
		"operation 1, gather h.0: the group is already gathered":                                            p.with(ops[:wait0], ops[gather0:]),
		"operation 0, free h.0: the group is not gathered, or no call has read it since its gather":         p.with(ops[free0:]),
		"operation 2, free h.0: the group is not gathered, or no call has read it since its gather":         p.with(ops[:forward0], ops[free0:]),
		"operation 2, forward h.1: its input h.0 has not been computed":                                     p.with(ops[gather1:]),
		"operation 7, backward h.1: backward without forward":                                               p.with(ops[:turn], ops[backward1:]),
		"operation 3, forward h.0: forward after the turn":                                                  p.with(ops[:forward0], ops[turn:turn+1], ops[forward0:]),
		"operation 8, turn: the pass has turned from forward to backward already":                           p.with(ops[:turn], ops[turn:turn+1], ops[turn:]),
		"operation 8, reduce h.1: the group has no gradients to reduce, or has reduced them already":        p.with(ops[:backward1], ops[reduce1:]),
		"operation 8, sync h.0: the group has no reduction in flight, or no replicas":                       p.with(ops[:backward1], []Op{{Sync, 0, -1}}),
		"operation 11, sync h.1: the group has no reduction in flight, or no replicas":                      plain.with(plain.Ops[:reduce1+1], []Op{{Sync, 1, -1}}),
		"operation 8, drain h.0: the group has no reduction in flight":                                      p.with(ops[:backward1], []Op{{Drain, 0, -1}}),
		"operation 11, drain h.1: the group has no reduction in flight":                                     p.with(ops[:reduce1+1], []Op{{Drain, 1, -1}}),
		"operation 10, reduce h.1: the group has no gradients to reduce, or has reduced them already":       silent.with(silent.Ops[:reduce1], ops[reduce1:]),
		"operation 0, kind(9) h.0: unknown operation":                                                       p.with([]Op{{Kind(9), 0, -1}}),
		"program: call h.0 runs 1 times forward and 0 times backward, want 1 and 1":                         p.with(ops[:backward1]),
		"program: the turn from forward to backward is missing, or an evaluation has one":                   eval.with(eval.Ops, []Op{{Turn, -1, -1}}),
		"gradients of group h.1 are already reduced":                                                        p.with(ops[:free1], ops[reduce1:reduce1+1], ops[backward1:]),
		"backward h.0: this backward trains no parameter":                                                   half.with(half.Ops, []Op{{Backward, -1, 0}}),
		"backward h.0: h.1, which reads its output, has not run backward":                                   full.with(full.Ops[:3], []Op{{Backward, -1, 0}}),
		"program: group h.0 is not freed or not reduced at the end: {gathered:false full:false used:false ": p.with(ops[:len(ops)-1]),
	} {
		require.ErrorContains(t, Verify(bad), want)
	}
}

// TestVerifyFirstWriter swaps two calls that share a parameter and are otherwise independent: the
// sum of its gradients would start from the wrong one.
func TestVerifyFirstWriter(t *testing.T) {
	m := chain(3)
	m.Calls[1] = Call{"h.1", []Ref{{Batch, 0}}, []int{0}}
	m.Calls[2].In = []Ref{{0, 0}, {1, 0}}
	p := compiled(t, m, Options{})
	i, j := slices.Index(p.Ops, Op{Backward, -1, 1}), slices.Index(p.Ops, Op{Backward, -1, 0})
	swapped := slices.Clone(p.Ops)
	swapped[i], swapped[j] = swapped[j], swapped[i]
	err := Verify(p.with(swapped))
	require.ErrorContains(t, err, "the wrong call is marked as the first to write the gradient of h.0.w")
	require.True(t, strings.HasPrefix(err.Error(), "program: operation "))
}
