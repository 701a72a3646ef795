package data

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// drawDocuments draws documents of consecutive numbers.
func drawDocuments(t *rapid.T, longest int) (documents [][]int, lengths []int, total int) {
	lengths = rapid.SliceOfN(rapid.IntRange(0, longest), 1, 40).Draw(t, "lengths")
	for _, n := range lengths {
		doc := make([]int, n)
		for i := range doc {
			doc[i] = total
			total++
		}
		documents = append(documents, doc)
	}
	return documents, lengths, total
}

// TestPack checks that windows are those of the text of all documents, and know where these begin.
func TestPack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		documents, lengths, total := drawDocuments(t, 12)
		length := rapid.IntRange(1, 10).Draw(t, "length")
		step := rapid.IntRange(1, 12).Draw(t, "step")
		p := Pack(Of(documents), Of(lengths), length, step)
		windows := Windows(upTo(total), length, step)
		if total < length {
			require.Contains(t, firstError(t, p), fmt.Sprintf("a window has %d elements, but there are only %d in all", length, total))
			require.Contains(t, firstError(t, windows), fmt.Sprintf("a window has %d elements, but there are only %d in all", length, total))
			return
		}
		require.Equal(t, (total-length)/step+1, windows.Len())
		require.Equal(t, windows.Len(), p.Len())
		begins := make(map[int]bool)
		for _, doc := range documents {
			if len(doc) > 0 {
				begins[doc[0]] = true
			}
		}
		for i, sample := range all(t, p) {
			window, err := windows.At(i)
			require.NoError(t, err)
			require.Equal(t, upTo(total)[i*step:i*step+length], window)
			require.Equal(t, window, sample.Elements)
			var starts []int
			for k, element := range window {
				if begins[element] {
					starts = append(starts, k)
				}
			}
			require.Equal(t, starts, sample.Starts)
			position := 0
			for k, element := range window {
				if begins[element] {
					position = 0
				}
				require.Equal(t, position, sample.Positions()[k])
				position++
			}
		}
		covered := make(map[int]bool)
		for i := range p.Len() {
			for k := range length {
				covered[i*step+k] = true
			}
		}
		require.Equal(t, total-len(covered), p.Rest)
		require.Zero(t, p.Padding)
	})
}

// TestPackWhole compares the packing with first fit written plainly.
func TestPackWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		documents, lengths, total := drawDocuments(t, 10)
		length := rapid.IntRange(10, 15).Draw(t, "length")
		var want [][]int
	next:
		for _, doc := range documents {
			if len(doc) == 0 {
				continue
			}
			for k := range want {
				if len(want[k])+len(doc) <= length {
					want[k] = append(want[k], doc...)
					continue next
				}
			}
			want = append(want, slices.Clone(doc))
		}
		p := PackWhole(Of(documents), Of(lengths), length)
		got := all(t, p)
		require.Equal(t, len(want), len(got))
		for i, sample := range got {
			require.Equal(t, want[i], sample.Elements)
			for k, start := range sample.Starts {
				doc := slices.IndexFunc(documents, func(d []int) bool { return len(d) > 0 && d[0] == sample.Elements[start] })
				end := len(sample.Elements)
				if k+1 < len(sample.Starts) {
					end = sample.Starts[k+1]
				}
				require.Equal(t, documents[doc], sample.Elements[start:end])
			}
		}
		require.Equal(t, len(want)*length-total, p.Padding)
		require.Zero(t, p.Rest)
	})
}

