package optim

import (
	"cmp"
	"errors"
	"fmt"
	"math"
)

// Plateau is the configuration of learning rates that fall when a measure stops getting better, by
// the rules and defaults of PyTorch's ReduceLROnPlateau. The rate is the rate of a schedule times a
// scale, which begins at 1:
//
//	err = opt.Step(schedule(opt.Steps()) * plateau.Scale())
//	…
//	plateau.Update(validation) // every so often
//
// A measure is better if it is smaller than the best so far by more than Threshold times the
// magnitude of the best. After more than Patience measures in a row that are not better, the scale
// is multiplied by Factor. If a measure should be large, such as an accuracy, pass its negative.
type Plateau struct {
	Factor    float64 // of the scale, in (0, 1); default 0.1
	Patience  int     // measures in a row that may be no better; default 10, and -1 means none
	Threshold float64 // fraction of the best by which a better one is smaller; default 1e-4; [Zero] means 0
	Cooldown  int     // measures after a fall that do not count as no better; default 0
	Min       float64 // least scale; default 0
}

// PlateauScaler holds the current scale. All ranks must give it the same measures. Mean of package
// fsdp and a Set of its metrics return the same measures on all ranks. It is not safe for
// concurrent use.
type PlateauScaler struct {
	config Plateau
	state  PlateauState
}

// PlateauState is the state of a [PlateauScaler], as JSON in a checkpoint: SaveOptions.Extra has it.
type PlateauState struct {
	Scale   float64
	Best    float64 // best measure so far, if Began
	Began   bool    // there has been a measure
	Bad     int     // measures in a row that were no better
	Cooling int     // next measures that do not count as no better
}

// New returns a scaler that begins at 1, or an error that names the field out of range.
func (c Plateau) New() (*PlateauScaler, error) {
	c.Factor = cmp.Or(c.Factor, 0.1)
	c.Threshold = orDefault(c.Threshold, 1e-4)
	if c.Patience = cmp.Or(c.Patience, 10); c.Patience == -1 {
		c.Patience = 0
	}
	var want string
	switch { // negated, for NaN fails every comparison
	case !(c.Factor > 0 && c.Factor < 1):
		want = fmt.Sprintf("Factor is %v: must be in (0, 1)", c.Factor)
	case c.Patience < 0:
		want = fmt.Sprintf("Patience is %d: must not be below -1", c.Patience)
	case !(c.Threshold >= 0 && c.Threshold < 1):
		want = fmt.Sprintf("Threshold is %v: must be in [0, 1)", c.Threshold)
	case c.Cooldown < 0:
		want = fmt.Sprintf("Cooldown is %d: must not be negative", c.Cooldown)
	case !(c.Min >= 0 && c.Min <= 1):
		want = fmt.Sprintf("Min is %v: must be in [0, 1]", c.Min)
	}
	if want != "" {
		return nil, fmt.Errorf("optim: plateau: %s", want)
	}
	return &PlateauScaler{config: c, state: PlateauState{Scale: 1}}, nil
}

// Scale returns the factor for learning rates.
func (p *PlateauScaler) Scale() float64 { return p.state.Scale }

// Update adds a measure, and returns whether the scale has fallen. NaN counts as no better.
func (p *PlateauScaler) Update(measure float64) (fell bool) {
	c, s := &p.config, &p.state
	if measure == measure && (!s.Began || measure < s.Best-c.Threshold*min(math.Abs(s.Best), math.MaxFloat64)) {
		s.Best, s.Began, s.Bad = measure, true, 0
	} else {
		s.Bad++
	}
	if s.Cooling > 0 {
		s.Cooling, s.Bad = s.Cooling-1, 0
	}
	if s.Bad <= c.Patience {
		return false
	}
	before := s.Scale
	s.Scale, s.Bad, s.Cooling = max(s.Scale*c.Factor, c.Min), 0, c.Cooldown
	return s.Scale < before
}

// State returns the state for Restore. JSON has no infinite numbers, so an infinite Best becomes
// the largest number.
func (p *PlateauScaler) State() PlateauState {
	s := p.state
	s.Best = min(max(s.Best, -math.MaxFloat64), math.MaxFloat64)
	return s
}

// Restore continues from a state, which may come from a scaler with other settings. It returns an
// error and changes nothing if no scaler can have the state.
func (p *PlateauScaler) Restore(s PlateauState) error {
	switch {
	case !(s.Scale >= 0 && s.Scale <= 1):
		return fmt.Errorf("optim: plateau: restore: scale is %v: must be in [0, 1]", s.Scale)
	case s.Bad < 0 || s.Cooling < 0:
		return fmt.Errorf("optim: plateau: restore: counts are %d and %d: must not be negative", s.Bad, s.Cooling)
	case math.IsNaN(s.Best):
		return errors.New("optim: plateau: restore: the best is not a number")
	}
	p.state = s
	return nil
}
