package quorum

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/gofsdp/gofsdp/internal/auth"
	"github.com/gofsdp/gofsdp/internal/mesh"
	"github.com/gofsdp/gofsdp/internal/store"
)

const (
	purpose  = "membership" // in the hello of both sides
	beat     = 5 * time.Second
	silence  = mesh.Unanswered // after which a process is lost
	dialTime = 5 * time.Second
	askTime  = 2 * dialTime // of a request that needs no waiting
)

// Config configures a process.
type Config struct {
	Rank    int // in its configuration
	Job     string
	Secret  []byte
	TLS     bool
	Listen  string        // as in mesh.Config
	Limit   time.Duration // of a decision
	Replace time.Duration // how long a decision waits for processes that take the places of lost ones
	Log     *slog.Logger
	Apart   bool // processes may join without a claim: no death is certain, see "Majority"
}

// Node is a process's part in the decisions. Its methods may be called from any goroutine.
type Node struct {
	cfg    Config
	ctx    context.Context // ends with Close, and has the network
	self   Member
	server *store.Server
	client *tls.Config // nil without TLS

	close context.CancelFunc // ends ctx

	mu       sync.Mutex
	current  Membership    // the latest; number -1 before Begin
	acceptor acceptor      // of the next one
	wanted   int           // Next has been called for this number
	joining  []Member      // processes that wait to join, and ask here
	meeting  string        // address of the store of the current membership
	changed  chan struct{} // closed at a change of the fields above
	proposal *proposal     // of this process, or nil
	lives    map[string]*life
	closed   bool // it accepts nothing any more
}

// life is a context that ends when a process has departed.
type life struct {
	context.Context
	end context.CancelCauseFunc
}

// errDeparted is why a life ends.
var errDeparted = errors.New("it has left the job")

// life returns the life of a process.
func (n *Node) life(id string) *life {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.lives[id]
	if l == nil {
		l = new(life)
		l.Context, l.end = context.WithCancelCause(context.Background())
		n.lives[id] = l
	}
	return l
}

// Depart records that a process takes part in no decision any more, nor in a later group: it is as
// certain as death on this host.
func (n *Node) Depart(id string) { n.life(id).end(errDeparted) }

// Open lets a process answer, on the network of ctx.
func Open(ctx context.Context, cfg Config) (*Node, error) {
	n := &Node{cfg: cfg, current: Membership{Number: -1}, changed: make(chan struct{}), lives: map[string]*life{}}
	n.ctx, n.close = context.WithCancel(context.WithoutCancel(ctx))
	server := store.Config{Secret: cfg.Secret, Log: func(err error) {
		if !errors.Is(err, io.EOF) { // else a process no longer needs an answer: there is a decision
			cfg.Log.Warn("comm: membership", "error", err)
		}
	}}
	if cfg.TLS {
		var err error
		if server.TLS, n.client, err = auth.TLS(); err != nil {
			return nil, err
		}
	}
	ip, err := mesh.Address(ctx, cfg.Listen)
	if err != nil {
		return nil, err
	}
	n.self = Member{ID: rand.Text()[:16], Rank: cfg.Rank}
	if n.server, err = store.Accept(ctx, net.JoinHostPort(ip, "0"), server, n.admit, n.serve); err != nil {
		return nil, err
	}
	n.self.Address = n.server.Addr().String()
	return n, nil
}

// Self describes this process.
func (n *Node) Self() Member { return n.self }

// Begin sets the first membership that has this process.
func (n *Node) Begin(m Membership) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.learn(&m, Ballot{})
	n.wanted = max(n.wanted, m.Number)
}

// Latest returns the number of the latest membership, or -1.
func (n *Node) Latest() int {
	now, _ := n.state()
	return now.Number
}

// Joining returns how many processes wait to join, and ask this one.
func (n *Node) Joining() (count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range n.joining {
		if n.current.Index(m.ID) < 0 {
			count++
		}
	}
	return count
}

// Close ends the process's part. To the others it is dead.
func (n *Node) Close() error {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	n.close()
	return n.server.Close()
}

