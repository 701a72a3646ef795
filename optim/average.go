package optim

import (
	"errors"
	"fmt"
	"slices"

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
// because 8 bits cannot represent a change of 1 - decay times a difference. If the value is
// bfloat16, its average is float32. Frozen and absent parameters do not change, and neither do
// their averages. Buffers have no average.
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
// already keeps averages, if a value does not implement [vec.SGDVec], whose update makes the
// average, or if memory cannot be allocated.
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
	return approach(p.ema, p.Value, a.settings.common.EMA)
}

// approach computes e + (1 - decay)·(p - e). SGD with this gradient and decay is e - (decay-1)·(p +
// (-1)·e).
func approach(e vec.SGDVec, p Vec, decay float64) error {
	return e.SGD(p, nil, vec.SGDStep{LR: decay - 1, WeightDecay: -1})
}

// UpdateEMA moves frozen parameters towards the parameters of the same names, by the formula of
// [EMA]:
//
//	e = e + (1 - decay)·(p - e)
//
// So a teacher follows its student (BYOL, DINO, JEPA): averages are the pieces of the teacher, from
// Sharded.FrozenParams, and params the pieces of the student, from Sharded.Params of the same or of
// another model. Every rank calls UpdateEMA between the same passes, with the same decay; the next
// pass of the teacher returns an error if ranks differ. A decay of 0 copies.
//
// If teacher and student are two models on a device, the values travel through the host. In one
// model they do not.
//
// params may have further parameters. Give both models the same ranks, strategy and units:
// UpdateEMA returns an error and changes nothing if a rank does not own the same elements of a
// parameter and of its average, if decay is not in [0, 1), if shapes or types differ, or if a piece
// is not Ready, for example between a forward and its backward.
//
// To use averages of a model only between its passes, such as for an evaluation, EMA and [Swap]
// need no second model.
func UpdateEMA(averages, params []Param, decay float64) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("optim: UpdateEMA: %w", err)
		}
	}()
	if !(decay >= 0 && decay < 1) {
		return fmt.Errorf("the decay is %v: must be at least 0 and less than 1", decay)
	}
	var room [2]Guard
	held := guards(guards(room[:0], averages), params)
	if err := enter(held, "UpdateEMA", false); err != nil {
		return err
	}
	defer leave(held)
	at := 0
	for i := range averages {
		if at, err = followed(&averages[i], params, at, decay); err != nil {
			return err
		}
	}
	at = 0
	for i := range averages {
		e := &averages[i]
		at = find(e.Name, params, at)
		if lenOf(e.Value) > 0 {
			if err := e.follow(&params[at], decay); err != nil {
				return fmt.Errorf("parameter %q: %w", e.Name, err)
			}
		}
		if e.Updated != nil {
			e.Updated(Update{settings: following, lr: decay})
		}
	}
	return nil
}

// following stands for the settings of an UpdateEMA, whose decay is the rate of the Update.
var following = newSettings(Settings{Kind: "UpdateEMA"})

// find returns the index of the parameter of a name, at first at index at, or -1.
func find(name string, params []Param, at int) int {
	for range params {
		if at == len(params) {
			at = 0
		}
		if params[at].Name == name {
			return at
		}
		at++
	}
	return -1
}

// follow moves e towards p, which has as many elements. Only vectors of the same model, and those
// in ordinary memory, have their operations in order; others are read and written.
func (e *Param) follow(p *Param, decay float64) error {
	if decay == 0 {
		return copyVec(e.Value, p.Value)
	}
	_, here := e.Value.(Host)
	_, too := p.Value.(Host)
	if v, ok := e.Value.(vec.SGDVec); ok && (here && too || e.Guard != nil && e.Guard == p.Guard) {
		return approach(v, p.Value, decay)
	}
	return eachBlock(p.Value, func(at int, b Host) error {
		part, own := e.Value.Slice(at, at+b.Len()), newHost(b.Len(), b.Float64())
		if err := part.Read(own); err != nil {
			return err
		}
		return errors.Join(approach(own, b, decay), part.Write(own))
	})
}

// followed returns the index of the parameter that e can follow.
func followed(e *Param, params []Param, at int, decay float64) (int, error) {
	if at = find(e.Name, params, at); at < 0 {
		return 0, fmt.Errorf("parameter %q has no parameter of this name to follow: if the names of the two lists differ, set Param.Name", e.Name)
	}
	p := &params[at]
	n := lenOf(e.Value)
	switch {
	case decay != 0 && vec.Is16(e.Value):
		return 0, fmt.Errorf("parameter %q is bfloat16, in which an average stops moving: give its model another Config.Precision.Master", e.Name)
	case !slices.Equal(e.Shape, p.Shape):
		return 0, fmt.Errorf("parameter %q has shape %v, and the parameter that it follows has %v", e.Name, e.Shape, p.Shape)
	case n != lenOf(p.Value) || n > 0 && e.Offset != p.Offset:
		return 0, fmt.Errorf("this rank owns elements [%d:%d] of parameter %q, and [%d:%d] of the parameter that it follows: "+
			"give both the same ranks, Config.Strategy and Config.WrapPolicy", e.Offset, e.end(), e.Name, p.Offset, p.end())
	case n > 0 && e.Value.Float64() != p.Value.Float64():
		return 0, fmt.Errorf("parameter %q is %s, and the parameter that it follows is %s: give both the same Config.Precision",
			e.Name, vec.TypeName(e.Value), vec.TypeName(p.Value))
	}
	for _, ready := range []func() error{e.Ready, p.Ready} {
		if ready != nil {
			if err := ready(); err != nil {
				return 0, err
			}
		}
	}
	return at, nil
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
// Swap returns an error and changes nothing if the optimizer keeps no averages, if a value is
// bfloat16 and would round its average, or if a piece is not Ready, for example between a forward
// and its backward.
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
			if p := &part.pieces[i]; vec.Is16(p.Value) {
				return fmt.Errorf("optim: swap: parameter %q is bfloat16, which cannot hold its average: load the averages into a model in float32", p.Name)
			}
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

// exchange swaps the elements of two vectors of the same length and type. A device swaps them in
// place.
func exchange(a, b Vec) error {
	if v, ok := a.(interface{ Swap(Vec) error }); ok {
		return v.Swap(b)
	}
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
