package quorum

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
)

// maxMessage is the most bytes of a message.
const maxMessage = 16 << 20

// ask is the kind of a request.
type ask byte

const (
	askAwait ask = iota
	askFollow
	askPrepare
	askAccept
	askMeet
	askGuard
	askEnter
	askWitness
	asks // their number
)

// request is a request. Its encoding is its fields in their order: numbers are varints, a text or a
// list follows its length, and a byte says whether an optional field follows.
type request struct {
	What   ask
	Number int // of the membership
	Base   int // number of the latest membership of the process that asks, or -1
	Ballot Ballot
	Member *Member     // that joins
	Value  *Membership // to accept
	Latest *Membership // number Base, for a process that has answered Unknown
}

// reply is an answer. Its encoding begins with a byte that has a bit for each of the first fields.
type reply struct {
	Done    bool   // else a later reply follows
	Waits   bool   // in Next, for the number of the request
	OK      bool   // prepare, accept
	Unknown bool   // the process has no membership as late as Base: the request comes again, with Latest
	Ballot  Ballot // promised
	Address string // of a store; the ID of a witness
	Joining []Member
	Value   *Membership // accepted
	Decided *Membership
}

var errMessage = errors.New("malformed message about the ranks of the next group")

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func (m Ballot) append(b []byte) []byte {
	return binary.AppendVarint(binary.AppendVarint(b, int64(m.Round)), int64(m.Proposer))
}

func appendMembers(b []byte, list []Member) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for _, m := range list {
		b = m.append(b)
	}
	return b
}

func (m Member) append(b []byte) []byte {
	return binary.AppendVarint(appendText(appendText(b, m.ID), m.Address), int64(m.Rank))
}

func (m *Membership) append(b []byte) []byte {
	if m == nil {
		return append(b, 0)
	}
	b = binary.AppendVarint(append(b, 1), int64(m.Number))
	return appendMembers(m.Witness.append(m.Ballot.append(b)), m.Members)
}

func (q *request) append(b []byte) []byte {
	b = binary.AppendVarint(append(b, byte(q.What)), int64(q.Number))
	b = q.Ballot.append(binary.AppendVarint(b, int64(q.Base)))
	var joining []Member
	if q.Member != nil {
		joining = []Member{*q.Member}
	}
	return q.Latest.append(q.Value.append(appendMembers(b, joining)))
}

func (r *reply) append(b []byte) []byte {
	var flags byte
	for i, f := range r.flags() {
		if *f {
			flags |= 1 << i
		}
	}
	b = appendText(r.Ballot.append(append(b, flags)), r.Address)
	return r.Decided.append(r.Value.append(appendMembers(b, r.Joining)))
}

func (r *reply) flags() [4]*bool { return [...]*bool{&r.Done, &r.Waits, &r.OK, &r.Unknown} }

// parser reads the fields of a message. After an error it has none.
type parser struct {
	rest []byte
	bad  bool
}

func (p *parser) fail() {
	p.rest, p.bad = nil, true
}

func (p *parser) byte() (b byte) {
	if len(p.rest) == 0 {
		p.fail()
		return 0
	}
	b, p.rest = p.rest[0], p.rest[1:]
	return b
}

// number reads a number that fits 32 bits.
func (p *parser) number() int {
	v, n := binary.Varint(p.rest)
	if n <= 0 || v < math.MinInt32 || v > math.MaxInt32 {
		p.fail()
		return 0
	}
	p.rest = p.rest[n:]
	return int(v)
}

// length reads the length of a list. An element has at least size bytes.
func (p *parser) length(size int) int {
	v, n := binary.Uvarint(p.rest)
	if n <= 0 || v > uint64((len(p.rest)-n)/size) {
		p.fail()
		return 0
	}
	p.rest = p.rest[n:]
	return int(v)
}

func (p *parser) text() (s string) {
	n := p.length(1)
	s, p.rest = string(p.rest[:n]), p.rest[n:]
	return s
}

func (p *parser) ballot() Ballot { return Ballot{Round: p.number(), Proposer: p.number()} }

func (p *parser) member() Member {
	return Member{ID: p.text(), Address: p.text(), Rank: p.number()}
}

func (p *parser) members() (list []Member) {
	n := p.length(3)
	if n > 0 {
		list = make([]Member, n)
	}
	for i := range list {
		list[i] = p.member()
	}
	return list
}

// membership reads an optional membership, which has members.
func (p *parser) membership() *Membership {
	switch p.byte() {
	case 0:
		return nil
	case 1:
		if m := (&Membership{Number: p.number(), Ballot: p.ballot(), Witness: p.member(), Members: p.members()}); m.Members != nil {
			return m
		}
	}
	p.fail()
	return nil
}

// end returns an error if the message was malformed or is longer than its fields.
func (p *parser) end() error {
	if p.bad || len(p.rest) > 0 {
		return errMessage
	}
	return nil
}

func (q *request) parse(b []byte) error {
	p := parser{rest: b}
	*q = request{What: ask(p.byte()), Number: p.number(), Base: p.number(), Ballot: p.ballot()}
	joining := p.members()
	if q.Value, q.Latest = p.membership(), p.membership(); len(joining) == 1 {
		q.Member = &joining[0]
	}
	wrong := q.What >= asks || len(joining) > 1 || (q.What == askEnter) != (q.Member != nil) ||
		(q.What == askAccept) != (q.Value != nil) || q.Value != nil && q.Value.Number != q.Number || q.Latest != nil && q.Latest.Number != q.Base
	if wrong {
		p.fail()
	}
	return p.end()
}

func (r *reply) parse(b []byte) error {
	p := parser{rest: b}
	flags := p.byte()
	*r = reply{Ballot: p.ballot(), Address: p.text(), Joining: p.members(), Value: p.membership(), Decided: p.membership()}
	for i, f := range r.flags() {
		*f = flags>>i&1 == 1
	}
	if flags >= 1<<len(r.flags()) {
		p.fail()
	}
	return p.end()
}

// encode returns a message: the length of its encoding in 4 bytes, big-endian, and the encoding.
func encode(m interface{ append(b []byte) []byte }) ([]byte, error) {
	b := m.append(make([]byte, 4, 256))
	if len(b)-4 > maxMessage {
		return nil, errMessage
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b, nil
}

// receive reads a message.
func receive(r io.Reader, m interface{ parse(b []byte) error }) error {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > maxMessage {
		return errMessage
	}
	var body bytes.Buffer // grows with the bytes that come
	if _, err := io.CopyN(&body, r, int64(n)); err != nil {
		return err
	}
	return m.parse(body.Bytes())
}
