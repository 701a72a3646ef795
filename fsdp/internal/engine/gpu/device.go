package gpu

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/exec"
	compute "github.com/gofsdp/gofsdp/internal/gpu"
	"github.com/gofsdp/gofsdp/nccl"
)

// Options are what a Device depends on beside the GPU.
type Options struct {
	Poison  bool          // fill freed buffers with NaN
	Timeout time.Duration // of collectives that make no progress; 0 means 5 minutes
	Offload bool          // shards and the state of optimizers are in pinned memory of the host
	Turns   *Turns        // of all that share the GPU; nil for one alone

	staging int // bytes of pinned memory through which vectors are read and written; stagingBytes if 0
}

// Turns are the order in which the Devices of one GPU use NCCL, whose communicators must not run at the
// same time in another order on other ranks. The zero value is ready to use.
type Turns struct {
	mu   sync.Mutex
	last *Device // that has launched something
}

// A Device implements engine.Device with a GPU.
type Device struct {
	o        Options
	gpu      *nccl.Device // the caller's
	engine   *compute.Engine
	work     *nccl.Stream // calls, and everything outside of passes
	wire     *nccl.Stream // collectives
	joined   [2]*nccl.Event
	links    links
	slabs    slabs
	events   []*nccl.Event                      // by number in a script
	frames   map[*frame]bool                    // that are not over
	call     compute.Call                       // that runs
	programs map[*exec.Program]*compute.Program // of passes that are open or may be
	old      []*compute.Program                 // of others
	garbage  []*block                           // that the streams may not be through with

	counts *arena.Arena // counts like a host's arena, and has no memory
	held   int          // bytes of the device that are allocated
	fixed  int          // of these, what no pass and no shard is the reason of
	pinned int          // bytes of the host that blocks take
	blocks map[*block]bool
	host   *arena.Arena                  // of what is lent
	lent   map[*arena.Block]*arena.Block // how it is counted

	vectors sync.Mutex // held while one of them uses what follows
	stage   staging
	updates updates

	mu     sync.Mutex
	given  engine.Place  // the operation that was given to a stream last
	failed error         // of the first operation that has
	down   chan struct{} // closed when failed is set
}

// New returns a device that computes on dev, which stays the caller's and is closed after it.
func New(dev *nccl.Device, o Options) (_ *Device, err error) {
	d := &Device{
		o: o, gpu: dev, down: make(chan struct{}), frames: make(map[*frame]bool), programs: make(map[*exec.Program]*compute.Program),
		counts: arena.New(arena.Sources{}).Dry(), blocks: make(map[*block]bool), host: arena.New(arena.Sources{}), lent: make(map[*arena.Block]*arena.Block),
	}
	if o.Timeout == 0 {
		d.o.Timeout = defaultTimeout
	}
	d.links.d = d
	defer func() {
		if err != nil {
			err = errors.Join(err, d.settle(), d.release())
		}
	}()
	if d.engine, err = compute.New(dev); err != nil {
		return nil, err
	}
	if d.work, err = dev.NewStream(); err != nil {
		return nil, err
	}
	if d.wire, err = dev.NewUrgentStream(); err != nil {
		return nil, err
	}
	for i := range d.joined {
		if d.joined[i], err = dev.NewEvent(); err != nil {
			return nil, err
		}
	}
	if d.stage, err = newStaging(dev, cmp.Or(o.staging, stagingBytes)); err != nil {
		return nil, err
	}
	if err := d.newUpdates(); err != nil {
		return nil, err
	}
	d.fixed = d.held
	return d, nil
}

// turn lets what the wire is given from now on come after all that another Device's was given.
func (d *Device) turn() error {
	t := d.o.Turns
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.last
	if t.last = d; before == nil || before == d {
		return nil
	}
	if err := d.joined[1].Record(before.wire); err != nil {
		return err
	}
	return d.wire.Wait(d.joined[1])
}

