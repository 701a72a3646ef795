//go:build mpi && cgo && unix

package mpi

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// piece is the most that one MPI call moves between two ranks, in bytes. It keeps counts
// below 2^31 and makes progress visible. It is the same on all ranks; tests make it
// small.
var piece = 64 << 20

const (
	// block is how much of each rank's data is summed at a time, in bytes.
	block = 256 << 10
	// line is the alignment of chunks of an all-reduce, in bytes.
	line = 64
)

// finish completes a collective whose data came with the calls.
func (g *group) finish(seq uint64, c *transport.Call) error {
	data := func(rank int) []byte {
		i := 2*rank + int(seq%2)
		return g.bodies[i][transport.SignatureSize:g.sizes[i]]
	}
	for r := range g.size {
		if n := g.share(c, r); r != g.rank && sends(c, r) && len(data(r)) != n {
			return &comm.RankError{Group: g.name, Rank: r, Err: fmt.Errorf("it sent %d bytes, want %d", len(data(r)), n)}
		}
	}
	if g.largest(c) == 0 {
		return nil
	}
	n := g.share(c, g.rank)
	switch c.Kind {
	case transport.KindAllGather, transport.KindSplit, transport.KindAllToAll:
		dst, own := c.Dst.Bytes(), c.Src.Bytes()
		for r := range g.size {
			if r != g.rank {
				copy(dst[r*n:], data(r))
			}
		}
		if c.Kind == transport.KindAllToAll {
			own = own[g.rank*n : (g.rank+1)*n]
		}
		copy(dst[g.rank*n:], own)
	case transport.KindBroadcast:
		if c.Root != g.rank {
			copy(c.Dst.Bytes(), data(c.Root))
		}
	case transport.KindGather:
		if c.Root == g.rank {
			g.place(c, data)
		}
	default:
		own := c.Src
		if c.Kind == transport.KindReduceScatter {
			own = own.Slice(g.rank*c.Dst.Len(), (g.rank+1)*c.Dst.Len())
		}
		return g.reduce(c.Dst, own, c.Op, func(r int) unsafe.Pointer { return unsafe.Pointer(&data(r)[0]) })
	}
	return nil
}

// place copies the data of the ranks into the destination of the root of a gather.
func (g *group) place(c *transport.Call, data func(rank int) []byte) {
	dst := c.Dst.Bytes()
	for r := range g.size {
		src := c.Src.Bytes()
		if r != g.rank {
			src = data(r)
		}
		dst = dst[copy(dst, src):]
	}
}

// reduce reduces own and the data of the other ranks, which is at the given places.
func (g *group) reduce(dst, own comm.Buffer, op comm.Op, at func(rank int) unsafe.Pointer) error {
	g.sources = g.sources[:0]
	for r := range g.size {
		src := own
		if r != g.rank {
			src = typed(dst.DType(), at(r), dst.Len())
		}
		g.sources = append(g.sources, src)
	}
	err := transport.Reduce(dst, g.sources, op, g.size)
	clear(g.sources) // the memory is the caller's, do not keep it alive
	return err
}

// typed returns n elements of type d at p.
func typed(d comm.DType, p unsafe.Pointer, n int) comm.Buffer {
	switch d {
	case comm.Float32:
		return comm.Of(unsafe.Slice((*float32)(p), n))
	case comm.Float64:
		return comm.Of(unsafe.Slice((*float64)(p), n))
	case comm.Int32:
		return comm.Of(unsafe.Slice((*int32)(p), n))
	case comm.Int64:
		return comm.Of(unsafe.Slice((*int64)(p), n))
	case comm.BFloat16:
		return comm.Of(unsafe.Slice((*comm.BF16)(p), n))
	case comm.Float16:
		return comm.Of(unsafe.Slice((*comm.F16)(p), n))
	default:
		return comm.Of(unsafe.Slice((*byte)(p), n))
	}
}

