package store

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"sync"
)

// session serves one client. Requests are answered in the order they come, except that a Get
// without an answer is put aside. A client that does not read its answers is not read from either,
// and so disturbs only itself.
type session struct {
	server *Server
	conn   net.Conn
	raw    net.Conn // below TLS: closing it does not wait for the client

	writing sync.Mutex // held while a frame is written

	mu      sync.Mutex
	waiting map[uint64]chan struct{} // Gets put aside; closing the channel cancels
}

func newSession(s *Server, conn, raw net.Conn) *session {
	return &session{server: s, conn: conn, raw: raw, waiting: make(map[uint64]chan struct{})}
}

// run serves until the connection ends, and returns what the client has done wrong. Leaving, in
// whatever way, is not wrong.
func (s *session) run() error {
	var gets sync.WaitGroup
	defer gets.Wait()
	defer s.cancelAll()
	defer s.raw.Close() // first: a Get that writes its answer must not wait for a client that does not read
	r := bufio.NewReader(s.conn)
	for {
		f, err := readFrame(r)
		if err == nil {
			err = s.handle(f, &gets)
		}
		if errors.Is(err, errFrame) {
			return err
		}
		if err != nil {
			return nil
		}
	}
}

// handle answers one request.
func (s *session) handle(f frame, gets *sync.WaitGroup) error {
	t := s.server.table
	if f.code != askCancel {
		if err := check(f.key, f.value); err != nil {
			return fmt.Errorf("%w: %w", errFrame, err)
		}
	}
	switch f.code {
	case askGet:
		if value, ok := t.get(f.key); ok {
			return s.answer(f.id, value, nil)
		}
		return s.putAside(f, gets)
	case askClaim:
		holder, err := t.claim(f.key, f.value)
		return s.answer(f.id, holder, err)
	case askCancel:
		s.cancel(f.id)
		return nil
	}
	return fmt.Errorf("%w: unknown request %d", errFrame, f.code)
}

// putAside answers a Get when its key is set.
func (s *session) putAside(f frame, gets *sync.WaitGroup) error {
	stop := make(chan struct{})
	s.mu.Lock()
	_, twice := s.waiting[f.id]
	full := len(s.waiting) >= maxWaiting
	if !twice && !full {
		s.waiting[f.id] = stop
	}
	s.mu.Unlock()
	if twice {
		return fmt.Errorf("%w: request %d is under way already", errFrame, f.id)
	}
	if full {
		return s.answer(f.id, nil, fmt.Errorf("%w: %d Gets of this client wait already", ErrLimit, maxWaiting))
	}
	gets.Go(func() {
		value, ok := s.server.table.wait(f.key, stop)
		s.mu.Lock()
		if s.waiting[f.id] == stop {
			delete(s.waiting, f.id)
		}
		s.mu.Unlock()
		if ok {
			_ = s.answer(f.id, value, nil) // the reader notices that the connection has ended
		}
	})
	return nil
}

// cancel ends a Get that waits.
func (s *session) cancel(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if stop, ok := s.waiting[id]; ok {
		delete(s.waiting, id)
		close(stop)
	}
}

// cancelAll ends all Gets that wait.
func (s *session) cancelAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, stop := range s.waiting {
		delete(s.waiting, id)
		close(stop)
	}
}

// answer writes a reply. The only errors a request may have are limits.
func (s *session) answer(id uint64, value []byte, err error) error {
	if err != nil {
		return s.write(frame{id: id, code: replyLimit, value: []byte(err.Error())})
	}
	return s.write(frame{id: id, code: replyOK, value: value})
}

func (s *session) write(f frame) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	_, err := s.conn.Write(f.encode())
	return err
}
