package optim

import (
	"cmp"
	"fmt"
)

// LossScale is the configuration of dynamic loss scaling (https://arxiv.org/abs/1710.03740, section
// 3.2), which training in half precision needs. Small gradients are zero in float16 unless the
// loss, and with it every gradient, is multiplied by a large scale before backward and divided by
// it before the update. The right scale is as large as possible without overflow, and changes
// during training. So the scaler searches for it: the scale grows after Interval finite gradients
// in a row and falls at once when a gradient is not finite. The zero value has the defaults of
// PyTorch's GradScaler.
//
// All defaults are powers of two, so the scale stays a power of two. Multiplying by it and dividing
// again then changes no bit of a number that does not overflow or underflow.
type LossScale struct {
	Init     float64 // first scale, in [Min, Max]; default 65536
	Growth   float64 // factor of growth, at least 1; default 2. At 1 the scale is always Init
	Backoff  float64 // factor after a gradient that is not finite, in (0, 1); default 0.5
	Interval int     // finite gradients in a row before growth; default 2000
	Min      float64 // least scale, at least 2^-126; default 1
	Max      float64 // greatest scale, at most 2^126, the default
}

// maxLossScale keeps the scale and its inverse normal float32 numbers, never zero or infinite.
const maxLossScale = 0x1p126

// LossScaler holds the current scale. It only decides: the caller multiplies the loss, divides the
// gradient and skips the update. It is not safe for concurrent use.
type LossScaler struct {
	config LossScale // no field is at its default, and Min == Max if static
	state  LossScaleState
}

// LossScaleState is the state of a [LossScaler] in a checkpoint.
type LossScaleState struct {
	Scale  float64
	Streak int // finite gradients in a row since the scale last changed
}

// New returns a scaler that begins at c.Init, or an error that names the field out of range.
func (c LossScale) New() (*LossScaler, error) {
	c.Init = cmp.Or(c.Init, 1<<16)
	c.Growth = cmp.Or(c.Growth, 2)
	c.Backoff = cmp.Or(c.Backoff, 0.5)
	c.Interval = cmp.Or(c.Interval, 2000)
	c.Min = cmp.Or(c.Min, 1)
	c.Max = cmp.Or(c.Max, maxLossScale)
	var want string
	switch { // negated, because NaN fails every comparison
	case !(c.Min >= 1/maxLossScale && c.Min <= c.Max && c.Max <= maxLossScale):
		want = fmt.Sprintf("Min and Max are %v and %v: must ascend within [2^-126, 2^126]", c.Min, c.Max)
	case !(c.Init >= c.Min && c.Init <= c.Max):
		want = fmt.Sprintf("Init is %v: must be in [%v, %v]", c.Init, c.Min, c.Max)
	case !(c.Growth >= 1 && c.Growth <= maxLossScale):
		want = fmt.Sprintf("Growth is %v: must be in [1, 2^126]", c.Growth)
	case !(c.Backoff > 0 && c.Backoff < 1):
		want = fmt.Sprintf("Backoff is %v: must be in (0, 1)", c.Backoff)
	case c.Interval < 0:
		want = fmt.Sprintf("Interval is %d: must not be negative", c.Interval)
	}
	if want != "" {
		return nil, fmt.Errorf("optim: loss scale: %s", want)
	}
	if c.Growth == 1 {
		c.Min, c.Max = c.Init, c.Init
	}
	return &LossScaler{config: c, state: LossScaleState{Scale: c.Init}}, nil
}

// Scale returns the factor for the next loss: a finite number within the bounds, never zero.
func (s *LossScaler) Scale() float64 { return s.state.Scale }

// Update adjusts the scale. finite says whether the gradient of the loss multiplied by Scale was
// finite. If not, the caller skips the update of the parameters. All ranks must agree on finite
// beforehand: one element that is not finite in any rank's shard makes it false for all. Otherwise
// parameters differ between ranks from then on. A scale that would leave the bounds stops there. If
// gradients are still not finite at the lower bound, the scale is not the cause.
func (s *LossScaler) Update(finite bool) {
	c, st := s.config, &s.state
	if !finite {
		*st = LossScaleState{Scale: max(st.Scale*c.Backoff, c.Min)}
		return
	}
	st.Streak++
	if st.Streak >= c.Interval {
		*st = LossScaleState{Scale: min(st.Scale*c.Growth, c.Max)}
	}
}

// State returns the state for Restore.
func (s *LossScaler) State() LossScaleState { return s.state }

// Restore continues from a state, which may come from a scaler with other settings. It returns an
// error and changes nothing if the scale is outside this scaler's bounds. A static scaler allows
// only Init.
func (s *LossScaler) Restore(state LossScaleState) error {
	if c := s.config; !(state.Scale >= c.Min && state.Scale <= c.Max) {
		return fmt.Errorf("optim: loss scale: restore: scale is %v: must be in [%v, %v]", state.Scale, c.Min, c.Max)
	}
	if state.Streak < 0 {
		return fmt.Errorf("optim: loss scale: restore: streak is %d: must not be negative", state.Streak)
	}
	s.state = state
	return nil
}
