package commtest

import (
	"context"

	"github.com/gofsdp/gofsdp/comm"
)

// Call is an operation that a rank is about to issue.
type Call struct {
	Seq   uint64 // its number on this handle, from 1
	Kind  string // AllGather, ReduceScatter, …
	Label string // of the destination or only buffer
}

// Fault is what happens to a Call. The zero value lets it pass.
type Fault struct {
	// Err, if not nil, aborts the group with it before the call.
	Err error
	// Late holds the call back until the rank's next one has been issued, or
	// until it is waited for. Barrier and Split, which wait, are never held.
	Late bool
}

// Faulty returns g with faults: decide is asked before every operation. It may
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

func (f *faulty) AllGather(dst, src comm.Buffer) comm.Work {
	return f.issue(AllGather, dst, func() comm.Work { return f.Group.AllGather(dst, src) })
}

func (f *faulty) ReduceScatter(dst, src comm.Buffer, op comm.Op) comm.Work {
	return f.issue(ReduceScatter, dst, func() comm.Work { return f.Group.ReduceScatter(dst, src, op) })
}

func (f *faulty) AllReduce(buf comm.Buffer, op comm.Op) comm.Work {
	return f.issue(AllReduce, buf, func() comm.Work { return f.Group.AllReduce(buf, op) })
}

func (f *faulty) Broadcast(buf comm.Buffer, root int) comm.Work {
	return f.issue(Broadcast, buf, func() comm.Work { return f.Group.Broadcast(buf, root) })
}

func (f *faulty) Barrier(ctx context.Context) error {
	f.ask(Barrier, "")
	f.release()
	return f.Group.Barrier(ctx)
}

func (f *faulty) Split(ctx context.Context, color, key int) (comm.Group, error) {
	f.ask(Split, "")
	f.release()
	return f.Group.Split(ctx, color, key)
}

// ask has the next call decided and carries out the part that comes before it.
func (f *faulty) ask(kind, label string) (late bool) {
	f.seq++
	fault := f.decide(Call{f.seq, kind, label})
	if fault.Err != nil {
		f.Abort(fault.Err)
	}
	return fault.Late
}

func (f *faulty) issue(kind string, dst comm.Buffer, call func() comm.Work) comm.Work {
	if f.ask(kind, dst.Label()) {
		f.release()
		f.held = &late{issue: call}
		return f.held
	}
	w := call()
	f.release()
	return w
}

// release issues the call held back.
func (f *faulty) release() {
	if f.held != nil {
		f.held.now()
		f.held = nil
	}
}

// late is an operation that is issued when asked for.
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
