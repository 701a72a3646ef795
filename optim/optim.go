package optim

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"

	"github.com/gofsdp/gofsdp/shard"
)

// Zero says zero in a configuration field whose zero value stands for a default:
// Adam{Beta1: optim.Zero} has no momentum.
const Zero = math.SmallestNonzeroFloat64

// Param is a piece of a parameter: what one rank owns of it. It may be empty. Value and Grad are
// memory of the model that must stay where it is as long as the optimizer lives. They have the same
// length, element type and implementation of [Vec]. Both may be nil in an empty piece.
type Param struct {
	Name   string // full name of the parameter
	Shape  []int  // shape of the whole parameter
	Offset int    // position of the first element of Value in the parameter, row-major
	Value  Vec    // updated by Step: an [AdamVec] for Adam and AdamW, an [SGDVec] for SGD
	Grad   Vec    // read by Step

	// Absent, if not nil, is asked once in every Step whether the piece has no gradient this time:
	// it is frozen, or took no part in the loss. That is not a gradient of zero, which would still
	// decay the value and the moments. Step leaves value, state and step count of an absent piece
	// alone. All pieces of a parameter, on every rank, should give the same answer. Where they do
	// not, their counts differ, and a later Restore cannot join them in one piece.
	Absent func() bool

	// Ready, if not nil, is asked at the start of every Step whether value and gradient may be used
	// now. If it returns why not, Step returns that and changes nothing.
	Ready func() error

	// Guard, if not nil, guards the model that owns the memory of the piece. Pieces of one model have equal
	// Guards. Methods of an optimizer enter it once, at their beginning.
	Guard Guard

	// Updated, if not nil, is told of every update of the piece. All pieces of a model, on every
	// rank, should be updated alike, also a piece that is empty: see [Update.Hash].
	Updated func(Update)

	// Swapped, if not nil, is told when [Swap] has put the average of the piece in the place of its
	// value, in being true, or has brought the value back.
	Swapped func(in bool)

	// Warn, if not nil, reports a probable mistake in the configuration of an optimizer, such as a rule
	// that matches nothing. Without it [slog.Default] reports.
	Warn func(text string)

	// Peers, if not nil, are the ranks that have the other pieces of the parameter, for [Muon]. Without
	// it the piece is the whole parameter there.
	Peers *Peers

	// Alloc, if not nil, is where the state of a piece that is not empty comes from, for example a
	// file mapped into memory; nil means the Go heap, and is an error unless Value is a Host. New
	// calls it once for each state entry and sets the memory to zero; n is the length of Value, or a
	// quarter of it and a little more for state in 8 bits. It must return n elements of Value's type
	// and implementation that nothing else uses as long as the optimizer lives. The
	// caller releases them, also if New then fails.
	Alloc func(n int) (Vec, error)
}

// A Guard keeps two goroutines from using the memory of one model at the same time. The functions that
// allocate, read or change vectors of pieces enter it first: New, Step, State, Restore, Adopt, [EMA] and
// [Swap]. Optimizers of other packages should do the same.
type Guard interface {
	// Enter begins a method of this name. It returns why the method must not begin: another goroutine is
	// in a method of the model or of an optimizer, or the memory is not the model's any more. If the method
	// is silent, which means that it returns no error, the next method of the model reports the first reason.
	Enter(method string, silent bool) error
	// Leave ends the method.
	Leave()
}

