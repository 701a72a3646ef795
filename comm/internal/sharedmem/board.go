package sharedmem

import (
	"sync/atomic"
	"unsafe"

	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/internal/shm"
)

// board is where the ranks of a shared group write for each other: a block in the segment of rank
// 0, mapped by all. Data that one rank writes often has its own cache line.
//
//	head | a line per rank | slot 0 | slot 1 | … | slot 31
//	slot: word | a lane per rank | a post per rank | a page per rank
//
// Collective #k uses slot k mod 32, once all ranks have done #k-32. Nothing in it needs to be
// cleared: the words carry the number of their collective, and every rank prepares its lane before
// it arrives. A small collective, in which every rank computes its own result, needs only the
// posts, neither word nor lanes.
type board struct {
	base unsafe.Pointer
	n    int // ranks
}

const boardSlots = 32

// boardHead is the first part of a board.
type boardHead struct {
	joined   atomic.Uint32 // ranks that have found the board
	released atomic.Uint32 // ranks that will not touch it again
	_        [56]byte
	bell     atomic.Uint32 // changes when a sleeper should look again
	sleepers atomic.Int32  // ranks that wait for the bell, or are about to
	_        [56]byte
}

// boardLine is the data of one rank for all others.
type boardLine struct {
	done atomic.Uint64 // collectives complete on the rank, whose posts it reads no more
	busy atomic.Uint64 // the collective of which it is executing parts, 0 for none
	_    [48]byte
}

// boardLane is a lane of the division of a collective. Both words are tag and count.
type boardLane struct {
	claimed  atomic.Uint64 // parts that some rank has begun, in order
	finished atomic.Uint64 // parts that are complete
	_        [48]byte
}

// post is one rank's part of a collective: its call, and the offsets of its buffers in its own
// segment. Only the first line of most posts is read.
type post struct {
	seq    atomic.Uint64 // the collective, once the rest is written
	dst    uint64
	src    atomic.Uint64 // may move to a copy while only ranks with a private dst read it
	meta   uint64        // flags, and a hash of sig above them
	inline [inlineBytes]byte
	sig    [transport.SignatureSize]byte
}

const inlineBytes = 32

// Flags of a post.
const (
	postSmall   = 1 << iota // the source is in inline or, if it is larger, in the page
	postPrivate             // no other rank can write the destination
	postCopy                // the buffer of the all-reduce is a copy

	postFlags = 1<<iota - 1 // all flags
)

// signed is a call, its signature as in a post, and the hash of that with all flags 0.
type signed struct {
	call transport.Signature
	sig  [transport.SignatureSize]byte
	meta uint64
}

func (d *signed) set(s *transport.Signature) {
	d.call = *s
	s.Put(d.sig[:])
	words := (*[transport.SignatureSize / 8]uint64)(unsafe.Pointer(&d.sig))
	hash := uint64(0)
	for _, w := range words[:(s.EncodedSize()+7)/8] { // the rest is 0
		hash = (hash ^ w) * 0x9e3779b97f4a7c15
		hash ^= hash >> 32
	}
	d.meta = hash &^ postFlags
}

// alike reports whether two posts make the same call.
func (p *post) alike(q *post) bool {
	return (p.meta^q.meta)&^postFlags == 0 || p.sig == q.sig
}

const (
	headBytes = unsafe.Sizeof(boardHead{})
	lineBytes = unsafe.Sizeof(boardLine{})
	laneBytes = unsafe.Sizeof(boardLane{})
	postBytes = unsafe.Sizeof(post{})
	wordBytes = 64          // the word of a slot, alone on its line
	pageBytes = smallTensor // for the source of a small collective
)

func slotBytes(n int) uintptr { return wordBytes + uintptr(n)*(laneBytes+postBytes+pageBytes) }

// boardSize returns the bytes of a board of n ranks.
func boardSize(n int) int {
	return int(headBytes + uintptr(n)*lineBytes + boardSlots*slotBytes(n))
}

// boardOf returns the board of n ranks in mem, of boardSize bytes.
func boardOf(mem []byte, n int) board { return board{unsafe.Pointer(unsafe.SliceData(mem)), n} }

func (b board) head() *boardHead { return (*boardHead)(b.base) }

func (b board) line(rank int) *boardLine {
	return (*boardLine)(unsafe.Add(b.base, headBytes+uintptr(rank)*lineBytes))
}

