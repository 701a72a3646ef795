package kernel

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel/gemm"
)

// attentionCase is a drawn attention with its operands, laid out as one packed buffer per side.
type attentionCase[T Float] struct {
	a             Attention
	q, k, v, dout []T
	keyMask       []int
	bias          []T
	out, lse      []T
	dq, dk, dv    []T
	dbias         []T
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
	if rapid.Bool().Draw(t, "square") {
		a.KLen = a.QLen
	}
	a.KVHeads = a.Heads
	a.Heads *= rapid.SampledFrom([]int{1, 1, 2, 3}).Draw(t, "group")
	if rapid.Bool().Draw(t, "with window") {
		a.Window = rapid.IntRange(1, maxLen).Draw(t, "window")
	}
	width, kv := a.Heads*a.HeadDim, a.KVHeads*a.HeadDim
	a.QStride, a.KStride, a.VStride, a.OutStride = width+drawGap(t), kv+drawGap(t), kv+drawGap(t), width+drawGap(t)
	c := &attentionCase[T]{a: a}
	q, k, v, out := a.Batch*a.QLen*a.QStride, a.Batch*a.KLen*a.KStride, a.Batch*a.KLen*a.VStride, a.Batch*a.QLen*a.OutStride
	c.q, c.k, c.v, c.dout = src.normal(q), src.normal(k), src.normal(v), src.normal(out)
	c.out, c.lse = garbage[T](out), garbage[T](a.Batch*a.Heads*a.QLen)
	c.dq, c.dk, c.dv = garbage[T](q), garbage[T](k), garbage[T](v)
	c.scratch = garbage[T](AttentionScratch(a))
	if rapid.Bool().Draw(t, "with bias") {
		c.bias = src.normal(a.Heads * a.QLen * a.KLen)
		c.dbias = garbage[T](len(c.bias))
	}
	if rapid.Bool().Draw(t, "with mask") {
		c.keyMask = drawMask(t, src, a)
	}
	if a.QLen == a.KLen {
		c.a.Positions = drawPositions(t, a.Batch, a.KLen)
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
	width, kv := a.Heads*a.HeadDim, a.KVHeads*a.HeadDim
	requireHeads(t, "out", attentionTolerance[T](), out, c.out, a.OutStride, width)
	requireWithin(t, "lse", attentionTolerance[T](), lse, c.lse)

	c.backward(&ctx)
	dq, dk, dv := make([]float64, len(c.q)), make([]float64, len(c.k)), make([]float64, len(c.v))
	dbias := make([]float64, a.Heads*a.QLen*a.KLen)
	NaiveAttentionBackward(nil, a, dq, dk, dv, dbias, q, k, v, out, nil, wide(c.dout), c.keyMask, bias, nil)
	requireHeads(t, "dq", attentionTolerance[T](), dq, c.dq, a.QStride, width)
	requireHeads(t, "dk", attentionTolerance[T](), dk, c.dk, a.KStride, kv)
	requireHeads(t, "dv", attentionTolerance[T](), dv, c.dv, a.VStride, kv)
	if c.dbias != nil {
		requireWithin(t, "dbias", attentionTolerance[T](), dbias, c.dbias)
	}
}

// attentionTolerance is wider than elsewhere: scores reach ±20 here, and exp turns their absolute
// error into a relative one.
func attentionTolerance[T Float]() float64 { return 20 * tolerance[T]() }

// requireHeads compares the columns of heads and demands that the columns between rows still hold
// garbage.
func requireHeads[T Float](t require.TestingT, name string, tol float64, want []float64, got []T, stride, width int) {
	for r := 0; r < len(got); r += stride {
		requireWithin(t, name, tol, want[r:r+width], got[r:r+width])
		for _, v := range got[r+width : r+stride] {
			require.True(t, math.IsNaN(float64(v)), "%s: a column of no head was written", name)
		}
	}
}

// TestAttentionBFloat16 compares with the formulas in float64, rounded where the kernel rounds. What
// lies next to a tie may be rounded the other way: 2^-7 of the largest in a tensor, a unit in its last
// place or two, is allowed.
func TestAttentionBFloat16(t *testing.T) { eachBFloat16(t, attentionBFloat16) }

// eachBFloat16 runs a test twice: with this machine's products of bfloat16, and with tiles in Go.
func eachBFloat16(t *testing.T, f func(t *testing.T)) {
	t.Run("this machine", f)
	restore := gemm.EmulateTiles()
	defer restore()
	t.Run("tiles in Go", f)
}

func attentionBFloat16(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawAttention[float32](t, rapid.SampledFrom([]int{2*queryBlock + 10, 2*queryBlock + 10, 2*dqKeys + 10}).Draw(t, "longest"))
		rounded := func(x []float32) []half.BFloat16 {
			y := make([]half.BFloat16, len(x))
			half.Narrow(y, x)
			half.Widen(x, y)
			return y
		}
		q, k, v, dout, out := rounded(f.q), rounded(f.k), rounded(f.v), rounded(f.dout), rounded(f.out)
		dq, dk, dv := rounded(f.dq), rounded(f.dk), rounded(f.dv)
		scratch := garbage[float32](AttentionBFloat16Scratch(f.a))
		var ctx Context
		AttentionForward(&ctx, f.a, out, f.lse, q, k, v, f.keyMask, f.bias, scratch)
		AttentionBackward(&ctx, f.a, dq, dk, dv, f.dbias, q, k, v, out, f.lse, dout, f.keyMask, f.bias, scratch)

		a, r := f.a, newRoundedAttention(f)
		for b := range a.Batch {
			for h := range a.Heads {
				for i := range a.QLen {
					r.query(b, h, i)
				}
			}
		}
		requireWithin(t, "lse", attentionTolerance[float32](), r.lse, f.lse)
		width, kv := a.Heads*a.HeadDim, a.KVHeads*a.HeadDim
		for _, r := range []struct {
			name          string
			want          []float64
			got           []half.BFloat16
			stride, width int
		}{{"out", r.out, out, a.OutStride, width}, {"dq", r.dq, dq, a.QStride, width},
			{"dk", r.dk, dk, a.KStride, kv}, {"dv", r.dv, dv, a.VStride, kv}} {
			got, largest := make([]float32, len(r.got)), 1.0
			half.Widen(got, r.got)
			for _, w := range r.want {
				largest = max(largest, math.Abs(w))
			}
			requireHeads(t, r.name, 0x1p-7*largest, r.want, got, r.stride, r.width)
		}
		if f.dbias != nil {
			requireWithin(t, "dbias", 0x1p-7, r.dbias, f.dbias)
		}
	})
}

