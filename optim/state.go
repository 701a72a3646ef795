package optim

import (
	"cmp"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/internal/rng"
	"github.com/gofsdp/gofsdp/optim/vec"
)

// part holds the pieces of an optimizer that one kind of update is for, with their hyper-parameters
// and state.
type part struct {
	kind     string // "adamw", for messages
	settings *settings
	names    []string // entry i of every piece is called names[i]
	pieces   []piece
	index    map[string][]int // positions in pieces, by parameter, ascending
	updater  updater
	absent   []bool // pieces without a gradient in the current update
	swapped  bool   // averages and values are exchanged
}

// updater does the updates of one kind.
type updater interface {
	// update updates piece i of the part. The piece is not empty, and its count includes this
	// update.
	update(i int, p *piece, lr float64) error
	// set changes the settings of all updates.
	set(s *Settings)
}

// A preparer is an updater that must see all pieces before it updates any. absent marks the pieces
// that it will not update.
type preparer interface {
	prepare(pieces []piece, absent []bool) error
}

// piece is a Param with its hyper-parameters and state.
type piece struct {
	Param
	hyper
	vecs   []Vec        // the state: one for each name that the kind has, zeroed at New
	steps  int          // updates of the state; zero means that the state is zero
	ema    vec.SGDVec   // the average, or nil
	usable func() error // Ready without the check for swapped averages, or nil
	draws  rng.Stream   // of random rounding
	round  vec.Rounding // of values that are bfloat16, in the current update
}

// entry returns the state that is entry k of the part's names.
func (p *piece) entry(k int, name string) Vec {
	if name == emaName {
		return p.ema
	}
	return p.vecs[k]
}

// newOptimizer checks the parameters and allocates their state.
func newOptimizer(s Settings, names []string, u updater, params []Param, rules []Rule) (Optimizer, error) {
	kind := strings.ToLower(s.Kind)
	a := &part{kind: kind, names: names, index: make(map[string][]int), settings: newSettings(s.common()), updater: u}
	u.set(&s)
	params = slices.Clone(params)
	for i, p := range params {
		params[i] = p.withVecs()
	}
	if err := checkParams(params); err != nil {
		return nil, err
	}
	for i, r := range rules {
		if err := r.check(&s); err != nil {
			return nil, fmt.Errorf("optim: %s: rule %d: %w", kind, i, err)
		}
	}
	if len(params) > 0 {
		warnOfRules(kind, params, rules)
	}
	held := guards(nil, params)
	if err := enter(held, "New", false); err != nil {
		return nil, fmt.Errorf("optim: %s: %w", kind, err)
	}
	defer leave(held)
	for _, p := range params {
		piece := piece{Param: p, hyper: resolve(rules, p, &s), vecs: make([]Vec, len(names)), draws: rng.New(0, p.Name)}
		piece.Shape = slices.Clone(p.Shape)
		for i, name := range names {
			var err error
			if piece.vecs[i], err = p.newEntry(name, piece.bits); err != nil {
				return nil, fmt.Errorf("optim: %s: %s of %w", kind, name, err)
			}
		}
		a.index[p.Name] = append(a.index[p.Name], len(a.pieces))
		a.pieces = append(a.pieces, piece)
	}
	a.absent = make([]bool, len(a.pieces))
	return &optimizer{parts: []*part{a}, guards: held}, nil
}

// warnOfRules warns of rules that match no parameter.
func warnOfRules(kind string, params []Param, rules []Rule) {
	for i, r := range rules {
		if r.usual || slices.ContainsFunc(params, r.Match) {
			continue
		}
		text := fmt.Sprintf("%s: rule %d matches none of the %d parameters, such as %s: it changes nothing", kind, i, len(params), params[0].Name)
		if params[0].Warn != nil {
			params[0].Warn(text)
		} else {
			slog.Warn("optim: " + text)
		}
	}
}

