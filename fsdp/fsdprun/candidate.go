package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/internal/auth"
	"github.com/gofsdp/gofsdp/internal/store"
)

// No special host. With several addresses in -rdzv, the hosts 0, 1, … that have them are
// candidates: any of them can hold the meeting, and the job outlives the loss of any host.
//
//	          another host holds a meeting
//	looking ───────────────────────────────▶ guest ──▶ the holder is gone: the ranks end ──▶ looking
//	   │
//	   │ none does, and this host is a candidate
//	   ▼
//	holding ──▶ this meeting has no majority of the candidates, and another is better ──▶ looking
//
// Invariants:
//
//   - A start has more than half of the candidates, or half of them and host 0. So two starts have
//     a candidate in common.
//   - A host joins a meeting when its ranks of the start before have ended. The ranks of a start
//     train together or not at all. So two starts never train at the same time, whichever hosts
//     hold meetings: the common candidate ends the first start before it takes part in the second.
//   - The ranks of a host do not outlive its fsdprun. So an fsdprun that was started again counts
//     like the one before, and nothing has to be remembered.
//
// So any candidate may hold the meeting, even two at a time. A meeting with a majority is better
// than one without. If neither has a majority, the meeting of the host with the smaller number is
// better. A meeting that yields to a better one has no ranks that run, and its hosts look again.

// errNoMeeting is why a candidate refuses hosts while it holds no meeting, or none that is better
// than the one of the other host.
var errNoMeeting = errors.New("this host holds no meeting, or no better one")

const (
	rival      = "holds a meeting" // in the hello of a candidate that looks for a better meeting
	visitLimit = 3 * time.Second   // of an attempt to connect
	visitPause = 300 * time.Millisecond
)

// admit accepts hosts of the job while this host holds a meeting.
func (g *guest) admit(theirs auth.Hello) (auth.Hello, error) {
	if err := admits(g.hello, theirs); err != nil {
		return auth.Hello{}, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if h := g.holding; h == nil || string(theirs.Extra) == rival && !h.firm.Load() && theirs.Rank < g.node {
		return auth.Hello{}, errNoMeeting
	}
	return g.hello, nil
}

// serve receives the reports of a host for the meeting on this one.
func (g *guest) serve(conn, raw net.Conn, theirs auth.Hello) error {
	g.mu.Lock()
	h := g.holding
	g.mu.Unlock()
	if h == nil || string(theirs.Extra) == rival {
		return nil // the other host looks again
	}
	return h.serve(conn, raw, theirs)
}

// visit connects to a candidate that holds a meeting.
func (g *guest) visit(ctx context.Context, host int, extra string) (*wire, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, visitLimit, fmt.Errorf("no answer within %v", visitLimit))
	defer cancel()
	hello := g.hello
	hello.Extra = []byte(extra)
	conn, raw, err := store.Try(ctx, g.meet[host], g.cfg, hello)
	if err != nil {
		return nil, err
	}
	return newWire(conn, raw), nil
}

// others iterates over the other candidates. The host that was the last to hold a meeting comes
// last, as it may be silent.
func (g *guest) others(yield func(host int) bool) {
	n := len(g.meet)
	for i := range n {
		if host := (g.holder + 1 + i) % n; host != g.node && !yield(host) {
			return
		}
	}
}

// search visits the candidates one after the other until one of them holds a meeting. A host that
// is a candidate itself visits each once.
func (g *guest) search(ctx context.Context) (*wire, error) {
	for said := false; ; {
		var why []string
		for host := range g.others {
			if ctx.Err() != nil {
				break
			}
			w, err := g.visit(ctx, host, "")
			if err == nil {
				g.holder = host
				return w, nil
			}
			text := fmt.Sprintf("host %d at %s: %v", host, g.meet[host], err)
			if auth.Final(err) && !refused(err) && g.mine.Count == 0 {
				return nil, errors.New(text)
			}
			why = append(why, text)
		}
		switch {
		case ctx.Err() != nil:
		case g.server != nil:
			return nil, errNoMeeting
		case !said:
			said = true
			g.cfg.Log(fmt.Errorf("waiting for a meeting: %s", strings.Join(why, "; ")))
		}
		select {
		case <-time.After(visitPause):
		case <-ctx.Done():
			return nil, fmt.Errorf("no host of -rdzv holds a meeting: %s (%w)", strings.Join(why, "; "), context.Cause(ctx))
		}
	}
}

// refused reports whether a candidate has refused a host with errNoMeeting.
func refused(err error) bool {
	var r *auth.RefusedError
	return errors.As(err, &r) && r.Reason == errNoMeeting.Error()
}

// hold holds the meeting until it is over, and returns true, or until it yields to a better one.
func (g *guest) hold() (over bool) {
	h := newHolder(g, g.orders)
	g.mu.Lock()
	left := context.Cause(g.ctx) != nil
	if !left {
		g.holding = h
	}
	g.mu.Unlock()
	if left {
		return false
	}
	h.open(g.mine, g.server)
	ctx, cancel := context.WithCancel(g.ctx)
	go func() { <-h.done; cancel() }()
	g.compete(ctx, h)
	<-h.done
	g.mu.Lock()
	g.holding = nil
	g.mu.Unlock()
	h.hangUp()
	g.mine.Count, g.mine.Failures, g.mine.Others = h.count, h.failures, 0
	return !h.yielded
}

// compete ends the meeting on this host if it has no majority, and another one is better.
func (g *guest) compete(ctx context.Context, h *holder) {
	tick := time.NewTicker(visitPause)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for host := range g.others {
			if h.firm.Load() {
				break
			}
			w, err := g.visit(ctx, host, rival)
			if err != nil {
				continue
			}
			w.close()
			select {
			case h.yields <- struct{}{}:
			case <-h.done:
			}
			break
		}
	}
}
