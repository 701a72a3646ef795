package transport

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Kind is the kind of a collective.
type Kind uint8

// The collectives. KindSplit is an all-gather of (color, key).
const (
	KindAllGather Kind = iota
	KindReduceScatter
	KindAllReduce
	KindBroadcast
	KindGather
	KindBarrier
	KindSplit
	KindAllToAll
	Kinds = iota
)

var kindNames = [...]string{"all-gather", "reduce-scatter", "all-reduce", "broadcast", "gather", "barrier", "split", "all-to-all"}

// String returns the name with a hyphen, as in errors.
func (k Kind) String() string {
	if int(k) >= len(kindNames) {
		return fmt.Sprintf("Kind(%d)", uint8(k))
	}
	return kindNames[k]
}

// Call is the request of one rank: a collective and its arguments. If a collective has
// one buffer, Dst and Src are both that buffer.
type Call struct {
	Kind     Kind
	Op       Op
	Root     int
	Dst, Src Buffer
	Counts   []int // of a gather: elements by rank; the caller's, like the memory of the buffers
}

// gather returns the call of [Group].Gather on the given rank. It keeps Dst on the root
// only.
func gather(dst, src Buffer, counts []int, root, rank int) Call {
	if rank != root {
		dst = Buffer{}
	}
	return Call{Kind: KindGather, Root: root, Dst: dst, Src: src, Counts: counts}
}

// Reduces reports whether the call combines elements of several ranks.
func (c *Call) Reduces() bool { return c.Kind == KindReduceScatter || c.Kind == KindAllReduce }

// Len returns the elements of the whole tensor: of the larger buffer, which in a gather
// only the root has.
func (c *Call) Len() int {
	switch c.Kind {
	case KindReduceScatter:
		return c.Src.len
	case KindGather:
		total := 0
		for _, n := range c.Counts {
			total += n
		}
		return total
	default:
		return c.Dst.len
	}
}

// DType returns the element type, 0 for a barrier.
func (c *Call) DType() DType {
	if c.Kind == KindGather {
		return c.Src.dtype
	}
	return c.Dst.dtype
}

// Bytes returns the size of the whole tensor in bytes.
func (c *Call) Bytes() int { return c.Len() * c.DType().Size() }

// Label returns the label of Dst or else of Src. In a gather it is the label of Src,
// because every rank has only that.
func (c *Call) Label() string {
	if c.Kind == KindGather {
		return c.Src.label
	}
	return cmp.Or(c.Dst.label, c.Src.label)
}

// Matches reports whether two ranks' calls are the same collective.
func (c *Call) Matches(o *Call) bool {
	return c.Kind == o.Kind && c.Op == o.Op && c.Root == o.Root && c.DType() == o.DType() &&
		c.Len() == o.Len() && c.Label() == o.Label() && slices.Equal(c.Counts, o.Counts)
}

// String describes c as in errors: reduce-scatter float32[512] sum "h.3", with
// the length of the full tensor.
func (c *Call) String() string { return c.Signature().String() }

// Numbered names c within its group: all-gather #12 "h.3".
func (c *Call) Numbered(seq uint64) string { return c.Signature().Numbered(seq) }

// Check validates the call of one rank out of n, in a group that takes host memory only.
// The error wraps ErrInvalid.
func (c *Call) Check(rank, n int) error {
	if c.Dst.device || c.Src.device {
		return fmt.Errorf("%w: %s: a buffer is device memory, this group takes only host memory", ErrInvalid, c.String())
	}
	return c.checkAnywhere(rank, n)
}

// checkAnywhere is check for memory of the host and of devices.
func (c *Call) checkAnywhere(rank, n int) error {
	if reason := c.fault(rank, n); reason != "" {
		return fmt.Errorf("%w: %s: %s", ErrInvalid, c.String(), reason)
	}
	return nil
}

