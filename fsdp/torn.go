package fsdp

import (
	"errors"
	"fmt"

	"github.com/gofsdp/gofsdp/optim"
)

// State is read straight to where it belongs, so what breaks off in the middle of it leaves a
// mixture. Nobody may go on with that unawares: neither with parameters, nor with an optimizer
// after the parameters alone were loaded anew.

var (
	errFormer = errors.New("the optimizer was made before Freeze: make a new one of Sharded.Shards, and let it Adopt what Freeze returned")
	errHalf   = errors.New("the optimizer is not whole until it is loaded again, or made anew of Sharded.Shards")
)

// tornState is what has broken off while it changed optimizers.
type tornState struct {
	err   error // nil if nothing has
	lists int   // calls of Shards until then: an optimizer that is made of a later one starts anew
}

// tear says that parameters are about to change, and optimizers, too, if state is true. It stands
// until mend.
func (s *Sharded) tear(what string, state bool) {
	s.torn = fmt.Errorf("%s has broken off: parameters are not whole until a Load or Import succeeds", what)
	if state {
		s.tearState(what)
	}
}

// tearState says that optimizers are about to change, or have broken off in the middle of that.
func (s *Sharded) tearState(what string) {
	s.tornOpt = tornState{fmt.Errorf("%s has broken off: %w", what, errHalf), s.lists}
}

// mend says that all of the parameters is there, and of the optimizers if state is true.
func (s *Sharded) mend(state bool) {
	if s.torn = nil; state {
		s.tornOpt = tornState{}
	}
}

// refusal returns why the pieces that opt was made of are of no use, if it is for one of these
// reasons.
func (s *Sharded) refusal(opt optim.Optimizer, reasons ...error) error {
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

// usableWith is usable for what reads the state of opt, too, which may be nil.
func (s *Sharded) usableWith(opt optim.Optimizer) error {
	if err := s.usable(); err != nil {
		return err
	}
	return s.refusal(opt, errHalf, errFormer)
}

// changeable is why parameters, and the state of opt unless it is nil, must not be replaced now, or
// nil.
func (s *Sharded) changeable(opt optim.Optimizer) error {
	if s.err != nil {
		return s.err
	}
	if err := s.noneHeld(); err != nil {
		return err
	}
	return s.refusal(opt, errFormer)
}
