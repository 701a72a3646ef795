package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"

	"github.com/gofsdp/gofsdp/internal/auth"
	"github.com/gofsdp/gofsdp/internal/store"
)

// guest takes part in the meeting of host 0.
type guest struct {
	*config
	cfg    store.Config
	hello  auth.Hello
	mine   offer // only used by run
	orders chan order
	done   chan struct{}  // run has ended
	ranks  sync.WaitGroup // running ranks
	ctx    context.Context
	leave  context.CancelCauseFunc // stops the search for host 0

	mu     sync.Mutex
	wire   *wire     // the last one
	joined bool      // the ranks of the last start have joined each other, and were not asked to end
	ended  []*ending // of the last start, or nil
}

func newGuest(c *config, cfg store.Config, hello auth.Hello, mine offer) seat {
	g := &guest{config: c, cfg: cfg, hello: hello, mine: mine, orders: make(chan order), done: make(chan struct{})}
	g.ctx, g.leave = context.WithCancelCause(context.Background())
	go g.run()
	return seat{g.orders, g.tell, func() { <-g.done; g.leave(nil) }}
}

// tell sends a report, if host 0 is connected.
func (g *guest) tell(r report) {
	g.mu.Lock()
	if r.Signal != 0 && r.Signal != growSignal {
		g.leave(fmt.Errorf("%s: this host no longer waits for host 0", signalName(r.Signal)))
	}
	for i := range r.Ended {
		g.ended = append(g.ended, &r.Ended[i])
	}
	if g.wire != nil {
		g.wire.send(r)
	}
	g.mu.Unlock()
	if r.Ended != nil {
		g.ranks.Done()
	}
}

// run takes part until the meeting releases this host. Whenever host 0 is gone, it ends the ranks
// and waits for another meeting, unless they can go on without it.
func (g *guest) run() {
	defer close(g.done)
	for {
		w, err := g.find()
		if err == nil {
			err = g.join(w)
		}
		if err != nil {
			g.orders <- order{End: true, Exit: exitError, Say: err.Error()}
			return
		}
		err = g.attend(w)
		w.close()
		if err == nil {
			return
		}
		if g.continues() {
			g.orders <- order{Say: fmt.Sprintf("host 0 has disconnected: %v; the ranks of the other hosts go on", err)}
			g.ranks.Wait()
			g.orders <- g.verdict()
			return
		}
		if g.restarts == 0 {
			g.leave(errors.New("this host does not wait for host 0, because -restarts is 0"))
		}
		g.orders <- order{Stop: syscall.SIGTERM, Say: fmt.Sprintf("host 0 has disconnected: %v; ending the ranks", err)}
		g.ranks.Wait()
	}
}

// find connects to host 0.
func (g *guest) find() (*wire, error) {
	if cause := context.Cause(g.ctx); cause != nil {
		return nil, cause
	}
	ctx, cancel := context.WithTimeoutCause(g.ctx, g.patience, fmt.Errorf("time is up after %v (-join-timeout)", g.patience))
	defer cancel()
	conn, raw, err := store.Connect(ctx, "host 0", net.JoinHostPort(g.host, g.port), g.cfg, g.hello)
	if err != nil {
		return nil, err
	}
	return newWire(conn, raw), nil
}

// join takes part from now on, unless a signal came in the meantime. Later signals go to host 0.
func (g *guest) join(w *wire) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if cause := context.Cause(g.ctx); cause != nil {
		w.close()
		return cause
	}
	mine := g.mine
	w.send(report{Join: &mine})
	g.wire = w
	return nil
}

// attend passes orders on until the last one, or until host 0 is gone.
func (g *guest) attend(w *wire) error {
	for {
		var o order
		if err := w.read(&o); err != nil {
			return err
		}
		if o.Start != nil {
			o.Start.Host, o.Start.Listen = g.host, address(w.raw.LocalAddr())
			g.mine.Count = o.Start.Count + 1
			g.mu.Lock()
			g.joined, g.ended = false, nil
			g.mu.Unlock()
			g.ranks.Add(1)
		}
		if o.Joined || o.Stop != 0 {
			g.mu.Lock()
			g.joined = o.Joined
			g.mu.Unlock()
		}
		g.orders <- o
		if o.End {
			return nil
		}
	}
}

// continues reports whether the ranks of this host can go on without host 0.
func (g *guest) continues() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.replace > 0 && g.joined
}

// verdict returns the order to end after ranks that went on without host 0.
func (g *guest) verdict() order {
	g.mu.Lock()
	defer g.mu.Unlock()
	o := order{End: true}
	if first := culprit(g.ended); first != nil {
		o.Exit, o.Say = first.status(), strings.TrimSuffix(summary(first, g.ended, nil), "\n")
	}
	return o
}
