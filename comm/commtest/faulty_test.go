package commtest_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/commtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A wrapper that injects nothing must be a group like any other.
func TestFaultlessContract(t *testing.T) {
	commtest.TestGroup(t, func(_ testing.TB, n int) []comm.Group {
		gs := comm.Local(n)
		for r, g := range gs {
			gs[r] = commtest.Faulty(g, func(commtest.Call) commtest.Fault { return commtest.Fault{} })
		}
		return gs
	})
}

// pair runs a program of two all-reduces, "a" and "b", on two ranks, the second
// of which has faults, and returns both ranks' error.
func pair(decide func(commtest.Call) commtest.Fault) [2]error {
	gs := comm.Local(2)
	gs[1] = commtest.Faulty(gs[1], decide)
	program := func(g comm.Group) error {
		a := g.AllReduce(comm.Of([]float32{1}).Named("a"), comm.Sum)
		b := g.AllReduce(comm.Of([]float32{2}).Named("b"), comm.Sum)
		return errors.Join(b.Wait(context.Background()), a.Wait(context.Background()))
	}
	other := make(chan error)
	go func() { other <- program(gs[1]) }()
	first := program(gs[0])
	return [2]error{first, <-other}
}

func TestFaultyFails(t *testing.T) {
	cause := errors.New("cable cut")
	var calls []commtest.Call
	for _, err := range pair(func(c commtest.Call) commtest.Fault {
		calls = append(calls, c)
		if c.Label == "b" {
			return commtest.Fault{Err: cause}
		}
		return commtest.Fault{}
	}) {
		require.ErrorIs(t, err, cause)
	}
	require.Equal(t, []commtest.Call{
		{Seq: 1, Kind: commtest.AllReduce, Label: "a"},
		{Seq: 2, Kind: commtest.AllReduce, Label: "b"},
	}, calls)
}

func TestFaultyReorders(t *testing.T) {
	for _, err := range pair(func(c commtest.Call) commtest.Fault {
		return commtest.Fault{Late: c.Label == "a"}
	}) {
		var me *comm.MismatchError
		require.ErrorAs(t, err, &me)
		require.Contains(t, err.Error(), `, all-reduce float32[1] sum: rank 0 gave "a", rank 1 gave "b"`)
	}
}

// Held back with nothing to overtake it, an operation is only late.
func TestFaultyLate(t *testing.T) {
	for _, err := range pair(func(c commtest.Call) commtest.Fault {
		return commtest.Fault{Late: c.Label == "b"}
	}) {
		require.NoError(t, err)
	}
}
