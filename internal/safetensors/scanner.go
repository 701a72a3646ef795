package safetensors

import (
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// A scanner reads the JSON of a header: objects, arrays, strings and whole numbers, in the places
// where the format has them. Package encoding/json would accept more than the format allows: it
// keeps the last of two members of one name, replaces half of a surrogate pair by another
// character, and reads a missing number as 0. The caller asks for the kind of each value, so
// nesting is never deeper than the caller's.
type scanner struct {
	text []byte // valid UTF-8
	at   int    // what comes next
}

// wrong returns an error with the position of the scanner.
func (s *scanner) wrong(what string) error {
	return fmt.Errorf("%s at byte %d of the file", what, prefix+s.at)
}

// object reads an object. After each name it calls member to read the value.
func (s *scanner) object(member func(name string) error) error {
	return s.list('{', '}', func() error {
		name, err := s.string()
		if err != nil {
			return err
		}
		if err := s.expect(':'); err != nil {
			return err
		}
		return member(name)
	})
}

// array reads an array of at most limit elements. It calls element to read each.
func (s *scanner) array(limit int, element func() error) error {
	n := 0
	return s.list('[', ']', func() error {
		if n++; n > limit {
			return s.wrong(fmt.Sprintf("more than %d elements", limit))
		}
		return element()
	})
}

// list reads items with commas between them.
func (s *scanner) list(begin, end byte, item func() error) error {
	if err := s.expect(begin); err != nil {
		return err
	}
	if s.accept(end) {
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		if s.accept(end) {
			return nil
		}
		if err := s.expect(','); err != nil {
			return err
		}
	}
}

// expect passes c.
func (s *scanner) expect(c byte) error {
	if s.accept(c) {
		return nil
	}
	if s.at == len(s.text) {
		return s.wrong(fmt.Sprintf("the header ends, want %q", c))
	}
	return s.wrong(fmt.Sprintf("%q, want %q", s.text[s.at], c))
}

// accept skips white space, and then skips c if it comes next.
func (s *scanner) accept(c byte) bool {
	s.space()
	if s.at == len(s.text) || s.text[s.at] != c {
		return false
	}
	s.at++
	return true
}

func (s *scanner) space() {
	for s.at < len(s.text) && (s.text[s.at] == ' ' || s.text[s.at] == '\n' || s.text[s.at] == '\r' || s.text[s.at] == '\t') {
		s.at++
	}
}

// rest checks that only spaces are left.
func (s *scanner) rest() error {
	for ; s.at < len(s.text); s.at++ {
		if s.text[s.at] != ' ' {
			return s.wrong(fmt.Sprintf("%q after the JSON value", s.text[s.at]))
		}
	}
	return nil
}

// number reads a non-negative whole number that fits a signed integer of the given number of bits.
func (s *scanner) number(bits int) (int64, error) {
	s.space()
	start := s.at
	for s.at < len(s.text) && '0' <= s.text[s.at] && s.text[s.at] <= '9' {
		s.at++
	}
	digits := string(s.text[start:s.at])
	if digits == "" || digits[0] == '0' && digits != "0" {
		s.at = start
		return 0, s.wrong("want a whole number, not negative,")
	}
	n, err := strconv.ParseInt(digits, 10, bits)
	if err != nil {
		s.at = start
		return 0, s.wrong(fmt.Sprintf("the number %.30s overflows", digits))
	}
	return n, nil
}

// string reads a string.
func (s *scanner) string() (string, error) {
	if err := s.expect('"'); err != nil {
		return "", err
	}
	var done []byte // the string before start, without escapes
	for start := s.at; s.at < len(s.text); {
		switch c := s.text[s.at]; {
		case c == '"':
			done = append(done, s.text[start:s.at]...)
			s.at++
			return string(done), nil
		case c < ' ':
			return "", s.wrong("a control character in a string")
		case c != '\\':
			s.at++
		default:
			done = append(done, s.text[start:s.at]...)
			r, err := s.escape()
			if err != nil {
				return "", err
			}
			done = utf8.AppendRune(done, r)
			start = s.at
		}
	}
	return "", s.wrong("the header ends within a string")
}

// escapes are the characters for a backslash and a letter.
var escapes = map[byte]rune{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// escape reads the character that begins with a backslash. A character beyond the first 65,536
// consists of two escapes, a surrogate pair.
func (s *scanner) escape() (rune, error) {
	if s.at+1 < len(s.text) {
		if r, ok := escapes[s.text[s.at+1]]; ok {
			s.at += 2
			return r, nil
		}
	}
	start := s.at
	r, ok := s.unicode()
	if utf16.IsSurrogate(r) {
		var low rune
		low, ok = s.unicode()
		r = utf16.DecodeRune(r, low)
		ok = ok && r != utf8.RuneError
	}
	if !ok {
		s.at = start
		return 0, s.wrong("a bad escape in a string")
	}
	return r, nil
}

// unicode reads a backslash, a u and four hexadecimal digits.
func (s *scanner) unicode() (rune, bool) {
	const length = len(`\u0000`)
	if len(s.text)-s.at < length || s.text[s.at] != '\\' || s.text[s.at+1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(s.text[s.at+2:s.at+length]), 16, 16)
	s.at += length
	return rune(n), err == nil
}
