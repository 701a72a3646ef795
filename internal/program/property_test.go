package program

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestCompiledProgramsAreSound verifies the programs of random models and counts their operations.
func TestCompiledProgramsAreSound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := randomProgram(t)
		require.NoError(t, Verify(p))
		n, written := make(map[Op]int), make(map[int]bool)
		for _, op := range p.Ops {
			n[op]++
			for _, g := range writes(p, op) {
				written[g] = true
			}
		}
		for g, q := range p.Model.Groups {
			gathers := n[Op{Gather, g, -1}]
			require.Equal(t, gathers, n[Op{Wait, g, -1}])
			require.Equal(t, gathers, n[Op{Free, g, -1}])
			switch q.Hold {
			case Keep:
				require.LessOrEqual(t, gathers, 1, "what is kept is gathered once")
			case Always:
				require.Zero(t, gathers)
			}
			reductions := count(written[g] && !p.Options.NoSync)
			require.Equal(t, reductions, n[Op{Reduce, g, -1}])
			require.Equal(t, reductions, n[Op{Drain, g, -1}])
			require.Equal(t, reductions*count(q.Shards > 1 && q.Replicas > 1), n[Op{Sync, g, -1}])
			if q.Frozen {
				require.Zero(t, reductions)
			}
		}
		require.Equal(t, count(!p.Options.Eval), n[Op{Turn, -1, -1}])
	})
}

// TestNothingIsGatheredInVain looks at what computes between a gather and its free: something that
// reads the group, and nothing that does comes after the free before the next gather. A free
// follows the last reader at once, with only other frees between.
func TestNothingIsGatheredInVain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := randomProgram(t)
		for i, op := range p.Ops {
			if op.Kind == Free {
				j := i - 1
				for p.Ops[j].Kind == Free {
					j--
				}
				require.Contains(t, finds(p, p.Ops[j]), op.Group, "operation %d, %s", i, p.Text(op))
			}
		}
	})
}

// window returns, for computation k of a list, the groups that may be resident, from the
// definition: those that the computations up to prefetch stages later read, a stage being a run
// that waits for the same units; and those that are kept, from the first reader to the last.
func window(p *Program, list []Op, k int) (may []int) {
	stages, prefetch := stagesOf(p, list), p.Options.Prefetch
	for j, op := range list {
		for _, g := range finds(p, op) {
			near := j >= k && stages[j]-stages[k] <= prefetch
			kept := p.Model.Groups[g].Hold == Keep && j >= k && slices.ContainsFunc(list[:k], func(op Op) bool { return slices.Contains(finds(p, op), g) })
			if near || kept {
				may = append(may, g)
			}
		}
	}
	slices.Sort(may)
	return slices.Compact(may)
}

// stagesOf numbers the stages of a list of computations.
func stagesOf(p *Program, list []Op) []int {
	stages, n := make([]int, len(list)), -1
	var last map[string]bool
	seen := make(map[int]bool)
	for i, op := range list {
		units := make(map[string]bool)
		for _, g := range finds(p, op) {
			if q := p.Model.Groups[g]; q.Hold == Use || !seen[g] {
				units[q.unit()] = true
			}
			seen[g] = true
		}
		if len(units) > 0 && (last == nil || fmt.Sprint(units) != fmt.Sprint(last)) {
			n++
			last = units
		}
		stages[i] = n
		if len(units) == 0 {
			stages[i] = -1
		}
	}
	for i := len(list) - 1; i >= 0; i-- { // what waits for nothing belongs to the stage after it
		if next := n + 1; stages[i] < 0 {
			if i+1 < len(list) {
				next = stages[i+1]
			}
			stages[i] = next
		}
	}
	return stages
}

// TestResidency compares what is gathered at every computation with the window: it is the same if
// nothing limits it, and never more.
func TestResidency(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := randomProgram(t)
		var list []Op
		for _, op := range p.Ops {
			if op.Call >= 0 {
				list = append(list, op)
			}
		}
		resident, k := make(map[int]bool), 0
		for i, op := range p.Ops {
			switch op.Kind {
			case Gather:
				resident[op.Group] = true
			case Free:
				delete(resident, op.Group)
			case Forward, Backward:
				want := window(p, list, k)
				k++
				if p.Options.InFlight == 0 {
					require.Len(t, want, len(resident), "operation %d, %s", i, p.Text(op))
				}
				for g := range resident {
					require.Contains(t, want, g, "operation %d, %s", i, p.Text(op))
				}
			}
		}
	})
}

// TestInFlight counts the bytes under way: no more than the limit, or one collective that is more
// by itself.
func TestInFlight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := randomProgram(t)
		limit, bytes := p.Options.InFlight, 0
		for i, op := range p.Ops {
			switch op.Kind {
			case Gather, Reduce:
				own := p.Model.Groups[op.Group].Bytes
				bytes += own
				if limit > 0 {
					require.LessOrEqual(t, bytes, max(limit, own), "operation %d, %s", i, p.Text(op))
				}
			case Wait, Drain:
				bytes -= p.Model.Groups[op.Group].Bytes
			}
		}
		require.Zero(t, bytes)
	})
}

