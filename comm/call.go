package comm

import (
	"cmp"
	"fmt"
	"slices"
)

// Kind is the sort of a collective.
type Kind uint8

// The collectives. KindSplit is an all-gather of (color, key).
const (
	KindAllGather Kind = iota
	KindReduceScatter
	KindAllReduce
	KindBroadcast
	KindBarrier
	KindSplit
)

var kindNames = [...]string{"all-gather", "reduce-scatter", "all-reduce", "broadcast", "barrier", "split"}

// String returns the name with a hyphen, as in errors.
func (k Kind) String() string {
	if int(k) >= len(kindNames) {
		return fmt.Sprintf("Kind(%d)", uint8(k))
	}
	return kindNames[k]
}

// Call is what one rank asks for: a collective and its arguments. Where a
// collective has one buffer, Dst and Src are both that buffer.
type Call struct {
	Kind     Kind
	Op       Op
	Root     int
	Dst, Src Buffer
}

// Reduces reports whether the call combines elements of several ranks.
func (c *Call) Reduces() bool { return c.Kind == KindReduceScatter || c.Kind == KindAllReduce }

// Full returns the larger buffer, the whole tensor, with the label of the call.
func (c *Call) Full() Buffer {
	b := c.Dst
	if c.Kind == KindReduceScatter {
		b = c.Src
	}
	b.label = c.Label()
	return b
}

// Label returns the label of Dst or else of Src.
func (c *Call) Label() string { return cmp.Or(c.Dst.label, c.Src.label) }

// matches reports whether two ranks' calls are the same collective.
func (c *Call) matches(o *Call) bool {
	a, b := c.Full(), o.Full()
	return c.Kind == o.Kind && c.Op == o.Op && c.Root == o.Root &&
		a.dtype == b.dtype && a.len == b.len && a.label == b.label
}

// String describes c as in errors: reduce-scatter float32[512] sum "h.3", with
// the length of the full tensor.
func (c *Call) String() string { return c.Signature().String() }

// numbered names c within its group: all-gather #12 "h.3".
func (c *Call) numbered(seq uint64) string {
	s := fmt.Sprintf("%v #%d", c.Kind, seq)
	if l := c.Label(); l != "" {
		s += fmt.Sprintf(" %q", l)
	}
	return s
}

// check validates the call of one rank out of n. The error wraps ErrInvalid.
func (c *Call) check(rank, n int) error {
	if reason := c.fault(rank, n); reason != "" {
		return fmt.Errorf("%w: %s: %s", ErrInvalid, c.String(), reason)
	}
	return nil
}

// fault says what is wrong with c, "" if nothing.
func (c *Call) fault(rank, n int) string {
	if c.Kind == KindBarrier {
		return ""
	}
	switch {
	case !c.Dst.dtype.valid() || !c.Src.dtype.valid():
		return "a buffer has no element type (zero Buffer, or Slice out of range)"
	case c.Dst.dtype != c.Src.dtype:
		return fmt.Sprintf("dst holds %v, src %v", c.Dst.dtype, c.Src.dtype)
	case c.Op > Min:
		return "no such operator"
	case c.Op == Avg && !c.Dst.dtype.float():
		return fmt.Sprintf("no average of %v", c.Dst.dtype)
	}
	switch c.Kind {
	case KindBroadcast:
		if c.Root < 0 || c.Root >= n {
			return fmt.Sprintf("root outside of [0, %d)", n)
		}
	case KindReduceScatter:
		return shardFault("src", "dst", c.Src, c.Dst, rank, n)
	case KindAllGather, KindSplit:
		return shardFault("dst", "src", c.Dst, c.Src, rank, n)
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
