package comm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// remote is the Backend of a group whose ranks talk through sockets, one
// connection for every pair.
//
// It keeps three rules, which make every disagreement an error and keep a rank
// that has completed a collective from having to come back to it:
//
//   - In every collective a rank sends a frame to its right neighbour before it
//     waits for anything, and receives one from its left neighbour. If not all
//     calls are equal, two neighbours differ, and one of them sees it.
//   - A rank completes a collective only when it knows of every other one, at
//     first or second hand, that it has made the same call.
//   - All that a rank has to send in a collective it has sent when it completes
//     it; what it receives is exactly what it expects.
type remote struct {
	exchange
	name       string
	rank, size int
	control    control
	broken     error // of the first collective that failed; the streams are in no known state
	reducer    reducer
	stage      []byte       // for blocks that are received to be summed
	hosts      *hosts       // nil if the group treats all ranks alike
	gone       atomic.Int32 // 1 when Leave has begun
}

// control is what a remote needs of its link.
type control interface {
	fail(err error)
	leave(last uint64) error
	open(ctx context.Context, seq uint64, color int, ranks []int) (Group, error)
}

// newRemote makes the group of l over TCP. All its ranks call it.
func newRemote(ctx context.Context, l *link) (_ Group, err error) {
	conns, err := l.connect(ctx)
	if err != nil {
		return nil, err
	}
	r, err := joinRemote(l.name, l.id, l.rank, conns, l.session.cfg.Timeout)
	if err != nil {
		return nil, err
	}
	r.control = linkControl{l}
	r.crowded = l.neighbours() > runtime.NumCPU()
	if r.hosts, err = r.findHosts(ctx, l); err != nil {
		r.pump.close(time.Time{})
		return nil, err
	}
	s := NewSerial(l.name, l.rank, len(l.ranks), linkedRemote{r, l})
	l.attach(s)
	return s, nil
}

// connect connects this rank to all others, by rank.
func (l *link) connect(ctx context.Context) (conns []net.Conn, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conns = make([]net.Conn, len(l.ranks))
	errs := make([]error, len(l.ranks))
	var dials sync.WaitGroup
	for r, world := range l.ranks {
		if r == l.rank {
			continue
		}
		dials.Go(func() {
			if conns[r], errs[r] = l.session.mesh.Connect(ctx, world, l.id); errs[r] != nil {
				errs[r] = fmt.Errorf("connecting to rank %d of group %q: %w", r, l.name, errs[r])
				cancel()
			}
		})
	}
	dials.Wait()
	if err := errors.Join(errs...); err != nil {
		closeConns(conns)
		return nil, err
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

// neighbours returns how many ranks of the group are on this host.
func (l *link) neighbours() (n int) {
	for _, world := range l.ranks {
		if l.session.mesh.Host(world) == l.session.mesh.Host(l.ranks[l.rank]) {
			n++
		}
	}
	return n
}

// linkControl is the control of a group in a session.
type linkControl struct{ *link }

func (c linkControl) open(ctx context.Context, seq uint64, color int, ranks []int) (Group, error) {
	return c.session.newGroup(ctx, c.split(seq, color, ranks))
}

// linkedRemote is a remote whose ranks can be asked for their flight records.
type linkedRemote struct {
	*remote
	l *link
}

func (r linkedRemote) report(ctx context.Context) ([]Status, error) { return r.l.report(ctx) }

// joinRemote makes rank rank of the group of the given name and id over one
// connection to each other rank, which it owns from now on.
func joinRemote(name string, id uint64, rank int, conns []net.Conn, timeout time.Duration) (*remote, error) {
	r := &remote{name: name, rank: rank, size: len(conns)}
	r.ports = make([]*port, len(conns))
	r.timeout = timeout
	r.frame.group = id
	r.check = r.checkFrame
	var ports []*port
	var others []net.Conn
	for peer, c := range conns {
		if peer == rank {
			continue
		}
		r.ports[peer] = &port{peer: peer}
		ports = append(ports, r.ports[peer])
		others = append(others, c)
	}
	var err error
	if r.pump, err = newPump(others, ports); err != nil {
		closeConns(others)
		return nil, fmt.Errorf("connections of group %q: %w", name, err)
	}
	return r, nil
}

// checkFrame checks the header that has come to p.
func (r *remote) checkFrame(p *port) error {
	next := &p.in.pieces[p.in.next]
	want, got := r.frame, frame{}
	want.round, want.length = next.round, next.length
	if err := got.parse(&p.in.head); err != nil {
		return &RankError{Group: r.name, Rank: p.peer, Err: fmt.Errorf("broken stream to rank %d: %w", r.rank, err)}
	}
	return want.compare(&got, r.name, r.rank, p.peer)
}

// Run implements [Backend].
func (r *remote) Run(ctx context.Context, seq uint64, c *Call) error {
	if r.broken != nil {
		return r.broken
	}
	r.frame.seq = seq
	c.Signature().Put(r.frame.call[:])
	err := r.collective(ctx, c)
	if err == nil {
		return nil
	}
	r.pump.quit()
	var lost *lostError
	if errors.As(err, &lost) {
		err = &RankError{Group: r.name, Rank: lost.peer, Err: lost}
	}
	r.broken = err
	return err
}

// Missing implements [Backend].
func (r *remote) Missing() (ranks []int) {
	for peer, p := range r.ports {
		if p != nil && p.waits.Load() {
			ranks = append(ranks, peer)
		}
	}
	return ranks
}

// Split implements [Backend].
func (r *remote) Split(ctx context.Context, seq uint64, color int, ranks []int) (Group, error) {
	return r.control.open(ctx, seq, color, ranks)
}

// Tell implements [Backend].
func (r *remote) Tell(err error) { r.control.fail(err) }

// Stop implements [Backend].
func (r *remote) Stop() {
	if r.gone.Load() == 0 && r.stopped.CompareAndSwap(false, true) {
		r.pump.stop()
		if r.hosts != nil {
			r.hosts.stop()
		}
	}
}

// Leave implements [Backend].
func (r *remote) Leave(last uint64) error {
	r.gone.Store(1)
	deadline := time.Now().Add(grace)
	err := r.control.leave(last)
	r.pump.close(deadline)
	return err
}
