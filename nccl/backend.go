package nccl

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/comm"
)

// backend is the comm.Backend of one rank's handle of a group.
type backend struct {
	name   string
	cfg    GroupConfig
	dev    *Device
	parent *backend     // that it was split from, or nil
	meta   comm.Group   // of the same ranks: compares calls, and carries news
	serial *comm.Serial // the handle

	communicator *Communicator
	stream       *Stream
	reached      *Event // the end of the collective launched last
	records      records
	ops          []Op // scratch
	staging      staging
	pause        pause
	hang         hang
	torn         bool // NCCL was given up in the middle of a collective
	stuck        bool // what the stream was given has not ended even so

	halt  chan struct{}  // closed by Stop
	tasks sync.WaitGroup // goroutines of the group

	fencing sync.Mutex
	fence   *Event

	mu       sync.Mutex
	halted   bool
	meeting  bool            // Run is in a collective of meta
	launched uint64          // collectives of which reached marks the end, or that are complete
	complete uint64          // collectives that are complete
	waiters  []chan struct{} // for launched to grow, or for halt
	parts    map[uint64]part // of groups being split from this one, by collective
	children []*backend      // by the order of their splits
}

// part is what the ranks of a split have made together of a new group.
type part struct {
	meta         comm.Group
	communicator *Communicator // nil if it could not be made
}

func newBackend(name string, meta comm.Group, dev *Device, cfg GroupConfig) *backend {
	b := &backend{
		name: name, cfg: cfg, dev: dev, meta: meta, records: newRecords(meta), ops: make([]Op, 0, meta.Size()),
		pause: newPause(), halt: make(chan struct{}), parts: map[uint64]part{},
	}
	b.hang.timer = time.AfterFunc(moment, b.look)
	b.hang.timer.Stop() // should it run before that, it finds nothing to look after
	return b
}

// open makes the group ready, together with the other ranks, of which none is if one
// is not. trouble is a reason why this one cannot be.
func (b *backend) open(ctx context.Context, trouble error) (*Group, error) {
	err := trouble
	if err == nil {
		err = b.prepare()
	}
	if err == nil {
		err = b.connect(ctx)
	}
	if err == nil {
		err = b.meta.Barrier(ctx)
	}
	if err != nil {
		err = b.reason(fmt.Errorf("nccl: rank %d of group %q: %w", b.meta.Rank(), b.name, err))
		b.meta.Abort(err)
		if b.communicator != nil {
			b.giveUp()
		}
		return nil, errors.Join(err, b.meta.Close(), b.release())
	}
	b.serial = comm.NewSerial(b.name, b.meta.Rank(), b.meta.Size(), b)
	b.tasks.Go(b.listen)
	return &Group{b.serial, b}, nil
}

// prepare makes what a rank needs for itself.
func (b *backend) prepare() (err error) {
	if b.stream, err = b.dev.NewStream(); err != nil {
		return err
	}
	if b.reached, err = b.dev.NewEvent(); err != nil {
		return err
	}
	b.fence, err = b.dev.NewEvent()
	return err
}

// connect makes the communicator, unless it came of a split. The ranks also compare what
// has to be equal.
func (b *backend) connect(ctx context.Context) error {
	if b.communicator != nil {
		return nil
	}
	v, err := Version()
	if err != nil {
		return err
	}
	var id UniqueID
	if b.meta.Rank() == 0 {
		if id, err = NewUniqueID(); err != nil {
			return err
		}
	}
	label := fmt.Sprintf("unique id for NCCL %v with %d bytes of staging", v, b.cfg.Staging)
	if err := b.meta.Broadcast(comm.Of(id[:]).Named(label), 0).Wait(ctx); err != nil {
		return err
	}
	ctx, done := b.whileGood(ctx)
	defer done()
	b.communicator, err = NewCommunicator(ctx, b.dev, b.meta.Size(), id, b.meta.Rank(), b.cfg.Communicator)
	return err
}