// TestKnobsChangeNoOrder compiles a model with any depth and limit: computations and reductions
// come in the same order, so no sum is taken in another one, and the limit does not change that of
// the gathers either.
func TestKnobsChangeNoOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := randomModel(t)
		o := randomOptions(t, m)
		order := func(o Options, kinds ...Kind) []Op {
			p, err := Compile(m, o)
			require.NoError(t, err)
			return slices.DeleteFunc(p.Ops, func(op Op) bool { return !slices.Contains(kinds, op.Kind) })
		}
		plain, unlimited := o, o
		plain.Prefetch, plain.InFlight, unlimited.InFlight = 0, 0, 0
		require.Equal(t, order(plain, Forward, Backward, Turn, Reduce), order(o, Forward, Backward, Turn, Reduce))
		require.Equal(t, order(plain, Reduce, Sync, Drain, Backward), order(unlimited, Reduce, Sync, Drain, Backward))
		require.Equal(t, order(plain, Reduce, Sync), order(unlimited, Reduce, Sync))
		require.Equal(t, order(unlimited, Gather), order(o, Gather))
	})
}

// TestCollectivesOverlap looks for a computation between the two ends of every collective of a
// chain: between gather and wait, and between reduce, sync and drain. There is none for the first
// gather and the last reduction, and for the sum over the replicas of the last but one.
func TestCollectivesOverlap(t *testing.T) {
	for _, replicas := range []int{1, 2} {
		p := compiled(t, chain(6).each(func(g *Group) { g.Replicas = replicas }), Options{Prefetch: 1})
		begun, waits := make(map[int]int), make(map[Kind][]int) // computations before the last collective of a group; groups
		computed := 0
		for _, op := range p.Ops {
			switch op.Kind {
			case Forward, Backward:
				computed++
				continue
			case Wait, Sync, Drain:
				if begun[op.Group] == computed {
					waits[op.Kind] = append(waits[op.Kind], op.Group)
				}
			}
			if op.Group >= 0 {
				begun[op.Group] = computed
			}
		}
		if replicas == 1 {
			require.Equal(t, map[Kind][]int{Wait: {0}, Drain: {0}}, waits)
		} else {
			require.Equal(t, map[Kind][]int{Wait: {0}, Sync: {0}, Drain: {1, 0}}, waits)
		}
	}
}

// TestFrozenUnitsAreFreedInBackward is the promise for frozen parameters: the unit is freed by the
// operation after its backward, before the next gather that prefetch depth p allows, that of the
// unit p+1 before it; never all at the end.
func TestFrozenUnitsAreFreedInBackward(t *testing.T) {
	const n = 8
	for p := range 4 {
		for frozen := 1; frozen < n; frozen++ {
			m := chain(n)
			m.Groups[frozen].Frozen = true
			ops := compiled(t, m, Options{Prefetch: p}).Ops
			back := slices.Index(ops, Op{Backward, -1, frozen})
			require.Positive(t, back)
			require.Equal(t, Op{Free, frozen, -1}, ops[back+1])
			if next := frozen - 1 - p; next >= 0 && next < n-1-(p+1)/2 {
				require.NotContains(t, ops[slices.Index(ops, Op{Turn, -1, -1}):back], Op{Gather, next, -1})
				require.Contains(t, ops[back:], Op{Gather, next, -1})
			}
			require.NotContains(t, ops, Op{Reduce, frozen, -1})
		}
	}
}

// TestFrozenPrefix leaves out the backward of everything before the first trained parameter, and
// its gathers.
func TestFrozenPrefix(t *testing.T) {
	const n = 6
	for k := range n + 1 {
		m := chain(n)
		for g := range k {
			m.Groups[g].Frozen = true
		}
		p := compiled(t, m, Options{Prefetch: 1})
		var back []int
		turn := slices.Index(p.Ops, Op{Turn, -1, -1})
		for _, op := range p.Ops {
			if op.Kind == Backward {
				back = append(back, op.Call)
			}
		}
		require.Len(t, back, n-k)
		require.NotContains(t, back, k-1)
		for _, op := range p.Ops[turn:] {
			require.GreaterOrEqual(t, max(op.Group, op.Call, k*count(op.Kind == Turn)), k, p.Text(op))
		}
	}
}

// TestUnreadParametersAreNotGathered gathers for a backward only what it reads, though all is
// reduced.
func TestUnreadParametersAreNotGathered(t *testing.T) {
	m := chain(4)
	p := compiled(t, m, Options{Reads: [][]bool{{false}, {true}, {false}, {false}}})
	gathers := slices.DeleteFunc(slices.Clone(p.Ops), func(op Op) bool { return op.Kind != Gather })
	require.Equal(t, []Op{{Gather, 0, -1}, {Gather, 1, -1}, {Gather, 2, -1}, {Gather, 3, -1}, {Gather, 1, -1}}, gathers)
	require.Equal(t, 4, p.Counts().Reduces)
}

// TestFirst finds exactly one first writer of every gradient that the pass writes.
func TestFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := randomProgram(t)
		first := p.Model.First()
		writers, firsts := make([]int, len(p.Model.Params)), make([]int, len(p.Model.Params))
		for _, op := range p.Ops {
			if op.Kind != Backward {
				continue
			}
			for j, q := range p.Model.Calls[op.Call].Params {
				if p.Model.Groups[p.Model.Params[q].Group].Frozen {
					require.False(t, first[op.Call][j])
					continue
				}
				if first[op.Call][j] {
					require.Zero(t, writers[q], "%s comes first", p.Text(op))
					firsts[q]++
				}
				writers[q]++
			}
		}
		for q := range writers {
			require.Equal(t, count(writers[q] > 0), firsts[q])
		}
	})
}
