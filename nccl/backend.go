package nccl

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// backend is the transport.Backend of one rank's handle of a group. It decides the order of
// operations; its parts carry them out:
//
//	meeting   compares the calls of all ranks, over the host group
//	direct    runs a collective in place, in device memory
//	staging   runs a collective with host buffers, in pieces
//	launcher  gives work to NCCL, waits for it, aborts it
//	progress  lets other streams wait for collectives, and fence lets collectives wait for them
//	splits    holds the groups that come of this one
type backend struct {
	name   string
	cfg    GroupConfig
	dev    *Device           // the caller's: it outlives the group
	parent *backend          // the group that this one was split from, or nil
	host   comm.Group        // of the same ranks: carries calls and news. Closed by Leave at the latest
	serial *transport.Serial // the handle; nil until open has succeeded

	meeting  *meeting
	launcher *launcher
	progress *progress
	fence    fence
	direct   direct
	staging  staging
	splits   splits

	halt  chan struct{}  // closed by Stop: nothing is begun any more, all waits end
	stop  sync.Once      // closes halt
	tasks sync.WaitGroup // goroutines of the group
}

// errHalted is the error of Run after Stop: the handle has the reason.
var errHalted = errors.New("the group has failed")

// newBackend returns the backend of a rank of host. parent and communicator are nil unless the
// group was split from another one.
func newBackend(
	name string, host comm.Group, dev *Device, cfg GroupConfig, parent *backend, communicator *Communicator,
) *backend {
	halt := make(chan struct{})
	l, p := newLauncher(communicator, cfg.Timeout, halt), &progress{halt: halt}
	return &backend{
		name: name, cfg: cfg, dev: dev, parent: parent, host: host,
		meeting: newMeeting(host), launcher: l, progress: p,
		direct:  direct{launcher: l, progress: p, rank: host.Rank(), ops: make([]Op, 0, host.Size())},
		staging: staging{launcher: l, dev: dev, bytes: cfg.Staging, rank: host.Rank(), ranks: host.Size()},
		halt:    halt,
	}
}

// open makes the group ready, together with the other ranks: either all of them are, or none.
// trouble is the reason, if any, why this rank cannot be.
func (b *backend) open(ctx context.Context, trouble error) (*Group, error) {
	err := trouble
	if err == nil {
		err = b.prepare()
	}
	if err == nil && b.launcher.communicator == nil {
		err = b.connect(ctx)
	}
	if err == nil {
		err = b.host.Barrier(ctx)
	}
	if err != nil {
		err = b.reason(b.wrap("making the group", err))
		b.host.Abort(err)
		if b.launcher.communicator != nil {
			b.launcher.abort()
		}
		return nil, errors.Join(err, b.host.Close(), b.release())
	}
	b.serial = transport.NewSerial(b.name, b.host.Rank(), b.host.Size(), b)
	b.tasks.Go(b.listen)
	return &Group{b.serial, b}, nil
}

// wrap adds rank, group and operation to an error that is not one of the group.
func (b *backend) wrap(operation string, err error) error {
	return fmt.Errorf("nccl: rank %d of group %q: %s: %w", b.host.Rank(), b.name, operation, err)
}

// prepare makes the stream and the events of this rank.
func (b *backend) prepare() (err error) {
	if b.launcher.stream, err = b.dev.NewStream(); err != nil {
		return err
	}
	if b.progress.reached, err = b.dev.NewEvent(); err != nil {
		return err
	}
	b.fence.event, err = b.dev.NewEvent()
	return err
}

// connect makes the communicator. The ranks also compare the settings that must be equal.
func (b *backend) connect(ctx context.Context) error {
	v, err := Version()
	if err != nil {
		return err
	}
	var id UniqueID
	if b.host.Rank() == 0 {
		if id, err = NewUniqueID(); err != nil {
			return err
		}
	}
	label := fmt.Sprintf("unique id for NCCL %v with %d bytes of staging", v, b.cfg.Staging)
	if err := b.host.Broadcast(comm.Of(id[:]).Named(label), 0).Wait(ctx); err != nil {
		return err
	}
	ctx, done := b.whileGood(ctx)
	defer done()
	b.launcher.communicator, err = NewCommunicator(ctx, b.dev, b.host.Size(), id, b.host.Rank(), b.cfg.Communicator)
	return err
}