// valuesAs returns the values of params as vectors with the update that an optimizer needs.
func valuesAs[V Vec](kind string, params []Param) ([]V, error) {
	values := make([]V, len(params))
	for i, p := range params {
		var ok bool
		if values[i], ok = p.withVecs().Value.(V); !ok && vec.Is16(p.Value) {
			return nil, fmt.Errorf("optim: %s: parameter %q: its value is bfloat16, which %s cannot update: use AdamW, Adam or SGD, or values in float32", kind, p.Name, kind)
		} else if !ok {
			return nil, fmt.Errorf("optim: %s: parameter %q: a value of type %T cannot be updated, because it does not implement %v",
				kind, p.Name, p.Value, reflect.TypeFor[V]())
		}
	}
	return values, nil
}

// checkHyper returns an error unless v is in [0, below).
func checkHyper(name string, v, below float64) error {
	if v >= 0 && v < below {
		return nil
	}
	return fmt.Errorf("%s is %v: must be in [0, %v)", name, v, below)
}

// ready returns the first error of a Ready.
func (a *part) ready() error {
	for i := range a.pieces {
		if ready := a.pieces[i].Ready; ready != nil {
			if err := ready(); err != nil {
				return err
			}
		}
	}
	return nil
}

// update makes and counts one update of every piece that has a gradient. It is update number steps
// of the optimizer.
func (a *part) update(lr float64, steps int) error {
	for i := range a.pieces {
		absent := a.pieces[i].Absent
		a.absent[i] = absent != nil && absent()
	}
	if u, ok := a.updater.(preparer); ok {
		if err := u.prepare(a.pieces, a.absent); err != nil {
			return err
		}
	}
	for i := range a.pieces {
		p := &a.pieces[i]
		if a.absent[i] {
			continue
		}
		p.steps++
		if vec.Is16(p.Value) {
			// State is rounded with this number and the next. Steps of the optimizer, unlike p.steps, are in
			// checkpoints of optimizers without state, too.
			p.round = vec.Rounding{Key: p.draws.Uint64(uint64(steps)) + 2, Offset: p.Offset}
		}
		if p.Value.Len() > 0 {
			if err := a.updater.update(i, p, lr*p.lrScale); err != nil {
				return fmt.Errorf("parameter %q: %w", p.Name, err)
			}
			if p.ema != nil {
				if err := a.follow(p); err != nil {
					return fmt.Errorf("ema of parameter %q: %w", p.Name, err)
				}
			}
		}
		if p.Updated != nil {
			p.Updated(Update{settings: a.settings, hyper: p.hyper, lr: lr, steps: steps})
		}
	}
	return nil
}

