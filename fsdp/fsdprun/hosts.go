package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gofsdp/gofsdp/internal/auth"
	"github.com/gofsdp/gofsdp/internal/store"
)

// seat is a host's place in the meeting.
type seat struct {
	orders <-chan order
	tell   func(report)
	close  func() // after the order to end
}

const (
	purpose = "fsdprun" // in the hello of both sides
	// goodbye limits how long host 0 waits for the others to learn that the job has ended.
	goodbye = 5 * time.Second
	// strangers is the largest number of failed connections that are reported.
	maxReported = 10
	// defaultPatience is the same as for ranks that join.
	defaultPatience = 5 * time.Minute
	// shortestPatience leaves time to detect a silent host, and to agree without it.
	shortestPatience = silence + 10*time.Second
)

// takeSeat opens the meeting on host 0. Other hosts connect to it, and wait for it. With several
// addresses in -rdzv the hosts choose one of them for the meeting: see candidate.go.
func (l *launcher) takeSeat(after func(time.Duration) <-chan time.Time) (seat, error) {
	server, g, err := l.identity()
	if err != nil {
		return seat{}, err
	}
	g.after = after
	switch {
	case len(l.meet) > 1 && l.node < len(l.meet):
		g.server, err = l.accept(server, g.admit, g.serve)
	case l.node == 0:
		h := newHolder(g, make(chan order))
		h.memberFiles = l.readMembers
		if l.nodes > 1 {
			if h.server, err = l.accept(server, h.admit, h.serve); err != nil {
				return seat{}, err
			}
		}
		h.open(g.mine, h.server)
		return seat{h.orders, func(r report) { h.take(heard{report: r}) }, h.close}, nil
	}
	if err != nil {
		return seat{}, err
	}
	go g.run()
	return seat{g.orders, g.tell, g.close}, nil
}

// accept listens at this host's address of -rdzv.
func (l *launcher) accept(cfg store.Config, admit store.Admit, serve store.Serving) (*store.Server, error) {
	s, err := store.Accept(context.Background(), l.meet[l.node], cfg, admit, serve)
	if err != nil {
		return nil, fmt.Errorf("-rdzv: %w", err)
	}
	return s, nil
}

// identity returns the configuration of the server of this host, and the host as a guest.
func (l *launcher) identity() (server store.Config, g *guest, err error) {
	var logged atomic.Int32
	server = store.Config{Secret: l.secret, Log: func(err error) {
		if !errors.Is(err, errNoMeeting) && logged.Add(1) <= maxReported {
			l.screen.say("%v", err)
		}
	}}
	client := server
	if l.tls {
		if server.TLS, client.TLS, err = auth.TLS(); err != nil {
			return server, nil, err
		}
	}
	hello := auth.Hello{Job: l.config.job, Purpose: purpose, Rank: l.node, Size: l.nodes}
	mine := offer{Ranks: l.n, Most: l.max, Min: l.min, Restarts: l.restarts, Replace: l.replace, Meet: strings.Join(l.meet, ",")}
	return server, newGuest(&l.config, client, hello, mine), nil
}

// giveUp reports to the meeting why this host does not join, if it reaches the meeting within
// goodbye.
func (l *launcher) giveUp(why error) {
	if len(l.meet) == 0 || len(l.meet) == 1 && l.node == 0 {
		return
	}
	l.patience = goodbye
	_, g, err := l.identity()
	if err == nil {
		var w *wire
		if w, err = g.find(); err == nil {
			err = w.conn.SetWriteDeadline(time.Now().Add(goodbye))
			err = errors.Join(err, json.NewEncoder(w.conn).Encode(report{GaveUp: why.Error()}), w.conn.Close())
			w.close()
		}
		g.leave(nil)
	}
	if err != nil {
		l.screen.say("cannot send to %s: %v", l.place(), err)
	}
}

