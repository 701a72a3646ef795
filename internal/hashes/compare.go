package hashes

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// A Report describes where two runs diverge.
type Report struct {
	Steps int // number of equal steps, from the first step that both runs have
	First int // the number of that step
	Same  int // number of equal hashes that were compared
	// Unlike says why only parameters and gradients are compared, and not passes; or "".
	Unlike string
	// Ends says where the runs end, if one has steps that the other lacks or a record was cut off;
	// or "".
	Ends string
	// Differences are the differences of the first step that has any, in order. Each is a
	// parameter, or the first result that differs in a micro-batch.
	Differences []Difference
}

// A Difference is a hash that differs between two runs.
type Difference struct {
	Step, Micro int // Micro is the micro-batch of the step, -1 for parameters and gradients
	Kind        Kind
	Name        string
	From        int    // number of the tensor, output or input
	A, B        string // for each run: the ranks that have it, and their hashes
	at          int    // index in the pass
}

// String describes the difference.
func (d *Difference) String() string {
	switch d.Kind {
	case Param:
		return "parameter " + d.Name + " before the step"
	case Batch:
		return fmt.Sprintf("micro-batch %d: tensor %d of the batch", d.Micro, d.From)
	case Forward:
		return fmt.Sprintf("micro-batch %d: forward of %s, output %d", d.Micro, d.Name, d.From)
	case Backward:
		return fmt.Sprintf("micro-batch %d: backward of %s, gradient of input %d", d.Micro, d.Name, d.From)
	default:
		return "gradient of " + d.Name + ", summed over the ranks"
	}
}

// Compare reads two runs until they differ or one ends. If a run begins at a later step, the
// comparison begins there.
func Compare(a, b *Run) (*Report, error) {
	r := &Report{First: -1}
	for len(r.Differences) == 0 {
		s, t, err := together(a, b)
		if errors.Is(err, io.EOF) {
			if r.First < 0 {
				return nil, fmt.Errorf("%s and %s have no step in common", a.Name, b.Name)
			}
			return r, r.end(a, b)
		}
		if err != nil {
			return nil, err
		}
		if r.First < 0 {
			r.First = s.Number
		}
		if err := r.step(a, b, s, t); err != nil {
			return nil, err
		}
		if len(r.Differences) == 0 {
			r.Steps++
		}
	}
	return r, nil
}

// end compares the ends of two runs that are equal until one ends.
func (r *Report) end(a, b *Run) error {
	x, err := a.finish()
	if err != nil {
		return err
	}
	y, err := b.finish()
	if err == nil && (x.cut || y.cut || x.step != x.longest || y.step != y.longest || x.step != y.step) {
		r.Ends = fmt.Sprintf("%s %v, %s %v", a.Name, x, b.Name, y)
	}
	return err
}

// together returns the next step of both.
func together(a, b *Run) (s, t *Step, err error) {
	if s, err = a.Next(); err != nil {
		return nil, nil, err
	}
	if t, err = b.Next(); err != nil {
		return nil, nil, err
	}
	for err == nil && s.Number != t.Number {
		if s.Number < t.Number {
			s, err = a.Next()
		} else {
			t, err = b.Next()
		}
	}
	return s, t, err
}

// step compares one step.
func (r *Report) step(a, b *Run, s, t *Step) error {
	if err := r.pieces(a, b, s, t, Param); err != nil {
		return err
	}
	cut := trim(s, t)
	if err := r.passes(a, b, s, t); err != nil || cut {
		return err
	}
	return r.pieces(a, b, s, t, Grad)
}

// trim keeps only the passes of ranks that both runs have, if one of the runs ends with this step,
// possibly in the middle. It reports whether passes were removed.
func trim(s, t *Step) (cut bool) {
	if !s.Last && !t.Last || len(s.Passes) != len(t.Passes) || s.Passes[0][0].Virtual >= 0 || t.Passes[0][0].Virtual >= 0 {
		return false
	}
	for rank, passes := range s.Passes {
		n := min(len(passes), len(t.Passes[rank]))
		cut = cut || n < max(len(passes), len(t.Passes[rank]))
		s.Passes[rank], t.Passes[rank] = passes[:n], t.Passes[rank][:n]
	}
	return cut
}

