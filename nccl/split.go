package nccl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// splits are the groups split from a group. A split has two steps: divide, a part of the
// collective, makes host groups and communicators together with all ranks; Split makes a group of
// each.
type splits struct {
	mu       sync.Mutex
	parts    map[uint64]part // made by divide and not yet taken by Split, by collective
	children []*backend      // open, by the order of their splits
}

// part is the common result of the ranks of a split for a new group.
type part struct {
	host         comm.Group
	communicator *Communicator // nil if it could not be made
}

func (s *splits) put(seq uint64, p part) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.parts == nil {
		s.parts = map[uint64]part{}
	}
	s.parts[seq] = p
}

func (s *splits) take(seq uint64) part {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.parts[seq]
	delete(s.parts, seq)
	return p
}

func (s *splits) adopt(child *backend) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.children = append(s.children, child)
}

// forget drops a group that is closed.
func (s *splits) forget(child *backend) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.children = slices.DeleteFunc(s.children, func(c *backend) bool { return c == child })
}

// close closes the groups, the youngest first, and the parts that never became a group.
func (s *splits) close() error {
	s.mu.Lock()
	children, parts := slices.Clone(s.children), s.parts
	s.parts = nil
	s.mu.Unlock()
	var errs []error
	for _, c := range slices.Backward(children) {
		errs = append(errs, c.serial.Close())
	}
	for _, p := range parts {
		if p.communicator != nil {
			errs = append(errs, p.communicator.Abort())
		}
		errs = append(errs, p.host.Close())
	}
	return errors.Join(errs...)
}

// divide makes the groups of a split, as far as all ranks of this group are needed for it.
func (b *backend) divide(ctx context.Context, seq uint64, c *transport.Call) error {
	mine, err := comm.Slice[int64](c.Src)
	if err != nil {
		return err
	}
	pairs, err := comm.Slice[int64](c.Dst)
	if err != nil {
		return err
	}
	if !b.meeting.enter() {
		return errHalted
	}
	defer b.meeting.exit()
	if err := b.host.AllGather(c.Dst, c.Src).Wait(ctx); err != nil {
		return err
	}
	var p part
	if p.host, err = b.host.Split(ctx, int(mine[0]), int(mine[1])); err != nil {
		return err
	}
	color, key := place(pairs, b.host.Rank())
	limited, done := b.whileGood(ctx)
	p.communicator, err = b.launcher.communicator.Split(limited, color, key, b.cfg.Communicator)
	done()
	if p.host != nil {
		b.splits.put(seq, p) // even after an error, which the others get before it is closed
	}
	return err
}

// place returns a color and a key for NCCL, which has 32 bits for them. They are equivalent to the
// color and key of rank in pairs, which holds the (color, key) of every rank.
func place(pairs []int64, rank int) (color, key int) {
	own := pairs[2*rank : 2*rank+2]
	if own[0] < 0 {
		return NoColor, 0
	}
	var colors []int64
	for r := range len(pairs) / 2 {
		colors = append(colors, pairs[2*r])
		if k := cmp.Compare(pairs[2*r+1], own[1]); pairs[2*r] == own[0] && (k < 0 || k == 0 && r < rank) {
			key++
		}
	}
	slices.Sort(colors)
	color, _ = slices.BinarySearch(slices.Compact(colors), own[0])
	return color, key
}

// Split implements [transport.Backend]. Run did the part that needs all ranks.
func (b *backend) Split(ctx context.Context, seq uint64, color int, _ []int) (comm.Group, error) {
	p := b.splits.take(seq)
	child := newBackend(fmt.Sprintf("%s/%d", b.name, color), p.host, b.dev, b.cfg, b, p.communicator)
	g, err := child.open(ctx, nil)
	if err != nil {
		return nil, err
	}
	b.splits.adopt(child)
	return g, nil
}
