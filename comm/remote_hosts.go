package comm

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
)

// hosts is how a group lies on several hosts, with the same number of ranks on
// each, one host after the other. Ranks of a host share memory; the ranks with
// the same index on all hosts form a rail. Then every byte crosses the network
// once per host, not once per rank, on all rails at the same time:
//
//	all-gather      own host, rails, then every other host's part inside the host
//	reduce-scatter  every host's part inside the host, rails, sum of the partial sums
//	broadcast       the root's rail, from there inside each host, block by block
//
// A gather takes no such steps: it sends no byte twice anyway.
//
// The sums have the bits of the canonical tree, of which the ranks of a host are
// a subtree if their number is a power of two.
type hosts struct {
	local Group  // the ranks of this host
	count int    // hosts
	host  int    // this one
	index int    // of this rank on the host
	name  string // of local
}

// findHosts returns how l lies on hosts, nil if it is better treated as flat. All
// ranks come to the same result, and none before all are connected: a rank may
// leave the group as soon as it is made.
func (r *remote) findHosts(ctx context.Context, l *link) (*hosts, error) {
	h, mates := hostsOf(l)
	able := []int32{0}
	if h != nil && l.session.shares(mates) {
		able[0] = 1
	}
	// A host may have no shared memory: what is done must not depend on it.
	if err := r.Run(ctx, 0, &Call{Kind: KindAllReduce, Op: Min, Dst: Of(able), Src: Of(able)}); err != nil {
		return nil, err
	}
	if able[0] == 0 {
		return nil, nil
	}
	inside := l.derive(h.name, hashText(fmt.Sprintf("%x on %d", l.id, h.host)), mates)
	var err error
	if h.local, err = newShared(ctx, inside, l.session.domain); err != nil {
		return nil, h.outside(r.name, len(mates), err)
	}
	return h, nil
}

// hostsOf returns where the ranks of l are, and the world ranks of those on this
// host; nil if that is of no use.
func hostsOf(l *link) (h *hosts, mates []int) {
	per := perHost(len(l.ranks), func(r int) string { return l.session.mesh.Host(l.ranks[r]) })
	if per == 0 {
		return nil, nil
	}
	h = &hosts{count: len(l.ranks) / per, host: l.rank / per, index: l.rank % per}
	h.name = fmt.Sprintf("%s on host %d", l.name, h.host)
	return h, l.ranks[h.host*per:][:per]
}

// outside turns the failure of the ranks of this host, of which there are per, into
// one of the whole group.
func (h *hosts) outside(group string, per int, err error) error {
	var blame *RankError
	if errors.As(err, &blame) && blame.Group == h.name {
		return &RankError{Group: group, Rank: h.host*per + blame.Rank, Err: blame.Err}
	}
	return err
}

// perHost returns the number of ranks on each host, 0 if it is not the same
// everywhere, or one, or everything, or if ranks of a host are not in a row.
func perHost(n int, host func(rank int) string) int {
	per := 1
	for per < n && host(per) == host(0) {
		per++
	}
	if per == 1 || per == n || n%per != 0 {
		return 0
	}
	seen := map[string]bool{}
	for r := range n {
		first := host(r / per * per)
		if host(r) != first || r%per == 0 && seen[first] {
			return 0
		}
		seen[first] = true
	}
	return per
}

func (h *hosts) per() int          { return h.local.Size() }
func (h *hosts) rail(host int) int { return host*h.per() + h.index }
func (h *hosts) after(k int) int   { return (h.host + k) % h.count }
func (h *hosts) before(k int) int  { return (h.host + h.count - k) % h.count }

// stop ends what the ranks of this host do together. Why, the others will hear in
// the whole group: for them it is as if a connection had ended.
func (h *hosts) stop() { h.local.Abort(fmt.Errorf("%w: %w", errStopped, ErrLost)) }

// suits reports whether a collective of so many bytes is large enough to pay for
// the agreement that comes first, and keeps its bits.
func (h *hosts) suits(kind Kind, op Op, d DType, bytes int) bool {
	switch {
	case kind == KindBarrier || kind == KindSplit || kind == KindGather || bytes <= smallMessage:
		return false
	case kind == KindAllGather || kind == KindBroadcast || !d.float() || op == Max || op == Min:
		return true
	}
	// Partial sums of 16-bit floats would be rounded.
	return d.Size() >= 4 && bits.OnesCount(uint(h.per())) == 1
}

