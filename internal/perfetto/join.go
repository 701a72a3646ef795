package perfetto

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// mostPacket is larger than any packet of a [Writer].
const mostPacket = 1 << 20

// Join writes the packets of a file to w. If the writer of the file was killed, its last packet may
// be incomplete and is omitted.
func Join(w io.Writer, file io.Reader) error {
	r := bufio.NewReader(file)
	var packet []byte
	for {
		tag, err := r.ReadByte()
		if err == io.EOF {
			return nil
		}
		var n uint64
		if err == nil {
			n, err = binary.ReadUvarint(r)
		}
		if err == nil && (tag != 1<<3|delimited || n > mostPacket) {
			return fmt.Errorf("not a trace of this library: a field begins with %#x and has %d bytes", tag, n)
		}
		if err == nil {
			packet = length(packet[:0], 1, int(n))
			head := len(packet)
			packet = append(packet, make([]byte, n)...)
			_, err = io.ReadFull(r, packet[head:])
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := w.Write(packet); err != nil {
			return err
		}
	}
}
