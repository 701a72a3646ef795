package fsdp

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"
)

// described is a module's worth of fields of every kind.
type described struct {
	N     int
	Rate  float64
	Name  string
	next  *described
	any   any
	list  []int
	table map[string]*described
	f     func()
	mask  *tensor.Dense
	kind  reflect.Type
	flags [2]bool
}

func sample() *described {
	return &described{
		N: 3, Rate: 0.5, Name: "a b", next: &described{N: 4}, any: int8(2), list: []int{1, 2},
		table: map[string]*described{"x": {N: 1}, "y": {N: 2}, "z": nil}, f: func() {},
		mask: tensor.New(tensor.WithShape(5, 5), tensor.WithBacking(make([]float64, 25))), kind: reflect.TypeFor[int](),
	}
}

// TestDescribe checks that equal values read alike wherever they are, and that any difference
// shows.
func TestDescribe(t *testing.T) {
	want := describe(sample())
	for range 20 {
		require.Equal(t, want, describe(sample()))
	}
	seen := map[string]bool{want: true}
	for i, change := range []func(*described){
		func(d *described) { d.N = 4 },
		func(d *described) { d.Rate = 0.25 },
		func(d *described) { d.Name = "a" },
		func(d *described) { d.next.N = 5 },
		func(d *described) { d.next = nil },
		func(d *described) { d.any = int16(3) },
		func(d *described) { d.list = []int{1, 3} },
		func(d *described) { d.list = make([]int, 100) },
		func(d *described) { d.list = append(make([]int, 99), 1) },
		func(d *described) { d.table["x"].N = 7 },
		func(d *described) { delete(d.table, "z") },
		func(d *described) { d.mask.Float64s()[7] = 1 },
		func(d *described) { d.flags[1] = true },
	} {
		d := sample()
		change(d)
		text := describe(d)
		require.False(t, seen[text], "change %d: %s", i, text)
		seen[text] = true
	}
	require.Contains(t, want, `Name:"a b"`)
	require.Equal(t, "nil", describe(nil))
}

// TestDescribeEndsOnCycles describes a value that contains itself.
func TestDescribeEndsOnCycles(t *testing.T) {
	d := sample()
	d.next = d
	require.Contains(t, describe(d), "…")
}
