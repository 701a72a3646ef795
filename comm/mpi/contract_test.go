//go:build mpi && cgo && unix

package mpi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// dtypes are all element types, floats first.
var dtypes = []comm.DType{
	comm.Float32, comm.Float64, comm.BFloat16, comm.Float16, comm.Int32, comm.Int64, comm.Uint8,
}

const floats = 4 // of dtypes

// contract checks what this package adds to the contract of all groups, on groups
// split from the world.
func contract(t *rank) {
	piece = 64 << 10 // so that tensors of moderate size have several
	t.join(time.Minute)
	require.Panics(t, func() { fmt.Println(*t.none) }, "MPI has not taken Go's signals")
	for _, check := range []func(*rank, comm.Group){
		checkCollectives, checkAllocations, checkCancel, checkConcurrent, checkMany,
	} {
		g, err := t.Split(t.ctx(), 0, 0)
		require.NoError(t, err)
		check(t, g)
		require.NoError(t, g.Close())
		require.NoError(t, t.Barrier(t.ctx()))
	}
	require.NoError(t, t.Close())
	require.NoError(t, t.Close())
	require.ErrorIs(t, t.Barrier(t.ctx()), comm.ErrClosed)
}

func (t *rank) ctx() context.Context { return context.Background() }

// noise fills b with what a rank contributes, of magnitudes that make every order
// of summation give other bits.
func noise(b comm.Buffer, seed, rank int) {
	rng := rand.New(rand.NewPCG(uint64(seed), uint64(rank)))
	value := func() float32 { return (rng.Float32() - 0.5) * float32(int(1)<<rng.IntN(14)) }
	wide := make([]float32, b.Len())
	for i := range wide {
		wide[i] = value()
	}
	switch b.DType() {
	case comm.Float32:
		x, _ := comm.Slice[float32](b)
		copy(x, wide)
	case comm.Float64:
		x, _ := comm.Slice[float64](b)
		for i := range x {
			x[i] = float64(wide[i]) / 3
		}
	case comm.BFloat16:
		x, _ := comm.Slice[comm.BF16](b)
		comm.Narrow(x, wide)
	case comm.Float16:
		x, _ := comm.Slice[comm.F16](b)
		comm.Narrow(x, wide)
	default:
		for i, x := 0, b.Bytes(); i < len(x); i++ {
			x[i] = byte(rng.Uint32())
		}
	}
}

// buffer makes a buffer of n elements, not well aligned.
func buffer(d comm.DType, n int) comm.Buffer {
	switch d {
	case comm.Float32:
		return comm.Of(make([]float32, n+1)[1:])
	case comm.Float64:
		return comm.Of(make([]float64, n+1)[1:])
	case comm.BFloat16:
		return comm.Of(make([]comm.BF16, n+1)[1:])
	case comm.Float16:
		return comm.Of(make([]comm.F16, n+1)[1:])
	case comm.Int32:
		return comm.Of(make([]int32, n+1)[1:])
	case comm.Int64:
		return comm.Of(make([]int64, n+1)[1:])
	}
	return comm.Of(make([]byte, n+1)[1:])
}

// operation is a collective with made-up contents.
type operation struct {
	kind    transport.Kind
	op      comm.Op
	dtype   comm.DType
	len     int // of a shard, or of the one buffer; in a gather of the shards 0 and 1
	root    int
	inPlace bool
}

func (o operation) String() string {
	return fmt.Sprintf("%v %v %v[%d] root %d in place %t", o.kind, o.op, o.dtype, o.len, o.root, o.inPlace)
}