// roundedAttention is attention and its gradient by their formulas, with the roundings of bfloat16.
type roundedAttention struct {
	*attentionCase[float32]
	out, lse, dq, dk, dv, dbias []float64
}

func newRoundedAttention(f *attentionCase[float32]) *roundedAttention {
	zeros := func(n int) []float64 { return make([]float64, n) }
	return &roundedAttention{f, zeros(len(f.out)), zeros(len(f.lse)), zeros(len(f.q)), zeros(len(f.k)), zeros(len(f.v)), zeros(len(f.dbias))}
}

func toBFloat16(x float64) float64 { return float64(half.ToBFloat16(float32(x)).Float32()) }

// query adds what query i of a head has a part in.
func (r *roundedAttention) query(b, h, i int) {
	a, scale := r.a, r.a.Scale
	if scale == 0 {
		scale = 1 / math.Sqrt(float64(a.HeadDim))
	}
	at := func(row, stride int) int { return row*stride + h*a.HeadDim }
	keyAt := func(row, stride int) int { return row*stride + h/(a.Heads/a.KVHeads)*a.HeadDim }
	q, o, stat := at(b*a.QLen+i, a.QStride), at(b*a.QLen+i, a.OutStride), (b*a.Heads+h)*a.QLen+i
	scores, sum := make([]float64, a.KLen), 0.0
	for j := range scores {
		scores[j] = math.Inf(-1)
		place := i + a.KLen - a.QLen
		if a.Causal && j > place || a.Window > 0 && max(j-place, place-j) >= a.Window || r.keyMask != nil && r.keyMask[b*a.KLen+j] == 0 ||
			a.Positions != nil && naiveDocument(a, b, i) != naiveDocument(a, b, j) {
			continue
		}
		scores[j] = scale * dot(wide(r.q[q:q+a.HeadDim]), wide(r.k[keyAt(b*a.KLen+j, a.KStride):][:a.HeadDim]))
		if r.bias != nil {
			scores[j] += float64(r.bias[(h*a.QLen+i)*a.KLen+j])
		}
		sum += math.Exp(scores[j])
	}
	r.lse[stat] = math.Log(sum)
	delta := 0.0
	for c := range a.HeadDim {
		for j, s := range scores {
			if sum > 0 {
				r.out[o+c] += toBFloat16(math.Exp(s)/sum) * float64(r.v[keyAt(b*a.KLen+j, a.VStride)+c])
			}
		}
		r.out[o+c] = toBFloat16(r.out[o+c])
		delta += r.out[o+c] * float64(r.dout[o+c])
	}
	for j, s := range scores {
		if math.IsInf(s, -1) {
			continue
		}
		k, v := keyAt(b*a.KLen+j, a.KStride), keyAt(b*a.KLen+j, a.VStride)
		p := math.Exp(s) / sum
		ds := p * (dot(wide(r.dout[o:o+a.HeadDim]), wide(r.v[v:v+a.HeadDim])) - delta)
		if r.bias != nil {
			r.dbias[(h*a.QLen+i)*a.KLen+j] += ds
		}
		p, ds = toBFloat16(p), toBFloat16(ds)
		for c := range a.HeadDim {
			r.dq[q+c] += scale * ds * float64(r.k[k+c])
			r.dk[k+c] += scale * ds * float64(r.q[q+c])
			r.dv[v+c] += p * float64(r.dout[o+c])
		}
	}
}

