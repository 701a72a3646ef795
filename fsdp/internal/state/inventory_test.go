package state

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
)

// drawInventory draws what a rank keeps for some of so many values.
func drawInventory(t *rapid.T, values int, label string) *inventory {
	names := rapid.SampledFrom([]string{"exp_avg", "exp avg", "exp\navg", "µ"})
	inv := &inventory{Steps: rapid.IntRange(0, 3).Draw(t, label+" steps")}
	for v := range values {
		if rapid.Bool().Draw(t, label+" has") {
			inv.add(v, rapid.MapOfN(names, rapid.Custom(drawEntry), 0, 2).Draw(t, label+" keeps"))
		}
	}
	return inv
}

func drawEntry(t *rapid.T) entry {
	return entry{Steps: rapid.IntRange(0, 2).Draw(t, "steps"), Bits: rapid.SampledFrom([]int{0, 8}).Draw(t, "bits")}
}

// TestInventoryTravels: any inventory comes back as it was, with names of any form.
func TestInventoryTravels(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.IntRange(0, 20).Draw(t, "values")
		inv := drawInventory(t, values, "rank")
		got, err := decodeInventory(inv.encode(), values)
		require.NoError(t, err)
		require.Equal(t, inv.encode(), got.encode())
		require.Equal(t, inv.Kinds, got.Kinds)
		require.Equal(t, inv.Runs, got.Runs)
	})
}

// TestInventoryRefuses: what is no inventory is an error, never dropped in part.
func TestInventoryRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":         ``,
		"a line":          `wte.weight exp_avg 3`,
		"cut short":       `{"Steps":3,"Kinds":[{"exp_avg":{"Steps":3}}],"Runs":[{"First":0,"Len":1,"Kind":0}`,
		"two":             `{"Steps":3,"Kinds":null,"Runs":null}{}`,
		"another member":  `{"Steps":3,"Kind":[]}`,
		"negative steps":  `{"Steps":-1}`,
		"negative counts": `{"Kinds":[{"exp_avg":{"Steps":-1}}]}`,
		"no name":         `{"Kinds":[{"":{"Steps":1}}]}`,
		"no kind":         `{"Kinds":[null]}`,
		"unknown kind":    `{"Kinds":[{}],"Runs":[{"First":0,"Len":1,"Kind":1}]}`,
		"beyond the end":  `{"Kinds":[{}],"Runs":[{"First":3,"Len":2,"Kind":0}]}`,
		"huge":            `{"Kinds":[{}],"Runs":[{"First":1,"Len":9223372036854775807,"Kind":0}]}`,
		"empty run":       `{"Kinds":[{}],"Runs":[{"First":0,"Len":0,"Kind":0}]}`,
		"overlap":         `{"Kinds":[{}],"Runs":[{"First":0,"Len":2,"Kind":0},{"First":1,"Len":1,"Kind":0}]}`,
		"text for number": `{"Steps":"3"}`,
	} {
		_, err := decodeInventory([]byte(text), 4)
		require.Error(t, err, name)
	}
}

// FuzzInventory: what decodes says the same again, and lists no value that there is not.
func FuzzInventory(f *testing.F) {
	f.Add([]byte(`{"Steps":3,"Kinds":[{"exp_avg":{"Steps":3}}],"Runs":[{"First":0,"Len":2,"Kind":0}]}`), 3)
	f.Add([]byte(`{"Runs":[{"First":1,"Len":9223372036854775807,"Kind":0}]}`), 2)
	f.Fuzz(func(t *testing.T, text []byte, values int) {
		inv, err := decodeInventory(text, values)
		if err != nil {
			return
		}
		again, err := decodeInventory(inv.encode(), values)
		require.NoError(t, err)
		require.Equal(t, inv.encode(), again.encode())
		for _, r := range inv.Runs {
			require.LessOrEqual(t, r.First+r.Len, values)
		}
	})
}

