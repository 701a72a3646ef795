package commtest

import (
	"context"
	"fmt"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// Inject returns g, the handle of one rank, with the incidents that concern the
// rank. If note is not nil, it is called with each incident right before it happens;
// when the process ends, that is the last chance. The result must be used by one
// goroutine at a time.
func Inject(g comm.Group, note func(Incident), incidents ...Incident) comm.Group {
	in := &injector{g: g, note: note}
	for _, i := range incidents {
		if i.What != "" && i.Rank == g.Rank() {
			in.due = append(in.due, i)
		}
	}
	return Faulty(g, in.decide)
}

// injector decides on the faults of one rank.
type injector struct {
	g      comm.Group
	note   func(Incident)
	due    []Incident // those that have not happened
	silent bool       // the rank does not respond any more
}

// decide is the decide function for [Faulty].
func (in *injector) decide(c Call) Fault {
	fault := Fault{Drop: in.silent}
	for k := 0; k < len(in.due); {
		i := in.due[k]
		if !i.matches(c) {
			k++
			continue
		}
		in.due = append(in.due[:k], in.due[k+1:]...)
		in.add(&fault, i, c)
	}
	return fault
}

// add makes i part of the fault of c, or makes it happen now.
func (in *injector) add(f *Fault, i Incident, c Call) {
	blocks := c.Kind == Barrier || c.Kind == Split
	switch {
	case i.What == Cancel:
		f.Waiting = in.injectDuring(i)
	case len(i.What.Moments()) == 1, i.When == Before:
		in.injectBefore(f, i)
	case i.When == Waiting || blocks:
		f.Waiting = in.injectDuring(i)
	default:
		f.Issued = func() { in.happen(i, nil) }
	}
}

// injectBefore makes i happen before the call, or to it.
func (in *injector) injectBefore(f *Fault, i Incident) {
	switch i.What {
	case Delay:
		in.tell(i)
		time.Sleep(i.After)
	case Drop:
		in.tell(i)
		in.silent, f.Drop = true, true
	case WrongOrder:
		in.tell(i)
		f.Late = true
	case Corrupt:
		f.Instead = func(c transport.Call) transport.Call {
			in.tell(i)
			if b := c.Src.Bytes(); len(b) > 0 {
				b[len(b)/2] ^= 1
			}
			return c
		}
	case Kill, Stop, Cut, Garble, Abort, Close:
		in.happen(i, nil)
	default:
		f.Instead = func(c transport.Call) transport.Call {
			in.tell(i)
			return i.What.instead(c, in.g.Rank(), in.g.Size())
		}
	}
}

// injectDuring returns a function that brings the incident about while the rank waits.
func (in *injector) injectDuring(i Incident) func(context.Context, context.CancelFunc) {
	return func(ctx context.Context, cancel context.CancelFunc) {
		timer := time.NewTimer(i.After)
		defer timer.Stop()
		select {
		case <-timer.C:
			in.happen(i, cancel)
		case <-ctx.Done(): // the operation ended first
		}
	}
}

func (in *injector) tell(i Incident) {
	if in.note != nil {
		in.note(i)
	}
}

// happen makes i happen now. If this system cannot do it, the group is aborted.
func (in *injector) happen(i Incident, cancel context.CancelFunc) {
	if i.What == Cancel { // only now: a rank that gets the note may let the operation complete
		cancel()
	}
	in.tell(i)
	var err error
	switch i.What {
	case Cancel:
	case Abort:
		err = ErrInjected
	case Close:
		err = in.g.Close()
	case Kill:
		err = killSelf()
	case Stop:
		err = stopSelf()
	case Cut:
		err = eachConnection(cut)
	case Garble:
		err = eachConnection(garble)
	default:
		err = fmt.Errorf("commtest: %s cannot happen %s", i.What, i.When)
	}
	if err != nil {
		in.g.Abort(err)
	}
}
