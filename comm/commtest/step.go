package commtest

import (
	"bytes"
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/comm"
)

// The collectives that a step can be; also the names that [Call] uses.
const (
	AllGather     = "all-gather"
	ReduceScatter = "reduce-scatter"
	AllReduce     = "all-reduce"
	Broadcast     = "broadcast"
	Barrier       = "barrier"
	Split         = "split"
)

// step is one collective with made-up contents, which every rank can work out
// for every other, and therefore knows the result.
type step struct {
	kind    string
	dtype   comm.DType
	op      comm.Op
	root    int
	len     int // of a shard, or of the one buffer
	inPlace bool
	seed    uint64
}

func (s step) String() string {
	return fmt.Sprintf("%s %v[%d] %v root %d in place %t", s.kind, s.dtype, s.len, s.op, s.root, s.inPlace)
}

// issue starts s on one rank. check compares the buffers with the reference and
// may be called once Wait has returned nil.
func (s step) issue(g comm.Group) (w comm.Work, check func() error) {
	switch s.dtype {
	case comm.Float32:
		return issue[float32](s, g)
	case comm.Float64:
		return issue[float64](s, g)
	case comm.Int32:
		return issue[int32](s, g)
	case comm.Int64:
		return issue[int64](s, g)
	default:
		return issue[uint8](s, g)
	}
}

func issue[T comm.Elem](s step, g comm.Group) (comm.Work, func() error) {
	n, rank := g.Size(), g.Rank()
	label := fmt.Sprintf("t%x", s.seed)
	named := func(x []T) comm.Buffer { return comm.Of(x).Named(label) }
	var w comm.Work
	var dst, src guarded[T]
	switch s.kind {
	case AllGather:
		dst, src = guard(make([]T, n*s.len)), guard(input[T](s, rank, 0, s.len))
		if s.inPlace {
			own := dst.x[rank*s.len : (rank+1)*s.len]
			copy(own, src.x)
			w = g.AllGather(named(dst.x), named(own))
		} else {
			w = g.AllGather(named(dst.x), named(src.x))
		}
	case ReduceScatter:
		dst, src = guard(make([]T, s.len)), guard(input[T](s, rank, 0, n*s.len))
		if s.inPlace {
			own := src.x[rank*s.len : (rank+1)*s.len]
			w = g.ReduceScatter(named(own), named(src.x), s.op)
			return w, func() error { return compare(s, rank, own, result[T](s, rank, n)) }
		}
		w = g.ReduceScatter(named(dst.x), named(src.x), s.op)
	case AllReduce:
		dst = guard(input[T](s, rank, 0, s.len))
		w = g.AllReduce(named(dst.x), s.op)
	case Broadcast:
		dst = guard(input[T](s, rank, 0, s.len))
		w = g.Broadcast(named(dst.x), s.root)
	}
	return w, func() error {
		if !dst.intact() || !src.intact() {
			return fmt.Errorf("%v: rank %d: memory beside the buffers was written", s, rank)
		}
		if err := compare(s, rank, src.x, input[T](s, rank, 0, len(src.x))); err != nil {
			return fmt.Errorf("src was written: %w", err)
		}
		return compare(s, rank, dst.x, result[T](s, rank, n))
	}
}

// guarded is a buffer inside memory whose other bytes must stay as they are.
type guarded[T comm.Elem] struct{ all, x []T }

const margin = 5 // elements on either side; odd, so that buffers are not well aligned

func guard[T comm.Elem](x []T) guarded[T] {
	all := make([]T, len(x)+2*margin)
	for i := range margin {
		all[i], all[len(all)-1-i] = 77, 77
	}
	g := guarded[T]{all, all[margin : margin+len(x)]}
	copy(g.x, x)
	return g
}

func (g guarded[T]) intact() bool {
	if g.all == nil {
		return true
	}
	for i := range margin {
		if g.all[i] != 77 || g.all[len(g.all)-1-i] != 77 {
			return false
		}
	}
	return true
}

// input makes elements [lo, hi) of what rank contributes. Floats differ in
// magnitude so much that every other order of summation shows.
func input[T comm.Elem](s step, rank, lo, hi int) []T {
	x := make([]T, hi-lo)
	var half T = 1
	half /= 2 // 0 for integers
	base := mix(s.seed<<8|uint64(rank)) + uint64(lo)
	for i := range x {
		h := mix(base + uint64(i))
		switch {
		case half == 0:
			x[i] = T(h >> 1)
		case h%31 == 0 && (s.op == comm.Max || s.op == comm.Min):
			x[i] = T(math.NaN())
		default:
			magnitude := math.Float64frombits((1000 + h&31) << 52) // a power of two
			x[i] = T(float64(int64(h)) * magnitude)
		}
	}
	return x
}

// mix is the finalizer of SplitMix64, a hash of 64 bits.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// result is what rank must find in its destination: the naive reference.
func result[T comm.Elem](s step, rank, n int) []T {
	switch s.kind {
	case AllGather:
		var all []T
		for r := range n {
			all = append(all, input[T](s, r, 0, s.len)...)
		}
		return all
	case Broadcast:
		return input[T](s, s.root, 0, s.len)
	}
	lo := 0
	if s.kind == ReduceScatter {
		lo = rank * s.len
	}
	srcs := make([][]T, n)
	for r := range srcs {
		srcs[r] = input[T](s, r, lo, lo+s.len)
	}
	out := reduce(srcs, s.op)
	if s.op == comm.Avg {
		for i := range out {
			out[i] *= 1 / T(n)
		}
	}
	return out
}

// reduce combines the sources along the canonical tree, overwriting them.
func reduce[T comm.Elem](srcs [][]T, op comm.Op) []T {
	if len(srcs) == 1 {
		return srcs[0]
	}
	mid := 1
	for 2*mid < len(srcs) {
		mid *= 2
	}
	a, b := reduce(srcs[:mid], op), reduce(srcs[mid:], op)
	for i := range a {
		switch op {
		case comm.Max:
			a[i] = max(a[i], b[i])
		case comm.Min:
			a[i] = min(a[i], b[i])
		default:
			a[i] += b[i]
		}
	}
	return a
}

// compare requires equal bits, or NaN on both sides.
func compare[T comm.Elem](s step, rank int, got, want []T) error {
	if bytes.Equal(comm.Of(got).Bytes(), comm.Of(want).Bytes()) {
		return nil
	}
	for i := range want {
		if got[i] != want[i] && (got[i] == got[i] || want[i] == want[i]) {
			return fmt.Errorf("%v: rank %d: element %d is %v, want %v", s, rank, i, got[i], want[i])
		}
	}
	return nil
}
