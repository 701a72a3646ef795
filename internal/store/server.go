package store

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/gofsdp/gofsdp/internal/auth"
)

const (
	purpose    = "store" // in the hello of both sides
	maxWaiting = 4096    // Gets of one client that wait
)

// keepAlive detects within half a minute that the host at the other end is gone.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 4}

// Server serves clients that have the secret: a store in memory, or the function given to Accept.
type Server struct {
	cfg       Config
	listeners []net.Listener
	table     *table
	admit     Admit
	serve     Serving
	places    auth.Places   // of connections that have not proven themselves
	done      chan struct{} // closed by Close

	mu    sync.Mutex
	conns map[net.Conn]struct{} // open connections; nil once closed
	tasks sync.WaitGroup        // an accepting goroutine for each listener, and one for each connection
}

// Admit decides about a client that has the secret: it returns the server's hello, or why the
// client is refused.
type Admit func(theirs auth.Hello) (mine auth.Hello, err error)

// Serving serves a connection until that ends, and returns the client's error, if any. raw is the
// connection below TLS: closing it does not wait for the client.
type Serving func(conn, raw net.Conn, theirs auth.Hello) error

// Listen serves a store on a TCP address, such as "127.0.0.1:0". A server may listen where another
// has just ended. It listens on all addresses of a name that belong to this host. Until ctx ends it
// waits for a name that does not exist yet or has addresses of other hosts, such as the name of a
// Kubernetes pod that has just started.
func Listen(ctx context.Context, addr string, cfg Config) (*Server, error) {
	s, err := start(ctx, addr, cfg, cfg.admit, nil)
	if errors.Is(err, syscall.EADDRINUSE) {
		err = fmt.Errorf("%w: if two processes of this job have RANK=0, give each its own rank; if another job runs here, give this job another MASTER_PORT: "+
			"unless the jobs have different names (FSDP_JOB), other ranks of this job may have joined the other job", err)
	}
	return s, err
}

// Accept calls serve, in place of a store, for the clients that admit accepts: the clients of
// Connect.
func Accept(ctx context.Context, addr string, cfg Config, admit Admit, serve Serving) (*Server, error) {
	return start(ctx, addr, cfg, admit, serve)
}

func start(ctx context.Context, addr string, cfg Config, admit Admit, serve Serving) (*Server, error) {
	list, err := listenOn(ctx).wait(ctx, addr, cfg)
	if err != nil {
		return nil, fmt.Errorf("store: cannot serve on %s: %w", addr, err)
	}
	s, err := newServer(list, cfg, admit, serve)
	if err != nil {
		for _, ln := range list {
			err = errors.Join(err, ln.Close())
		}
		return nil, err
	}
	return s, nil
}

// Serve serves a store on ln, which the server closes. If it returns an error, ln stays open.
func Serve(ln net.Listener, cfg Config) (*Server, error) {
	return newServer([]net.Listener{ln}, cfg, cfg.admit, nil)
}

// newServer serves a store if serve is nil.
func newServer(list []net.Listener, cfg Config, admit Admit, serve Serving) (*Server, error) {
	if err := auth.Check(cfg.Secret); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	s := &Server{
		cfg: cfg, listeners: list, table: newTable(), admit: admit, serve: serve,
		done: make(chan struct{}), conns: make(map[net.Conn]struct{}),
	}
	if serve == nil {
		s.serve = s.store
	}
	for _, ln := range list {
		s.tasks.Go(func() { s.accept(ln) })
	}
	return s, nil
}

// store answers a client of the store.
func (s *Server) store(conn, raw net.Conn, theirs auth.Hello) error {
	if err := newSession(s, conn, raw).run(); err != nil {
		return fmt.Errorf("rank %d at %s: %w", theirs.Rank, raw.RemoteAddr(), err)
	}
	return nil
}

// Addr returns the address on which the server listens, or one of several addresses of its name.
func (s *Server) Addr() net.Addr { return s.listeners[0].Addr() }

// Close ends the server and all its connections, and waits until they have ended. Stored values are
// gone.
func (s *Server) Close() error {
	s.mu.Lock()
	conns := s.conns
	s.conns = nil
	s.mu.Unlock()
	if conns == nil {
		s.tasks.Wait()
		return nil
	}
	close(s.done)
	var err error
	for _, ln := range s.listeners {
		err = errors.Join(err, ln.Close())
	}
	for c := range conns {
		_ = c.Close()
	}
	s.tasks.Wait()
	return err
}

// accept takes connections while there are places for them. The others wait in the backlog of ln.
func (s *Server) accept(ln net.Listener) {
	retry := backoff{next: 5 * time.Millisecond, max: time.Second}
	var shortage Shortage
	for {
		conn, err := ln.Accept()
		if lasting := shortage.Note(err); lasting != nil && s.cfg.Fail != nil {
			s.cfg.Fail(fmt.Errorf("store: %w", lasting))
		}
		if err == nil {
			retry.next = 5 * time.Millisecond
			if !s.places.Take(conn, s.done) {
				_ = conn.Close() // no data was sent on it
				return
			}
			s.tasks.Go(func() { s.welcome(conn) })
			continue
		}
		s.report(fmt.Errorf("store: %s: %w", ln.Addr(), err))
		if errors.Is(err, net.ErrClosed) || !retry.wait(s.done, nil) {
			return
		}
	}
}

// report logs errors that closing the server has not caused.
func (s *Server) report(err error) {
	select {
	case <-s.done:
	default:
		s.cfg.log(err)
	}
}

// welcome runs as long as a connection.
func (s *Server) welcome(raw net.Conn) {
	defer raw.Close()
	s.mu.Lock()
	open := s.conns != nil
	if open {
		s.conns[raw] = struct{}{}
	}
	s.mu.Unlock()
	if !open {
		return
	}
	defer func() {
		s.mu.Lock()
		delete(s.conns, raw)
		s.mu.Unlock()
	}()
	conn := raw
	if s.cfg.TLS != nil {
		conn = tls.Server(raw, s.cfg.TLS)
	}
	theirs, err := auth.Server(conn, s.cfg.Secret, s.admit, time.Now().Add(auth.Timeout))
	if err = s.places.Leave(raw, err); err != nil {
		s.report(fmt.Errorf("store: connection refused: %w", err))
		return
	}
	if err := s.serve(conn, raw, theirs); err != nil {
		s.report(fmt.Errorf("store: %w", err))
	}
}

// admit accepts the ranks of the job.
func (c Config) admit(theirs auth.Hello) (auth.Hello, error) {
	switch {
	case theirs.Purpose != purpose:
		return auth.Hello{}, fmt.Errorf("the client asks for %q, but this is a store", theirs.Purpose)
	case theirs.Job != c.Job:
		return auth.Hello{}, fmt.Errorf("this is the store of job %q, not of job %q: if these are two jobs, give each its own address; "+
			"if they are one, set FSDP_JOB to the same name on all ranks", c.Job, theirs.Job)
	case c.Size != 0 && theirs.Size != 0 && c.Size != theirs.Size:
		return auth.Hello{}, fmt.Errorf("this job has %d ranks, but rank %[3]d was started with a world size of %[2]d", c.Size, theirs.Size, theirs.Rank)
	}
	return c.hello(), nil
}

// hello returns the hello of this side.
func (c Config) hello() auth.Hello {
	return auth.Hello{Job: c.Job, Purpose: purpose, Rank: c.Rank, Size: c.Size}
}
