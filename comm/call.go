package comm

import (
	"cmp"
	"fmt"
	"slices"
)

// kind is the sort of a collective.
type kind uint8

const (
	allGather kind = iota
	reduceScatter
	allReduce
	broadcast
	barrier
	split // an all-gather of (color, key)
)

var kindNames = [...]string{"all-gather", "reduce-scatter", "all-reduce", "broadcast", "barrier", "split"}

func (k kind) String() string { return kindNames[k] }

// call is what one rank asks for: the arguments of a collective. Where a
// collective has one buffer, dst and src are both that buffer.
type call struct {
	kind     kind
	op       Op
	root     int
	dst, src Buffer
}

func (c *call) reduces() bool { return c.kind == reduceScatter || c.kind == allReduce }

// full returns the larger buffer, the whole tensor.
func (c *call) full() Buffer {
	b := c.dst
	if c.kind == reduceScatter {
		b = c.src
	}
	b.label = c.label()
	return b
}

func (c *call) label() string { return cmp.Or(c.dst.label, c.src.label) }

// matches reports whether two ranks' calls are the same collective.
func (c *call) matches(o *call) bool {
	a, b := c.full(), o.full()
	return c.kind == o.kind && c.op == o.op && c.root == o.root &&
		a.dtype == b.dtype && a.len == b.len && a.label == b.label
}

// String describes c as in errors: reduce-scatter float32[512] sum "h.3", with
// the length of the full tensor.
func (c *call) String() string {
	if c.kind == barrier || c.kind == split {
		return c.kind.String()
	}
	b := c.full()
	s := fmt.Sprintf("%v %v[%d]", c.kind, b.dtype, b.len)
	switch {
	case c.reduces():
		s += " " + c.op.String()
	case c.kind == broadcast:
		s += fmt.Sprintf(" from %d", c.root)
	}
	if b.label != "" {
		s += fmt.Sprintf(" %q", b.label)
	}
	return s
}

// numbered names c within its group: all-gather #12 "h.3".
func (c *call) numbered(seq uint64) string {
	s := fmt.Sprintf("%v #%d", c.kind, seq)
	if l := c.label(); l != "" {
		s += fmt.Sprintf(" %q", l)
	}
	return s
}

// check validates the call of one rank out of n. The error wraps ErrInvalid.
func (c *call) check(rank, n int) error {
	if reason := c.fault(rank, n); reason != "" {
		return fmt.Errorf("%w: %s: %s", ErrInvalid, c.String(), reason)
	}
	return nil
}

// fault says what is wrong with c, "" if nothing.
func (c *call) fault(rank, n int) string {
	if c.kind == barrier {
		return ""
	}
	switch {
	case !c.dst.dtype.valid() || !c.src.dtype.valid():
		return "a buffer has no element type (zero Buffer, or Slice out of range)"
	case c.dst.dtype != c.src.dtype:
		return fmt.Sprintf("dst holds %v, src %v", c.dst.dtype, c.src.dtype)
	case c.op > Min:
		return "no such operator"
	case c.op == Avg && !c.dst.dtype.float():
		return fmt.Sprintf("no average of %v", c.dst.dtype)
	}
	switch c.kind {
	case broadcast:
		if c.root < 0 || c.root >= n {
			return fmt.Sprintf("root outside of [0, %d)", n)
		}
	case reduceScatter:
		return shardFault("src", "dst", c.src, c.dst, rank, n)
	case allGather, split:
		return shardFault("dst", "src", c.dst, c.src, rank, n)
	}
	return ""
}

// shardFault checks that full is n times as long as shard, and that the two are
// disjoint unless shard is this rank's range of full.
func shardFault(fullName, shardName string, full, shard Buffer, rank, n int) string {
	if full.len != n*shard.len {
		return fmt.Sprintf("%s has %d elements, want %d ranks * %d of %s", fullName, full.len, n, shard.len, shardName)
	}
	own := full.slice(rank*shard.len, (rank+1)*shard.len)
	if overlap(full, shard) && shard.ptr != own.ptr {
		return fmt.Sprintf("%s overlaps %s elsewhere than in range %d", shardName, fullName, rank)
	}
	return ""
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
