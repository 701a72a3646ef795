package gpu

import (
	"slices"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/internal/backoff"
	"github.com/gofsdp/gofsdp/nccl"
)

// Watch implements engine.Device. Launches are between two timers from then on. The host notes when it
// sees the last one of them over, and counts back from there.
func (d *Device) Watch(f func(transport.Flight)) {
	d.links.mu.Lock()
	defer d.links.mu.Unlock()
	d.links.tell = f
}

// policy is that of the watch, which looks more often for a watcher.
func (l *links) policy() *backoff.Policy {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tell != nil {
		return &waiting
	}
	return &watching
}

// report tells of the first n in flight, which have just been seen to be over. Those of one launch have
// moved together, behind those of the launch before: where that was seen late, they take its lateness on.
func (l *links) report(n int) error {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tell == nil {
		return nil
	}
	for i := range l.flights[:n] {
		launch := l.flights[i:n]
		launch = launch[slices.IndexFunc(launch, func(f flight) bool { return f.end != nil }):]
		took, err := launch[0].end.Elapsed(launch[0].begin)
		if err != nil {
			return err
		}
		since, err := l.flights[n-1].end.Elapsed(launch[0].end)
		if err != nil {
			return err
		}
		done := now.Add(-since)
		if done.Before(l.told) {
			done = l.told
		}
		l.tell(l.flights[i].told(l.told, done, took))
		if l.flights[i].end != nil {
			l.told = done
		}
	}
	return nil
}

// told describes a collective that took so long and was over when it was done, as the groups of package
// comm do. The one before was over then.
func (f *flight) told(then, done time.Time, took time.Duration) transport.Flight {
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
		if began.Before(t) { // the host sees the end a little late, and never early
			began = t
		}
	}
	k.told++
	return transport.Flight{
		Group: "NCCL " + k.role, Rank: k.comm.Rank(), Seq: k.told, Call: s.String(), Bytes: s.Len * s.DType.Size(),
		Issued: f.issued, Began: began, Done: done,
	}
}
