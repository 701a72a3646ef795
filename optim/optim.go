package optim

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/gofsdp/gofsdp/shard"
)

// Zero says zero in a configuration field whose zero value stands for a default: Adam{Beta1: optim.Zero} has no momentum.
const Zero = math.SmallestNonzeroFloat64

// Vec is a buffer of float32 or float64. At most one field is set; none is for an empty Vec.
type Vec struct {
	F32 []float32
	F64 []float64
}

// Len returns the number of elements.
func (v Vec) Len() int { return len(v.F32) + len(v.F64) }

// dtype names the element type of a Vec that is not empty.
func (v Vec) dtype() string {
	if v.F64 != nil {
		return "float64"
	}
	return "float32"
}

// zeros returns a zeroed Vec of the same type with n elements.
func (v Vec) zeros(n int) Vec {
	if v.F64 != nil {
		return Vec{F64: make([]float64, n)}
	}
	return Vec{F32: make([]float32, n)}
}

// slice returns elements [from, to), which the caller cannot append to.
func (v Vec) slice(from, to int) Vec {
	if v.F64 != nil {
		return Vec{F64: v.F64[from:to:to]}
	}
	return Vec{F32: v.F32[from:to:to]}
}

// copyFrom copies n elements of src, from element at on, to element to on. Both have the same type.
func (v Vec) copyFrom(to int, src Vec, at, n int) {
	if v.F64 != nil {
		copy(v.F64[to:to+n], src.F64[at:at+n])
		return
	}
	copy(v.F32[to:to+n], src.F32[at:at+n])
}

// isZero reports whether elements [at, at+n) are all zero.
func (v Vec) isZero(at, n int) bool {
	if v.F64 != nil {
		return !slices.ContainsFunc(v.F64[at:at+n], func(x float64) bool { return x != 0 })
	}
	return !slices.ContainsFunc(v.F32[at:at+n], func(x float32) bool { return x != 0 })
}

// Param is a piece of a parameter: what one rank owns of it. It may be empty. Value and Grad alias buffers of the model,
// have the same type and length, and must stay where they are as long as the optimizer lives.
type Param struct {
	Name   string // full name of the parameter
	Shape  []int  // shape of the whole parameter
	Offset int    // position of the first element of Value in the parameter, row-major
	Value  Vec    // updated by Step
	Grad   Vec    // read by Step

	// Absent, if not nil, is asked once in every Step whether the piece has no gradient this time: it is frozen, or took
	// no part in the loss. That is not a gradient of zero, which would still decay the value and the moments: Step leaves
	// value, state and step count of the piece alone. All pieces of a parameter, on every rank, should give the same answer;
	// where they do not, their counts part and a later Restore cannot join them in one piece.
	Absent func() bool

	// Ready, if not nil, is asked at the start of every Step whether the buffers may be used now. If it says why not, Step
	// returns that and changes nothing.
	Ready func() error

	// Alloc, if not nil, is where the state of a piece that is not empty comes from, for example a file mapped into memory;
	// nil means the Go heap. New calls it once for each state entry and sets the buffer to zero. It must return n
	// elements of Value's type that nothing else uses as long as the optimizer lives. Releasing them is the caller's
	// business, also if New then fails.
	Alloc func(n int) (Vec, error)
}

// end returns the position after the last element.
func (p Param) end() int { return p.Offset + p.Value.Len() }