// TestTokensAndPositions makes batches of a document that continues from another sample, of one
// that begins with the last token, and of padding.
func TestTokensAndPositions(t *testing.T) {
	b := new(Batch)
	require.NoError(t, TokensAndPositions[int](4)(b, []Packed[int]{
		{Elements: []int{5, 6, 7, 8, 9}, Starts: []int{2, 4}}, {Elements: []int{1, 2, 3}, Starts: []int{0, 1}},
	}))
	require.Equal(t, []int{5, 6, 7, 8, 1, 2, 0, 0}, b.tensors[0].Data())
	require.Equal(t, []int{6, -1, 8, -1, -1, 3, -1, -1}, b.tensors[1].Data())
	require.Equal(t, []int{0, 1, 0, 1, 0, 0, 0, 0}, b.tensors[2].Data())

	b = new(Batch) // the first tokens of documents are no targets, whatever Target says of them
	require.NoError(t, TokensAndPositions[int](5)(b, []Packed[int]{
		{Elements: []int{5, 6, 7, 8, 9}, Starts: []int{0, 3}, Target: []bool{true, false, true, true, true}},
	}))
	require.Equal(t, []int{5, 6, 7, 8, 0}, b.tensors[0].Data())
	require.Equal(t, []int{-1, 7, -1, 9, -1}, b.tensors[1].Data())
	require.Equal(t, []int{0, 1, 2, 0, 0}, b.tensors[2].Data())
	require.EqualError(t, TokensAndPositions[int](5)(b, []Packed[int]{{Elements: []int{1, 2}, Target: []bool{true}}}),
		"row 0: there are 2 elements, and Target has 1")
	require.EqualError(t, TokensAndPositions[int](2)(b, []Packed[int]{{Elements: []int{1}}}),
		"row 0: got 1 tokens, want 2 to 3, the context and the token that follows it: make windows of 3 tokens, or raise the context")
	require.EqualError(t, TokensAndPositions[int](0)(b, nil), "TokensAndPositions: context 0: must be positive")
}

// TestPackRefuses checks the errors of packing.
func TestPackRefuses(t *testing.T) {
	documents, lengths := Of([][]int{{1, 2}, {3, 4, 5}}), Of([]int{2, 3})
	require.Equal(t, "data.Pack(Of(2 × []int), length 6, step 5): a window has 6 elements, but there are only 5 in all", firstError(t, Pack(documents, lengths, 6, 5)))
	require.Contains(t, firstError(t, Windows([]int{1, 2}, 1, 0)), "window length 1 and step 0 must be positive")
	require.Contains(t, firstError(t, Pack(documents, Of([]int{1}), 2, 2)), "there are 2 samples, but 1 lengths: give one length for each")
	require.Contains(t, firstError(t, Pack[int](nil, lengths, 2, 2)), "the source is nil")
	require.Contains(t, firstError(t, Pack(documents, Of([]int{2, -1}), 2, 2)), "the length of document 1: -1 is negative")
	require.Contains(t, firstError(t, Pack(Repeat(documents, Endless), Repeat(lengths, Endless), 2, 2)), "the documents are endless")
	require.Contains(t, firstError(t, PackWhole(documents, lengths, 2)), "document 1 has 3 elements, want at most 2")
	require.Contains(t, firstError(t, PackWhole(documents, lengths, 0)), "samples of 0 elements")
	require.Contains(t, firstError(t, PackWhole(documents, Range(lengths, 1, 3), 2)), "from 1 to 3 of 2 samples")

	_, err := Pack(documents, Of([]int{2, 4}), 5, 5).At(0)
	require.EqualError(t, err, "document 1 has 3 elements, but its given length is 4: give the lengths that Measure returns for the same source, or shuffle them with the same seed and epochs")
	torn := Map(documents, func([]int) ([]int, error) { return nil, errors.New("torn") })
	_, err = PackWhole(torn, lengths, 5).At(0)
	require.EqualError(t, err, "document 0: torn")
}

// TestPackDescribes checks that positions in documents of other lengths differ.
func TestPackDescribes(t *testing.T) {
	documents, lengths := Of([][]int{{1, 2}, {3, 4, 5}}), Of([]int{2, 3})
	require.Equal(t, "Pack(Of(2 × []int), length 2, step 2) of 5 elements", Pack(documents, lengths, 2, 2).String())
	require.Equal(t, "PackWhole(Of(2 × []int), length 4) of 5 elements", PackWhole(documents, lengths, 4).String())
	require.NotEqual(t, Pack(documents, lengths, 2, 2).String(), Pack(documents, Of([]int{2, 2}), 2, 2).String())
}
