package transport

import (
	"math"
	"slices"
	"testing"

	"github.com/gofsdp/gofsdp/comm/internal/ticket"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestGatherFaults has the root, rank 1 of 3, and another rank make calls of which one
// thing is wrong.
func TestGatherFaults(t *testing.T) {
	x := Of(make([]float32, 6))
	counts := []int{1, 2, 3}
	for name, c := range map[string]struct {
		call  Call
		rank  int
		fault string // "" for none
	}{
		"whole":            {gather(x, Of(make([]float32, 2)), counts, 1, 1), 1, ""},
		"in place":         {gather(x, x.Slice(1, 3), counts, 1, 1), 1, ""},
		"empty in place":   {gather(x, x.Slice(6, 6), []int{3, 0, 3}, 1, 1), 1, ""},
		"elsewhere":        {gather(Buffer{}, x.Slice(3, 6), counts, 1, 2), 2, ""},
		"any destination":  {gather(Of([]int32{1}), x.Slice(3, 6), counts, 1, 2), 2, ""},
		"out of place":     {gather(x, x.Slice(2, 4), counts, 1, 1), 1, "outside of range 1"},
		"types":            {gather(x, Of(make([]int32, 2)), counts, 1, 1), 1, "dst holds float32, src int32"},
		"no destination":   {gather(Buffer{}, x.Slice(1, 3), counts, 1, 1), 1, "dst holds"},
		"short":            {gather(x.Slice(0, 5), Of(make([]float32, 2)), counts, 1, 1), 1, "dst has 5 elements, the counts add up to 6"},
		"source":           {gather(Buffer{}, x.Slice(3, 5), counts, 1, 2), 2, "src has 2 elements, the count of rank 2 is 3"},
		"no source":        {gather(Buffer{}, x.Slice(5, 9), counts, 1, 2), 2, "no element type"},
		"no counts":        {gather(Buffer{}, x, nil, 1, 2), 2, "0 counts for 3 ranks"},
		"many counts":      {gather(Buffer{}, x.Slice(3, 6), append(counts, 4), 1, 2), 2, "4 counts for 3 ranks"},
		"negative count":   {gather(Buffer{}, x.Slice(3, 6), []int{4, -1, 3}, 1, 2), 2, "count -1 of rank 1"},
		"sum beyond ints":  {gather(Buffer{}, x.Slice(3, 6), []int{math.MaxInt, math.MaxInt, 3}, 1, 2), 2, "of rank 0"},
		"sum beyond bytes": {gather(Buffer{}, x.Slice(3, 6), []int{math.MaxInt / 8, math.MaxInt / 8, 3}, 1, 2), 2, "of rank 2"},
		"root":             {gather(Buffer{}, x.Slice(3, 6), counts, 3, 2), 2, "root 3 is not in [0, 3)"},
		"negative root":    {gather(Buffer{}, x.Slice(3, 6), counts, -1, 2), 2, "root -1 is not in [0, 3)"},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.call.Check(c.rank, 3)
			if c.fault == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, ErrInvalid)
			require.ErrorContains(t, err, c.fault)
		})
	}
}

// TestCountsAreCompared checks that any two lists of counts have different signatures,
// whatever their sum and the label.
func TestCountsAreCompared(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SliceOfN(rapid.IntRange(0, 9), 2, 8).Draw(t, "counts")
		b := slices.Clone(a)
		from := rapid.IntRange(0, len(a)-1).Draw(t, "from")
		moved := rapid.IntRange(0, a[from]).Draw(t, "moved")
		b[from] -= moved
		b[(from+1)%len(b)] += moved
		label := rapid.StringMatching(`[a-z]{0,60}`).Draw(t, "label")
		var x, y [SignatureSize]byte
		ca, cb := gather(Buffer{}, Of([]byte{}).Named(label), a, 0, 1), gather(Buffer{}, Of([]byte{}).Named(label), b, 0, 1)
		ca.Signature().Put(x[:])
		cb.Signature().Put(y[:])
		require.Equal(t, slices.Equal(a, b), x == y)
		require.Equal(t, slices.Equal(a, b), ca.Matches(&cb))
		sa, err := ParseSignature(x[:])
		require.NoError(t, err)
		sb, err := ParseSignature(y[:])
		require.NoError(t, err)
		require.Equal(t, slices.Equal(a, b), sa.String() == sb.String())
	})
}

// TestTickets checks that a ticket knows its collective for ever, whatever has been issued since.
func TestTickets(t *testing.T) {
	owner := (*serialIssuer)(&Serial{})
	var from ticket.Roll
	var kept []*ticket.Ticket
	for seq := uint64(1); seq <= 1000; seq++ {
		kept = append(kept, from.Take(owner, seq))
	}
	for i, k := range kept {
		require.Equal(t, uint64(i+1), k.Seq())
		require.Same(t, owner, k.Book().Of)
	}
}
