package store

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"sync"
)

// session serves one client. It answers requests in order, except for a Get without an answer,
// which waits. A client that does not read its answers is not read from either, and so delays only
// itself.
//
// A waiting Get costs an entry in two maps and no goroutine: thousands of ranks wait for thousands
// of keys. A session that sets the key passes the answer to the waiting session, and never writes
// it, because writing may take time.
type session struct {
	server *Server
	conn   net.Conn
	raw    net.Conn // below TLS: closing it does not wait for the client

	writing sync.Mutex // held while a frame is written

	mu      sync.Mutex
	waiting map[uint64]string // keys of Gets put aside; nil at the end of the session
	late    []frame           // answers to them that have still to be written
	sending bool              // a goroutine writes them
}

func newSession(s *Server, conn, raw net.Conn) *session {
	return &session{server: s, conn: conn, raw: raw, waiting: make(map[uint64]string)}
}

// run serves until the connection ends, and returns the client's error, if any. A client that
// leaves, in any way, is no error.
func (s *session) run() error {
	defer s.cancelAll()
	defer s.raw.Close() // first: a writer of late answers must not wait for a client that does not read
	r := bufio.NewReader(s.conn)
	for {
		f, err := readFrame(r)
		if err == nil {
			err = s.handle(f)
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
func (s *session) handle(f frame) error {
	if f.code != askCancel {
		if err := check(f.key, f.value); err != nil {
			return fmt.Errorf("%w: %w", errFrame, err)
		}
	}
	switch f.code {
	case askGet:
		return s.get(f)
	case askClaim:
		holder, waited, err := s.server.table.claim(f.key, f.value)
		for w := range waited {
			w.session.deliver(w.id, f.key, holder)
		}
		return s.answer(f.id, holder, err)
	case askCancel:
		s.cancel(f.id)
		return nil
	}
	return fmt.Errorf("%w: unknown request %d", errFrame, f.code)
}

// get answers a Get, now or when its key is set.
func (s *session) get(f frame) error {
	s.mu.Lock()
	_, twice := s.waiting[f.id]
	full := len(s.waiting) >= maxWaiting
	if !twice && !full {
		s.waiting[f.id] = f.key
	}
	s.mu.Unlock()
	if twice {
		return fmt.Errorf("%w: request %d is already being served", errFrame, f.id)
	}
	if full {
		return s.answer(f.id, nil, fmt.Errorf("%w: %d Gets of this client are already waiting", ErrLimit, maxWaiting))
	}
	value, ok := s.server.table.get(f.key, waiter{s, f.id})
	if !ok {
		return nil
	}
	s.mu.Lock()
	delete(s.waiting, f.id)
	s.mu.Unlock()
	return s.answer(f.id, value, nil)
}

// deliver answers a waiting Get of key, unless the client has given it up.
func (s *session) deliver(id uint64, key string, value []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting[id] != key { // no key is empty
		return
	}
	delete(s.waiting, id)
	s.late = append(s.late, frame{id: id, code: replyOK, value: value})
	if !s.sending {
		s.sending = true
		s.server.tasks.Go(s.send)
	}
}

// send writes late answers until there are none.
func (s *session) send() {
	for {
		s.mu.Lock()
		list := s.late
		s.late = nil
		s.sending = len(list) > 0
		s.mu.Unlock()
		if len(list) == 0 {
			return
		}
		for _, f := range list {
			if s.write(f) != nil {
				break // the reader notices that the connection has ended
			}
		}
	}
}

// cancel ends a Get that waits.
func (s *session) cancel(id uint64) {
	s.mu.Lock()
	key, ok := s.waiting[id]
	delete(s.waiting, id)
	s.mu.Unlock()
	if ok {
		s.server.table.forget(key, waiter{s, id})
	}
}

// cancelAll ends all Gets that wait.
func (s *session) cancelAll() {
	s.mu.Lock()
	waiting := s.waiting
	s.waiting = nil
	s.mu.Unlock()
	for id, key := range waiting {
		s.server.table.forget(key, waiter{s, id})
	}
}

// answer writes a reply. A request can only fail because of limits.
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
