//go:build mpi && cgo && unix

package mpi

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/internal/backoff"
)

// worldID is the id of the group of all ranks.
const worldID = 1

// group is the backend of one rank's handle of a process group.
//
// Messages of other ranks are written under the engine's lock as they arrive. A rank of
// the group can be one call ahead of this one, not more, because its next call needs this
// rank's. So there are two letters for each.
type group struct {
	engine *engine
	id     uint64
	name   string
	rank   int
	size   int
	world  []rankInt // world rank by rank
	parent *group

	comm   communicator
	serial *transport.Serial

	// These belong to the current collective; only Run uses them, except for seq.
	seq      atomic.Uint64
	letters  []byte    // from allocate: a call per rank of a reduce-scatter, else one for all
	calls    []request // that are sending letters
	moving   []request // of the transfer
	staging  []byte    // from allocate: two blocks for each rank, nil until needed
	sources  []comm.Buffer
	pins     *runtime.Pinner
	wait     backoff.Waiter
	halt     chan struct{} // closed by Stop
	haltOnce sync.Once

	// over is set once this rank has said that it makes no more calls.
	over atomic.Bool

	// Written under the engine's lock.
	heard              []atomic.Uint64 // by rank: number of the last call
	bodies             [][]byte        // of calls: the call of rank r and number s is at 2*r + s%2
	sizes              []int           // of the bodies
	silent             []bool          // by rank: it makes no more calls
	closed             []bool          // by rank: it has closed its handle; also this one
	abandoned          bool            // a transfer was abandoned here
	abandonedElsewhere bool            // or on a rank that has left since
	early              []news          // that came before serial
	leaver             int             // the first rank that left, -1 if none did before a fault
	fault              error           // of the group, except that a rank has closed
	children           map[*group]struct{}
}

// newGroup makes the group of the given world ranks. From now on it receives messages.
func newGroup(e *engine, parent *group, id uint64, name string, rank int, world []rankInt) *group {
	n := len(world)
	g := &group{
		engine: e, id: id, name: name, rank: rank, size: n, world: world, parent: parent,
		letters: allocate(n * maxCall), calls: requests(n - 1), moving: requests(2 * (n - 1)),
		wait: backoff.Waiter{Policy: &waiting}, halt: make(chan struct{}), pins: new(runtime.Pinner),
		heard: make([]atomic.Uint64, n), bodies: make([][]byte, 2*n), sizes: make([]int, 2*n),
		silent: make([]bool, n), closed: make([]bool, n), leaver: -1, children: map[*group]struct{}{},
	}
	memory := make([]byte, 2*n*maxBody)
	for i := range g.bodies {
		g.bodies[i] = memory[i*maxBody : (i+1)*maxBody]
	}
	e.mu.Lock()
	e.groups[id] = g
	e.mu.Unlock()
	return g
}

// open makes the handle, which gets the earlier messages of the other ranks first.
func (g *group) open() {
	s := transport.NewSerial(g.name, g.rank, g.size, g)
	e := g.engine
	e.mu.Lock()
	g.serial = s
	e.news = append(e.news, g.early...)
	g.early = nil
	var fault error
	if p := g.parent; p != nil {
		p.children[g] = struct{}{}
		fault = p.fault
	}
	e.mu.Unlock()
	if fault != nil {
		g.spread(fault)
	}
	e.tell()
}

// index returns the rank of a world rank, or -1.
func (g *group) index(world int) int {
	if g.id == worldID {
		return world
	}
	return slices.Index(g.world, rankInt(world))
}

// called records a call of another rank. Called with the engine's lock.
func (g *group) called(rank int, m message) error {
	if want := g.heard[rank].Load() + 1; m.seq != want || m.seq > g.seq.Load()+1 || g.silent[rank] {
		return fmt.Errorf("it calls collective #%d of group %q, want #%d", m.seq, g.name, want)
	}
	i := 2*rank + int(m.seq%2)
	g.sizes[i] = copy(g.bodies[i], m.body)
	g.heard[rank].Store(m.seq)
	return nil
}

// ended records that another rank will make no more calls. Called with the engine's lock.
func (g *group) ended(rank int, m message) {
	g.silent[rank] = true
	switch n := (news{g, rank, m}); {
	case m.what == stop:
		g.fallSilent() // reports to the others that this rank will not call, either
	case g.serial == nil:
		g.early = append(g.early, n)
	default:
		g.engine.news = append(g.engine.news, n)
	}
	if m.what == left {
		g.closed[rank] = true
		g.abandonedElsewhere = g.abandonedElsewhere || m.flags&abandoned != 0
		g.dissolve()
	}
}

// hear passes a message of another rank to the handle.
func (g *group) hear(n news) {
	if len(n.body) > 0 {
		cause, err := transport.UnmarshalError(n.body)
		if err != nil {
			cause = &comm.RankError{Group: g.name, Rank: n.from, Err: err}
		}
		g.spread(cause)
	}
	if n.what == left {
		g.noteLeaver(n.first)
		g.serial.Left(n.first, n.seq)
	}
}

// noteLeaver records that a rank has left, if that is the first bad news.
func (g *group) noteLeaver(rank int) {
	g.engine.mu.Lock()
	defer g.engine.mu.Unlock()
	if g.leaver < 0 && g.fault == nil {
		g.leaver = rank
	}
}

// spread makes err the failure of this handle and of the handles split from it.
func (g *group) spread(err error) {
	g.engine.mu.Lock()
	if g.fault == nil {
		g.fault = err
	}
	children := g.childList()
	g.engine.mu.Unlock()
	g.serial.Failed(err)
	for _, c := range children {
		c.spread(err)
	}
}