// holder holds the meeting.
type holder struct {
	*meeting // only used by run
	after    func(time.Duration) <-chan time.Time
	hello    auth.Hello
	host     string // address on which rank 0 serves
	port     string // of the last start; only used by run
	listen   string // "" on one host
	server   *store.Server

	heard   chan heard
	orders  chan order
	wires   map[int]*wire // by host; only used by run
	waiting []heard       // joins of hosts that are connected already; only used by run
	yields  chan struct{} // asks run to end for a better meeting
	yielded bool          // it has
	firm    atomic.Bool   // the meeting has the majority of the candidates
	done    chan struct{} // run has ended

	memberFiles func() (map[string][]byte, error) // the files by which ranks of other hosts join the ranks of this one
}

// heard is a report that a host has sent.
type heard struct {
	host int
	wire *wire // nil for this host
	report
}

// newHolder makes a meeting on the host of g.
func newHolder(g *guest, orders chan order) *holder {
	c := g.config
	h := &holder{
		meeting: &meeting{
			self: c.node, hosts: c.nodes, candidates: len(c.meet),
			restarts: c.restarts, compare: c.compare, replace: c.replace, min: c.min, patience: c.patience, since: time.Now(),
			job: cmp.Or(c.job, "fsdprun-"+random(4)), members: make(map[int]*member),
		},
		after: g.after, hello: g.hello, host: "127.0.0.1", orders: orders,
		heard: make(chan heard), wires: make(map[int]*wire), yields: make(chan struct{}), done: make(chan struct{}),
	}
	if c.nodes > 1 {
		h.host, h.job = c.hostOf(c.node), h.job+"-"+random(4) // unique to this meeting: another one may have starts with the same numbers
	}
	return h
}

// open begins the meeting, for other hosts at a server if that is not nil.
func (h *holder) open(mine offer, server *store.Server) {
	h.hear(time.Now(), h.self, report{Join: &mine})
	if server != nil {
		h.listen = address(server.Addr())
		h.say(fmt.Sprintf("waiting at %v for %s", server.Addr(), h.absent()))
	}
	go h.run()
}

// address returns addr without the port.
func address(addr net.Addr) string {
	return addr.(*net.TCPAddr).AddrPort().Addr().Unmap().String()
}

func (h *holder) close() {
	<-h.done
	if h.server != nil {
		h.server.Close() // a listener that fails to close does no harm any more
	}
}

func (h *holder) admit(theirs auth.Hello) (auth.Hello, error) {
	return h.hello, admits(h.hello, theirs)
}

// admits accepts the other hosts of the job.
func admits(mine, theirs auth.Hello) error {
	switch {
	case theirs.Purpose != purpose:
		return fmt.Errorf("fsdprun listens at this address, not %q", theirs.Purpose)
	case theirs.Job != mine.Job:
		return fmt.Errorf("host %d runs job %q, not %q: give all hosts the same -job, or, without -job, the same -rdzv", mine.Rank, mine.Job, theirs.Job)
	case theirs.Size != mine.Size || theirs.Rank < 0 || theirs.Rank >= theirs.Size:
		return fmt.Errorf("host %d has -nnodes %d, host %d has -nnodes %d: give all hosts the same", mine.Rank, mine.Size, theirs.Rank, theirs.Size)
	case theirs.Rank == mine.Rank:
		return fmt.Errorf("two hosts have -node-rank %d: give each its own", mine.Rank)
	}
	return nil
}

// serve receives the reports of a host.
func (h *holder) serve(conn, raw net.Conn, theirs auth.Hello) error {
	w := newWire(conn, raw)
	defer w.close()
	for {
		var r report
		err := w.read(&r)
		if err != nil {
			r = report{Gone: fmt.Sprintf("%v (%s)", err, address(raw.RemoteAddr()))}
		}
		if !h.take(heard{theirs.Rank, w, r}) || err != nil {
			return nil
		}
	}
}

// take passes a report to run. It returns false if run has ended.
func (h *holder) take(e heard) bool {
	select {
	case h.heard <- e:
		return true
	case <-h.done:
		return false
	}
}

