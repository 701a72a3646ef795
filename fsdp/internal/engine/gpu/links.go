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

// A link is the communicator of a group of several ranks. Its collectives go to the wire in the order
// of the schedule, on which all ranks agree once a pass: they do not meet before each of them.
type link struct {
	group comm.Group  // of the mesh
	role  string      // of that: it names the communicator
	over  *nccl.Group // of the same ranks: it has the communicator, and carries news of failures
	comm  *nccl.Communicator
	told  uint64 // collectives that a watcher was told of
}

// links are the communicators of a device, and the watch over what is under way in them.
//
// # In flight
//
// A collective is in flight from before NCCL is called, which may connect ranks and hang, until the
// event behind it is reached. While anything is in flight a goroutine looks for errors of NCCL, for
// failures of the groups, and at the time since something ended last. It ends the device when it
// finds one. However a device ends, that goroutine tells the other ranks of the links and aborts the
// communicators. So streams never stay blocked, and no rank waits for one that has given up.
type links struct {
	d    *Device
	ops  []nccl.Op // of one link, enqueued and not launched
	next *link     // their link

	checks sync.Mutex // held by check: a communicator answers one at a time

	mu      sync.Mutex
	list    []*link // in the order in which they were made
	tell    func(transport.Flight)
	told    time.Time      // when the last launch that it was told of was over
	flights []flight       // in the order of the wire
	events  []*nccl.Event  // that no flight has
	wake    chan struct{}  // has room for one: something is in flight
	quit    chan struct{}  // ends the watch; nil without links
	watch   sync.WaitGroup // of the watch
	aborted error          // of aborting communicators
}

// A flight is a collective that is in flight, or about to be launched.
type flight struct {
	link *link
	at   engine.Place // that it is of, without a program outside of passes
	name string       // of the flat group
	end  *nccl.Event  // behind it; nil if it ends with the flight after it, or is being launched

	// What follows is for whoever watches, and zero without.
	begin  *nccl.Event // before the launch, where end is
	call   nccl.Op
	issued time.Time
}

// defaultTimeout is how long the wire may make no progress while something is in flight.
const defaultTimeout = 5 * time.Minute

// connect makes the links of meshes that are not there yet. It is a collective of the ranks of each
// mesh, who are given the same meshes in the same order. If a rank cannot join, all get its error.
func (l *links) connect(ctx context.Context, meshes []ranks.Mesh) error {
	err := l.d.await(ctx, l.d.wire) // nothing of another layout may be in flight
	for _, k := range l.missing(meshes) {
		if err == nil {
			err = l.join(ctx, k)
		} else {
			k.group.Abort(err) // its ranks would wait for this one
		}
	}
	return err
}

// missing returns the links of meshes that are not there yet, without communicators.
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

// join makes the communicator of a link.
func (l *links) join(ctx context.Context, k *link) (err error) {
	k.over, err = nccl.New(ctx, k.group, l.d.gpu, nccl.GroupConfig{
		Communicator: nccl.Config{Name: k.role}, Timeout: l.d.o.Timeout,
	})
	if err != nil {
		return fmt.Errorf("the communicator of %s: %w", k.role, ranks.Among(k.group, err))
	}
	k.comm = k.over.Communicator()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, k)
	if l.quit == nil {
		l.wake, l.quit = make(chan struct{}, 1), make(chan struct{})
		l.watch.Go(l.look)
	}
	return nil
}

// of returns the link of a group, or nil.
func (l *links) of(g comm.Group) *link {
	for _, k := range l.list {
		if k.group == g {
			return k
		}
	}
	return nil
}

// types are NCCL's names for what flat groups are made of.
var types = [...]nccl.DataType{
	comm.Float32: nccl.Float32, comm.Float64: nccl.Float64, comm.BFloat16: nccl.BFloat16, comm.Float16: nccl.Float16,
}

