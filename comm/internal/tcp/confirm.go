package tcp

import (
	"context"
	"errors"

	"github.com/gofsdp/gofsdp/comm/transport"
)

// Owes implements [transport.Confirmer].
func (r *remote) Owes() bool {
	for _, p := range r.used {
		if !p.out.idle() {
			return true
		}
	}
	return false
}

// Answer implements [transport.Confirmer].
func (r *remote) Answer() {
	if r.broken != nil {
		return
	}
	r.answer(noSeq)
	_, err := r.plug()
	if err == nil {
		_, err = r.pump.push(r.arrived)
	}
	if err != nil {
		r.broken = r.broke(err)
	}
}

// Confirm implements [transport.Confirmer].
func (r *remote) Confirm(ctx context.Context) error {
	if r.broken != nil || r.pump == nil {
		return nil
	}
	r.answer(noSeq)
	r.expect(noSeq)
	err := r.settle(ctx)
	var differs *transport.MismatchError
	var blame *transport.RankError
	var lost *lostError
	switch {
	case errors.As(err, &differs), errors.As(err, &blame):
		r.broken = err
		return err
	case errors.As(err, &lost):
		return transport.ErrEnded
	}
	return nil // answers that have not arrived come too late
}
