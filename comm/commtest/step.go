package commtest

import (
	"fmt"

	"github.com/gofsdp/gofsdp/comm"
)

// The collectives that a step can be; also the names that [Call] uses.
const (
	AllGather     = "all-gather"
	ReduceScatter = "reduce-scatter"
	AllReduce     = "all-reduce"
	Broadcast     = "broadcast"
	Gather        = "gather"
	Barrier       = "barrier"
	Split         = "split"
	AllToAll      = "all-to-all"
)

// step is one collective with made-up contents. Every rank can compute the contents of every other,
// and therefore the result.
type step struct {
	kind    string
	dtype   comm.DType
	op      comm.Op
	root    int
	len     int  // of a shard or part, or of the one buffer; about so in a gather
	inPlace bool // in a gather only the root is
	seed    uint64
	rounded bool // sums of floats are right within rounding
}

func (s step) String() string {
	return fmt.Sprintf("%s %v[%d] %v root %d in place %t", s.kind, s.dtype, s.len, s.op, s.root, s.inPlace)
}

// counts returns the lengths of the shards of a gather: equal ones, different ones,
// or some empty.
func (s step) counts(n int) []int {
	counts := make([]int, n)
	for r := range counts {
		h := mix(s.seed<<8 | uint64(r))
		counts[r] = s.len
		switch s.seed % 4 {
		case 1, 2:
			counts[r] = int(h % uint64(2*s.len+1))
		case 3:
			counts[r] *= int(h % 3)
		}
	}
	return counts
}

func total(counts []int) (sum int) {
	for _, n := range counts {
		sum += n
	}
	return sum
}

// issue starts s on one rank. check compares the buffers with the reference and
// may be called once Wait has returned nil.
func (s step) issue(g comm.Group) (w comm.Work, check func() error) {
	switch s.dtype {
	case comm.Float32:
		return issue(s, g, plain[float32]())
	case comm.Float64:
		return issue(s, g, plain[float64]())
	case comm.Int32:
		return issue(s, g, plain[int32]())
	case comm.Int64:
		return issue(s, g, plain[int64]())
	case comm.BFloat16:
		return issue(s, g, widened[comm.BF16](bfloat16))
	case comm.Float16:
		return issue(s, g, widened[comm.F16](float16))
	default:
		return issue(s, g, plain[uint8]())
	}
}

func issue[T comm.Elem](s step, g comm.Group, a arithmetic[T]) (comm.Work, func() error) {
	n, rank := g.Size(), g.Rank()
	label := fmt.Sprintf("t%x", s.seed)
	named := func(x []T) comm.Buffer { return comm.Of(x).Named(label) }
	var w comm.Work
	var dst, src guarded[T]
	switch s.kind {
	case AllGather:
		dst, src = guard(make([]T, n*s.len)), guard(a.input(s, rank, 0, s.len))
		if s.inPlace {
			own := dst.x[rank*s.len : (rank+1)*s.len]
			copy(own, src.x)
			w = g.AllGather(named(dst.x), named(own))
		} else {
			w = g.AllGather(named(dst.x), named(src.x))
		}
	case ReduceScatter:
		dst, src = guard(make([]T, s.len)), guard(a.input(s, rank, 0, n*s.len))
		if s.inPlace {
			own := src.x[rank*s.len : (rank+1)*s.len]
			w = g.ReduceScatter(named(own), named(src.x), s.op)
			return w, func() error { return a.check(s, rank, n, own) }
		}
		w = g.ReduceScatter(named(dst.x), named(src.x), s.op)
	case AllToAll:
		dst, src = guard(make([]T, n*s.len)), guard(a.input(s, rank, 0, n*s.len))
		w = g.AllToAll(named(dst.x), named(src.x))
	case AllReduce:
		dst = guard(a.input(s, rank, 0, s.len))
		w = g.AllReduce(named(dst.x), s.op)
	case Broadcast:
		dst = guard(a.input(s, rank, 0, s.len))
		w = g.Broadcast(named(dst.x), s.root)
	case Gather:
		counts := s.counts(n)
		src, dst = guard(a.input(s, rank, 0, counts[rank])), guard(make([]T, len(a.result(s, rank, n))))
		from, to := named(src.x), comm.Buffer{}
		if rank == s.root || len(dst.x) > 0 { // otherwise there is none
			to = comm.Of(dst.x)
		}
		if rank == s.root && s.inPlace {
			first := total(counts[:rank])
			own := dst.x[first : first+counts[rank]]
			copy(own, src.x)
			from = named(own)
		}
		w = g.Gather(to, from, counts, s.root)
	}
	return w, func() error {
		if !dst.intact() || !src.intact() {
			return fmt.Errorf("%v: rank %d: the collective has written outside its buffers", s, rank)
		}
		if err := a.compare(s, rank, src.x, a.input(s, rank, 0, len(src.x))); err != nil {
			return fmt.Errorf("src was written: %w", err)
		}
		return a.check(s, rank, n, dst.x)
	}
}

// guarded is a buffer inside memory whose other bytes must not change.
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
