package tokenizer

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A charsmap is SentencePiece's table of characters and their replacements: a trie in two arrays of
// units of 32 bits (Darts, https://github.com/s-yata/darts-clone), and texts that end in a zero
// byte.
type charsmap struct {
	trie  []uint32
	texts []byte
}

// precompiled parses a charsmap in base64: the size of the trie in bytes, the trie, the texts.
func precompiled(text json.RawMessage) (func(string) string, error) {
	var p struct {
		field
		Map string `json:"precompiled_charsmap"`
	}
	if err := strict(text, &p); err != nil {
		return nil, err
	}
	b, err := base64.StdEncoding.DecodeString(p.Map)
	if err != nil {
		return nil, err
	}
	m, err := newCharsmap(b)
	return m.apply, err
}

// newCharsmap parses the bytes of a charsmap.
func newCharsmap(b []byte) (*charsmap, error) {
	if len(b) < 4 || uint64(binary.LittleEndian.Uint32(b)) > uint64(len(b)-4) {
		return nil, errors.New("precompiled_charsmap is too short")
	}
	n := binary.LittleEndian.Uint32(b) / 4
	m := &charsmap{trie: make([]uint32, n), texts: b[4+4*n:]}
	for i := range m.trie {
		m.trie[i] = binary.LittleEndian.Uint32(b[4+4*i:])
	}
	return m, nil
}

// lookup returns the replacement of the longest or the shortest beginning of key that is in the
// table, and the length of the beginning in bytes: 0 if there is none.
func (m *charsmap) lookup(key string, longest bool) (text string, n int) {
	offset := func(unit uint32) uint32 { return unit >> 10 << (unit & (1 << 9) >> 6) }
	unit := func(at uint32) uint32 {
		if at >= uint32(len(m.trie)) {
			return 0
		}
		return m.trie[at]
	}
	at := offset(unit(0))
	for i := range len(key) {
		if key[i] == 0 {
			break
		}
		at ^= uint32(key[i])
		u := unit(at)
		if u&(1<<31|0xff) != uint32(key[i]) {
			break
		}
		at ^= offset(u)
		if u>>8&1 == 0 { // no key ends here
			continue
		}
		begin := unit(at) & (1<<31 - 1)
		if begin > uint32(len(m.texts)) {
			break
		}
		found, _, _ := bytes.Cut(m.texts[begin:], []byte{0})
		text, n = string(found), i+1
		if !longest {
			break
		}
	}
	return text, n
}

// apply normalizes a text: short clusters of characters at once if the table has them, otherwise
// character by character.
func (m *charsmap) apply(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		n := cluster(s)
		if n < 6 {
			if text, found := m.lookup(s[:n], false); found > 0 {
				b.WriteString(text)
				s = s[n:]
				continue
			}
		}
		for _, r := range s[:n] {
			c := string(r)
			if text, found := m.lookup(c, false); found > 0 {
				c = text
			}
			b.WriteString(c)
		}
		s = s[n:]
	}
	return b.String()
}

// cluster returns the number of bytes of the first character with the marks and joiners after it.
// Clusters that the table may have are shorter than 6 bytes. For these it returns Unicode's
// grapheme.
func cluster(s string) int {
	first, n := utf8.DecodeRuneInString(s)
	if first == '\r' && strings.HasPrefix(s[n:], "\n") {
		return n + 1
	}
	if unicode.In(first, unicode.Cc, unicode.Zl, unicode.Zp) {
		return n
	}
	for n < len(s) {
		r, size := utf8.DecodeRuneInString(s[n:])
		if r != 0x200c && r != 0x200d && !unicode.Is(unicode.M, r) {
			break
		}
		n += size
	}
	return n
}
