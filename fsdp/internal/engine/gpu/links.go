package gpu

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/nccl"
)

// A link is the communicator of a group of several ranks. Its collectives are issued in the order
// of the schedule. All ranks agree on the schedule once a pass, so they do not synchronise before
// each collective.
type link struct {
	group comm.Group  // of the mesh
	role  string      // role of the group; it names the communicator
	over  *nccl.Group // of the same ranks: it owns the communicator, and carries reports of failures
	comm  *nccl.Communicator
	told  uint64 // number of collectives that were reported to a watcher
}

// links are the communicators of a device, and a goroutine that watches their collectives.
//
// # In flight
//
// A collective is in flight from before the call of NCCL, which may connect ranks and hang, until
// the event behind it is reached. While any is in flight, a goroutine checks for errors of NCCL,
// for failures of the groups, and for the time since the last collective ended. It ends the device
// when it finds a fault. Whatever ends the device, this goroutine reports the failure to the other
// ranks of the links and aborts the communicators. So no stream stays blocked, and no rank waits
// for a rank that has given up.
type links struct {
	d    *Device
	ops  []nccl.Op // of one link, enqueued and not launched
	next *link     // the link of ops
	lane lane      // of ops

	checks sync.Mutex // held by check: a communicator must be asked by one goroutine at a time

	mu      sync.Mutex
	list    []*link // in the order of creation
	tell    func(transport.Flight)
	queues  [lanes]queue   // of collectives in flight
	events  []*nccl.Event  // unused ones
	wake    chan struct{}  // holds one signal: something is in flight
	quit    chan struct{}  // ends the goroutine that watches; nil without links
	watch   sync.WaitGroup // of that goroutine
	aborted error          // the error of aborting communicators
}

// A queue has the collectives in flight of a stream, which end in their order.
type queue struct {
	flights []flight
	told    time.Time // end of the last launch that was reported
}

// A flight is a collective that is in flight, or about to be launched.
type flight struct {
	link *link
	at   engine.Place // its place; without a program outside of passes
	name string       // of the flat group
	end  *nccl.Event  // behind it; nil before the launch, or if it ends with the next flight

	// The following fields are set only if a watcher is set.
	begin  *nccl.Event // before the launch; set where end is
	call   nccl.Op
	issued time.Time
}

// defaultTimeout is how long the streams may make no progress while something is in flight.
const defaultTimeout = 5 * time.Minute

// connect creates the missing links of meshes. It is a collective of the ranks of each mesh, which
// call it with the same meshes in the same order. If a rank cannot join, all ranks get its error.
func (l *links) connect(ctx context.Context, meshes []ranks.Mesh) error {
	err := l.d.await(ctx, l.d.wire) // nothing of another layout may be in flight
	if err == nil {
		err = l.d.await(ctx, l.d.replicas)
	}
	for _, k := range l.missing(meshes) {
		if err == nil {
			err = l.join(ctx, k)
		} else {
			k.group.Abort(err) // the other ranks would wait for this one
		}
	}
	return err
}

// missing returns new links for the meshes that have none. They have no communicators yet.
func (l *links) missing(meshes []ranks.Mesh) (list []*link) {
	for i := range meshes {
		m := &meshes[i]
		for _, k := range []*link{{group: m.Shard, role: "shards"}, {group: m.Replica, role: "replicas"}, {group: m.Peers, role: "peers"}} {
			same := func(other *link) bool { return other.group == k.group }
			if k.group != nil && k.group.Size() > 1 && !slices.ContainsFunc(l.list, same) && !slices.ContainsFunc(list, same) {
				list = append(list, k)
			}
		}
	}
	return list
}

// join creates the communicator of a link.
func (l *links) join(ctx context.Context, k *link) (err error) {
	k.over, err = nccl.New(ctx, k.group, l.d.gpu, nccl.GroupConfig{
		Communicator: nccl.Config{Name: k.role, MaxCTAs: l.d.o.CollectiveSMs}, Timeout: l.d.o.Timeout,
	})
	if err != nil {
		return fmt.Errorf("making the communicator of %s: %w", k.role, ranks.Among(k.group, err))
	}
	k.comm = k.over.Communicator()
	l.d.leaveMultiprocessors()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, k)
	if l.quit == nil {
		l.wake, l.quit = make(chan struct{}, 1), make(chan struct{})
		l.watch.Go(l.look)
	}
	return nil
}

// find returns the link of a group, or nil.
func (l *links) find(g comm.Group) *link {
	for _, k := range l.list {
		if k.group == g {
			return k
		}
	}
	return nil
}

// types maps element types to NCCL's.
var types = [...]nccl.DataType{
	comm.Float32: nccl.Float32, comm.Float64: nccl.Float64, comm.BFloat16: nccl.BFloat16, comm.Float16: nccl.Float16,
}

// ownAddress returns the address of this rank's n elements in the buffer of all ranks at full.
func (k *link) ownAddress(full uintptr, n int, t comm.DType) uintptr {
	return full + uintptr(k.comm.Rank()*n*t.Size())
}

// allGather gathers the n elements of each rank in place in the buffer at full.
func (k *link) allGather(full uintptr, n int, t comm.DType) nccl.Op {
	return nccl.Op{Kind: nccl.AllGather, Send: k.ownAddress(full, n, t), Recv: full, Count: n, Type: types[t]}
}

