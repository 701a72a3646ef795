package fsdp

import (
	"errors"
	"fmt"

	"github.com/gofsdp/gofsdp/optim"
)

// health says whether a model can be used.
type health uint8

const (
	running health = iota
	broken         // a pass has failed in the middle, or a group has: ranks may differ
	closed
)

// life is what a model has been through, which decides what may come next. Beside its health, four
// facts are independent of each other: a Forward waits for its Backward, others are put aside,
// gradients are not reduced (the engine knows), and parameters or optimizers are mixed: partly old
// and partly new.
//
//	Forward        forwarded: the last Forward, whose Backward is to come
//	Hold           held: put aside
//	a NoSync pass  unreduced
//	Load, Import   mixing before the first parameter changes, settled after the last
//	a failure      broke: nothing but Close helps
type life struct {
	health health
	cause  error          // why it is broken
	last   *pass          // forward done, backward to come
	held   map[*Pass]bool // likewise, put aside

	// State is read straight to where it belongs, so a failure in the middle leaves a mixture.
	// Nobody may continue with it without noticing: neither with parameters, nor with an optimizer
	// after only the parameters were loaded again.
	mixed    error // of a Load or Import that has broken off, until one succeeds
	mixedOpt struct {
		cause error // of one that was changing optimizers, or nil
		lists int   // calls of Shards until then: an optimizer made of a later one is whole
	}
}

var (
	errClosed = errors.New("the model is closed")
	errFormer = errors.New("the optimizer was made before Freeze: make a new one of Sharded.Shards, and let it Adopt what Freeze returned")
	errHalf   = errors.New("the optimizer is not whole until it is loaded again, or made anew of Sharded.Shards")
	// errOptimMixed is for parameters, too: a caller who has changed a part of an optimizer must
	// notice.
	errOptimMixed = errors.New("a SetFullOptim has broken off: the optimizers are not whole until a SetFullOptim, Load or Import succeeds")
)

// tolerance says in which states a method may be called; the zero value is the strictest. No
// collective method may be called on a model that is broken or closed.
type tolerance struct {
	broken    bool // but not closed
	mixed     bool
	held      bool
	unreduced bool
	last      bool // a Forward that waits for its Backward; only Step refuses
}

// tolerances are those of all methods. may looks for a refusal in the order of the fields of
// tolerance. What comes of it is in testdata/life.txt.
var tolerances = map[string]tolerance{
	"Forward":        {held: true, unreduced: true, last: true},
	"Backward":       {held: true, unreduced: true, last: true},
	"Eval":           {held: true, unreduced: true, last: true},
	"ClipGradNorm":   {mixed: true, held: true, last: true},
	"Unscale":        {mixed: true, held: true, last: true},
	"GradNorms":      {mixed: true, held: true, last: true},
	"FullGrads":      {mixed: true, held: true, last: true},
	"SyncGrads":      {mixed: true, held: true, unreduced: true, last: true},
	"AverageBuffers": {mixed: true, held: true, unreduced: true, last: true},
	"Full":           {mixed: true, held: true, unreduced: true, last: true},
	"Join":           {mixed: true, held: true, unreduced: true, last: true},
	"SetFull":        {mixed: true, unreduced: true, last: true},
	"FullState":      {held: true, unreduced: true, last: true},
	"FullOptimState": {held: true, unreduced: true, last: true},
	"Export":         {held: true, unreduced: true, last: true},
	"Save":           {held: true, unreduced: true, last: true},
	"Load":           {mixed: true, unreduced: true, last: true},
	"Import":         {mixed: true, unreduced: true, last: true},
	"SetFullOptim":   {mixed: true, held: true, unreduced: true, last: true},
	"Freeze":         {last: true},
	"Plan":           {broken: true, mixed: true, held: true, unreduced: true, last: true},
	"Step":           {broken: true},
}

// may returns why a method cannot be called now, or nil. unreduced is the number of passes whose
// gradients are not reduced.
func (l *life) may(method string, unreduced int) error {
	t := tolerances[method]
	switch {
	case l.health == closed:
		return errClosed
	case l.health == broken && !t.broken:
		return l.cause
	case l.mixed != nil && !t.mixed:
		return l.mixed
	case len(l.held) > 0 && !t.held && t.last:
		return fmt.Errorf("%d passes put aside by Hold are waiting for their Backward", len(l.held))
	case (l.last != nil || len(l.held) > 0) && !t.last:
		return errors.New("a Forward waits for its Backward: parameters must not change in between")
	case unreduced > 0 && !t.unreduced:
		return fmt.Errorf("the gradients of %d passes inside NoSync are not reduced: run a Backward outside, SyncGrads or ZeroGrad first", unreduced)
	}
	return nil
}

// mayStep returns why an optimizer must not step, or nil. It was made of what call number list of
// Shards has returned.
func (l *life) mayStep(list, unreduced int) error {
	if l.mixedOpt.cause != nil && list <= l.mixedOpt.lists && l.health != closed && l.mixed == nil {
		return l.mixedOpt.cause
	}
	return l.may("Step", unreduced)
}

// broke records that a failure in the middle of something has ended the use of the model.
func (l *life) broke(cause error) {
	if l.health == running {
		l.health, l.cause = broken, cause
	}
}

// mixing records that parameters are about to change, and optimizers, too, if opt is true. It
// stands until settled.
func (l *life) mixing(what string, opt bool, lists int) {
	l.mixed = fmt.Errorf("%s has broken off: parameters are not whole until a Load or Import succeeds", what)
	if opt {
		l.mixingOpt(what, lists)
	}
}

// mixingOpt records that optimizers are about to change, or that a change has failed in the middle.
func (l *life) mixingOpt(what string, lists int) {
	l.mixedOpt.cause, l.mixedOpt.lists = fmt.Errorf("%s has broken off: %w", what, errHalf), lists
}

// settled records that the parameters are whole again, and the optimizers if opt is true.
func (l *life) settled(opt bool) {
	if l.mixed = nil; opt {
		l.mixedOpt.cause = nil
	}
}

// settledOpt records that the optimizers are whole again, and the parameters if only a SetFullOptim
// had made them mixed.
func (l *life) settledOpt() {
	if errors.Is(l.mixed, errOptimMixed) {
		l.mixed = nil
	}
	l.mixedOpt.cause = nil
}

// takeLast returns the last Forward, or nil. The caller ends it.
func (l *life) takeLast() *pass {
	p := l.last
	l.last = nil
	return p
}

// waiting returns the passes whose Backward is to come.
func (l *life) waiting() (list []*pass) {
	if l.last != nil {
		list = append(list, l.last)
	}
	for p := range l.held {
		list = append(list, p.p)
	}
	return list
}

// refusal returns why the pieces that opt was made of are of no use, if it is for one of these
// reasons. opt may be nil.
func refusal(opt optim.Optimizer, reasons ...error) error {
	if opt == nil {
		return nil
	}
	for _, p := range optim.Params(opt) {
		if p.Ready == nil {
			continue
		}
		err := p.Ready()
		for _, reason := range reasons {
			if errors.Is(err, reason) {
				return err
			}
		}
	}
	return nil
}