// run runs the meeting until the last order is delivered, or until it yields.
func (h *holder) run() {
	defer close(h.done)
	var (
		pending       []order // for this host
		armed         time.Time
		timer, linger <-chan time.Time
	)
	for {
		pending = append(pending, h.deliver()...)
		h.firm.Store(h.majority())
		left := h.members[h.self] == nil // the others go on without this host
		if h.over && len(pending) == 0 && (left || len(h.wires) == 0) {
			return
		}
		if h.over && linger == nil {
			linger = time.After(goodbye)
		}
		if at := h.wake(); !at.Equal(armed) {
			armed, timer = at, nil
			if !at.IsZero() {
				timer = h.after(at.Sub(h.now))
			}
		}
		var mine chan order
		var next order
		if len(pending) > 0 {
			mine, next = h.orders, pending[0]
		}
		select {
		case mine <- next:
			pending = pending[1:]
		case e := <-h.heard:
			h.receive(e)
		case <-timer:
			h.tick(armed)
		case <-linger:
			clear(h.wires)
		case <-h.yields:
			if h.yielded = !h.over && !h.running && !h.majority(); h.yielded {
				return
			}
		}
	}
}

// hangUp closes the connections of all hosts after the end of run.
func (h *holder) hangUp() {
	for _, w := range h.wires {
		w.raw.Close()
	}
	for _, e := range h.waiting {
		e.wire.raw.Close()
	}
}

// receive passes a host's report to the meeting. If the host has another connection, a join waits
// for the end of that one: when a host that was cut off has come back, the meeting may not know yet
// that it was gone.
func (h *holder) receive(e heard) {
	switch there := h.wires[e.host]; {
	case e.wire == there: // as of this host, which has none
	case there == nil:
		h.wires[e.host] = e.wire
	case e.Join != nil:
		h.waiting = append(h.waiting, e)
		e.wire.send(order{Say: fmt.Sprintf("host %d is already connected: waiting for it to end", e.host)})
		return
	case e.Gone != "" || e.Signal != 0 && e.Signal != growSignal:
		h.waiting = slices.DeleteFunc(h.waiting, func(o heard) bool { return o.wire == e.wire })
		e.wire.send(order{End: true})
		return
	default:
		return
	}
	h.hear(time.Now(), e.host, e.report)
	if e.Gone == "" {
		return
	}
	delete(h.wires, e.host)
	if i := slices.IndexFunc(h.waiting, func(o heard) bool { return o.host == e.host }); i >= 0 {
		next := h.waiting[i]
		h.waiting = slices.Delete(h.waiting, i, i+1)
		h.receive(next)
	}
}

// deliver sends the orders to the other hosts, and returns the orders for this one.
func (h *holder) deliver() (mine []order) {
	chosen := false // a port, for the start in h.out
	for len(h.out) > 0 {
		m := h.out[0]
		h.out = h.out[1:]
		var err error
		switch {
		case m.Start == nil:
		case m.Start.Late:
			if m.Start.Members, err = h.memberFiles(); err != nil {
				m.order = order{End: true, Exit: exitError, Say: err.Error()}
				delete(h.members, m.to) // no rank of it runs
				h.advance()
			}
		case !chosen:
			if h.port, err = freePort(h.host); err != nil {
				h.out = nil
				h.finish(exitError, err.Error())
				continue
			}
			chosen = true
		}
		if m.Start != nil {
			m.Start.Host, m.Start.Port = h.host, h.port
		}
		if m.to == h.self {
			if m.Start != nil {
				m.Start.Listen = h.listen
			}
			mine = append(mine, m.order)
		} else if w := h.wires[m.to]; w != nil {
			w.send(m.order)
		}
	}
	return mine
}

// freePort returns a port of this host that is free now. It is outside the range from which systems
// choose ports themselves, so hardly any other process takes it before rank 0, which would report
// it.
func freePort(host string) (port string, err error) {
	for range 100 {
		port = strconv.Itoa(20000 + rand.IntN(12000))
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort(host, port)); err == nil {
			return port, l.Close()
		}
	}
	return "", fmt.Errorf("no free port: %w", err)
}
