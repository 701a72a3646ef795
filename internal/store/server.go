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

// keepAlive finds out within half a minute that the host at the other end is gone.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 4}

// Server holds a store in memory and serves it to whoever knows the secret.
type Server struct {
	cfg    Config
	ln     net.Listener
	table  *table
	places auth.Places   // of connections that have not proven themselves
	done   chan struct{} // closed by Close

	mu    sync.Mutex
	conns map[net.Conn]struct{} // open connections; nil once closed
	tasks sync.WaitGroup        // the accepting goroutine and one for each connection
}

// Listen serves a store on a TCP address, such as "127.0.0.1:0". A server may listen where another
// has just ended.
func Listen(ctx context.Context, addr string, cfg Config) (*Server, error) {
	// Where the address of a dead server could not be reused, Go sets SO_REUSEADDR by itself.
	config := net.ListenConfig{KeepAliveConfig: keepAlive}
	ln, err := config.Listen(ctx, "tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		err = fmt.Errorf("%w: does rank 0 of another job run here? Give this job another MASTER_PORT. "+
			"Its other ranks may have joined that job, unless FSDP_JOB tells the two apart", err)
	}
	if err != nil {
		return nil, fmt.Errorf("store: cannot serve on %s: %w", addr, err)
	}
	s, err := Serve(ln, cfg)
	if err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	return s, nil
}

// Serve serves a store on ln, which the server closes. With an error ln stays open.
func Serve(ln net.Listener, cfg Config) (*Server, error) {
	if err := auth.Check(cfg.Secret); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	s := &Server{cfg: cfg, ln: ln, table: newTable(), done: make(chan struct{}), conns: make(map[net.Conn]struct{})}
	s.tasks.Go(s.accept)
	return s, nil
}

// Addr is where the server listens.
func (s *Server) Addr() net.Addr { return s.ln.Addr() }

// Close ends the server and all its connections, and waits until they have ended. What was stored
// is gone.
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
	err := s.ln.Close()
	for c := range conns {
		_ = c.Close()
	}
	s.tasks.Wait()
	return err
}

// accept takes connections while there are places for them. The others wait in the backlog of the
// listener.
func (s *Server) accept() {
	retry := backoff{5 * time.Millisecond, time.Second}
	for {
		conn, err := s.ln.Accept()
		if err == nil {
			retry.next = 5 * time.Millisecond
			if !s.places.Take(conn, s.done) {
				_ = conn.Close() // nobody has said anything on it
				return
			}
			s.tasks.Go(func() { s.welcome(conn) })
			continue
		}
		s.report(fmt.Errorf("store: %s: %w", s.Addr(), err))
		if errors.Is(err, net.ErrClosed) || !retry.wait(s.done, nil) {
			return
		}
	}
}

// report logs what has not come of closing the server.
func (s *Server) report(err error) {
	select {
	case <-s.done:
	default:
		s.cfg.log(err)
	}
}

// welcome lives as long as a connection.
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
		s.report(fmt.Errorf("store: turned away: %w", err))
		return
	}
	if err := newSession(s, conn, raw).run(); err != nil {
		s.report(fmt.Errorf("store: rank %d at %s: %w", theirs.Rank, raw.RemoteAddr(), err))
	}
}

// admit decides about a client that knows the secret.
func (s *Server) admit(theirs auth.Hello) (auth.Hello, error) {
	switch {
	case theirs.Purpose != purpose:
		return auth.Hello{}, fmt.Errorf("this is a store, not %q", theirs.Purpose)
	case theirs.Job != s.cfg.Job:
		return auth.Hello{}, fmt.Errorf("this is the store of job %q, not of %q: give each job an address of its own; "+
			"what names a job is its launcher and FSDP_JOB, or else its program, arguments and directory "+
			"(where ranks of one job differ in these, set FSDP_JOB)", s.cfg.Job, theirs.Job)
	case s.cfg.Size != 0 && theirs.Size != 0 && s.cfg.Size != theirs.Size:
		return auth.Hello{}, fmt.Errorf("this job has %d ranks, not %d as rank %d believes", s.cfg.Size, theirs.Size, theirs.Rank)
	}
	return s.cfg.hello(), nil
}

// hello is what this side says about itself.
func (c Config) hello() auth.Hello {
	return auth.Hello{Job: c.Job, Purpose: purpose, Rank: c.Rank, Size: c.Size}
}
