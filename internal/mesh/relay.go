package mesh

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// relay is the state of a rank in a mesh of many about news and about ranks that have ended, see
// "Many ranks".
type relay struct {
	mu     sync.Mutex
	begun  uint64         // news of this rank's own
	passed map[int]uint64 // number of the latest news that were passed on, by origin
	via    map[int]*peer  // the neighbours that have brought them
	fates  map[int]*fate  // of ranks that have ended, or whose end is waited for
	events []event        // for the Handler
	work   chan struct{}  // has room for one: there are events
}

// fate is the end of a rank.
type fate struct {
	over  chan struct{} // closed at the end
	ended error         // how, then
}

// event is a call of the Handler.
type event struct {
	about int
	msg   []byte
	ended error // why nothing more will come, nil for a message
}

func newRelay() relay {
	return relay{passed: map[int]uint64{}, via: map[int]*peer{}, fates: map[int]*fate{}, work: make(chan struct{}, 1)}
}

// fate returns the end of a rank, which may be still to come. The caller holds r.mu.
func (r *relay) fate(rank int) *fate {
	if r.fates[rank] == nil {
		r.fates[rank] = &fate{over: make(chan struct{})}
	}
	return r.fates[rank]
}

// ended returns how a rank has ended, nil if that is not known. The caller holds r.mu.
func (r *relay) ended(rank int) error {
	if f := r.fates[rank]; f != nil && f.ended != nil {
		return fmt.Errorf("mesh: %w", f.ended)
	}
	return nil
}

// end records that a rank has ended. It reports false if that was known. The caller holds r.mu.
func (r *relay) end(rank int, err error) bool {
	f := r.fate(rank)
	if f.ended != nil {
		return false
	}
	f.ended = err
	close(f.over)
	r.events = append(r.events, event{about: rank, ended: err})
	r.ring()
	return true
}

// message passes a message of a rank to the Handler, unless the rank has ended. The caller holds
// r.mu.
func (r *relay) message(from int, msg []byte) {
	if f := r.fates[from]; f == nil || f.ended == nil {
		r.events = append(r.events, event{about: from, msg: slices.Clone(msg)})
		r.ring()
	}
}

func (r *relay) ring() {
	select {
	case r.work <- struct{}{}:
	default:
	}
}

// report calls the Handler, one event after the other, until Close.
func (m *Mesh) report() {
	for {
		select {
		case <-m.relay.work:
		case <-m.closing:
			return
		}
		m.relay.mu.Lock()
		events := m.relay.events
		m.relay.events = nil
		m.relay.mu.Unlock()
		for _, e := range events {
			if !m.open() {
				return
			}
			switch h := m.cfg.Handler; {
			case e.ended == nil:
				h.Message(e.about, e.msg)
			case errors.Is(e.ended, ErrGone):
				h.Gone(e.about)
			default:
				h.Lost(e.about, e.ended)
			}
		}
	}
}

// Tell queues a control message to several ranks, ascending, which may include this one. It arrives
// at the ranks that have not ended.
func (m *Mesh) Tell(ranks []int, msg []byte) {
	if m.sparse {
		m.relay.mu.Lock()
		defer m.relay.mu.Unlock()
		m.flood(&news{kind: newsMessage, about: m.cfg.Rank, to: spans(ranks), text: msg})
		return
	}
	for _, r := range ranks {
		if r != m.cfg.Rank {
			_ = m.Send(r, msg) // all learn of a rank that has ended
		}
	}
}

// Relays reports whether this rank's messages of Tell, and the news of the end of others, reach all
// ranks even if connections between some of them are cut.
func (m *Mesh) Relays() bool { return m.sparse }

// flood begins to spread news. The caller holds m.relay.mu.
func (m *Mesh) flood(n *news) {
	m.relay.begun++
	n.origin, n.number = m.cfg.Rank, m.relay.begun
	m.pass(n.encode(), nil)
}

// pass sends encoded news to all neighbours but the one that they came from. The caller holds
// m.relay.mu, so all get them in the same order.
func (m *Mesh) pass(body []byte, from *peer) {
	for _, r := range m.near {
		if p := m.peers[r]; p != from {
			_ = p.post(frameNews, body, nil) // all learn of a rank that has ended
		}
	}
}

