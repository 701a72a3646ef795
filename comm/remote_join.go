package comm

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/internal/backoff"
	"github.com/gofsdp/gofsdp/internal/mesh"
	"github.com/gofsdp/gofsdp/internal/store"
)

// newRemote makes the group of l over TCP. All its ranks call it. It receives failures from the
// beginning, so that no rank waits for one that will not come.
func newRemote(ctx context.Context, l *link) (Group, error) {
	cfg := &l.session.cfg
	r := newRank(l.name, l.id, l.rank, len(l.ranks), cfg.Timeout, cfg.Summed)
	r.link = l
	joining, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r.halt = func() { cancel(errStopped) }
	dialing, stop := context.WithCancel(context.WithoutCancel(ctx))
	r.wires.stop = stop
	r.wires.connect = func(peer int) ([]mesh.Lane, error) { return l.session.mesh.Connect(dialing, l.ranks[peer], l.id) }
	s := transport.NewSerial(l.name, l.rank, len(l.ranks), r)
	err := s.Open(ctx, func() error {
		l.attach(s)
		return r.join(joining, l)
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// newRank returns rank rank of size of the group of the given name and id, before
// it is connected to the others. Payloads are followed by checksums if they are summed.
func newRank(name string, id uint64, rank, size int, timeout time.Duration, summed bool) *remote {
	r := &remote{name: name, rank: rank, size: size, stripe: stripeBytes}
	r.ports = make([]*[portsPage]*port, (size+portsPage-1)/portsPage)
	r.timeout = timeout
	r.frame = &r.frames[0]
	r.frame.group, r.frame.summed = id, summed
	r.arrived = r.check
	return r
}

// join returns when all ranks are here.
func (r *remote) join(ctx context.Context, l *link) (err error) {
	if r.pump, err = newPump(l.session.mesh.Plain(ctx)); err != nil {
		r.pump = nil
		return fmt.Errorf("connections of group %q: %w", r.name, store.Advise(err))
	}
	r.waiting = l.waiting(r.pump)
	r.mu.Lock()
	cancel := r.halt
	r.halt = func() { cancel(); r.interrupt() }
	r.mu.Unlock()
	h, err := r.findHosts(ctx, l)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hosts = h; r.stopped.Load() {
		r.halt()
	}
	return nil
}

// waiting returns how a rank of l polls for the data that a pump moves before it sleeps.
func (l *link) waiting(p pump) backoff.Policy {
	if l.session.mesh.Modelled() {
		return backoff.Policy{} // time may stand still while a rank polls
	}
	w := backoff.Policy{Eager: backoff.Eager, Processes: true, Alone: alone}
	if l.crowded() {
		w.Alone = 0
	}
	if _, own := p.(*streams); own {
		w.Eager = eagerStreams
	}
	return w
}

// crowded reports whether ranks of the group share processors of this host.
func (l *link) crowded() bool {
	neighbours := 0
	for _, world := range l.ranks {
		if l.session.mesh.Host(world) == l.session.mesh.Host(l.ranks[l.rank]) {
			neighbours++
		}
	}
	return neighbours > runtime.NumCPU() && !l.session.mesh.Modelled() // whose hosts do not exist
}
