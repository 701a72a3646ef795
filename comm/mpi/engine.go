//go:build mpi && cgo && unix

package mpi

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/backoff"
)

const (
	// letterBoxes is how many receives are posted. Messages that find none wait in the
	// MPI library, at the price of one more copy.
	letterBoxes = 8
	// idlePoll is the interval of checks for messages while no operation is in progress.
	idlePoll = 5 * time.Millisecond
	// eager is how long a rank polls before it begins to sleep: MPI wakes no rank.
	eager = time.Millisecond
	// shortest is the first sleep. A look at MPI takes microseconds, which a rank that computes on the same
	// processor would miss.
	shortest = time.Millisecond
	// burst is how many tests are made without releasing the library.
	burst = 128
	// grace is how long a failed group waits for messages that should arrive at once.
	// Time in which this process is stopped, or has no processor, counts as a second at
	// most.
	grace = 3 * time.Second
)

// waiting is the timing of polls while nothing arrives.
var waiting = backoff.Policy{Eager: eager, Fraction: 16, Shortest: shortest, Longest: idlePoll}

// engine is this process's part in the job: the library, and the messages
// between the processes.
//
// mu is held around every use of the library, except to make communicators, which waits
// for other processes. Do not call groups with mu held.
type engine struct {
	library
	timeout time.Duration

	mu        sync.Mutex
	boxes     [][]byte
	receiving []request // into boxes
	next      int       // the box that the next message is in
	sending   []parcel
	groups    map[uint64]*group
	news      []news
	telling   bool  // a goroutine is giving groups their news
	abandoned bool  // some operation may be in progress for ever in some group
	err       error // of the library; nothing works after it

	outbox struct {
		sync.Mutex
		letters []letter
		any     atomic.Bool
	}
	kick chan struct{} // has room for one: there are letters
	quit chan bool     // whether to finalize MPI
	done chan error    // the answer
}

// letter is a message to a world rank that is not sent yet.
type letter struct {
	to   int
	body []byte
}

// parcel is memory that is being sent. It is released when all requests are complete.
type parcel struct {
	requests []request
	memory   []byte
}

// news is a message that a group must get without the engine's lock.
type news struct {
	group *group
	from  int // rank in the group
	message
}

// begun is set once this process has used its one chance to initialise MPI.
var begun atomic.Bool

// New initialises MPI and returns this process's handle of the group of all ranks, named
// "world". It returns when all ranks have called it, and works once in a process. If ctx
// ends first, the process should exit: MPI offers no way to give up.
func New(ctx context.Context, cfg Config) (comm.Group, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	if begun.Swap(true) {
		return nil, errors.New("mpi: New was called before: a process can initialise MPI only once")
	}
	g, err := join(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return g.serial, nil
}

// join initialises MPI and returns the world.
func join(ctx context.Context, cfg Config) (*group, error) {
	e := &engine{
		timeout: cfg.Timeout, groups: map[uint64]*group{},
		kick: make(chan struct{}, 1), quit: make(chan bool, 1), done: make(chan error, 1),
	}
	ready := make(chan error, 1)
	go e.serve(ready)
	select {
	case err := <-ready:
		if err != nil {
			return nil, err
		}
	case <-ctx.Done():
		e.quit <- false
		return nil, fmt.Errorf("mpi: waiting for all ranks to start: %w", context.Cause(ctx))
	}
	e.mu.Lock()
	g := e.groups[worldID]
	e.mu.Unlock()
	g.open()
	return g, nil
}

// serve initialises MPI, checks for messages while no other goroutine does, and finalizes
// MPI.
func (e *engine) serve(ready chan<- error) {
	runtime.LockOSThread() // the thread that initialises MPI has to finalize it
	defer runtime.UnlockOSThread()
	err := e.start()
	ready <- err
	if err != nil {
		return
	}
	tick := time.NewTicker(idlePoll)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-e.kick:
		case finally := <-e.quit:
			if finally {
				e.done <- e.end()
			}
			return
		}
		for got, err := true, error(nil); got && err == nil; {
			got, err = e.poll(1) // goroutines that wait get the error
		}
	}
}

// start initialises MPI, makes the world, and posts the letter boxes.
func (e *engine) start() (err error) {
	if e.library, err = initialize(); err != nil {
		return err
	}
	ranks := make([]rankInt, e.size)
	for r := range ranks {
		ranks[r] = rankInt(r)
	}
	// The world takes messages before any rank can send it one.
	newGroup(e, nil, worldID, "world", e.rank, ranks).comm = e.world
	e.receiving = requests(letterBoxes)
	for i := range e.receiving {
		e.boxes = append(e.boxes, allocate(maxLetter))
		if err := listen(e.boxes[i], e.control, &e.receiving[i]); err != nil {
			return err
		}
	}
	return nil
}