// transfer moves data that was too large for the calls. All ranks are here and make the
// same call, so it completes, even if the group fails meanwhile.
func (g *group) transfer(ctx context.Context, c *transport.Call) (err error) {
	dst, src := pointer(c.Dst), pointer(c.Src)
	for _, p := range []unsafe.Pointer{dst, src} {
		if p != nil {
			g.pins.Pin(p)
		}
	}
	defer func() {
		if err != nil {
			keep(g.pins)
			g.pins = new(runtime.Pinner)
			return
		}
		g.pins.Unpin()
	}()
	switch c.Kind {
	case transport.KindAllGather:
		return g.allGather(ctx, dst, src, bytesOf(c.Src))
	case transport.KindBroadcast:
		return g.broadcast(ctx, dst, bytesOf(c.Dst), c.Root)
	case transport.KindGather:
		return g.collect(ctx, c)
	case transport.KindAllToAll:
		return g.allToAll(ctx, c)
	case transport.KindReduceScatter:
		return g.reduceScatter(ctx, c.Dst, c.Src, c.Dst.Len(), c.Op)
	default:
		return g.allReduce(ctx, c.Dst, c.Op)
	}
}

func pointer(b comm.Buffer) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b.Bytes())) }

// kept pins the memory of abandoned transfers, because MPI may write to it as long as the
// process lives.
var kept struct {
	sync.Mutex
	pins []*runtime.Pinner
}

func keep(p *runtime.Pinner) {
	kept.Lock()
	defer kept.Unlock()
	kept.pins = append(kept.pins, p)
}

// start begins MPI operations.
func (g *group) start(begin func() error) error {
	g.engine.mu.Lock()
	defer g.engine.mu.Unlock()
	if g.engine.err != nil {
		return g.engine.err
	}
	return begin()
}

// allGather concatenates the n bytes at src of all ranks at dst.
func (g *group) allGather(ctx context.Context, dst, src unsafe.Pointer, n int) error {
	own := unsafe.Add(dst, g.rank*n)
	if n > piece {
		if src != own {
			copy(unsafe.Slice((*byte)(own), n), unsafe.Slice((*byte)(src), n))
		}
		return g.gather(ctx, dst, n, g.size*n)
	}
	if src == own {
		src = nil
	}
	err := g.start(func() error { return allGather(src, dst, n, g.comm, &g.moving[0]) })
	if err != nil {
		return err
	}
	return g.settle(ctx, g.moving[:1])
}

// gather completes a tensor of total bytes, of which rank r has the chunk that
// begins r*chunk after base. The last chunks may be short, or empty.
func (g *group) gather(ctx context.Context, base unsafe.Pointer, chunk, total int) error {
	for at := 0; at < chunk; at += piece {
		size := min(piece, chunk-at)
		out := parts{base: base, total: total, at: g.rank*chunk + at, size: size}
		in := parts{base: base, total: total, at: at, stride: chunk, size: size}
		if err := g.exchange(out, in); err != nil {
			return err
		}
		if err := g.settle(ctx, g.moving); err != nil {
			return err
		}
	}
	return nil
}

// allToAll exchanges a piece of every part at a time.
func (g *group) allToAll(ctx context.Context, c *transport.Call) error {
	n, total := g.share(c, g.rank), bytesOf(c.Dst)
	for at := 0; at < n; at += piece {
		p := parts{total: total, at: at, stride: n, size: min(piece, n-at)}
		out, in := p, p
		out.base, in.base = pointer(c.Src), pointer(c.Dst)
		if err := g.exchange(out, in); err != nil {
			return err
		}
		if at == 0 {
			copy(c.Dst.Bytes()[g.rank*n:(g.rank+1)*n], c.Src.Bytes()[g.rank*n:])
		}
		if err := g.settle(ctx, g.moving); err != nil {
			return err
		}
	}
	return nil
}

func (g *group) exchange(out, in parts) error {
	return g.start(func() error { return exchange(out, in, g.size, g.rank, g.comm, g.moving) })
}

// broadcast copies n bytes from the root.
func (g *group) broadcast(ctx context.Context, buf unsafe.Pointer, n, root int) error {
	for at := 0; at < n; at += piece {
		err := g.start(func() error {
			return broadcast(unsafe.Add(buf, at), min(piece, n-at), root, g.comm, &g.moving[0])
		})
		if err != nil {
			return err
		}
		if err := g.settle(ctx, g.moving[:1]); err != nil {
			return err
		}
	}
	return nil
}