func TestAttentionBFloat16Packed(t *testing.T) {
	const batch, length, d = 2, 70, 24
	a := Attention{Batch: batch, QLen: length, KLen: length, Heads: 3, HeadDim: d / 3, Causal: true,
		QStride: 3 * d, KStride: 3 * d, VStride: 3 * d, OutStride: d}
	qkv, dout := make([]half.BFloat16, batch*length*3*d), make([]half.BFloat16, batch*length*d)
	half.Narrow(qkv, random[float32](len(qkv)))
	half.Narrow(dout, random[float32](len(dout)))
	out, dqkv := make([]half.BFloat16, len(dout)), make([]half.BFloat16, len(qkv))
	lse, scratch := make([]float32, batch*a.Heads*length), make([]float32, AttentionBFloat16Scratch(a))
	var c Context
	run := func() {
		AttentionForward(&c, a, out, lse, qkv, qkv[d:], qkv[2*d:], nil, nil, scratch)
		AttentionBackward(&c, a, dqkv, dqkv[d:], dqkv[2*d:], nil, qkv, qkv[d:], qkv[2*d:], out, lse, dout, nil, nil, scratch)
	}
	run()
	apart := a
	apart.QStride, apart.KStride, apart.VStride = d, d, d
	var x, dx [3][]half.BFloat16
	for i := range x {
		x[i], dx[i] = make([]half.BFloat16, len(dout)), make([]half.BFloat16, len(dout))
		for r := range batch * length {
			copy(x[i][r*d:][:d], qkv[(3*r+i)*d:])
		}
	}
	want := make([]half.BFloat16, len(out))
	AttentionForward(&c, apart, want, lse, x[0], x[1], x[2], nil, nil, scratch)
	require.Equal(t, want, out)
	AttentionBackward(&c, apart, dx[0], dx[1], dx[2], nil, x[0], x[1], x[2], out, lse, dout, nil, nil, scratch)
	for i := range x {
		for r := range batch * length {
			require.Equal(t, dx[i][r*d:][:d], dqkv[(3*r+i)*d:][:d])
		}
	}
	require.Zero(t, testing.AllocsPerRun(2, run))
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

// TestAttentionDecodes attends with the last query alone, over keys that are kept: the same bits as with
// a copy of the keys for each head, and as that query has in a block that ends with it.
func TestAttentionDecodes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src := newSource[float32](t)
		const dim = 4
		group, kv, keys := rapid.IntRange(1, 4).Draw(t, "group"), rapid.IntRange(1, 2).Draw(t, "kv heads"), rapid.IntRange(1, 90).Draw(t, "keys")
		one := Attention{Batch: 1, QLen: 1, KLen: keys, Heads: kv * group, KVHeads: kv, HeadDim: dim, Causal: true,
			QStride: kv * group * dim, KStride: kv * dim, VStride: kv * dim, OutStride: kv * group * dim}
		if rapid.Bool().Draw(t, "with window") {
			one.Window = rapid.IntRange(1, 100).Draw(t, "window")
		}
		width := one.OutStride
		q, k, v, bias := src.normal(keys*width), src.normal(keys*kv*dim), src.normal(keys*kv*dim), src.normal(one.Heads*keys)
		run := func(a Attention, q, k, v, bias []float32) (out, lse []float32) {
			var c Context
			out, lse = garbage[float32](a.QLen*width), garbage[float32](a.Heads*a.QLen)
			AttentionForward(&c, a, out, lse, q, k, v, nil, bias, garbage[float32](AttentionScratch(a)))
			return out, lse
		}
		last := q[(keys-1)*width:]
		out, lse := run(one, last, k, v, bias)

		apart := one
		apart.KVHeads, apart.KStride, apart.VStride = one.Heads, width, width
		wantOut, wantLse := run(apart, last, repeatHeads(k, group, dim), repeatHeads(v, group, dim), bias)
		requireBits(t, "out", wantOut, out)
		requireBits(t, "lse", wantLse, lse)

		all := one
		all.QLen = keys
		out, _ = run(one, last, k, v, nil)
		wantOut, _ = run(all, q, k, v, nil)
		if one.Window == 0 {
			requireBits(t, "out of the last of all", wantOut[(keys-1)*width:], out)
		}
		requireWithin(t, "out of the last of all", attentionTolerance[float32](), wide(wantOut[(keys-1)*width:]), out)
	})
}

// repeatHeads returns rows of heads of which each of x stands group times.
func repeatHeads(x []float32, group, dim int) (y []float32) {
	for i := range len(x) / dim * group {
		y = append(y, x[i/group*dim:][:dim]...)
	}
	return y
}
