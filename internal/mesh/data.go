package mesh

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"

	"github.com/gofsdp/gofsdp/internal/auth"
)

// Connect opens a data connection to another rank, which calls Connect with the
// same channel. Both get one end of a new TCP connection: a *net.TCPConn, or with
// TLS a *tls.Conn, for the caller to close.
//
// The higher rank dials. Its Connect may return before the other's is called,
// for a connection waits, one on each channel, until it is asked for.
func (m *Mesh) Connect(ctx context.Context, rank int, channel uint64) (net.Conn, error) {
	p, err := m.peer(rank)
	if err != nil {
		return nil, err
	}
	ctx, done := m.with(ctx, p)
	defer done()
	var conn net.Conn
	if rank > m.cfg.Rank {
		conn, err = m.conns.take(ctx, label{rank, channel})
	} else {
		v := visit{process: m.self.process, Channel: channel}
		conn, err = m.dial(ctx, "tcp", p.who.TCP, rank, auth.Hello{Purpose: purposeData}, v)
	}
	if err != nil {
		return nil, fmt.Errorf("mesh: data connection of rank %d to rank %d on channel %#x: %w", m.cfg.Rank, rank, channel, err)
	}
	return conn, nil
}

// SendFile passes an open file to a rank of this host under a tag, in order with
// the messages. The caller may close the file at once. Files under one tag
// arrive in order, too; at most 256 may wait until they are asked for.
func (m *Mesh) SendFile(to int, tag uint64, f *os.File) error {
	p, err := m.peer(to)
	if err != nil {
		return err
	}
	if p.files == nil {
		return fmt.Errorf("mesh: no file can be passed to %v from %v", p, m.self.process)
	}
	own, err := p.files.hold(f)
	if err != nil {
		return fmt.Errorf("mesh: file for rank %d: %w", to, err)
	}
	if err := p.post(frameFile, binary.BigEndian.AppendUint64(nil, tag), own); err != nil {
		_ = own.Close() // the first error counts
		return err
	}
	return nil
}

// File waits for the file that rank of this host sends under a tag. A file that
// came before its sender ended can still be had. The caller closes it.
func (m *Mesh) File(ctx context.Context, from int, tag uint64) (*os.File, error) {
	p, err := m.peer(from)
	if err != nil {
		return nil, err
	}
	if p.files == nil {
		return nil, fmt.Errorf("mesh: no file can come from %v to %v", p, m.self.process)
	}
	ctx, done := m.with(ctx, p)
	defer done()
	f, err := m.files.take(ctx, label{from, tag})
	if err != nil {
		return nil, fmt.Errorf("mesh: file %#x from rank %d: %w", tag, from, err)
	}
	return f, nil
}

// with returns a context that also ends with p and with the mesh. done releases it.
func (m *Mesh) with(ctx context.Context, p *peer) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-p.over:
			cancel(p.ended)
		case <-m.closing:
			cancel(ErrClosed)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil); <-watched }
}
