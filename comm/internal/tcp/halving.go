package tcp

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/gofsdp/gofsdp/comm/internal/tree"
	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/internal/checksum"
)

// Sums by halving
//
// A large reduction of many ranks follows the canonical tree. A shard is the part that one rank has
// in the end; its number is the number of the rank.
//
//	blocks   A block is radix ranks in a row, or the fewer ranks at the end: a subtree. Each of its b
//	         ranks gets from the others their contributions to N/b shards, and sums them.
//	merges   Two subtrees side by side become one. Each rank keeps some of the shards that it
//	         holds, and passes the sums of the rest on to the ranks of the other side that hold
//	         them from then on.
//
// [holder] returns which rank of a subtree holds a shard. Between sides of 2^k ranks each it is the
// same rank, or the rank at distance 2^k, and both give away half of their shards (recursive
// halving, see Thakur et al., Optimization of Collective Communication Operations in MPICH, 2005).
// All ranks together send N-1 tensors, as if each sent to all. But a rank connects to radix-1 +
// log2(N/radix) others, and its neighbours. Ranks of a last subtree that is shorter than its
// sibling hold more shards each, and so have several partners there: in the worst case, N = 2^k+1,
// the last rank has all the others as partners, and each of these has one more.
//
// Contributions of 16-bit floats travel as they are within blocks, and sums travel as float32
// between blocks: a sixteenth of the elements.
//
// Stripes. A reduction is cut into stripes, the same elements of every shard, of stripeBytes in
// all. So the staging memory does not grow with N. Contributions to the next stripe travel while
// the current one is merged.
//
// Two ranks exchange messages at one level only: one message in each direction for every stripe,
// even if it is empty. So the message of a rank for the next stripe shows that it has received the
// messages for the current one, and [exchange.await] counts stripes. The buffers that messages are
// sent from exist twice, for stripes in turn.

const (
	// Ranks that exchange contributions. With half as many, ranks would send twice as many sums,
	// which are larger than contributions of 16 bits; with twice as many, they would have twice the
	// connections.
	radix = 16
	// Bytes of a stripe. Messages in a block of ranks are a sixteenth of it, and messages of merges
	// half, a quarter and so on of that: 16 KiB in the last merge of 1,024 ranks. A quarter of it
	// takes a fifth longer if there are many stripes. The staging memory is less than for direct
	// sums of 64 ranks.
	stripeBytes = 16 << 20
	// Bytes of a shard in a stripe below which a system call does not pay: they are packed
	// together.
	straight = 8 << 10
)

// holder returns the rank of s that holds the sum over s of shard j: j itself if it is in s, and in
// any case the holder in one of both halves.
func holder(s tree.Span, j int) int {
	for s.Ranks() > 1 {
		mid := s.Middle()
		if at := (j - s.Lo) % s.Ranks(); (at+s.Ranks())%s.Ranks() < mid-s.Lo {
			s.Hi = mid
		} else {
			s.Lo = mid
		}
	}
	return s.Lo
}

// route is the part of a rank in every stripe.
type route struct {
	once   sync.Once
	block  tree.Span // the ranks that exchange contributions with this one
	order  []uint16  // all shards, by their holder in the block, see set
	first  []int     // where the shards of each rank of the block begin in order, and the end
	mine   []uint16  // the shards of this rank, in order
	merges []merge
	at     []int // where mine begin in the current stripe, in elements, and the end
}

// merge is one level of the tree, for a rank.
type merge struct {
	left     bool // this rank is in the left one of both subtrees
	kept     int  // how many of mine stay: the first ones
	partners []partner
}

// partner is a rank of the other side. Numbers are indices of mine.
type partner struct {
	rank   int
	lo, hi int      // the sums that it gets
	gets   [][2]int // the ranges of sums that it has for this rank
}

