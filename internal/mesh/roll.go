package mesh

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"unique"
)

// The roll is the list of all ranks of a mesh of many. Each rank sends its record up the tree when
// it is connected to all its neighbours, and passes on records from below. When the root has all,
// so that all are connected, it sends them down as pages, in their order. A rank that has them all
// has joined, and reports to its neighbours that it is ready. A rank that gets this report and does
// not have the roll a second later asks that neighbour for it, by an empty part: the way down may
// lead past a rank that is stopped, and only that rank should be missing.
//
// A rank keeps the pages as they are, and finds in them the fields that it needs. Ranks that are
// goroutines of one process share them.
type roll struct {
	pages []unique.Handle[page] // by their first rank
	known int                   // ranks in them
}

// add adds a page, unless it is there. Another one with some of its ranks is an error.
func (r *roll) add(p page) (added bool, err error) {
	i, found := r.find(p.first())
	switch {
	case found:
		return false, nil
	case i > 0 && r.pages[i-1].Value().end() > p.first(), i < len(r.pages) && p.end() > r.pages[i].Value().first():
		return false, errPage
	}
	r.pages = slices.Insert(r.pages, i, unique.Make(p))
	r.known += p.count()
	return true, nil
}

// find returns the index of the page that begins with rank first, or the index at which it would
// be.
func (r *roll) find(first int) (i int, found bool) {
	return slices.BinarySearchFunc(r.pages, first, func(h unique.Handle[page], first int) int { return h.Value().first() - first })
}

// field returns a field of the record of a rank, see fields. The roll is complete.
func (r *roll) field(rank, field int) string {
	i, found := r.find(rank)
	if !found {
		i--
	}
	p := r.pages[i].Value()
	return p.field(rank-p.first(), field)
}

// record returns the record of a rank, as far as pages contain it. The roll is complete.
func (r *roll) record(rank int) record {
	pid, _ := strconv.Atoi(r.field(rank, fieldPID)) // for people
	return record{
		process: process{Host: r.field(rank, fieldHost), Name: r.field(rank, fieldName), PID: pid, Nonce: r.field(rank, fieldNonce), Note: r.field(rank, fieldNote)},
		Rank:    rank, TCP: r.field(rank, fieldTCP), Unix: r.field(rank, fieldUnix),
	}
}

// hearRoll handles a part of the roll, or the request for it.
func (m *Mesh) hearRoll(p *peer, body []byte) error {
	if !m.sparse {
		return errors.New("protocol error: unexpected list of ranks")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch self := m.cfg.Rank; {
	case m.joined():
		if len(body) == 0 {
			m.sendRoll(p.rank)
		}
	case self != 0 && (p.rank == parent(self) || p.ready):
		return m.hearPage(body)
	case parent(p.rank) != self || p.rank == 0:
		return fmt.Errorf("protocol error: unexpected list of ranks from rank %d", p.rank)
	case self == 0:
		return m.enter(body)
	default:
		m.upward = append(m.upward, bytes.Clone(body))
		m.sendUp()
	}
	return nil
}

// hearPage keeps a page and passes it down. The root sends pages once it has the
// records of all ranks, so this one is connected to its neighbours. The caller holds m.mu.
func (m *Mesh) hearPage(body []byte) error {
	p, err := readPage(body, m.cfg.Size)
	if err != nil || !m.linked {
		return errPage
	}
	added, err := m.roll.add(p)
	if !added { // it has been passed down already, or is invalid
		return err
	}
	for _, r := range m.near {
		if r != 0 && parent(r) == m.cfg.Rank {
			_ = m.peers[r].post(frameRoll, body, nil) // if it has ended, its run reports it
		}
	}
	m.turnPage()
	return nil
}

// sendUp sends the records from below to the parent once all neighbours are connected. The caller
// holds m.mu.
func (m *Mesh) sendUp() {
	if !m.linked {
		return
	}
	for _, body := range m.upward {
		_ = m.peers[parent(m.cfg.Rank)].post(frameRoll, body, nil) // if it has ended, run reports it
	}
	m.upward = nil
}

// allLinked records that all neighbours are connected. The caller holds m.mu.
func (m *Mesh) allLinked() {
	m.linked = true
	if m.cfg.Rank == 0 {
		_ = m.enter(encode(m.self)) // it is well-formed
		return
	}
	m.upward = append(m.upward, encode(m.self))
	m.sendUp()
}

// enter records a record at the root. The caller holds m.mu.
func (m *Mesh) enter(body []byte) error {
	who, err := decode[record](body)
	if err != nil {
		return err
	}
	if who.Size != m.cfg.Size {
		return fmt.Errorf("protocol error: a rank of a job of %d ranks, want %d", who.Size, m.cfg.Size)
	}
	m.heard[who.Rank] = who
	if len(m.heard) < m.cfg.Size {
		return nil
	}
	list := make([]record, m.cfg.Size)
	for r, who := range m.heard {
		list[r] = who
	}
	for _, p := range pagesOf(list, 0) {
		_, _ = m.roll.add(p) // they are of one list
	}
	m.heard = nil
	m.sendRoll(slices.DeleteFunc(slices.Clone(m.near), func(r int) bool { return parent(r) != 0 })...)
	m.turnPage()
	return nil
}

// turnPage ends joining with the last page. The caller holds m.mu.
func (m *Mesh) turnPage() {
	if m.roll.known < m.cfg.Size {
		return
	}
	for _, r := range m.near {
		_ = m.peers[r].post(frameReady, nil, nil) // if it has ended, its run reports it
	}
	close(m.complete)
}

// missRoll asks a neighbour that is ready for the roll if the roll does not come. The caller holds
// m.mu.
func (m *Mesh) missRoll(rank int) {
	if m.asked || m.closed || m.joined() {
		return
	}
	m.asked = true
	m.running.Go(func() {
		if m.wait(linger) && !m.joined() {
			_ = m.peers[rank].post(frameRoll, nil, nil) // if it has ended, its run reports it
		}
	})
}

// sendRoll sends the whole list to some neighbours. The caller holds m.mu.
func (m *Mesh) sendRoll(ranks ...int) {
	for _, p := range m.roll.pages {
		for _, r := range ranks {
			_ = m.peers[r].post(frameRoll, []byte(p.Value()), nil) // if it has ended, run reports it
		}
	}
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