// pieces compares parameters or their gradients.
func (r *Report) pieces(a, b *Run, s, t *Step, k Kind) error {
	as, bs := s.pieces(k), t.pieces(k)
	for _, name := range slices.Sorted(maps.Keys(as)) {
		if bs[name] == nil && k == Grad { // reduced in no pass
			continue
		}
		if bs[name] == nil {
			return fmt.Errorf("step %d: %s has %s %s, %s has not: the models differ", s.Number, a.Name, k, name, b.Name)
		}
		x, n := whole(as[name])
		y, m := whole(bs[name])
		if x == y && n == m {
			r.Same++
			continue
		}
		r.Differences = append(r.Differences, Difference{
			Step: s.Number, Micro: -1, Kind: k, Name: name, A: owned(as[name], bs[name]), B: owned(bs[name], as[name]),
		})
	}
	for _, name := range slices.Sorted(maps.Keys(bs)) {
		if as[name] == nil && k != Grad {
			return fmt.Errorf("step %d: %s has %s %s, %s has not: the models differ", s.Number, b.Name, k, name, a.Name)
		}
	}
	return nil
}

// owned describes the ranks' pieces of a parameter, without the pieces that the other run has too.
func owned(list, other []piece) string {
	var parts []string
	for _, p := range list {
		if !slices.ContainsFunc(other, func(q piece) bool { return q.Entry == p.Entry }) {
			parts = append(parts, fmt.Sprintf("rank %d has %08x of [%d:%d]", p.rank, p.Sum, p.From, p.To))
		}
	}
	if len(parts) == 0 {
		return "nothing else"
	}
	return strings.Join(parts, ", ")
}

// passes compares the micro-batches of a step: those with the same virtual rank, else those with
// the same rank and index. For runs on other numbers of ranks without virtual ranks, it takes the
// micro-batches of rank 0, then those of rank 1, and so on.
func (r *Report) passes(a, b *Run, s, t *Step) error {
	as, bs := s.micros(), t.micros()
	byRank := a.Ranks == b.Ranks && as[0].Virtual < 0 && bs[0].Virtual < 0
	if !byRank && len(as) != len(bs) {
		r.Unlike = fmt.Sprintf("step %d has %d micro-batches in %s and %d in %s", s.Number, len(as), a.Name, len(bs), b.Name)
		return nil
	}
	if byRank {
		for rank := range s.Passes {
			if n, m := len(s.Passes[rank]), len(t.Passes[rank]); n != m {
				return fmt.Errorf("step %d: rank %d runs %d passes in %s and %d in %s", s.Number, rank, n, a.Name, m, b.Name)
			}
		}
	}
	var found []Difference
	for i := range as {
		d, same := differ(as[i], bs[i])
		r.Same += same
		if d != nil {
			d.Step, d.Micro = s.Number, i
			found = append(found, *d)
		}
	}
	slices.SortStableFunc(found, func(a, b Difference) int { return a.at - b.at })
	r.Differences = append(r.Differences, found...)
	return nil
}

// differ returns the first result in which two passes differ, or nil, and the number of equal
// results before it.
func differ(a, b micro) (d *Difference, same int) {
	x, y := a.results(), b.results()
	for i := range max(len(x), len(y)) {
		switch {
		case i >= len(x):
			d = y[i].differs("nothing", y[i].describe(b.rank))
		case i >= len(y):
			d = x[i].differs(x[i].describe(a.rank), "nothing")
		case x[i] == y[i]:
			continue
		case x[i].Kind == y[i].Kind && x[i].Name == y[i].Name && x[i].From == y[i].From:
			d = x[i].differs(x[i].describe(a.rank), y[i].describe(b.rank))
		default:
			d = x[i].differs(x[i].describe(a.rank), fmt.Sprintf("%v %s in its place, by rank %d", y[i].Kind, y[i].Name, b.rank))
		}
		d.at = i
		return d, i
	}
	return nil, len(x)
}

// results are the entries of a pass that its rank computed alone, and its batch.
func (p *Pass) results() (list []Entry) {
	for _, e := range p.Entries {
		if e.Kind == Batch || e.Kind == Forward || e.Kind == Backward {
			list = append(list, e)
		}
	}
	return list
}

func (e *Entry) differs(a, b string) *Difference {
	return &Difference{Kind: e.Kind, Name: e.Name, From: e.From, A: a, B: b}
}

func (e *Entry) describe(rank int) string {
	return fmt.Sprintf("rank %d has %08x in %d bytes", rank, e.Sum, e.Bytes)
}

// A micro is a pass and the rank that has run it.
type micro struct {
	*Pass
	rank int
}

// micros returns the passes of a step, by virtual rank if they have one. Then passes without one
// are left out: their ranks only take part in the last micro-batch of other ranks.
func (s *Step) micros() (list []micro) {
	virtual := s.Passes[0][0].Virtual >= 0
	for rank, passes := range s.Passes {
		for _, p := range passes {
			if !virtual || p.Virtual >= 0 {
				list = append(list, micro{p, rank})
			}
		}
	}
	slices.SortStableFunc(list, func(a, b micro) int { return a.Virtual - b.Virtual })
	return list
}
