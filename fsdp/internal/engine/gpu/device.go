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

// Options configure a Device.
type Options struct {
	Poison  bool          // fill freed buffers with NaN
	Timeout time.Duration // limit for collectives that make no progress; 0 means 5 minutes
	Offload bool          // keep shards and optimizer state in pinned memory of the host
	Cores   int           // that this rank may use; with enough of them the host waits without sleeping
	Turns   *Turns        // shared by all Devices of one GPU; nil if only one Device uses it

	Deterministic bool // sums over ranks are the same in every run, whatever is prefetched
	Virtual       bool // products do not depend on the number of ranks
	Float16       bool // values of 16 bits in calls are float16 instead of bfloat16
	TF32          bool // products may round factors in float32 to TF32
	CollectiveSMs int  // multiprocessors that collectives use at most, so that products use the others; 0 sets no limits

	staging int // bytes of pinned memory for reading and writing vectors; stagingBytes if 0
}

// Turns order the use of NCCL by the Devices of one GPU: all ranks must run the communicators of a
// GPU in the same order. The zero value is ready to use.
type Turns struct {
	mu   sync.Mutex
	last *Device // that has launched something
}

// A Device implements engine.Device on a GPU.
type Device struct {
	o        Options
	gpu      *nccl.Device // the caller's
	engine   *compute.Engine
	work     *nccl.Stream // calls, and everything outside of passes
	wire     *nccl.Stream // collectives
	replicas *nccl.Stream // sums over the replicas of what wire has summed
	joined   [lanes]*nccl.Event
	links    links
	slabs    slabs
	spares   spares
	events   []*nccl.Event                      // by number in a script
	frames   map[*frame]bool                    // that are not over
	call     compute.Call                       // that runs
	programs map[*exec.Program]*compute.Program // of passes that are open or can be opened again
	old      []*compute.Program                 // no longer used by a pass
	garbage  []*block                           // spares when the step ends

	counts *arena.Arena // counts like a host's arena, but has no memory
	held   int          // bytes of the device that are allocated
	fixed  int          // the part of held that belongs to no pass and no shard
	pinned int          // bytes of the host in pinned blocks
	blocks map[*block]bool
	host   *arena.Arena                  // the memory that Host returns
	lent   map[*arena.Block]*arena.Block // the same blocks in counts

	vectors sync.Mutex // guards the fields below
	stage   staging
	updates updates

	deferred []*block // with a deferred change

	mu     sync.Mutex
	given  engine.Place  // the last operation given to a stream
	failed error         // the first error of an operation
	down   chan struct{} // closed when failed is set
}

// New returns a device that computes on dev. The caller keeps dev, and closes it after the device.
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
	if o.Deterministic {
		if err := nccl.Deterministic(); err != nil {
			return nil, err
		}
	}
	if n := dev.Multiprocessors(); o.CollectiveSMs < 0 || o.CollectiveSMs > 0 && o.CollectiveSMs >= n {
		return nil, fmt.Errorf("gpu: device %d, %s, has %d multiprocessors, and CollectiveSMs is %d: products need some, too",
			dev.Ordinal(), dev.Name(), n, o.CollectiveSMs)
	}
	if d.engine, err = compute.New(dev); err != nil {
		return nil, err
	}
	d.engine.TF32, d.engine.Float16 = o.TF32, o.Float16
	if o.Virtual {
		d.leaveMultiprocessors()
	}
	if d.work, err = dev.NewStream(); err != nil {
		return nil, err
	}
	if d.wire, err = dev.NewUrgentStream(); err != nil {
		return nil, err
	}
	if d.replicas, err = dev.NewRaisedStream(); err != nil {
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

// leaveMultiprocessors has products leave the multiprocessors of collectives.
func (d *Device) leaveMultiprocessors() {
	if n := d.o.CollectiveSMs; n > 0 {
		d.engine.Multiprocessors = d.gpu.Multiprocessors() - n
	}
}

// stream returns the stream of a lane.
func (d *Device) stream(l lane) *nccl.Stream {
	return [lanes]*nccl.Stream{d.work, d.replicas, d.wire}[l]
}

// turn makes later collectives wait for all earlier ones of the other Devices on this GPU.
func (d *Device) turn() error {
	t := d.o.Turns
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.last
	t.last = d
	if before == nil || before == d {
		return nil
	}
	for _, from := range collective {
		if err := d.joined[from].Record(before.stream(from)); err != nil {
			return err
		}
		for _, to := range collective {
			if err := d.stream(to).Wait(d.joined[from]); err != nil {
				return err
			}
		}
	}
	return nil
}

// leaveTurns removes d from the order. All operations of d have ended.
func (d *Device) leaveTurns() {
	if t := d.o.Turns; t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.last == d {
			t.last = nil
		}
	}
}

