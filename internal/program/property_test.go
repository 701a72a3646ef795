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

// freedInTime checks the promise about parameters in backward, as it is written: a group is freed
// by the operations after its last reader, before anything else happens, and none is left for the
// end. Of the units that are not kept, in the order of backward, i is freed before i+1+Prefetch is
// gathered: in a chain with a prefetch of 1, unit i before unit i-2.
func freedInTime(p *Program) error {
	back := p.Ops[slices.Index(p.Ops, Op{Turn, -1, -1}):]
	read, freed := make(map[int]int), make(map[int]int) // by group: when last
	gathered := make(map[string]int)                    // by unit: when first
	var units []string
	for i, op := range back {
		for _, g := range finds(p, op) {
			q := &p.Model.Groups[g]
			read[g] = i
			if q.Hold == Use && (units == nil || units[len(units)-1] != q.unit()) {
				units = append(units, q.unit())
			}
		}
		switch op.Kind {
		case Free:
			freed[op.Group] = i
		case Gather:
			if unit := p.Model.Groups[op.Group].unit(); gathered[unit] == 0 {
				gathered[unit] = i
			}
		}
	}
	if len(freed) != len(read) {
		return fmt.Errorf("backward reads %d groups and frees %d", len(read), len(freed))
	}
	for g, i := range read {
		q := &p.Model.Groups[g]
		if between := back[i+1 : max(i+1, freed[g])]; slices.ContainsFunc(between, func(op Op) bool { return op.Kind != Free }) {
			return fmt.Errorf("%s is freed after %s, though %s was the last to read it", q.Name, p.Text(back[freed[g]-1]), p.Text(back[i]))
		}
		if k := slices.Index(units, q.unit()) + 1 + p.Options.Prefetch; q.Hold == Use && k < len(units) {
			if at, ok := gathered[units[k]]; ok && at < freed[g] {
				return fmt.Errorf("%s is gathered before %s is freed", units[k], q.Name)
			}
		}
	}
	return nil
}

// late returns p as a scheduler would have it that frees what is frozen at the end of backward.
// What is there is not gathered again. It returns nil if no computation is left when that is freed
// in p.
func late(p *Program) *Program {
	turn := slices.Index(p.Ops, Op{Turn, -1, -1})
	ops, frees, differs := slices.Clone(p.Ops[:turn]), []Op(nil), false
	for _, op := range p.Ops[turn:] {
		free := Op{Free, op.Group, -1}
		switch {
		case op.Group < 0 || !p.Model.Groups[op.Group].Frozen:
			ops = append(ops, op)
			differs = differs || op.Call >= 0 && frees != nil
		case slices.Contains(frees, free): // a gather, its wait, or another free
		case op == free:
			frees = append(frees, op)
		default:
			ops = append(ops, op)
		}
	}
	if !differs {
		return nil
	}
	return p.with(ops, frees)
}

// freezing returns a chain of n units within a root, of which those in a set of bits are frozen,
// the root by bit 0. With adapters each frozen unit has parameters that are trained, too.
func freezing(n, frozen int, adapters bool) *Model {
	m := rooted(n)
	for g := range m.Groups {
		if q := &m.Groups[g]; frozen>>g&1 == 1 {
			q.Frozen = true
			if adapters {
				m.Params = append(m.Params, Param{q.Name + ".a", len(m.Groups)})
				m.Calls[g].Params = append(m.Calls[g].Params, len(m.Params)-1)
				m.Groups = append(m.Groups, Group{Name: q.Name + ".a", Unit: q.Name, Hold: q.Hold, Bytes: 10})
			}
		}
	}
	return m
}

// TestFrozenUnitsAreFreedInBackward holds the promise about frozen parameters for every choice of
// them, under every strategy, inside NoSync and after it. Under those that gather nothing in
// backward a unit is freed there all the same, once backward has read it. A schedule that frees
// what is frozen at the end of backward is refused, by the check and by Verify.
func TestFrozenUnitsAreFreedInBackward(t *testing.T) {
	const n = 4
	mixed := func(g *Group) {
		if hold(Use, 2, 2)(g); g.Name > "h.1" {
			g.Hold = Keep
		}
	}
	for name, strategy := range map[string]func(g *Group){
		"FullShard": hold(Use, 4, 1), "ShardGradOp": hold(Keep, 4, 1), "NoShard": hold(Always, 1, 4),
		"HybridShard": hold(Use, 2, 2), "HybridGradOp": hold(Keep, 2, 2), "some units kept": mixed,
	} {
		for _, o := range []Options{{}, {NoSync: true}, {NoSync: true, Pending: true}, {Pending: true}, {InFlight: 100}} {
			t.Run(fmt.Sprintf("%s/%+v", name, o), func(t *testing.T) {
				refused := 0
				for i := range 8 << (n + 1) {
					o.Prefetch = i >> 1 & 3
					p := compiled(t, freezing(n, i>>3, i&1 == 1).each(strategy), o)
					require.NoError(t, freedInTime(p), i)
					if spoilt := late(p); spoilt != nil {
						refused++
						require.Error(t, freedInTime(spoilt), i)
						require.Error(t, Verify(spoilt), i)
					}
				}
				require.Equal(t, name != "NoShard", refused > 0)
			})
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
