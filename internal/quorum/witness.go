package quorum

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/internal/auth"
	"github.com/gofsdp/gofsdp/internal/store"
)

// Witness is a process that votes in the decisions of jobs, and is in none of their groups.
type Witness struct {
	id     string // random: another start is another witness
	server *store.Server

	mu        sync.Mutex
	acceptors map[[sha256.Size]byte]*acceptor // by the membership whose members decide
}

// Serve lets a witness answer at an address, for all jobs with the secret of cfg.
func Serve(ctx context.Context, address string, cfg store.Config) (*Witness, error) {
	w := &Witness{id: rand.Text()[:16], acceptors: map[[sha256.Size]byte]*acceptor{}}
	var err error
	w.server, err = store.Accept(ctx, address, cfg, w.admit, w.serve)
	return w, err
}

// Addr returns the address at which the witness answers.
func (w *Witness) Addr() net.Addr { return w.server.Addr() }

// Close ends the witness. Its promises are gone.
func (w *Witness) Close() error { return w.server.Close() }

// admit accepts the ranks of any job.
func (w *Witness) admit(theirs auth.Hello) (auth.Hello, error) {
	if theirs.Purpose != purpose {
		return auth.Hello{}, fmt.Errorf("a witness listens at this address, not %q", theirs.Purpose)
	}
	return auth.Hello{Job: theirs.Job, Purpose: purpose}, nil
}

// serve answers a request.
func (w *Witness) serve(conn, _ net.Conn, _ auth.Hello) error {
	for {
		var q request
		err := conn.SetReadDeadline(time.Now().Add(silence))
		if err = cmp.Or(err, receive(conn, &q)); err != nil {
			return fmt.Errorf("request: %w", err)
		}
		r := w.answer(&q)
		text, err := encode(&r)
		if err = cmp.Or(err, send(conn, text)); err != nil || r.Done {
			return nil // a process that still wants an answer asks again
		}
	}
}

func (w *Witness) answer(q *request) reply {
	switch {
	case q.What == askWitness:
		return reply{Done: true, Address: w.id}
	case q.Latest == nil:
		return reply{Unknown: true}
	case q.What != askPrepare && q.What != askAccept || q.Number != q.Latest.Number+1 || q.Latest.Witness.ID != w.id:
		return reply{Done: true}
	}
	base := *q.Latest
	base.Ballot = Ballot{} // two proposals of one membership differ in it
	key := sha256.Sum256(base.append(nil))
	w.mu.Lock()
	defer w.mu.Unlock()
	a := w.acceptors[key]
	if a == nil {
		a = new(acceptor)
		w.acceptors[key] = a
	}
	return a.answer(q)
}

// Find returns the witness at an address. It waits for a witness that does not answer.
func (n *Node) Find(ctx context.Context, address string) (Member, error) {
	for first := true; ; first = false {
		m, err := n.identify(ctx, address)
		if err == nil || auth.Final(err) {
			return m, err
		}
		if first {
			n.cfg.Log.Warn("comm: waiting for the witness", "at", address, "error", err)
		}
		if !wait(ctx, time.Second) {
			return m, fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		}
	}
}

// identify asks the witness at an address for its ID, once.
func (n *Node) identify(ctx context.Context, address string) (Member, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	m := Member{Address: address}
	r, err := n.call(ctx, m, request{What: askWitness}, nil)
	m.ID = r.Address
	return m, err
}

// wait reports whether a time has passed before ctx ended.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// vote is the witness of the current membership as a proposer sees it.
type vote struct {
	asked bool // the other fields are known
	id    string
	err   error
}

// watch asks for the witness again and again.
func (p *proposal) watch(ctx context.Context) {
	for {
		m, err := p.identify(ctx, p.now.Witness.Address)
		p.mu.Lock()
		p.vote = vote{true, m.ID, err}
		p.mu.Unlock()
		select {
		case p.news <- struct{}{}:
		default:
		}
		if !wait(ctx, time.Second) {
			return
		}
	}
}

// votes reports whether the witness has been there since the current membership was proposed. The
// caller holds p.mu.
func (p *proposal) votes() bool { return p.vote.id != "" && p.vote.id == p.now.Witness.ID }

// consult sends a request to the witness, and reports whether it agrees.
func (p *proposal) consult(ctx context.Context, q request, yes func(reply)) bool {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	r, err := p.call(ctx, p.now.Witness, q, nil)
	if err != nil {
		return false
	}
	if p.round = max(p.round, r.Ballot.Round); r.OK {
		yes(r)
	}
	return r.OK
}

// absence describes why the witness does not vote. The caller holds p.mu.
func (p *proposal) absence() string {
	switch {
	case p.vote.err != nil:
		return fmt.Sprintf(", and the witness %s does not answer (%v)", p.now.Witness.Address, p.vote.err)
	case p.vote.asked && !p.votes():
		return fmt.Sprintf(", and the witness %s has been started again and votes from the next group on", p.now.Witness.Address)
	}
	return ""
}
