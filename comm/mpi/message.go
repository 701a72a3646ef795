//go:build mpi && cgo && unix

package mpi

import (
	"encoding/binary"
	"fmt"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// message is any message of two ranks except for the data of large collectives. All messages of two
// ranks, of any group, arrive in the order in which they were sent. Encoded, little-endian:
//
//	0 what | 1 flags | 2 zero | 4 first | 8 group | 16 seq | 24 body
type message struct {
	what  what
	flags byte
	first int    // left: the rank that left first, as far as the sender has learnt
	group uint64 // id
	seq   uint64 // call: number of the collective; left: number of the last complete one
	body  []byte // call: signature and data; failed, left: the failure, see transport.MarshalError
}

// A what is the kind of a message.
type what uint8

const (
	call   what = iota + 1 // the rank has issued a collective
	stop                   // the rank will send no more calls
	failed                 // likewise, because the group has failed
	left                   // likewise, because the rank has closed its handle
)

// abandoned is the flag of left: the rank has abandoned a transfer.
const abandoned = 1

const (
	bodyAt    = 24
	inline    = 4 << 10 // most data in a call, in bytes
	maxBody   = transport.SignatureSize + inline
	maxCall   = bodyAt + maxBody
	maxLetter = 64 << 10 // of any message: an encoded error is shorter
)

// put encodes the message except for its body into b.
func (m message) put(b []byte) {
	clear(b[:bodyAt])
	b[0], b[1] = byte(m.what), m.flags
	binary.LittleEndian.PutUint32(b[4:], uint32(m.first))
	binary.LittleEndian.PutUint64(b[8:], m.group)
	binary.LittleEndian.PutUint64(b[16:], m.seq)
}

// encode returns the whole message in new memory.
func (m message) encode() []byte {
	b := make([]byte, bodyAt, bodyAt+len(m.body))
	m.put(b)
	return append(b, m.body...)
}

// parse decodes a message. Its body is part of b.
func parse(b []byte) (message, error) {
	if len(b) < bodyAt {
		return message{}, fmt.Errorf("message of %d bytes is too short", len(b))
	}
	m := message{
		what: what(b[0]), flags: b[1], first: int(binary.LittleEndian.Uint32(b[4:])),
		group: binary.LittleEndian.Uint64(b[8:]), seq: binary.LittleEndian.Uint64(b[16:]), body: b[bodyAt:],
	}
	ok := false
	n := len(m.body)
	switch m.what {
	case call:
		ok = n >= transport.SignatureSize && n <= maxBody
	case stop:
		ok = n == 0
	case left:
		ok = true
	case failed:
		ok = n > 0
	}
	if !ok || m.flags > abandoned || m.what != left && (m.flags != 0 || m.first != 0) ||
		[2]byte(b[2:]) != [2]byte{} {
		return message{}, fmt.Errorf("malformed message of %d bytes: % x", len(b), b[:bodyAt])
	}
	return m, nil
}
