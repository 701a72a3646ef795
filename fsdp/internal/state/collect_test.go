package state

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
)

// TestParcels divides lists into what travels together: small tensors of one group, in order.
func TestParcels(t *testing.T) {
	g := comm.Local(1)[0]
	defer g.Close()
	s := &Store{Team: plainTeam{t, g}, Compute: comm.Float32, Layout: plainLayout(t, 1, 0, []int{100})}
	for name, c := range map[string]struct {
		pack  int // bytes
		sizes []int
		want  []int // tensors of each parcel
	}{
		"nothing":         {100, nil, nil},
		"each alone":      {0, []int{1, 0, 0, 2}, []int{1, 1, 1, 1}},
		"together":        {400, []int{1, 0, 24, 3}, []int{4}},
		"full":            {400, []int{24, 24, 24, 24, 4, 24}, []int{5, 1}},
		"too much":        {400, []int{24, 24, 24, 24, 5, 24}, []int{4, 2}},
		"a large one":     {400, []int{1, 2, 25, 3, 4}, []int{2, 1, 2}},
		"large ones":      {400, []int{25, 100, 5000, 1}, []int{1, 1, 1, 1}},
		"large, and last": {400, []int{1, 25}, []int{1, 1}},
	} {
		var list []Tensor
		for _, n := range c.sizes {
			list = append(list, shared(0, "a", "m", n))
		}
		var got []int
		var all []Tensor
		for _, p := range (&collector{s: s, root: Everywhere, pack: c.pack}).parcels(list) {
			got, all = append(got, len(p)), append(all, p...)
		}
		require.Equal(t, c.want, got, name)
		require.Equal(t, list, all, name)
	}
}

// TestBlocks gives out memory that nobody else has, and little more than is asked for.
func TestBlocks(t *testing.T) {
	for _, sizes := range [][]int{{8}, {0, 16, 0}, {blockBytes, 8, 24}, {8, blockBytes / smallParts, blockBytes/smallParts + 8, 3 * blockBytes, 800}} {
		b := blocks{}
		for _, n := range sizes {
			b.expect(n)
		}
		var memory [][]byte
		for _, n := range sizes {
			mem := b.take(n)
			require.Len(t, mem, n)
			require.Equal(t, n, cap(mem))
			for i := range mem {
				mem[i] = byte(len(memory))
			}
			memory = append(memory, mem)
			require.Len(t, elements[float64](mem), n/8)
		}
		for i, mem := range memory {
			require.True(t, bytes.Equal(bytes.Repeat([]byte{byte(i)}, len(mem)), mem))
		}
		require.Zero(t, b.left)
		require.False(t, overlap(memory))
		require.True(t, overlap(append(memory, memory[0])) || sizes[0] == 0)
	}
}