// set sets rt for rank of n. The shards that a rank keeps in the first merge come first; among these,
// the shards that it keeps in the second merge, and so on. The shards that it gives away follow, by
// receiver, in the order of that rank. So the shards that a merge keeps, or gives to one rank, are in
// one piece.
func (rt *route) set(n, rank int) {
	lo := rank / radix * radix
	rt.block = tree.Span{Lo: lo, Hi: min(lo+radix, n)}
	levels := levelsOf(tree.Span{Lo: 0, Hi: n}, rt.block)
	rt.order = make([]uint16, n)
	for j := range rt.order {
		rt.order[j] = uint16(j)
	}
	slices.SortFunc(rt.order, func(a, b uint16) int { return compareShards(levels, int(a), int(b)) })
	for i, j := range rt.order {
		if len(rt.first) <= holder(rt.block, int(j))-lo {
			rt.first = append(rt.first, i)
		}
	}
	rt.first = append(rt.first, n)
	rt.mine = rt.order[rt.first[rank-lo]:rt.first[rank-lo+1]]
	rt.at = make([]int, len(rt.mine)+1)
	held := len(rt.mine)
	for i, whole := range levels[1:] {
		rt.merges = append(rt.merges, newMerge(levels[i], whole, rank, rt.mine[:held]))
		held = rt.merges[i].kept
	}
}

// levelsOf returns the subtrees of all that contain block, from block on.
func levelsOf(all, block tree.Span) (levels []tree.Span) {
	for s := all; ; {
		levels = append(levels, s)
		if s == block {
			slices.Reverse(levels)
			return levels
		}
		if mid := s.Middle(); block.Lo < mid {
			s.Hi = mid
		} else {
			s.Lo = mid
		}
	}
}

// compareShards orders shards by their holder at each level, from the lowest on. Shards that stay
// where they are come first.
func compareShards(levels []tree.Span, a, b int) int {
	with := -1 // no rank: all have come to where they are
	for _, s := range levels {
		switch p, q := holder(s, a), holder(s, b); {
		case p == q:
			with = p
		case p == with:
			return -1
		case q == with:
			return 1
		default:
			return cmp.Compare(p, q)
		}
	}
	return 0
}

// newMerge returns the work of rank when side, which it is in, becomes a part of whole. held are
// the shards that it holds in side.
func newMerge(side, whole tree.Span, rank int, held []uint16) merge {
	mid := whole.Middle()
	m := merge{left: side.Lo == whole.Lo, kept: len(held)}
	other := tree.Span{Lo: whole.Lo, Hi: mid}
	if m.left {
		other = tree.Span{Lo: mid, Hi: whole.Hi}
	}
	of := func(rank int) *partner {
		i := slices.IndexFunc(m.partners, func(p partner) bool { return p.rank == rank })
		if i < 0 {
			i = len(m.partners)
			m.partners = append(m.partners, partner{rank: rank})
		}
		return &m.partners[i]
	}
	for i, j := range held {
		if to := holder(whole, int(j)); to != rank {
			p := of(to)
			m.kept = min(m.kept, i)
			if p.hi == 0 {
				p.lo = i
			}
			p.hi = i + 1
			continue
		}
		p := of(holder(other, int(j)))
		if last := len(p.gets) - 1; last >= 0 && p.gets[last][1] == i {
			p.gets[last][1]++
		} else {
			p.gets = append(p.gets, [2]int{i, i + 1})
		}
	}
	return m
}

// stripe is some elements of every shard of a tensor, whose shards have share elements each.
type stripe struct {
	src    transport.Buffer
	share  int
	lo, hi int
}

// elements returns the elements of a shard in s; there are fewer, or none, at the end of the tensor.
func (s stripe) elements(shard int) transport.Buffer {
	b := transport.Share(s.src, shard, s.share)
	return b.Part(min(s.lo, b.Len()), min(s.hi, b.Len()))
}

// bytes returns the number of bytes of some shards in s.
func (s stripe) bytes(shards []uint16) (n int) {
	for _, j := range shards {
		n += len(s.elements(int(j)).Bytes())
	}
	return n
}