// childList lists the children. Called with the engine's lock.
func (g *group) childList() []*group {
	var list []*group
	for c := range g.children {
		list = append(list, c)
	}
	return list
}

// say posts a message to every other rank.
func (g *group) say(m message) {
	m.group = g.id
	body := m.encode()
	for r, world := range g.world {
		if r != g.rank {
			g.engine.post(world, body)
		}
	}
}

// fallSilent reports that this rank makes no more calls, unless it has done so.
func (g *group) fallSilent() {
	if !g.over.Swap(true) {
		g.say(message{what: stop})
	}
}

// Tell implements [transport.Backend]. It first makes the children of this group fail with this
// rank's error. Then it sends the news to the other ranks, whose answers would make the children
// fail with another error.
func (g *group) Tell(err error) {
	g.over.Store(true)
	g.spread(err)
	g.say(message{what: failed, body: transport.MarshalError(g.name, g.rank, err)})
}

// Stop implements [transport.Backend].
func (g *group) Stop() {
	g.fallSilent()
	g.haltOnce.Do(func() { close(g.halt) })
}

// halted reports whether Stop has been called.
func (g *group) halted() bool {
	select {
	case <-g.halt:
		return true
	default:
		return false
	}
}

// failed reports whether the group has failed for another reason than closing.
func (g *group) failed() bool {
	g.engine.mu.Lock()
	defer g.engine.mu.Unlock()
	return g.fault != nil
}

// Timeout returns the limit of operations, see [transport.Timeout].
func (g *group) Timeout() time.Duration { return g.engine.timeout }

// Missing implements [transport.Backend].
func (g *group) Missing() (ranks []int) {
	seq := g.seq.Load()
	for r := range g.heard {
		if r != g.rank && g.heard[r].Load() < seq {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// present lists the ranks that have not left, according to the messages so far. Called with the
// engine's lock.
func (g *group) present() (ranks []int) {
	for r, closed := range g.closed {
		if !closed {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// Split implements [transport.Backend]. Making a communicator takes all of its ranks;
// a rank that does not come in time leaves a goroutine waiting inside of MPI.
func (g *group) Split(ctx context.Context, seq uint64, color int, ranks []int) (comm.Group, error) {
	world, local := make([]rankInt, len(ranks)), make([]rankInt, len(ranks))
	for i, r := range ranks {
		world[i], local[i] = g.world[r], rankInt(r)
	}
	id := fnv.New64a()
	_ = binary.Write(id, binary.LittleEndian, []uint64{g.id, seq, uint64(color)}) // cannot fail
	name := fmt.Sprintf("%s/%d", g.name, color)
	child := newGroup(g.engine, g, id.Sum64(), name, slices.Index(ranks, g.rank), world)
	if len(ranks) > 1 {
		type result struct {
			comm communicator
			err  error
		}
		made, parent := make(chan result, 1), g.comm
		go func() {
			c, err := create(parent, local, int(seq%(1<<15))) // tags below 32768 always exist
			made <- result{c, err}
		}()
		var r result
		select {
		case r = <-made:
		case <-ctx.Done():
			g.abandon()
			return nil, context.Cause(ctx)
		case <-g.halt: // perhaps by a rank that has gone on already: then all have come
			select {
			case r = <-made:
			case <-time.After(grace):
				g.abandon()
				return nil, errHalted
			}
		}
		if r.err != nil {
			return nil, r.err
		}
		child.comm = r.comm
	}
	child.open()
	return child.serial, nil
}

// errHalted is the error of Run after Stop; the handle has the reason.
var errHalted = errors.New("the group has failed")

// Leave implements [transport.Backend]. A third rank must not learn first that this rank
// closes the group because of another one. So Leave reports which rank left before, or
// the failure of the group, whichever came first. A later failure is reported by the rank
// that reported it to this one.
func (g *group) Leave(last uint64) error {
	e := g.engine
	e.mu.Lock()
	children := g.childList()
	e.mu.Unlock()
	var errs []error
	for _, c := range children {
		errs = append(errs, c.serial.Close())
	}
	e.mu.Lock()
	m := message{what: left, first: g.rank, seq: last}
	if g.abandoned || g.id == worldID && e.abandoned {
		m.flags |= abandoned
	}
	if g.leaver >= 0 {
		m.first = g.leaver
	} else if g.fault != nil {
		m.body = transport.MarshalError(g.name, g.rank, g.fault)
	}
	e.mu.Unlock()
	g.over.Store(true)
	g.say(m)

	e.mu.Lock()
	g.closed[g.rank] = true
	if p := g.parent; p != nil {
		delete(p.children, g)
	}
	e.sending = append(e.sending, parcel{g.calls, g.letters})
	if g.staging != nil && !g.abandoned { // else MPI may still write there
		release(g.staging)
	}
	g.letters, g.calls, g.staging = nil, nil, nil
	g.dissolve()
	e.mu.Unlock()
	if g.id == worldID {
		errs = append(errs, e.close(g))
	}
	return errors.Join(errs...)
}

// dissolve forgets the group once every rank has left it, and frees its communicator if
// no operation can be in progress in it. Called with the engine's lock.
func (g *group) dissolve() {
	if slices.Contains(g.closed, false) {
		return
	}
	e := g.engine
	delete(e.groups, g.id)
	if g.abandoned || g.abandonedElsewhere || g.size == 1 && g.id != worldID {
		return
	}
	if err := free(g.comm); err != nil && e.err == nil {
		e.err = err
	}
}
