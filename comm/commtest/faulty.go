package commtest

import (
	"context"
	"sync"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// Call is an operation that a rank is about to issue.
type Call struct {
	Seq   uint64 // its number on this handle, from 1
	Kind  string // AllGather, ReduceScatter, …
	Label string
}

// Fault is the effect on a Call. The zero value lets it pass. An [Incident] is a
// fault as data.
type Fault struct {
	// Err, if not nil, aborts the group with it before the call.
	Err error
	// Late holds the call back until the rank's next one has been issued, or until
	// it is waited for. Barrier and Split, which wait, are never held.
	Late bool
	// Drop never issues the call, as if the rank did not respond. Waiting for it
	// ends with the context.
	Drop bool
	// Instead, if not nil, changes the arguments of the call, or makes it another
	// one. A Split that is changed must become another collective; it then returns
	// no group.
	Instead func(transport.Call) transport.Call
	// Issued, if not nil, is called when the call has been issued. Barrier and Split
	// wait at once and have no such moment: use Waiting.
	Issued func()
	// Waiting, if not nil, is called concurrently with the first Wait, which returns
	// after it has. Its context ends when the operation does; cancel ends the
	// context that the operation is waited for with.
	Waiting func(ctx context.Context, cancel context.CancelFunc)
}

// Faulty returns g with faults: it calls decide before every operation. decide may
// block, which delays the operation. Groups split from the result have no faults.
// The result must be used by one goroutine at a time.
func Faulty(g comm.Group, decide func(Call) Fault) comm.Group {
	return &faulty{Group: g, decide: decide}
}

type faulty struct {
	comm.Group
	decide func(Call) Fault
	seq    uint64
	held   *late // the call held back, if any
}

func (f *faulty) Watch(tell func(transport.Flight)) (stop func()) {
	return f.Group.(transport.Watcher).Watch(tell)
}

func (f *faulty) AllGather(dst, src comm.Buffer) comm.Work {
	return f.issue(transport.Call{Kind: transport.KindAllGather, Dst: dst, Src: src})
}

func (f *faulty) ReduceScatter(dst, src comm.Buffer, op comm.Op) comm.Work {
	return f.issue(transport.Call{Kind: transport.KindReduceScatter, Op: op, Dst: dst, Src: src})
}

func (f *faulty) AllReduce(buf comm.Buffer, op comm.Op) comm.Work {
	return f.issue(transport.Call{Kind: transport.KindAllReduce, Op: op, Dst: buf, Src: buf})
}

func (f *faulty) Broadcast(buf comm.Buffer, root int) comm.Work {
	return f.issue(transport.Call{Kind: transport.KindBroadcast, Root: root, Dst: buf, Src: buf})
}

func (f *faulty) Gather(dst, src comm.Buffer, counts []int, root int) comm.Work {
	return f.issue(transport.Call{Kind: transport.KindGather, Root: root, Dst: dst, Src: src, Counts: counts})
}

func (f *faulty) AllToAll(dst, src comm.Buffer) comm.Work {
	return f.issue(transport.Call{Kind: transport.KindAllToAll, Dst: dst, Src: src})
}

func (f *faulty) Barrier(ctx context.Context) error {
	return f.block(ctx, transport.KindBarrier, func(ctx context.Context) error { return f.Group.Barrier(ctx) })
}

func (f *faulty) Split(ctx context.Context, color, key int) (child comm.Group, err error) {
	err = f.block(ctx, transport.KindSplit, func(ctx context.Context) (err error) {
		child, err = f.Group.Split(ctx, color, key)
		return err
	})
	return child, err
}

// ask gets the decision on the next call and carries out the part that comes before
// it.
func (f *faulty) ask(c transport.Call) Fault {
	f.seq++
	fault := f.decide(Call{f.seq, c.Kind.String(), c.Label()})
	if fault.Err != nil {
		f.Abort(fault.Err)
	}
	return fault
}

// issue issues c, now or later, changed or not.
func (f *faulty) issue(c transport.Call) comm.Work {
	fault := f.ask(c)
	call := func() comm.Work {
		if fault.Drop {
			return dropped{}
		}
		w := call(f.Group, fault.changed(c))
		if fault.Issued != nil {
			fault.Issued()
		}
		if fault.Waiting != nil {
			w = &watched{work: w, beside: fault.Waiting}
		}
		return w
	}
	if fault.Late {
		f.release()
		f.held = &late{issue: call}
		return f.held
	}
	w := call()
	f.release()
	return w
}

// block carries out a collective that waits at once.
func (f *faulty) block(ctx context.Context, kind transport.Kind, collective func(context.Context) error) error {
	fault := f.ask(transport.Call{Kind: kind})
	f.release()
	if fault.Drop {
		return dropped{}.Wait(ctx)
	}
	w := waiter(collective)
	if c := fault.changed(transport.Call{Kind: kind}); c.Kind != kind {
		w = func(ctx context.Context) error { return call(f.Group, c).Wait(ctx) }
	}
	if fault.Waiting != nil {
		return (&watched{work: w, beside: fault.Waiting}).Wait(ctx)
	}
	return w(ctx)
}

// release issues the call held back.
func (f *faulty) release() {
	if f.held != nil {
		f.held.now()
		f.held = nil
	}
}

// changed returns the call to issue in place of c.
func (f Fault) changed(c transport.Call) transport.Call {
	if f.Instead == nil {
		return c
	}
	return f.Instead(c)
}

// call makes the call c on g.
func call(g comm.Group, c transport.Call) comm.Work {
	switch c.Kind {
	case transport.KindAllGather:
		return g.AllGather(c.Dst, c.Src)
	case transport.KindReduceScatter:
		return g.ReduceScatter(c.Dst, c.Src, c.Op)
	case transport.KindAllReduce:
		return g.AllReduce(c.Dst, c.Op)
	case transport.KindBroadcast:
		return g.Broadcast(c.Dst, c.Root)
	case transport.KindGather:
		return g.Gather(c.Dst, c.Src, c.Counts, c.Root)
	case transport.KindAllToAll:
		return g.AllToAll(c.Dst, c.Src)
	default:
		return waiter(g.Barrier)
	}
}

// waiter is a collective that begins when it is waited for.
type waiter func(context.Context) error

func (w waiter) Wait(ctx context.Context) error { return w(ctx) }

// dropped is an operation that was never issued.
type dropped struct{}

func (dropped) Wait(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// watched is an operation with a function that runs while it is waited for.
type watched struct {
	work   comm.Work
	once   sync.Once
	beside func(context.Context, context.CancelFunc)
}

func (w *watched) Wait(ctx context.Context) (err error) {
	first := false
	w.once.Do(func() { first = true })
	if !first {
		return w.work.Wait(ctx)
	}
	given, cancel := context.WithCancel(ctx)
	defer cancel()
	over, end := context.WithCancel(context.Background())
	var company sync.WaitGroup
	company.Go(func() { w.beside(over, cancel) })
	err = w.work.Wait(given)
	end()
	company.Wait()
	return err
}

// late is an operation that is issued on request.
type late struct {
	issue func() comm.Work
	work  comm.Work
}

func (l *late) now() comm.Work {
	if l.work == nil {
		l.work = l.issue()
	}
	return l.work
}

func (l *late) Wait(ctx context.Context) error { return l.now().Wait(ctx) }
