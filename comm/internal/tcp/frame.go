package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/gofsdp/gofsdp/comm/transport"
)

// frame heads every message between two ranks of a socket group. It carries the whole call, so the
// receiver notices at once whether the sender makes another call, and can report which.
//
// On the wire, little-endian:
//
//	0 magic | 4 CRC-32C of the rest | 8 group | 16 seq | 24 length (47 bits), summed (1 bit) | 30 round | 32 call
//
// The payload follows. The receiver checks its length against its own call and never allocates by
// it. Then comes its checksum, 4 bytes, if payloads are summed and this one is not empty. The
// checksum is a trailer because a rank that passes blocks on sends the header before it has the
// payload, and because each block is summed when it is sent, so that it is read from memory once. A
// block that is passed on keeps its original sum.
type frame struct {
	group  uint64
	seq    uint64
	length int                           // bytes of payload
	summed bool                          // a checksum follows every payload
	round  uint16                        // distinguishes the messages of a collective
	call   [transport.SignatureSize]byte // encoded Signature
}

const (
	frameSize  = 32 + transport.SignatureSize
	frameMagic = 0x35504f43 // "COP5", the last byte is the version of the protocol
	lengthBits = 47
	summedBit  = 1 << lengthBits
	roundShift = 48
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// put encodes f.
func (f *frame) put(b *[frameSize]byte) {
	binary.LittleEndian.PutUint32(b[0:], frameMagic)
	binary.LittleEndian.PutUint64(b[8:], f.group)
	binary.LittleEndian.PutUint64(b[16:], f.seq)
	word := uint64(f.round)<<roundShift | uint64(f.length)
	if f.summed {
		word |= summedBit
	}
	binary.LittleEndian.PutUint64(b[24:], word)
	copy(b[32:], f.call[:])
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[8:], castagnoli))
}

// parse decodes a frame. It returns an error for bytes that put has not written.
func (f *frame) parse(b *[frameSize]byte) error {
	if magic := binary.LittleEndian.Uint32(b[0:]); magic != frameMagic {
		if version := byte(magic >> 24); magic<<8 == frameMagic<<8&(1<<32-1) && version >= '1' && version <= '9' {
			return fmt.Errorf("protocol version %c, want %c: build all ranks with the same version of this library", version, frameMagic>>24)
		}
		return errors.New("the data is not a frame of this protocol")
	}
	if binary.LittleEndian.Uint32(b[4:]) != crc32.Checksum(b[8:], castagnoli) {
		return fmt.Errorf("frame %w", transport.ErrDamaged)
	}
	f.group = binary.LittleEndian.Uint64(b[8:])
	f.seq = binary.LittleEndian.Uint64(b[16:])
	word := binary.LittleEndian.Uint64(b[24:])
	f.round, f.length, f.summed = uint16(word>>roundShift), int(word&(summedBit-1)), word&summedBit != 0
	copy(f.call[:], b[32:])
	return nil
}

// compare checks the frame got from rank peer against f, the frame that rank self expects.
func (f *frame) compare(got *frame, name string, self, peer int) error {
	broken := func(format string, args ...any) error {
		return &transport.RankError{Group: name, Rank: peer, Err: fmt.Errorf("broken stream to rank %d: "+format, append([]any{self}, args...)...)}
	}
	if got.group != f.group {
		return broken("frame of group %x, want %x", got.group, f.group)
	}
	if got.summed != f.summed {
		with := map[bool]string{true: "with", false: "without"}
		return &transport.RankError{Group: name, Rank: peer, Err: fmt.Errorf("sends payloads %s checksums, rank %d %s: Config.Checksums, or FSDP_CHECKSUMS, "+
			"must be the same on all ranks", with[got.summed], self, with[f.summed])}
	}
	if got.seq < f.seq {
		return broken("frame of collective #%d, want #%d", got.seq, f.seq)
	}
	if got.seq == f.seq && got.call == f.call {
		if got.round != f.round || got.length != f.length {
			return broken("%d bytes in round %d, want %d in round %d", got.length, got.round, f.length, f.round)
		}
		return nil
	}
	mine, err := transport.ParseSignature(f.call[:])
	if err != nil {
		return err // unreachable: this rank encoded it
	}
	theirs, err := transport.ParseSignature(got.call[:])
	if err != nil {
		return broken("%w", err)
	}
	calls := [2]string{mine.String(), theirs.String()}
	if got.seq > f.seq { // with the same call, it would have sent the frame that is due first
		calls[1] = fmt.Sprintf("another collective (its #%d is %s)", got.seq, theirs)
	}
	ranks := [2]int{self, peer}
	if peer < self {
		ranks, calls = [2]int{peer, self}, [2]string{calls[1], calls[0]}
	}
	return &transport.MismatchError{Group: name, Seq: f.seq, Ranks: ranks, Calls: calls}
}
