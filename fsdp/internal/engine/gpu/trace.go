package gpu

import (
	"slices"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/internal/backoff"
	"github.com/gofsdp/gofsdp/nccl"
)

// Watch implements engine.Device. From then on each launch is between two timers. The host notes
// the time when it sees the last launch ended, and computes the earlier times from the timers.
func (d *Device) Watch(f func(transport.Flight)) {
	d.links.mu.Lock()
	defer d.links.mu.Unlock()
	d.links.tell = f
}

// policy returns how often the watch checks. It checks more often if a watcher is set.
func (l *links) policy() *backoff.Policy {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tell != nil {
		return &waiting
	}
	return &watching
}

// report reports the first n flights of each queue, which have just ended.
func (l *links) report(n [lanes]int) error {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tell == nil {
		return nil
	}
	for on := range l.queues {
		if err := l.queues[on].report(n[on], now, l.tell); err != nil {
			return err
		}
	}
	return nil
}

// report reports the first n flights, which had ended now. The collectives of one launch run
// together, after the launch before. If the host has noticed the end of that launch late, they
// begin at that late time.
func (q *queue) report(n int, now time.Time, tell func(transport.Flight)) error {
	for i := range q.flights[:n] {
		launch := q.flights[i:n]
		launch = launch[slices.IndexFunc(launch, func(f flight) bool { return f.end != nil }):]
		took, err := launch[0].end.Elapsed(launch[0].begin)
		if err != nil {
			return err
		}
		since, err := q.flights[n-1].end.Elapsed(launch[0].end)
		if err != nil {
			return err
		}
		done := now.Add(-since)
		if done.Before(q.told) {
			done = q.told
		}
		tell(q.flights[i].report(q.told, done, took))
		if q.flights[i].end != nil {
			q.told = done
		}
	}
	return nil
}

// report describes a collective in the form that the groups of package comm use. It ended at done
// and took the time took. The collective before it ended at then.
func (f *flight) report(then, done time.Time, took time.Duration) transport.Flight {
	k, c := f.link, f.call
	s := transport.Signature{Kind: transport.KindAllReduce, DType: comm.DType(slices.Index(types[:], c.Type)), Len: c.Count, Label: f.name}
	switch c.Kind {
	case nccl.AllGather:
		s.Kind, s.Len = transport.KindAllGather, c.Count*k.comm.Size()
	case nccl.ReduceScatter:
		s.Kind, s.Len = transport.KindReduceScatter, c.Count*k.comm.Size()
	}
	if c.Reduce == nccl.Avg {
		s.Op = comm.Avg
	}
	began := done.Add(-took)
	for _, t := range []time.Time{f.issued, then} {
		if began.Before(t) { // the host notices the end a little late, never early
			began = t
		}
	}
	k.told++
	return transport.Flight{
		Group: "NCCL " + k.role, Rank: k.comm.Rank(), Seq: k.told, Call: s.String(), Bytes: s.Len * s.DType.Size(),
		Issued: f.issued, Began: began, Done: done,
	}
}
