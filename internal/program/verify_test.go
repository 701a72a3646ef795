package program

import (
	"slices"
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
		require.Error(t, Verify(p.with(p.Ops, []Op{{Kind(8), Root, -1}})))
	})
}

// TestVerifyNoticesSwappedOperations swaps every two neighbours of random programs. It is noticed if their order matters,
// and not if it does not.
func TestVerifyNoticesSwappedOperations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := randomProgram(t)
		for i := 1; i < len(p.Ops); i++ {
			a, b := p.Ops[i-1], p.Ops[i]
			if a.Kind == Free && b.Kind == Gather {
				continue // matters if it leaves one group too many resident: see the next test
			}
			err := Verify(p.with(p.Ops[:i-1], []Op{b, a}, p.Ops[i+1:]))
			require.Equal(t, ordered(p, a, b), err != nil, "operation %d, %s, before %s: %v", i, p.Text(b), p.Text(a), err)
		}
	})
}

// ordered tells whether b, which follows a in a program, must come after it.
func ordered(p *Program, a, b Op) bool {
	if a.Group >= 0 && b.Group >= 0 { // parameters and gradients are different memory
		return a.Group == b.Group && (a.Kind >= Reduce) == (b.Kind >= Reduce)
	}
	if a.Call < 0 && b.Call < 0 {
		return false // the turn, and communication
	}
	if a.Kind == Turn || b.Kind == Turn {
		return true // the other one computes
	}
	if a.Call >= 0 && b.Call >= 0 {
		return computesAfter(p, a, b)
	}
	if b.Call >= 0 {
		a, b = b, a
	}
	switch b.Kind { // a computes, b communicates
	case Wait, Free:
		return slices.Contains(p.Model.groups(a.Call), b.Group)
	case Reduce:
		return a.Kind == Backward && slices.Contains(p.Model.groups(a.Call), b.Group)
	default: // a gather is issued long before its wait; a drain comes after all backwards of its group
		return false
	}
}

// computesAfter tells whether b must come after a because it reads what a computes, or adds to a gradient that a
// is the first to write.
func computesAfter(p *Program, a, b Op) bool {
	m := p.Model
	if a.Kind == Backward {
		for j, q := range m.Calls[a.Call].Params {
			if p.First[a.Call][j] && slices.Contains(m.Calls[b.Call].Params, q) {
				return true
			}
		}
		a, b = b, a // gradients flow the other way
	}
	return slices.ContainsFunc(m.Calls[b.Call].In, func(r Ref) bool { return r.Call == a.Call })
}

// TestVerifyBoundsResidency gathers ahead of a free, so that one group more is resident than the depth allows.
func TestVerifyBoundsResidency(t *testing.T) {
	p, err := Compile(chain(5), Options{Prefetch: 1})
	require.NoError(t, err)
	i := slices.Index(p.Ops, Op{Gather, 3, -1})
	require.Equal(t, Op{Free, 1, -1}, p.Ops[i-1])
	require.EqualError(t, Verify(p.with(p.Ops[:i-1], []Op{p.Ops[i], p.Ops[i-1]}, p.Ops[i+1:])),
		"program: operation 4, gather h.2: 3 groups are resident, at most 2 may be")
}

// TestVerifyMessages breaks one rule at a time.
func TestVerifyMessages(t *testing.T) {
	const (
		gather0 = iota // of a chain of two without prefetch
		wait0
		forward0
		free0
		gather1
		wait1
		forward1
		turn
		backward1
	)
	p, err := Compile(chain(2), Options{})
	require.NoError(t, err)
	require.Equal(t, Backward, p.Ops[backward1].Kind)
	ops := p.Ops
	for want, bad := range map[string]*Program{
		"operation 1, forward h.0: parameters of group h.0 are not there":                                                 p.with(ops[:wait0], ops[forward0:]),
		"operation 0, wait h.0: no gather in flight":                                                                      p.with(ops[wait0:]),
		"operation 1, gather h.0: already gathered":                                                                       p.with(ops[:wait0], ops[gather0:]),
		"operation 0, free h.0: not gathered and waited for":                                                              p.with(ops[free0:]),
		"operation 2, forward h.1: its input h.0 has not been computed":                                                   p.with(ops[gather1:]),
		"operation 7, backward h.1: backward without forward":                                                             p.with(ops[:turn], ops[backward1:]),
		"operation 3, forward h.0: forward after the turn":                                                                p.with(ops[:forward0], ops[turn:turn+1], ops[forward0:]),
		"operation 8, turn: the pass turned twice":                                                                        p.with(ops[:turn], ops[turn:turn+1], ops[turn:]),
		"operation 8, reduce h.1: no gradients, or reduced before":                                                        p.with(ops[:backward1], ops[backward1+2:]),
		"operation 8, drain h.0: no reduction in flight":                                                                  p.with(ops[:backward1], []Op{{Drain, 1, -1}}),
		"operation 0, kind(8) root: unknown operation":                                                                    p.with([]Op{{Kind(8), Root, -1}}),
		"program: call h.0 runs 1 times forward and 0 times backward, want 1 and 1":                                       p.with(ops[:backward1]),
		"program: the turn from forward to backward is missing, or in an evaluation":                                      {Model: p.Model, Options: Options{Eval: true}, Ops: slices.Concat(ops[:free0+1], ops[gather1:backward1], ops[backward1+1:backward1+2])},
		"program: group h.0 is left over at the end: {gathered:false full:false written:true reduced:true drained:false}": p.with(ops[:len(ops)-1]),
	} {
		require.ErrorContains(t, Verify(bad), want)
	}
	spoilt := *p
	spoilt.First = [][]bool{{true}, {false}}
	require.EqualError(t, Verify(&spoilt), "program: operation 8, backward h.1: field First is false for parameter h.1.w")
	spoilt.First = nil
	require.EqualError(t, Verify(&spoilt), "program: operation 8, backward h.1: field First does not fit the model")
}