// collect is a gather: the root receives a piece of every rank at a time, in its place;
// the others send their pieces to the root alone.
func (g *group) collect(ctx context.Context, c *transport.Call) error {
	if g.rank != c.Root {
		src, n := pointer(c.Src), bytesOf(c.Src)
		for at := 0; at < n; at += piece {
			err := g.start(func() error {
				return sendPart(unsafe.Add(src, at), min(piece, n-at), c.Root, g.comm, &g.moving[0])
			})
			if err != nil {
				return err
			}
			if err := g.settle(ctx, g.moving[:1]); err != nil {
				return err
			}
		}
		return nil
	}
	for at, most := 0, g.largest(c); at < most; at += piece {
		if err := g.start(func() error { return g.receivePieces(c, at) }); err != nil {
			return err
		}
		if at == 0 {
			g.placeOwn(c)
		}
		if err := g.settle(ctx, g.moving); err != nil {
			return err
		}
	}
	return nil
}

// receivePieces begins to receive the pieces of all shares that begin at bytes after
// their first byte.
func (g *group) receivePieces(c *transport.Call, at int) error {
	dst, first, next := pointer(c.Dst), 0, 0
	for r := range g.size {
		n := g.share(c, r)
		if r != g.rank && at < n {
			if err := receivePart(unsafe.Add(dst, first+at), min(piece, n-at), r, g.comm, &g.moving[next]); err != nil {
				return err
			}
			next++
		}
		first += n
	}
	return nil
}

// placeOwn copies the root's source in a gather to its place.
func (g *group) placeOwn(c *transport.Call) {
	first := 0
	for _, count := range c.Counts[:g.rank] {
		first += count
	}
	if own := c.Dst.Slice(first, first+c.Src.Len()); pointer(own) != pointer(c.Src) {
		copy(own.Bytes(), c.Src.Bytes())
	}
}

// reduceScatter reduces chunk Rank of src, of chunk elements, to dst. The last
// chunks may be short, or empty. Blocks are summed while the next are under way.
func (g *group) reduceScatter(ctx context.Context, dst, src comm.Buffer, chunk int, op comm.Op) error {
	if g.staging == nil {
		g.staging = allocate(2 * g.size * block)
	}
	step := block / src.DType().Size()
	first := min(g.rank*chunk, src.Len())
	for lo := 0; lo < chunk+step; lo += step {
		var done, hi int // elements of dst whose blocks are here
		if lo > 0 {
			if err := g.settle(ctx, g.moving); err != nil {
				return err
			}
			done, hi = min(lo-step, dst.Len()), min(lo, dst.Len())
		}
		if lo < chunk {
			if err := g.exchangeBlocks(dst, src, chunk, lo, step); err != nil {
				return err
			}
		}
		if done < hi {
			staged := g.stage((lo - step) / step)
			err := g.reduce(dst.Slice(done, hi), src.Slice(first+done, first+hi), op, func(r int) unsafe.Pointer {
				return unsafe.Add(staged, r*block)
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// exchangeBlocks begins to exchange elements [lo, lo+step) of each chunk.
func (g *group) exchangeBlocks(dst, src comm.Buffer, chunk, lo, step int) error {
	width := src.DType().Size()
	out := parts{
		base: pointer(src), total: bytesOf(src),
		at: lo * width, stride: chunk * width, size: min(step, chunk-lo) * width,
	}
	in := parts{
		base: g.stage(lo / step), total: g.size * block,
		stride: block, size: max(0, min(step, dst.Len()-lo)) * width,
	}
	return g.exchange(out, in)
}

// stage returns the memory for blocks of number i: the blocks of rank r are r*block after
// it.
func (g *group) stage(i int) unsafe.Pointer {
	return unsafe.Pointer(&g.staging[i%2*g.size*block])
}

// allReduce reduces each rank's chunk of buf on that rank and then gathers the chunks.
func (g *group) allReduce(ctx context.Context, buf comm.Buffer, op comm.Op) error {
	width := buf.DType().Size()
	chunk := ((bytesOf(buf)-1)/(g.size*line) + 1) * line / width // an Nth or more
	own := buf.Slice(min(g.rank*chunk, buf.Len()), min((g.rank+1)*chunk, buf.Len()))
	if err := g.reduceScatter(ctx, own, buf, chunk, op); err != nil {
		return err
	}
	return g.gather(ctx, pointer(buf), chunk*width, bytesOf(buf))
}
