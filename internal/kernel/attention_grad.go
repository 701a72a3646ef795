package kernel

import (
	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel/gemm"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// AttentionBackward is the gradient of [AttentionForward]: it overwrites the heads of dq, dk and
// dv, which have the strides of q, k and v and may be columns of one packed array, and adds to
// dbias [Heads, QLen, KLen] unless that is nil. out and lse are what AttentionForward wrote, dout
// [Batch, QLen, OutStride] is the gradient of out. A query that saw no key has zero gradients.
//
// With P = exp(S - lse) recomputed from the scores S, and D = rowsum(dout∘out):
//
//	dv = Pᵀ·dout    dS = P∘(dout·vᵀ - D)    dbias += dS    dq = Scale·dS·k    dk = Scale·dSᵀ·q
func AttentionBackward[E Element, T Float](c *Context, a Attention, dq, dk, dv []E, dbias []T, q, k, v, out []E, lse []T, dout []E,
	keyMask []int, bias, scratch []T) {
	o := newAttention(c, a, q, k, v, keyMask, bias, scratch)
	width := a.Heads * a.HeadDim
	checkRows("dq", len(dq), a.Batch*a.QLen, a.QStride, width)
	checkRows("dk", len(dk), a.Batch*a.KLen, a.KStride, width)
	checkRows("dv", len(dv), a.Batch*a.KLen, a.VStride, width)
	checkRows("out", len(out), a.Batch*a.QLen, a.OutStride, width)
	checkRows("dout", len(dout), a.Batch*a.QLen, a.OutStride, width)
	check("Attention", "lse", len(lse), a.Batch*a.Heads*a.QLen)
	if dbias != nil {
		check("Attention", "dbias", len(dbias), a.Heads*a.QLen*a.KLen)
	}
	g := attentionGrad[E, T]{attention: o, dq: dq, dk: dk, dv: dv, dbias: dbias, out: out, lse: lse, dout: dout}
	units := a.Batch * a.Heads
	if dbias != nil {
		units = a.Heads // the batches add to the same elements, in their order
	}
	g.each(units, g.head)
}

// attentionGrad is one backward call.
type attentionGrad[E Element, T Float] struct {
	attention[E, T]
	dq, dk, dv, out, dout []E
	dbias, lse            []T
}

// head goes through the blocks of queries from the last to the first: the last one sees every key
// that any of them sees, so it writes all of dk and dv that is not zero, and the others add to a
// part of it.
func (g *attentionGrad[E, T]) head(b, h int, seen keySpan) {
	last := g.tile(b, h, (g.QLen-1)/queryBlock*queryBlock, seen)
	g.clearKeys(last, b*g.KLen, last.kRow)
	g.clearKeys(last, last.kRow+last.keys, (b+1)*g.KLen)
	var beta float64
	for q0 := last.q0; q0 >= 0; q0 -= queryBlock {
		g.tileGrad(g.tile(b, h, q0, seen), beta)
		beta = 1
	}
	g.roundKeys(last)
}

// clearKeys zeroes a head's dk and dv of the key rows [lo, hi).
func (g *attentionGrad[E, T]) clearKeys(t tile, lo, hi int) {
	for r := lo; r < hi; r++ {
		clear(g.dk[r*g.KStride+t.column:][:g.HeadDim])
		clear(g.dv[r*g.VStride+t.column:][:g.HeadDim])
	}
}

// keySums returns where the gradients of a tile's keys and values are summed, and the strides: where
// they belong, or in the scratch for bfloat16.
func (g *attentionGrad[E, T]) keySums(t tile) (dk, dv []T, kStride, vStride int) {
	if dk, ok := any(g.dk).([]T); ok {
		return dk[t.k(g.KStride):], any(g.dv).([]T)[t.k(g.VStride):], g.KStride, g.VStride
	}
	d := g.HeadDim
	sums := g.scratch[AttentionScratch(g.Attention):]
	return sums[t.k0*d:], sums[(g.KLen+t.k0)*d:], d, d
}

// roundKeys writes the gradients of a tile's keys and values where they belong, if they are not
// there.
func (g *attentionGrad[E, T]) roundKeys(t tile) {
	dk, ok := any(g.dk).([]half.BFloat16)
	if !ok {
		return
	}
	dv, d := any(g.dv).([]half.BFloat16), g.HeadDim
	k, v, _, _ := g.keySums(t)
	wideK, wideV := any(k).([]float32), any(v).([]float32)
	for r := range t.keys {
		half.Narrow(dk[t.k(g.KStride)+r*g.KStride:][:d], wideK[r*d:])
		half.Narrow(dv[t.k(g.VStride)+r*g.VStride:][:d], wideV[r*d:])
	}
}

// delta returns the sum of the products of row i of a tile's outputs and of their gradients.
func (g *attentionGrad[E, T]) delta(t tile, i int) T {
	at, d := t.q(g.OutStride)+i*g.OutStride, g.HeadDim
	if out, ok := any(g.out).([]T); ok {
		return vec.Dot(out[at:at+d], any(g.dout).([]T)[at:at+d])
	}
	rows := any(g.scratch[AttentionScratch(g.Attention)+2*g.KLen*d:]).([]float32)
	half.Widen(rows[:d], any(g.out).([]half.BFloat16)[at:])
	half.Widen(rows[d:2*d], any(g.dout).([]half.BFloat16)[at:])
	return T(vec.Dot(rows[:d], rows[d:2*d]))
}

// tileGrad writes dq of one block of queries, and its share of dk and dv: added to beta times what
// is there.
func (g *attentionGrad[E, T]) tileGrad(t tile, beta float64) {
	ws, ld, d := &g.c.gemm, g.scoreStride(), g.HeadDim
	q, k, v := g.q[t.q(g.QStride):], g.k[t.k(g.KStride):], g.v[t.k(g.VStride):]
	dout := g.dout[t.q(g.OutStride):]

	p := g.scores(t)
	ds := g.scratch[len(p) : 2*len(p)]
	gemm.Gemm(ws, false, true, t.rows, t.keys, d, 1, dout, g.OutStride, v, g.VStride, 0, ds, ld)
	for i := range t.rows {
		n, row := g.row(t, p, i)
		softmaxGrad(row, ds[i*ld:][:t.keys], n, g.lse[t.stat+i], g.delta(t, i))
		if g.dbias != nil {
			vec.Accumulate(g.biasRow(g.dbias, t, i)[:n], ds[i*ld:][:n])
		}
	}
	dk, dv, kStride, vStride := g.keySums(t)
	weights, wld := g.elements(t, p)
	slopes, sld := g.elements(t, ds)
	gemm.Gemm(ws, true, false, t.keys, d, t.rows, 1, weights, wld, dout, g.OutStride, beta, dv, vStride)
	gemm.Gemm(ws, false, false, t.rows, d, t.keys, g.Scale, slopes, sld, k, g.KStride, 0, g.dq[t.q(g.QStride):], g.QStride)
	gemm.Gemm(ws, true, false, t.keys, d, t.rows, g.Scale, slopes, sld, q, g.QStride, beta, dk, kStride)
}

// softmaxGrad turns a row of scores into probabilities, and the gradient of the probabilities into
// that of the scores. Only the first n elements of both rows are visible; the rest becomes zero. An
// lse of -Inf (no visible key) gives zeros.
func softmaxGrad[T Float](p, ds []T, n int, lse, delta T) {
	vec.ExpSubSum(p[:n], p[:n], 1, lse)
	vec.SoftmaxGradRow(ds[:n], p[:n], ds[:n], delta, 1)
	clear(p[n:])
	clear(ds[n:])
}
