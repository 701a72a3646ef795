package mesh

import (
	"encoding/binary"
	"errors"
	"maps"
	"slices"
)

// Many ranks
//
// Up to fullSize ranks have a control connection for every two of them. More have it only at the
// distances 1, 2, 4, 8 … around the ring of ranks, to both sides: about 2 log2 N each. Over these
//
//   - the list of all ranks is collected at rank 0 and spread from there, along the tree in which
//     the parent of a rank is the rank without its lowest bit;
//   - a message to one rank goes to the neighbour nearest to it, and so on: log2 N steps;
//   - news for many ranks are flooded: a rank that gets them for the first time passes them on to
//     all its neighbours. News of how a rank has ended are flooded too. They arrive as long as the
//     remaining ranks are connected at all, whichever have died. As connections keep the order, a
//     rank gets news in the order of their causes: a failure before the leaving that follows
//     from it.

// fullSize is how many ranks may all be connected with each other.
const fullSize = 16

// neighbours returns the ranks, ascending, that a rank has control connections to.
func neighbours(rank, size int) []int {
	near := map[int]struct{}{}
	for d := 1; d < size; d++ {
		if size <= fullSize || d&(d-1) == 0 {
			near[(rank+d)%size], near[(rank+size-d)%size] = struct{}{}, struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(near))
}

// parent returns the rank above another one in the tree; 0 is the root.
func parent(rank int) int { return rank & (rank - 1) }

// distance returns how far two ranks are apart around the ring.
func distance(a, b, size int) int {
	d := (a - b + size) % size
	return min(d, size-d)
}

// span is the ranks first, first+step … of which there are count.
type span struct{ first, step, count uint32 }

// spans returns ascending ranks as a minimal list of spans.
func spans(ranks []int) (list []span) {
	for i := 0; i < len(ranks); {
		s := span{uint32(ranks[i]), 1, 1}
		if i+1 < len(ranks) {
			s.step = uint32(ranks[i+1] - ranks[i])
		}
		for i++; i < len(ranks) && ranks[i]-ranks[i-1] == int(s.step); i++ {
			s.count++
		}
		list = append(list, s)
	}
	return list
}

func (s span) has(rank int) bool {
	d := uint32(rank) - s.first
	return s.step > 0 && d%s.step == 0 && d/s.step < s.count
}

// newsKind is the kind of news.
type newsKind byte

const (
	newsMessage newsKind = iota + 1 // text is a message of about to the ranks in to
	newsGone                        // about has left
	newsLost                        // about has ended otherwise, text says how
)

// news is a message to all ranks, which every rank passes to its neighbours. Encoded, big-endian:
//
//	bytes  0..4   origin
//	bytes  4..12  number
//	byte   12     kind
//	bytes 13..17  about
//	bytes 17..19  number of spans, 12 bytes each, which follow; then the text
type news struct {
	origin int    // the rank that has begun to spread it
	number uint64 // how many its origin had begun, including this one
	kind   newsKind
	about  int
	to     []span // of a message
	text   []byte
}

const (
	newsHeader = 19
	spanSize   = 12
	maxSpans   = 1<<16 - 1
	maxNews    = newsHeader + maxSpans*spanSize + MaxMessage
)

func (n *news) encode() []byte {
	b := make([]byte, 0, newsHeader+spanSize*len(n.to)+len(n.text))
	b = binary.BigEndian.AppendUint32(b, uint32(n.origin))
	b = binary.BigEndian.AppendUint64(b, n.number)
	b = append(b, byte(n.kind))
	b = binary.BigEndian.AppendUint32(b, uint32(n.about))
	b = binary.BigEndian.AppendUint16(b, uint16(len(n.to)))
	for _, s := range n.to {
		b = binary.BigEndian.AppendUint32(b, s.first)
		b = binary.BigEndian.AppendUint32(b, s.step)
		b = binary.BigEndian.AppendUint32(b, s.count)
	}
	return append(b, n.text...)
}

var errNews = errors.New("protocol error: malformed news")

// decodeNews is the inverse of encode, in a job of size ranks. text is a part of b.
func decodeNews(b []byte, size int) (n news, err error) {
	if len(b) < newsHeader {
		return n, errNews
	}
	n.origin, n.number = int(binary.BigEndian.Uint32(b)), binary.BigEndian.Uint64(b[4:])
	n.kind, n.about = newsKind(b[12]), int(binary.BigEndian.Uint32(b[13:]))
	count := int(binary.BigEndian.Uint16(b[17:]))
	b = b[newsHeader:]
	known := n.kind >= newsMessage && n.kind <= newsLost
	if !known || n.origin >= size || n.about >= size || len(b) < count*spanSize {
		return n, errNews
	}
	number := func(at int) uint32 { return binary.BigEndian.Uint32(b[at:]) }
	for range count {
		n.to = append(n.to, span{number(0), number(4), number(8)})
		b = b[spanSize:]
	}
	n.text = b
	return n, nil
}

// concerns reports whether a message is for a rank.
func (n *news) concerns(rank int) bool {
	return slices.ContainsFunc(n.to, func(s span) bool { return s.has(rank) })
}
