package shard

import (
	"fmt"
	"slices"
	"strings"
)

// Place is a position in one of several layouts: element At of the shard of Rank (a rank of that layout's process group)
// in layouts[Layout].
type Place struct{ Layout, Rank, At int }

// Move says that an interval, which lies at From in the old layouts, lies at To in the new ones. Its elements are
// consecutive in both shards.
type Move struct {
	Interval
	From, To Place
}

// Remap returns the copies that turn state held in the old layouts into state held in the new ones. Each set holds the
// groups of one model, so it may name a parameter only once; parameters may be grouped, ordered, aligned and cut
// differently, and the groups of one set may have different world sizes.
//
// The moves cover every element of every parameter exactly once, are as long as possible, and are sorted by To: what a
// rank has to fetch is found by filtering, in the order in which its shards are filled. If the sets do not hold the
// same parameters with the same shapes, the error is a [*MismatchError].
func Remap(old, new []*Layout) ([]Move, error) {
	from, err := indexParams("old", old)
	if err != nil {
		return nil, err
	}
	to, err := indexParams("new", new)
	if err != nil {
		return nil, err
	}
	if err := compare(old, new, from, to); err != nil {
		return nil, err
	}
	var moves []Move
	for li, l := range new {
		for i, p := range l.params {
			src := from[p.Name]
			moves = appendMoves(moves, old[src.layout], src, l, ref{li, i})
		}
	}
	return moves, nil
}

// ref is a parameter of a set of layouts.
type ref struct{ layout, param int }

// appendMoves walks one parameter from cut to cut of either layout.
func appendMoves(moves []Move, old *Layout, from ref, new *Layout, to ref) []Move {
	p := new.params[to.param]
	for offset, n := 0, p.Len(); offset < n; {
		fromRank, fromAt := old.locate(from.param, offset)
		toRank, toAt := new.locate(to.param, offset)
		run := min(old.shardLen-fromAt, new.shardLen-toAt, n-offset)
		moves = append(moves, Move{
			Interval: Interval{Name: p.Name, Offset: offset, Len: run},
			From:     Place{from.layout, fromRank, fromAt},
			To:       Place{to.layout, toRank, toAt},
		})
		offset += run
	}
	return moves
}

// indexParams finds every parameter of a set by name.
func indexParams(set string, layouts []*Layout) (map[string]ref, error) {
	refs := make(map[string]ref)
	for li, l := range layouts {
		if l == nil {
			return nil, fmt.Errorf("shard: %s layout %d is nil", set, li)
		}
		for i, p := range l.params {
			if dup, ok := refs[p.Name]; ok {
				return nil, fmt.Errorf("shard: parameter %q is in %s layouts %d and %d", p.Name, set, dup.layout, li)
			}
			refs[p.Name] = ref{li, i}
		}
	}
	return refs, nil
}

// MismatchError says that two sets of layouts describe different models. Its lists are in layout order.
type MismatchError struct {
	Missing  []string // parameters that only the new layouts hold: nothing to fill them from
	Extra    []string // parameters that only the old layouts hold: nowhere to put them
	Reshaped []string // parameters whose shape differs, each as "name [old shape] -> [new shape]"
}

// Error lists the parameters, a few of each kind.
func (e *MismatchError) Error() string {
	var b strings.Builder
	b.WriteString("shard: layouts hold different parameters")
	sep := ": "
	for _, kind := range []struct {
		label string
		names []string
	}{{"missing", e.Missing}, {"extra", e.Extra}, {"reshaped", e.Reshaped}} {
		if len(kind.names) == 0 {
			continue
		}
		const most = 5 // a model has thousands of parameters, and one wrong prefix renames them all
		fmt.Fprintf(&b, "%s%s %s", sep, kind.label, strings.Join(kind.names[:min(most, len(kind.names))], ", "))
		if more := len(kind.names) - most; more > 0 {
			fmt.Fprintf(&b, " and %d more", more)
		}
		sep = "; "
	}
	return b.String()
}

// compare returns a *MismatchError unless both sets hold the same names and shapes.
func compare(old, new []*Layout, from, to map[string]ref) error {
	var e MismatchError
	for _, l := range new {
		for _, p := range l.params {
			src, ok := from[p.Name]
			if !ok {
				e.Missing = append(e.Missing, p.Name)
				continue
			}
			if was := old[src.layout].params[src.param].Shape; !slices.Equal(was, p.Shape) {
				e.Reshaped = append(e.Reshaped, fmt.Sprintf("%s %v -> %v", p.Name, was, p.Shape))
			}
		}
	}
	for _, l := range old {
		for _, p := range l.params {
			if _, ok := to[p.Name]; !ok {
				e.Extra = append(e.Extra, p.Name)
			}
		}
	}
	if len(e.Missing)+len(e.Extra)+len(e.Reshaped) == 0 {
		return nil
	}
	return &e
}
