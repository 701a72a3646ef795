package scores

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/half"
)

// block is a drawn block of scores.
type block struct {
	cols, ld, lds     int
	spans             []Span
	s, dp, lse, delta []float32
}

func drawBlock(t *rapid.T) block {
	b := block{cols: Unit * rapid.IntRange(0, 5).Draw(t, "columns")}
	b.ld, b.lds = b.cols+rapid.IntRange(0, 3).Draw(t, "gap"), b.cols+rapid.IntRange(0, 3).Draw(t, "gap of s")
	rows := rapid.IntRange(0, MostRows).Draw(t, "rows")
	for range rows {
		lo := rapid.IntRange(0, b.cols).Draw(t, "lo")
		b.spans = append(b.spans, Span{int32(lo), int32(rapid.IntRange(0, b.cols).Draw(t, "hi"))})
	}
	r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	value := func() float32 { return float32(r.Float64()*60 - 30) }
	b.s, b.dp = make([]float32, rows*b.lds), make([]float32, rows*b.lds)
	for row, span := range b.spans {
		for i := range b.cols {
			b.s[row*b.lds+i], b.dp[row*b.lds+i] = float32(math.NaN()), float32(math.NaN())
		}
		for i := span.Lo; i < span.Hi; i++ {
			b.s[row*b.lds+int(i)], b.dp[row*b.lds+int(i)] = value(), value()
		}
	}
	for range b.cols {
		b.lse, b.delta = append(b.lse, value()), append(b.delta, value())
	}
	return b
}

// requireClose compares rows of bfloat16 within a digit, and zeros exactly.
func requireClose(t *rapid.T, b block, want, got []half.BFloat16) {
	for i := range want {
		w, g := want[i].Float32(), got[i].Float32()
		require.InDelta(t, w, g, math.Abs(float64(w))/120+0x1p-126, "element %d of rows %d apart", i, b.ld)
	}
}

func TestSoftmax(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := drawBlock(t)
		want, got := make([]half.BFloat16, len(b.spans)*b.ld), make([]half.BFloat16, len(b.spans)*b.ld)
		lse := make([]float32, len(b.spans))
		Softmax(got, b.ld, append([]float32(nil), b.s...), b.lds, b.cols, b.spans, lse)
		var stats [MostRows][2]float32
		softmaxPortable(want, b.ld, append([]float32(nil), b.s...), b.lds, b.cols, b.spans, &stats)
		requireClose(t, b, want, got)
		for r, span := range b.spans {
			sum := 0.0
			for i := span.Lo; i < span.Hi; i++ {
				sum += math.Exp(float64(b.s[r*b.lds+int(i)]))
			}
			if span.Lo >= span.Hi {
				require.Equal(t, float32(math.Inf(-1)), lse[r])
				continue
			}
			require.InDelta(t, math.Log(sum), lse[r], 1e-5)
		}
	})
}

func TestSlopes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := drawBlock(t)
		n := len(b.spans) * b.ld
		p, ds, wantP, wantDS := make([]half.BFloat16, n), make([]half.BFloat16, n), make([]half.BFloat16, n), make([]half.BFloat16, n)
		for i := range n {
			p[i], ds[i] = 1, 1 // must become zeros within the columns
		}
		Slopes(p, ds, b.ld, b.s, b.dp, b.lds, b.cols, b.spans, b.lse, b.delta)
		slopesPortable(wantP, wantDS, b.ld, b.s, b.dp, b.lds, b.cols, b.spans, b.lse, b.delta)
		for r := range b.spans { // gaps are left alone
			for i := b.cols; i < b.ld; i++ {
				require.Equal(t, half.BFloat16(1), p[r*b.ld+i])
				require.Equal(t, half.BFloat16(1), ds[r*b.ld+i])
				wantP[r*b.ld+i], wantDS[r*b.ld+i] = 1, 1
			}
		}
		requireClose(t, b, wantP, p)
		requireClose(t, b, wantDS, ds)
	})
}

func TestMisuse(t *testing.T) {
	require.PanicsWithValue(t, "scores: Softmax: 33 columns and 0 rows", func() { Softmax(nil, 33, nil, 33, 33, nil, nil) })
	require.PanicsWithValue(t, "scores: Softmax: 1 rows of 32 columns, 31 apart, do not fit 99 elements", func() {
		Softmax(make([]half.BFloat16, 99), 31, nil, 32, 32, make([]Span, 1), nil)
	})
	require.PanicsWithValue(t, "scores: Slopes: span [0, 33) of 32 columns", func() {
		p := make([]half.BFloat16, 32)
		Slopes(p, p, 32, nil, nil, 32, 32, []Span{{0, 33}}, nil, nil)
	})
}
