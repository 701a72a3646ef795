package tcp

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gofsdp/gofsdp/comm/internal/session"
	"github.com/gofsdp/gofsdp/comm/internal/tree"
	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/text"
)

// hosts describes a group on several hosts, with consecutive ranks on each, of which at least one
// host has several. Ranks of a host share memory, so every byte crosses the network once per host,
// not once per rank, over the connections of all ranks:
//
//	all-gather      own host, from each rank to its mate on every other host, inside that
//	reduce-scatter  sums inside the host, to the owners, sum of the partial sums
//	broadcast       from the root along its mates, from these inside their hosts, block by block
//
// A gather needs no such steps: it sends no byte twice anyway.
//
// The sums have the bits of the canonical tree: the ranks of a host sum the largest subtrees within
// it. There is one if each host has the same power of two of ranks, and at most 2 log2 of its ranks
// for any other number. Partial sums of 16-bit floats travel as float32, which is twice the bytes
// of one contribution. So subtrees of two ranks send their contributions as they are.
type hosts struct {
	local transport.Group // the ranks of this host
	tree  transport.Group // its ranks that are a subtree with this one; nil if it is one by itself
	all   []tree.Span     // the ranks of every host
	host  int             // this one
	rank  int             // this one, in the whole group
	names []string        // of local and tree, where they are not the same
	sums  [3][]tree.Span
}

// Indices of hosts.sums: the spans that are summed before they travel, or sent as they are
// if they are one rank.
const (
	byHost    = iota // where the order does not matter
	bySubtree        // where it does
	byHalf           // and contributions have half the bytes of a sum
)

// newHosts returns hosts without groups. There are two hosts or more.
func newHosts(name string, rank int, all []tree.Span) *hosts {
	h := &hosts{all: all, rank: rank, host: slices.IndexFunc(all, func(s tree.Span) bool { return rank < s.Hi })}
	h.sums[byHost] = all
	h.sums[bySubtree] = tree.Subtrees(nil, tree.Span{Lo: 0, Hi: all[len(all)-1].Hi}, all)
	for _, s := range h.sums[bySubtree] {
		if s.Ranks() > 2 {
			h.sums[byHalf] = append(h.sums[byHalf], s)
			continue
		}
		for r := s.Lo; r < s.Hi; r++ {
			h.sums[byHalf] = append(h.sums[byHalf], tree.Span{Lo: r, Hi: r + 1})
		}
	}
	h.names = []string{fmt.Sprintf("%s on host %d", name, h.host), fmt.Sprintf("%s, subtree of rank %d", name, h.mine(bySubtree).Lo)}
	return h
}

// mine returns the span that this rank is in.
func (h *hosts) mine(index int) tree.Span {
	return h.sums[index][slices.IndexFunc(h.sums[index], func(s tree.Span) bool { return h.rank < s.Hi })]
}

// findHosts returns the hosts of l, nil if it is better treated as flat. All ranks come to the same
// result, and none before all are connected: a rank may leave the group as soon as it is made.
func (r *remote) findHosts(ctx context.Context, l *session.Link) (*hosts, error) {
	all := hostsOf(len(l.Ranks), func(r int) string { return l.Session.Mesh.Host(l.Ranks[r]) })
	able := []int32{0, 1}
	if crowded(l) {
		able[1] = 0
	}
	var h *hosts
	if all != nil {
		if h = newHosts(l.Name, l.Rank, all); l.Session.Shares(l.Ranks[all[h.host].Lo:all[h.host].Hi]) {
			able[0] = 1
		}
	}
	// A host may have no shared memory, or fewer processors than ranks: the decision must be the
	// same on all hosts.
	if err := r.Run(ctx, 0, &transport.Call{Kind: transport.KindAllReduce, Op: transport.Min, Dst: transport.Of(able), Src: transport.Of(able)}); err != nil {
		return nil, err
	}
	r.crowded = able[1] == 0
	if able[0] == 0 {
		return nil, nil
	}
	form := func(name string, s tree.Span) (transport.Group, error) {
		inside := l.Derive(name, text.Hash(fmt.Sprintf("%x %s", l.ID, name)), l.Ranks[s.Lo:s.Hi])
		g, err := l.Session.Memory.Group(ctx, inside)
		return g, h.outside(r.name, err)
	}
	var err error
	own, subtree := all[h.host], h.mine(bySubtree)
	if h.local, err = form(h.names[0], own); err != nil {
		return nil, err
	}
	switch {
	case subtree == own:
		h.tree = h.local
	case subtree.Ranks() > 1:
		h.tree, err = form(h.names[1], subtree)
	}
	return h, err
}

