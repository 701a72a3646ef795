package store

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// code is the kind of a request or a reply.
type code byte

// Requests.
const (
	askGet code = iota + 1
	askClaim
	askCancel // of the Get with the same id; there is no answer
)

// Replies.
const (
	replyOK    code = iota + 65 // value is the result
	replyLimit                  // value says which limit
)

// frame is a request or a reply.
type frame struct {
	id    uint64 // chosen by the client
	code  code
	key   string
	value []byte
}

const (
	frameHeader = 8 + 1 + 2 // id, code, key length
	maxFrame    = frameHeader + MaxKey + MaxValue
)

var errFrame = errors.New("malformed frame")

// encode returns f as it goes over the wire. Key and value are within their limits.
func (f frame) encode() []byte {
	n := frameHeader + len(f.key) + len(f.value)
	b := make([]byte, 0, 4+n)
	b = binary.BigEndian.AppendUint32(b, uint32(n))
	b = binary.BigEndian.AppendUint64(b, f.id)
	b = append(b, byte(f.code))
	b = binary.BigEndian.AppendUint16(b, uint16(len(f.key)))
	b = append(b, f.key...)
	return append(b, f.value...)
}

// readFrame reads one frame. The end of the stream between two frames is io.EOF.
func readFrame(r *bufio.Reader) (frame, error) {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return frame{}, err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n < frameHeader || n > maxFrame {
		return frame{}, fmt.Errorf("%w: %d bytes", errFrame, n)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return frame{}, fmt.Errorf("reading a frame: %w", err)
	}
	f := frame{id: binary.BigEndian.Uint64(b), code: code(b[8])}
	keyLen := int(binary.BigEndian.Uint16(b[9:]))
	b = b[frameHeader:]
	if keyLen > min(len(b), MaxKey) || len(b)-keyLen > MaxValue {
		return frame{}, fmt.Errorf("%w: a key of %d bytes in a frame with %d", errFrame, keyLen, len(b))
	}
	f.key, f.value = string(b[:keyLen]), b[keyLen:]
	return f, nil
}