// issue starts o with the contents of the rank of g. result is where it shows.
func (o operation) issue(g comm.Group, seed int) (w comm.Work, result comm.Buffer) {
	n, r := g.Size(), g.Rank()
	switch o.kind {
	case transport.KindAllGather:
		dst, src := buffer(o.dtype, n*o.len), buffer(o.dtype, o.len)
		if o.inPlace {
			src = dst.Slice(r*o.len, (r+1)*o.len)
		}
		noise(src, seed, r)
		return g.AllGather(dst, src), dst
	case transport.KindReduceScatter:
		dst, src := buffer(o.dtype, o.len), buffer(o.dtype, n*o.len)
		if o.inPlace {
			dst = src.Slice(r*o.len, (r+1)*o.len)
		}
		noise(src, seed, r)
		return g.ReduceScatter(dst, src, o.op), dst
	case transport.KindAllReduce:
		buf := buffer(o.dtype, o.len)
		noise(buf, seed, r)
		return g.AllReduce(buf, o.op), buf
	case transport.KindGather:
		counts, total, first := make([]int, n), 0, 0
		for i := range counts {
			counts[i] = []int{o.len, o.len, 0, 3 * o.len}[i%4]
			if i < r {
				first += counts[i]
			}
			total += counts[i]
		}
		src := buffer(o.dtype, counts[r])
		if r != o.root {
			noise(src, seed, r)
			return g.Gather(comm.Buffer{}, src, counts, o.root), comm.Buffer{}
		}
		dst := buffer(o.dtype, total)
		if o.inPlace {
			src = dst.Slice(first, first+counts[r])
		}
		noise(src, seed, r)
		return g.Gather(dst, src, counts, o.root), dst
	default:
		buf := buffer(o.dtype, o.len)
		noise(buf, seed, r)
		return g.Broadcast(buf, o.root), buf
	}
}

// check runs o and compares the result, bit for bit, with that of a local group.
func (o operation) check(t *rank, g comm.Group, seed int) {
	w, got := o.issue(g, seed)
	require.NoError(t, w.Wait(t.ctx()), o)
	want := make([]comm.Buffer, g.Size())
	works := make([]comm.Work, g.Size())
	local := comm.Local(g.Size())
	for r, l := range local {
		works[r], want[r] = o.issue(l, seed)
	}
	for r, l := range local {
		require.NoError(t, works[r].Wait(t.ctx()))
		defer l.Close()
	}
	if !bytes.Equal(want[g.Rank()].Bytes(), got.Bytes()) {
		require.Fail(t, "other bits than those of a local group", o.String())
	}
}

// operations lists every form of every collective with shards of the given length.
func operations(n, length int, dtypes []comm.DType, ops ...comm.Op) (list []operation) {
	for _, d := range dtypes {
		for _, inPlace := range []bool{false, true} {
			list = append(list, operation{kind: transport.KindAllGather, dtype: d, len: length, inPlace: inPlace})
			for _, op := range ops {
				if op == comm.Avg && (d == comm.Int32 || d == comm.Int64 || d == comm.Uint8) {
					continue
				}
				list = append(list, operation{kind: transport.KindReduceScatter, op: op, dtype: d, len: length, inPlace: inPlace})
				if inPlace {
					list = append(list, operation{kind: transport.KindAllReduce, op: op, dtype: d, len: length})
				}
			}
		}
		for root := range n {
			list = append(list, operation{kind: transport.KindBroadcast, dtype: d, len: length, root: root})
			for _, inPlace := range []bool{false, true} {
				list = append(list, operation{kind: transport.KindGather, dtype: d, len: length, root: root, inPlace: inPlace})
			}
		}
	}
	return list
}

// checkCollectives tries lengths around what fits in a call, in a piece, and in a
// block.
func checkCollectives(t *rank, g comm.Group) {
	seed := 0
	for _, c := range []struct {
		length int
		dtypes []comm.DType
		ops    []comm.Op
	}{
		{0, dtypes, []comm.Op{comm.Sum}},
		{17, dtypes, []comm.Op{comm.Sum, comm.Avg, comm.Max, comm.Min}},
		{1025, dtypes, []comm.Op{comm.Sum, comm.Avg}},
		{4097, dtypes, []comm.Op{comm.Sum, comm.Avg}},
		{70001, dtypes[:floats], []comm.Op{comm.Avg}},
		{300007, dtypes[:1], []comm.Op{comm.Sum}},
	} {
		for _, o := range operations(g.Size(), c.length, c.dtypes, c.ops...) {
			seed++
			o.check(t, g, seed)
		}
	}
}

// sum is an ordinary collective, for checks that only care whether it works.
func sum(ctx context.Context, g comm.Group) error {
	x := []float32{float32(g.Rank() + 1)}
	if err := g.AllReduce(comm.Of(x), comm.Sum).Wait(ctx); err != nil {
		return err
	}
	if want := float32(g.Size() * (g.Size() + 1) / 2); x[0] != want {
		return fmt.Errorf("sum of ranks: %v, want %v", x[0], want)
	}
	return nil
}