// hostsOf returns the ranks of every host, of n in all. It returns nil if there is one host, or one
// rank on each, or if ranks of a host are not consecutive.
func hostsOf(n int, host func(rank int) string) (all []tree.Span) {
	seen := map[string]bool{}
	for r := range n {
		if r > 0 && host(r) == host(r-1) {
			all[len(all)-1].Hi++
			continue
		}
		if seen[host(r)] {
			return nil
		}
		seen[host(r)] = true
		all = append(all, tree.Span{Lo: r, Hi: r + 1})
	}
	if len(all) == 1 || len(all) == n {
		return nil
	}
	return all
}

// outside turns a failure of some ranks of this host into one of the whole group.
func (h *hosts) outside(group string, err error) error {
	var blame *transport.RankError
	if !errors.As(err, &blame) {
		return err
	}
	switch i := slices.Index(h.names, blame.Group); i {
	case 0:
		return &transport.RankError{Group: group, Rank: h.all[h.host].Lo + blame.Rank, Err: blame.Err}
	case 1:
		return &transport.RankError{Group: group, Rank: h.mine(bySubtree).Lo + blame.Rank, Err: blame.Err}
	}
	return err
}

// localRanks returns the ranks of this host.
func (h *hosts) localRanks() tree.Span { return h.all[h.host] }

// next and before return the host that is k places after this one, and before it.
func (h *hosts) next(k int) int     { return (h.host + k) % len(h.all) }
func (h *hosts) previous(k int) int { return (h.host + len(h.all) - k) % len(h.all) }

// mate returns the rank of another host that exchanges data with a rank of host from. Between hosts
// of the same size each rank has a different mate.
func (h *hosts) mate(host, from, rank int) int {
	there, here := h.all[host], h.all[from]
	return there.Lo + (rank-here.Lo)*there.Ranks()/here.Ranks()
}

// stop ends the operations of the ranks of this host. The others get the reason in the whole group:
// for them it is as if a connection had ended.
func (h *hosts) stop() {
	for _, g := range []transport.Group{h.local, h.tree} {
		if g != nil {
			g.Abort(fmt.Errorf("%w: %w", errStopped, transport.ErrLost))
		}
	}
}

// suits reports whether a collective of this many bytes is large enough to pay for the agreement
// that comes first, and sends fewer bytes between hosts.
func (h *hosts) suits(kind transport.Kind, op transport.Op, d transport.DType, bytes int) bool {
	switch kind {
	case transport.KindBarrier, transport.KindSplit, transport.KindGather, transport.KindAllToAll:
		return false
	case transport.KindReduceScatter:
		return bytes > smallMessage && h.sends(op, d)
	default:
		return bytes > smallMessage
	}
}

// summing returns which spans to sum before they travel: an index of hosts.sums.
func summing(op transport.Op, d transport.DType) int {
	switch {
	case op == transport.Max || op == transport.Min || !d.IsFloat():
		return byHost
	case d.Size() >= 4:
		return bySubtree
	default:
		return byHalf
	}
}

// sends reports whether reductions send fewer bytes between hosts.
func (h *hosts) sends(op transport.Op, d transport.DType) bool {
	spans := h.sums[summing(op, d)]
	return len(spans) < spans[len(spans)-1].Hi
}

// hierarchical carries out c in steps inside the hosts and between them. The
// steps inside cannot name ranks of other hosts that disagree, so all agree first.
func (r *remote) hierarchical(ctx context.Context, c *transport.Call) error {
	if err := r.agree(ctx); err != nil {
		return err
	}
	var err error
	switch c.Kind {
	case transport.KindAllGather:
		err = r.hostGather(ctx, c.Dst, c.Src)
	case transport.KindReduceScatter:
		err = r.hostScatter(ctx, c.Dst, c.Src, c.Op)
	case transport.KindAllReduce:
		err = r.hostReduce(ctx, c.Dst, c.Op)
	default:
		err = r.hostBroadcast(ctx, c.Dst, c.Root)
	}
	return r.hosts.outside(r.name, err)
}

