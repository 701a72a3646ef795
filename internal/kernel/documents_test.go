package kernel

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/half"
)

// drawPositions returns the positions of tokens in documents that share rows, or nil. The first
// document of a row may continue from another row.
func drawPositions(t *rapid.T, rows, length int) (positions []int) {
	if !rapid.Bool().Draw(t, "with documents") {
		return nil
	}
	longest := rapid.SampledFrom([]int{1, 3, 40, 70, length}).Draw(t, "longest document")
	for range rows {
		end, position := 0, rapid.SampledFrom([]int{0, 0, 5}).Draw(t, "first position")
		for i := range length {
			if i == end {
				if i > 0 {
					position = 0
				}
				end += rapid.IntRange(1, longest).Draw(t, "document")
			}
			positions = append(positions, position)
			position++
		}
	}
	return positions
}

// TestAttentionDocuments compares documents that share rows with documents that are alone: they
// have the same bits, and take no memory.
func TestAttentionDocuments(t *testing.T) {
	for _, causal := range []bool{true, false} {
		for _, window := range []int{0, 9} {
			attentionDocuments[float32, float32](t, causal, window, random[float32])
			attentionDocuments[float64, float64](t, causal, window, random[float64])
			eachBFloat16(t, func(t *testing.T) { attentionDocuments[half.BFloat16, float32](t, causal, window, randomBFloat16) })
		}
	}
}

func attentionDocuments[E Element, T Float](t *testing.T, causal bool, window int, random func(n int) []E) {
	const rows, d = 150, 8
	a := Attention{Batch: 2, QLen: rows, KLen: rows, Heads: 2, KVHeads: 1, HeadDim: d, Causal: causal, Window: window,
		QStride: 4 * d, KStride: 4 * d, VStride: 4 * d, OutStride: 2 * d}
	documents := []int{1, 37, 56, 56, 70, 80} // four in the first row
	for _, n := range documents {
		for i := range n {
			a.Positions = append(a.Positions, i)
		}
	}
	qkv, dout, mask := random(2*rows*4*d), random(2*rows*2*d), make([]int, 2*rows)
	for i := range mask {
		mask[i] = i % 5
	}
	run := func(a Attention, qkv, dout []E, mask []int) (results func() [][]uint64, run func()) {
		out, lse, dqkv, scratch := make([]E, len(dout)), make([]T, len(dout)/d), make([]E, len(qkv)), make([]T, AttentionBFloat16Scratch(a))
		var c Context
		return func() [][]uint64 {
				return [][]uint64{bits(out), bits(dqkv), bits(lse)}
			}, func() {
				AttentionForward(&c, a, out, lse, qkv, qkv[2*d:], qkv[3*d:], mask, nil, scratch)
				AttentionBackward(&c, a, dqkv, dqkv[2*d:], dqkv[3*d:], nil, qkv, qkv[2*d:], qkv[3*d:], out, lse, dout, mask, nil, scratch)
			}
	}
	for _, mask := range [][]int{nil, mask} {
		got, packed := run(a, qkv, dout, mask)
		require.Zero(t, testing.AllocsPerRun(1, packed))
		at := 0
		for _, n := range documents {
			alone, hidden := a, mask
			alone.Batch, alone.QLen, alone.KLen, alone.Positions = 1, n, n, nil
			if mask != nil {
				hidden = mask[at : at+n]
			}
			want, once := run(alone, qkv[at*4*d:(at+n)*4*d], dout[at*2*d:(at+n)*2*d], hidden)
			once()
			all, each := got(), want()
			require.Equal(t, each[0], all[0][at*2*d:(at+n)*2*d], "outputs of the document at %d", at)
			require.Equal(t, each[1], all[1][at*4*d:(at+n)*4*d], "gradients of the document at %d", at)
			for h := range a.Heads {
				first := (at/rows*a.Heads+h)*rows + at%rows
				require.Equal(t, each[2][h*n:(h+1)*n], all[2][first:first+n], "statistics of the document at %d", at)
			}
			at += n
		}
	}
}

func TestCheckPositions(t *testing.T) {
	require.NoError(t, CheckPositions(nil, 3))
	require.NoError(t, CheckPositions([]int{0, 1, 2, 7, 0, 0}, 3))
	require.EqualError(t, CheckPositions([]int{0, 1, 2, -1, 0, 0}, 3), "row 1 begins at position -1: want 0, or more for a document that continues from another row")
	require.EqualError(t, CheckPositions([]int{0, 1, 2, 3, 0, 2}, 3), "token 2 of row 1 has position 2 after position 0: want 1, or 0 where a document begins")
}
