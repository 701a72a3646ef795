package kernel

import (
	"unsafe"

	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel/gemm"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// AttentionBackward is the gradient of [AttentionForward]. It overwrites the heads of dq, dk and
// dv, which have the strides of q, k and v and may be columns of one packed array. It also
// overwrites dbias [Heads, QLen, KLen] unless that is nil. out and lse are the results of
// AttentionForward, and dout [Batch, QLen, OutStride] is the gradient of out. A query that saw no
// key has zero gradients. The gradients of keys and values are sums over the heads that read them,
// and the gradient of bias is a sum over the batch.
//
// With P = exp(S - lse) recomputed from the scores S, and D = rowsum(dout∘out):
//
//	dv = Pᵀ·dout    dS = P∘(dout·vᵀ - D)    dbias = dS    dq = Scale·dS·k    dk = Scale·dSᵀ·q
func AttentionBackward[E Element, T Float](c *Context, a Attention, dq, dk, dv []E, dbias []T, q, k, v, out []E, lse []T, dout []E,
	keyMask []int, bias, scratch []T) {
	o := newAttention(c, a, out, lse, q, k, v, keyMask, bias, scratch)
	width, kvWidth := a.Heads*a.HeadDim, a.kvHeads()*a.HeadDim
	checkRows("dq", len(dq), a.Batch*a.QLen, a.QStride, width)
	checkRows("dk", len(dk), a.Batch*a.KLen, a.KStride, kvWidth)
	checkRows("dv", len(dv), a.Batch*a.KLen, a.VStride, kvWidth)
	checkRows("dout", len(dout), a.Batch*a.QLen, a.OutStride, width)
	if dbias != nil {
		check("Attention", "dbias", len(dbias), a.Heads*a.QLen*a.KLen)
	}
	whole := attentionGrad[E, T]{attention: o, dq: dq, dk: dk, dv: dv, dbias: dbias, dout: dout}
	units := a.Batch * a.kvHeads()
	if dbias != nil {
		units = a.kvHeads() // the batches add to the same elements, in their order
		lo, hi := c.Share(units, 1)
		of := a.group() * a.QLen * a.KLen
		clear(dbias[lo*of : hi*of])
	}
	whole.each(units, func(p part, kv int) {
		g := whole.part(p)
		seen := g.visibleKeys()
		if usesTiles(&g.attention, dbias, seen) {
			keyHeadTiles((*attentionGrad[half.BFloat16, float32])(unsafe.Pointer(&g)), kv, seen)
			return
		}
		g.keyHead(kv, seen)
	})
}

// attentionGrad is one backward call.
type attentionGrad[E Element, T Float] struct {
	attention[E, T]
	dq, dk, dv, dout []E
	dbias            []T
}

// part returns the gradient of a part.
func (g *attentionGrad[E, T]) part(p part) attentionGrad[E, T] {
	q, k := g.firstQuery(p), g.firstKey(p)
	s := attentionGrad[E, T]{
		attention: g.attention.part(p),
		dq:        g.dq[q*g.QStride:], dk: g.dk[k*g.KStride:], dv: g.dv[k*g.VStride:], dout: g.dout[q*g.OutStride:],
	}
	if g.dbias != nil {
		s.dbias = g.dbias[g.firstBias(p):]
	}
	return s
}

// keyHead computes the gradients of one head of keys and values, and of the queries of all heads
// that read it. It visits the blocks of queries from the last to the first. Without a window, the
// last block sees every key that any block sees. So it writes all non-zero elements of dk and dv,
// and the other blocks add to some of them.
func (g *attentionGrad[E, T]) keyHead(kv int, seen keySpan) {
	n := g.tilePositions()
	q0 := (g.QLen - 1) / n * n
	all := g.tile(kv, q0, seen)
	var beta float64
	if g.Window > 0 {
		all.k0, all.keys = 0, g.KLen
		g.clearSums(all)
		beta = 1
	}
	g.clearKeys(all, 0, all.k0)
	g.clearKeys(all, all.k0+all.keys, g.KLen)
	for ; q0 >= 0; q0 -= n {
		g.tileGrad(g.tile(kv, q0, seen), beta)
		beta = 1
	}
	g.roundKeys(all)
}

// clearKeys zeroes the rows [lo, hi) of a head's dk and dv.
func (g *attentionGrad[E, T]) clearKeys(t tile, lo, hi int) {
	for r := lo; r < hi; r++ {
		clear(g.dk[r*g.KStride+t.kColumn:][:g.HeadDim])
		clear(g.dv[r*g.VStride+t.kColumn:][:g.HeadDim])
	}
}

// clearSums zeroes the sums of the gradients of a tile's keys and values.
func (g *attentionGrad[E, T]) clearSums(t tile) {
	dk, dv, kStride, vStride := g.keySums(t)
	for r := range t.keys {
		clear(dk[r*kStride:][:g.HeadDim])
		clear(dv[r*vStride:][:g.HeadDim])
	}
}

// keySums returns the memory for the sums of the gradients of a tile's keys and values, and the
// strides. It is part of dk and dv, or scratch for bfloat16.
func (g *attentionGrad[E, T]) keySums(t tile) (dk, dv []T, kStride, vStride int) {
	if dk, ok := any(g.dk).([]T); ok {
		return dk[t.k(g.KStride):], any(g.dv).([]T)[t.k(g.VStride):], g.KStride, g.VStride
	}
	d := g.HeadDim
	sums := g.scratch[AttentionScratch(g.Attention):]
	return sums[t.k0*d:], sums[(g.KLen+t.k0)*d:], d, d
}

// roundKeys writes the gradients of a tile's keys and values to dk and dv, unless keySums has
// returned dk and dv themselves.
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

// delta returns the dot product of a head's outputs and their gradients, which begin at index at.
func (g *attentionGrad[E, T]) delta(at int) T {
	d := g.HeadDim
	if out, ok := any(g.out).([]T); ok {
		return vec.Dot(out[at:at+d], any(g.dout).([]T)[at:at+d])
	}
	rows := any(g.scratch[AttentionScratch(g.Attention)+2*g.KLen*d:]).([]float32)
	return T(delta(rows, any(g.out).([]half.BFloat16)[at:], any(g.dout).([]half.BFloat16)[at:], d))
}

// tileGrad writes dq of one block of queries. It adds the block's share of dk and dv to beta times
// their present values.
func (g *attentionGrad[E, T]) tileGrad(t tile, beta float64) {
	ws, lds, d := &g.c.gemm, g.scoreStride(), g.HeadDim
	k, v := g.k[t.k(g.KStride):], g.v[t.k(g.VStride):]
	q, ldq := g.collect(t, 0, g.q, g.QStride)
	dout, ldo := g.collect(t, 1, g.dout, g.OutStride)

	p := g.scores(t, q, ldq)
	ds := g.scratch[len(p) : 2*len(p)]
	gemm.Gemm(ws, false, true, t.rows, t.keys, d, 1, dout, ldo, v, g.VStride, 0, ds, lds)
	for i := range t.rows {
		r := t.row(i)
		lo, hi, row := g.visible(t, p, r)
		slope := ds[i*lds:][:t.keys]
		softmaxGrad(row, slope, lo, hi, g.lse[g.stat(r)], g.delta(g.rowOffset(r, g.OutStride)))
		if g.dbias != nil {
			vec.Accumulate(g.biasRow(g.dbias, t, r)[lo:hi], slope[lo:hi])
		}
	}
	dk, dv, kStride, vStride := g.keySums(t)
	weights, wld := g.elements(t, p)
	slopes, sld := g.elements(t, ds)
	gemm.Gemm(ws, true, false, t.keys, d, t.rows, 1, weights, wld, dout, ldo, beta, dv, vStride)
	dq, ld := g.room(t, 1, g.dq, g.QStride) // dout is no longer needed
	gemm.Gemm(ws, false, false, t.rows, d, t.keys, g.Scale, slopes, sld, k, g.KStride, 0, dq, ld)
	g.distribute(t, dq, g.dq, g.QStride)
	gemm.Gemm(ws, true, false, t.keys, d, t.rows, g.Scale, slopes, sld, q, ldq, beta, dk, kStride)
}

// softmaxGrad converts a row of scores to probabilities, and the gradient of the probabilities to
// the gradient of the scores. Only the elements [lo, hi) of both rows are visible; the rest becomes
// zero. An lse of -Inf (no visible key) gives zeros.
func softmaxGrad[T Float](p, ds []T, lo, hi int, lse, delta T) {
	vec.ExpSubSum(p[lo:hi], p[lo:hi], 1, lse)
	vec.SoftmaxGradRow(ds[lo:hi], p[lo:hi], ds[lo:hi], delta, 1)
	for _, row := range [][]T{p, ds} {
		clear(row[:lo])
		clear(row[hi:])
	}
}