// hearNews handles news that a neighbour has passed on.
func (m *Mesh) hearNews(from *peer, body []byte) error {
	n, err := decodeNews(body, m.cfg.Size)
	if err != nil || !m.open() {
		return err
	}
	r := &m.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	if n.origin == m.cfg.Rank || n.number <= r.passed[n.origin] {
		return nil
	}
	r.passed[n.origin], r.via[n.origin] = n.number, from
	if f := r.fates[n.about]; n.kind == newsLost && f != nil && f.ended != nil {
		return nil // this rank has spread the news already
	}
	m.pass(body, from)
	switch {
	case n.kind == newsMessage && n.concerns(m.cfg.Rank) && n.about != m.cfg.Rank:
		r.message(n.about, n.text)
	case n.kind == newsMessage:
	case n.kind == newsGone:
		r.end(n.about, fmt.Errorf("rank %d %w", n.about, ErrGone))
	case n.about == m.cfg.Rank:
		r.end(n.origin, fmt.Errorf("rank %d has lost its connection to this rank: %s", n.origin, n.text))
	default:
		r.end(n.about, errors.New(string(n.text)))
	}
	return nil
}

// peerEnded handles the end of a neighbour.
func (m *Mesh) peerEnded(p *peer, err error) {
	m.relay.mu.Lock()
	defer m.relay.mu.Unlock()
	if m.relay.end(p.rank, err) && !errors.Is(err, ErrGone) {
		m.flood(&news{kind: newsLost, about: p.rank, text: []byte(err.Error())})
	}
}

// routed is a message on its way: author and addressee, 4 bytes each, big-endian, and the message.
const routedHeader = 8

// route sends a message on towards a rank that is not a neighbour. It takes the way back of that
// rank's latest news, such as a question, which no hanging rank has passed on. Without news it
// chooses the neighbour nearest to that rank. The caller holds m.relay.mu.
func (m *Mesh) route(author, to int, msg []byte) {
	best, next := distance(m.cfg.Rank, to, m.cfg.Size), (*peer)(nil)
	for _, r := range m.near {
		if f := m.relay.fates[r]; f != nil && f.ended != nil {
			continue
		}
		if d := distance(r, to, m.cfg.Size); d < best {
			best, next = d, m.peers[r]
		}
	}
	if p := m.relay.via[to]; p != nil {
		next = p
	}
	if next != nil {
		body := binary.BigEndian.AppendUint32(make([]byte, 0, routedHeader+len(msg)), uint32(author))
		body = binary.BigEndian.AppendUint32(body, uint32(to))
		if next.post(frameRouted, append(body, msg...), nil) == nil {
			return
		}
	}
	// Flooding finds another way.
	m.flood(&news{kind: newsMessage, about: author, to: spans([]int{to}), text: msg})
}

// hearRouted handles a message that a neighbour has sent on.
func (m *Mesh) hearRouted(body []byte) error {
	if len(body) < routedHeader {
		return errNews
	}
	author, to := int(binary.BigEndian.Uint32(body)), int(binary.BigEndian.Uint32(body[4:]))
	if author >= m.cfg.Size || to >= m.cfg.Size {
		return errNews
	}
	if !m.open() {
		return nil
	}
	m.relay.mu.Lock()
	defer m.relay.mu.Unlock()
	if to == m.cfg.Rank {
		m.relay.message(author, body[routedHeader:])
	} else {
		m.route(author, to, body[routedHeader:])
	}
	return nil
}

// relayed handles frames that only ranks of a mesh of many send.
func (m *Mesh) relayed(from *peer, kind frameKind, body []byte) error {
	switch {
	case !m.sparse:
		return fmt.Errorf("protocol error: frame of kind %d in a mesh of %d", kind, m.cfg.Size)
	case kind == frameNews:
		return m.hearNews(from, body)
	}
	return m.hearRouted(body)
}

// hearMessage handles a message from a neighbour itself.
func (m *Mesh) hearMessage(from *peer, msg []byte) {
	switch {
	case !m.open():
	case m.sparse:
		m.relay.mu.Lock()
		defer m.relay.mu.Unlock()
		m.relay.message(from.rank, msg)
	default:
		m.cfg.Handler.Message(from.rank, msg)
	}
}