// hostGather is an all-gather of own to full.
func (r *remote) hostGather(ctx context.Context, full, own transport.Buffer) error {
	h := r.hosts
	b := own.Bytes()
	for k := 1; k < len(h.all); k++ {
		r.send(h.mate(h.next(k), h.host, r.rank), roundHosts, len(b), b)
		from := h.previous(k)
		for q := h.all[from].Lo; q < h.all[from].Hi; q++ {
			if h.mate(h.host, from, q) == r.rank {
				r.receive(q, roundHosts, len(b), transport.Share(full, q, own.Len()).Bytes())
			}
		}
	}
	if err := r.await(ctx, 0); err != nil { // start the wires
		return err
	}
	of := func(s tree.Span) transport.Buffer { return full.Part(s.Lo*own.Len(), s.Hi*own.Len()) }
	if err := h.local.AllGather(of(h.localRanks()), own).Wait(ctx); err != nil {
		return err
	}
	if err := r.settle(ctx); err != nil {
		return err
	}
	for k := 1; k < len(h.all); k++ {
		from := h.previous(k)
		s := h.all[from]
		if s.Ranks() == h.localRanks().Ranks() {
			mine := transport.Share(full, h.mate(from, h.host, r.rank), own.Len())
			if err := h.local.AllGather(of(s), mine).Wait(ctx); err != nil {
				return err
			}
			continue
		}
		for q := s.Lo; q < s.Hi; q++ {
			root := h.mate(h.host, from, q) - h.localRanks().Lo
			if err := h.local.Broadcast(transport.Share(full, q, own.Len()), root).Wait(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// widened is how many elements of each contribution are widened at a time.
const widened = block / 4

// A partial is the sum by one span of the elements that the ranks of a host own. Each rank of the
// span sums an equal part of them. If they cannot be cut equally, the parts begin or end with a few
// elements of other hosts, which are not used.
type partial struct {
	sum    tree.Span
	lo, n  int // the first element, and the number of each part
	shares int // elements of each owner
}

// partial returns the part of sum for the owners on a host.
func (h *hosts) partial(sum tree.Span, host, share int) partial {
	s, all := h.all[host], h.all[len(h.all)-1].Hi*share
	n := (s.Ranks()*share + sum.Ranks() - 1) / sum.Ranks()
	return partial{sum, min(s.Lo*share, all-n*sum.Ranks()), n, share}
}

// window returns all elements that are summed.
func (p partial) window() (lo, hi int) { return p.lo, p.lo + p.n*p.sum.Ranks() }

// overlap returns the elements that rank from sums and rank owner owns.
func (p partial) overlap(from, owner int) (lo, hi int) {
	first := p.lo + (from-p.sum.Lo)*p.n
	lo, hi = max(first, owner*p.shares), min(first+p.n, (owner+1)*p.shares)
	return lo, max(lo, hi)
}

// partials is the memory of a reduce-scatter by hosts: a sum of every span for the elements that
// this rank owns, the sums of this rank's span for every host, and a block of this span's
// contributions, if these must be widened.
type partials struct {
	in, out []transport.Buffer // by span, by host
	block   transport.Buffer
	bytes   int
}

// stagingOf divides memory for a share of n elements. If memory is nil, it only computes the size.
// A contribution of this rank by itself is not staged.
func (h *hosts) stagingOf(memory []byte, index, n int, d transport.DType) (s partials) {
	add := func(list []transport.Buffer, n, ranks int) []transport.Buffer {
		as := d
		if ranks > 1 && index == byHalf {
			as = transport.Float32
		}
		size := n * as.Size()
		var b transport.Buffer
		if memory != nil {
			b = bufferOf(memory[s.bytes:][:size], as)
		}
		s.bytes += lines(size)
		return append(list, b)
	}
	mine := h.mine(index)
	for _, sum := range h.sums[index] {
		if sum.Ranks() == 1 && sum == mine {
			s.in = append(s.in, transport.Buffer{})
			continue
		}
		s.in = add(s.in, n, sum.Ranks())
	}
	if mine.Ranks() == 1 {
		return s
	}
	most := 0
	for host := range h.all {
		p := h.partial(mine, host, n)
		s.out = add(s.out, p.n, mine.Ranks())
		most = max(most, p.n)
	}
	if index == byHalf {
		s.block = add(nil, mine.Ranks()*min(most, widened), mine.Ranks())[0]
	}
	return s
}

// hostScatter is a reduce-scatter of src to dst.
func (r *remote) hostScatter(ctx context.Context, dst, src transport.Buffer, op transport.Op) error {
	h, index := r.hosts, summing(op, dst.DType())
	mine := h.mine(index)
	stage := h.stagingOf(r.staging(h.stagingOf(nil, index, dst.Len(), dst.DType()).bytes), index, dst.Len(), dst.DType())
	at := r.rank * dst.Len()
	for i, sum := range h.sums[index] {
		p := h.partial(sum, h.host, dst.Len())
		for from := sum.Lo; from < sum.Hi; from++ {
			if lo, hi := p.overlap(from, r.rank); from != r.rank && lo < hi {
				b := stage.in[i].Part(lo-at, hi-at).Bytes()
				r.receive(from, roundHosts, len(b), b)
			}
		}
		if sum == mine && mine.Ranks() == 1 {
			stage.in[i] = transport.Share(src, r.rank, dst.Len())
		}
	}
	for k := 1; k <= len(h.all); k++ {
		to := h.next(k)
		p := h.partial(mine, to, dst.Len())
		lo, hi := p.window()
		out := src.Part(lo, hi)
		if mine.Ranks() > 1 {
			out = stage.out[to]
			if err := h.sum(ctx, out, src.Part(lo, hi), stage.block, op); err != nil {
				return err
			}
		}
		first := p.lo + (r.rank-mine.Lo)*p.n
		for owner := h.all[to].Lo; owner < h.all[to].Hi; owner++ {
			lo, hi := p.overlap(r.rank, owner)
			switch b := out.Part(lo-first, hi-first); {
			case lo == hi:
			case owner != r.rank:
				r.send(owner, roundHosts, len(b.Bytes()), b.Bytes())
			case mine.Ranks() > 1:
				transport.Move(stage.in[slices.Index(h.sums[index], mine)].Part(lo-at, hi-at), b)
			}
		}
		if err := r.await(ctx, 0); err != nil {
			return err
		}
	}
	if err := r.settle(ctx); err != nil {
		return err
	}
	r.reducer.Sources = append(r.reducer.Sources[:0], stage.in...)
	r.reducer.ReduceSpans(dst, op, r.size, h.sums[index])
	clear(r.reducer.Sources)
	return nil
}

// sum leaves this rank's part of the sum of the subtree's sources in out, which may have a wider
// type: then it widens the sources a block at a time.
func (h *hosts) sum(ctx context.Context, out, src, wide transport.Buffer, op transport.Op) error {
	if op == transport.Avg {
		op = transport.Sum // the average is taken once, at the end
	}
	if out.DType() == src.DType() {
		g := h.tree
		if summing(op, src.DType()) == byHost {
			g = h.local
		}
		return g.ReduceScatter(out, src, op).Wait(ctx)
	}
	for lo := 0; lo < out.Len(); lo += widened {
		n := min(widened, out.Len()-lo)
		for i := range src.Len() / out.Len() {
			widen(transport.View[float32](transport.Share(wide, i, n)), src.Part(i*out.Len()+lo, i*out.Len()+lo+n))
		}
		if err := h.tree.ReduceScatter(out.Part(lo, lo+n), wide.Part(0, src.Len()/out.Len()*n), op).Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// widen sets dst to the values of 16-bit floats.
func widen(dst []float32, src transport.Buffer) {
	if src.DType() == transport.BFloat16 {
		half.Widen(dst, transport.View[transport.BF16](src))
		return
	}
	half.Widen(dst, transport.View[transport.F16](src))
}

// hostReduce is an all-reduce of buf. After every rank has taken the same number of cache lines,
// the rest is too small to travel in steps.
func (r *remote) hostReduce(ctx context.Context, buf transport.Buffer, op transport.Op) error {
	line := 64 / buf.DType().Size()
	share := buf.Len() / r.size / line * line
	full := buf.Part(0, r.size*share)
	own := transport.Share(full, r.rank, share)
	var err error
	if r.hosts.sends(op, buf.DType()) {
		err = r.hostScatter(ctx, own, full, op)
	} else {
		err = r.reduceLarge(ctx, own, full, share, op)
	}
	if err != nil {
		return err
	}
	if err := r.hostGather(ctx, full, own); err != nil {
		return err
	}
	return r.allReduce(ctx, buf.Part(full.Len(), buf.Len()), op)
}

// hostBroadcast is a broadcast of buf: along the chain of the root's mates, and
// from each of them inside its host.
func (r *remote) hostBroadcast(ctx context.Context, buf transport.Buffer, root int) error {
	h := r.hosts
	home := slices.IndexFunc(h.all, func(s tree.Span) bool { return root < s.Hi })
	mate := func(host int) int { return h.mate(host, home, root) }
	size := buf.DType().Size()
	inside := func(lo, hi int) error {
		return h.local.Broadcast(buf.Part(lo/size, hi/size), mate(h.host)-h.localRanks().Lo).Wait(ctx)
	}
	b := buf.Bytes()
	if r.rank != mate(h.host) {
		for lo := 0; lo < len(b); lo += block {
			if err := inside(lo, min(lo+block, len(b))); err != nil {
				return err
			}
		}
		return nil
	}
	from, to := mate(h.previous(1)), mate(h.next(1))
	if r.rank == root {
		from = noRank
	}
	if to == root {
		to = noRank
	}
	if err := r.relay(ctx, b, from, to, inside); err != nil {
		return err
	}
	return r.settle(ctx)
}
