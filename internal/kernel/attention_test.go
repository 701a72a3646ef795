package kernel

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// attentionCase is a drawn attention with its operands, laid out as one packed buffer per side.
type attentionCase[T Float] struct {
	a             Attention
	q, k, v, dout []T
	keyMask       []int
	bias          []T
	out, lse      []T
	dq, dk, dv    []T
	dbias, was    []T
	scratch       []T
}

func drawAttention[T Float](t *rapid.T, maxLen int) *attentionCase[T] {
	src := newSource[T](t)
	a := Attention{
		Batch:   rapid.IntRange(0, 2).Draw(t, "batch"),
		QLen:    rapid.IntRange(1, maxLen).Draw(t, "queries"),
		KLen:    rapid.IntRange(1, maxLen).Draw(t, "keys"),
		Heads:   rapid.IntRange(1, 3).Draw(t, "heads"),
		HeadDim: rapid.IntRange(1, 9).Draw(t, "head dim"),
		Scale:   rapid.SampledFrom([]float64{0, 0.3, 1}).Draw(t, "scale"),
		Causal:  rapid.Bool().Draw(t, "causal"),
	}
	width := a.Heads * a.HeadDim
	a.QStride, a.KStride, a.VStride, a.OutStride = width+drawGap(t), width+drawGap(t), width+drawGap(t), width+drawGap(t)
	c := &attentionCase[T]{a: a}
	q, k, v, out := a.Batch*a.QLen*a.QStride, a.Batch*a.KLen*a.KStride, a.Batch*a.KLen*a.VStride, a.Batch*a.QLen*a.OutStride
	c.q, c.k, c.v, c.dout = src.normal(q), src.normal(k), src.normal(v), src.normal(out)
	c.out, c.lse = garbage[T](out), garbage[T](a.Batch*a.Heads*a.QLen)
	c.dq, c.dk, c.dv = garbage[T](q), garbage[T](k), garbage[T](v)
	c.scratch = garbage[T](AttentionScratch(a))
	if rapid.Bool().Draw(t, "with bias") {
		c.bias = src.normal(a.Heads * a.QLen * a.KLen)
		c.dbias = src.normal(len(c.bias))
		c.was = clone(c.dbias)
	}
	if rapid.Bool().Draw(t, "with mask") {
		c.keyMask = drawMask(t, src, a)
	}
	return c
}

func drawGap(t *rapid.T) int { return rapid.SampledFrom([]int{0, 0, 3}).Draw(t, "gap") }

// drawMask returns masks with padding at the ends, holes, both, or nothing visible at all.
func drawMask[T Float](t *rapid.T, src *source[T], a Attention) []int {
	mask := src.ints(a.Batch*a.KLen, 0, rapid.SampledFrom([]int{2, 5}).Draw(t, "density"))
	for b := range a.Batch {
		row := mask[b*a.KLen : (b+1)*a.KLen]
		lo := rapid.IntRange(0, a.KLen).Draw(t, "first key")
		hi := rapid.IntRange(0, a.KLen).Draw(t, "end of keys")
		solid := rapid.Bool().Draw(t, "solid")
		for j := range row {
			if j < lo || j >= hi {
				row[j] = 0
			} else if solid {
				row[j] = -7 // any value but 0 means visible
			}
		}
	}
	return mask
}

func (c *attentionCase[T]) forward(ctx *Context) {
	AttentionForward(ctx, c.a, c.out, c.lse, c.q, c.k, c.v, c.keyMask, c.bias, c.scratch)
}

func (c *attentionCase[T]) backward(ctx *Context) {
	AttentionBackward(ctx, c.a, c.dq, c.dk, c.dv, c.dbias, c.q, c.k, c.v, c.out, c.lse, c.dout, c.keyMask, c.bias, c.scratch)
}

func TestAttention(t *testing.T) { both(t, checkAttentionTwin[float32], checkAttentionTwin[float64]) }

