package auth

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// The most bytes of the parts of a Hello.
const (
	MaxJob     = 256
	MaxPurpose = 64
	MaxExtra   = 1 << 10
)

// Hello describes one end of a connection to the other. The other end may rely on it: it comes from
// a holder of the secret, unaltered. It is not secret.
type Hello struct {
	Job        string // the run of the program; at most MaxJob bytes
	Purpose    string // of the connection; at most MaxPurpose bytes
	Rank, Size int    // the rank, and the number of ranks; both fit 32 bits
	Extra      []byte // other data to agree on first; at most MaxExtra bytes
}

// Layout of an encoded hello: rank and size as 4 bytes each, then every field as 2 bytes of length
// and its bytes. There is exactly one encoding of a hello.
const maxHello = 4 + 4 + 3*2 + MaxJob + MaxPurpose + MaxExtra

// encode returns the bytes of h, or an error that names a field that is too large.
func (h Hello) encode() ([]byte, error) {
	for _, f := range []struct {
		name  string
		value int
	}{{"rank", h.Rank}, {"size", h.Size}} {
		if f.value < math.MinInt32 || f.value > math.MaxInt32 {
			return nil, fmt.Errorf("hello: %s %d does not fit 32 bits", f.name, f.value)
		}
	}
	b := make([]byte, 0, maxHello)
	b = binary.BigEndian.AppendUint32(b, uint32(int32(h.Rank)))
	b = binary.BigEndian.AppendUint32(b, uint32(int32(h.Size)))
	for _, f := range []struct {
		name  string
		value string
		max   int
	}{{"job", h.Job, MaxJob}, {"purpose", h.Purpose, MaxPurpose}, {"extra", string(h.Extra), MaxExtra}} {
		if len(f.value) > f.max {
			return nil, fmt.Errorf("hello: %s has %d bytes, at most %d are allowed", f.name, len(f.value), f.max)
		}
		b = binary.BigEndian.AppendUint16(b, uint16(len(f.value)))
		b = append(b, f.value...)
	}
	return b, nil
}

var errHello = errors.New("malformed hello")

// decodeHello is the inverse of encode. It keeps nothing of b.
func decodeHello(b []byte) (Hello, error) {
	if len(b) < 8 {
		return Hello{}, errHello
	}
	h := Hello{Rank: int(int32(binary.BigEndian.Uint32(b))), Size: int(int32(binary.BigEndian.Uint32(b[4:])))}
	b = b[8:]
	var fields [3][]byte
	for i, limit := range []int{MaxJob, MaxPurpose, MaxExtra} {
		if len(b) < 2 {
			return Hello{}, errHello
		}
		n := int(binary.BigEndian.Uint16(b))
		b = b[2:]
		if n > limit || n > len(b) {
			return Hello{}, errHello
		}
		fields[i], b = b[:n], b[n:]
	}
	if len(b) != 0 {
		return Hello{}, errHello
	}
	h.Job, h.Purpose = string(fields[0]), string(fields[1])
	h.Extra = append([]byte(nil), fields[2]...)
	return h, nil
}
