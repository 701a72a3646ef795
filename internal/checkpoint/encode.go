package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

var (
	// ErrFormat is the error for a checkpoint of a format older or newer than Format.
	ErrFormat = errors.New("unknown checkpoint format")

	// ErrDamaged is the error for bytes that differ from the written ones.
	ErrDamaged = errors.New("damaged")
	// ErrNotFinite is wrapped by errors for values that are NaN or infinite and may not be.
	ErrNotFinite = errors.New("not finite")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Encode returns the bytes of m's file, always the same for the same manifest. It fails if m breaks
// a rule of Decode, or would have more than 128 MiB.
func (m *Manifest) Encode() ([]byte, error) {
	if err := m.validate(); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	body, err := compact(m)
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	b := seal(Format, body)
	if int64(len(b)) > maxManifest {
		meta := 0
		for _, text := range m.Meta {
			meta += len(text)
		}
		return nil, fmt.Errorf("the manifest would have %d bytes, at most %d are allowed: save less in Extra and other metadata, which take %d bytes", len(b), maxManifest, meta)
	}
	return b, nil
}

// seal puts the version of the format and a checksum around the JSON of a manifest.
func seal(format int, body []byte) []byte {
	b := fmt.Appendf(nil, `{"format":%d,"crc32c":"%08x","manifest":`, format, crc32.Checksum(body, castagnoli))
	return append(append(b, body...), "}\n"...)
}

// Decode parses the bytes of a manifest's file. The result is consistent: pieces cover each tensor
// once and are inside the listed files, every piece has its checksums, keys and names are unique
// and in order, and the names of files lead to no other directory. A file of another version is an
// ErrFormat, one that has changed since it was written an ErrDamaged.
func Decode(b []byte) (*Manifest, error) {
	var envelope struct {
		Format   *int            `json:"format"`
		Manifest json.RawMessage `json:"manifest"`
	}
	if err := json.Unmarshal(b, &envelope); err != nil {
		return nil, fmt.Errorf("manifest: %w: %w", ErrDamaged, err)
	}
	if envelope.Format == nil {
		return nil, fmt.Errorf("manifest: %w: the version of its format is missing", ErrDamaged)
	}
	format := *envelope.Format
	if format < 1 || format > Format {
		return nil, fmt.Errorf("manifest: %w: version %d, this program reads versions 1 to %d", ErrFormat, format, Format)
	}
	// Comparing the whole file, and not only the checksum, covers every byte.
	if !bytes.Equal(b, seal(format, envelope.Manifest)) {
		return nil, fmt.Errorf("manifest: %w: checksum mismatch", ErrDamaged)
	}
	m := new(Manifest)
	var err error
	if format == 1 {
		m, err = decode1(envelope.Manifest)
	} else {
		err = strict(envelope.Manifest, m)
	}
	if err == nil {
		err = m.validate()
	}
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	return m, nil
}

// A manifest1 is a Manifest in format 1, in which pieces are JSON.
type manifest1 struct {
	Manifest
	Tensors []tensor1 `json:"tensors,omitempty"`
}

type tensor1 struct {
	Tensor
	Pieces []Piece `json:"pieces,omitempty"`
}

// decode1 parses a manifest of format 1. It checks only that each piece has the right number of
// sums.
func decode1(body []byte) (*Manifest, error) {
	old := new(manifest1)
	if err := strict(body, old); err != nil {
		return nil, err
	}
	m := old.Manifest
	for _, t := range old.Tensors {
		size := t.DType.Size()
		for _, p := range t.Pieces {
			if size < 1 || p.Len < 1 { // which validate refuses
				break
			}
			if want := sumBytes * chunks(p.Len, size); len(p.Sums) != want {
				return nil, fmt.Errorf("%s: piece [%d:%d] has %d bytes of checksums, not %d", t.Name(), p.Offset, p.end(), len(p.Sums), want)
			}
		}
		t.Tensor.Pieces = pack(t.Pieces)
		m.Tensors = append(m.Tensors, t.Tensor)
	}
	return &m, nil
}

// compact returns the JSON of v without white space. It keeps the bytes of raw JSON in v.
func compact(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// strict parses JSON in which v has every field, with nothing after it.
func strict(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("there is data after its end")
	}
	return nil
}
