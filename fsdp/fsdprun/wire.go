package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// wire carries messages between two hosts, as JSON. An end without messages sends an empty one
// every quarter of silence. If an end receives nothing for silence, it treats the other end as
// gone. The time in which a process is stopped counts as only one look: messages that have arrived
// meanwhile, or arrive once the other end runs again, too, are still read.
type wire struct {
	conn    net.Conn
	raw     net.Conn // below TLS: closing it does not wait for the other end
	limit   *io.LimitedReader
	decoder *json.Decoder
	out     chan any
	closed  chan struct{}
	writing sync.WaitGroup
}

const (
	silence    = 20 * time.Second // as between ranks
	maxMessage = 64 << 20         // bytes; the endings of many ranks have the ends of their output
	maxUnsent  = 64               // messages
	looks      = 20               // number of parts of silence
)

// patient is a connection whose reader gives up after silence.
type patient struct{ net.Conn }

func (p patient) Read(b []byte) (n int, err error) {
	for range looks {
		p.SetReadDeadline(time.Now().Add(silence / looks))
		if n, err = p.Conn.Read(b); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
	}
	return n, err
}

func newWire(conn, raw net.Conn) *wire {
	w := &wire{
		conn: conn, raw: raw, limit: &io.LimitedReader{R: patient{conn}},
		out: make(chan any, maxUnsent), closed: make(chan struct{}),
	}
	w.decoder = json.NewDecoder(w.limit)
	w.writing.Go(w.write)
	return w
}

// send does not wait. If the other end does not take its messages, send closes the connection.
func (w *wire) send(message any) {
	select {
	case w.out <- message:
	default:
		w.raw.Close()
	}
}

func (w *wire) write() {
	encoder := json.NewEncoder(w.conn)
	beat := time.NewTicker(silence / 4)
	defer beat.Stop()
	for {
		var message any = struct{}{}
		select {
		case message = <-w.out:
		case <-beat.C:
		case <-w.closed:
			return
		}
		w.conn.SetWriteDeadline(time.Now().Add(silence))
		if encoder.Encode(message) != nil {
			w.raw.Close() // the reader says why
			return
		}
	}
}

// read waits for a message, which may be empty. message must be zero.
func (w *wire) read(message any) error {
	w.limit.N = maxMessage
	err := w.decoder.Decode(message)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("no word for %v", silence)
	case errors.Is(err, io.EOF):
		return errors.New("it has closed the connection")
	}
	return err
}

// close closes the connection.
func (w *wire) close() {
	close(w.closed)
	w.raw.Close()
	w.writing.Wait()
}