// fault describes the error in c, "" if there is none.
func (c *Call) fault(rank, n int) string {
	switch c.Kind {
	case KindBarrier:
		return ""
	case KindGather:
		return c.gatherFault(rank, n)
	}
	switch {
	case !c.Dst.dtype.valid() || !c.Src.dtype.valid():
		return "a buffer has no element type (zero Buffer, or Slice out of range)"
	case c.Dst.dtype != c.Src.dtype:
		return fmt.Sprintf("dst holds %v, src %v", c.Dst.dtype, c.Src.dtype)
	case c.Op > Min:
		return "unknown operator"
	case c.Op == Avg && !c.Dst.dtype.IsFloat():
		return fmt.Sprintf("no average of %v, only of floats", c.Dst.dtype)
	}
	switch c.Kind {
	case KindBroadcast:
		if c.Root < 0 || c.Root >= n {
			return fmt.Sprintf("root %d is not in [0, %d)", c.Root, n)
		}
	case KindReduceScatter:
		return shardFault("src", "dst", c.Src, c.Dst, rank, n)
	case KindAllGather, KindSplit:
		return shardFault("dst", "src", c.Dst, c.Src, rank, n)
	case KindAllToAll:
		switch {
		case c.Dst.len != c.Src.len || c.Dst.len%n != 0:
			return fmt.Sprintf("dst has %d elements and src %d, want the same multiple of %d ranks", c.Dst.len, c.Src.len, n)
		case overlap(c.Dst, c.Src):
			return "src overlaps dst"
		}
	}
	return ""
}

// shardFault checks that full is n times as long as shard, and that the two are
// disjoint unless shard is this rank's range of full.
func shardFault(fullName, shardName string, full, shard Buffer, rank, n int) string {
	if full.len != n*shard.len {
		return fmt.Sprintf("%s has %d elements, want %d ranks * %d of %s", fullName, full.len, n, shard.len, shardName)
	}
	own := full.Part(rank*shard.len, (rank+1)*shard.len)
	if overlap(full, shard) && shard.start() != own.start() {
		return fmt.Sprintf("%s overlaps %s outside of range %d", shardName, fullName, rank)
	}
	return ""
}

// gatherFault is fault for a gather. The limit of the sum is the size that a program can
// address.
func (c *Call) gatherFault(rank, n int) string {
	switch {
	case !c.Src.dtype.valid():
		return "src has no element type (zero Buffer, or Slice out of range)"
	case c.Root < 0 || c.Root >= n:
		return fmt.Sprintf("root %d is not in [0, %d)", c.Root, n)
	case len(c.Counts) != n:
		return fmt.Sprintf("%d counts for %d ranks, want one per rank", len(c.Counts), n)
	}
	left, at := math.MaxInt/c.Src.dtype.Size(), 0 // elements before the share of rank
	for r, count := range c.Counts {
		if count < 0 || count > left {
			return fmt.Sprintf("count %d of rank %d is negative or too large", count, r)
		}
		left -= count
		if r < rank {
			at += count
		}
	}
	switch total := c.Len(); {
	case c.Src.len != c.Counts[rank]:
		return fmt.Sprintf("src has %d elements, the count of rank %d is %d", c.Src.len, rank, c.Counts[rank])
	case rank != c.Root:
		return ""
	case c.Dst.dtype != c.Src.dtype:
		return fmt.Sprintf("dst holds %v, src %v", c.Dst.dtype, c.Src.dtype)
	case c.Dst.len != total:
		return fmt.Sprintf("dst has %d elements, the counts add up to %d", c.Dst.len, total)
	case overlap(c.Dst, c.Src) && c.Src.start() != c.Dst.Part(at, at+c.Src.len).start():
		return fmt.Sprintf("src overlaps dst outside of range %d", rank)
	}
	return ""
}

// ForRank returns the call of rank r that matches c, the call of rank self. The caller
// fills in the addresses of its buffers.
func (c *Call) ForRank(r, self int) Call {
	o := *c
	if c.Kind == KindGather && r != self {
		o.Src.len = c.Counts[r]
		o.Dst = Buffer{}
		if r == c.Root {
			o.Dst = Buffer{len: c.Len(), dtype: c.Src.dtype}
		}
	}
	return o
}

// splitRanks returns the ranks that chose color, ordered by key, then rank.
// pairs holds (color, key) of every rank.
func splitRanks(pairs []int64, color int) []int {
	var ranks []int
	for r := range len(pairs) / 2 {
		if pairs[2*r] == int64(color) {
			ranks = append(ranks, r)
		}
	}
	slices.SortStableFunc(ranks, func(a, b int) int { return cmp.Compare(pairs[2*a+1], pairs[2*b+1]) })
	return ranks
}
