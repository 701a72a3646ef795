package mesh

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
)

// The roll is the list of all ranks of a mesh of many, as records in lines. Each rank sends its
// record up the tree when it is connected to all its neighbours, and passes on those that come from
// below. When the root has all, so that all are connected, it sends them down in their order;
// who has them all has joined, and says to its neighbours that it is ready. Whoever hears that and
// does not have the roll a second later asks that neighbour for it, by an empty part: the way down
// may lead past a rank that is stopped, and that one alone should be missing.

// hearRoll handles a part of the roll, or the wish for it.
func (m *Mesh) hearRoll(p *peer, body []byte) error {
	if !m.sparse {
		return errors.New("protocol error: a list of ranks")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	self := m.cfg.Rank
	switch {
	case m.joined():
		if len(body) == 0 {
			m.sendRoll(p.rank)
		}
		return nil
	case self != 0 && (p.rank == parent(self) || p.ready):
		for _, r := range m.near {
			if r != 0 && parent(r) == self {
				_ = m.peers[r].post(frameRoll, body, nil) // if it has ended, its run tells
			}
		}
	case parent(p.rank) != self || p.rank == 0:
		return fmt.Errorf("protocol error: a list of ranks from rank %d", p.rank)
	case self != 0:
		m.upward = append(m.upward, bytes.Clone(body))
		m.sendUp()
		return nil
	}
	return m.enter(body)
}

// sendUp sends what has come from below to the parent once all neighbours are connected. The caller
// holds m.mu.
func (m *Mesh) sendUp() {
	if !m.linked {
		return
	}
	for _, body := range m.upward {
		_ = m.peers[parent(m.cfg.Rank)].post(frameRoll, body, nil) // if it has ended, its run tells
	}
	m.upward = nil
}

// allLinked notes that all neighbours are connected. The caller holds m.mu.
func (m *Mesh) allLinked() {
	m.linked = true
	if m.cfg.Rank == 0 {
		_ = m.enter(encode(m.self)) // it is well-formed
		return
	}
	m.upward = append(m.upward, encode(m.self))
	m.sendUp()
}

// enter puts records in the list, and ends joining with the last. The caller holds m.mu.
func (m *Mesh) enter(lines []byte) error {
	for line := range bytes.SplitSeq(lines, []byte{'\n'}) {
		who, err := decode[record](line)
		if err != nil {
			return err
		}
		if who.Size != m.cfg.Size {
			return fmt.Errorf("protocol error: a rank of a job of %d", who.Size)
		}
		if m.who[who.Rank].TCP == "" {
			m.known++
		}
		m.who[who.Rank] = who
	}
	if m.known < m.cfg.Size {
		return nil
	}
	if m.cfg.Rank == 0 {
		m.sendRoll(slices.DeleteFunc(slices.Clone(m.near), func(r int) bool { return parent(r) != 0 })...)
	}
	for _, r := range m.near {
		_ = m.peers[r].post(frameReady, nil, nil) // if it has ended, its run tells
	}
	close(m.complete)
	return nil
}

// missRoll asks a neighbour that is ready for the roll if that does not come. The caller holds m.mu.
func (m *Mesh) missRoll(rank int) {
	if m.asked || m.closed || m.joined() {
		return
	}
	m.asked = true
	m.running.Go(func() {
		if m.wait(linger) && !m.joined() {
			_ = m.peers[rank].post(frameRoll, nil, nil) // if it has ended, its run tells
		}
	})
}

// sendRoll sends the whole list to some neighbours. The caller holds m.mu.
func (m *Mesh) sendRoll(ranks ...int) {
	var part []byte
	send := func() {
		for _, r := range ranks {
			_ = m.peers[r].post(frameRoll, part, nil) // if it has ended, its run tells
		}
		part = part[:0]
	}
	for _, who := range m.who {
		line := encode(who)
		if len(part)+1+len(line) > MaxMessage {
			send()
		}
		if len(part) > 0 {
			part = append(part, '\n')
		}
		part = append(part, line...)
	}
	send()
}

// joined reports whether all ranks have joined.
func (m *Mesh) joined() bool {
	select {
	case <-m.complete:
		return true
	default:
		return false
	}
}