// next returns the stripe of up to step elements that follows s.
func (s stripe) next(step int) stripe {
	return stripe{s.src, s.share, s.hi, min(s.hi+step, s.share)}
}

// routeStage is the memory of a reduction by halving.
type routeStage struct {
	step  int                 // elements of each shard in a stripe
	packs [2][]byte           // contributions for others, if they are packed, for stripes in turn
	got   []byte              // contributions of the others in the block
	sums  [2]transport.Buffer // of the shards that this rank holds, for stripes in turn
	room  transport.Buffer    // sums of another subtree
	bytes int
}

// memory divides memory for shards of share elements. If memory is nil, it only computes the size.
func (rt *route) memory(memory []byte, d transport.DType, share, stripeBytes int) (m routeStage) {
	as := d
	if d.IsFloat() && d.Size() < 4 {
		as = transport.Float32
	}
	most := lines(max(1, share*d.Size()))
	wide := max(64, min(stripeBytes/len(rt.order)/64*64, most)) // bytes of each shard
	m.step = wide / d.Size()
	take := func(n int) (b []byte) {
		if memory != nil {
			b = memory[m.bytes:][:n]
		}
		m.bytes += n
		return b
	}
	sum := m.step * as.Size()
	for i := range m.packs {
		if i > 0 && wide == most { // there is one stripe
			break
		}
		if wide < straight {
			m.packs[i] = take((len(rt.order) - len(rt.mine)) * wide)
		}
		m.sums[i] = bufferOf(take(len(rt.mine)*sum), as)
	}
	m.got = take((rt.block.Ranks() - 1) * len(rt.mine) * wide)
	if len(rt.merges) > 0 {
		m.room = bufferOf(take(rt.merges[0].kept*sum), as)
	}
	if wide == most {
		m.bytes = max(m.bytes, len(rt.order)*wide) // gatherSums needs that much
	}
	return m
}

// routed returns this rank's route in reductions by halving.
func (r *remote) routed() *route {
	r.route.once.Do(func() { r.route.set(r.size, r.rank) })
	return &r.route
}

// halve is reduceLarge between many ranks. The first frame is for the rule of neighbours, see
// [remote].
func (r *remote) halve(ctx context.Context, dst, src transport.Buffer, share int, op transport.Op) error {
	r.send(r.right(1), roundHalve, 0, nil)
	r.receive(r.left(1), roundHalve, 0, nil)
	if err := r.settle(ctx); err != nil {
		return err
	}
	rt, partial := r.routed(), op
	if op == transport.Avg {
		partial = transport.Sum // the average is taken once, at the end
	}
	m := rt.memory(nil, src.DType(), share, r.stripe)
	m = rt.memory(r.staging(m.bytes), src.DType(), share, r.stripe)
	s := stripe{src: src, share: share}.next(m.step)
	r.contribute(rt, s, m.packs[0], m.got)
	for i := 0; ; i++ {
		if err := r.await(ctx, i+1); err != nil {
			return err
		}
		for k, j := range rt.mine {
			rt.at[k+1] = rt.at[k] + s.elements(int(j)).Len()
		}
		sums := m.sums[i%2]
		r.sumBlock(rt, s, sums, m.got, partial)
		after := s.next(m.step)
		if s.hi < share {
			r.contribute(rt, after, m.packs[(i+1)%2], m.got)
		}
		for k := range rt.merges {
			if err := r.merge(ctx, rt, &rt.merges[k], sums, m.room, partial, i+1); err != nil {
				return err
			}
		}
		r.reducer.Sources = append(r.reducer.Sources[:0], sums.Part(0, rt.at[1]))
		r.reducer.ReduceScaled(dst.Part(min(s.lo, dst.Len()), min(s.hi, dst.Len())), op, r.size)
		clear(r.reducer.Sources)
		if s.hi == share {
			return r.settle(ctx)
		}
		s = after
	}
}