// blamed requires that the error blames a rank, for a cause.
func blamed(t *rank, err error, who int, cause error) {
	t.Helper()
	var blame *comm.RankError
	require.ErrorAs(t, err, &blame)
	require.Equal(t, who, blame.Rank, err)
	require.ErrorIs(t, err, cause)
}

// checkCancel has rank 0 give up waiting, before and after it has sent its call.
func checkCancel(t *rank, g comm.Group) {
	if g.Size() == 1 {
		return
	}
	last := g.Size() - 1
	for _, late := range []time.Duration{0, 20 * time.Millisecond} {
		sub, err := g.Split(t.ctx(), 0, 0)
		require.NoError(t, err)
		ctx := t.ctx()
		switch g.Rank() {
		case 0:
			short, cancel := context.WithTimeout(ctx, late)
			begin := time.Now()
			blamed(t, sum(short, sub), 0, context.DeadlineExceeded)
			require.Less(t, time.Since(begin), transport.Timeout(sub)/2)
			cancel()
			gate{last}.open(t)
		case last:
			gate{last}.wait(t)
		}
		blamed(t, sum(ctx, sub), 0, context.DeadlineExceeded)
		require.NoError(t, sub.Close())
	}
}

// checkConcurrent has two goroutines use, and make, groups at the same time.
func checkConcurrent(t *rank, g comm.Group) {
	var groups [2]comm.Group
	for i := range groups {
		sub, err := g.Split(t.ctx(), 0, 0)
		require.NoError(t, err)
		groups[i] = sub
	}
	var wg sync.WaitGroup
	errs := make([]error, len(groups))
	for i, sub := range groups {
		wg.Go(func() {
			x := make([]float32, 5000)
			for k := range 100 {
				errs[i] = errors.Join(errs[i], sum(t.ctx(), sub), sub.AllReduce(comm.Of(x), comm.Sum).Wait(t.ctx()))
				if k%10 == 0 {
					child, err := sub.Split(t.ctx(), 0, 0)
					if err == nil {
						err = errors.Join(sum(t.ctx(), child), child.Close())
					}
					errs[i] = errors.Join(errs[i], err)
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
}

// checkMany makes more groups, one after another, than MPICH has communicators.
// Making one takes long if there are more ranks than processors.
func checkMany(t *rank, g comm.Group) {
	if g.Size() > 2 {
		return
	}
	for range 2500 {
		sub, err := g.Split(t.ctx(), 0, 0)
		require.NoError(t, err)
		require.NoError(t, sub.Close())
	}
}

// raced is set under the race detector, where pools lose things on purpose.
var raced bool

// checkAllocations counts them in steady state.
func checkAllocations(t *rank, g comm.Group) {
	small, large := make([]float32, 16), make([]float32, 64<<10)
	shard := make([]float32, len(large)/4)[:len(large)/g.Size()/4]
	dst, counts := large[:len(shard)*g.Size()], slices.Repeat([]int{len(shard)}, g.Size())
	step := func() {
		var err error
		for _, w := range []comm.Work{
			g.AllReduce(comm.Of(small), comm.Sum), g.AllGather(comm.Of(dst), comm.Of(shard)),
			g.ReduceScatter(comm.Of(shard), comm.Of(dst), comm.Avg), g.Broadcast(comm.Of(large), 0),
			g.AllReduce(comm.Of(large), comm.Sum), g.Gather(comm.Of(dst), comm.Of(shard), counts, 1%g.Size()),
		} {
			err = errors.Join(err, w.Wait(t.ctx()))
		}
		require.NoError(t, err)
	}
	for range 20 {
		step()
	}
	a := allocations(100, step)
	if !raced {
		require.Less(t, a, 1.0)
	}
}

// allocations is testing.AllocsPerRun without its effect on GOMAXPROCS.
func allocations(n int, f func()) float64 {
	var before, after memory
	before.read()
	for range n {
		f()
	}
	after.read()
	return float64(after.mallocs-before.mallocs) / float64(n)
}