// learn makes m the current membership if it is a later one. It ignores a membership of a lower
// ballot than promised: its sender may be dead, see "Majority". promised is the ballot that this
// process had promised when it asked for m. The sender has lived since then, and this is no reason
// to ignore m. The caller holds n.mu.
func (n *Node) learn(m *Membership, promised Ballot) {
	late := m != nil && m.Number == n.current.Number+1 && m.Ballot.less(n.acceptor.promised) && promised != n.acceptor.promised
	if m != nil && m.Number > n.current.Number && !late {
		n.current, n.acceptor, n.meeting = *m, acceptor{}, ""
		n.change()
	}
}

// change wakes all that wait for a change. The caller holds n.mu.
func (n *Node) change() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// state returns the current membership, and a channel that is closed when the state changes.
func (n *Node) state() (Membership, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.current, n.changed
}

// admit accepts processes of the job that want this one.
func (n *Node) admit(theirs auth.Hello) (auth.Hello, error) {
	switch {
	case theirs.Purpose != purpose || theirs.Job != n.cfg.Job:
		return auth.Hello{}, fmt.Errorf("this is job %q, which decides on its next group, not job %q with the purpose %q", n.cfg.Job, theirs.Job, theirs.Purpose)
	case string(theirs.Extra) != n.self.ID:
		return auth.Hello{}, errors.New("the process that had this address has ended")
	}
	return auth.Hello{Job: n.cfg.Job, Purpose: purpose, Rank: n.cfg.Rank}, nil
}

// serve answers a request.
func (n *Node) serve(conn, raw net.Conn, _ auth.Hello) error {
	var q request
	if err := conn.SetReadDeadline(time.Now().Add(silence)); err != nil {
		return nil // the connection has ended
	}
	err := receive(conn, &q)
	if err == nil && n.lacks(&q) {
		var text []byte
		if text, err = encode(&reply{Unknown: true}); err == nil {
			err = errors.Join(send(conn, text), receive(conn, &q))
		}
	}
	if err != nil {
		return fmt.Errorf("request: %w", err)
	}
	if q.What == askEnter {
		n.enter(*q.Member, true)
		defer n.enter(*q.Member, false)
	}
	// Nothing more comes, but the end of the process that asks.
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_ = conn.SetReadDeadline(time.Time{})
		_, _ = io.Copy(io.Discard, conn)
	}()
	defer func() { _ = raw.Close(); <-gone }()
	ticker := time.NewTicker(beat)
	defer ticker.Stop()
	for last, due := []byte(nil), true; ; {
		r, changed := n.answer(&q)
		text, err := encode(&r)
		if err == nil && (due || !bytes.Equal(text, last)) {
			last, due = text, false
			err = send(conn, text)
		}
		if err != nil || r.Done {
			return nil // a process that still wants an answer asks again
		}
		select {
		case <-changed:
		case <-ticker.C:
			due = true
		case <-gone:
			return nil
		case <-n.ctx.Done():
			return nil
		}
	}
}

func send(conn net.Conn, message []byte) error {
	err := conn.SetWriteDeadline(time.Now().Add(silence))
	if err == nil {
		_, err = conn.Write(message)
	}
	return err
}

// enter adds or removes a process that waits to join.
func (n *Node) enter(m Member, waits bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var list []Member
	for _, o := range n.joining {
		if o.ID != m.ID {
			list = append(list, o)
		}
	}
	if waits {
		list = append(list, m)
	}
	n.joining = list
	n.change()
}

// answer returns the reply that the state allows, and a channel that is closed when the state
// changes.
func (n *Node) answer(q *request) (reply, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return reply{}, n.changed
	}
	n.learn(q.Latest, Ballot{})
	return n.reply(q), n.changed
}

// lacks reports whether a process that asks has a later membership, and has not sent it.
func (n *Node) lacks(q *request) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return q.Latest == nil && q.Base > n.current.Number
}