// whileGood returns a context that also ends when the host group fails, Stop is called, or the
// timeout ends. done releases it.
func (b *backend) whileGood(ctx context.Context) (_ context.Context, done func()) {
	ctx, stop := context.WithTimeoutCause(ctx, b.cfg.Timeout, comm.ErrTimeout)
	ctx, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-transport.Failing(b.host):
			cancel(errHalted)
		case <-b.halt:
			cancel(errHalted)
		case <-ctx.Done():
		}
	})
	return ctx, func() { stop(); watch.Wait(); cancel(nil) }
}

// Run implements [transport.Backend].
func (b *backend) Run(ctx context.Context, seq uint64, c *transport.Call) error {
	staged, err := b.meet(ctx, seq, c)
	if err != nil {
		return err
	}
	switch {
	case c.Kind == transport.KindBarrier:
	case c.Kind == transport.KindSplit:
		err = b.divide(ctx, seq, c)
	case c.Bytes() == 0:
	case staged:
		err = b.staging.run(ctx, c)
	default:
		err = b.direct.run(ctx, seq, c)
	}
	if err != nil {
		return b.broken(seq, c, err)
	}
	b.progress.complete(seq)
	return nil
}

// broken gives up a collective that NCCL may be executing: it reports the failure to the other
// ranks, which would wait in vain, and returns when no buffer is touched any more.
func (b *backend) broken(seq uint64, c *transport.Call, err error) error {
	err = fmt.Errorf("%s: %w", numbered(seq, c), b.reason(err))
	var remote *comm.RankError
	switch {
	case errors.Is(err, errHalted), errors.As(err, &remote):
		err = received(err)
	case errors.Is(err, RemoteError):
		err = fmt.Errorf("%w: %w", comm.ErrLost, err) // that rank may still report a reason
	default:
		err = &comm.RankError{Group: b.name, Rank: b.host.Rank(), Err: err}
		b.serial.Failed(err)
		b.Tell(err)
	}
	b.launcher.abort()
	return err
}

// numbered names a collective within its group.
func numbered(seq uint64, c *transport.Call) string {
	if l := c.Label(); l != "" {
		return fmt.Sprintf("%v #%d %q", c.Kind, seq, l)
	}
	return fmt.Sprintf("%v #%d", c.Kind, seq)
}

// Stop implements [transport.Backend]. If this rank waits for the others, it leaves them.
func (b *backend) Stop() {
	b.stop.Do(func() {
		close(b.halt)
		if b.meeting.stop() {
			b.tasks.Go(func() { _ = b.host.Close() }) // Leave gets its error as well
		}
	})
}

// Missing implements [transport.Backend]. Only the host group can tell which ranks are late, and
// its errors name them. Once all ranks have come, NCCL does not report it.
func (b *backend) Missing() []int { return nil }

// Reach implements [transport.DeviceBackend].
func (b *backend) Reach(buf comm.Buffer) error {
	addr, _ := buf.Device()
	size := uintptr(buf.DType().Size())
	switch {
	case buf.Len() == 0 || size == 0:
		return nil
	case addr == 0:
		return errors.New("the device memory has address 0")
	case addr%size != 0:
		return fmt.Errorf("the device memory has address %#x, which is not a multiple of the element size %d", addr, size)
	}
	return nil
}

// Leave implements [transport.Backend].
//
// All ranks destroy a communicator together, once no operation is in progress in it. If they do not
// all come, it is aborted: then this rank has completed its operations, and has given the others
// time to do so.
func (b *backend) Leave(last uint64) error {
	errs := []error{b.splits.close()}
	switch {
	case b.launcher.aborted:
		b.Tell(&comm.RankError{
			Group: b.name, Rank: b.host.Rank(), Err: fmt.Errorf("%w in collective #%d", comm.ErrClosed, last+1),
		})
	case b.meeting.farewell():
		errs = append(errs, b.launcher.destroy())
	default:
		b.launcher.abort()
	}
	errs = append(errs, b.host.Close())
	b.tasks.Wait()
	if b.parent != nil {
		b.parent.splits.forget(b)
	}
	return errors.Join(append(errs, b.release())...)
}

// release frees the rank's own resources.
func (b *backend) release() error {
	if b.launcher.stuck {
		return fmt.Errorf("nccl: group %q: a stream still runs %v after NCCL was aborted: its memory is not freed",
			b.name, settling)
	}
	errs := []error{b.staging.free()}
	for _, e := range []*Event{b.progress.reached, b.fence.event} {
		if e != nil {
			errs = append(errs, e.Close())
		}
	}
	if b.launcher.stream != nil {
		errs = append(errs, b.launcher.stream.Close())
	}
	return errors.Join(errs...)
}