func (b board) slot(seq uint64) unsafe.Pointer {
	return unsafe.Add(b.base, headBytes+uintptr(b.n)*lineBytes+uintptr(seq%boardSlots)*slotBytes(b.n))
}

// word is the state of collective seq: tag, and how many ranks have arrived.
func (b board) word(seq uint64) *atomic.Uint64 { return (*atomic.Uint64)(b.slot(seq)) }

func (b board) lane(seq uint64, rank int) *boardLane {
	return (*boardLane)(unsafe.Add(b.slot(seq), wordBytes+uintptr(rank)*laneBytes))
}

func (b board) post(seq uint64, rank int) *post {
	return (*post)(unsafe.Add(b.slot(seq), wordBytes+uintptr(b.n)*laneBytes+uintptr(rank)*postBytes))
}

// inline returns the memory for n bytes of source that a rank puts into collective seq itself.
func (b board) inline(seq uint64, rank, n int) unsafe.Pointer {
	if n <= inlineBytes {
		return unsafe.Pointer(&b.post(seq, rank).inline)
	}
	return unsafe.Add(b.slot(seq), wordBytes+uintptr(b.n)*(laneBytes+postBytes)+uintptr(rank)*pageBytes)
}

// cancelled in the word of a collective says that a rank has given it up: it will never be ready.
// Once all ranks have arrived, no rank can give it up any more. One word decides which of the two
// comes first.
const cancelled = 1 << (transport.TagShift - 1)

// arrive counts this rank's arrival at collective seq, unless it is cancelled.
func (b board) arrive(seq uint64) {
	for word := b.word(seq); ; {
		w := word.Load()
		next := w + 1
		switch {
		case w>>transport.TagShift != seq:
			next = seq<<transport.TagShift | 1
		case w&cancelled != 0:
			return
		}
		if word.CompareAndSwap(w, next) {
			if next&transport.ValueMask == uint64(b.n) {
				b.ring()
			}
			return
		}
	}
}

// ready reports whether all ranks have arrived at collective seq.
func (b board) ready(seq uint64) bool {
	return b.word(seq).Load() == seq<<transport.TagShift|uint64(b.n)
}

// cancel ensures that collective seq, at which this rank has arrived, never gets ready, unless it
// is.
func (b board) cancel(seq uint64) {
	for word := b.word(seq); !b.ready(seq); {
		if w := word.Load(); w>>transport.TagShift != seq || word.CompareAndSwap(w, w|cancelled) {
			return
		}
	}
}

// met reports whether all ranks have posted their calls for collective seq.
func (b board) met(seq uint64) bool {
	for r := range b.n {
		if !b.arrived(seq, r) {
			return false
		}
	}
	return true
}

// arrived reports whether a rank's post for collective seq is there.
func (b board) arrived(seq uint64, rank int) bool { return b.post(seq, rank).seq.Load() == seq }

// claim takes a part of a lane that has this many parts, if one is left.
func (b board) claim(seq uint64, rank, parts int) (part int, ok bool) {
	word := &b.lane(seq, rank).claimed
	for {
		w := word.Load()
		if w&transport.ValueMask >= uint64(parts) {
			return 0, false
		}
		if word.CompareAndSwap(w, w+1) {
			return int(w & transport.ValueMask), true
		}
	}
}

// finish counts a part of a lane as complete.
func (b board) finish(seq uint64, rank, parts int) {
	if b.lane(seq, rank).finished.Add(1)&transport.ValueMask == uint64(parts) {
		b.ring()
	}
}

func (b board) claimed(seq uint64, rank int) int {
	return int(b.lane(seq, rank).claimed.Load() & transport.ValueMask)
}

func (b board) finished(seq uint64, rank int) int {
	return int(b.lane(seq, rank).finished.Load() & transport.ValueMask)
}

// completed returns how many collectives are complete on all ranks.
func (b board) completed() uint64 {
	least := ^uint64(0)
	for r := range b.n {
		least = min(least, b.line(r).done.Load())
	}
	return least
}

// ring wakes sleeping ranks after a change that they may wait for.
func (b board) ring() {
	if h := b.head(); h.sleepers.Load() > 0 {
		h.bell.Add(1)
		shm.Wake(&h.bell)
	}
}
