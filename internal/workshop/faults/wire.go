package main

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
)

// wire is in the middle of the TCP connections of a group, and damages one payload.
type wire struct {
	tls bool // only records are visible
	// stream hides that a connection is TCP, so that the portable pump is used
	stream bool

	mu       sync.Mutex
	armed    bool
	at       uint64 // byte of the payload, modulo its length
	mask     uint32 // bits that flip from there on
	from, to int    // ranks between which it happened
	struck   bool
	failed   error
	running  sync.WaitGroup
}

// arm damages the first payload that begins from now on.
func (w *wire) arm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.armed = true
}

// middle is a [mesh.Middle].
func (w *wire) middle(self, peer int, conn net.Conn) net.Conn {
	mine, theirs, err := loopback()
	if err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.failed = err
		return conn
	}
	var ways sync.WaitGroup
	ways.Go(func() { w.pass(theirs, conn, &stream{from: self, to: peer, tls: w.tls}) })
	ways.Go(func() { w.pass(conn, theirs, &stream{from: peer, to: self, tls: w.tls}) })
	w.running.Go(func() {
		ways.Wait()
		_, _ = conn.Close(), theirs.Close() // their users have ended them
	})
	if w.stream {
		return opaque{mine}
	}
	return mine
}

// opaque hides that a connection is TCP.
type opaque struct{ net.Conn }

// NetConn returns the connection, so that its direction can be closed.
func (o opaque) NetConn() net.Conn { return o.Conn }

// loopback returns both ends of a connection.
func loopback() (a, b net.Conn, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	if a, err = net.Dial("tcp", l.Addr().String()); err != nil {
		return nil, nil, err
	}
	if b, err = l.Accept(); err != nil {
		return nil, nil, errors.Join(err, a.Close())
	}
	return a, b, nil
}

// pass copies data until one side ends.
func (w *wire) pass(src, dst net.Conn, s *stream) {
	b := make([]byte, 64<<10)
	for {
		n, err := src.Read(b)
		s.feed(b[:n], w)
		if _, werr := dst.Write(b[:n]); werr != nil {
			_ = src.(*net.TCPConn).CloseRead() // the sender must notice, too
			return
		}
		if err == io.EOF {
			_ = dst.(*net.TCPConn).CloseWrite()
			return
		}
		if err != nil {
			abort(dst)
			return
		}
	}
}

// abort ends a connection that was reset on the other side.
func abort(c net.Conn) {
	_, _ = c.(*net.TCPConn).CloseRead(), c.(*net.TCPConn).CloseWrite()
}

// Sizes and marks of the frames of package comm and of the records of TLS.
const (
	frameMagic  = "COP5"
	frameBytes  = 96
	tailBytes   = 4
	recordBytes = 5
	recordData  = 23 // type of a record that holds data
)

// stream is one direction of a connection. It separates payloads from the rest.
type stream struct {
	from, to int
	tls      bool
	head     [frameBytes]byte
	have     int // bytes of head
	left     int // bytes of the payload still to come
	skip     int // bytes that follow it
	victim   bool
	pos, at  int // in the payload: the next byte, and the byte to damage
}

// feed reads bytes in the order of the connection, and damages the selected payload.
func (s *stream) feed(b []byte, w *wire) {
	for len(b) > 0 {
		n := 1
		switch {
		case s.left > 0:
			n = min(s.left, len(b))
			s.damage(b[:n], w.mask)
			s.left -= n
		case s.skip > 0:
			n = min(s.skip, len(b))
			s.skip -= n
		default:
			s.head[s.have] = b[0]
			s.have++
			s.heading(w)
		}
		b = b[n:]
	}
}

// heading reads the available bytes of a header.
func (s *stream) heading(w *wire) {
	if s.tls {
		if s.have == recordBytes {
			s.begin(int(binary.BigEndian.Uint16(s.head[3:])), 0, s.head[0] == recordData, w)
		}
		return
	}
	for n := min(s.have, len(frameMagic)); string(s.head[:n]) != frameMagic[:n]; n = min(s.have, len(frameMagic)) {
		copy(s.head[:], s.head[1:s.have]) // the handshake
		s.have--
	}
	if s.have == frameBytes {
		word := binary.LittleEndian.Uint64(s.head[24:])
		length, tail := int(word&(1<<47-1)), 0
		if word>>47&1 != 0 && length > 0 {
			tail = tailBytes
		}
		s.begin(length, tail, length > 0, w)
	}
}

// begin begins a payload, which may be damaged if it is one.
func (s *stream) begin(length, tail int, payload bool, w *wire) {
	s.have, s.left, s.skip, s.pos, s.victim = 0, length, tail, 0, false
	w.mu.Lock()
	defer w.mu.Unlock()
	if payload && w.armed && !w.struck {
		w.struck, w.from, w.to = true, s.from, s.to
		s.victim, s.at = true, int(w.at%uint64(length))
	}
}

// damage flips bits of the next bytes of the payload.
func (s *stream) damage(b []byte, mask uint32) {
	for i := range 4 {
		if k := s.at + i - s.pos; s.victim && k >= 0 && k < len(b) {
			b[k] ^= byte(mask >> (8 * i))
		}
	}
	s.pos += len(b)
}
