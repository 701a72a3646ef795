package kernel

import (
	"cmp"
	"fmt"
	"math"
	"unsafe"

	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel/gemm"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// Attention is the geometry of multi-head scaled dot-product attention (Vaswani et al. 2017,
// https://arxiv.org/abs/1706.03762): out = softmax(Scale·q·kᵀ + bias)·v for each of Batch·Heads
// heads, with QLen queries and KLen keys and values of HeadDim columns. Batch may be 0; the other
// sizes must be positive.
//
// Queries, keys, values and outputs are read and written in place. Position t of batch b is row
// b·Len+t of its slice; rows are Stride elements apart, and head h is columns [h·HeadDim,
// (h+1)·HeadDim) of a row. A packed projection qkv [Batch, T, 3·D] is thus q = qkv, k = qkv[D:], v
// = qkv[2*D:], all with stride 3·D. The slices may be longer than needed; elements that belong to
// no head are neither read nor written.
type Attention struct {
	Batch, QLen, KLen, Heads, HeadDim int

	// KVHeads is the number of heads of keys and values, a divisor of Heads: head h reads head
	// h/(Heads/KVHeads) of them (grouped queries, Ainslie et al. 2023,
	// https://arxiv.org/abs/2305.13245). 0 means Heads.
	KVHeads int

	// Scale multiplies q·k. 0 means 1/sqrt(HeadDim); T5 uses 1.
	Scale float64

	// Causal hides from query i the keys j > i + KLen - QLen: the last query sees every key.
	Causal bool

	// Window hides from query i the keys j <= i + KLen - QLen - Window: with Causal, a query sees
	// Window keys at most. Without Causal it also hides the keys j >= i + KLen - QLen + Window, as
	// far after the query. 0 hides none.
	Window int

	// Positions, if not nil, are the positions [Batch, QLen] of queries and keys in their documents.
	// A document begins at position 0 and at the beginning of a sequence, and queries only see keys
	// of their document. QLen and KLen are equal then.
	Positions []int

	// QStride, KStride, VStride and OutStride are the distances, in elements, between consecutive
	// positions.
	QStride, KStride, VStride, OutStride int
}

// CheckPositions returns an error unless the positions of rows of some length count up, from 0 in
// each document. Only the first document of a row may begin later: it continues from another row.
func CheckPositions(positions []int, length int) error {
	for i, p := range positions {
		row, token := i/length, i%length
		switch {
		case token == 0 && p < 0:
			return fmt.Errorf("row %d begins at position %d: want 0, or more for a document that continues from another row", row, p)
		case token > 0 && p != 0 && p != positions[i-1]+1:
			return fmt.Errorf("token %d of row %d has position %d after position %d: want %d, or 0 where a document begins",
				token, row, p, positions[i-1], positions[i-1]+1)
		}
	}
	return nil
}

// queryBlock is the number of queries whose scores are held at once. A larger block makes the
// matrix products more efficient. A smaller one skips more of the hidden half of a causal mask and
// keeps the scores in the level-two cache. 56 is the height of four tiles of the AVX-512 float32
// product. At 256 tokens it is faster than 32, 42, 64, 84 and 128.
const queryBlock = 56

// AttentionScratch returns the number of scratch elements for [AttentionForward] and
// [AttentionBackward], whichever needs more: the scores of one block of queries and their gradient.
// Grouped heads also need copies of the block's queries and of the gradients of its outputs.
func AttentionScratch(a Attention) int {
	n := 2 * a.tileRows() * a.scoreStride()
	if a.group() > 1 {
		n += 2 * a.tileRows() * a.HeadDim
	}
	return n
}

// AttentionBFloat16Scratch is [AttentionScratch] for bfloat16 queries, keys and values. These also
// need the sums of the gradients of one head's keys and values, and a row of out and its gradient.
func AttentionBFloat16Scratch(a Attention) int {
	n := AttentionScratch(a) + 2*(a.KLen+1)*a.HeadDim
	if gemm.Tiles() {
		n = max(n, tilesScratch(a))
	}
	return n
}

// scoreStride is the distance, in elements, between rows of scores: the number of keys that a block
// of queries sees, plus a gap. The gap of sixteen keeps the rows of a block out of one cache set
// when KLen is a power of two. It is worth 5 to 10 % at 1,024 keys.
func (a Attention) scoreStride() int {
	switch {
	case a.Window == 0 || a.Window >= a.KLen:
		return a.KLen + 16
	case a.Causal:
		return min(a.KLen, a.Window+queryBlock) + 16
	}
	return min(a.KLen, 2*a.Window+queryBlock) + 16
}

// kvHeads returns the number of heads of keys and values.
func (a Attention) kvHeads() int { return cmp.Or(a.KVHeads, a.Heads) }

// group returns how many heads read one head of keys and values.
func (a Attention) group() int { return a.Heads / a.kvHeads() }

// tilePositions returns the number of queries of each head of a group in one block.
func (a Attention) tilePositions() int { return min(a.QLen, max(1, queryBlock/a.group())) }

// tileRows returns the number of queries in a block.
func (a Attention) tileRows() int { return a.tilePositions() * a.group() }

// sees returns the range [lo, hi) of keys that Causal and Window leave to query i.
func (a Attention) sees(i int) (lo, hi int) {
	hi = a.KLen
	at := i + a.KLen - a.QLen // index of the key at the query's position
	if a.Window > 0 {
		lo, hi = max(0, at+1-a.Window), max(0, min(hi, at+a.Window))
	}
	if a.Causal {
		hi = max(0, at+1)
	}
	return lo, hi
}

// Pairs returns the number of (query, key) pairs that Causal and Window leave in one head of one
// batch.
func (a Attention) Pairs() (n int) {
	for i := range a.QLen {
		lo, hi := a.sees(i)
		n += hi - lo
	}
	return n
}

// AttentionForward writes the heads of out [Batch, QLen, OutStride]. It saves the log-sum-exp of
// each row of scores in lse [Batch, Heads, QLen] for [AttentionBackward].
//
// keyMask is nil or [Batch, KLen]: a key is visible where it is not 0. bias is nil or [Heads, QLen,
// KLen], added to the scaled scores (relative positions, ALiBi). A query that sees no key gives out
// = 0 and lse = -Inf. Hidden keys and values must also be finite: they may be multiplied by zero.
//
// Queries, keys, values, outputs and their gradients may be bfloat16; everything else is then
// float32. The weights of the values, and the gradients of scores, are rounded for their products.
// Outputs and gradients are rounded once. Scratch has [AttentionBFloat16Scratch] elements then.
func AttentionForward[E Element, T Float](c *Context, a Attention, out []E, lse []T, q, k, v []E, keyMask []int, bias, scratch []T) {
	whole := newAttention(c, a, out, lse, q, k, v, keyMask, bias, scratch)
	whole.each(a.Batch*a.kvHeads(), func(p part, kv int) {
		o := whole.part(p)
		seen := o.visibleKeys()
		if usesTiles(&o, nil, seen) {
			forwardTiles((*attention[half.BFloat16, float32])(unsafe.Pointer(&o)), kv, seen)
			return
		}
		for q0 := 0; q0 < o.QLen; q0 += o.tilePositions() {
			o.forwardTile(o.tile(kv, q0, seen))
		}
	})
}

// part is the queries [q0, q1) and the keys [k0, k1) of a batch that may see each other: all of
// them, or a document.
type part struct{ batch, q0, q1, k0, k1 int }

// each calls f for each part of the thread's share of all heads of keys of all batches, batch by
// batch. A share consists of units: there are n of them for each batch, or with n = kvHeads one for
// each head, with all batches.
func (o *attention[E, T]) each(n int, f func(p part, kv int)) {
	lo, hi := o.c.Share(n, 1)
	heads := o.kvHeads()
	for b := range o.Batch {
		for p := (part{batch: b}); p.k1 < o.KLen; {
			p = o.next(p)
			for h := range heads {
				if i := (b*heads + h) % n; lo <= i && i < hi {
					f(p, h)
				}
			}
		}
	}
}

// next returns the part after p, whose queries and keys end where this one's begin.
func (o *attention[E, T]) next(p part) part {
	if o.Positions == nil {
		return part{p.batch, 0, o.QLen, 0, o.KLen}
	}
	positions, end := o.Positions[p.batch*o.KLen:][:o.KLen], p.k1+1
	for end < len(positions) && positions[end] != 0 {
		end++
	}
	return part{p.batch, p.k1, end, p.k1, end}
}

// part returns the attention of a part: its kernels compute the same as for a batch of one sequence
// with these queries and keys.
func (o *attention[E, T]) part(p part) attention[E, T] {
	s, q, k := *o, o.firstQuery(p), o.firstKey(p)
	s.QLen, s.KLen = p.q1-p.q0, p.k1-p.k0
	s.q, s.k, s.v = o.q[q*o.QStride:], o.k[k*o.KStride:], o.v[k*o.VStride:]
	s.out, s.lse = o.out[q*o.OutStride:], o.lse[p.batch*o.Heads*o.QLen+p.q0:]
	if o.keyMask != nil {
		s.keyMask = o.keyMask[k:][:s.KLen]
	}
	if o.bias != nil {
		s.bias = o.bias[o.firstBias(p):]
	}
	return s
}

// firstQuery returns the row of the first query of a part.
func (o *attention[E, T]) firstQuery(p part) int { return p.batch*o.QLen + p.q0 }

// firstKey returns the row of the first key of a part.
func (o *attention[E, T]) firstKey(p part) int { return p.batch*o.KLen + p.k0 }

// firstBias returns the index of the bias of the first query and key of a part.
func (o *attention[E, T]) firstBias(p part) int { return p.q0*o.KLen + p.k0 }

// forwardTile computes one block of queries.
func (o *attention[E, T]) forwardTile(t tile) {
	q, ldq := o.collect(t, 0, o.q, o.QStride)
	p := o.scores(t, q, ldq)
	for i := range t.rows {
		r := t.row(i)
		lo, hi, row := o.visible(t, p, r)
		o.lse[o.stat(r)] = vec.SoftmaxRow(row[lo:hi], row[lo:hi], 1)
		clear(row[:lo])
		clear(row[hi:])
	}
	weights, ld := o.elements(t, p)
	y, ldy := o.room(t, 0, o.out, o.OutStride)
	gemm.Gemm(&o.c.gemm, false, false, t.rows, o.HeadDim, t.keys, 1, weights, ld, o.v[t.k(o.VStride):], o.VStride, 0, y, ldy)
	o.distribute(t, y, o.out, o.OutStride)
}

// attention is one call, or a part of it: its geometry with the scale filled in, and its operands.
type attention[E Element, T Float] struct {
	Attention
	allQueries, allKeys int // QLen and KLen of the call, which lse and bias have
	c                   *Context
	q, k, v, out        []E
	keyMask             []int
	lse, bias           []T
	scratch             []T
}

func newAttention[E Element, T Float](c *Context, a Attention, out []E, lse []T, q, k, v []E, keyMask []int, bias, scratch []T) attention[E, T] {
	if a.Batch < 0 || min(a.QLen, a.KLen, a.Heads, a.HeadDim) < 1 || a.Window < 0 || a.kvHeads() < 1 || a.Heads%a.kvHeads() != 0 ||
		a.Positions != nil && a.QLen != a.KLen {
		panic(fmt.Sprintf("kernel: Attention: bad size in %+v", a))
	}
	width := a.kvHeads() * a.HeadDim
	checkRows("q", len(q), a.Batch*a.QLen, a.QStride, a.Heads*a.HeadDim)
	checkRows("k", len(k), a.Batch*a.KLen, a.KStride, width)
	checkRows("v", len(v), a.Batch*a.KLen, a.VStride, width)
	checkRows("out", len(out), a.Batch*a.QLen, a.OutStride, a.Heads*a.HeadDim)
	check("Attention", "lse", len(lse), a.Batch*a.Heads*a.QLen)
	if a.Positions != nil {
		check("Attention", "Positions", len(a.Positions), a.Batch*a.QLen)
	}
	if keyMask != nil {
		check("Attention", "keyMask", len(keyMask), a.Batch*a.KLen)
	}
	if bias != nil {
		check("Attention", "bias", len(bias), a.Heads*a.QLen*a.KLen)
	}
	need := AttentionScratch(a)
	if _, rounded := any(q).([]half.BFloat16); rounded {
		need = AttentionBFloat16Scratch(a)
	}
	if len(scratch) < need {
		panic(fmt.Sprintf("kernel: Attention: len(scratch) is %d, want at least %d", len(scratch), need))
	}
	if a.Scale == 0 {
		a.Scale = 1 / math.Sqrt(float64(a.HeadDim))
	}
	return attention[E, T]{
		Attention: a, allQueries: a.QLen, allKeys: a.KLen, c: c, q: q, k: k, v: v, out: out, keyMask: keyMask, lse: lse, bias: bias, scratch: scratch,
	}
}

// checkRows panics unless a slice holds rows of the given width at the given stride.
func checkRows(name string, got, rows, stride, width int) {
	if stride < width {
		panic(fmt.Sprintf("kernel: Attention: stride %d of %s is less than its %d columns", stride, name, width))
	}
	if need := (rows-1)*stride + width; rows > 0 && got < need {
		panic(fmt.Sprintf("kernel: Attention: len(%s) is %d, want at least %d", name, got, need))
	}
}

// keySpan is the part of a sequence that a key mask leaves: keys outside [lo, hi) are hidden, and
// some keys inside are hidden only if holes is true.
type keySpan struct {
	lo, hi int
	holes  bool
}

// visibleKeys returns the span of a part, so that padding at either end costs nothing.
func (o *attention[E, T]) visibleKeys() keySpan {
	s, mask := keySpan{hi: o.KLen}, o.keyMask
	if mask == nil {
		return s
	}
	for s.hi > 0 && mask[s.hi-1] == 0 {
		s.hi--
	}
	for s.lo < s.hi && mask[s.lo] == 0 {
		s.lo++
	}
	for _, m := range mask[s.lo:s.hi] {
		s.holes = s.holes || m == 0
	}
	return s
}

// tile is one block of queries of the heads that read the same keys, with the keys that any of
// these queries can see. Its rows are query q0 of each head, then the next query of each, and so
// on.
type tile struct {
	q0, queries int // queries [q0, q0+queries)
	head, heads int // of heads [head, head+heads)
	rows        int
	k0, keys    int // keys [k0, k0+keys)
	holes       bool
	kColumn     int // first column of their head in k and v
}

// row is a row of a tile.
type row struct{ i, head, query int }

// row returns row i.
func (t tile) row(i int) row {
	if t.heads == 1 { // without divisions
		return row{i, t.head, t.q0 + i}
	}
	return row{i, t.head + i%t.heads, t.q0 + i/t.heads}
}

func (o *attention[E, T]) tile(kv, q0 int, s keySpan) tile {
	n := min(o.tilePositions(), o.QLen-q0)
	lo, _ := o.sees(q0)
	_, hi := o.sees(q0 + n - 1)
	t := tile{q0: q0, queries: n, heads: o.group(), k0: max(lo, s.lo), holes: s.holes, kColumn: kv * o.HeadDim}
	t.keys = max(0, min(hi, s.hi)-t.k0)
	t.head, t.rows = kv*t.heads, n*t.heads
	return t
}

// k returns the offset of the tile's first key in a slice of the given stride.
func (t tile) k(stride int) int { return t.k0*stride + t.kColumn }

// rowOffset returns the offset of a row of a tile in q or out, of the given stride.
func (o *attention[E, T]) rowOffset(r row, stride int) int { return r.query*stride + r.head*o.HeadDim }

// stat returns the index of a row of a tile in lse.
func (o *attention[E, T]) stat(r row) int { return r.head*o.allQueries + r.query }

// room returns memory for rows of a tile, and the stride. It is part of x, which has the layout of
// q or out. For a group of heads, whose rows have no single stride, it is a slot of the scratch.
func (o *attention[E, T]) room(t tile, slot int, x []E, stride int) (rows []E, ld int) {
	if t.heads == 1 {
		return x[o.rowOffset(t.row(0), stride):], stride
	}
	n := o.tileRows()
	return low[E](o.scratch[2*n*o.scoreStride()+slot*n*o.HeadDim:][:n*o.HeadDim]), o.HeadDim
}

// collect returns the rows of a tile in x, and their stride.
func (o *attention[E, T]) collect(t tile, slot int, x []E, stride int) (rows []E, ld int) {
	rows, ld = o.room(t, slot, x, stride)
	for i := 0; i < t.queries && t.heads > 1; i++ {
		n := t.heads * ld
		copy(rows[i*n:][:n], x[o.rowOffset(t.row(i*t.heads), stride):])
	}
	return rows, ld
}

// distribute copies the rows of a tile to their places in x, unless room has returned these places.
func (o *attention[E, T]) distribute(t tile, rows, x []E, stride int) {
	for i := 0; i < t.queries && t.heads > 1; i++ {
		n := t.heads * o.HeadDim
		copy(x[o.rowOffset(t.row(i*t.heads), stride):][:n], rows[i*n:])
	}
}

// scores writes scale·q·kᵀ [t.rows, t.keys] of a tile into the first half of the scratch, at stride
// scoreStride.
func (o *attention[E, T]) scores(t tile, q []E, ld int) []T {
	s := o.scratch[:t.rows*o.scoreStride()]
	gemm.Gemm(&o.c.gemm, false, true, t.rows, t.keys, o.HeadDim, o.Scale, q, ld, o.k[t.k(o.KStride):], o.KStride, 0, s, o.scoreStride())
	return s
}

// elements returns the rows of a tile as operands of a product, and their stride. They are the rows
// of p, or these rows rounded in place: to the first half of their memory.
func (o *attention[E, T]) elements(t tile, p []T) (rows []E, stride int) {
	ld, rows := o.scoreStride(), low[E](p)
	rounded, ok := any(rows).([]half.BFloat16)
	if !ok {
		return rows, ld
	}
	wide := any(p).([]float32)
	for i := range t.rows {
		half.Narrow(rounded[2*i*ld:][:t.keys], wide[i*ld:][:t.keys])
	}
	return rows, 2 * ld
}

// low returns the memory of s as a slice of E, with at least as many elements.
func low[E Element, T Float](s []T) []E {
	if same, ok := any(s).([]E); ok {
		return same
	}
	return unsafe.Slice((*E)(unsafe.Pointer(unsafe.SliceData(s))), 2*len(s))
}

// visible returns a row of a tile's scores, with bias and mask applied to the elements [lo, hi)
// within reach of the query.
func (o *attention[E, T]) visible(t tile, s []T, r row) (lo, hi int, row []T) {
	row = s[r.i*o.scoreStride():][:t.keys]
	lo, hi = o.sees(r.query)
	hi = max(0, min(hi-t.k0, t.keys))
	lo = min(max(0, lo-t.k0), hi)
	if o.bias != nil {
		vec.Accumulate(row[lo:hi], o.biasRow(o.bias, t, r)[lo:hi])
	}
	if t.holes {
		hide := T(math.Inf(-1))
		for j := lo; j < hi; j++ {
			if o.keyMask[t.k0+j] == 0 {
				row[j] = hide
			}
		}
	}
	return lo, hi, row
}

// biasRow returns the row of a [Heads, QLen, KLen] array for a row of a tile, from the tile's first
// key on.
func (o *attention[E, T]) biasRow(bias []T, t tile, r row) []T {
	at := (r.head*o.allQueries + r.query) * o.allKeys
	return bias[at+t.k0 : at+o.KLen]
}
