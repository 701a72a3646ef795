package transport

// Work is cut into parts that are long enough to hide the claim (about 20 ns) and short
// enough to be shared well and not to delay preemption in a kernel.
const (
	// Bytes moved by one part of a copy. From 1 MiB on Go's copy bypasses the caches: it
	// is 1.3 times as fast as with 256 KiB if the tensors do not fit them (64 MiB), and
	// no slower if they do.
	copyBytes = 1 << 20
	// Bytes written by one part of a reduction, which an all-reduce then reads again to
	// pass on: they stay in the inner caches.
	reduceBytes = 64 << 10
)

// The state of a collective and its lanes are words of tag<<TagShift | value, where the
// tag is the sequence number. So one atomic load shows a handle both whether the record
// is still about its collective and how far that is. 44 bits last for half a year of
// back-to-back empty barriers.
const (
	TagShift  = 20
	ValueMask = 1<<TagShift - 1
)

// Division is how the work of one collective is divided among the ranks that execute it:
// into lanes, and the lanes into parts. It follows from the calls alone, so all ranks
// divide alike. Lane i suits rank i best: it fills the destination of rank i (a gather is
// all in the root's lane) or, in an all-reduce, an equal share of the buffer.
//
// The caller fills in Calls, which match, and Copies, and then calls Cut. From then on
// several goroutines may call Run for different parts, each with its own Reducer.
type Division struct {
	Calls []Call // by rank
	Parts []int  // by lane
	chunk int    // elements per part
	// Ranks whose buffer of an all-reduce is a copy of the real one. In the end they
	// fetch the sums in other such copies themselves.
	Copies []bool
}

// NewDivision returns the Division of collectives of n ranks.
func NewDivision(n int) Division {
	return Division{Calls: make([]Call, n), Parts: make([]int, n), Copies: make([]bool, n)}
}

// Cut divides the work and returns how many parts there are.
func (d *Division) Cut() (parts int) {
	clear(d.Parts)
	c := &d.Calls[0]
	if c.Kind == KindBarrier || len(d.Calls) == 1 && c.Dst.ptr == c.Src.ptr {
		return 0
	}
	bytes := copyBytes
	if c.Reduces() {
		bytes = reduceBytes
	}
	// However long the buffer, the parts of a lane must fit the word.
	d.chunk = max(bytes/c.DType().Size(), c.Len()>>(TagShift-2))
	for i := range d.Parts {
		d.Parts[i] = d.laneParts(i)
		parts += d.Parts[i]
	}
	return parts
}

// Fetch completes the all-reduce of rank i, whose buffer is a copy, in dst, when all parts
// have run.
func (d *Division) Fetch(i int, dst Buffer) {
	for k := range d.Calls {
		lo, hi := d.stripe(k)
		from := i // the copy in which the owner of the stripe has put the sum
		if d.Copies[k] {
			from = k
		}
		Move(dst.Part(lo, hi), d.Calls[from].Dst.Part(lo, hi))
	}
}

// laneParts returns the number of parts in lane i.
func (d *Division) laneParts(i int) int {
	c := &d.Calls[i]
	chunks := func(n int) int { return (n + d.chunk - 1) / d.chunk }
	switch c.Kind {
	case KindReduceScatter, KindBroadcast, KindGather:
		return chunks(c.Dst.len) // in a broadcast the parts of the root have nothing to move
	case KindAllReduce:
		lo, hi := d.stripe(i)
		return chunks(hi - lo)
	default: // KindAllGather, KindAllToAll, split
		return len(d.Calls) * chunks(c.Dst.len/len(d.Calls))
	}
}

// stripe returns the elements of an all-reduce that lane i sums: an equal share,
// rounded up to cache lines, so later lanes may get less or nothing.
func (d *Division) stripe(i int) (lo, hi int) {
	b := d.Calls[0].Dst
	share := StripeLen(b, len(d.Calls))
	return min(i*share, b.len), min((i+1)*share, b.len)
}

// Run executes part number part, from 0, of lane i.
func (d *Division) Run(i, part int, r *Reducer) {
	c := &d.Calls[i]
	switch c.Kind {
	case KindReduceScatter:
		lo, hi := d.bounds(part, 0, c.Dst.len)
		base := i * c.Dst.len
		d.reduce(c.Dst.Part(lo, hi), base+lo, base+hi, r)
	case KindAllReduce:
		start, end := d.stripe(i)
		lo, hi := d.bounds(part, start, end)
		sum := c.Dst.Part(lo, hi)
		d.reduce(sum, lo, hi, r)
		for k := range d.Calls {
			if k != i && !(d.Copies[i] && d.Copies[k]) {
				Move(d.Calls[k].Dst.Part(lo, hi), sum)
			}
		}
	case KindBroadcast:
		lo, hi := d.bounds(part, 0, c.Dst.len)
		Move(c.Dst.Part(lo, hi), d.Calls[c.Root].Src.Part(lo, hi))
	case KindGather:
		lo, hi := d.bounds(part, 0, c.Dst.len)
		d.collect(c, lo, hi)
	default: // KindAllGather, KindAllToAll, split
		n, chunks := len(d.Calls), d.Parts[i]/len(d.Calls)
		from := (i + part/chunks) % n // start at the own shard, so that ranks read different memory
		share, first := c.Dst.len/n, 0
		if c.Kind == KindAllToAll {
			first = i * share
		}
		lo, hi := d.bounds(part%chunks, 0, share)
		Move(c.Dst.Part(from*share+lo, from*share+hi), d.Calls[from].Src.Part(first+lo, first+hi))
	}
}

// collect fills elements [lo, hi) of c's destination, from the sources that contain them. c belongs
// to the root of a gather.
func (d *Division) collect(c *Call, lo, hi int) {
	start := 0
	for r, count := range c.Counts {
		end := start + count
		if from, to := max(lo, start), min(hi, end); from < to {
			Move(c.Dst.Part(from, to), d.Calls[r].Src.Part(from-start, to-start))
		}
		start = end
	}
}

// bounds returns the elements of chunk number part of [start, end).
func (d *Division) bounds(part, start, end int) (lo, hi int) {
	lo = start + part*d.chunk
	return lo, min(lo+d.chunk, end)
}

// reduce writes to dst the reduction of elements [lo, hi) of all sources.
func (d *Division) reduce(dst Buffer, lo, hi int, r *Reducer) {
	r.Sources = r.Sources[:0]
	for k := range d.Calls {
		r.Sources = append(r.Sources, d.Calls[k].Src.Part(lo, hi))
	}
	r.Reduce(dst, d.Calls[0].Op)
	clear(r.Sources)
}

// StripeLen returns the elements of b that each of n ranks sums: an equal share,
// rounded up to cache lines.
func StripeLen(b Buffer, n int) int {
	line := 64 / b.dtype.Size()
	share := (b.len + n - 1) / n
	return (share + line - 1) / line * line
}

// Share returns the elements of b that belong to rank i if each has share of them; the
// last ranks may have fewer or none.
func Share(b Buffer, i, share int) Buffer {
	return b.Part(min(i*share, b.len), min((i+1)*share, b.len))
}
