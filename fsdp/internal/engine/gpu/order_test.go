package gpu

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// drawOperations draws operations on a small memory.
func drawOperations(t *rapid.T) []operation {
	ops := make([]operation, rapid.IntRange(0, 40).Draw(t, "operations"))
	for i := range ops {
		ops[i] = operation{lane: lane(rapid.IntRange(0, int(lanes)-1).Draw(t, "lane")), name: fmt.Sprint("operation ", i)}
		for range rapid.IntRange(0, 3).Draw(t, "touches") {
			from := rapid.IntRange(0, 20).Draw(t, "from")
			ops[i].touches = append(ops[i].touches, touch{
				space: space(rapid.IntRange(0, 2).Draw(t, "space")), from: from, to: from + rapid.IntRange(0, 5).Draw(t, "bytes"),
				write: rapid.Bool().Draw(t, "write"), what: "memory",
			})
		}
	}
	return ops
}

// TestOrder: the waits are enough, and each of them is needed.
func TestOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ops := drawOperations(t)
		events, _ := order(ops)
		require.NoError(t, check(ops, events))
		waited := make(map[int]bool)
		for i := range ops {
			for k, after := range ops[i].after {
				waited[after] = true
				less := slices.Clone(ops)
				less[i].after = slices.Delete(slices.Clone(less[i].after), k, k+1)
				require.ErrorContains(t, check(less, events), "neither waits for the other", "without the wait of %s", ops[i].name)
			}
		}
		require.Len(t, waited, events)
	})
}

// TestCheckAgreesWithReach compares the clocks with what can be reached in the graph of the streams
// and any waits.
func TestCheckAgreesWithReach(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ops := drawOperations(t)
		events, _ := order(ops)
		for i := range ops { // any other waits
			ops[i].after = slices.DeleteFunc(ops[i].after, func(int) bool { return rapid.Bool().Draw(t, "left out") })
		}
		before := make([][]bool, len(ops)) // whether j is over when i begins
		for i := range ops {
			before[i] = make([]bool, len(ops))
			for j := range i {
				if ops[j].lane == ops[i].lane || slices.Contains(ops[i].after, j) {
					before[i][j] = true
					for k := range j {
						before[i][k] = before[i][k] || before[j][k]
					}
				}
			}
		}
		ordered := true
		for i := range ops {
			for j := range i {
				ordered = ordered && (before[i][j] || ops[i].conflict(&ops[j]) == nil)
			}
		}
		if ordered {
			require.NoError(t, check(ops, events))
		} else {
			require.Error(t, check(ops, events))
		}
	})
}

// TestCheckRefuses says what is said of a script that makes no sense.
func TestCheckRefuses(t *testing.T) {
	a := touch{space: slab, from: 0, to: 8, write: true, what: "parameters of group h.0"}
	b := touch{space: slab, from: 4, to: 5, what: "parameters of group h.0"}
	ops := []operation{
		{lane: onWire, name: "gather h.0", touches: []touch{a}, event: -1},
		{lane: onWork, name: "forward h.0", touches: []touch{b}, event: -1},
	}
	require.EqualError(t, check(ops, 0), "gather h.0 (wire) and forward h.0 (work) both access parameters of group h.0, and neither waits for the other")
	ops[1].after = []int{0}
	require.EqualError(t, check(ops, 1), "forward h.0 waits for gather h.0, which has not recorded its event yet")
	ops[0].event = 0
	require.NoError(t, check(ops, 1))
	ops[1].event = 0
	require.EqualError(t, check(ops, 1), "forward h.0 records event 0 of 1, which another operation records")
	ops[1].event, ops[0].joins = -1, true
	require.EqualError(t, check(ops, 1), "gather h.0 records event 0 before it is launched")
}

// TestOrderOfJoined: what is launched together is waited for once.
func TestOrderOfJoined(t *testing.T) {
	gather := func(space space, joins bool) operation {
		return operation{lane: onWire, joins: joins, touches: []touch{{space: space, to: 8, write: true}}}
	}
	forward := func(space space) operation { return operation{touches: []touch{{space: space, to: 8}}} }
	ops := []operation{gather(1, true), gather(2, false), forward(1), forward(2)}
	events, ends := order(ops)
	require.Equal(t, 1, events)
	require.Equal(t, []lane{onWire}, ends)
	require.Equal(t, [][]int{nil, nil, {1}, nil}, [][]int{ops[0].after, ops[1].after, ops[2].after, ops[3].after})
	require.NoError(t, check(ops, 1))
}
