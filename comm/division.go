package comm

import "github.com/gofsdp/gofsdp/comm/transport"

// Work is cut so that a part is long enough to hide the claim (some 20 ns) and
// short enough to be shared well and not to hold up preemption in a kernel.
const (
	// Bytes moved by one part of a copy. From 1 MiB on Go's copy streams past the
	// caches: 1.3 times as fast as with 256 KiB where the tensors do not fit them
	// (64 MiB), and no slower where they do.
	copyBytes = 1 << 20
	// Bytes written by one part of a reduction, which an all-reduce then reads
	// again to pass them on: they stay in the inner caches.
	reduceBytes = 64 << 10
)

// division is how the work of one collective is divided among those who execute
// it: into lanes, and the lanes into parts. It follows from the calls alone, so
// whoever knows them divides alike. Lane i is what suits rank i best: what fills
// its destination (a gather is all in the root's lane) or, in an all-reduce, an
// equal share of the buffer.
type division struct {
	calls []transport.Call // by rank
	parts []int            // by lane
	chunk int              // elements per part
	// Ranks whose buffer of an all-reduce is a copy of the real one. They fetch
	// what is summed in other such copies by themselves, in the end.
	copies []bool
}

func newDivision(n int) division {
	return division{calls: make([]transport.Call, n), parts: make([]int, n), copies: make([]bool, n)}
}

// cut divides the work and returns how many parts there are.
func (d *division) cut() (parts int) {
	clear(d.parts)
	c := &d.calls[0]
	if c.Kind == transport.KindBarrier || len(d.calls) == 1 && c.Dst.Pointer() == c.Src.Pointer() {
		return 0
	}
	bytes := copyBytes
	if c.Reduces() {
		bytes = reduceBytes
	}
	// However long the buffer, the parts of a lane must fit the word.
	d.chunk = max(bytes/c.DType().Size(), c.Len()>>(tagShift-2))
	for i := range d.parts {
		d.parts[i] = d.laneParts(i)
		parts += d.parts[i]
	}
	return parts
}

// fetch completes the all-reduce of rank i, whose buffer is a copy, in dst.
func (d *division) fetch(i int, dst Buffer) {
	for k := range d.calls {
		lo, hi := d.stripe(k)
		from := i // where the owner of the stripe has put the sum
		if d.copies[k] {
			from = k
		}
		transport.Move(dst.Part(lo, hi), d.calls[from].Dst.Part(lo, hi))
	}
}

// laneParts returns the number of parts in lane i.
func (d *division) laneParts(i int) int {
	c := &d.calls[i]
	chunks := func(n int) int { return (n + d.chunk - 1) / d.chunk }
	switch c.Kind {
	case transport.KindReduceScatter, transport.KindBroadcast, transport.KindGather:
		return chunks(c.Dst.Len()) // of a broadcast: there is nothing to move in those of the root
	case transport.KindAllReduce:
		lo, hi := d.stripe(i)
		return chunks(hi - lo)
	default: // KindAllGather, KindAllToAll, split
		return len(d.calls) * chunks(c.Dst.Len()/len(d.calls))
	}
}

// stripe returns the elements of an all-reduce that lane i sums: an equal share,
// rounded up to cache lines, so later lanes may get less or nothing.
func (d *division) stripe(i int) (lo, hi int) {
	b := d.calls[0].Dst
	share := stripeLen(b, len(d.calls))
	return min(i*share, b.Len()), min((i+1)*share, b.Len())
}

// run executes one part of lane i.
func (d *division) run(i, part int, r *reducer) {
	c := &d.calls[i]
	switch c.Kind {
	case transport.KindReduceScatter:
		lo, hi := d.bounds(part, 0, c.Dst.Len())
		base := i * c.Dst.Len()
		d.reduce(c.Dst.Part(lo, hi), base+lo, base+hi, r)
	case transport.KindAllReduce:
		start, end := d.stripe(i)
		lo, hi := d.bounds(part, start, end)
		sum := c.Dst.Part(lo, hi)
		d.reduce(sum, lo, hi, r)
		for k := range d.calls {
			if k != i && !(d.copies[i] && d.copies[k]) {
				transport.Move(d.calls[k].Dst.Part(lo, hi), sum)
			}
		}
	case transport.KindBroadcast:
		lo, hi := d.bounds(part, 0, c.Dst.Len())
		transport.Move(c.Dst.Part(lo, hi), d.calls[c.Root].Src.Part(lo, hi))
	case transport.KindGather:
		lo, hi := d.bounds(part, 0, c.Dst.Len())
		d.collect(c, lo, hi)
	default: // KindAllGather, KindAllToAll, split
		n, chunks := len(d.calls), d.parts[i]/len(d.calls)
		from := (i + part/chunks) % n // start at the own shard, so that ranks read different memory
		share, first := c.Dst.Len()/n, 0
		if c.Kind == transport.KindAllToAll {
			first = i * share
		}
		lo, hi := d.bounds(part%chunks, 0, share)
		transport.Move(c.Dst.Part(from*share+lo, from*share+hi), d.calls[from].Src.Part(first+lo, first+hi))
	}
}

// collect fills elements [lo, hi) of the destination of c, the root of a gather,
// from the sources that they lie in.
func (d *division) collect(c *transport.Call, lo, hi int) {
	start := 0
	for r, count := range c.Counts {
		end := start + count
		if from, to := max(lo, start), min(hi, end); from < to {
			transport.Move(c.Dst.Part(from, to), d.calls[r].Src.Part(from-start, to-start))
		}
		start = end
	}
}

// bounds returns the elements of chunk number part of [start, end).
func (d *division) bounds(part, start, end int) (lo, hi int) {
	lo = start + part*d.chunk
	return lo, min(lo+d.chunk, end)
}

// reduce writes to dst the reduction of elements [lo, hi) of all sources.
func (d *division) reduce(dst Buffer, lo, hi int, r *reducer) {
	r.srcs = r.srcs[:0]
	for k := range d.calls {
		r.srcs = append(r.srcs, d.calls[k].Src.Part(lo, hi))
	}
	r.reduce(dst, d.calls[0].Op)
	clear(r.srcs)
}

// stripeLen returns the elements of b that each of n ranks sums: an equal share,
// rounded up to cache lines.
func stripeLen(b Buffer, n int) int {
	line := 64 / b.DType().Size()
	share := (b.Len() + n - 1) / n
	return (share + line - 1) / line * line
}

// part returns the elements of b that belong to rank i when each has share of
// them; the last ranks may have fewer or none.
func part(b Buffer, i, share int) Buffer {
	return b.Part(min(i*share, b.Len()), min((i+1)*share, b.Len()))
}
