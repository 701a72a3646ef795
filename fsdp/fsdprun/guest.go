package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gofsdp/gofsdp/internal/auth"
	"github.com/gofsdp/gofsdp/internal/store"
)

// guest takes part in the meeting of another host. A candidate holds the meeting itself if no other
// host does.
type guest struct {
	*config
	cfg    store.Config
	hello  auth.Hello
	server *store.Server // of a candidate, or nil
	after  func(time.Duration) <-chan time.Time
	mine   offer // only used by run
	holder int   // the last host that held the meeting; only used by run
	orders chan order
	done   chan struct{}  // run has ended
	ranks  sync.WaitGroup // running ranks
	ctx    context.Context
	leave  context.CancelCauseFunc // stops the search for a meeting

	mu      sync.Mutex
	wire    *wire     // the last one
	holding *holder   // the meeting on this host, or nil
	busy    bool      // ranks run, and another host holds the meeting
	joined  bool      // the ranks of the last start have joined each other, and were not asked to end
	ended   []*ending // of the last start, or nil
}

func newGuest(c *config, cfg store.Config, hello auth.Hello, mine offer) *guest {
	g := &guest{config: c, cfg: cfg, hello: hello, mine: mine, holder: max(0, len(c.meet)-1), orders: make(chan order), done: make(chan struct{})}
	g.ctx, g.leave = context.WithCancelCause(context.Background())
	return g
}

// place names the place where this host looks for the meeting.
func (c *config) place() string {
	if len(c.meet) > 1 {
		return "a host of -rdzv"
	}
	return "host 0"
}

// hostOf returns the name of a host in -rdzv, without the port.
func (c *config) hostOf(host int) string {
	name, _, _ := net.SplitHostPort(c.meet[host]) // setHosts has checked it
	return name
}

// close ends the part of this host after the order to end.
func (g *guest) close() {
	<-g.done
	g.leave(nil)
	if g.server != nil {
		g.server.Close() // a listener that fails to close does no harm any more
	}
}

// tell sends a report, if this host takes part in a meeting.
func (g *guest) tell(r report) {
	g.mu.Lock()
	if r.Signal != 0 && r.Signal != growSignal {
		g.leave(fmt.Errorf("%s: this host no longer waits for %s", signalName(r.Signal), g.place()))
	}
	if h := g.holding; h != nil {
		g.mu.Unlock()
		h.take(heard{host: g.node, report: r})
		return
	}
	g.busy = g.busy && r.Ended == nil
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

// run takes part until the meeting releases this host. Whenever the holder is gone, it ends the
// ranks and waits for another meeting, unless they can go on without it.
func (g *guest) run() {
	defer close(g.done)
	for {
		w, err := g.find()
		if errors.Is(err, errNoMeeting) {
			if g.hold() {
				return
			}
			continue
		}
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
		if g.fails(); g.restarts == 0 {
			g.leave(fmt.Errorf("this host does not wait for %s, because -restarts is 0", g.place()))
		} else if g.mine.Failures > g.restarts {
			g.leave(fmt.Errorf("this host does not wait for %s, because there were %d restarts (-restarts)", g.place(), g.restarts))
		}
		g.orders <- order{Stop: syscall.SIGTERM, Say: fmt.Sprintf("host %d has disconnected: %v; ending the ranks", g.holder, err)}
		g.ranks.Wait()
	}
}

// fails counts the loss of the holder as a failure, if ranks run.
func (g *guest) fails() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.busy {
		g.mine.Failures++
	}
}

// find connects to the host that holds the meeting. On a candidate it fails with errNoMeeting if no
// other host does.
func (g *guest) find() (*wire, error) {
	if cause := context.Cause(g.ctx); cause != nil {
		return nil, cause
	}
	ctx, cancel := context.WithTimeoutCause(g.ctx, g.patience, fmt.Errorf("time is up after %v (-join-timeout)", g.patience))
	defer cancel()
	if len(g.meet) > 1 {
		return g.search(ctx)
	}
	conn, raw, err := store.Connect(ctx, "host 0", g.meet[0], g.cfg, g.hello)
	if err != nil {
		return nil, err
	}
	return newWire(conn, raw), nil
}

// join takes part from now on, unless a signal came in the meantime. Later signals go to the
// holder.
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

// attend passes orders on until the last one, or until the holder is gone.
func (g *guest) attend(w *wire) error {
	for {
		var o order
		if err := w.read(&o); err != nil {
			return err
		}
		if o.Start != nil {
			o.Start.Host, o.Start.Listen = g.hostOf(g.holder), address(w.raw.LocalAddr())
			g.mine.Count, g.mine.Failures = o.Start.Count+1, o.Start.Failures
			if len(g.meet) > 1 {
				g.mine.Others = o.Start.Nodes - 1
			}
			g.mu.Lock()
			g.busy, g.joined, g.ended = true, false, nil
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

// continues reports whether the ranks of this host can go on without the holder, host 0.
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
