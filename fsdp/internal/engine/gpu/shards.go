package gpu

import (
	"context"
	"fmt"

	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/nccl"
	"github.com/gofsdp/gofsdp/optim"
)

// shards implements engine.Shards with blocks of the device.
type shards struct {
	d      *Device
	groups []*group
	state  []*block // of optimizers

	turn   engine.Turn // of the backward under way
	before func(*layout.Group) float32
}

// A group is a flat group of parameters with this rank's share of it.
type group struct {
	*layout.Group
	d              *Device
	shard, replica *link    // ranks that hold different pieces, and ranks with the same piece; nil if there is only this rank
	peers          *link    // all ranks that hold the group; nil if there is only this rank
	value, grad    *block   // ShardBytes each; padding is zero; grad is nil if frozen
	copied         *block   // of value, which calls read in place; nil if the group is not Copied
	whole          *block   // gradients left by passes inside NoSync, or nil
	sums, wholes   []*block // of 2^k passes of a step by k, cut and whole: see the tree over the passes of a step
	kernels        transfers

	valueVec, gradVec optim.Vec // the same memory; gradVec is nil if frozen
}

// NewShards implements engine.Device.
func (d *Device) NewShards(ctx context.Context, l *layout.Layout, meshes []ranks.Mesh) (engine.Shards, error) {
	if err := d.links.connect(ctx, meshes); err != nil {
		return nil, err
	}
	s := &shards{d: d}
	for i := range l.Groups {
		m := &meshes[i]
		g := &group{Group: &l.Groups[i], d: d, shard: d.links.find(m.Shard), replica: d.links.find(m.Replica), peers: d.links.find(m.Peers)}
		s.groups = append(s.groups, g)
		if err := g.alloc(); err != nil {
			s.Free()
			return nil, fmt.Errorf("group %s: %w", g.Name, err)
		}
	}
	return s, nil
}

// alloc allocates the zeroed share of g, and loads its kernels.
func (g *group) alloc() (err error) {
	if err = g.load(); err != nil {
		return err
	}
	if g.value, err = g.d.zeros(g.ShardBytes(), arena.Shard, g.d.o.Offload && !g.Near()); err == nil && !g.Kind.Frozen {
		g.grad, err = g.d.zeros(g.ShardBytes(), arena.Shard, g.d.o.Offload)
	}
	if err == nil && g.Copied {
		if g.copied, err = g.d.alloc(g.CopyBytes(), arena.Shard); err == nil {
			g.value.copied, g.value.stale = g.copied, true
		}
	}
	if err != nil {
		return err
	}
	if g.grad != nil {
		g.grad.gradient = g.Store.Size()
	}
	g.valueVec, g.gradVec = g.d.vector(g.value, g.Store.Size()), g.d.vector(g.grad, g.Store.Size())
	return nil
}

// zeros returns n bytes that are zero for later operations in work. They are host memory if pinned.
func (d *Device) zeros(n int, class arena.Class, pinned bool) (*block, error) {
	if pinned {
		b, err := d.allocPinned(n, class)
		if err == nil {
			clear(b.pinned.Bytes())
		}
		return b, err
	}
	b, err := d.alloc(n, class)
	if err != nil {
		return nil, err
	}
	if err := d.fail(d.work.Set(b.Addr(), 0, n)); err != nil {
		d.drop(b)
		return nil, err
	}
	return b, nil
}

// drop frees blocks when the streams no longer use them. Nil blocks are skipped. If a block cannot
// be freed, the device has ended.
func (d *Device) drop(blocks ...*block) {
	_ = d.launchUpdates()
	err := d.settle()
	for _, b := range blocks {
		if err == nil {
			err = d.free(b)
		}
	}
	_ = d.fail(err)
}

// Value implements engine.Shards.
func (s *shards) Value(group int) optim.Vec { return s.groups[group].valueVec }

// Grad implements engine.Shards.
func (s *shards) Grad(group int) optim.Vec { return s.groups[group].gradVec }

// Alloc implements engine.Shards.
func (s *shards) Alloc(group, n int) (optim.Vec, error) {
	size := s.groups[group].Compute.Size()
	alloc := s.d.alloc
	if s.d.o.Offload {
		alloc = s.d.allocPinned
	}
	b, err := alloc(n*size, arena.State)
	if err != nil {
		return nil, err
	}
	s.state = append(s.state, b)
	return s.d.vector(b, size), nil
}

// Average implements engine.Shards.
func (s *shards) Average(ctx context.Context, group int) error {
	g := s.groups[group]
	if g.peers == nil {
		return nil
	}
	return g.outside(ctx, func() error {
		g.d.outdate(g.value)
		return g.send(g.peers, g.peers.allReduce(g.value.Addr(), g.Flat.ShardLen(), g.Store, nccl.Avg))
	})
}

// Whole implements engine.Shards.
func (s *shards) Whole(group int) bool { return s.groups[group].whole != nil }

// ReduceWhole implements engine.Shards.
func (s *shards) ReduceWhole(ctx context.Context, group int, before float32, after float64) error {
	g := s.groups[group]
	full := g.whole.Addr()
	err := g.outside(ctx, func() error {
		if s.turn.Of > 0 {
			if err := g.reduceWholeInTree(s, full, before); err != nil {
				return err
			}
			return g.finishReduce(g.d.wire, full, after)
		}
		k, op, err := g.startReduce(full, g.Compute, before)
		if err == nil {
			err = g.send(k, op)
		}
		if err == nil && g.Ranks.Twice() {
			k, op = g.startSync(full)
			err = g.send(k, op)
		}
		if err != nil {
			return err
		}
		return g.finishReduce(g.d.wire, full, after)
	})
	if err != nil {
		return err
	}
	s.d.keep(g.whole)
	g.whole = nil
	return s.d.err()
}

// send issues a collective outside of passes. It does nothing for a nil link.
func (g *group) send(k *link, op nccl.Op) error {
	if k == nil {
		return nil
	}
	if err := g.d.links.enqueue(k, op, engine.Place{}, g.Name); err != nil {
		return err
	}
	return g.d.links.launch()
}

// outside calls f, which issues operations in wire outside of a pass, and waits for them. They are
// ordered with the operations in work.
func (g *group) outside(ctx context.Context, f func() error) error {
	if err := g.d.fork(); err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	if err := g.d.join(onWire); err != nil {
		return err
	}
	return g.d.await(ctx, g.d.wire)
}

// Forget implements engine.Shards. It does nothing: blocks hold no data in transit.
func (s *shards) Forget() {}

// DropWhole implements engine.Shards.
func (s *shards) DropWhole() {
	for _, g := range s.groups {
		if g.whole != nil {
			s.d.keep(g.whole)
			g.whole = nil
		}
		for _, b := range g.wholes {
			if b != nil {
				s.d.keep(b)
			}
		}
		g.wholes = nil
	}
}

// Free implements engine.Shards. It also frees the spares, which other shards can hardly use.
func (s *shards) Free() {
	list := append(s.state, s.d.spares.blocks...)
	s.d.spares.blocks = nil
	for _, g := range s.groups {
		list = append(append(list, g.value, g.grad, g.copied), g.sums...)
		g.value, g.grad, g.copied, g.sums = nil, nil, nil, nil
	}
	s.state = nil
	s.d.drop(list...)
}