// Optimizer updates the parameters it was made for. It is not safe for concurrent use.
type Optimizer interface {
	// Step applies one update with learning rate lr to every piece that is not Absent, from its present gradient. It
	// returns an error if lr is negative or not finite, or if a piece is not Ready. Gradients are not inspected: one that is not finite spoils its own
	// element only.
	Step(lr float64) error

	// Steps returns the number of calls of Step so far, the restored ones included, whether or not any piece had a gradient.
	// It is the step number a Schedule asks for; formulas that depend on the step go by each piece's own [Entry.Steps].
	Steps() int

	// State returns the state of every non-empty piece. The data aliases the optimizer's buffers: it shows later steps, and
	// writing to it is writing to the optimizer. The counts do not follow, so a list is good until the next Step. The
	// order depends only on the order of the parameters.
	State() []Entry

	// Restore replaces the whole state and the number of steps. The entries may be cut in other places than this
	// optimizer's pieces, in any order, and may hold more than it owns. What it owns must be there exactly once, with its
	// type, and the entry names must be ones that this kind of optimizer has. All entries that meet in one piece must
	// have the same Steps, and one with zero Steps must hold zeros, as no update can have made anything else. The data is
	// copied.
	Restore(steps int, entries []Entry) error

	// Adopt is Restore for an optimizer over other parameters than those the entries were made for, as after freezing or
	// unfreezing: a parameter that no entry is about stays as it is, which is fresh in a new optimizer. A parameter
	// that some entry is about must be there in full, as in Restore: a rank that passes only what it had itself would
	// start anew, unnoticed, what came from others.
	Adopt(steps int, entries []Entry) error
}

// Entry is a piece of optimizer state: elements [Offset, Offset+Data.Len()) of a tensor that has the shape of the
// parameter.
type Entry struct {
	Param  string // full name of the parameter
	Name   string // what it is, such as "exp_avg"
	Shape  []int  // shape of the whole tensor; shared, not to be modified
	Offset int
	Steps  int // number of updates that made Data: what Adam's t counts; the same for all entries of a piece
	Data   Vec
}

// newState returns a zeroed buffer like Value, from Alloc if there is one.
func (p Param) newState() (Vec, error) {
	n := p.Value.Len()
	if p.Alloc == nil || n == 0 {
		return p.Value.zeros(n), nil
	}
	v, err := p.Alloc(n)
	switch {
	case err != nil:
		return Vec{}, fmt.Errorf("parameter %q: Alloc of %d elements: %w", p.Name, n, err)
	case v.F32 != nil && v.F64 != nil:
		return Vec{}, fmt.Errorf("parameter %q: Alloc returned a buffer that is both float32 and float64", p.Name)
	case v.Len() != n || v.dtype() != p.Value.dtype():
		return Vec{}, fmt.Errorf("parameter %q: Alloc returned %d elements of %s, not %d of %s",
			p.Name, v.Len(), v.dtype(), n, p.Value.dtype())
	}
	clear(v.F32)
	clear(v.F64)
	return v, nil
}

// check returns an error that names the parameter unless p is well formed.
func (p Param) check() error {
	if p.Name == "" {
		return errors.New("parameter without a name")
	}
	for _, v := range []Vec{p.Value, p.Grad} {
		if v.F32 != nil && v.F64 != nil {
			return fmt.Errorf("parameter %q: a buffer is both float32 and float64", p.Name)
		}
	}
	n := p.Value.Len()
	if n != p.Grad.Len() {
		return fmt.Errorf("parameter %q: value has %d elements, gradient %d", p.Name, n, p.Grad.Len())
	}
	if n > 0 && p.Value.dtype() != p.Grad.dtype() {
		return fmt.Errorf("parameter %q: value is %s, gradient %s", p.Name, p.Value.dtype(), p.Grad.dtype())
	}
	_, err := p.checkInterval()
	return err
}

// checkInterval returns the number of elements of the whole parameter, and an error unless the piece lies in it.
func (p Param) checkInterval() (int, error) {
	n, err := elements(p.Name, p.Shape)
	if err != nil {
		return 0, err
	}
	if p.Offset < 0 || p.Offset > n-p.Value.Len() {
		return 0, fmt.Errorf("parameter %q: elements [%d:%d] are outside shape %v", p.Name, p.Offset, p.end(), p.Shape)
	}
	return n, nil
}

// elements returns the number of elements of a parameter with that name and shape, which nobody has checked.
func elements(name string, shape []int) (int, error) {
	whole, err := shard.New([]shard.Param{{Name: name, Shape: shape}}, 1, 1) // knows which shapes are valid
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
			return fmt.Errorf("optim: parameter %q: pieces [%d:%d] and [%d:%d] overlap", a.Name, a.Offset, a.end(), b.Offset, b.end())
		}
	}
	return nil
}
