package nccl

import (
	"context"
	"errors"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// News. A failure of the group travels over the host group: Tell aborts the host group with the
// failure, and listen, or a goroutine in a call of the host group, gets it on the other ranks. Some
// groups carry only the text of an error, so the failure is also encoded in the text.

// sent is a failure on its way to the other ranks.
type sent struct {
	failure error
	text    string // of transport.MarshalError
}

func (s *sent) Error() string { return s.text }
func (s *sent) Unwrap() error { return s.failure }

// received returns the failure that another rank has sent, if err, of the host group, contains one,
// or else err.
func received(err error) error {
	var s *sent
	if errors.As(err, &s) {
		return s.failure
	}
	var blame *comm.RankError
	if errors.As(err, &blame) && blame.Err != nil {
		if failure, err := transport.UnmarshalError([]byte(blame.Err.Error())); err == nil {
			return failure
		}
	}
	return err
}

// Tell implements [transport.Backend].
func (b *backend) Tell(err error) {
	b.host.Abort(&sent{err, string(transport.MarshalError(b.name, b.host.Rank(), err))})
}

// listen passes on a failure of the group on another rank.
func (b *backend) listen() {
	select {
	case <-transport.Failing(b.host):
		b.serial.Failed(b.reason(nil))
	case <-b.halt:
	}
}

// reason returns why the host group has failed, or else err.
func (b *backend) reason(err error) error {
	if !closed(transport.Failing(b.host)) {
		return err
	}
	return received(b.host.Barrier(context.Background())) // a failed group returns at once
}