// whileGood returns a context that also ends when meta fails, Stop is called, or it takes
// too long. done releases it.
func (b *backend) whileGood(ctx context.Context) (_ context.Context, done func()) {
	ctx, stop := context.WithTimeoutCause(ctx, b.cfg.Timeout, comm.ErrTimeout)
	ctx, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-comm.Failing(b.meta):
			cancel(errHalted)
		case <-b.halt:
			cancel(errHalted)
		case <-ctx.Done():
		}
	})
	return ctx, func() { stop(); watch.Wait(); cancel(nil) }
}

// reason returns why meta has failed, or else err.
func (b *backend) reason(err error) error {
	select {
	case <-comm.Failing(b.meta):
		return heard(b.meta.Barrier(context.Background()))
	default:
		return err
	}
}

// listen passes on that the group has failed elsewhere.
func (b *backend) listen() {
	select {
	case <-comm.Failing(b.meta):
		b.serial.Failed(b.reason(nil))
	case <-b.halt:
	}
}

// told is a failure on its way to the other ranks: its text is all that some groups
// carry of it.
type told struct {
	failure error
	text    string // of comm.MarshalError
}

func (t *told) Error() string { return t.text }
func (t *told) Unwrap() error { return t.failure }

// heard returns the failure that another rank has told, if err, of meta, is that.
func heard(err error) error {
	var t *told
	if errors.As(err, &t) {
		return t.failure
	}
	var blame *comm.RankError
	if errors.As(err, &blame) && blame.Err != nil {
		if failure, err := comm.UnmarshalError([]byte(blame.Err.Error())); err == nil {
			return failure
		}
	}
	return err
}

// Tell implements [comm.Backend].
func (b *backend) Tell(err error) {
	b.meta.Abort(&told{err, string(comm.MarshalError(b.name, b.meta.Rank(), err))})
}

// Stop implements [comm.Backend]. If ranks are still awaited, this one leaves them.
func (b *backend) Stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.halted {
		return
	}
	b.halted = true
	close(b.halt)
	b.wake()
	if b.meeting {
		b.tasks.Go(func() { _ = b.meta.Close() }) // Leave gets the answer as well
	}
}

// Missing implements [comm.Backend]. Who is late only meta knows, which says so in its
// errors; and once all ranks have come, NCCL does not tell.
func (b *backend) Missing() []int { return nil }

// Reach implements [comm.DeviceBackend].
func (b *backend) Reach(buf comm.Buffer) error {
	addr, _ := buf.Device()
	size := uintptr(buf.DType().Size())
	switch {
	case buf.Len() == 0 || size == 0:
		return nil
	case addr == 0:
		return errors.New("device memory at address 0")
	case addr%size != 0:
		return fmt.Errorf("device memory at %#x, which is no multiple of %d", addr, size)
	}
	return nil
}

// follow lets the group's stream wait for others.
func (b *backend) follow(streams []*Stream) error {
	b.fencing.Lock()
	defer b.fencing.Unlock()
	for _, s := range streams {
		if s == nil {
			return fmt.Errorf("nccl: group %q: Fence of no stream", b.name)
		}
		if err := b.fence.Record(s); err != nil {
			return err
		}
		if err := b.stream.Wait(b.fence); err != nil {
			return err
		}
	}
	return nil
}

// order lets s wait for collective seq once that is launched. ready is false if it
// never will be.
func (b *backend) order(ctx context.Context, seq uint64, s *Stream) (ready bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.launched < seq {
		if b.halted {
			return false, nil
		}
		ch := make(chan struct{})
		b.waiters = append(b.waiters, ch)
		b.mu.Unlock()
		select {
		case <-ch:
			b.mu.Lock()
		case <-ctx.Done():
			b.mu.Lock()
			return false, context.Cause(ctx)
		}
	}
	if b.complete >= seq {
		return true, nil
	}
	return true, s.Wait(b.reached)
}

// wake wakes those who wait in order. Called with mu held.
func (b *backend) wake() {
	for _, ch := range b.waiters {
		close(ch)
	}
	b.waiters = b.waiters[:0]
}
