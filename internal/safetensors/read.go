package safetensors

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"unicode/utf8"
)

// ReadHeader reads the header of a file of size bytes. It checks everything, see the package
// comment: an error names the rule of the format that the file breaks, and the place.
func ReadHeader(r io.ReaderAt, size int64) (*Header, error) {
	h, err := readHeader(r, size)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	return h, nil
}

func readHeader(r io.ReaderAt, size int64) (*Header, error) {
	text, err := readJSON(r, size)
	if err != nil {
		return nil, err
	}
	h := &Header{DataStart: prefix + int64(len(text)), names: make(map[string]bool)}
	if err := h.parse(text); err != nil {
		return nil, err
	}
	if err := h.cover(size - h.DataStart); err != nil {
		return nil, err
	}
	for i := range h.Tensors {
		h.Tensors[i].Offset += h.DataStart
	}
	return h, nil
}

// readJSON reads the bytes between the length and the data.
func readJSON(r io.ReaderAt, size int64) ([]byte, error) {
	if size < prefix {
		return nil, fmt.Errorf("the file has %d bytes, too few for the length of a header", size)
	}
	var first [prefix]byte
	if err := ReadFull(r, first[:], 0); err != nil {
		return nil, fmt.Errorf("read the length of the header: %w", err)
	}
	switch n := binary.LittleEndian.Uint64(first[:]); {
	case n > maxHeader:
		return nil, fmt.Errorf("a header of %d bytes, at most %d are allowed: not a safetensors file, or a damaged one", n, maxHeader)
	case n > uint64(size-prefix):
		return nil, fmt.Errorf("a header of %d bytes in a file of %d bytes: the file is truncated, or not a safetensors file", n, size)
	default:
		text := make([]byte, n)
		if err := ReadFull(r, text, prefix); err != nil {
			return nil, fmt.Errorf("read the header of %d bytes: %w", n, err)
		}
		return text, nil
	}
}

// ReadFull fills b from offset. It returns an error if the reader ends earlier, even if nothing was
// read.
func ReadFull(r io.ReaderAt, b []byte, offset int64) error {
	_, err := io.ReadFull(io.NewSectionReader(r, offset, int64(len(b))), b)
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// parse reads tensors and metadata from the JSON. Offsets still count from DataStart.
func (h *Header) parse(text []byte) error {
	if !utf8.Valid(text) {
		return errors.New("the header is not valid UTF-8")
	}
	if len(text) == 0 || text[0] != '{' {
		return errors.New("the header does not begin with {")
	}
	s := &scanner{text: text}
	metadata := false
	err := s.object(func(name string) error {
		if name != metadataName {
			if err := h.parseTensor(s, name); err != nil {
				return fmt.Errorf("tensor %.100q: %w", name, err)
			}
			return nil
		}
		if metadata {
			return s.wrong("a second " + metadataName)
		}
		metadata = true
		if err := h.parseMetadata(s); err != nil {
			return fmt.Errorf("%s: %w", metadataName, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.rest()
}

func (h *Header) parseMetadata(s *scanner) error {
	return s.object(func(name string) error {
		if _, ok := h.Metadata[name]; ok {
			return s.wrong(fmt.Sprintf("a second %.100q", name))
		}
		value, err := s.string()
		if err != nil {
			return fmt.Errorf("%.100q: %w", name, err)
		}
		if h.Metadata == nil {
			h.Metadata = make(map[string]string)
		}
		h.Metadata[name] = value
		return nil
	})
}

// parseTensor reads one tensor, and checks everything that does not depend on others.
func (h *Header) parseTensor(s *scanner, name string) error {
	if err := h.add(name); err != nil {
		return err
	}
	t := Tensor{Name: name, Shape: []int{}}
	offsets, err := t.parse(s)
	if err != nil {
		return err
	}
	if len(offsets) != 2 {
		return s.wrong(fmt.Sprintf("data_offsets %d are not two numbers,", offsets))
	}
	t.Offset, t.Size = offsets[0], offsets[1]-offsets[0]
	want, err := bytesOf(t.DType, t.Shape)
	if err != nil {
		return err
	}
	if t.Size != want {
		return fmt.Errorf("data_offsets %d are %d bytes apart, but shape %v of %s has %d", offsets, t.Size, t.Shape, t.DType, want)
	}
	h.Tensors = append(h.Tensors, t)
	return nil
}

// fields are the members of a tensor. Each occurs once, in any order.
var fields = []string{"dtype", "shape", "data_offsets"}

// parse reads DType, Shape and the data_offsets.
func (t *Tensor) parse(s *scanner) (offsets []int64, err error) {
	seen := make([]bool, len(fields))
	err = s.object(func(field string) error {
		i := slices.Index(fields, field)
		switch {
		case i < 0:
			return s.wrong(fmt.Sprintf("unknown member %.100q", field))
		case seen[i]:
			return s.wrong(fmt.Sprintf("a second %q", field))
		}
		seen[i] = true
		var err error
		switch field {
		case "dtype":
			var text string
			text, err = s.string()
			t.DType = DType(text)
		case "shape":
			err = s.array(maxRank, func() error {
				n, err := s.number(strconv.IntSize)
				t.Shape = append(t.Shape, int(n))
				return err
			})
		case "data_offsets":
			err = s.array(2, func() error {
				n, err := s.number(64)
				offsets = append(offsets, n)
				return err
			})
		}
		if err != nil {
			return fmt.Errorf("%s: %w", field, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if i := slices.Index(seen, false); i >= 0 {
		return nil, s.wrong("no " + fields[i])
	}
	return offsets, nil
}

// cover sorts the tensors and checks that they cover the size bytes of data, each once. Offsets
// count from DataStart.
func (h *Header) cover(size int64) error {
	// An empty tensor comes before a tensor that begins at the same offset. Empty ones keep the
	// file's order.
	slices.SortStableFunc(h.Tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Size, b.Size))
	})
	var end int64
	for i, t := range h.Tensors {
		if t.Offset != end {
			before := "the data begins"
			if i > 0 {
				before = fmt.Sprintf("tensor %.100q ends", h.Tensors[i-1].Name)
			}
			return fmt.Errorf("tensor %.100q begins at byte %d of the data, but %s at byte %d: tensors must not overlap or leave gaps", t.Name, t.Offset, before, end)
		}
		if t.Size > size-end {
			return fmt.Errorf("tensor %.100q ends at byte %d of the data, which has %d bytes: the file is truncated", t.Name, end+t.Size, size)
		}
		end += t.Size
	}
	if end != size {
		return fmt.Errorf("the tensors end at byte %d of the data, which has %d bytes: the header does not describe the rest", end, size)
	}
	return nil
}
