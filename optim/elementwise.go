package optim

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/gofsdp/gofsdp/optim/vec"
)

// Elementwise is the configuration of an optimizer of your own whose update treats every element
// alike. You write the formula. State, checkpoints, [Rule], [EMA], [Settings], comparison between
// ranks and planning then work as for [AdamW]. This is Lion (https://arxiv.org/abs/2302.06675):
//
//	func lion[T float32 | float64](u optim.Elements[T]) {
//		lr, decay, m := T(u.LR), T(u.WeightDecay), u.State[0]
//		beta1, beta2 := T(u.Numbers["beta1"]), T(u.Numbers["beta2"])
//		for i, g := range u.Grad {
//			direction := T(math.Copysign(1, float64(beta1*m[i]+(1-beta1)*g)))
//			u.Value[i] -= lr * (direction + decay*u.Value[i])
//			m[i] = beta2*m[i] + (1-beta2)*g
//		}
//	}
//
//	opt, err := optim.Elementwise{
//		Kind: "Lion", State: []string{"exp_avg"}, WeightDecay: 0.1,
//		Numbers: map[string]float64{"beta1": 0.9, "beta2": 0.99},
//		Float32: lion[float32], Float64: lion[float64],
//	}.New(params)
//
// An update may read and write element i of its vectors only to compute element i: which elements
// are on which rank must not matter. New tries this with random numbers.
type Elementwise struct {
	// Kind is the name of the optimizer in settings, checkpoints and errors. A state loads into an
	// optimizer of the same kind.
	Kind string
	// State names the vectors of state. Each is as long as the value and begins with zeros.
	State []string
	// Numbers are the hyper-parameters. Ranks must have the same ones. Settings contain them, so
	// checkpoints do, too.
	Numbers map[string]float64
	// WeightDecay is the decay of parameters for which no rule says another. Update applies it.
	WeightDecay float64
	// Float32 and Float64 update a piece in place. The one for the type of the parameters is
	// required.
	Float32 func(Elements[float32])
	Float64 func(Elements[float64])
	Rules   []Rule // exceptions for some parameters
}

// Elements are the elements of one piece of a parameter, for one update by [Elementwise]. All
// vectors have the same length. They are valid until the update returns.
type Elements[T float32 | float64] struct {
	Value       []T                // to be updated
	Grad        []T                // not to be modified
	State       [][]T              // to be updated, in the order of Elementwise.State
	Numbers     map[string]float64 // not to be modified
	LR          float64            // the rate given to Step times the LRScale of a rule
	WeightDecay float64
	Steps       int // updates of the parameter, this one included: 1, 2, …
}

// New returns the optimizer over params, with its state at zero. It returns an error that names the
// parameter or the field if pieces overlap or are malformed, if a value is no [vec.Addressable], as on a
// device, if there is no update for its type, if a name or number is invalid, or if an update of
// random numbers depends on where they are cut. New retains only the memory and the functions in
// params.
func (c Elementwise) New(params []Param) (Optimizer, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("optim: elementwise %q: %w", c.Kind, err)
	}
	kind := strings.ToLower(c.Kind)
	s := Settings{Kind: c.Kind, LRScale: 1, WeightDecay: c.WeightDecay, Numbers: formatNumbers(c.Numbers)}
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("optim: %s: %w", kind, err)
	}
	values, err := valuesAs[vec.Addressable](kind, params)
	if err != nil {
		return nil, err
	}
	for i, v := range values {
		switch {
		case v.Len() > 0 && v.Float64() && c.Float64 == nil:
			return nil, fmt.Errorf("optim: %s: parameter %q is float64: set field Float64", kind, params[i].Name)
		case v.Len() > 0 && !v.Float64() && c.Float32 == nil:
			return nil, fmt.Errorf("optim: %s: parameter %q is float32: set field Float32", kind, params[i].Name)
		}
	}
	u := &elementwise{values: values, f32: c.Float32, f64: c.Float64}
	u.step32.State, u.step64.State = make([][]float32, len(c.State)), make([][]float64, len(c.State))
	return newOptimizer(s, slices.Clone(c.State), u, params, c.Rules)
}

