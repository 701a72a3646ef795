package mesh

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/gofsdp/gofsdp/internal/checksum"
)

// frameKind is the first byte of a frame, the unit of a control connection:
//
//	byte  0      kind
//	bytes 1..5   length of the body, big-endian
//	bytes 5..9   CRC-32 of the bytes before and of the body, big-endian
//	bytes 9..    body
type frameKind byte

const (
	frameReady   frameKind = iota + 1 // connected to all others, or joined; the first frame, but for frameAbort and frameRoll
	frameMessage                      // for the Handler
	frameFile                         // a file, attached to this frame; the body is its tag
	frameGoodbye                      // closed; nothing follows
	frameAbort                        // cannot join; the body is a setback; nothing follows
	frameRoll                         // a part of the list of ranks, or the request for it
	frameNews                         // to be passed on, see news
	frameRouted                       // a message for another rank, see route
)

const (
	frameHeader = 9
	checkedHead = 5 // bytes of the header that its checksum covers
)

// fits reports whether the body of such a frame can have n bytes.
func (k frameKind) fits(n uint32) bool {
	switch k {
	case frameMessage, frameAbort, frameRoll:
		return n <= MaxMessage
	case frameNews:
		return n <= maxNews
	case frameRouted:
		return n <= routedHeader+MaxMessage
	case frameFile:
		return n == 8
	case frameReady, frameGoodbye:
		return n == 0
	}
	return false
}

// last reports whether such a frame is the last.
func (k frameKind) last() bool { return k == frameGoodbye || k == frameAbort }

// mostUnsent returns how many bytes may wait for a peer, including such a frame. sparse is for a
// mesh of many ranks.
func (k frameKind) mostUnsent(sparse bool) int {
	switch {
	case k.last():
		return math.MaxInt
	case sparse:
		return maxPassed
	}
	return maxUnsent
}

// appendFrame appends an encoded frame to b.
func appendFrame(b []byte, kind frameKind, body []byte) []byte {
	head := len(b)
	b = append(b, byte(kind))
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
	b = binary.BigEndian.AppendUint32(b, frameSum(b[head:], body))
	return append(b, body...)
}

// frameSum is the checksum of a frame.
func frameSum(head, body []byte) uint32 {
	return checksum.Update(checksum.Update(0, head[:checkedHead]), body)
}

// frameReader splits a stream into frames.
type frameReader struct {
	in   *bufio.Reader
	body []byte // of the latest frame that was not large, reused
}

// keptBody is how many bytes of memory a connection keeps that has nothing to say, twice.
const keptBody = 512

func newFrameReader(r io.Reader) *frameReader {
	return &frameReader{in: bufio.NewReaderSize(r, keptBody)}
}

// next returns the next frame; body is valid until the call after. At the end of the stream the
// error is io.EOF, or io.ErrUnexpectedEOF in the middle of a frame.
func (f *frameReader) next() (kind frameKind, body []byte, err error) {
	var header [frameHeader]byte
	if _, err := io.ReadFull(f.in, header[:]); err != nil {
		return 0, nil, err
	}
	kind, n := frameKind(header[0]), binary.BigEndian.Uint32(header[1:checkedHead])
	if !kind.fits(n) {
		return 0, nil, fmt.Errorf("protocol error: frame of kind %d with %d bytes", kind, n)
	}
	body = f.body[:min(int(n), len(f.body))]
	if len(body) < int(n) {
		body = make([]byte, n)
		if n <= keptBody {
			f.body = body
		}
	}
	if _, err := io.ReadFull(f.in, body); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	if frameSum(header[:], body) != binary.BigEndian.Uint32(header[checkedHead:]) {
		return 0, nil, fmt.Errorf("protocol error: frame of kind %d with %d bytes was damaged on the way", kind, n)
	}
	return kind, body, nil
}