// leaveTurns ends the order with what d was given, all of which is over.
func (d *Device) leaveTurns() {
	if t := d.o.Turns; t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.last == d {
			t.last = nil
		}
	}
}

// release closes what New has made. The streams are idle.
func (d *Device) release() error {
	d.leaveTurns()
	errs := []error{d.links.close()}
	for _, e := range append(d.events, d.joined[:]...) {
		if e != nil {
			errs = append(errs, e.Close())
		}
	}
	for _, s := range []*nccl.Stream{d.wire, d.work} {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	errs = append(errs, d.updates.free(), d.stage.free())
	if d.engine != nil {
		errs = append(errs, d.engine.Close())
	}
	return errors.Join(errs...)
}

// fail ends the device, if err is not nil and nothing has before. It returns why the device has ended.
// Any goroutine may call it.
func (d *Device) fail(err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failed == nil && err != nil {
		d.failed = d.placed(err)
		close(d.down)
	}
	return d.failed
}

// placed says when a fault of the device has happened. Streams run behind the host, so all that is known is
// the operation that they were given last.
func (d *Device) placed(err error) error {
	var fault *nccl.CUDAError
	if !errors.As(err, &fault) || !fault.Fault() || d.given.Program == nil {
		return err
	}
	if late := (*engine.OpError)(nil); errors.As(err, &late) {
		err = late.Err
	}
	return &engine.OpError{Place: d.given, Err: fmt.Errorf("there or before: %w", err)}
}

// give notes which operation streams are given next.
func (d *Device) give(p engine.Place) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.given = p
}

// err returns why the device has ended, or nil.
func (d *Device) err() error { return d.fail(nil) }

// order lets what stream to is given from now on wait for what from was given so far, updates that were
// put off included.
func (d *Device) order(from, to *nccl.Stream) error {
	e := d.joined[0]
	if from == d.wire {
		e = d.joined[1]
	} else if err := d.launchUpdates(); err != nil {
		return err
	}
	if err := e.Record(from); err != nil {
		return d.fail(err)
	}
	return d.fail(to.Wait(e))
}

// A block is memory that is counted, with undefined contents: of the device, or of the host, where kernels
// reach it as they do their own.
type block struct {
	memory
	pinned  *nccl.HostMemory // the same if it is of the host, else nil
	counted *arena.Block
	mark    mark
}

// memory is nccl.Memory and nccl.HostMemory.
type memory interface {
	Addr() uintptr
	Len() int
	Free() error
}

// alloc returns n bytes of the device that count as of a class.
func (d *Device) alloc(n int, class arena.Class) (*block, error) {
	m, err := d.gpu.Alloc(n)
	if err != nil {
		return nil, fmt.Errorf("%v memory: %w", class, err)
	}
	return d.count(&block{memory: m}, class)
}

// allocPinned is alloc of memory of the host.
func (d *Device) allocPinned(n int, class arena.Class) (*block, error) {
	h, err := d.gpu.AllocHost(n)
	if err != nil {
		return nil, fmt.Errorf("%v memory: %w", class, err)
	}
	return d.count(&block{memory: h, pinned: h}, class)
}

// count counts a block.
func (d *Device) count(b *block, class arena.Class) (*block, error) {
	var err error
	if b.counted, err = d.counts.Alloc(b.Len(), class); err != nil {
		return nil, errors.Join(err, b.Free())
	}
	*d.bytes(b) += b.Len()
	d.blocks[b] = true
	return b, nil
}

// bytes returns the number of bytes that the device has where a block is.
func (d *Device) bytes(b *block) *int {
	if b.pinned != nil {
		return &d.pinned
	}
	return &d.held
}

// free frees a block, or does nothing for nil. Both streams are through with it.
func (d *Device) free(b *block) error {
	if b == nil {
		return nil
	}
	d.counts.Free(b.counted)
	*d.bytes(b) -= b.Len()
	delete(d.blocks, b)
	return b.Free()
}