func checkAttentionTwin[T Float](t *rapid.T) {
	c := drawAttention[T](t, 2*queryBlock+10)
	var ctx Context
	c.forward(&ctx)
	a, q, k, v := c.a, wide(c.q), wide(c.k), wide(c.v)
	var bias []float64
	if c.bias != nil {
		bias = wide(c.bias)
	}
	out, lse := make([]float64, len(c.out)), make([]float64, len(c.lse))
	NaiveAttentionForward(nil, a, out, lse, q, k, v, c.keyMask, bias, nil)
	width := a.Heads * a.HeadDim
	requireHeads(t, "out", out, c.out, a.OutStride, width)
	requireWithin(t, "lse", attentionTolerance[T](), lse, c.lse)

	c.backward(&ctx)
	dq, dk, dv := make([]float64, len(c.q)), make([]float64, len(c.k)), make([]float64, len(c.v))
	dbias := make([]float64, a.Heads*a.QLen*a.KLen)
	copy(dbias, wide(c.was))
	NaiveAttentionBackward(nil, a, dq, dk, dv, dbias, q, k, v, nil, nil, wide(c.dout), c.keyMask, bias, nil)
	requireHeads(t, "dq", dq, c.dq, a.QStride, width)
	requireHeads(t, "dk", dk, c.dk, a.KStride, width)
	requireHeads(t, "dv", dv, c.dv, a.VStride, width)
	if c.dbias != nil {
		requireWithin(t, "dbias", attentionTolerance[T](), dbias, c.dbias)
	}
}

// attentionTolerance is wider than elsewhere: scores reach ±20 here, and exp turns their absolute
// error into a relative one.
func attentionTolerance[T Float]() float64 { return 20 * tolerance[T]() }

// requireHeads compares the columns of heads and demands that the columns between rows still hold
// garbage.
func requireHeads[T Float](t require.TestingT, name string, want []float64, got []T, stride, width int) {
	for r := 0; r < len(got); r += stride {
		requireWithin(t, name, attentionTolerance[T](), want[r:r+width], got[r:r+width])
		for _, v := range got[r+width : r+stride] {
			require.True(t, math.IsNaN(float64(v)), "%s: a column of no head was written", name)
		}
	}
}

func TestAttentionGradient(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawAttention[float64](t, 6)
		var ctx Context
		for r := range c.a.Batch * c.a.QLen { // columns of no head: dot must not see garbage
			clear(c.out[r*c.a.OutStride+c.a.Heads*c.a.HeadDim : (r+1)*c.a.OutStride])
		}
		clear(c.dq)
		clear(c.dk)
		clear(c.dv)
		clear(c.dbias)
		loss := func() float64 { c.forward(&ctx); return dot(c.out, c.dout) }
		loss()
		c.backward(&ctx)
		requireGradient(t, "q", c.q, c.dq, loss)
		requireGradient(t, "k", c.k, c.dk, loss)
		requireGradient(t, "v", c.v, c.dv, loss)
		requireGradient(t, "bias", c.bias, c.dbias, loss)
	})
}

