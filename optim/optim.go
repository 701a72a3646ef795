package optim

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"

	"github.com/gofsdp/gofsdp/optim/vec"
	"github.com/gofsdp/gofsdp/shard"
)

// Zero means zero in a configuration field whose zero value means a default: Adam{Beta1:
// optim.Zero} has no momentum.
const Zero = math.SmallestNonzeroFloat64

// Param is the piece of a parameter that one rank owns. It may be empty. Value and Grad are memory
// of the model that must stay in place as long as the optimizer lives. They have the same length
// and element type, and the same implementation of [Vec] or both are a [vec.Addressable]. Both may
// be nil in an empty piece.
type Param struct {
	Name   string // full name of the parameter
	Shape  []int  // shape of the whole parameter
	Offset int    // position of the first element of Value in the parameter, row-major
	Value  Vec    // updated by Step: a [vec.AdamVec] for Adam and AdamW, a [vec.SGDVec] for SGD
	Grad   Vec    // read by Step

	// Absent, if not nil, is called once in every Step. It reports whether the piece has no
	// gradient this time, because it is frozen or took no part in the loss. A gradient of zero is
	// different: it would still decay the value and the moments. Step does not change value, state
	// and step count of an absent piece. All pieces of a parameter, on every rank, should give the
	// same answer. Otherwise their counts differ, and a later Restore cannot join them in one
	// piece.
	Absent func() bool

	// Ready, if not nil, is called at the start of every Step. It returns an error if value and
	// gradient must not be used now. Step then returns that error and changes nothing.
	Ready func() error

	// Guard, if not nil, guards the model that owns the memory of the piece. Pieces of one model
	// have equal Guards. Methods of an optimizer enter it once, at their beginning.
	Guard Guard

	// Updated, if not nil, is called for every update of the piece. All pieces of a model,
	// including empty ones, should be updated alike on every rank: see [Update.Hash].
	Updated func(Update)

	// Swapped, if not nil, is called by [Swap]. in is true if the average of the piece has replaced
	// its value, and false if the value is back.
	Swapped func(in bool)

	// Warn, if not nil, reports a probable mistake in the configuration of an optimizer, such as a
	// rule that matches nothing. If it is nil, [slog.Default] reports the mistake.
	Warn func(text string)

	// Peers, if not nil, are the ranks that have the other pieces of the parameter, for [Muon]. If
	// it is nil, the piece must be the whole parameter in Muon.
	Peers *Peers

	// Alloc, if not nil, allocates the state of a non-empty piece, for example in a file mapped into
	// memory; nil means the Go heap, and is an error unless Value is a Host. New calls Alloc once for
	// each state entry and sets the memory to zero. n is the length of Value, or for state in 8 and 16
	// bits a little more than a quarter or half of it. Alloc must return n elements of Value's type
	// and implementation that nothing else uses as long as the optimizer lives. The caller frees them,
	// also if New then fails.
	Alloc func(n int) (Vec, error)
}

// A Guard prevents two goroutines from using the memory of one model at the same time. The
// functions that allocate, read or change vectors of pieces enter it first: New, Step, State,
// Restore, Adopt, [EMA] and [Swap]. Optimizers of other packages should do the same.
type Guard interface {
	// Enter begins the named method. It returns an error if the method must not begin, because
	// another goroutine is in a method of the model or of an optimizer, or because the model does
	// not own the memory any more. If the method is silent, which means that it returns no error,
	// the next method of the model reports the first reason.
	Enter(method string, silent bool) error
	// Leave ends the method.
	Leave()
}

// guards adds the Guards of pieces to a list that has each once.
func guards(list []Guard, params []Param) []Guard {
	for i := range params {
		if g := params[i].Guard; g != nil && !slices.Contains(list, g) {
			list = append(list, g)
		}
	}
	return list
}