// reduceScatter leaves the sums of this rank's n elements in place in the buffer at full.
func (k *link) reduceScatter(full uintptr, n int, t comm.DType) nccl.Op {
	return nccl.Op{Kind: nccl.ReduceScatter, Send: full, Recv: k.ownAddress(full, n, t), Count: n, Type: types[t], Reduce: nccl.Sum}
}

// allReduce replaces n elements by their sums or means over the ranks.
func (k *link) allReduce(at uintptr, n int, t comm.DType, by nccl.RedOp) nccl.Op {
	return nccl.Op{Kind: nccl.AllReduce, Send: at, Recv: at, Count: n, Type: types[t], Reduce: by}
}

// enqueue is enqueueOn for the stream wire.
func (l *links) enqueue(k *link, c nccl.Op, at engine.Place, name string, parts ...nccl.Op) error {
	return l.enqueueOn(onWire, k, c, at, name, parts...)
}

// enqueueOn adds a collective of a flat group to the next launch in a stream. Collectives enqueued
// for another link or stream are launched first. Outside of passes at is zero. Parts are sends and
// receives that replace the collective.
func (l *links) enqueueOn(on lane, k *link, c nccl.Op, at engine.Place, name string, parts ...nccl.Op) error {
	if l.next != k || l.lane != on {
		if err := l.launch(); err != nil {
			return err
		}
	}
	if len(parts) == 0 {
		parts = []nccl.Op{c}
	}
	l.next, l.lane, l.ops = k, on, append(l.ops, parts...)
	l.mu.Lock()
	defer l.mu.Unlock()
	f := flight{link: k, at: at, name: name}
	if l.tell != nil {
		f.call, f.issued = c, time.Now()
	}
	l.queues[on].flights = append(l.queues[on].flights, f)
	return nil
}

// launch gives the enqueued collectives to their stream as one NCCL group: none waits for another.
func (l *links) launch() error {
	if len(l.ops) == 0 {
		return l.d.err()
	}
	k, ops := l.next, l.ops
	l.next, l.ops = nil, l.ops[:0]
	if err := l.d.err(); err != nil {
		return err
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
	if err := l.d.turn(); err != nil {
		return l.d.fail(err)
	}
	if err := l.mark(true); err != nil {
		return l.d.fail(err)
	}
	if err := k.comm.Group(ops, l.d.stream(l.lane).Handle()); err != nil {
		if known := l.d.err(); known != nil { // the watch has aborted the call
			return known
		}
		return l.d.fail(l.blame(k, err))
	}
	return l.d.fail(l.mark(false))
}

// mark records the end of the collectives that were enqueued last. With begin it records their
// beginning, if a watcher is set.
func (l *links) mark(begin bool) (err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if begin && l.tell == nil {
		return nil
	}
	var e *nccl.Event
	if n := len(l.events); n > 0 {
		e, l.events = l.events[n-1], l.events[:n-1]
	} else if l.tell != nil {
		e, err = l.d.gpu.NewTimer()
	} else {
		e, err = l.d.gpu.NewEvent()
	}
	if err != nil {
		return err
	}
	flights := l.queues[l.lane].flights
	last := &flights[len(flights)-1]
	if begin { // by close, too
		last.begin = e
	} else {
		last.end = e
	}
	return e.Record(l.d.stream(l.lane))
}

// close ends the goroutine that watches, and then the links, the newest first. All collectives have
// ended.
func (l *links) close() error {
	if l.quit != nil {
		close(l.quit)
		l.watch.Wait()
	}
	errs := []error{l.aborted}
	if n, err := l.over(); err == nil && l.d.err() == nil { // ended since the last check of the watch
		errs = append(errs, l.report(n))
	}
	for _, k := range slices.Backward(l.list) {
		errs = append(errs, k.over.Close())
	}
	var all [lanes]int
	for on := range l.queues {
		all[on] = len(l.queues[on].flights)
	}
	l.drop(all)
	for _, e := range l.events {
		errs = append(errs, e.Close())
	}
	l.list, l.queues, l.events, l.quit = nil, [lanes]queue{}, nil, nil
	return errors.Join(errs...)
}

// blame returns the reason for which a collective of a link failed with err. If another rank caused
// the failure, it is the error which that rank reported.
func (l *links) blame(k *link, err error) error {
	if errors.Is(err, nccl.RemoteError) {
		timer := time.NewTimer(hearsay)
		defer timer.Stop()
		select {
		case <-transport.Failing(k.over):
			err = k.reason()
		case <-transport.Failing(k.group):
			err = k.reason()
		case <-timer.C:
			err = fmt.Errorf("%w: %w", comm.ErrLost, err)
		}
	}
	return l.failure(k, err)
}

// failure adds the first collective of the link in flight to err.
func (l *links) failure(k *link, err error) error {
	err = ranks.Among(k.group, err)
	l.mu.Lock()
	defer l.mu.Unlock()
	for on := range l.queues {
		flights := l.queues[on].flights
		i := slices.IndexFunc(flights, func(f flight) bool { return f.link == k })
		switch {
		case i < 0:
			continue
		case flights[i].at.Program == nil:
			return fmt.Errorf("group %s: %w", flights[i].name, err)
		}
		return &engine.OpError{Place: flights[i].at, Err: err}
	}
	return err
}

// failed reports whether a group of the link has failed.
func (k *link) failed() bool {
	return closed(transport.Failing(k.over)) || closed(transport.Failing(k.group))
}

// reason returns why a group of the link has failed. A failed group returns from Barrier at once.
func (k *link) reason() error {
	if closed(transport.Failing(k.group)) {
		return k.group.Barrier(context.Background())
	}
	return k.over.Barrier(context.Background())
}