// check returns an error that names the field if the configuration is invalid.
func (c Elementwise) check() error {
	switch {
	case c.Kind == "" || strings.ContainsFunc(c.Kind, func(r rune) bool { return r <= ' ' }):
		return errors.New("field Kind must be a word")
	case slices.Contains([]string{kindSGD, kindAdam, kindAdamW, kindMuon}, c.Kind):
		return errors.New("field Kind is the name of an optimizer of this package: choose another")
	case c.Float32 == nil && c.Float64 == nil:
		return errors.New("no update: set Float32, Float64 or both")
	}
	for i, name := range c.State {
		if name == "" || name == emaName || slices.Contains(c.State[:i], name) {
			return fmt.Errorf("field State: %q is empty, given twice, or reserved for averages", name)
		}
	}
	for name, v := range c.Numbers {
		if name == "" || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == '=' }) || math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("field Numbers: %q = %v: must be a word and a finite number", name, v)
		}
	}
	if err := tryCut(c.Float32, len(c.State), c.Numbers); err != nil {
		return fmt.Errorf("field Float32: %w", err)
	}
	if err := tryCut(c.Float64, len(c.State), c.Numbers); err != nil {
		return fmt.Errorf("field Float64: %w", err)
	}
	return nil
}

// tryCut makes three updates of random numbers in one piece and in two, and returns an error if they
// differ.
func tryCut[T float32 | float64](update func(Elements[T]), states int, numbers map[string]float64) error {
	if update == nil {
		return nil
	}
	const n, cut = 64, 23
	r := rand.New(rand.NewPCG(1, 2))
	random := func() []T {
		v := make([]T, n)
		for i := range v {
			v[i] = T(r.NormFloat64())
		}
		return v
	}
	vectors := func(value []T) [][]T { // the value, then the state
		list := [][]T{slices.Clone(value)}
		for range states {
			list = append(list, make([]T, n))
		}
		return list
	}
	value := random()
	whole, parts := vectors(value), vectors(value)
	for t := 1; t <= 3; t++ {
		grad := random()
		step := func(v [][]T, from, to int) {
			e := Elements[T]{Grad: slices.Clone(grad[from:to]), Numbers: maps.Clone(numbers), LR: 0.01, WeightDecay: 0.1, Steps: t}
			e.Value = v[0][from:to:to]
			for _, s := range v[1:] {
				e.State = append(e.State, s[from:to:to])
			}
			update(e)
		}
		step(whole, 0, n)
		step(parts, 0, cut)
		step(parts, cut, n)
	}
	for k, v := range whole {
		for i, x := range v {
			if y := parts[k][i]; x != y && (x == x || y == y) {
				of := "the value"
				if k > 0 {
					of = fmt.Sprintf("state %d", k-1)
				}
				return fmt.Errorf("the update of an element depends on other elements: element %d of %s is %v in a piece of %d and %v in pieces of %d and %d",
					i, of, x, n, y, cut, n-cut)
			}
		}
	}
	return nil
}

// elementwise does the updates of an Elementwise.
type elementwise struct {
	values []vec.Addressable // of the pieces
	f32    func(Elements[float32])
	f64    func(Elements[float64])
	step32 Elements[float32]
	step64 Elements[float64]
}

func (u *elementwise) update(i int, p *piece, lr float64) error {
	value, grad := u.values[i].Elements(), p.Grad.(vec.Addressable).Elements()
	if u.values[i].Float64() {
		s := &u.step64
		for k, v := range p.vecs {
			s.State[k] = v.(vec.Addressable).Elements().F64
		}
		s.Value, s.Grad, s.LR, s.WeightDecay, s.Steps = value.F64, grad.F64, lr, p.weightDecay, p.steps
		u.f64(*s)
		return nil
	}
	s := &u.step32
	for k, v := range p.vecs {
		s.State[k] = v.(vec.Addressable).Elements().F32
	}
	s.Value, s.Grad, s.LR, s.WeightDecay, s.Steps = value.F32, grad.F32, lr, p.weightDecay, p.steps
	u.f32(*s)
	return nil
}

func (u *elementwise) set(s *Settings) {
	numbers, _ := parseNumbers(s.Numbers) // checked with the settings
	u.step32.Numbers, u.step64.Numbers = numbers, numbers
}

// formatNumbers returns the text of numbers in settings, such as "beta1=0.9 beta2=0.99".
func formatNumbers(numbers map[string]float64) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(numbers)) {
		list = append(list, name+"="+strconv.FormatFloat(numbers[name], 'g', -1, 64))
	}
	return strings.Join(list, " ")
}

// parseNumbers is the inverse of formatNumbers.
func parseNumbers(text string) (map[string]float64, error) {
	numbers := make(map[string]float64)
	for _, field := range strings.Fields(text) {
		name, number, _ := strings.Cut(field, "=")
		v, err := strconv.ParseFloat(number, 64)
		if err != nil || name == "" || math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("numbers %q: %q is not name=number", text, field)
		}
		numbers[name] = v
	}
	return numbers, nil
}

// sameNames reports whether two texts of numbers have the same names.
func sameNames(a, b string) bool {
	x, _ := parseNumbers(a)
	y, _ := parseNumbers(b)
	return maps.EqualFunc(x, y, func(_, _ float64) bool { return true })
}
