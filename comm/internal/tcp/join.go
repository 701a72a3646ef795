package tcp

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/gofsdp/gofsdp/comm/internal/session"
	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/internal/backoff"
	"github.com/gofsdp/gofsdp/internal/mesh"
	"github.com/gofsdp/gofsdp/internal/store"
)

// New makes the group of l over TCP. All its ranks call it. It receives failures from the
// beginning, so that no rank waits for one that will not come.
func New(ctx context.Context, l *session.Link) (transport.Group, error) {
	cfg := &l.Session.Config
	r := newRank(l.Name, l.ID, l.Rank, len(l.Ranks), cfg.Timeout, cfg.Summed)
	r.link = l
	joining, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r.halt = func() { cancel(errStopped) }
	dialing, stop := context.WithCancel(context.WithoutCancel(ctx))
	r.wires.stop = stop
	r.wires.connect = func(peer int) ([]mesh.Lane, error) { return l.Session.Mesh.Connect(dialing, l.Ranks[peer], l.ID) }
	s := transport.NewSerial(l.Name, l.Rank, len(l.Ranks), r)
	err := s.Open(ctx, func() error {
		l.Attach(s)
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
func (r *remote) join(ctx context.Context, l *session.Link) (err error) {
	if r.pump, err = newPump(l.Session.Mesh.Plain(ctx)); err != nil {
		r.pump = nil
		return fmt.Errorf("connections of group %q: %w", r.name, store.Advise(err))
	}
	r.waiting = waiting(l, r.pump)
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
func waiting(l *session.Link, p pump) backoff.Policy {
	if l.Session.Mesh.Modelled() {
		return backoff.Policy{} // time may stand still while a rank polls
	}
	w := backoff.Policy{Eager: backoff.Eager, Processes: true, Alone: alone}
	if crowded(l) {
		w.Alone = 0
	}
	if _, own := p.(*streams); own {
		w.Eager = eagerStreams
	}
	return w
}

// crowded reports whether ranks of the group share processors of this host.
func crowded(l *session.Link) bool {
	neighbours := 0
	for _, world := range l.Ranks {
		if l.Session.Mesh.Host(world) == l.Session.Mesh.Host(l.Ranks[l.Rank]) {
			neighbours++
		}
	}
	return neighbours > runtime.NumCPU() && !l.Session.Mesh.Modelled() // whose hosts do not exist
}
