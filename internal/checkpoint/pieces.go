package checkpoint

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"
)

// Pieces are the pieces of a tensor, by Offset. They stay encoded in memory too, because a
// checkpoint of many ranks has millions: see [Tensor.All]. A piece has four varints, signed as in
// encoding/binary, and its Sums. The varints are the differences of its Offset to the end of the
// piece before, and of its Len, File and At to those fields of that piece. Before the first piece,
// these are all 0. In JSON, Pieces are a string of base64.
type Pieces []byte

// Piece is an interval of a tensor in a file.
type Piece struct {
	Offset int   `json:"offset"` // elements
	Len    int   `json:"len"`    // elements
	File   int   `json:"file"`   // index in Manifest.Files
	At     int64 `json:"at"`     // bytes from the start of the file
	Sums   Sums  `json:"sums"`
}

// end returns the offset behind the last element of p.
func (p *Piece) end() int { return p.Offset + p.Len }

// Sums are checksums, as little-endian words: the CRC-32C of each ChunkBytes of a piece. The last
// chunk may be shorter.
type Sums []byte

// sumBytes is the size of one of Sums.
const sumBytes = 4

// chunk returns the sum of chunk c.
func (s Sums) chunk(c int) uint32 { return binary.LittleEndian.Uint32(s[sumBytes*c:]) }

// set changes the sum of chunk c.
func (s Sums) set(c int, sum uint32) { binary.LittleEndian.PutUint32(s[sumBytes*c:], sum) }

// count returns the number of sums.
func (s Sums) count() int { return len(s) / sumBytes }

// chunks returns the number of checksums of a piece of n elements of size bytes each.
func chunks(n, size int) int {
	switch {
	case n < 1:
		return 0
	case n <= ChunkBytes && n*size <= ChunkBytes: // the usual case needs no division
		return 1
	default:
		return (n-1)/(ChunkBytes/size) + 1 // the size divides ChunkBytes
	}
}

// add appends p, with its Sums, to pieces. before is the last piece in pieces.
func (list *Pieces) add(before, p *Piece) {
	b := binary.AppendVarint(*list, int64(p.Offset-before.end()))
	b = binary.AppendVarint(b, int64(p.Len-before.Len))
	b = binary.AppendVarint(b, int64(p.File-before.File))
	b = binary.AppendVarint(b, p.At-before.At)
	*list = append(b, p.Sums...)
}

// pack returns pieces as Pieces.
func pack(pieces []Piece) (list Pieces) {
	var before Piece
	for i := range pieces {
		list.add(&before, &pieces[i])
		before = pieces[i]
	}
	return list
}

// A walk goes through Pieces.
type walk struct {
	rest Pieces
	size int   // bytes of an element
	p    Piece // the current piece; its Sums are the memory of the Pieces
}

// errPieces is the error for invalid Pieces.
var errPieces = errors.New("the list of its pieces is truncated")

// next goes to the next piece and reports whether there is one. It returns an error for invalid
// bytes. It only checks that a piece has as many sums as its Len needs.
func (w *walk) next() (bool, error) {
	if len(w.rest) == 0 {
		return false, nil
	}
	at := 0
	var more [4]int64
	for i := range more {
		if at < len(w.rest) && w.rest[at] < 0x80 { // most are of one byte
			b := int64(w.rest[at])
			more[i], at = b>>1^-(b&1), at+1
			continue
		}
		v, n := binary.Varint(w.rest[at:])
		if n <= 0 {
			return false, errPieces
		}
		more[i], at = v, at+n
	}
	w.p.Offset += w.p.Len + int(more[0])
	w.p.Len += int(more[1])
	w.p.File += int(more[2])
	w.p.At += more[3]
	sums := chunks(w.p.Len, w.size)
	if sums > (len(w.rest)-at)/sumBytes {
		return false, fmt.Errorf("%w: at element %d, with %d elements", errPieces, w.p.Offset, w.p.Len)
	}
	end := at + sumBytes*sums
	w.p.Sums, w.rest = Sums(w.rest[at:end:end]), w.rest[end:]
	return true, nil
}

func (t *Tensor) walk() walk { return walk{rest: t.Pieces, size: t.DType.Size()} }

// All returns the pieces of t, which Decode or Merge has returned, by Offset.
func (t *Tensor) All() iter.Seq[Piece] { return t.within(0, t.Len()) }

// within returns the pieces of t that contain some of n elements from offset on. It goes through
// all earlier pieces, at about 30 ns each.
func (t *Tensor) within(offset, n int) iter.Seq[Piece] {
	return func(yield func(Piece) bool) {
		for w := t.walk(); ; {
			if ok, _ := w.next(); !ok || w.p.Offset >= offset+n {
				return
			}
			if w.p.end() > offset && !yield(w.p) {
				return
			}
		}
	}
}

// A joining is a tensor that gets pieces one after the other.
type joining struct {
	Tensor
	rank   int   // the first rank that has reported it
	last   Piece // the last of Pieces
	behind bool  // a piece lies before one that came earlier
}

// add appends a piece.
func (j *joining) add(p Piece) {
	j.behind = j.behind || p.Offset < j.last.Offset
	j.Pieces.add(&j.last, &p)
	j.last = p
}

// tensor returns the tensor with its pieces by Offset.
func (j *joining) tensor() Tensor {
	if j.behind {
		list := slices.Collect(j.All())
		slices.SortStableFunc(list, func(p, q Piece) int { return cmp.Compare(p.Offset, q.Offset) })
		j.Pieces = pack(list)
	}
	return j.Tensor
}
