package comm

import "sync/atomic"

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
	// An operation that has no more to do than this is one part.
	smallBytes = 16 << 10
)

// An operation's state and its lanes are words of tag<<tagShift | value, where
// the tag is the sequence number: one atomic load tells a handle both whether
// the record is still about its collective and how far that is. 44 bits last
// for half a year of back-to-back empty barriers.
const (
	tagShift  = 20
	valueMask = 1<<tagShift - 1
)

// phase is where an operation is in its life. Every record goes
// done -> pending -> ready -> done; a failed group leaves it pending for ever.
type phase uint64

const (
	done    phase = iota // complete; the record may already serve another collective
	pending              // some rank has not issued it: no buffer is touched
	ready                // all ranks have: whoever waits executes it, nothing can stop it
)

// operation is the record of one collective, shared by all ranks and reused.
type operation struct {
	state atomic.Uint64 // tag and phase; done is stored as 0
	left  atomic.Int64  // parts not finished; who brings it to 0 retires the record
	lanes []lane        // one per rank

	// Guarded by team.mu while pending, read-only while ready.
	calls   []call // by rank
	arrived int    // number of ranks that have issued
	first   int    // the first of them
	chunk   int    // elements per part
	single  bool   // one part executes everything

	// Guarded by team.mu.
	index  int             // in team.live
	parked []chan struct{} // waiters to wake at every change of phase
}

// lane is the share of the work that suits one rank best: what fills its
// destination. The padding keeps claims of different lanes off each other's line.
type lane struct {
	word  atomic.Uint64 // tag and number of unclaimed parts
	parts int           // written before word is
	_     [48]byte
}

func newOperation(n int) *operation {
	return &operation{lanes: make([]lane, n), calls: make([]call, n)}
}

// phase reports how far collective seq is, of which o was made the record.
func (o *operation) phase(seq uint64) phase {
	s := o.state.Load()
	if s>>tagShift != seq {
		return done // retired, and perhaps reused
	}
	return phase(s & valueMask)
}

func (o *operation) setPhase(seq uint64, p phase) { o.state.Store(seq<<tagShift | uint64(p)) }

// cut divides the work into lanes and parts and returns how many parts there
// are. From here on they can be claimed under the number seq.
func (o *operation) cut(seq uint64) (parts int) {
	c := &o.calls[0]
	if c.kind == barrier || len(o.calls) == 1 && c.dst.ptr == c.src.ptr {
		return 0
	}
	full := c.full()
	bytes := copyBytes
	if c.reduces() {
		bytes = reduceBytes
	}
	// However long the buffer, the parts of a lane must fit the word.
	o.chunk = max(bytes/full.dtype.Size(), full.len>>(tagShift-2))
	for i := range o.lanes {
		o.lanes[i].parts = o.laneParts(i)
		parts += o.lanes[i].parts
	}
	o.single = full.len*full.dtype.Size()*len(o.calls) <= smallBytes
	if o.single && parts > 0 {
		parts = 1
	}
	o.left.Store(int64(parts))
	for i := range o.lanes {
		claimable := o.lanes[i].parts
		if o.single {
			claimable = 0
			if i == 0 {
				claimable = parts
			}
		}
		o.lanes[i].word.Store(seq<<tagShift | uint64(claimable))
	}
	return parts
}

// laneParts returns the number of parts in lane i.
func (o *operation) laneParts(i int) int {
	c := &o.calls[i]
	chunks := func(n int) int { return (n + o.chunk - 1) / o.chunk }
	switch c.kind {
	case reduceScatter, broadcast:
		return chunks(c.dst.len) // there is nothing to move in those of the root
	case allReduce:
		lo, hi := o.stripe(i)
		return chunks(hi - lo)
	default: // allGather, split
		return len(o.calls) * chunks(c.src.len)
	}
}

// stripe returns the elements of an all-reduce that lane i sums: an equal share,
// rounded up to cache lines, so later lanes may get less or nothing.
func (o *operation) stripe(i int) (lo, hi int) {
	b := o.calls[0].dst
	line := 64 / b.dtype.Size()
	share := (b.len + len(o.calls) - 1) / len(o.calls)
	share = (share + line - 1) / line * line
	return min(i*share, b.len), min((i+1)*share, b.len)
}

// claim takes a part of lane i of collective seq, if there is one left. The
// holder of a claim may read the record until it counts left down.
func (o *operation) claim(i int, seq uint64) (part int, ok bool) {
	word := &o.lanes[i].word
	for {
		w := word.Load()
		if w>>tagShift != seq || w&valueMask == 0 {
			return 0, false
		}
		if word.CompareAndSwap(w, w-1) {
			return o.lanes[i].parts - int(w&valueMask), true
		}
	}
}

// run executes a claimed part.
func (o *operation) run(i, part int, r *reducer) {
	if !o.single {
		o.runPart(i, part, r)
		return
	}
	for i := range o.lanes {
		for part := range o.lanes[i].parts {
			o.runPart(i, part, r)
		}
	}
}

func (o *operation) runPart(i, part int, r *reducer) {
	c := &o.calls[i]
	switch c.kind {
	case reduceScatter:
		lo, hi := o.bounds(part, 0, c.dst.len)
		base := i * c.dst.len
		o.reduce(c.dst.slice(lo, hi), base+lo, base+hi, r)
	case allReduce:
		start, end := o.stripe(i)
		lo, hi := o.bounds(part, start, end)
		sum := c.dst.slice(lo, hi)
		o.reduce(sum, lo, hi, r)
		for k := range o.calls {
			if k != i {
				move(o.calls[k].dst.slice(lo, hi), sum)
			}
		}
	case broadcast:
		lo, hi := o.bounds(part, 0, c.dst.len)
		move(c.dst.slice(lo, hi), o.calls[c.root].src.slice(lo, hi))
	default: // allGather, split
		n, chunks := len(o.calls), o.lanes[i].parts/len(o.calls)
		from := (i + part/chunks) % n // start at the own shard, so that ranks read different memory
		src := o.calls[from].src
		lo, hi := o.bounds(part%chunks, 0, src.len)
		move(c.dst.slice(from*src.len+lo, from*src.len+hi), src.slice(lo, hi))
	}
}

// bounds returns the elements of chunk number part of [start, end).
func (o *operation) bounds(part, start, end int) (lo, hi int) {
	lo = start + part*o.chunk
	return lo, min(lo+o.chunk, end)
}

// reduce writes to dst the reduction of elements [lo, hi) of all sources.
func (o *operation) reduce(dst Buffer, lo, hi int, r *reducer) {
	r.srcs = r.srcs[:0]
	for k := range o.calls {
		r.srcs = append(r.srcs, o.calls[k].src.slice(lo, hi))
	}
	r.reduce(dst, o.calls[0].op)
	clear(r.srcs)
}

// move copies src to dst, which may be the same memory.
func move(dst, src Buffer) {
	if dst.ptr != src.ptr {
		copy(dst.Bytes(), src.Bytes())
	}
}