// flush begins the updates that vectors have delayed.
func (a *part) flush() error {
	for i := range a.pieces {
		if v, ok := a.pieces[i].Value.(interface{ Flush() error }); ok {
			if err := v.Flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// state appends the state of the pieces that are not empty.
func (a *part) state(entries []Entry) []Entry {
	entries = slices.Grow(entries, len(a.pieces)*len(a.names))
	for i := range a.pieces {
		p := &a.pieces[i]
		if p.Value.Len() == 0 {
			continue
		}
		for k, name := range a.names {
			entries = append(entries, Entry{
				Param: p.Name, Name: name, Shape: p.Shape, Offset: p.Offset, Steps: p.steps, Data: p.entry(k, name),
			})
		}
	}
	return entries
}

// tensor identifies a state tensor of the whole model.
type tensor struct{ param, name string }

// refill is the effect of Restore or Adopt on one piece.
type refill struct {
	piece  *piece
	steps  int // -1 before the first entry
	copies []transfer
}

// transfer is one copy of a refill: dst gets the elements of srcs, one after the other.
type transfer struct {
	dst  Vec
	srcs []Vec
}

// plan returns the copies of a load, or an error. It changes nothing.
func (a *part) plan(entries []Entry, all bool) ([]refill, error) {
	if a.swapped {
		return nil, ErrSwapped
	}
	sources, err := a.sortEntries(entries)
	if err != nil {
		return nil, err
	}
	var plan []refill
	for _, i := range a.affected(sources, all) {
		p := &a.pieces[i]
		if p.Value.Len() == 0 {
			continue
		}
		r := refill{piece: p, steps: -1}
		for j, name := range a.names {
			if err := r.add(p.entry(j, name), sources[tensor{p.Name, name}]); err != nil {
				return nil, fmt.Errorf("%s of parameter %q: %w", name, p.Name, err)
			}
		}
		plan = append(plan, r)
	}
	return plan, nil
}

// affected returns the positions of the pieces that a load concerns, ascending: all pieces, or the
// pieces of parameters in sources. Its time depends on their number only, because a job may load
// one parameter after the other.
func (a *part) affected(sources map[tensor][]Entry, all bool) (list []int) {
	if all {
		for i := range a.pieces {
			list = append(list, i)
		}
		return list
	}
	for key := range sources {
		list = append(list, a.index[key.param]...)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// refill carries out a plan.
func (a *part) refill(plan []refill) error {
	for _, r := range plan {
		for _, c := range r.copies {
			if err := joinVecs(c.dst, c.srcs); err != nil {
				return fmt.Errorf("parameter %q: %w", r.piece.Name, err)
			}
		}
		r.piece.steps = max(r.steps, 0) // without state, no entry has set steps
	}
	return nil
}

// sortEntries groups entries by tensor, each group ascending and free of overlap.
func (a *part) sortEntries(entries []Entry) (map[tensor][]Entry, error) {
	groups := make(map[tensor][]Entry)
	for _, e := range entries {
		if !slices.Contains(a.names, e.Name) {
			return nil, fmt.Errorf("parameter %q has state %q, this optimizer keeps %q", e.Param, e.Name, a.names)
		}
		if e.Steps < 0 {
			return nil, fmt.Errorf("%s of parameter %q: the number of steps is %d: must not be negative", e.Name, e.Param, e.Steps)
		}
		if twoTypes(e.Data) {
			return nil, fmt.Errorf("%s of parameter %q: data is both float32 and float64", e.Name, e.Param)
		}
		if lenOf(e.Data) > 0 {
			key := tensor{e.Param, e.Name}
			groups[key] = append(groups[key], e)
		}
	}
	for key, group := range groups {
		slices.SortFunc(group, func(a, b Entry) int { return cmp.Compare(a.Offset, b.Offset) })
		for i := 1; i < len(group); i++ {
			if end := group[i-1].end(); end > group[i].Offset {
				return nil, fmt.Errorf("%s of parameter %q: element %d occurs twice", key.name, key.param, group[i].Offset)
			}
		}
	}
	return groups, nil
}

// end returns the position after the last element.
func (e Entry) end() int { return e.Offset + lenOf(e.Data) }

// add plans how to fill dst, one state vector of the piece, from sources that are ascending and
// disjoint.
func (r *refill) add(dst Vec, sources []Entry) error {
	p, next := r.piece, r.piece.Offset
	var srcs []Vec
	for _, e := range sources {
		from, to := max(e.Offset, p.Offset), min(e.end(), p.end())
		if from >= to {
			continue
		}
		if from > next {
			break
		}
		if r.steps < 0 {
			r.steps = e.Steps
		}
		switch {
		case !slices.Equal(e.Shape, p.Shape):
			return fmt.Errorf("shape %v, parameter has %v", e.Shape, p.Shape)
		case e.Data.Float64() != p.Value.Float64():
			return fmt.Errorf("state is %s, parameter %s", vec.TypeName(e.Data), vec.TypeName(p.Value))
		case e.Steps != r.steps:
			return fmt.Errorf("elements [%d:%d] have made %d steps, but other elements of this piece have made %d", from, to, e.Steps, r.steps)
		}
		next = to
		src := e.Data.Slice(from-e.Offset, to-e.Offset)
		if e.Steps == 0 {
			if zero, err := isZero(src); err != nil {
				return err
			} else if !zero {
				return fmt.Errorf("elements [%d:%d] have made no step but are not zero", from, to)
			}
		}
		if e.Offset != p.Offset || !sameVec(e.Data, dst) { // else they are already in place
			srcs = append(srcs, src)
		}
	}
	if next < p.end() {
		return fmt.Errorf("element %d is missing", next)
	}
	if len(srcs) > 0 {
		r.copies = append(r.copies, transfer{dst, srcs})
	}
	return nil
}
