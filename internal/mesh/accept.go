package mesh

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/internal/auth"
	"github.com/gofsdp/gofsdp/internal/store"
)

const (
	// checkTime is how long the check of a connection may take. A rank that dials waits longer,
	// because it may have to wait for a place.
	checkTime = 5 * time.Second
	dialTime  = 3 * checkTime
)

// The purpose of a connection, in its hello.
const (
	purposeControl = "mesh control"
	purposeData    = "mesh data"
	purposeFile    = "mesh file"
)

// errImpostor is wrapped by the error of dialing a rank if another one responds.
var errImpostor = errors.New("another rank answers at its address")

// accept takes connections until Close, and checks them concurrently.
func (m *Mesh) accept(l net.Listener) {
	var shortage store.Shortage
	failing := false
	for {
		conn, err := l.Accept()
		lasting := shortage.Note(err)
		if err != nil {
			if !failing {
				m.warn("mesh: cannot accept connections", "error", err)
			}
			failing = true
			if lasting != nil {
				m.cannotAccept(lasting)
			}
			if !m.wait(100 * time.Millisecond) { // too many open files, probably: that takes a while
				return
			}
			continue
		}
		failing = false
		if err := checkUser(conn, os.Geteuid()); err != nil {
			m.warn("mesh: connection refused", "error", err)
			_ = conn.Close()
			continue
		}
		if !m.places.Take(conn, m.closing) || !m.start(func() { m.check(conn) }) {
			_ = conn.Close()
		}
	}
}

// cannotAccept fails the calls that wait for a connection.
func (m *Mesh) cannotAccept(err error) {
	err = fmt.Errorf("rank %d cannot accept connections: %w", m.cfg.Rank, err)
	m.fail(err)
	m.conns.fail(err)
	m.files.fail(err)
}

// warn logs an event, unless Close caused it.
func (m *Mesh) warn(what string, attributes ...any) {
	select {
	case <-m.closing:
	default:
		m.cfg.Log.With("rank", m.cfg.Rank, "job", m.cfg.Job).Warn(what, attributes...)
	}
}

// wait waits. It reports false, and stops waiting, when Close has begun.
func (m *Mesh) wait(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-m.closing:
		return false
	}
}

// check finds out which process is at the other end of a connection, and either uses the connection
// or closes it.
func (m *Mesh) check(conn net.Conn) {
	if !m.noteChecking(conn) {
		_ = conn.Close()
		return
	}
	secure := conn
	if _, local := conn.(*net.UnixConn); !local && m.server != nil {
		secure = tls.Server(conn, m.server)
	}
	var guest visit
	var place *label // kept for a data connection
	theirs, err := auth.Server(secure, m.cfg.Secret, func(theirs auth.Hello) (mine auth.Hello, err error) {
		if guest, err = m.admit(theirs); err == nil && theirs.Purpose == purposeData {
			place = &label{theirs.Rank, guest.Channel, guest.Lane}
			if err = m.conns.reserve(*place); err != nil {
				place = nil
				err = fmt.Errorf("rank %d, channel %#x: %w", m.cfg.Rank, guest.Channel, err)
			}
		}
		return m.hello(auth.Hello{Purpose: theirs.Purpose}, visit{process: m.self.process}), err
	}, time.Now().Add(checkTime))
	m.mu.Lock()
	delete(m.checking, conn)
	m.mu.Unlock()
	err = m.places.Leave(conn, err)
	if err == nil {
		tune(conn, theirs.Purpose, guest.Lanes)
		err = m.receive(theirs, guest, secure)
	}
	if err != nil {
		_ = conn.Close()
		if place != nil {
			m.conns.release(*place)
		}
		m.warn("mesh: connection refused", "from", conn.RemoteAddr().String(), "error", err)
	}
}

// noteChecking lets Close end the check. It reports false when Close has begun.
func (m *Mesh) noteChecking(conn net.Conn) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.checking[conn] = struct{}{}
	}
	return !m.closed
}