// own returns where the n elements of this rank are in those of all, at full.
func (k *link) own(full uintptr, n int, t comm.DType) uintptr {
	return full + uintptr(k.comm.Rank()*n*t.Size())
}

// allGather gathers the n elements of each rank, in place in those of all.
func (k *link) allGather(full uintptr, n int, t comm.DType) nccl.Op {
	return nccl.Op{Kind: nccl.AllGather, Send: k.own(full, n, t), Recv: full, Count: n, Type: types[t]}
}

// reduceScatter leaves the sums of this rank's n elements in place of these, among those of all.
func (k *link) reduceScatter(full uintptr, n int, t comm.DType) nccl.Op {
	return nccl.Op{Kind: nccl.ReduceScatter, Send: full, Recv: k.own(full, n, t), Count: n, Type: types[t], Reduce: nccl.Sum}
}

// allReduce replaces n elements by their sums over the ranks, or by their means.
func (k *link) allReduce(at uintptr, n int, t comm.DType, by nccl.RedOp) nccl.Op {
	return nccl.Op{Kind: nccl.AllReduce, Send: at, Recv: at, Count: n, Type: types[t], Reduce: by}
}

// enqueue takes a collective of a flat group for the next launch. What is enqueued for another link
// is launched first. Outside of passes at is zero.
func (l *links) enqueue(k *link, c nccl.Op, at engine.Place, name string) error {
	if l.next != k {
		if err := l.launch(); err != nil {
			return err
		}
	}
	l.next, l.ops = k, append(l.ops, c)
	l.mu.Lock()
	defer l.mu.Unlock()
	f := flight{link: k, at: at, name: name}
	if l.tell != nil {
		f.call, f.issued = c, time.Now()
	}
	l.flights = append(l.flights, f)
	return nil
}

// launch gives what is enqueued to the wire, as one: none of it waits for another.
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
	if err := k.comm.Group(ops, l.d.wire.Handle()); err != nil {
		if known := l.d.err(); known != nil { // for which the watch has aborted the call
			return known
		}
		return l.d.fail(l.blame(k, err))
	}
	return l.d.fail(l.mark(false))
}

// mark marks the end of what is in flight, or for whoever watches where the next launch begins.
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
	last := &l.flights[len(l.flights)-1]
	if begin { // by close, too
		last.begin = e
	} else {
		last.end = e
	}
	return e.Record(l.d.wire)
}

// close ends the watch and the links, the youngest first. The wire has come past all that it was given.
func (l *links) close() error {
	if l.quit != nil {
		close(l.quit)
		l.watch.Wait()
	}
	errs := []error{l.aborted}
	if n, err := l.over(); err == nil && l.d.err() == nil { // what the watch has not seen
		errs = append(errs, l.report(n))
	}
	for _, k := range slices.Backward(l.list) {
		errs = append(errs, k.over.Close())
	}
	l.drop(len(l.flights))
	for _, e := range l.events {
		errs = append(errs, e.Close())
	}
	l.list, l.flights, l.events, l.quit = nil, nil, nil, nil
	return errors.Join(errs...)
}

// blame returns why a collective of a link has failed with err: what another rank has told, if it was
// its failure.
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

// failure says in which collective a link has failed, the first that is in flight.
func (l *links) failure(k *link, err error) error {
	err = ranks.Among(k.group, err)
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.flights, func(f flight) bool { return f.link == k })
	if i < 0 {
		return err
	}
	f := l.flights[i]
	if f.at.Program == nil {
		return fmt.Errorf("group %s: %w", f.name, err)
	}
	return &engine.OpError{Place: f.at, Err: err}
}

// failed reports whether the group of a link has.
func (k *link) failed() bool {
	return closed(transport.Failing(k.over)) || closed(transport.Failing(k.group))
}

// reason returns why it has. A group that has failed answers at once.
func (k *link) reason() error {
	if closed(transport.Failing(k.group)) {
		return k.group.Barrier(context.Background())
	}
	return k.over.Barrier(context.Background())
}
