package kit

import (
	"bytes"
	"cmp"
	"context"
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// A StrictGroup enforces the contract of comm.Group on one rank, which fast groups do not: from the
// call of a collective until Wait returns, the destination must not be read or written, and the
// source must not change. It computes on copies, fills the destination with NaN at the call, and
// delivers the result in Wait.
type StrictGroup struct {
	comm.Group
	Book *StrictBook
}

// StrictBook is the record of a StrictGroup and of the groups split from it.
type StrictBook struct {
	Wrong []string // violations of the contract
	Open  int      // collectives without a Wait
	Works int
	Fault error // error of every Wait once it is set
}

// NewStrictGroup returns a StrictGroup over g with an empty book.
func NewStrictGroup(g comm.Group) *StrictGroup { return &StrictGroup{g, &StrictBook{}} }

// Failing makes the group report its failures: see [transport.Failing].
func (g *StrictGroup) Failing() <-chan struct{} { return transport.Failing(g.Group) }

// Require requires that the contract was kept, and that no work is in flight.
func (b *StrictBook) Require(t require.TestingT) {
	require.Empty(t, b.Wrong)
	require.Zero(t, b.Open, "works of %d that nobody has waited for", b.Works)
}

type strictWork struct {
	comm.Work
	book           *StrictBook
	what           string
	dst, src       []byte // the user's
	result         []byte // where the copy arrives
	dstWas, srcWas []byte
	waited         bool
	err            error
}

// start begins a collective on copies of dst and src.
func (g *StrictGroup) start(kind string, dst, src comm.Buffer, begin func(dst, src comm.Buffer) comm.Work) comm.Work {
	to := duplicate(dst)
	w := &strictWork{
		Work: begin(to, duplicate(src)), book: g.Book, what: fmt.Sprintf("rank %d: %s of %q", g.Rank(), kind, dst.Label()),
		dst: dst.Bytes(), src: src.Bytes(), result: to.Bytes(),
	}
	for i := range w.dst {
		w.dst[i] = 0xff // NaN in every type
	}
	w.dstWas, w.srcWas = bytes.Clone(w.dst), bytes.Clone(w.src) // src may be a part of dst, or the other way round
	g.Book.Works++
	g.Book.Open++
	return w
}

// Wait checks that the buffers were not touched, and delivers the result.
func (w *strictWork) Wait(ctx context.Context) error {
	if w.waited {
		return w.err
	}
	w.waited = true
	w.book.Open--
	if !bytes.Equal(w.dst, w.dstWas) {
		w.book.Wrong = append(w.book.Wrong, w.what+": the destination was written before Wait")
	}
	if !bytes.Equal(w.src, w.srcWas) {
		w.book.Wrong = append(w.book.Wrong, w.what+": the source was written before Wait")
	}
	if w.err = cmp.Or(w.Work.Wait(ctx), w.book.Fault); w.err == nil {
		copy(w.dst, w.result)
	}
	return w.err
}

// AllGather implements comm.Group.
func (g *StrictGroup) AllGather(dst, src comm.Buffer) comm.Work {
	return g.start("all-gather", dst, src, g.Group.AllGather)
}

// ReduceScatter implements comm.Group.
func (g *StrictGroup) ReduceScatter(dst, src comm.Buffer, op comm.Op) comm.Work {
	return g.start("reduce-scatter", dst, src, func(dst, src comm.Buffer) comm.Work { return g.Group.ReduceScatter(dst, src, op) })
}

// AllReduce implements comm.Group.
func (g *StrictGroup) AllReduce(buf comm.Buffer, op comm.Op) comm.Work {
	return g.start("all-reduce", buf, buf, func(buf, _ comm.Buffer) comm.Work { return g.Group.AllReduce(buf, op) })
}

// Broadcast implements comm.Group.
func (g *StrictGroup) Broadcast(buf comm.Buffer, root int) comm.Work {
	return g.start("broadcast", buf, buf, func(buf, _ comm.Buffer) comm.Work { return g.Group.Broadcast(buf, root) })
}

// Gather implements comm.Group.
func (g *StrictGroup) Gather(dst, src comm.Buffer, counts []int, root int) comm.Work {
	return g.start("gather", dst, src, func(dst, src comm.Buffer) comm.Work { return g.Group.Gather(dst, src, counts, root) })
}

// Split implements comm.Group.
func (g *StrictGroup) Split(ctx context.Context, color, key int) (comm.Group, error) {
	part, err := g.Group.Split(ctx, color, key)
	if part == nil || err != nil {
		return nil, err
	}
	return &StrictGroup{part, g.Book}, nil
}

// duplicate returns a copy of b in other memory.
func duplicate(b comm.Buffer) comm.Buffer {
	switch b.DType() {
	case comm.Float64:
		return duplicateOf[float64](b)
	case comm.Float32:
		return duplicateOf[float32](b)
	case comm.BFloat16:
		return duplicateOf[comm.BF16](b)
	case comm.Float16:
		return duplicateOf[comm.F16](b)
	case comm.Int64:
		return duplicateOf[int64](b)
	case comm.Int32:
		return duplicateOf[int32](b)
	default:
		return duplicateOf[uint8](b)
	}
}

func duplicateOf[T comm.Elem](b comm.Buffer) comm.Buffer {
	c := comm.Of(make([]T, b.Len())).Named(b.Label())
	copy(c.Bytes(), b.Bytes())
	return c
}
