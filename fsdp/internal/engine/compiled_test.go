package engine

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/internal/program"
	"github.com/gofsdp/gofsdp/shard"
)

// chain returns the layout of two calls over two ranks, each a unit of one parameter.
func chain(t *testing.T) *layout.Layout {
	param := func(name string) layout.Param {
		return layout.Param{Param: shard.Param{Name: name, Shape: []int{3}}}
	}
	m := &layout.Model{
		Params: []layout.Param{param("a.w"), param("b.w")}, Index: map[string]int{"a.w": 0, "b.w": 1},
		Paths: map[string]*layout.Path{"": {
			Inputs: 1, Results: []program.Ref{{Call: 1}},
			Calls: []layout.Call{
				{Name: "a", In: []program.Ref{{Call: program.Batch}}, Params: []int{0}},
				{Name: "b", Module: 1, In: []program.Ref{{Call: 0}}, Params: []int{1}},
			},
		}},
	}
	unit := func(name string, param int) layout.Unit {
		return layout.Unit{Name: name, Members: []int{param}, Kinds: []layout.Kind{{}}, Cut: layout.All}
	}
	l, err := layout.New(m, []layout.Unit{unit("a", 0), unit("b", 1)}, layout.Options{
		World: 2, Compute: comm.Float32, Store: comm.Float32, Read: comm.Float32, Gather: comm.Float32, Reduce: comm.Float32,
	})
	require.NoError(t, err)
	return l
}

// TestEveryProgramIsVerified compiles what training comes to: schedules with and without NoSync,
// with gradients pending, and with what the calls turn out to read. None runs that Verify refuses.
func TestEveryProgramIsVerified(t *testing.T) {
	defer func(before func(*program.Program) error) { verify = before }(verify)
	wrong := errors.New("wrong")
	for _, v := range []Variant{{}, {NoSync: true}, {Pending: true}, {NoSync: true, Pending: true}, {Eval: true}} {
		for _, reads := range [][][]bool{nil, {{false}, {true}}} {
			if v.Eval && reads != nil {
				continue
			}
			e, l, seen := &Engine{}, chain(t), 0
			verify = func(p *program.Program) error { seen++; return program.Verify(p) }
			programs := make(Programs)
			for range 2 {
				_, err := e.program(l, programs, v, reads)
				require.NoError(t, err)
			}
			require.Equal(t, 1, seen, "%+v", v)
			verify = func(*program.Program) error { return wrong }
			_, err := e.program(l, make(Programs), v, reads)
			require.ErrorIs(t, err, wrong)
		}
	}
}

// TestPassesAreDropped keeps as many of the passes used last as take no more than the limit.
func TestPassesAreDropped(t *testing.T) {
	for limit, want := range map[int]int{0: 1, 10: 1, 12: 1, 13: 2, 14: 2, 15: 3, 1000: 4} {
		passes := []*Compiled{{bytes: 9, units: 3}, {bytes: 1}, {units: 2}, {bytes: 20}}
		got := fitting(slices.Clone(passes), limit)
		require.Equal(t, passes[:want], got, "limit %d", limit)
		for _, rest := range got[want:4] {
			require.Nil(t, rest)
		}
	}
}

// TestOpErrorText says where a pass has failed, also where no call and no group is.
func TestOpErrorText(t *testing.T) {
	at := Place{Pass: 771, Program: &program.Program{}, Op: program.Op{Kind: program.Turn, Group: -1, Call: -1}}
	require.EqualError(t, &OpError{at, errors.New("time is up")}, "pass 771, between forward and backward: time is up")
	at.Op.Kind = program.Drain
	require.EqualError(t, &OpError{at, errors.New("time is up")}, "pass 771: drain: time is up")
}
