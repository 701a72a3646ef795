package kernel

import (
	"math"

	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel/gemm"
	"github.com/gofsdp/gofsdp/internal/kernel/scores"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// On processors with bfloat16 tiles (AMX), attention packs the factors of its products once for
// each head of keys, and reads scores once: package scores converts them to rows of bfloat16, which
// the next product reads in place. Attention with a bias, or with a key mask with holes, runs the
// code of attention.go.
//
// Forward processes strips of 32 queries:
//
//	s [32, keys] = Scale·q·kᵀ    p = softmax(s)    out = p·v
//
// Backward processes strips of 32 keys. Transposed scores have queries along their rows, so the
// log-sum-exps are a vector, and all sums over queries are one product:
//
//	s [32, queries] = Scale·k·qᵀ    dp = v·doutᵀ    p = exp(s - lse)    ds = p∘(dp - D)
//	dv = p·dout                     dk = Scale·ds·q
//
// ds is kept for [dqKeys] keys, and dq += Scale·dsᵀ·k is summed in float32. With grouped heads the
// queries of all heads of a group follow each other, and the queries of each head are padded to
// strips.

// dqKeys is the number of keys whose gradients of scores are kept before they are multiplied for
// dq.
const dqKeys = 4 * strip

// strip is the number of rows in a product of tiles.
const strip = scores.MostRows

// usesTiles reports whether a head of a batch is computed with tiles. In that case E is bfloat16, T
// is float32, and attention[E, T] is the type that the tile code takes.
func usesTiles[E Element, T Float](o *attention[E, T], dbias []T, seen keySpan) bool {
	_, low := any(o.q).([]half.BFloat16)
	return low && gemm.Tiles() && o.bias == nil && dbias == nil && !seen.holes
}

// padded rounds n up to a multiple of a strip.
func padded(n int) int { return (n + strip - 1) / strip * strip }

// gap is the number of unused elements between rows of strips: see [Attention.scoreStride].
const gap = 32

// tileBuffers are parts of the scratch.
type tileBuffers struct{ rest []float32 }

func (b *tileBuffers) floats(n int) (s []float32) {
	s, b.rest = b.rest[:n:n], b.rest[n:]
	return s
}

func (b *tileBuffers) low(n int) []half.BFloat16 {
	return low[half.BFloat16](b.floats((n + 1) / 2))[:n]
}

// tilesScratch returns the number of scratch elements for attention with tiles.
func tilesScratch(a Attention) int {
	queries, keys, d := a.group()*padded(a.QLen), padded(a.KLen), a.HeadDim
	wide := padded(d)
	forward := keys*wide + strip*(keys+gap) + strip*(keys+gap)/2
	backward := 2*queries*wide + keys*wide/2 + queries*d + 2*strip*(queries+gap) + (strip+dqKeys)*(queries+gap)/2 + 2*queries +
		2*strip*d + 2*d
	return max(forward, backward)
}

// forwardTiles computes the queries that read one head of keys.
func forwardTiles(o *attention[half.BFloat16, float32], kv int, seen keySpan) {
	d, w, keys := o.HeadDim, &o.c.gemm, seen.hi
	buffers := tileBuffers{o.scratch}
	kPanel, vPanel := gemm.TilePanel(d), gemm.TilePanel(keys)
	kt, v := buffers.low(padded(o.KLen)*padded(d)), buffers.low(padded(o.KLen)*padded(d))
	lds := padded(o.KLen) + gap
	s, p := buffers.floats(strip*lds), buffers.low(strip*lds)
	gemm.PackTiles(w, kt, kPanel, true, keys, d, o.k[kv*d:], o.KStride)
	gemm.PackTiles(w, v, vPanel, false, d, keys, o.v[kv*d:], o.VStride)
	var spans [strip]scores.Span
	for h := kv * o.group(); h < (kv+1)*o.group(); h++ {
		for q0 := 0; q0 < o.QLen; q0 += strip {
			rows := min(strip, o.QLen-q0)
			lo, hi := o.querySpans(spans[:rows], q0, seen)
			cols := padded(hi - lo)
			gemm.GemmTiles(w, false, rows, hi-lo, d, o.Scale, o.q[q0*o.QStride+h*d:], o.QStride, kt[lo/strip*kPanel:], kPanel, 0, s, lds)
			scores.Softmax(p, lds, s, lds, cols, spans[:rows], o.lse[h*o.allQueries+q0:][:rows])
			gemm.GemmTiles(w, false, rows, d, cols, 1, p, lds, v[lo*strip:], vPanel, 0, o.out[q0*o.OutStride+h*d:], o.OutStride)
		}
	}
}

// querySpans sets the spans of keys that the queries from q0 on see. The spans count from lo, a
// multiple of a strip. All these keys are in [lo, hi).
func (o *attention[E, T]) querySpans(spans []scores.Span, q0 int, seen keySpan) (lo, hi int) {
	lo = math.MaxInt
	for i := range spans {
		from, to := o.sees(q0 + i)
		from, to = max(from, seen.lo), min(to, seen.hi)
		if from >= to {
			from, to = 0, 0
		} else {
			lo, hi = min(lo, from), max(hi, to)
		}
		spans[i] = scores.Span{Lo: int32(from), Hi: int32(to)}
	}
	return align(spans, lo, hi)
}

// keySpans sets the spans of queries that see the keys from k0 on. The spans count from lo, a
// multiple of a strip. All these queries are in [lo, hi).
func (o *attention[E, T]) keySpans(spans []scores.Span, k0 int, seen keySpan) (lo, hi int) {
	lo = math.MaxInt
	shift := o.KLen - o.QLen // index of the key at a query's position, minus the query's index
	for i := range spans {
		key, from, to := k0+i, 0, o.QLen
		if o.Window > 0 {
			from, to = max(0, key-shift-o.Window+1), min(to, key-shift+o.Window)
		}
		if o.Causal {
			from = max(0, key-shift)
		}
		if from >= to || key < seen.lo || key >= seen.hi {
			from, to = 0, 0
		} else {
			lo, hi = min(lo, from), max(hi, to)
		}
		spans[i] = scores.Span{Lo: int32(from), Hi: int32(to)}
	}
	return align(spans, lo, hi)
}

// align makes spans count from lo rounded down to a multiple of a strip, which it returns as from.
// If all spans are empty it returns zeros.
func align(spans []scores.Span, lo, hi int) (from, to int) {
	if lo > hi {
		return 0, 0
	}
	lo = lo / strip * strip
	shiftSpans(spans, -lo)
	return lo, hi
}

// shiftSpans shifts the spans that are not empty.
func shiftSpans(spans []scores.Span, by int) {
	for i, s := range spans {
		if s.Lo < s.Hi {
			spans[i] = scores.Span{Lo: s.Lo + int32(by), Hi: s.Hi + int32(by)}
		}
	}
}

// tileGrads is the backward pass of a head of keys.
type tileGrads struct {
	attentionGrad[half.BFloat16, float32]
	kv                      int
	queries                 int             // of a head, padded
	qt, doutt               []half.BFloat16 // panels of queries, k of HeadDim
	q, dout, k              []half.BFloat16 // panels of HeadDim columns
	across, along, keyPanel int             // elements of these panels
	sums                    []float32       // dq [heads, queries, HeadDim]
	s, dp                   []float32       // [strip, stride]
	p, ds                   []half.BFloat16 // [strip, stride] and [dqKeys, stride]
	stride                  int             // of these rows
	logs, deltas            []float32       // [heads, queries]
	heads                   [2][]float32    // sums of dk and dv over heads
	spans                   [dqKeys]scores.Span
}

// keyHeadTiles computes the results of keyHead.
func keyHeadTiles(g *attentionGrad[half.BFloat16, float32], kv int, seen keySpan) {
	d, n := g.HeadDim, g.group()*padded(g.QLen)
	buffers := tileBuffers{g.scratch}
	t := tileGrads{attentionGrad: *g, kv: kv, queries: padded(g.QLen), stride: n + gap,
		across: gemm.TilePanel(d), along: gemm.TilePanel(n), keyPanel: gemm.TilePanel(g.KLen)}
	t.qt, t.doutt = buffers.low(n*padded(d)), buffers.low(n*padded(d))
	t.q, t.dout = buffers.low(n*padded(d)), buffers.low(n*padded(d))
	t.k = buffers.low(padded(g.KLen) * padded(d))
	t.sums = buffers.floats(n * d)
	t.s, t.dp = buffers.floats(strip*t.stride), buffers.floats(strip*t.stride)
	t.p, t.ds = buffers.low(strip*t.stride), buffers.low(dqKeys*t.stride)
	t.logs, t.deltas = buffers.floats(n), buffers.floats(n)
	t.heads = [2][]float32{buffers.floats(strip * d), buffers.floats(strip * d)}
	t.pack(buffers.floats(2 * d))
	for k0 := 0; k0 < g.KLen; k0 += dqKeys {
		t.keys(k0, min(k0+dqKeys, g.KLen), seen)
	}
	t.roundQueries()
}

// pack packs all factors, and copies the log-sum-exps and deltas.
func (t *tileGrads) pack(rows []float32) {
	d, w := t.HeadDim, &t.c.gemm
	clear(t.sums)
	gemm.PackTiles(w, t.k, t.keyPanel, false, d, t.KLen, t.attention.k[t.kv*d:], t.KStride)
	for i := range t.group() {
		h, first := t.kv*t.group()+i, i*t.queries
		q, dout := t.attention.q[h*d:], t.attentionGrad.dout[h*d:]
		gemm.PackTiles(w, t.qt[first/strip*t.across:], t.across, true, t.QLen, d, q, t.QStride)
		gemm.PackTiles(w, t.doutt[first/strip*t.across:], t.across, true, t.QLen, d, dout, t.OutStride)
		gemm.PackTiles(w, t.q[first*strip:], t.along, false, d, t.QLen, q, t.QStride)
		gemm.PackTiles(w, t.dout[first*strip:], t.along, false, d, t.QLen, dout, t.OutStride)
		copy(t.logs[first:], t.lse[h*t.allQueries:][:t.QLen])
		for j := range t.QLen {
			t.deltas[first+j] = delta(rows, t.out[j*t.OutStride+h*d:], dout[j*t.OutStride:], d)
		}
	}
}

// keys computes dk and dv of keys k0 to k1, at most dqKeys of them, and adds their part of dq.
func (t *tileGrads) keys(k0, k1 int, seen keySpan) {
	d, w := t.HeadDim, &t.c.gemm
	var lows [dqKeys / strip]int
	lo, hi := math.MaxInt, 0 // queries that see any of the keys
	for i := k0; i < k1; i += strip {
		from, to := t.keySpans(t.spans[i-k0:min(i+strip, k1)-k0], i, seen)
		lows[(i-k0)/strip] = from
		if from < to {
			lo, hi = min(lo, from), max(hi, padded(to))
		}
	}
	if lo >= hi {
		t.clearKeys(tile{kColumn: t.kv * d}, k0, k1)
		return
	}
	for i := k0; i < k1; i += strip {
		spans := t.spans[i-k0 : min(i+strip, k1)-k0]
		shiftSpans(spans, lows[(i-k0)/strip]-lo)
		t.strip(i, k0, lo, hi, lows[(i-k0)/strip], spans)
	}
	for h := range t.group() {
		at := h*t.queries + lo
		gemm.GemmTiles(w, true, min(hi, t.QLen)-lo, d, k1-k0, t.Scale, t.ds[at:], t.stride, t.k[k0*strip:], t.keyPanel,
			1, t.sums[at*d:], d)
	}
}

// strip computes dk and dv of the keys from i on, and their ds for queries lo to hi. Queries before
// first see none of these keys.
func (t *tileGrads) strip(i, k0, lo, hi, first int, spans []scores.Span) {
	d, w, rows := t.HeadDim, &t.c.gemm, len(spans)
	k, v := t.attention.k[i*t.KStride+t.kv*d:], t.attention.v[i*t.VStride+t.kv*d:]
	dk, dv := t.dk[i*t.KStride+t.kv*d:], t.dv[i*t.VStride+t.kv*d:]
	first = max(first, lo)
	ds := t.ds[(i-k0)*t.stride:]
	for h := range t.group() {
		at, from := h*t.queries+lo, h*t.queries+first
		gemm.GemmTiles(w, false, rows, hi-first, d, t.Scale, k, t.KStride, t.qt[from/strip*t.across:], t.across, 0, t.s[from:], t.stride)
		gemm.GemmTiles(w, false, rows, hi-first, d, 1, v, t.VStride, t.doutt[from/strip*t.across:], t.across, 0, t.dp[from:], t.stride)
		scores.Slopes(t.p[at:], ds[at:], t.stride, t.s[at:], t.dp[at:], t.stride, hi-lo, spans, t.logs[at:], t.deltas[at:])
		if t.group() == 1 {
			gemm.GemmTiles(w, false, rows, d, hi-first, 1, t.p[from:], t.stride, t.dout[from*strip:], t.along, 0, dv, t.VStride)
			gemm.GemmTiles(w, false, rows, d, hi-first, t.Scale, ds[from:], t.stride, t.q[from*strip:], t.along, 0, dk, t.KStride)
			continue
		}
		beta := float64(min(1, h))
		gemm.GemmTiles(w, false, rows, d, hi-first, 1, t.p[from:], t.stride, t.dout[from*strip:], t.along, beta, t.heads[1], d)
		gemm.GemmTiles(w, false, rows, d, hi-first, t.Scale, ds[from:], t.stride, t.q[from*strip:], t.along, beta, t.heads[0], d)
	}
	for r := 0; r < rows && t.group() > 1; r++ {
		half.Narrow(dk[r*t.KStride:][:d], t.heads[0][r*d:])
		half.Narrow(dv[r*t.VStride:][:d], t.heads[1][r*d:])
	}
}

// roundQueries rounds the sums to dq.
func (t *tileGrads) roundQueries() {
	d := t.HeadDim
	for i := range t.group() {
		for j := range t.QLen {
			at := j*t.QStride + (t.kv*t.group()+i)*d
			half.Narrow(t.dq[at:][:d], t.sums[(i*t.queries+j)*d:])
		}
	}
}

// delta returns the dot product of d elements. rows is float32 memory for them.
func delta(rows []float32, out, dout []half.BFloat16, d int) float32 {
	if product, ok := vec.DotBFloat16(out[:d], dout[:d]); ok {
		return product
	}
	half.Widen(rows[:d], out)
	half.Widen(rows[d:2*d], dout)
	return float32(vec.Dot(rows[:d], rows[d:2*d]))
}
