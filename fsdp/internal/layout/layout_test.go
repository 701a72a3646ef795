package layout

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/program"
	"github.com/gofsdp/gofsdp/shard"
)

// drawn is a model with units, and how many ranks it is laid out over.
type drawn struct {
	model *Model
	units []Unit
	world int
	some  int // Options.ShardRanks
}

// draw draws parameters of one to forty elements, in up to three units of any kinds.
func draw(t *rapid.T) drawn {
	d := drawn{world: rapid.IntRange(1, 6).Draw(t, "world"), model: &Model{Index: map[string]int{}}}
	d.some = rapid.SampledFrom(divisors(d.world)).Draw(t, "shard ranks")
	kinds := []Kind{{}, {}, {Frozen: true}, {Ignored: true}, {Buffer: true, Frozen: true}, {Full: true}}
	path := &Path{Inputs: 1, Results: []program.Ref{{}}, Calls: []Call{{Name: "c", In: []program.Ref{{Call: program.Batch}}}}}
	for u := range rapid.IntRange(1, 3).Draw(t, "units") {
		unit := Unit{
			Name: fmt.Sprint("u", u), Cut: rapid.SampledFrom([]Cut{Whole, Some, All}).Draw(t, "cut"), Keep: rapid.Bool().Draw(t, "keep"),
		}
		for range rapid.IntRange(1, 4).Draw(t, "parameters") {
			p := len(d.model.Params)
			name := fmt.Sprint("p", p)
			d.model.Index[name] = p
			d.model.Params = append(d.model.Params, Param{Param: shard.Param{Name: name, Shape: []int{rapid.IntRange(1, 40).Draw(t, "elements")}}})
			unit.Members, unit.Kinds = append(unit.Members, p), append(unit.Kinds, rapid.SampledFrom(kinds).Draw(t, "kind"))
			path.Calls[0].Params = append(path.Calls[0].Params, p)
		}
		d.units = append(d.units, unit)
	}
	d.model.Paths = map[string]*Path{"": path}
	return d
}

func divisors(n int) (list []int) {
	for d := 1; d <= n; d++ {
		if n%d == 0 {
			list = append(list, d)
		}
	}
	return list
}

// layouts returns that of every rank.
func (d *drawn) layouts(t require.TestingT) []*Layout {
	list := make([]*Layout, d.world)
	for r := range list {
		var err error
		list[r], err = New(d.model, d.units, Options{
			World: d.world, Rank: r, ShardRanks: d.some, Compute: comm.Float32, Read: comm.Float32, Gather: comm.BFloat16, Reduce: comm.Float32,
		})
		require.NoError(t, err)
	}
	return list
}

// TestEverySetHasAll checks that every parameter has one home, and that the ranks of each set have
// each of its elements once, replicas the same ones: what a rank has by its own layout is what any
// other rank says that it has.
func TestEverySetHasAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := draw(t)
		all := d.layouts(t)
		for p := range d.model.Params {
			home := all[0].Home[p]
			require.Equal(t, p, all[0].Groups[home.Group].Params[home.Index])
			have := make(map[int]int) // elements by set
			for r, l := range all {
				require.Equal(t, home, l.Home[p])
				g := &l.Groups[home.Group]
				m := all[0].Groups[home.Group].Member(r)
				require.Equal(t, g.Ranks.Place, m.Place)
				span := g.Span(m.Place, home.Index)
				own := shard.Span{}
				for _, s := range g.Segments() {
					if s.Param == home.Index {
						own = shard.Span{Start: s.Offset, End: s.Offset + s.Len}
					}
				}
				require.Equal(t, own, span)
				have[m.Set] += span.End - span.Start
				require.Equal(t, d.world, max(1, g.Ranks.Shards)*len(sets(g, d.world)))
			}
			for set, n := range have {
				require.Equal(t, d.model.Params[p].Len(), n, "set %d of %s", set, d.model.Params[p].Name)
			}
		}
	})
}

// sets returns the sets of ranks that have a group.
func sets(g *Group, world int) map[int]bool {
	all := make(map[int]bool)
	for r := range world {
		all[g.Member(r).Set] = true
	}
	return all
}

