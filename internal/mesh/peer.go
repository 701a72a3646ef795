package mesh

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// maxUnsent is how many bytes may wait for a peer that does not read. A file counts as heldFile
// bytes.
const (
	maxUnsent = 1 << 20
	maxPassed = 32 << 20 // the same in a mesh of many: news of all ranks may come at once
	heldFile  = 4 << 10
)

var (
	errDied   = errors.New("the connection ended unexpectedly: has the process died?")
	errCut    = fmt.Errorf("the host has not answered for %v: is the host or the link down?", Unanswered)
	errUnread = fmt.Errorf("the rank does not read its messages: %d bytes are waiting for it", maxUnsent)
)

// filePasser is a control connection inside a host.
type filePasser interface {
	io.Reader
	// hold returns our own file for the open file f, so that the caller may close f.
	hold(f *os.File) (*os.File, error)
	// send writes a frame with the file attached to it.
	send(frame []byte, f *os.File) error
	// arrived returns the first file that has come with the bytes read so far, and forgets it; nil
	// if there is none. The file of the next frame may have come as well.
	arrived() *os.File
}

// peer is the control connection to one other rank: a goroutine that reads (run), and one that
// writes while there is something to write.
type peer struct {
	m     *Mesh
	rank  int
	who   record
	conn  controlConn
	files filePasser // conn, if files can be passed; else nil
	ready bool       // the frame has come; only run uses it

	mu      sync.Mutex
	queue   []outgoing
	unsent  int           // bytes in queue and being written
	writing bool          // there is a goroutine that writes
	sealed  bool          // nothing may be added to queue; the connection is half-closed after it
	written chan struct{} // closed when nothing more will be written
	leaves  bool          // this side leaves
	fault   error         // the error that broke the connection, unless it just ended
	fate                  // ended is why nothing more will come from the rank
}

// outgoing is an encoded frame.
type outgoing struct {
	frame []byte
	file  *os.File // attached to it, our own; or nil
}

func (o outgoing) size() int {
	if o.file != nil {
		return len(o.frame) + heldFile
	}
	return len(o.frame)
}

func newPeer(m *Mesh, rank int, who record, conn controlConn) *peer {
	p := &peer{m: m, rank: rank, who: who, conn: conn, fate: fate{over: make(chan struct{})}, written: make(chan struct{})}
	p.files, _ = conn.(filePasser)
	return p
}

// String names the peer in errors.
func (p *peer) String() string { return fmt.Sprintf("rank %d on %v", p.rank, p.who.process) }

// post queues a frame, with a file that becomes the peer's.
func (p *peer) post(kind frameKind, body []byte, file *os.File) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.enqueue(kind, body, file)
}

// enqueue is post for callers that hold p.mu.
func (p *peer) enqueue(kind frameKind, body []byte, file *os.File) error {
	out := outgoing{appendFrame(make([]byte, 0, frameHeader+len(body)), kind, body), file}
	switch {
	case p.ended != nil:
		return fmt.Errorf("mesh: %w", p.ended)
	case p.fault != nil:
		return fmt.Errorf("mesh: %v: %w", p, p.fault)
	case p.sealed:
		return fmt.Errorf("mesh: %w", ErrClosed)
	case p.unsent+out.size() > kind.mostUnsent(p.m.sparse):
		p.breakOff(errUnread, 0)
		return fmt.Errorf("mesh: %v: %w", p, errUnread)
	}
	p.queue = append(p.queue, out)
	p.unsent += out.size()
	p.startWriting()
	return nil
}

// startWriting starts a goroutine that writes the queue. The caller holds p.mu.
func (p *peer) startWriting() {
	if !p.writing {
		p.writing = true
		go p.write()
	}
}

// farewell queues the last frame and limits the remaining time of the connection.
func (p *peer) farewell(kind frameKind, body []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.enqueue(kind, body, nil) // a peer that has ended needs no message
	p.leaves = true
	p.seal()
	if p.fault == nil {
		_ = p.conn.SetDeadline(time.Now().Add(linger)) // it fails on a closed connection only
	}
}

// seal prevents further queueing. The caller holds p.mu.
func (p *peer) seal() {
	if !p.sealed {
		p.sealed = true
		p.startWriting()
	}
}

// breakOff makes err the reason why the connection ends, and lets the reader read for another while
// the data that the other side has sent. The caller holds p.mu.
func (p *peer) breakOff(err error, while time.Duration) {
	if p.fault == nil {
		p.fault = err
	}
	p.seal()
	_ = p.conn.SetDeadline(time.Now().Add(while)) // it fails on a closed connection only
}