// release closes everything that New created. The streams are idle.
func (d *Device) release() error {
	d.leaveTurns()
	errs := []error{d.links.close()}
	for _, e := range append(d.events, d.joined[:]...) {
		if e != nil {
			errs = append(errs, e.Close())
		}
	}
	for _, s := range []*nccl.Stream{d.wire, d.replicas, d.work} {
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

// fail ends the device with err if err is not nil and the device has not ended yet. It returns the
// reason for which the device ended. Any goroutine may call it.
func (d *Device) fail(err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failed == nil && err != nil {
		d.failed = d.placed(err)
		close(d.down)
	}
	return d.failed
}

// placed adds the place of a fault of the device to err. The streams run behind the host, so the
// place is only the last operation that they were given.
func (d *Device) placed(err error) error {
	var fault *nccl.CUDAError
	if !errors.As(err, &fault) || !fault.Fault() || d.given.Program == nil {
		return err
	}
	if late := (*engine.OpError)(nil); errors.As(err, &late) {
		err = late.Err
	}
	return &engine.OpError{Place: d.given, Err: fmt.Errorf("this or an earlier operation failed: %w", err)}
}

// give records the operation that the streams are given next.
func (d *Device) give(p engine.Place) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.given = p
}

// err returns the reason for which the device ended, or nil.
func (d *Device) err() error { return d.fail(nil) }

// collective are the lanes of collectives.
var collective = [...]lane{onReplicas, onWire}

// fork makes later collectives wait for all earlier operations of work, including pending updates,
// and deferred changes that collectives cannot make. Those in replicas wait for one in wire.
func (d *Device) fork() error {
	if err := d.launchAll(); err != nil {
		return err
	}
	if err := d.joined[onWork].Record(d.work); err != nil {
		return d.fail(err)
	}
	return d.fail(d.wire.Wait(d.joined[onWork]))
}

// join makes later operations of work wait for all earlier ones of other lanes.
func (d *Device) join(list ...lane) error {
	for _, l := range list {
		if err := d.joined[l].Record(d.stream(l)); err != nil {
			return d.fail(err)
		}
		if err := d.work.Wait(d.joined[l]); err != nil {
			return d.fail(err)
		}
	}
	return d.err()
}

// A block is counted memory with undefined contents. It is memory of the device, or pinned memory
// of the host, which kernels access in the same way.
type block struct {
	memory
	pinned  *nccl.HostMemory // the same memory if it is of the host, else nil
	counted *arena.Block
	mark    mark

	gradient int // bytes of an element if it is a gradient shard, else 0
	change   change
	factor   float64

	copied *block // the copy of a parameter shard that calls read, or nil
	stale  bool   // the copy may differ from the shard
}

// memory is nccl.Memory and nccl.HostMemory.
type memory interface {
	Addr() uintptr
	Len() int
	Free() error
}

// alloc allocates n bytes of the device, counted in a class.
func (d *Device) alloc(n int, class arena.Class) (*block, error) {
	m, err := d.newMemory(n)
	if err != nil {
		return nil, withAdvice(fmt.Errorf("allocating %v memory: %w", class, err))
	}
	return d.count(&block{memory: m}, class)
}

// withAdvice adds advice to the error of a device that is out of memory: the call that shows what
// fills it.
func withAdvice(err error) error {
	if e := new(nccl.CUDAError); errors.As(err, &e) && e.OutOfMemory() {
		return fmt.Errorf("%w. Planner.Fits, with the bytes that are free, says what fills a step and which settings save most", err)
	}
	return err
}

// allocPinned is like alloc, with memory of the host.
func (d *Device) allocPinned(n int, class arena.Class) (*block, error) {
	h, err := d.gpu.AllocHost(n)
	if err != nil {
		return nil, fmt.Errorf("allocating %v memory: %w", class, err)
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

// bytes returns the counter for the kind of memory that b has.
func (d *Device) bytes(b *block) *int {
	if b.pinned != nil {
		return &d.pinned
	}
	return &d.held
}

// free frees a block. It does nothing for nil. Neither stream uses the block any more.
func (d *Device) free(b *block) error {
	if b == nil {
		return nil
	}
	d.counts.Free(b.counted)
	*d.bytes(b) -= b.Len()
	delete(d.blocks, b)
	d.forget(b)
	return b.Free()
}