// TestOwnGroups lays an expert out over groups of two of four ranks, in which the ranks have other
// numbers: each group has tensors of its own.
func TestOwnGroups(t *testing.T) {
	table := []Member{{0, 0, 1}, {0, 0, 0}, {2, 2, 0}, {2, 2, 1}}
	m := &Model{
		Params: []Param{{Param: shard.Param{Name: "w", Shape: []int{40}}}}, Index: map[string]int{"w": 0},
		Paths: map[string]*Path{"": {Inputs: 1, Results: []program.Ref{{}}, Calls: []Call{{Name: "c", In: []program.Ref{{Call: program.Batch}}, Params: []int{0}}}}},
	}
	for r, in := range table {
		unit := Unit{Name: "expert", Members: []int{0}, Kinds: []Kind{{}}, Cut: All, Own: &Own{Ranks: 2, Rank: in.Place, Leader: in.Leader, Table: table}}
		l, err := New(m, []Unit{unit}, Options{World: 4, Rank: r, Compute: comm.Float32, Read: comm.Float32, Gather: comm.Float32, Reduce: comm.Float32})
		require.NoError(t, err)
		g := &l.Groups[0]
		require.Equal(t, in, g.Member(r))
		require.Equal(t, []int{0, 2}, g.Owners())
		require.Equal(t, in.Leader, g.Owner(r))
		require.Equal(t, map[bool]string{true: "w", false: "w of rank 2"}[in.Leader == 0], g.Stream("w"))
		require.Equal(t, program.Use, g.Hold)
	}
}

// TestHold says how long parameters stay whole, by the places that they are cut over.
func TestHold(t *testing.T) {
	for _, c := range []struct {
		unit   Unit
		places int
		exact  bool
		want   program.Hold
	}{
		{Unit{Cut: All}, 2, true, program.Use},
		{Unit{Cut: All, Keep: true}, 2, true, program.Keep},
		{Unit{Cut: Some}, 2, false, program.Use},
		{Unit{Cut: Whole, Keep: true}, 1, true, program.Always},
		{Unit{Cut: Whole, Keep: true}, 1, false, program.Keep},
		{Unit{Cut: All}, 1, true, program.Always},
		{Unit{Cut: All}, 1, false, program.Use},
	} {
		require.Equal(t, c.want, c.unit.hold(c.places, c.exact), "%+v", c)
	}
}

// TestSizes says which bytes the planner counts where calls read parameters in bfloat16, and where
// a parameter lies in buffers of both types.
func TestSizes(t *testing.T) {
	m := &Model{
		Params: []Param{
			{Param: shard.Param{Name: "w", Shape: []int{20}}}, {Param: shard.Param{Name: "v", Shape: []int{20}}},
			{Param: shard.Param{Name: "gain", Shape: []int{32}}},
		},
		Paths: map[string]*Path{"": {Inputs: 1, Results: []program.Ref{{}}, Calls: []Call{{Name: "c", In: []program.Ref{{Call: program.Batch}}, Params: []int{0, 1, 2}}}}},
	}
	unit := Unit{Name: "u", Members: []int{0, 1, 2}, Kinds: []Kind{{}, {}, {Full: true}}, Cut: Whole}
	l, err := New(m, []Unit{unit}, Options{World: 2, Compute: comm.Float32, Read: comm.BFloat16, Gather: comm.BFloat16, Reduce: comm.Float32})
	require.NoError(t, err)
	g := &l.Groups[0]
	n := g.Flat.Len()
	require.Equal(t, []program.GroupSizes{
		{Params: 2 * n, Grads: 4 * n, ParamsWire: 2 * n, GradsWire: 4 * n, SumsWire: 4 * n}, {Params: 128, Grads: 128, ParamsWire: 128, GradsWire: 128, SumsWire: 128},
	}, l.Sizes())
	require.Equal(t, []program.Hold{program.Use, program.Always}, []program.Hold{g.Hold, l.Groups[1].Hold}, "a copy that is rounded is another")
	for size := 2; size <= 4; size += 2 {
		full := make([]byte, n*size)
		v := g.Param(full, 1)
		v[0] = 1
		require.Equal(t, []byte{1}, full[g.Flat.Offset(1)*size:][:1])
		require.Equal(t, []int{20 * size, 20 * size}, []int{len(v), cap(v)})
	}
}