// run reads until the rank has ended, and passes its frames to the mesh.
func (p *peer) run() {
	last := p.read()
	err := p.finish(last)
	p.mu.Lock()
	if errors.Is(last, ErrGone) {
		p.seal() // queued frames may still be needed
		_ = p.conn.SetWriteDeadline(time.Now().Add(linger))
	} else {
		p.breakOff(err, 0)
	}
	p.mu.Unlock()
	p.m.ended(p, err)
	<-p.written
	_ = p.conn.Close() // both directions have ended
	for _, o := range p.queue {
		o.drop()
	}
	if p.files != nil {
		for f := p.files.arrived(); f != nil; f = p.files.arrived() {
			_ = f.Close() // it came without its frame
		}
	}
}

// finish records and returns why nothing more will come.
func (p *peer) finish(err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var gaveUp *setback
	switch {
	case p.leaves:
		err = ErrClosed
	case errors.Is(err, ErrGone):
		err = fmt.Errorf("rank %d %w", p.rank, ErrGone)
	case errors.As(err, &gaveUp):
		err = gaveUp
	case p.fault != nil:
		err = fmt.Errorf("%v: %w", p, p.fault)
	default:
		err = fmt.Errorf("%v: %w", p, explain(err))
	}
	p.ended = err
	close(p.over)
	return err
}

// explain turns the end of a connection into an error of this package.
func explain(err error) error {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE),
		errors.Is(err, net.ErrClosed):
		return errDied
	case errors.Is(err, syscall.ETIMEDOUT):
		return errCut
	}
	return err
}

// read handles frames until the last one. It never returns nil.
func (p *peer) read() error {
	in := newFrameReader(p.conn)
	for {
		kind, body, err := in.next()
		switch {
		case err != nil:
			return err
		case kind != frameAbort && kind != frameRoll && p.ready == (kind == frameReady):
			return fmt.Errorf("protocol error: frame of kind %d out of turn", kind)
		}
		switch kind {
		case frameReady:
			p.ready = true
			p.m.othersReady(p.rank)
		case frameRoll:
			err = p.m.hearRoll(p, body)
		case frameMessage:
			p.m.hearMessage(p, body)
		case frameNews, frameRouted:
			err = p.m.relayed(p, kind, body)
		case frameFile:
			err = p.m.receiveFile(p.rank, p.files, binary.BigEndian.Uint64(body))
		case frameGoodbye:
			return ErrGone
		case frameAbort:
			gaveUp, err := decode[setback](body)
			if err != nil {
				return err
			}
			return &gaveUp
		}
		if err != nil {
			return err
		}
	}
}

// receiveFile keeps the file that came with a frame.
func (m *Mesh) receiveFile(rank int, conn filePasser, tag uint64) error {
	if conn == nil {
		return errors.New("protocol error: a file from another host")
	}
	f := conn.arrived()
	if f == nil {
		return errors.New("protocol error: a frame announces a file that did not come")
	}
	if err := m.files.put(label{rank: rank, id: tag}, f); err != nil {
		_ = f.Close() // the first error counts
		return fmt.Errorf("file %d: %w", tag, err)
	}
	return nil
}

// write sends the queue, and half-closes the connection at the end.
func (p *peer) write() {
	for {
		batch, last := p.collect()
		for i, o := range batch {
			if err := p.transmit(o); err != nil {
				for _, rest := range batch[i:] {
					rest.drop()
				}
				p.broken(err)
				close(p.written)
				return
			}
			o.drop()
			p.mu.Lock()
			p.unsent -= o.size()
			p.mu.Unlock()
		}
		switch {
		case last:
			if err := p.conn.CloseWrite(); err != nil {
				p.broken(err)
			}
			close(p.written)
			return
		case len(batch) == 0:
			return
		}
	}
}

// collect takes the frames to send. If there are none, this is the end of the goroutine, and of all
// writing if nothing may be added.
func (p *peer) collect() (batch []outgoing, last bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	batch, p.queue = p.queue, nil
	if len(batch) == 0 {
		p.writing, last = p.sealed, p.sealed // no other begins after the last
	}
	return batch, last
}

func (p *peer) transmit(o outgoing) error {
	if o.file != nil {
		return p.files.send(o.frame, o.file)
	}
	_, err := p.conn.Write(o.frame)
	return err
}

func (o outgoing) drop() {
	if o.file != nil {
		_ = o.file.Close() // the other side has its own, or never will
	}
}

// broken handles a failure to write. Frames that the other side has sent before it went, perhaps a
// goodbye, can still be read.
func (p *peer) broken(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fault == nil {
		p.breakOff(explain(err), linger)
	}
}