// enter begins a method with all guards, or with none.
func enter(list []Guard, method string, silent bool) error {
	for i, g := range list {
		if err := g.Enter(method, silent); err != nil {
			leave(list[:i])
			return err
		}
	}
	return nil
}

// leave leaves the Guards.
func leave(list []Guard) {
	for _, g := range list {
		g.Leave()
	}
}

// end returns the position after the last element.
func (p Param) end() int { return p.Offset + lenOf(p.Value) }

// Optimizer updates the parameters it was made for. It is not safe for concurrent use. If the
// pieces have a [Guard], a method that is called while another goroutine is in one returns an error
// and does nothing.
type Optimizer interface {
	// Step applies one update with learning rate lr to every piece that is not Absent, from its
	// current gradient. It returns an error if lr is negative or not finite, or if a piece is not
	// Ready. Step does not inspect gradients: one that is not finite spoils its own element only.
	Step(lr float64) error

	// Steps returns the number of calls of Step so far, including restored ones and calls in which
	// no piece had a gradient. It is the argument of a Schedule. Formulas that depend on the step
	// use each piece's own [Entry.Steps].
	Steps() int

	// State returns the state of every non-empty piece. The data is the optimizer's memory: later
	// steps change it, and writing to it changes the optimizer. The counts do not follow, so a list
	// is valid until the next Step. The order depends only on the order of the parameters. State
	// returns nil if a [Guard] refuses it.
	State() []Entry

	// Restore replaces the whole state and the number of steps. The entries may be in any order,
	// may be cut in other places than this optimizer's pieces, and may hold more than it owns.
	// Every element that it owns must be there exactly once, with its type, and this kind of
	// optimizer must have entries of these names. All entries that overlap one piece must have the
	// same Steps. Entries with zero Steps must hold zeros, because only an update can make anything
	// else. Restore copies the data, except data that State returned for the same piece: it is
	// already in place, and only its count changes.
	Restore(steps int, entries []Entry) error

	// Adopt is Restore for an optimizer over other parameters than the entries were made for, as
	// after freezing or unfreezing. A parameter without an entry keeps its state, which is fresh in
	// a new optimizer. A parameter with an entry must be there in full, as in Restore: a rank that
	// passes only its own old entries would otherwise restart the elements from other ranks,
	// unnoticed.
	Adopt(steps int, entries []Entry) error
}

// Entry is a piece of optimizer state: elements [Offset, Offset+Data.Len()) of a tensor that has
// the shape of the parameter. An entry whose Data is nil or empty contributes nothing.
type Entry struct {
	Param  string // full name of the parameter
	Name   string // name of the state, such as "exp_avg"
	Shape  []int  // shape of the whole tensor; shared, not to be modified
	Offset int
	Steps  int // updates that made Data, Adam's t; the same for all entries of a piece
	Data   Vec
}

// withVecs returns p with a Host in place of a nil Value or Grad.
func (p Param) withVecs() Param {
	if p.Value == nil {
		p.Value = Host{}
	}
	if p.Grad == nil {
		p.Grad = Host{}
	}
	return p
}

// newState returns n zeros in a vector like Value, from Alloc if there is one.
func (p Param) newState(n int) (Vec, error) {
	if n == 0 {
		if hosted16(p.Value) {
			return Host{}, nil
		}
		return p.Value.Slice(0, 0), nil
	}
	if p.Alloc == nil {
		if _, ok := p.Value.(Host); !ok && !hosted16(p.Value) {
			return nil, fmt.Errorf("parameter %q: a value of type %T needs Alloc", p.Name, p.Value)
		}
		return newHost(n, p.Value.Float64()), nil
	}
	v, err := p.Alloc(n)
	switch {
	case err != nil:
		return nil, fmt.Errorf("parameter %q: Alloc of %d elements: %w", p.Name, n, err)
	case vec.Is16(v) || reflect.TypeOf(v) != reflect.TypeOf(p.Value) && !vec.Is16(p.Value):
		return nil, fmt.Errorf("parameter %q: Alloc returned a %T, its value is a %T", p.Name, v, p.Value)
	case twoTypes(v):
		return nil, fmt.Errorf("parameter %q: Alloc returned a buffer that is both float32 and float64", p.Name)
	case v.Len() != n || v.Float64() != p.Value.Float64():
		return nil, fmt.Errorf("parameter %q: Alloc returned %d elements of %s, not %d of %s",
			p.Name, v.Len(), vec.TypeName(v), n, vec.TypeName(p.Value))
	}
	if err := v.Zero(); err != nil {
		return nil, fmt.Errorf("parameter %q: %w", p.Name, err)
	}
	return v, nil
}

