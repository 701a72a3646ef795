package optim

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
)

// FullState is the state of an optimizer over all ranks, by parameter name: what the optimizer of
// one process would have. It is data only, to be kept, sent, edited or written by other means than
// this library's.
type FullState struct {
	Steps  int                  // calls of Step
	Params map[string]FullParam // parameters that have state, by full name
	Extra  map[string]any       // the caller's own; nothing here looks at it
}

// FullParam is the state of a whole parameter.
type FullParam struct {
	Shape   []int
	Steps   int             // number of updates that made the entries
	Entries map[string]Host // whole tensors of that shape, row-major, by name such as "exp_avg"
}

// Consolidate joins the state of all ranks, [Optimizer.State] of each appended in any order, into
// whole tensors. The steps are [Optimizer.Steps], the same on every rank. Every element must be
// there exactly once, and what belongs to one parameter must agree on its shape and step count.
// Otherwise the error names the parameter, the entry and the interval. The data is copied, with one
// [Vec.Read] of each entry.
func Consolidate(steps int, entries []Entry) (*FullState, error) {
	if steps < 0 {
		return nil, fmt.Errorf("optim: consolidate: %d steps", steps)
	}
	sorted := slices.SortedStableFunc(slices.Values(entries), func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Param, b.Param), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Offset, b.Offset))
	})
	full := &FullState{Steps: steps, Params: make(map[string]FullParam)}
	for pieces := range runs(sorted, func(e Entry) string { return e.Param }) {
		p, err := joinParam(pieces)
		if err != nil {
			return nil, fmt.Errorf("optim: consolidate: %w", err)
		}
		full.Params[pieces[0].Param] = p
	}
	return full, nil
}

// Entries lists the state, sorted by parameter and entry, each whole: what any rank of any number
// of ranks can Restore or Adopt. The data is f's own memory.
func (f *FullState) Entries() []Entry {
	var entries []Entry
	for _, param := range slices.Sorted(maps.Keys(f.Params)) {
		p := f.Params[param]
		for _, name := range slices.Sorted(maps.Keys(p.Entries)) {
			entries = append(entries, Entry{Param: param, Name: name, Shape: p.Shape, Steps: p.Steps, Data: p.Entries[name]})
		}
	}
	return entries
}

// Shard lists the state of the given pieces, in their order, each entry cut to its piece: as much
// of Entries as one rank needs. The data is f's own memory. A parameter that f lacks has no
// entries: Restore says so if the optimizer keeps state for it, and Adopt leaves it as it is.
// Parameters that have another shape in f, and entries that are not whole, are an error that names
// them.
func (f *FullState) Shard(params []Param) ([]Entry, error) {
	var entries []Entry
	var misfits []string
	for _, p := range params {
		whole, ok := f.Params[p.Name]
		if !ok {
			continue
		}
		if err := whole.fits(p); err != nil {
			if text := err.Error(); !slices.Contains(misfits, text) { // said before
				misfits = append(misfits, text)
			}
			continue
		}
		if lenOf(p.Value) == 0 {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(whole.Entries)) {
			entries = append(entries, Entry{
				Param: p.Name, Name: name, Shape: whole.Shape, Offset: p.Offset, Steps: whole.Steps,
				Data: whole.Entries[name].slice(p.Offset, p.end()),
			})
		}
	}
	if len(misfits) > 0 {
		return nil, fmt.Errorf("optim: shard: %s", listed(misfits))
	}
	return entries, nil
}

// fits returns an error that names the parameter unless the state can be cut to the piece.
func (w FullParam) fits(p Param) error {
	if !slices.Equal(w.Shape, p.Shape) {
		return fmt.Errorf("parameter %q: state has shape %v, parameter %v", p.Name, w.Shape, p.Shape)
	}
	n, err := p.checkInterval()
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(w.Entries)) {
		v := w.Entries[name]
		if twoTypes(v) {
			return fmt.Errorf("%s of parameter %q: data is both float32 and float64", name, p.Name)
		}
		if v.Len() != n {
			return fmt.Errorf("%s of parameter %q: %d elements, shape %v has %d", name, p.Name, v.Len(), w.Shape, n)
		}
	}
	return nil
}

