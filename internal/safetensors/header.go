package safetensors

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

// These are limits and names of the format.
const (
	maxHeader    = 100_000_000 // bytes of JSON
	metadataName = "__metadata__"
	prefix       = 8  // bytes of the length
	align        = 64 // alignment in bytes of DataStart in files that this package writes
)

// Tensor is a tensor of a file and the place of its data: Size bytes, Offset bytes from the start
// of the file.
type Tensor struct {
	Name         string
	DType        DType
	Shape        []int
	Offset, Size int64
}

// Header is the contents of a file's header. It comes from [ReadHeader] or [NewHeader] and must not
// be changed.
type Header struct {
	Tensors   []Tensor          // by Offset; a tensor begins where the one before it ends
	Metadata  map[string]string // nil if there is none
	DataStart int64             // offset in the file at which the first tensor begins

	names map[string]bool // of Tensors
}

// Order is an order of tensors that [NewHeader] accepts, for slices.SortStableFunc: larger element
// types first. Every size is a power of two, so for any shapes each tensor begins at a multiple of
// the size of its elements.
func Order(a, b Tensor) int { return cmp.Compare(b.DType.Size(), a.DType.Size()) }

// NewHeader returns the header of a file with these tensors, one behind the other in this order. It
// assigns Offset and Size in a copy. It returns an error if a tensor would not begin at a multiple
// of the size of its elements: sort mixed types by [Order] first.
func NewHeader(tensors []Tensor, metadata map[string]string) (*Header, error) {
	h := &Header{Tensors: append([]Tensor(nil), tensors...), names: make(map[string]bool, len(tensors))}
	if err := h.setMetadata(metadata); err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	var end int64 // of the tensors so far, from DataStart
	for i := range h.Tensors {
		t := &h.Tensors[i]
		if err := h.place(i, end); err != nil {
			return nil, fmt.Errorf("safetensors: tensor %.100q: %w", t.Name, err)
		}
		end += t.Size
	}
	h.DataStart = int64(roundUp(prefix + len(h.json())))
	if n := h.DataStart - prefix; n > maxHeader {
		return nil, fmt.Errorf("safetensors: the header would have %d bytes, at most %d are allowed", n, maxHeader)
	}
	if end > math.MaxInt64-h.DataStart {
		return nil, fmt.Errorf("safetensors: %d bytes of tensors are more than a file can have", end)
	}
	for i := range h.Tensors {
		h.Tensors[i].Offset += h.DataStart
	}
	return h, nil
}

// setMetadata checks and copies the metadata.
func (h *Header) setMetadata(metadata map[string]string) error {
	for name, value := range metadata {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return fmt.Errorf("metadata %.100q: %.100q is not valid UTF-8", name, value)
		}
	}
	if len(metadata) > 0 {
		h.Metadata = maps.Clone(metadata)
	}
	return nil
}

// place sets the offset of tensor i, which still counts from DataStart.
func (h *Header) place(i int, offset int64) (err error) {
	t := &h.Tensors[i]
	if t.Size, err = bytesOf(t.DType, t.Shape); err != nil {
		return err
	}
	if err := h.add(t.Name); err != nil {
		return err
	}
	switch size := int64(t.DType.Size()); {
	case !utf8.ValidString(t.Name):
		return errors.New("the name is not valid UTF-8")
	case offset%size != 0:
		return fmt.Errorf("the tensor would begin at byte %d of the data, which is not a multiple of %d, the size of an element of %s", offset, size, t.DType)
	case t.Size > math.MaxInt64-offset:
		return fmt.Errorf("shape %v of %s after %d bytes of other tensors is larger than a file can be", t.Shape, t.DType, offset)
	}
	t.Shape, t.Offset = append([]int{}, t.Shape...), offset
	return nil
}

// add adds the name of a tensor, which must be new.
func (h *Header) add(name string) error {
	if name == metadataName {
		return errors.New("the name is reserved for the metadata")
	}
	if h.names[name] {
		return errors.New("two tensors have this name")
	}
	h.names[name] = true
	return nil
}

// Encode returns the beginning of a file: the length of the JSON, the JSON, and spaces up to a
// multiple of 64 bytes, where the data starts. For a header from [NewHeader] this is DataStart. For
// a header that was read it may differ, since other programs pad differently. The tensors have the
// same positions relative to it.
func (h *Header) Encode() []byte {
	text := h.json()
	b := make([]byte, 0, roundUp(prefix+len(text)))
	b = binary.LittleEndian.AppendUint64(b, uint64(cap(b)-prefix))
	b = append(b, text...)
	for len(b)%align != 0 {
		b = append(b, ' ')
	}
	return b
}

// json returns the JSON without spaces.
func (h *Header) json() []byte {
	b := []byte{'{'}
	if len(h.Metadata) > 0 {
		b = append(quote(b, metadataName), `:{`...)
		for _, name := range slices.Sorted(maps.Keys(h.Metadata)) {
			b = append(quote(b, name), ':')
			b = append(quote(b, h.Metadata[name]), ',')
		}
		b = append(b[:len(b)-1], `},`...)
	}
	for _, t := range h.Tensors {
		begin := t.Offset - h.DataStart
		b = append(quote(b, t.Name), `:{"dtype":"`...)
		b = append(append(b, t.DType...), `","shape":[`...)
		for i, n := range t.Shape {
			if i > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendInt(b, int64(n), 10)
		}
		b = strconv.AppendInt(append(b, `],"data_offsets":[`...), begin, 10)
		b = strconv.AppendInt(append(b, ','), begin+t.Size, 10)
		b = append(b, `]},`...)
	}
	if last := len(b) - 1; b[last] == ',' {
		b = b[:last]
	}
	return append(b, '}')
}

// quote appends s, which is valid UTF-8, as a string of JSON.
func quote(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ':
			b = fmt.Appendf(b, `\u%04x`, c)
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

func roundUp(n int) int { return (n + align - 1) / align * align }