// end releases everything that start has taken.
func (e *engine) end() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var errs []error
	for i := range e.receiving {
		errs = append(errs, unlisten(&e.receiving[i]))
		release(e.boxes[i])
	}
	errs = append(errs, free(e.control), finalize())
	return errors.Join(errs...)
}

// post queues a message to a world rank, which is sent soon.
func (e *engine) post(to rankInt, body []byte) {
	e.outbox.Lock()
	e.outbox.letters = append(e.outbox.letters, letter{int(to), body})
	e.outbox.any.Store(true)
	e.outbox.Unlock()
	select {
	case e.kick <- struct{}{}:
	default:
	}
}

// poll moves messages: it sends posted ones and handles one message that has arrived, or
// makes the given number of tests whether one does.
func (e *engine) poll(tests int) (got bool, err error) {
	e.mu.Lock()
	got, err = e.move(tests)
	tell := len(e.news) > 0 && !e.telling
	e.mu.Unlock()
	if tell {
		e.tell()
	}
	return got, err
}

// move is poll with mu held.
func (e *engine) move(tests int) (got bool, err error) {
	if e.err != nil {
		return false, e.err
	}
	defer func() { e.err = err }()
	if e.outbox.any.Load() {
		if err := e.flush(); err != nil {
			return false, err
		}
	}
	if len(e.sending) > 0 {
		if err := e.reap(); err != nil {
			return false, err
		}
	}
	from, size, got, err := receive(&e.receiving[e.next], tests)
	if !got || err != nil {
		return false, err
	}
	box := e.boxes[e.next]
	if err := e.accept(from, box[:size]); err != nil {
		return false, fmt.Errorf("mpi: rank %d of group \"world\": %w", from, err)
	}
	err = listen(box, e.control, &e.receiving[e.next])
	e.next = (e.next + 1) % letterBoxes
	return true, err
}

// flush sends the messages in the outbox.
func (e *engine) flush() error {
	e.outbox.Lock()
	defer e.outbox.Unlock()
	for _, l := range e.outbox.letters {
		p := parcel{requests(1), allocate(len(l.body))}
		copy(p.memory, l.body)
		if err := send(p.memory, l.to, e.control, &p.requests[0]); err != nil {
			return err
		}
		e.sending = append(e.sending, p)
	}
	e.outbox.letters = e.outbox.letters[:0]
	e.outbox.any.Store(false)
	return nil
}

// reap releases sent messages.
func (e *engine) reap() error {
	open := e.sending[:0]
	for _, p := range e.sending {
		sent, err := test(p.requests, 1)
		if err != nil {
			return err
		}
		if !sent {
			open = append(open, p)
			continue
		}
		release(p.memory)
	}
	clear(e.sending[len(open):])
	e.sending = open
	return nil
}

// accept handles a message from a world rank.
func (e *engine) accept(from int, b []byte) error {
	m, err := parse(b)
	if err != nil {
		return err
	}
	g := e.groups[m.group]
	if g == nil {
		return nil // about a group that this rank has left
	}
	rank := g.index(from)
	if rank < 0 {
		return fmt.Errorf("it sends to group %q, but is not a member", g.name)
	}
	if m.what == call {
		return g.called(rank, m)
	}
	m.body = append([]byte(nil), m.body...)
	g.ended(rank, m)
	return nil
}

// tell gives groups their news, in order. One goroutine does at a time.
func (e *engine) tell() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.telling {
		return
	}
	e.telling = true
	for len(e.news) > 0 {
		n := e.news[0]
		e.news = e.news[1:]
		e.mu.Unlock()
		n.group.hear(n)
		e.mu.Lock()
	}
	e.news = nil
	e.telling = false
}

// close ends the job for this process, which has left the world g: it waits for the other
// ranks to leave too, and finalizes MPI.
func (e *engine) close(g *group) error {
	limit := e.timeout
	if g.failed() {
		limit = min(limit, grace)
	}
	var open []int
	w := backoff.Waiter{Policy: &waiting}
	for w.Idle() < limit {
		got, err := e.poll(burst)
		if err != nil {
			e.quit <- false
			return err
		}
		e.mu.Lock()
		open = g.present()
		over := len(open) == 0 && len(e.sending) == 0 && !e.outbox.any.Load()
		abandoned := e.abandoned || g.abandonedElsewhere
		e.mu.Unlock()
		switch {
		case over && abandoned:
			e.quit <- false
			return errors.New("mpi: MPI is not finalized, because a transfer was abandoned")
		case over:
			e.quit <- true
			return <-e.done
		case got:
			w.Reset()
		default:
			w.Pause(nil, nil)
		}
	}
	e.quit <- false
	return fmt.Errorf("mpi: MPI is not finalized, because ranks %v have not closed group \"world\" within %v", open, limit)
}