// admit decides about a process that has proven that it has the secret.
func (m *Mesh) admit(theirs auth.Hello) (visit, error) {
	guest, err := decode[visit](theirs.Extra)
	switch c := m.cfg; {
	case err != nil:
		return guest, err
	case theirs.Job != c.Job:
		return guest, fmt.Errorf("this is rank %d of job %q, not of job %q", c.Rank, c.Job, theirs.Job)
	case theirs.Size != c.Size:
		return guest, fmt.Errorf("rank %d was started with a world size of %d, rank %d with %d", theirs.Rank, theirs.Size, c.Rank, c.Size)
	case theirs.Rank < 0 || theirs.Rank >= c.Size || theirs.Rank <= c.Rank && (theirs.Purpose != purposeFile || theirs.Rank == c.Rank):
		return guest, fmt.Errorf("protocol error: rank %d may not dial rank %d", theirs.Rank, c.Rank)
	}
	m.mu.Lock()
	p := m.peers[theirs.Rank]
	m.mu.Unlock()
	switch theirs.Purpose {
	case purposeControl:
		if p != nil {
			return guest, fmt.Errorf("rank %d has already joined from %s", theirs.Rank, p.who.withStart())
		}
		if m.indirect(theirs.Rank) {
			return guest, fmt.Errorf("rank %d has no control connection to rank %d", m.cfg.Rank, theirs.Rank)
		}
	case purposeData, purposeFile:
		if m.sparse && !m.open() { // the dialing rank has joined, so this rank is about to
			return guest, ErrClosed
		}
		if !m.knows(theirs.Rank, guest.Nonce) {
			return guest, fmt.Errorf("%v is not rank %d of this mesh", guest.process, theirs.Rank)
		}
	default:
		return guest, fmt.Errorf("unknown purpose %q", theirs.Purpose)
	}
	return guest, nil
}

