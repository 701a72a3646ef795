// Package tree has the subtrees of the canonical tree of sums over ranks.
package tree

import "math/bits"

// Span is the ranks [Lo, Hi). A canonical sum can be taken from sums of spans, if these follow each
// other and each is a subtree of the tree.
type Span struct{ Lo, Hi int }

// Ranks returns how many ranks s has.
func (s Span) Ranks() int { return s.Hi - s.Lo }

// Middle returns where the canonical tree divides s, which has two ranks or more.
func (s Span) Middle() int { return s.Lo + 1<<(bits.Len(uint(s.Ranks()-1))-1) }

// Subtrees appends to list the largest subtrees of s that begin and end within the
// same one of hosts.
func Subtrees(list []Span, s Span, hosts []Span) []Span {
	for _, h := range hosts {
		if s.Lo < h.Lo && h.Lo < s.Hi {
			mid := s.Middle()
			return Subtrees(Subtrees(list, Span{s.Lo, mid}, hosts), Span{mid, s.Hi}, hosts)
		}
	}
	return append(list, s)
}

// Within appends to list the largest subtrees of s whose ranks are all in of.
func (s Span) Within(list []Span, of Span) []Span {
	switch {
	case of.Lo <= s.Lo && s.Hi <= of.Hi:
		return append(list, s)
	case s.Hi <= of.Lo || of.Hi <= s.Lo:
		return list
	}
	mid := s.Middle()
	return Span{mid, s.Hi}.Within(Span{s.Lo, mid}.Within(list, of), of)
}
