package comm

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"runtime"
	"sync"
	"time"
)

// newRemote makes the group of l over TCP. All its ranks call it. It hears of
// failures from the beginning, so that no rank waits for one that will not come.
func newRemote(ctx context.Context, l *link) (Group, error) {
	cfg := &l.session.cfg
	r := newRank(l.name, l.id, l.rank, len(l.ranks), cmp.Or(cfg.Timeout, defaultTimeout), cfg.sumsWire())
	r.link = l
	r.waiting.Processes = l.neighbours() > runtime.NumCPU() // they share processors
	joining, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r.halt = func() { cancel(errStopped) }
	s := NewSerial(l.name, l.rank, len(l.ranks), r)
	err := s.open(ctx, func() error {
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
	r := &remote{name: name, rank: rank, size: size}
	r.ports = make([]*port, size)
	r.timeout = timeout
	r.waiting.Eager = eager
	r.frame.group, r.frame.summed = id, summed
	r.arrived = r.check
	for peer := range r.ports {
		if peer != rank {
			r.ports[peer] = &port{peer: peer, in: queue{summed: summed}, out: queue{summed: summed}}
		}
	}
	return r
}

// join connects the rank to all others, and returns when all are connected.
func (r *remote) join(ctx context.Context, l *link) error {
	conns, err := r.connect(ctx, l)
	if err != nil {
		return err
	}
	if err := r.plug(conns); err != nil {
		return err
	}
	if r.hosts, err = r.findHosts(ctx, l); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.halt = r.interrupt
	if r.stopped.Load() {
		r.halt()
	}
	return nil
}

// connect connects this rank to all others, by rank. It gives up when no connection
// has come for as long as the group allows.
func (r *remote) connect(ctx context.Context, l *link) ([]net.Conn, error) {
	ctx, progress, done := withLimit(ctx, r.timeout)
	defer done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conns := make([]net.Conn, r.size)
	var dials sync.WaitGroup
	for _, p := range r.ports {
		if p == nil {
			continue
		}
		p.waits.Store(true)
		dials.Go(func() {
			c, err := l.session.mesh.Connect(ctx, l.ranks[p.peer], l.id)
			if err != nil {
				cancel(r.broke(p.lost(err))) // of no effect if that is because ctx has ended
				return
			}
			conns[p.peer] = c
			p.waits.Store(false)
			progress.reset()
		})
	}
	dials.Wait()
	if ctx.Err() != nil {
		closeConns(conns)
		return nil, context.Cause(ctx)
	}
	return conns, nil
}

func closeConns(conns []net.Conn) {
	for _, c := range conns {
		if c != nil {
			_ = c.Close() // nothing was sent
		}
	}
}

// plug makes the rank use one connection to each other one, which it owns from now on.
func (r *remote) plug(conns []net.Conn) (err error) {
	var ports []*port
	var others []net.Conn
	for peer, c := range conns {
		if peer != r.rank {
			ports, others = append(ports, r.ports[peer]), append(others, c)
		}
	}
	if r.pump, err = newPump(others, ports); err != nil {
		r.pump = nil
		closeConns(others)
		return fmt.Errorf("connections of group %q: %w", r.name, err)
	}
	return nil
}

// neighbours returns how many ranks of the group are on this host.
func (l *link) neighbours() (n int) {
	for _, world := range l.ranks {
		if l.session.mesh.Host(world) == l.session.mesh.Host(l.ranks[l.rank]) {
			n++
		}
	}
	return n
}