// check returns an error that names the parameter if p is malformed. Its vectors are not nil.
func (p Param) check() error {
	if p.Name == "" {
		return errors.New("parameter without a name")
	}
	n := p.Value.Len()
	switch {
	case twoTypes(p.Value) || twoTypes(p.Grad):
		return fmt.Errorf("parameter %q: a buffer is both float32 and float64", p.Name)
	case n > 0 && p.Grad.Len() == 0:
		return fmt.Errorf("parameter %q: value has %d elements and no gradient: an optimizer takes the pieces of Params, not of FrozenParams", p.Name, n)
	case n != p.Grad.Len():
		return fmt.Errorf("parameter %q: value has %d elements, gradient %d", p.Name, n, p.Grad.Len())
	case n > 0 && reflect.TypeOf(p.Value) != reflect.TypeOf(p.Grad) && !(addressable(p.Value) && addressable(p.Grad)):
		return fmt.Errorf("parameter %q: value is a %T, gradient a %T", p.Name, p.Value, p.Grad)
	case n > 0 && p.Value.Float64() != p.Grad.Float64():
		return fmt.Errorf("parameter %q: value is %s, gradient %s", p.Name, vec.TypeName(p.Value), vec.TypeName(p.Grad))
	}
	_, err := p.checkInterval()
	return err
}

// addressable reports whether v is in ordinary memory.
func addressable(v Vec) bool {
	_, ok := v.(vec.Addressable)
	return ok
}

// checkInterval returns the number of elements of the whole parameter, or an error if the piece is
// outside it.
func (p Param) checkInterval() (int, error) {
	n, err := elements(p.Name, p.Shape)
	if err != nil {
		return 0, err
	}
	if p.Offset < 0 || p.Offset > n-lenOf(p.Value) {
		return 0, fmt.Errorf("parameter %q: elements [%d:%d] are outside shape %v", p.Name, p.Offset, p.end(), p.Shape)
	}
	return n, nil
}

// elements returns the number of elements of a parameter, or an error if name or shape are invalid.
func elements(name string, shape []int) (int, error) {
	whole, err := shard.New([]shard.Param{{Name: name, Shape: shape}}, 1, 1)
	if err != nil {
		return 0, err
	}
	return whole.Len(), nil
}

// checkParams checks every piece and that no element is held twice.
func checkParams(params []Param) error {
	for _, p := range params {
		if err := p.check(); err != nil {
			return fmt.Errorf("optim: %w", err)
		}
	}
	sorted := slices.SortedStableFunc(slices.Values(params), func(a, b Param) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Offset, b.Offset))
	})
	for i := 1; i < len(sorted); i++ {
		a, b := sorted[i-1], sorted[i]
		if a.Name != b.Name {
			continue
		}
		if !slices.Equal(a.Shape, b.Shape) {
			return fmt.Errorf("optim: parameter %q: its pieces have different shapes, %v and %v", a.Name, a.Shape, b.Shape)
		}
		if a.Offset == b.Offset || a.end() > b.Offset {
			return fmt.Errorf("optim: parameter %q: pieces [%d:%d] and [%d:%d] overlap",
				a.Name, a.Offset, a.end(), b.Offset, b.end())
		}
	}
	return nil
}
