package optim

import (
	"errors"
	"fmt"

	"github.com/gofsdp/gofsdp/optim/vec"
)

// emaName is the state entry of averages.
const emaName = "ema"

// EMA makes an optimizer of this package keep an exponential moving average of every parameter,
// like get_ema_multi_avg_fn of torch.optim.swa_utils. After each update of a parameter p,
//
//	e = p                        the first time
//	e = e + (1 - decay)·(p - e)  from then on
//
// in one more pass over the shards, without an allocation. Averages are the state entry "ema". They
// are saved, loaded and distributed with the rest of the state, by parameter and for any number of
// ranks. [Settings] contain the decay. Averages have the type of the value even if Bits is 8,
// because 8 bits cannot represent a change of 1 - decay times a difference. Frozen and absent
// parameters do not change, and neither do their averages. Buffers have no average.
//
// Call EMA before you load state that contains averages. If the optimizer has already made updates,
// for example if it was loaded from state without averages, the averages begin with the current
// values. So an average can leave out the beginning of a training.
//
//	opt, err := optim.AdamW{}.New(m.Params())
//	err = optim.EMA(opt, 0.999)
//	… // training
//	err = optim.Swap(opt)
//	… // m.Eval, m.Export
//	err = optim.Swap(opt)
//
// EMA returns an error and changes nothing if decay is not between 0 and 1, if the optimizer
// already keeps averages, if a value does not implement [vec.SGDVec], whose update makes the average,
// or if memory cannot be allocated.
func EMA(o Optimizer, decay float64) error {
	own, ok := o.(*optimizer)
	switch {
	case !ok:
		return fmt.Errorf("optim: ema: %T is not of this package", o)
	case !(decay > 0 && decay < 1):
		return fmt.Errorf("optim: ema: the decay is %v: must be between 0 and 1", decay)
	}
	if err := enter(own.guards, "EMA", false); err != nil {
		return fmt.Errorf("optim: %w", err)
	}
	defer leave(own.guards)
	lists := make([][]vec.SGDVec, len(own.parts))
	for i, part := range own.parts {
		var err error
		if lists[i], err = part.averages(); err != nil {
			return fmt.Errorf("optim: ema: %s: %w", part.kind, err)
		}
	}
	for i, part := range own.parts {
		part.average(lists[i], decay)
	}
	return nil
}

// averages allocates the average of every piece. The average of an updated piece begins with its
// value.
func (a *part) averages() (list []vec.SGDVec, err error) {
	if a.settings.common.EMA != 0 {
		return nil, errors.New("it already keeps averages: call EMA once")
	}
	if err := a.ready(); err != nil {
		return nil, err
	}
	for i := range a.pieces {
		p := &a.pieces[i]
		v, err := p.newState(p.Value.Len())
		if err != nil {
			return nil, err
		}
		e, ok := v.(vec.SGDVec)
		if !ok {
			return nil, fmt.Errorf("parameter %q: a value of type %T has no SGD update, which computes the average", p.Name, p.Value)
		}
		if p.steps > 0 {
			if err := copyVec(e, p.Value); err != nil {
				return nil, fmt.Errorf("parameter %q: %w", p.Name, err)
			}
		}
		list = append(list, e)
	}
	return list, nil
}

// average makes the part keep its averages in the vectors of list.
func (a *part) average(list []vec.SGDVec, decay float64) {
	s := a.settings.common
	s.EMA = decay
	a.settings, a.names = newSettings(s), append(a.names[:len(a.names):len(a.names)], emaName)
	for i := range a.pieces {
		p := &a.pieces[i]
		ready := p.Ready
		p.ema, p.usable = list[i], ready
		p.Ready = func() error {
			if a.swapped {
				return ErrSwapped
			}
			if ready != nil {
				return ready()
			}
			return nil
		}
	}
}

// follow updates the average after an update of a non-empty piece.
func (a *part) follow(p *piece) error {
	if p.steps == 1 {
		return copyVec(p.ema, p.Value)
	}
	// SGD with this gradient and decay is e - (decay-1)·(p + (-1)·e).
	return p.ema.SGD(p.Value, nil, vec.SGDStep{LR: a.settings.common.EMA - 1, WeightDecay: -1})
}

// ErrSwapped is the error of an optimizer that cannot step, load or save because [Swap] has
// exchanged its values and averages.
var ErrSwapped = errors.New("the averages have replaced the values: Swap them back first")

// Swap exchanges the values and the averages of [EMA]. The model then computes with the averages,
// to evaluate, generate and export. The next Swap brings the values back. In between, Step, Restore
// and Adopt return [ErrSwapped], and so do functions that save or load the model with the
// optimizer, or that replace or move the values of the model without it. Every rank must call Swap
// between the same passes. A parameter that has had no update keeps its value.
//
// Swap returns an error and changes nothing if the optimizer keeps no averages, or if a piece is
// not Ready, for example between a forward and its backward.
func Swap(o Optimizer) error {
	own, ok := o.(*optimizer)
	if !ok {
		return fmt.Errorf("optim: swap: %T is not of this package", o)
	}
	if err := enter(own.guards, "Swap", false); err != nil {
		return fmt.Errorf("optim: %w", err)
	}
	defer leave(own.guards)
	for _, part := range own.parts {
		if part.settings.common.EMA == 0 {
			return fmt.Errorf("optim: swap: %s keeps no averages, see EMA", part.kind)
		}
		for i := range part.pieces {
			if usable := part.pieces[i].usable; usable != nil {
				if err := usable(); err != nil {
					return fmt.Errorf("optim: swap: %w", err)
				}
			}
		}
	}
	for _, part := range own.parts {
		for i := range part.pieces {
			p := &part.pieces[i]
			if p.steps > 0 {
				if err := exchange(p.Value, p.ema); err != nil {
					return fmt.Errorf("optim: swap: parameter %q: %w", p.Name, err)
				}
			}
			// Also for an empty piece, which a load leaves without steps: all ranks must report the
			// same updates.
			if p.Updated != nil {
				p.Updated(Update{settings: swapping, steps: own.steps})
			}
			if p.Swapped != nil {
				p.Swapped(!part.swapped)
			}
		}
		part.swapped = !part.swapped
	}
	return nil
}

// swapping stands for the settings of a Swap. Ranks compare a Swap like an update.
var swapping = newSettings(Settings{Kind: "Swap"})

// exchange swaps the elements of two vectors of the same length and type.
func exchange(a, b Vec) error {
	const block = 1 << 16
	n := a.Len()
	x, y := newHost(min(n, block), a.Float64()), newHost(min(n, block), a.Float64())
	for at := 0; at < n; at += block {
		end := min(at+block, n)
		from, to := a.Slice(at, end), b.Slice(at, end)
		u, v := sliceHost(x, 0, end-at), sliceHost(y, 0, end-at)
		if err := errors.Join(from.Read(u), to.Read(v)); err != nil {
			return err
		}
		if err := errors.Join(from.Write(v), to.Write(u)); err != nil {
			return err
		}
	}
	return nil
}
