package transport

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"unicode/utf8"

	"github.com/gofsdp/gofsdp/internal/text"
)

// Signature is the part of a [Call] that must be the same on every rank.
type Signature struct {
	Kind  Kind
	Op    Op
	DType DType
	Root  int
	Len   int // elements of the full tensor
	Label string
	// Counts is a hash of the counts of a gather, 0 in other collectives. It differs
	// for any two lists that differ in one place, and almost all others.
	Counts uint64
}

// Signature returns the signature of c.
func (c *Call) Signature() Signature {
	s := Signature{c.Kind, c.Op, c.Dst.dtype, c.Root, c.Dst.len, c.Dst.label, 0}
	switch c.Kind {
	case KindGather:
		s.DType, s.Len, s.Label, s.Counts = c.DType(), c.Len(), c.Label(), hashCounts(c.Counts)
	case KindReduceScatter:
		s.Len = c.Src.len
		fallthrough
	default:
		if s.Label == "" {
			s.Label = c.Src.label
		}
	}
	return s
}

// String describes the call as in errors: reduce-scatter float32[512] sum "h.3".
func (s Signature) String() string {
	if s.Kind == KindBarrier || s.Kind == KindSplit {
		return s.Kind.String()
	}
	text := fmt.Sprintf("%v %v[%d]", s.Kind, s.DType, s.Len)
	switch s.Kind {
	case KindReduceScatter, KindAllReduce:
		text += " " + s.Op.String()
	case KindBroadcast:
		text += fmt.Sprintf(" from %d", s.Root)
	case KindGather:
		text += fmt.Sprintf(" to %d, counts %016x", s.Root, s.Counts)
	}
	if s.Label != "" {
		text += fmt.Sprintf(" %q", s.Label)
	}
	return text
}

// Numbered names the call within its group: all-gather #12 "h.3".
func (s Signature) Numbered(seq uint64) string {
	text := fmt.Sprintf("%v #%d", s.Kind, seq)
	if s.Label != "" {
		text += fmt.Sprintf(" %q", s.Label)
	}
	return text
}

// SignatureSize is the size in bytes of an encoded [Signature]: a cache line.
const SignatureSize = 64

// Layout of an encoded signature, little-endian:
//
//	0 kind | 1 op | 2 dtype | 3 length of label | 4 root | 8 len | 16 hash | 24 label …
//
// The hash is the hash of the counts. A label that does not fit is cut. Its own
// hash, added to the other, distinguishes it from labels that begin alike, and its
// length is stored as cutLabel.
const (
	labelAt  = 24
	maxLabel = SignatureSize - labelAt
	cutLabel = 0xff
)

// Put encodes s into b, which has SignatureSize bytes or more. Two signatures are
// equal exactly if their encodings are (except for collisions of a 64-bit hash, of
// labels of more than 40 bytes and counts). It does not allocate.
func (s Signature) Put(b []byte) {
	b = b[:SignatureSize]
	b[0], b[1], b[2], b[3] = byte(s.Kind), byte(s.Op), byte(s.DType), byte(min(len(s.Label), cutLabel))
	binary.LittleEndian.PutUint32(b[4:], uint32(s.Root))
	binary.LittleEndian.PutUint64(b[8:], uint64(s.Len))
	hash := s.Counts
	if len(s.Label) > maxLabel {
		b[3] = cutLabel
		hash += text.Hash(s.Label)
	}
	binary.LittleEndian.PutUint64(b[16:], hash)
	clear(b[labelAt+copy(b[labelAt:], s.Label):])
}

// EncodedSize returns the length of the prefix of the encoding by Put whose bytes
// may differ from 0.
func (s *Signature) EncodedSize() int { return labelAt + min(len(s.Label), maxLabel) }

// ParseSignature decodes the result of [Signature.Put]. A label that was cut ends in
// an ellipsis, and its hash is then part of the Counts of a gather. It returns an
// error for anything that Put cannot have written.
func ParseSignature(b []byte) (Signature, error) {
	if len(b) != SignatureSize {
		return Signature{}, fmt.Errorf("comm: signature of %d bytes, want %d", len(b), SignatureSize)
	}
	s := Signature{
		Kind: Kind(b[0]), Op: Op(b[1]), DType: DType(b[2]),
		Root: int(int32(binary.LittleEndian.Uint32(b[4:]))),
		Len:  int(binary.LittleEndian.Uint64(b[8:])),
	}
	hash := binary.LittleEndian.Uint64(b[16:])
	if s.Kind == KindGather {
		s.Counts, hash = hash, 0
	}
	label := b[labelAt:]
	switch n := int(b[3]); {
	case n <= maxLabel:
		if len(bytes.TrimRight(label[n:], "\x00")) > 0 || hash != 0 {
			return Signature{}, fmt.Errorf("comm: signature has bytes after its label")
		}
		s.Label = string(label[:n])
	case n == cutLabel:
		// The cut may have split a rune.
		for !utf8.Valid(label) && len(label) > maxLabel-utf8.UTFMax {
			label = label[:len(label)-1]
		}
		s.Label = string(label) + "…"
	default:
		return Signature{}, fmt.Errorf("comm: signature with a label of %d bytes", n)
	}
	barrier := s.Kind == KindBarrier && s.DType == 0
	if int(s.Kind) >= len(kindNames) || int(s.Op) >= len(opNames) || !s.DType.valid() && !barrier || s.Len < 0 || s.Root < 0 {
		return Signature{}, fmt.Errorf("comm: invalid signature: kind %d, operator %d, type %d, length %d, root %d", b[0], b[1], b[2], s.Len, s.Root)
	}
	return s, nil
}

// hashCounts mixes in one count after another, each step a bijection of the hash.
func hashCounts(counts []int) uint64 {
	h := uint64(0)
	for _, n := range counts {
		h = (h ^ uint64(n)) * 0x9e3779b97f4a7c15
		h ^= h >> 32
	}
	return h
}