// joinParam joins all pieces of the state of one parameter, sorted by entry and offset.
func joinParam(pieces []Entry) (FullParam, error) {
	first := pieces[0]
	n, err := elements(first.Param, first.Shape)
	if err != nil {
		return FullParam{}, err
	}
	p := FullParam{Shape: slices.Clone(first.Shape), Steps: first.Steps, Entries: make(map[string]Host)}
	for tensor := range runs(pieces, func(e Entry) string { return e.Name }) {
		name := tensor[0].Name
		for _, e := range tensor {
			if err := e.belongs(first, n); err != nil {
				return p, fmt.Errorf("%s of parameter %q: elements [%d:%d] %w", name, e.Param, e.Offset, e.end(), err)
			}
		}
		if p.Entries[name], err = join(tensor, n); err != nil {
			return p, fmt.Errorf("%s of parameter %q: %w", name, first.Param, err)
		}
	}
	return p, nil
}

// belongs returns an error unless e can be state of the same parameter as first, which has n
// elements.
func (e Entry) belongs(first Entry, n int) error {
	switch {
	case twoTypes(e.Data):
		return errors.New("are both float32 and float64")
	case !slices.Equal(e.Shape, first.Shape):
		return fmt.Errorf("are of shape %v, %s [%d:%d] of %v", e.Shape, first.Name, first.Offset, first.end(), first.Shape)
	case e.Steps < 0:
		return fmt.Errorf("have had %d steps", e.Steps)
	case e.Steps != first.Steps:
		return fmt.Errorf("have had %d steps, %s [%d:%d] %d", e.Steps, first.Name, first.Offset, first.end(), first.Steps)
	case e.Offset < 0 || e.Offset > n-lenOf(e.Data):
		return fmt.Errorf("are outside shape %v", e.Shape)
	}
	return nil
}

// join copies the pieces of one tensor of n elements, ascending and inside it, into one. It
// allocates nothing before it is certain that they fill it.
func join(pieces []Entry, n int) (Host, error) {
	next := 0
	var like Entry // the first piece that has a type, which an empty one has not
	for _, e := range pieces {
		switch {
		case lenOf(e.Data) == 0:
			continue
		case e.Offset > next:
			return Host{}, fmt.Errorf("elements [%d:%d] are missing", next, e.Offset)
		case e.Offset < next:
			return Host{}, fmt.Errorf("elements [%d:%d] are there twice", e.Offset, min(next, e.end()))
		case next == 0:
			like = e
		case e.Data.Float64() != like.Data.Float64():
			return Host{}, fmt.Errorf("elements [%d:%d] are %s, [%d:%d] %s",
				e.Offset, e.end(), dtype(e.Data), like.Offset, like.end(), dtype(like.Data))
		}
		next = e.end()
	}
	if next < n {
		return Host{}, fmt.Errorf("elements [%d:%d] are missing", next, n)
	}
	whole := newHost(n, like.Data != nil && like.Data.Float64())
	for _, e := range pieces {
		if lenOf(e.Data) == 0 {
			continue
		}
		if err := e.Data.Read(whole.slice(e.Offset, e.end())); err != nil {
			return Host{}, fmt.Errorf("elements [%d:%d]: %w", e.Offset, e.end(), err)
		}
	}
	return whole, nil
}

// runs yields the longest stretches of list with one key, in order.
func runs[T any](list []T, key func(T) string) iter.Seq[[]T] {
	return func(yield func([]T) bool) {
		for len(list) > 0 {
			n := slices.IndexFunc(list, func(x T) bool { return key(x) != key(list[0]) })
			if n < 0 {
				n = len(list)
			}
			if !yield(list[:n]) {
				return
			}
			list = list[n:]
		}
	}
}

// listed joins the first few of many messages.
func listed(messages []string) string {
	const few = 8
	if rest := len(messages) - few; rest > 0 {
		messages = append(slices.Clone(messages[:few]), fmt.Sprintf("and %d more", rest))
	}
	return strings.Join(messages, "; ")
}
