package mesh

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/gofsdp/gofsdp/internal/auth"
)

// Connect opens a data connection to another rank, which calls Connect with the
// same channel. Both get one end of a new TCP connection: a *net.TCPConn, or with
// TLS a *tls.Conn, for the caller to close. If one of them listens on several
// interfaces they get as many, in the same order.
//
// The higher rank dials. Its Connect may return before the other's is called,
// because a connection waits, one on each channel, until Connect takes it.
func (m *Mesh) Connect(ctx context.Context, rank int, channel uint64) ([]Lane, error) {
	who, end, err := m.member(rank)
	if err != nil {
		return nil, err
	}
	caller := ctx
	ctx, done := m.withPeer(ctx, end)
	defer done()
	var lanes []Lane
	if rank > m.cfg.Rank {
		lanes, err = m.takeLanes(ctx, rank, channel)
	} else {
		lanes, err = m.dialLanes(caller, ctx, who, channel)
	}
	if err != nil {
		return nil, fmt.Errorf("mesh: data connection of rank %d to rank %d on channel %#x: %w", m.cfg.Rank, rank, channel, err)
	}
	return lanes, nil
}

// Forget says that Connect will not be called with a channel any more: connections
// that others have opened on it, or still open, are closed.
func (m *Mesh) Forget(channel uint64) { m.conns.forget(channel) }

// Plain reports whether the connections that Connect returns under ctx are
// unmodified TCP, a *net.TCPConn each.
func (m *Mesh) Plain(ctx context.Context) bool {
	return m.client == nil && m.network == nil && ctx.Value(middleKey{}) == nil
}

// Modelled reports whether the network is a model and not this machine's.
func (m *Mesh) Modelled() bool { return m.network != nil }

// SendFile passes an open file to a rank of this host under a tag, in order with the
// messages. The caller may close the file at once. Files under one tag arrive in
// order, too; at most 256 may wait for calls of File.
func (m *Mesh) SendFile(to int, tag uint64, f *os.File) error {
	if m.indirect(to) {
		return m.carryFile(to, tag, f)
	}
	p, err := m.peer(to)
	if err != nil {
		return err
	}
	if p.files == nil {
		return fmt.Errorf("mesh: cannot pass a file to %v from %v, only within one host", p, m.self.process)
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

// carryFile is SendFile to a rank that is not near, over a separate connection.
func (m *Mesh) carryFile(to int, tag uint64, f *os.File) error {
	who, end, err := m.member(to)
	if err != nil {
		return err
	}
	if !m.SameHost(to) {
		return fmt.Errorf("mesh: cannot pass a file to rank %d on %v from %v, only within one host", to, who.process, m.self.process)
	}
	ctx, done := m.withPeer(context.Background(), end)
	defer done()
	conn, err := m.dial(ctx, ctx, dialTarget{network: "unix", address: who.Unix}, to, auth.Hello{Purpose: purposeFile}, visit{process: m.self.process})
	if err == nil {
		frame := appendFrame(nil, frameFile, binary.BigEndian.AppendUint64(nil, tag))
		err = errors.Join(asControl(conn).(filePasser).send(frame, f), conn.Close())
	}
	if err != nil {
		return fmt.Errorf("mesh: file for rank %d: %w", to, err)
	}
	return nil
}

// takeFile receives the file that carryFile sends.
func (m *Mesh) takeFile(from int, conn net.Conn) error {
	passer, ok := asControl(conn).(filePasser)
	if !ok {
		return errors.New("protocol error: a file from another host")
	}
	if err := conn.SetDeadline(time.Now().Add(checkTime)); err != nil {
		return err
	}
	kind, body, err := newFrameReader(passer).next()
	if err == nil && kind != frameFile {
		err = fmt.Errorf("protocol error: frame of kind %d, want a file", kind)
	}
	if err == nil {
		err = m.receiveFile(from, passer, binary.BigEndian.Uint64(body))
	}
	return errors.Join(err, conn.Close())
}

// File waits for the file that a rank of this host sends under a tag. File also
// returns a file that came before its sender ended. The caller closes it.
func (m *Mesh) File(ctx context.Context, from int, tag uint64) (*os.File, error) {
	who, end, err := m.member(from)
	if err != nil {
		return nil, err
	}
	if !m.SameHost(from) {
		return nil, fmt.Errorf("mesh: cannot pass a file from rank %d on %v to %v, only within one host", from, who.process, m.self.process)
	}
	ctx, done := m.withPeer(ctx, end)
	defer done()
	f, err := m.files.take(ctx, label{rank: from, id: tag})
	if err != nil {
		return nil, fmt.Errorf("mesh: file %#x from rank %d: %w", tag, from, err)
	}
	return f, nil
}

// member returns the record of another rank, and its end.
func (m *Mesh) member(rank int) (record, *fate, error) {
	if m.indirect(rank) {
		m.relay.mu.Lock()
		defer m.relay.mu.Unlock()
		return m.roll.record(rank), m.relay.fate(rank), nil
	}
	p, err := m.peer(rank)
	if err != nil {
		return record{}, nil, err
	}
	return p.who, &p.fate, nil
}

// withPeer returns a context that also ends with a rank and with the mesh. done releases
// it. If the rank leaves in good order meanwhile, the context ends some time later:
// a connection that the rank has accepted, and data that it has sent there before it
// left, may still be on the way.
func (m *Mesh) withPeer(ctx context.Context, rank *fate) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	select {
	case <-rank.over: // now, not when the goroutine gets to it
		cancel(rank.ended)
	default:
	}
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-rank.over:
			if errors.Is(rank.ended, ErrGone) {
				m.linger(ctx)
			}
			cancel(rank.ended)
		case <-m.closing:
			cancel(ErrClosed)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil); <-watched }
}

// linger waits, for no longer than ctx and the mesh last.
func (m *Mesh) linger(ctx context.Context) {
	timer := time.NewTimer(linger)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-m.closing:
	case <-ctx.Done():
	}
}