// Packed projections are used in place, and gradients go to one packed buffer: the same bits as
// from separate arrays.
func TestAttentionPacked(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src := newSource[float32](t)
		const batch, T, heads, dim = 2, 70, 2, 8
		const d = heads * dim
		qkv, dout := src.normal(batch*T*3*d), src.normal(batch*T*d)
		packed := Attention{Batch: batch, QLen: T, KLen: T, Heads: heads, HeadDim: dim, Causal: true,
			QStride: 3 * d, KStride: 3 * d, VStride: 3 * d, OutStride: d}
		split := packed
		split.QStride, split.KStride, split.VStride = d, d, d
		var part [3][]float32
		for s := range part {
			for r := range batch * T {
				part[s] = append(part[s], qkv[(r*3+s)*d:(r*3+s+1)*d]...)
			}
		}
		var ctx Context
		scratch := garbage[float32](AttentionScratch(packed))
		run := func(a Attention, dq, dk, dv, q, k, v []float32) (out, lse []float32) {
			out, lse = garbage[float32](batch*T*d), garbage[float32](batch*heads*T)
			AttentionForward(&ctx, a, out, lse, q, k, v, nil, nil, scratch)
			AttentionBackward(&ctx, a, dq, dk, dv, nil, q, k, v, out, lse, dout, nil, nil, scratch)
			return out, lse
		}
		dqkv := garbage[float32](len(qkv))
		out, lse := run(packed, dqkv, dqkv[d:], dqkv[2*d:], qkv, qkv[d:], qkv[2*d:])
		dpart := [3][]float32{garbage[float32](batch * T * d), garbage[float32](batch * T * d), garbage[float32](batch * T * d)}
		wantOut, wantLse := run(split, dpart[0], dpart[1], dpart[2], part[0], part[1], part[2])
		requireBits(t, "out", wantOut, out)
		requireBits(t, "lse", wantLse, lse)
		for s := range dpart {
			for r := range batch * T {
				requireBits(t, "dqkv", dpart[s][r*d:(r+1)*d], dqkv[(r*3+s)*d:(r*3+s+1)*d])
			}
		}
	})
}

// A sequence's result depends neither on the other sequences of the batch nor on padding behind it.
func TestAttentionIgnoresNeighbours(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src := newSource[float32](t)
		const full, dim = 90, 4
		n := rapid.IntRange(1, full).Draw(t, "length")
		a := Attention{Batch: 2, QLen: full, KLen: full, Heads: 1, HeadDim: dim, Causal: true,
			QStride: dim, KStride: dim, VStride: dim, OutStride: dim}
		q, k, v := src.normal(2*full*dim), src.normal(2*full*dim), src.normal(2*full*dim)
		mask := make([]int, 2*full)
		for j := range n {
			mask[full+j] = 1
		}
		var ctx Context
		out, lse := make([]float32, 2*full*dim), make([]float32, 2*full)
		AttentionForward(&ctx, a, out, lse, q, k, v, mask, nil, make([]float32, AttentionScratch(a)))

		alone := a
		alone.Batch, alone.QLen, alone.KLen = 1, n, n
		at, end := full*dim, (full+n)*dim
		wantOut, wantLse := make([]float32, n*dim), make([]float32, n)
		scratch := make([]float32, AttentionScratch(alone))
		AttentionForward(&ctx, alone, wantOut, wantLse, q[at:end], k[at:end], v[at:end], nil, nil, scratch)
		requireWithin(t, "out", attentionTolerance[float32](), wide(wantOut), out[at:end])
		requireWithin(t, "lse", attentionTolerance[float32](), wide(wantLse), lse[full:full+n])
		requireBits(t, "out of a masked sequence", make([]float32, full*dim), out[:full*dim])
	})
}

// Scores far beyond the range of exp neither overflow nor lose the winner.
func TestAttentionLargeScores(t *testing.T) {
	a := Attention{Batch: 1, QLen: 1, KLen: 3, Heads: 1, HeadDim: 1, Scale: 1, QStride: 1, KStride: 1, VStride: 1, OutStride: 1}
	var ctx Context
	q, k, v := []float32{1e4}, []float32{-1, 1, 0.5}, []float32{3, 5, 7}
	out, lse, scratch := make([]float32, 1), make([]float32, 1), make([]float32, AttentionScratch(a))
	AttentionForward(&ctx, a, out, lse, q, k, v, nil, nil, scratch)
	require.Equal(t, []float32{5}, out)
	require.Equal(t, []float32{1e4}, lse)
	dq, dk, dv := garbage[float32](1), garbage[float32](3), garbage[float32](3)
	AttentionBackward(&ctx, a, dq, dk, dv, nil, q, k, v, out, lse, []float32{1}, nil, nil, scratch)
	require.Equal(t, []float32{0}, dq)
	require.Equal(t, []float32{0, 0, 0}, dk)
	require.Equal(t, []float32{0, 1, 0}, dv)
}
