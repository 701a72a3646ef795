package tcp

import "github.com/gofsdp/gofsdp/comm/transport"

// algorithm is a way to carry out a collective between equals.
type algorithm uint8

// The algorithms. N is the number of ranks, and a step the time a small message
// takes.
const (
	// Every rank sends its data to every other: one step, N-1 messages each.
	direct algorithm = iota
	// In step k a rank passes its data on to the rank 2^k further: log2 N steps of one message.
	// Barriers (dissemination), all-gathers (Bruck), broadcasts and gathers (both).
	doubling
	// Ranks pass data from the left on to the right, in blocks: N-1 steps, but every rank exchanges
	// messages with two others only.
	ring
	// Large reductions: ranks in blocks of radix exchange contributions, pairs of blocks halves
	// of their sums, then pairs of these and so on: 1 + log2 N/radix steps of one message each,
	// but radix-1 in the first.
	halving
)

const (
	// Messages up to this long cost about the same as empty ones.
	smallMessage = 16 << 10
	// Ranks up to which N-1 small messages are cheaper than log2 N steps.
	fewRanks = 4
	// Ranks from which on a rank should not send to all others at once: that many streams into one
	// port lose packets. Small sums are then no slower in steps.
	manyRanks = 16
	// Ranks from which on halving large sums takes no longer than direct ones.
	halvingRanks = 64
)

// plan is the algorithm for a collective of this group.
func (r *remote) plan(kind transport.Kind, bytes int) algorithm {
	return plan(kind, r.size, bytes, r.crowded)
}

// plan chooses the algorithm for a collective of n ranks in which a rank has
// bytes to give: a shard for all-gathers, the tensor for broadcasts, gathers and
// reduce-scatters. Ranks that are crowded share processors: a message costs them more than a step.
func plan(kind transport.Kind, n, bytes int, crowded bool) algorithm {
	small, few := bytes <= smallMessage, fewRanks
	if crowded {
		few = 2
	}
	switch kind {
	case transport.KindGather:
		if small && n > few {
			return doubling
		}
	case transport.KindBarrier:
		if n > few {
			return doubling
		}
	case transport.KindAllGather, transport.KindSplit:
		switch {
		case small && n > few:
			return doubling
		case !small && n >= manyRanks:
			return ring
		}
	case transport.KindReduceScatter: // doubling is an all-reduce
		switch {
		case small && n >= manyRanks || crowded && n > few && n*lines(bytes)/2 <= smallMessage:
			return doubling
		case n >= halvingRanks:
			return halving
		}
	case transport.KindBroadcast:
		switch {
		case n == 2:
		case !small:
			return ring
		case n > few:
			return doubling
		}
	}
	return direct
}

// wholeSums is the largest size in bytes of tensors that ranks send whole and sum everywhere. Each
// of two ranks would send as much in two steps.
func (r *remote) wholeSums() int {
	if r.size == 2 {
		return block
	}
	return smallMessage
}
