package data

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// record is a sample with several fields.
type record struct {
	words []int
	image []float32
	label int
}

// wordsOf is a field of records.
func wordsOf(r record) []int { return r.words }

var records = []record{
	{[]int{1, 2, 3}, []float32{1, 2, 3, 4}, 7}, {[]int{4}, []float32{5, 6, 7, 8}, 8}, {nil, []float32{9, 10, 11, 12}, 9},
}

// TestCollate makes batches of several tensors, each in memory of its own.
func TestCollate(t *testing.T) {
	var b *Batch
	make := func(samples []record, width Width) {
		b = new(Batch)
		require.NoError(t, Stack(b, samples, func(r record) []float32 { return r.image }, 2, 2))
		Column(b, samples, func(r record) int { return r.label })
		columns, err := Pad(b, samples, wordsOf, width, -5)
		require.NoError(t, err)
		Mask[float64](b, samples, func(r record) int { return len(r.words) }, columns)
		ones := Tensor[int32](b, 2, 1)
		require.Equal(t, []int32{0, 0}, ones)
		ones[1] = 1
	}
	check := func(k int, shape tensor.Shape, elements any) {
		require.Equal(t, shape, b.tensors[k].Shape())
		require.Equal(t, elements, b.tensors[k].Data())
	}
	for range 2 {
		make(records, MultipleOf(2))
		check(0, tensor.Shape{3, 2, 2}, []float32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12})
		check(1, tensor.Shape{3}, []int{7, 8, 9})
		check(2, tensor.Shape{3, 4}, []int{1, 2, 3, -5, 4, -5, -5, -5, -5, -5, -5, -5})
		check(3, tensor.Shape{3, 4}, []float64{1, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0})
		check(4, tensor.Shape{2, 1}, []int32{0, 1})
		first := b.tensors[0]

		make(records[1:2], nil)
		check(0, tensor.Shape{1, 2, 2}, []float32{5, 6, 7, 8})
		check(2, tensor.Shape{1, 1}, []int{4})
		check(3, tensor.Shape{1, 1}, []float64{1})
		require.Equal(t, 4*4+8+8+8+2*4, b.bytes)
		require.Equal(t, []float32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, first.Data(), "an earlier batch")

		make(records, Widths(9, 3, 5))
		check(2, tensor.Shape{3, 3}, []int{1, 2, 3, 4, -5, -5, -5, -5, -5})
	}
}

// TestCollateRefuses checks that errors name the row.
func TestCollateRefuses(t *testing.T) {
	b := new(Batch)
	require.EqualError(t, Stack(b, records, wordsOf), "row 1: got 1 elements, want 3 for shape [3]")
	require.EqualError(t, Stack(b, records, wordsOf, 2), "row 0: got 3 elements, want 2 for shape [2]")
	_, err := Pad(b, records, wordsOf, Widths(1, 2), 0)
	require.EqualError(t, err, "row 0: got 3 elements, want at most [1 2]")
	_, err = Pad(b, records, wordsOf, MultipleOf(0), 0)
	require.EqualError(t, err, "row 0: no width is a multiple of 0")
	_, err = Pad(b, records, wordsOf, func(int) (int, error) { return 2, nil }, 0)
	require.EqualError(t, err, "row 0: got 3 elements, more than the width of 2")
	require.EqualError(t, TokensAndTargets[int](2)(b, [][]int{{1, 2}, {1, 2, 3, 4}}), "row 1: got 4 tokens, want 2 to 3, the context and the token that follows it: make windows of 3 tokens, or raise the context")
	require.EqualError(t, TokensAndTargets[int](0)(b, nil), "TokensAndTargets: context 0: must be positive")
}

// TestWindowsOfContext makes windows that are one token too short for TokensAndTargets. Rank 0
// warns once. It does not warn of shorter samples.
func TestWindowsOfContext(t *testing.T) {
	const want = "all samples of the first batch have 4 tokens, so the last position of TokensAndTargets(4) never has a target: make windows of 5 tokens"
	for length, warnings := range map[int]int{3: 0, 4: 1, 5: 0} {
		log := logged(t)
		for rank := range 2 {
			l, err := NewLoader(Windows(make([]int, 24), length, 1), TokensAndTargets[int](4), Config{Group: rankOf{rank, 2}, Batch: 8})
			require.NoError(t, err)
			for _, err := range l.Batches(t.Context()) {
				require.NoError(t, err)
			}
		}
		require.Equal(t, warnings, strings.Count(log.String(), want), log.String())
		require.Equal(t, warnings, strings.Count(log.String(), "\n"), log.String())
	}
}

// TestTokensAndTargets checks windows, and samples that are shorter, in memory of other batches.
func TestTokensAndTargets(t *testing.T) {
	require.Equal(t, nn.IgnoreTarget, ignoreTarget)
	b := new(Batch)
	collate := TokensAndTargets[uint16](3)
	for range 2 {
		b.tensors = b.tensors[:0]
		require.NoError(t, collate(b, [][]uint16{{9, 8, 7, 65535}, {9, 8, 7, 6}}))
		require.Equal(t, []int{9, 8, 7, 9, 8, 7}, b.tensors[0].Data())
		require.Equal(t, []int{8, 7, 65535, 8, 7, 6}, b.tensors[1].Data())
		b.tensors = b.tensors[:0]
		require.NoError(t, collate(b, [][]uint16{{1, 2}, {4, 5, 6}}))
		require.Equal(t, []int{1, 0, 0, 4, 5, 0}, b.tensors[0].Data())
		require.Equal(t, []int{2, -1, -1, 5, 6, -1}, b.tensors[1].Data())
		require.Equal(t, tensor.Shape{2, 3}, b.tensors[1].Shape())
	}
}