// TestMerge compares with a table of every value and rank.
func TestMerge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.IntRange(1, 6).Draw(t, "values")
		var list []Tensor
		for v := range values {
			list = append(list, shared(v, fmt.Sprint("p", v), "", 2))
		}
		all := make([]*inventory, rapid.IntRange(1, 4).Draw(t, "ranks"))
		kept := make([]kind, values)
		steps, differ := 0, false
		for r := range all {
			all[r] = drawInventory(t, values, fmt.Sprint("rank ", r))
			if r == 0 {
				steps = all[r].Steps
			}
			differ = differ || all[r].Steps != steps
			for _, run := range all[r].Runs {
				for v := run.First; v < run.First+run.Len; v++ {
					k := all[r].Kinds[run.Kind]
					if kept[v] == nil {
						kept[v] = k
					}
					differ = differ || fmt.Sprint(kept[v]) != fmt.Sprint(k)
				}
			}
		}
		merged, err := merge(all, list)
		if differ {
			require.Error(t, err)
			return
		}
		require.NoError(t, err)
		require.Equal(t, steps, merged.Steps)
		var want, got []string
		for v, k := range kept {
			want = append(want, list[v].Name())
			for _, name := range sortedNames(k) {
				want = append(want, fmt.Sprintf("%s:%s after %d", name, list[v].Name(), k[name].Steps))
			}
		}
		for _, x := range merged.tensors(list) {
			if x.Entry == "" {
				got = append(got, x.Name())
			} else {
				got = append(got, fmt.Sprintf("%s:%s after %d", x.Entry, x.Param, x.Steps))
			}
		}
		require.Equal(t, want, got)
	})
}

func sortedNames(k kind) (names []string) {
	for _, name := range []string{"exp\navg", "exp avg", "exp_avg", "µ"} {
		if _, ok := k[name]; ok {
			names = append(names, name)
		}
	}
	return names
}

// TestMergeNamesThree: many disagreements make no long message.
func TestMergeNamesThree(t *testing.T) {
	var list []Tensor
	all := []*inventory{{}, {}}
	for v := range 5 {
		list = append(list, shared(v, fmt.Sprint("p", v), "", 2))
		all[0].add(v, kind{"m": {Steps: 1}})
		all[1].add(v, kind{"m": {Steps: 2}})
	}
	_, err := merge(all, list)
	require.EqualError(t, err, "optimizers differ between ranks, so give all ranks the same optimizer: "+
		"parameter p0: rank 0 has m after 1 updates, rank 1 has m after 2 updates\n"+
		"parameter p1: rank 0 has m after 1 updates, rank 1 has m after 2 updates\n"+
		"parameter p2: rank 0 has m after 1 updates, rank 1 has m after 2 updates\n"+
		"2 more parameters differ")
}

// TestMergeNamesBits: state in 8 bits is another than the same in 32.
func TestMergeNamesBits(t *testing.T) {
	all := []*inventory{{}, {}}
	all[0].add(0, kind{"m": {Steps: 1, Bits: 8}})
	all[1].add(0, kind{"m": {Steps: 1}})
	_, err := merge(all, []Tensor{shared(0, "p", "", 2)})
	require.EqualError(t, err, "optimizers differ between ranks, so give all ranks the same optimizer: parameter p: rank 0 has m in 8 bits after 1 updates, rank 1 has m after 1 updates")
}

// TestListedIsOneList: every rank gets the list that rank 0 has made of what the ranks say.
func TestListedIsOneList(t *testing.T) {
	require.NoError(t, comm.Run(t.Context(), 3, func(ctx context.Context, g comm.Group) error {
		l := plainLayout(t, 3, g.Rank(), []int{31, 3}, []int{7}, []int{5, 11})
		s := &Store{Layout: l, Memory: newMemory(l), Team: plainTeam{t, g}, Compute: comm.Float32}
		opt := adam(t, s)
		own, err := s.pieces(opt)
		require.NoError(t, err)
		list, steps, err := s.listed(ctx, opt, own, true)
		require.NoError(t, err)
		require.Zero(t, steps)
		var names []string
		for i := range list {
			names = append(names, list[i].Name())
		}
		require.Equal(t, []string{"a", "exp_avg:a", "exp_avg_sq:a", "b", "exp_avg:b", "exp_avg_sq:b", "c", "exp_avg:c", "exp_avg_sq:c"}, names)
		return nil
	}))
}

// TestFaultIsEverybodys: an inventory that rank 0 cannot read is an error that says whose it is.
func TestFaultIsEverybodys(t *testing.T) {
	list := []Tensor{shared(0, "p", "", 2)}
	inv := mergeTexts([][]byte{(&inventory{}).encode(), []byte("p exp_avg 3\n")}, list)
	require.Contains(t, inv.Fault, "rank 1's list of optimizer state is invalid: ")
	var told inventory
	require.NoError(t, json.Unmarshal(inv.encode(), &told))
	require.Equal(t, inv.Fault, told.Fault)
}