// reply is answer for a caller that holds n.mu.
func (n *Node) reply(q *request) (r reply) {
	now := n.current
	switch forming := q.What == askMeet || q.What == askGuard; {
	case q.What == askEnter:
		if now.Index(q.Member.ID) >= 0 {
			return reply{Done: true, Decided: &now}
		}
		return reply{}
	case now.Number > q.Number || now.Number == q.Number && !forming:
		return reply{Done: true, Decided: &now}
	case now.Number != q.Number && (forming || now.Number != q.Number-1):
		return reply{} // it learns the membership before
	}
	switch r.Waits = n.wanted >= q.Number; q.What {
	case askAwait:
		r.Done, r.Joining = r.Waits, n.joining
	case askFollow:
		r.Joining = n.joining
	case askPrepare, askAccept:
		r = n.acceptor.answer(q)
	case askMeet:
		r.Done, r.Address = n.meeting != "" || n.wanted > q.Number, n.meeting
	case askGuard:
		r.Done = n.wanted > q.Number
	}
	return r
}

// call sends a request to a process, learns from its last reply, and returns it. beats, if not nil,
// gets the replies before.
func (n *Node) call(ctx context.Context, to Member, q request, beats func(reply)) (reply, error) {
	n.mu.Lock()
	now, promised := n.current, n.acceptor.promised
	n.mu.Unlock()
	q.Base = now.Number
	dialing, cancel := context.WithTimeout(store.WithNetwork(ctx, store.NetworkOf(n.ctx)), dialTime)
	conn, raw, err := store.Try(dialing, to.Address, store.Config{Secret: n.cfg.Secret, TLS: n.client},
		auth.Hello{Job: n.cfg.Job, Purpose: purpose, Rank: n.cfg.Rank, Extra: []byte(to.ID)})
	cancel()
	if err != nil {
		return reply{}, err
	}
	defer raw.Close()
	defer context.AfterFunc(ctx, func() { raw.Close() })()
	ask := func() error {
		text, err := encode(&q)
		if err == nil {
			err = send(conn, text)
		}
		return err
	}
	for err = ask(); err == nil; {
		var r reply
		if err = conn.SetReadDeadline(time.Now().Add(silence)); err == nil {
			err = receive(conn, &r)
		}
		switch {
		case err != nil:
		case r.Unknown:
			q.Latest = &now
			err = ask()
		case r.Done:
			n.mu.Lock()
			n.learn(r.Decided, promised)
			n.mu.Unlock()
			return r, nil
		case beats != nil:
			beats(r)
		}
	}
	return reply{}, cmp.Or(context.Cause(ctx), err)
}

// ended reports whether an error of call shows that the process has ended.
func ended(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || auth.Final(err) || errors.Is(err, errDeparted)
}

// certain reports whether the end of a process that ended reports is certain: no part of a network
// that is cut hides it.
func (n *Node) certain(m Member) bool {
	addr, err := netip.ParseAddrPort(m.Address)
	return err == nil && addr.Addr().Unmap().IsLoopback() && !n.cfg.Apart
}

// try calls until the process departs, and reports whether ctx or beats have stopped it.
func (n *Node) try(ctx context.Context, to Member, q request, beats func(reply) error) (r reply, stopped bool, err error) {
	calling, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(n.life(to.ID), func() { cancel(errDeparted) })()
	r, err = n.call(calling, to, q, func(r reply) {
		if err := beats(r); err != nil {
			cancel(err)
		}
	})
	stopped = calling.Err() != nil
	if errors.Is(context.Cause(calling), errDeparted) {
		r, err = reply{}, errDeparted
	}
	return r, stopped, err
}

// persist calls until there is a reply, the process has ended, or it is silent for too long,
// counted from since. beats is as for call.
func (n *Node) persist(ctx context.Context, to Member, q request, since time.Time, beats func(reply) error) (reply, error) {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		r, stopped, err := n.try(ctx, to, q, func(r reply) error {
			since, pause = time.Now(), 50*time.Millisecond
			return beats(r)
		})
		if err == nil || stopped || ended(err) || time.Since(since) >= silence {
			return r, err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}
