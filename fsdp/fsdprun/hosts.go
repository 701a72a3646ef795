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

// takeSeat opens the meeting on host 0. Other hosts connect to it, and wait for it.
func (l *launcher) takeSeat(after func(time.Duration) <-chan time.Time) (seat, error) {
	cfg, hello, err := l.identity()
	if err != nil {
		return seat{}, err
	}
	mine := offer{Ranks: l.n, Most: l.max, Min: l.min, Restarts: l.restarts, Replace: l.replace}
	if l.node > 0 {
		return newGuest(&l.config, cfg, hello, mine), nil
	}
	return newHolder(&l.config, cfg, hello, mine, after, l.readMembers)
}

// identity returns the configuration of connections to other hosts, and the greeting of this host.
func (l *launcher) identity() (store.Config, auth.Hello, error) {
	var logged atomic.Int32
	cfg := store.Config{Secret: l.secret, Log: func(err error) {
		if logged.Add(1) <= maxReported {
			l.screen.say("%v", err)
		}
	}}
	if l.tls {
		server, client, err := auth.TLS()
		if err != nil {
			return cfg, auth.Hello{}, err
		}
		cfg.TLS = client
		if l.node == 0 {
			cfg.TLS = server
		}
	}
	return cfg, auth.Hello{Job: l.config.job, Purpose: purpose, Rank: l.node, Size: l.nodes}, nil
}

// giveUp reports to host 0 why this host does not join, if it reaches host 0 within goodbye.
func (l *launcher) giveUp(why error) {
	if l.node == 0 {
		return
	}
	cfg, hello, err := l.identity()
	if err == nil {
		ctx, cancel := context.WithTimeoutCause(context.Background(), goodbye, fmt.Errorf("time is up after %v", goodbye))
		defer cancel()
		var conn net.Conn
		if conn, _, err = store.Connect(ctx, "host 0", net.JoinHostPort(l.host, l.port), cfg, hello); err == nil {
			err = conn.SetWriteDeadline(time.Now().Add(goodbye))
			err = errors.Join(err, json.NewEncoder(conn).Encode(report{GaveUp: why.Error()}), conn.Close())
		}
	}
	if err != nil {
		l.screen.say("cannot send to host 0: %v", err)
	}
}

// holder holds the meeting, on host 0.
type holder struct {
	*meeting // only used by run
	after    func(time.Duration) <-chan time.Time
	hello    auth.Hello
	host     string // address on which rank 0 serves
	listen   string // "" on one host
	server   *store.Server

	heard       chan heard
	orders      chan order
	wires       map[int]*wire                     // by host; only used by run
	waiting     []heard                           // joins of hosts that are connected already; only used by run
	memberFiles func() (map[string][]byte, error) // the files by which ranks of other hosts join the ranks of this one
	done        chan struct{}                     // run has ended
}

// heard is a report that a host has sent.
type heard struct {
	host int
	wire *wire // nil for host 0
	report
}

func newHolder(c *config, cfg store.Config, hello auth.Hello, mine offer, after func(time.Duration) <-chan time.Time, members func() (map[string][]byte, error)) (seat, error) {
	h := &holder{
		meeting: &meeting{
			hosts: c.nodes, restarts: c.restarts, compare: c.compare, replace: c.replace, min: c.min, patience: c.patience, since: time.Now(),
			job: cmp.Or(c.job, "fsdprun-"+random(4)), members: make(map[int]*member),
		},
		after: after, memberFiles: members, hello: hello, host: "127.0.0.1",
		heard: make(chan heard), orders: make(chan order), wires: make(map[int]*wire), done: make(chan struct{}),
	}
	if c.nodes > 1 {
		h.host, h.job = c.host, h.job+"-"+random(4) // unique to this meeting: another one may have starts with the same numbers
		var err error
		if h.server, err = store.Accept(context.Background(), net.JoinHostPort(c.host, c.port), cfg, h.admit, h.serve); err != nil {
			return seat{}, fmt.Errorf("-rdzv: %w", err)
		}
		h.listen = address(h.server.Addr())
	}
	h.hear(time.Now(), 0, report{Join: &mine})
	if c.nodes > 1 {
		h.say(fmt.Sprintf("waiting at %v for %s", h.server.Addr(), h.absent()))
	}
	go h.run()
	return seat{h.orders, func(r report) { h.take(heard{report: r}) }, h.close}, nil
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

// admit accepts the other hosts of the job.
func (h *holder) admit(theirs auth.Hello) (auth.Hello, error) {
	switch {
	case theirs.Purpose != purpose:
		return auth.Hello{}, fmt.Errorf("fsdprun listens at this address, not %q", theirs.Purpose)
	case theirs.Job != h.hello.Job:
		return auth.Hello{}, fmt.Errorf("host 0 runs job %q, not %q: give all hosts the same -job, or, without -job, the same -rdzv", h.hello.Job, theirs.Job)
	case theirs.Size != h.hello.Size || theirs.Rank < 1 || theirs.Rank >= theirs.Size:
		return auth.Hello{}, fmt.Errorf("host 0 has -nnodes %d, host %d has -nnodes %d: give all hosts the same", h.hello.Size, theirs.Rank, theirs.Size)
	}
	return h.hello, nil
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
		h.take(heard{theirs.Rank, w, r})
		if err != nil {
			return nil
		}
	}
}

// take passes a report to run.
func (h *holder) take(e heard) {
	select {
	case h.heard <- e:
	case <-h.done:
	}
}

// run runs the meeting until the last order is delivered.
func (h *holder) run() {
	defer close(h.done)
	var (
		pending       []order // for this host
		armed         time.Time
		timer, linger <-chan time.Time
	)
	for {
		pending = append(pending, h.deliver()...)
		if h.over && h.members[0] == nil { // the others go on without this host
			clear(h.wires)
		}
		if h.over && len(pending) == 0 && len(h.wires) == 0 {
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
		}
	}
}

// receive passes a host's report to the meeting. If the host has another connection, a join waits
// for the end of that one: when a host that was cut off has come back, the meeting may not know yet
// that it was gone.
func (h *holder) receive(e heard) {
	switch there := h.wires[e.host]; {
	case e.wire == there: // as of host 0, which has none
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
	var port string
	for len(h.out) > 0 {
		m := h.out[0]
		h.out = h.out[1:]
		if m.Start != nil && port == "" {
			var err error
			if port, err = freePort(h.host); err != nil {
				h.out = nil
				h.finish(exitError, err.Error())
				continue
			}
		}
		if m.Start != nil {
			m.Start.Host, m.Start.Port = h.host, port
		}
		if m.Start != nil && m.Start.Late {
			var err error
			if m.Start.Members, err = h.memberFiles(); err != nil {
				m.order = order{End: true, Exit: exitError, Say: err.Error()}
			}
		}
		if m.to == 0 {
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