// knows reports whether the rank has joined as the given process.
func (m *Mesh) knows(rank int, nonce string) bool {
	if m.sparse {
		return m.roll.field(rank, fieldNonce) == nonce
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.peers[rank]
	return p != nil && p.who.Nonce == nonce
}

// receive makes use of an admitted connection.
func (m *Mesh) receive(theirs auth.Hello, guest visit, conn net.Conn) error {
	switch theirs.Purpose {
	case purposeData:
		return m.conns.put(label{theirs.Rank, guest.Channel, guest.Lane}, Lane{conn, guest.Over, guest.Lanes})
	case purposeFile:
		return m.takeFile(theirs.Rank, conn)
	}
	return m.attach(theirs.Rank, record{process: guest.process, Rank: theirs.Rank, Size: theirs.Size}, conn)
}

// hello completes a hello with the data of this process for all connections.
func (m *Mesh) hello(h auth.Hello, v visit) auth.Hello {
	h.Job, h.Rank, h.Size, h.Extra = m.cfg.Job, m.cfg.Rank, m.cfg.Size, encode(v)
	return h
}

// dial connects to a rank, again and again until it works, cannot work, or ctx ends. Then the error
// is the latest failure, if there has been one. ctx may end before the caller's, with the rank.
// dial gives up an interface that does not respond, because the other rank is known to live by
// another interface.
func (m *Mesh) dial(caller, ctx context.Context, to dialTarget, rank int, h auth.Hello, v visit) (net.Conn, error) {
	spread := rand.N[time.Duration] // so that not all come back at once
	if m.network != nil {
		tries := uint64(0)
		spread = func(d time.Duration) time.Duration {
			tries++
			return time.Duration(m.network.Chance(uint64(rank), tries) % uint64(d))
		}
	}
	var latest error
	over := ""
	if v.Over != "" {
		over = " over " + v.Over
	}
	begin, unheard := time.Now(), 0
	var shortage store.Shortage
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		conn, err := m.dialOnce(caller, ctx, to, rank, h, v)
		switch {
		case err == nil:
			return conn, nil
		case ctx.Err() != nil && latest == nil:
			return nil, fmt.Errorf("dialing rank %d at %s did not finish: %w", rank, to.address, context.Cause(ctx))
		case ctx.Err() != nil:
			return nil, latest
		}
		lasting := shortage.NoteFiles(err)
		if lasting != nil {
			err = lasting
		}
		latest = fmt.Errorf("dialing rank %d%s: %w", rank, over, err)
		var silent unreached
		if errors.As(err, &silent) {
			unheard++ // once while this process is stopped
		}
		dead := unheard >= int(Unanswered/checkTime) && time.Since(begin) >= Unanswered
		if lasting != nil || auth.Final(err) || errors.Is(err, errImpostor) || over != "" && dead {
			return nil, latest
		}
		timer := time.NewTimer(pause/2 + spread(pause/2))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// unreached is the error of a dial without a response.
type unreached struct{ error }

func (u unreached) Unwrap() error { return u.error }

// dialOnce connects to a rank and makes sure that it is the right one.
func (m *Mesh) dialOnce(caller, ctx context.Context, to dialTarget, rank int, h auth.Hello, v visit) (_ net.Conn, err error) {
	conn, err := m.connect(ctx, to)
	if err != nil {
		return nil, unreached{err}
	}
	if middle, ok := ctx.Value(middleKey{}).(Middle); ok && to.network == "tcp" {
		conn = middle(m.cfg.Rank, rank, conn)
	}
	defer func() {
		if err != nil {
			_ = conn.Close() // the first error counts
		}
	}()
	// A rank that has left may have accepted, and sent everything before. If not, it closes the
	// connection, unless it is cut off since: then the caller does not wait.
	gone := func() bool { return errors.Is(context.Cause(ctx), ErrGone) }
	left := func() bool { return gone() && caller.Err() == nil }
	interrupt := context.AfterFunc(ctx, func() {
		if !left() {
			_ = conn.Close()
		}
	})
	defer context.AfterFunc(caller, func() {
		if gone() { // else ctx ends as well, and closes it: earlier, its end would pass for the reason
			_ = conn.Close()
		}
	})()
	secure := conn
	if to.network == "tcp" && m.client != nil {
		secure = tls.Client(conn, m.client)
	}
	theirs, err := m.greet(conn, secure, m.hello(h, v))
	switch {
	case !interrupt() && !left():
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, err
	case theirs.Rank != rank:
		return nil, fmt.Errorf("%w: rank %d", errImpostor, theirs.Rank)
	}
	tune(conn, h.Purpose, v.Lanes)
	return secure, nil
}

// greet proves this rank to the other end of conn, with or without TLS, within dialTime. Only
// seconds in which this process ran count, so a process that was stopped meanwhile still reads the
// answer. It could not dial again: the other side, for which it has joined, would refuse it.
func (m *Mesh) greet(conn, secure net.Conn, hello auth.Hello) (theirs auth.Hello, err error) {
	var clock sync.WaitGroup
	answered := make(chan struct{})
	clock.Go(func() {
		second := time.NewTicker(time.Second) // drops ticks that were not waited for
		defer second.Stop()
		for range dialTime / time.Second {
			select {
			case <-second.C:
			case <-answered:
				return
			}
		}
		_ = conn.SetDeadline(time.Unix(1, 0)) // long ago: readers and writers return
	})
	theirs, err = auth.Client(secure, m.cfg.Secret, hello, time.Now().Add(24*time.Hour))
	close(answered)
	clock.Wait()
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	return theirs, err
}

// connect opens a connection.
func (m *Mesh) connect(ctx context.Context, to dialTarget) (net.Conn, error) {
	if m.network != nil {
		ctx, cancel := context.WithTimeout(ctx, checkTime)
		defer cancel()
		return m.network.Dial(ctx, to.address)
	}
	dialer := net.Dialer{Timeout: checkTime}
	if to.network == "tcp" {
		dialer.Control = enlarge
	}
	if to.local != "" {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(to.local), 0))
	}
	return dialer.DialContext(ctx, to.network, to.address)
}