// hierarchical carries out c in steps inside the hosts and between them. The
// steps inside cannot name ranks of other hosts that disagree, so all agree first.
func (r *remote) hierarchical(ctx context.Context, c *Call) error {
	if err := r.agree(ctx); err != nil {
		return err
	}
	var err error
	switch c.Kind {
	case KindAllGather:
		err = r.railGather(ctx, c.Dst, c.Src)
	case KindReduceScatter:
		err = r.railScatter(ctx, c.Dst, c.Src, c.Op)
	case KindAllReduce:
		err = r.railReduce(ctx, c.Dst, c.Op)
	default:
		err = r.railBroadcast(ctx, c.Dst, c.Root)
	}
	if err != nil {
		return r.hosts.outside(r.name, r.hosts.per(), err)
	}
	return nil
}

// railGather is an all-gather of own to full.
func (r *remote) railGather(ctx context.Context, full, own Buffer) error {
	h := r.hosts
	b := own.Bytes()
	for k := 1; k < h.count; k++ {
		to, from := h.rail(h.after(k)), h.rail(h.before(k))
		r.send(to, roundRails, len(b), b)
		r.receive(from, roundRails, len(b), part(full, from, own.len).Bytes())
	}
	if err := r.await(ctx, 0); err != nil { // start the wires
		return err
	}
	if err := h.local.AllGather(part(full, h.host, h.per()*own.len), own).Wait(ctx); err != nil {
		return err
	}
	if err := r.settle(ctx); err != nil {
		return err
	}
	for k := 1; k < h.count; k++ {
		from := h.before(k)
		mine := part(full, h.rail(from), own.len)
		if err := h.local.AllGather(part(full, from, h.per()*own.len), mine).Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// railScatter is a reduce-scatter of src to dst. It stages two partial sums of
// the length of dst for every host.
func (r *remote) railScatter(ctx context.Context, dst, src Buffer, op Op) error {
	h := r.hosts
	inner := op
	if op == Avg {
		inner = Sum // the average is taken once, at the end
	}
	n := len(dst.Bytes())
	line := lines(n)
	stage := r.staging(2 * h.count * line)
	slot := func(i int) []byte { return stage[i*line:][:n] }
	for k := 1; k < h.count; k++ {
		from := h.before(k)
		r.receive(h.rail(from), roundRails, n, slot(from))
	}
	for k := 1; k <= h.count; k++ {
		to := h.after(k)
		sum := slot(to)
		if to != h.host {
			sum = slot(h.count + to)
		}
		err := h.local.ReduceScatter(bufferOf(sum, dst), part(src, to, h.per()*dst.len), inner).Wait(ctx)
		if err != nil {
			return err
		}
		if to == h.host {
			break
		}
		r.send(h.rail(to), roundRails, n, sum)
		if err := r.await(ctx, 0); err != nil {
			return err
		}
	}
	if err := r.settle(ctx); err != nil {
		return err
	}
	r.reducer.srcs = r.reducer.srcs[:0]
	for i := range h.count {
		r.reducer.srcs = append(r.reducer.srcs, bufferOf(slot(i), dst))
	}
	r.reducer.reduceScaled(dst, op, r.size)
	clear(r.reducer.srcs)
	return nil
}

// railReduce is an all-reduce of buf. What is left when every rank has taken the
// same number of cache lines is too little to travel in steps.
func (r *remote) railReduce(ctx context.Context, buf Buffer, op Op) error {
	line := 64 / buf.dtype.Size()
	share := buf.len / r.size / line * line
	full := buf.slice(0, r.size*share)
	own := part(full, r.rank, share)
	if err := r.railScatter(ctx, own, full, op); err != nil {
		return err
	}
	if err := r.railGather(ctx, full, own); err != nil {
		return err
	}
	return r.allReduce(ctx, buf.slice(full.len, buf.len), op)
}

// railBroadcast is a broadcast of buf: along the chain of the root's rail, and
// from each of its ranks inside the host.
func (r *remote) railBroadcast(ctx context.Context, buf Buffer, root int) error {
	h := r.hosts
	size, index := buf.dtype.Size(), root%h.per()
	inside := func(lo, hi int) error {
		return h.local.Broadcast(buf.slice(lo/size, hi/size), index).Wait(ctx)
	}
	b := buf.Bytes()
	if h.index != index {
		for lo := 0; lo < len(b); lo += block {
			if err := inside(lo, min(lo+block, len(b))); err != nil {
				return err
			}
		}
		return nil
	}
	from, to := h.rail(h.before(1)), h.rail(h.after(1))
	if r.rank == root {
		from = nobody
	}
	if to == root {
		to = nobody
	}
	return r.relay(ctx, b, from, to, inside)
}
