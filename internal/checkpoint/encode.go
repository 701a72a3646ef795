package checkpoint

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

var (
	// ErrFormat is the error about a checkpoint of a format older or newer than Format.
	ErrFormat = errors.New("another format of checkpoints")

	// ErrDamaged is the error about bytes that are not those that were written.
	ErrDamaged = errors.New("damaged")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Sums are checksums. As text they are the base64 of their little-endian bytes.
type Sums []uint32

// MarshalText implements [encoding.TextMarshaler].
func (s Sums) MarshalText() ([]byte, error) {
	raw := make([]byte, 0, 4*len(s))
	for _, sum := range s {
		raw = binary.LittleEndian.AppendUint32(raw, sum)
	}
	return base64.StdEncoding.AppendEncode(nil, raw), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (s *Sums) UnmarshalText(text []byte) error {
	raw, err := base64.StdEncoding.AppendDecode(nil, text)
	if err != nil {
		return fmt.Errorf("checksums: %w", err)
	}
	if len(raw)%4 != 0 {
		return fmt.Errorf("checksums: %d bytes are no whole number of them", len(raw))
	}
	*s = make(Sums, len(raw)/4)
	for i := range *s {
		(*s)[i] = binary.LittleEndian.Uint32(raw[4*i:])
	}
	return nil
}

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
	b := seal(body)
	if int64(len(b)) > maxManifest {
		meta := 0
		for _, text := range m.Meta {
			meta += len(text)
		}
		return nil, fmt.Errorf("manifest: it would have %d bytes, at most %d are read; %d of them are metadata, such as Extra", len(b), maxManifest, meta)
	}
	return b, nil
}

// seal puts the version of the format and a checksum around the JSON of a manifest.
func seal(body []byte) []byte {
	b := fmt.Appendf(nil, `{"format":%d,"crc32c":"%08x","manifest":`, Format, crc32.Checksum(body, castagnoli))
	return append(append(b, body...), "}\n"...)
}

// Decode parses the bytes of a manifest's file. What it returns holds together: pieces cover each
// tensor once and lie inside the files that it lists, every piece has its checksums, keys and names
// are unique and in order, and the names of files lead to no other directory. A file of another
// version is an ErrFormat, one that has changed since it was written an ErrDamaged.
func Decode(b []byte) (*Manifest, error) {
	var envelope struct {
		Format   *int            `json:"format"`
		Manifest json.RawMessage `json:"manifest"`
	}
	if err := json.Unmarshal(b, &envelope); err != nil {
		return nil, fmt.Errorf("manifest: %w: %w", ErrDamaged, err)
	}
	if envelope.Format == nil {
		return nil, fmt.Errorf("manifest: %w: it has no version of its format", ErrDamaged)
	}
	if *envelope.Format != Format {
		return nil, fmt.Errorf("manifest: %w: its version is %d, this program reads %d", ErrFormat, *envelope.Format, Format)
	}
	// Comparing all of the file, and not only the checksum, leaves no byte of it out.
	if !bytes.Equal(b, seal(envelope.Manifest)) {
		return nil, fmt.Errorf("manifest: %w: it is not what its checksum was made of", ErrDamaged)
	}
	m := new(Manifest)
	if err := strict(envelope.Manifest, m); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	if err := m.validate(); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	return m, nil
}

// compact returns the JSON of v without white space, the bytes of what v has as JSON left as they
// are.
func compact(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// strict parses JSON of which v knows every field, and nothing behind it.
func strict(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("there is more behind its end")
	}
	return nil
}
