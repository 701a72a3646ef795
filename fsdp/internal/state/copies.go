package state

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/checksum"
	"github.com/gofsdp/gofsdp/internal/text"
)

// Copies
//
// Under NoShard and the hybrid strategies several ranks have the same parameters, and each of them
// steps an optimizer. All compute the same, so their exchanges do not show that a bit has flipped
// in one copy, or that processors round differently. A file gets one of the copies. So ranks
// compare them before they write:
//
//	every rank   a checksum of each piece that other ranks have, too
//	             a word for each group of parameters, of these checksums   to every rank
//	             the checksums of groups whose words differ                to every rank
//
// Buffers differ between ranks. A difference there is not an error.

// alike returns an error on every rank if a tensor in list differs between its replicas. It calls
// Uneven with the buffers that differ.
func (s *Store) alike(ctx context.Context, list []Tensor, own []Piece) error {
	tensors := make(map[int][]int) // in list, by group with copies
	var groups []int
	for i := range list {
		g := s.Layout.Home[list[i].Index].Group
		if !copied(&s.Layout.Groups[g]) {
			continue
		}
		if tensors[g] == nil {
			groups = append(groups, g)
		}
		tensors[g] = append(tensors[g], i)
	}
	if groups == nil {
		return nil
	}
	sums := make([]int64, len(list))
	err := busy(ctx, s.Team, nil, func(ctx context.Context) error { return s.sum(ctx, list, own, sums) })
	if err != nil {
		return err
	}
	words := make([]int64, len(groups))
	for k, g := range groups {
		h := fnv.New64a()
		for _, i := range tensors[g] {
			if mine(s.Layout, &list[i]) {
				_ = binary.Write(h, binary.LittleEndian, sums[i]) // a hash takes all
			}
		}
		words[k] = int64(h.Sum64())
	}
	if words, err = s.exchange(ctx, words); err != nil {
		return err
	}
	var suspects []int // in list
	for k, g := range groups {
		if s.versions(g, checkpoint.Shared, words[k:], len(groups)) != nil {
			suspects = append(suspects, tensors[g]...)
		}
	}
	if suspects == nil {
		return nil
	}
	slices.Sort(suspects)
	return s.differences(ctx, list, suspects, sums)
}

// copied reports whether several ranks have the same piece of a group, or buffers of the same
// names.
func copied(g *layout.Group) bool {
	r := &g.Ranks
	if g.Kind.Buffer {
		return r.World > 1 && (r.Own == nil || r.Own.Ranks > 1)
	}
	return g.Ranks.Replicas > 1
}

// sum sets sums to the checksums of this rank's pieces of tensors in list that are copied. They are
// not 0.
func (s *Store) sum(ctx context.Context, list []Tensor, own []Piece, sums []int64) error {
	all := s.parts(own)
	for i := range list {
		t := &list[i]
		if !copied(group(s.Layout, t.Index)) || !mine(s.Layout, t) {
			continue
		}
		p := all.of(t.Index, t.Entry)
		if p == nil {
			continue
		}
		var sum uint32
		err := portions(ctx, memoryOf(p.Vec), func(b []byte) error {
			sum = checksum.Update(sum, b)
			return nil
		})
		if err != nil {
			return fmt.Errorf("%s: %w", p.Name(), err)
		}
		sums[i] = int64(sum) + 1
	}
	return nil
}

// exchange returns the words of all ranks, in rank order.
func (s *Store) exchange(ctx context.Context, mine []int64) ([]int64, error) {
	const label = "checksums"
	all := make([]int64, len(mine)*s.world())
	if err := s.Team.Group().AllGather(comm.Of(all).Named(label), comm.Of(mine).Named(label)).Wait(ctx); err != nil {
		return nil, s.Team.Fail(fmt.Errorf("comparing the copies of parameters: %w", err))
	}
	return all, nil
}

// versions compares the words of ranks that should have the same piece of a group: words[rank*step]
// is the word of a rank. It returns the first piece with different words, as lists of ranks by
// word, the longest list first, or nil. Ranks that have another owner's tensors do not count.
func (s *Store) versions(group, owner int, words []int64, step int) [][]int {
	g := &s.Layout.Groups[group]
	places := make(map[layout.Member][][]int)
	var order []layout.Member
	for rank := range s.world() {
		m := g.Member(rank)
		m.Set = 0
		if g.Kind.Buffer && g.Ranks.Own != nil {
			m.Leader = g.Ranks.Own.Table[rank].Leader
		}
		if owner != checkpoint.Shared && m.Leader != owner {
			continue
		}
		list := places[m]
		if list == nil {
			order = append(order, m)
		}
		at := slices.IndexFunc(list, func(ranks []int) bool { return words[ranks[0]*step] == words[rank*step] })
		if at < 0 {
			at, list = len(list), append(list, nil)
		}
		list[at] = append(list[at], rank)
		places[m] = list
	}
	for _, m := range order {
		if list := places[m]; len(list) > 1 {
			slices.SortStableFunc(list, func(a, b []int) int { return cmp.Compare(len(b), len(a)) })
			return list
		}
	}
	return nil
}

// differences finds the tensors that differ between ranks, among the tensors of list with these
// indices.
func (s *Store) differences(ctx context.Context, list []Tensor, suspects []int, sums []int64) error {
	words := make([]int64, len(suspects))
	for k, i := range suspects {
		words[k] = sums[i]
	}
	words, err := s.exchange(ctx, words)
	if err != nil {
		return err
	}
	var buffers []string
	var first string
	more := 0
	for k, i := range suspects {
		t := &list[i]
		home := s.Layout.Home[t.Index]
		versions := s.versions(home.Group, t.Owner, words[k:], len(suspects))
		switch {
		case versions == nil:
		case s.Layout.Groups[home.Group].Kind.Buffer:
			buffers = append(buffers, t.Param)
		case first == "":
			first = s.difference(t, versions)
		default:
			more++
		}
	}
	if buffers != nil {
		s.Uneven(buffers)
	}
	if first == "" {
		return nil
	}
	if more > 0 {
		first += fmt.Sprintf(", and %d more tensors differ", more)
	}
	return fmt.Errorf("replicas have diverged: %s; nothing was written, and earlier files are kept: "+
		"the memory of a rank is damaged, or ranks have different processors or settings; load the last checkpoint, or give all "+
		"ranks the values of one by LoadStateDict and LoadOptimStateDict; units of FullShard have no replicas", first)
}

// difference describes which ranks have which copies of a tensor.
func (s *Store) difference(t *Tensor, versions [][]int) string {
	const most = 3
	g := group(s.Layout, t.Index)
	span := g.Span(g.Member(versions[0][0]).Place, s.Layout.Home[t.Index].Index)
	name := "parameter " + t.Parameter()
	if t.Entry != "" {
		name = t.Entry + " of " + name
	}
	if span.End-span.Start < t.Len() {
		name += fmt.Sprintf("[%d:%d]", span.Start, span.End)
	}
	var sides []string
	for _, ranks := range versions[:min(most, len(versions))] {
		sides = append(sides, text.Numbered("rank", ranks))
	}
	if others := len(versions) - most; others > 0 {
		sides = append(sides, fmt.Sprintf("%d more", others))
	}
	last := len(sides) - 1
	return fmt.Sprintf("%s differs between %s and %s", name, strings.Join(sides[:last], ", "), sides[last])
}