// contribute queues the messages of a stripe in the block. It packs the data for one rank in pack,
// if not nil. Data from other ranks goes to got, in the order of ranks.
func (r *remote) contribute(rt *route, s stripe, pack, got []byte) {
	b, i, n := rt.block.Ranks(), r.rank-rt.block.Lo, s.bytes(rt.mine)
	for k := 1; k < b; k++ {
		to, from := (i+k)%b, (i+b-k)%b
		list := rt.order[rt.first[to]:rt.first[to+1]]
		if pack != nil {
			pack = r.sendPacked(rt.block.Lo+to, s, list, pack)
		} else {
			r.send(rt.block.Lo+to, roundScatter, s.bytes(list), nil)
			for _, j := range list {
				r.sendMore(rt.block.Lo+to, s.elements(int(j)).Bytes())
			}
		}
		r.receive(rt.block.Lo+from, roundScatter, n, rt.incoming(from, i, got, n))
	}
}

// sendPacked copies a stripe of some shards to pack, queues it as a message, and returns the rest
// of pack.
func (r *remote) sendPacked(to int, s stripe, list []uint16, pack []byte) (rest []byte) {
	n, sum := 0, uint32(0)
	for _, j := range list {
		x := s.elements(int(j)).Bytes()
		if r.frame.summed {
			sum = checksum.Copy(sum, pack[n:n+len(x)], x)
		} else {
			copy(pack[n:], x)
		}
		n += len(x)
	}
	message := piece{of: r.frame, round: roundScatter, length: n, body: pack[:n], known: true, sum: sum}
	r.port(to).out.add(message)
	return pack[n:]
}

// incoming returns the place of the n bytes that rank i of the block gets from another one.
func (rt *route) incoming(other, i int, got []byte, n int) []byte {
	if other > i {
		other--
	}
	return got[other*n : (other+1)*n]
}

// sumBlock sets sums to the sums of the block, for the shards that this rank holds.
func (r *remote) sumBlock(rt *route, s stripe, sums transport.Buffer, got []byte, op transport.Op) {
	i, n := r.rank-rt.block.Lo, s.bytes(rt.mine)
	for k, j := range rt.mine {
		lo, hi := rt.at[k], rt.at[k+1]
		r.reducer.Sources = r.reducer.Sources[:0]
		for q := range rt.block.Ranks() {
			x := s.elements(int(j))
			if q != i {
				x = bufferOf(rt.incoming(q, i, got, n), s.src.DType()).Part(lo, hi)
			}
			r.reducer.Sources = append(r.reducer.Sources, x)
		}
		r.reducer.Reduce(sums.Part(lo, hi), op)
	}
	clear(r.reducer.Sources)
}

// merge sends the sums of a stripe that other ranks hold from now on, and adds the sums of the
// other subtree to the rest. k messages of every rank have arrived then.
func (r *remote) merge(
	ctx context.Context, rt *route, m *merge, sums, room transport.Buffer, op transport.Op, k int,
) error {
	taken := 0
	for i := range m.partners {
		p := &m.partners[i]
		give := sums.Part(rt.at[p.lo], rt.at[p.hi]).Bytes()
		r.send(p.rank, roundScatter, len(give), give)
		n := 0
		for _, g := range p.gets {
			n += rt.at[g[1]] - rt.at[g[0]]
		}
		into := room.Part(taken, taken+n).Bytes()
		r.receive(p.rank, roundScatter, len(into), into)
		taken += n
	}
	if err := r.await(ctx, k); err != nil {
		return err
	}
	taken = 0
	for i := range m.partners {
		for _, g := range m.partners[i].gets {
			own := sums.Part(rt.at[g[0]], rt.at[g[1]])
			left, right := own, room.Part(taken, taken+own.Len())
			if !m.left {
				left, right = right, left
			}
			r.reducer.Sources = append(r.reducer.Sources[:0], left, right)
			r.reducer.Reduce(own, op)
			taken += own.Len()
		}
	}
	clear(r.reducer.Sources)
	return nil
}