// guards returns the Guards of pieces, each once.
func guards(params []Param) (list []Guard) {
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

// Optimizer updates the parameters it was made for. It is not safe for concurrent use. Where the pieces
// have a [Guard], a method that is called while another goroutine is in one returns an error and does nothing.
type Optimizer interface {
	// Step applies one update with learning rate lr to every piece that is not Absent, from its
	// present gradient. It returns an error if lr is negative or not finite, or if a piece is not
	// Ready. Gradients are not inspected: one that is not finite spoils its own element only.
	Step(lr float64) error

	// Steps returns the number of calls of Step so far, the restored ones included, whether or not
	// any piece had a gradient. It is the step number a Schedule asks for. Formulas that depend on
	// the step go by each piece's own [Entry.Steps].
	Steps() int

	// State returns the state of every non-empty piece. The data is the optimizer's memory: it
	// shows later steps, and writing to it is writing to the optimizer. The counts do not follow,
	// so a list is good until the next Step. The order depends only on the order of the parameters.
	// It is nil if a [Guard] refuses it.
	State() []Entry

	// Restore replaces the whole state and the number of steps. The entries may be cut in other
	// places than this optimizer's pieces, in any order, and may hold more than it owns. What it
	// owns must be there exactly once, with its type, and the entry names must be ones that this
	// kind of optimizer has. All entries that meet in one piece must have the same Steps. Those
	// with zero Steps must hold zeros, as no update can have made anything else. The data is
	// copied. Only data that State returned for the same piece is not, as it is there already: its
	// count changes alone.
	Restore(steps int, entries []Entry) error

	// Adopt is Restore for an optimizer over other parameters than those the entries were made for,
	// as after freezing or unfreezing. A parameter that no entry is about stays as it is, which is
	// fresh in a new optimizer. A parameter that some entry is about must be there in full, as in
	// Restore: a rank that passes only what it had itself would start anew, unnoticed, what came
	// from others.
	Adopt(steps int, entries []Entry) error
}

// Entry is a piece of optimizer state: elements [Offset, Offset+Data.Len()) of a tensor that has
// the shape of the parameter. An entry whose Data is nil or empty says nothing.
type Entry struct {
	Param  string // full name of the parameter
	Name   string // what it is, such as "exp_avg"
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
		return p.Value.Slice(0, 0), nil
	}
	if p.Alloc == nil {
		if _, ok := p.Value.(Host); !ok {
			return nil, fmt.Errorf("parameter %q: a value of type %T needs Alloc", p.Name, p.Value)
		}
		return newHost(n, p.Value.Float64()), nil
	}
	v, err := p.Alloc(n)
	switch {
	case err != nil:
		return nil, fmt.Errorf("parameter %q: Alloc of %d elements: %w", p.Name, n, err)
	case reflect.TypeOf(v) != reflect.TypeOf(p.Value):
		return nil, fmt.Errorf("parameter %q: Alloc returned a %T, its value is a %T", p.Name, v, p.Value)
	case twoTypes(v):
		return nil, fmt.Errorf("parameter %q: Alloc returned a buffer that is both float32 and float64", p.Name)
	case v.Len() != n || v.Float64() != p.Value.Float64():
		return nil, fmt.Errorf("parameter %q: Alloc returned %d elements of %s, not %d of %s",
			p.Name, v.Len(), dtype(v), n, dtype(p.Value))
	}
	if err := v.Zero(); err != nil {
		return nil, fmt.Errorf("parameter %q: %w", p.Name, err)
	}
	return v, nil
}

// check returns an error that names the parameter unless p is well formed. Its vectors are not nil.
func (p Param) check() error {
	if p.Name == "" {
		return errors.New("parameter without a name")
	}
	n := p.Value.Len()
	switch {
	case twoTypes(p.Value) || twoTypes(p.Grad):
		return fmt.Errorf("parameter %q: a buffer is both float32 and float64", p.Name)
	case n != p.Grad.Len():
		return fmt.Errorf("parameter %q: value has %d elements, gradient %d", p.Name, n, p.Grad.Len())
	case n > 0 && reflect.TypeOf(p.Value) != reflect.TypeOf(p.Grad):
		return fmt.Errorf("parameter %q: value is a %T, gradient a %T", p.Name, p.Value, p.Grad)
	case n > 0 && p.Value.Float64() != p.Grad.Float64():
		return fmt.Errorf("parameter %q: value is %s, gradient %s", p.Name, dtype(p.Value), dtype(p.Grad))
	}
	_, err := p.checkInterval()
	return err
}

// checkInterval returns the number of elements of the whole parameter, or an error unless the piece
// lies in it.
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
			return fmt.Errorf("optim: parameter %q: pieces with shapes %v and %v", a.Name, a.Shape, b.Shape)
		}
		if a.Offset == b.Offset || a.end() > b.Offset {
			return fmt.Errorf("optim: parameter %q: pieces [%d:%d] and [%d:%d] overlap",
				a.Name, a.Offset, a.end(), b.Offset, b.end())
		}
	}
	return nil
}
