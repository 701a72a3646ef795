package tokenizer

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A pattern finds parts of a text.
type pattern struct {
	re  *regexp.Regexp
	run int  // group of a run of white space that leaves its last character to what follows, or 0
	not bool // the parts between the matches are meant
}

// `\s+(?!\S)` matches white space except for its last character before a word. Package regexp has
// no lookahead, so group run replaces it, and is cut after the match. The result is the same if
// `\s+` or `\s` is the next alternative, as in all patterns with it.
const (
	lookahead = `\s+(?!\S)`
	spaces    = `\t-\r\x{85}\p{Z}`                                                                                       // in brackets: \s is all of Unicode's white space
	letter    = `\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189}` // \w
	joiners   = `\x{200c}\x{200d}`                                                                                       // in \w of Rust's regular expressions
)

// compile makes a pattern of a regular expression of Oniguruma.
func compile(text string) (*pattern, error) {
	parts := strings.Split(text, lookahead)
	if len(parts) > 2 || len(parts) == 2 && !strings.HasPrefix(parts[1], `|\s`) {
		return nil, fmt.Errorf("pattern %q is not supported", text)
	}
	re, err := regexp.Compile(translate(strings.Join(parts, `(?P<run>\s+)`)))
	if err != nil {
		return nil, fmt.Errorf("pattern %q is not supported: %w", text, err)
	}
	return &pattern{re: re, run: max(0, re.SubexpIndex("run"))}, nil
}

// translate writes Oniguruma's classes, which are Unicode's, for package regexp.
func translate(text string) string {
	var b strings.Builder
	brackets := 0
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c != '\\' || i+1 == len(text) {
			switch c {
			case '[':
				brackets++
			case ']':
				brackets--
			}
			b.WriteByte(c)
			continue
		}
		i++
		class, not := map[byte]string{'s': spaces, 'd': `\p{Nd}`, 'w': letter}[text[i]|0x20], text[i] < 'a'
		switch {
		case class == "" || not && brackets > 0: // which regexp refuses, or takes as it is
			b.WriteString(text[i-1 : i+1])
		case brackets > 0:
			b.WriteString(class)
		case not:
			b.WriteString("[^" + class + "]")
		default:
			b.WriteString("[" + class + "]")
		}
	}
	return b.String()
}

// parsePattern reads {"String": "…"} or {"Regex": "…"}.
func parsePattern(text json.RawMessage) (*pattern, error) {
	var p struct{ String, Regex *string }
	if err := strict(text, &p); err != nil {
		return nil, err
	}
	switch {
	case p.Regex != nil:
		return compile(*p.Regex)
	case p.String != nil && *p.String != "":
		return &pattern{re: regexp.MustCompile(regexp.QuoteMeta(*p.String))}, nil
	}
	return nil, fmt.Errorf("pattern %s is not supported", text)
}

// parts calls f for the matches, and for the text between them.
func (p *pattern) parts(s string, f func(part string, match bool)) {
	start := 0
	for at := 0; at < len(s); {
		from, to := p.find(s, at)
		if from < 0 {
			break
		}
		if to == from { // matches nothing
			_, n := utf8.DecodeRuneInString(s[to:])
			at = to + n
			continue
		}
		if start < from {
			f(s[start:from], p.not)
		}
		f(s[from:to], !p.not)
		start, at = to, to
	}
	if start < len(s) {
		f(s[start:], p.not)
	}
}

// find returns the first match from a place on, or -1. It searches a window of the text, because
// package regexp takes time for all of its input to find one match. A match that ends before the
// end of the window is the match.
func (p *pattern) find(s string, at int) (from, to int) {
	for window := 128; ; window *= 4 {
		view := s[at:min(len(s), at+window)]
		if len(view) < len(s)-at { // no character is to be cut
			for i := 0; i < utf8.UTFMax-1 && len(view) > 0 && !utf8.RuneStart(s[at+len(view)]); i++ {
				view = view[:len(view)-1]
			}
		}
		m := p.re.FindStringSubmatchIndex(view)
		if (m == nil || m[1] == len(view)) && len(view) < len(s)-at {
			continue
		}
		if m == nil {
			return -1, -1
		}
		from, to = at+m[0], at+m[1]
		if p.run > 0 && m[2*p.run] >= 0 && to < len(s) {
			if _, n := utf8.DecodeLastRuneInString(s[from:to]); to-n > from {
				to -= n
			}
		}
		return from, to
	}
}

// behave returns the function that applies a behavior to the parts.
func behave(name string) (func(parts []string, matches []bool) []string, error) {
	switch name {
	case "Isolated":
		return func(parts []string, _ []bool) []string { return parts }, nil
	case "Removed":
		return func(parts []string, matches []bool) (out []string) {
			for i, p := range parts {
				if !matches[i] {
					out = append(out, p)
				}
			}
			return out
		}, nil
	case "Contiguous":
		return joined(func(before, match bool) bool { return before == match }), nil
	case "MergedWithPrevious":
		return joined(func(before, match bool) bool { return !before && match }), nil
	case "MergedWithNext":
		return joined(func(before, match bool) bool { return before && !match }), nil
	}
	return nil, fmt.Errorf("behavior %q is not supported", name)
}

// joined joins a part to the one before it if fits returns true.
func joined(fits func(before, match bool) bool) func(parts []string, matches []bool) []string {
	return func(parts []string, matches []bool) (out []string) {
		for i, p := range parts {
			if i > 0 && fits(matches[i-1], matches[i]) {
				out[len(out)-1] += p
			} else {
				out = append(out, p)
			}
		}
		return out
	}
}

// by splits words at a pattern.
func (p *pattern) by(behavior string) (func([]word) []word, error) {
	keep, err := behave(behavior)
	return func(words []word) (out []word) {
		for _, w := range words {
			var parts []string
			var matches []bool
			p.parts(w.text, func(part string, match bool) {
				parts, matches = append(parts, part), append(matches, match)
			})
			for i, part := range keep(parts, matches) {
				out = append(out, word{part, w.first && i == 0})
			}
		}
		return out
	}, err
}

// at is by for a pattern of this package.
func at(text, behavior string) (func([]word) []word, error) {
	p, err := compile(text)
	if err != nil {
		return nil, err
	}
	return p.by(behavior)
}

// punctuation matches ASCII's punctuation and symbols, and Unicode's punctuation.
const punctuation = "[!-/:-@\\[-`{-~\\p{P}]"

// splitter parses how a text is split into words.
func splitter(text json.RawMessage) (func([]word) []word, error) {
	if absent(text) {
		return func(words []word) []word { return words }, nil
	}
	kind, err := kindOf(text)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "Sequence":
		var s struct {
			field
			PreTokenizers []json.RawMessage `json:"pretokenizers"`
		}
		if err := strict(text, &s); err != nil {
			return nil, err
		}
		return splitters(s.PreTokenizers)
	case "BertPreTokenizer":
		return splitters([]json.RawMessage{[]byte(`{"type": "WhitespaceSplit"}`), []byte(`{"type": "Punctuation", "behavior": "Isolated"}`)})
	case "Whitespace":
		p, err := compile(`[\w` + joiners + `]+|[^\w\s` + joiners + `]+`)
		if err != nil {
			return nil, err
		}
		p.not = true
		return p.by("Removed")
	case "WhitespaceSplit":
		return at(`\s`, "Removed")
	case "Punctuation":
		p := struct {
			field
			Behavior string `json:"behavior"`
		}{Behavior: "Isolated"}
		if err := strict(text, &p); err != nil {
			return nil, err
		}
		return at(punctuation, p.Behavior)
	case "Digits":
		var d struct {
			field
			Individual bool `json:"individual_digits"`
		}
		if err := strict(text, &d); err != nil {
			return nil, err
		}
		if d.Individual {
			return at(`\p{N}`, "Isolated")
		}
		return at(`\p{N}`, "Contiguous")
	case "Split":
		return parseSplit(text)
	case "Metaspace":
		return parseMetaspace(text)
	case "ByteLevel":
		return parseByteLevel(text)
	}
	return nil, unsupported(kind)
}

func splitters(list []json.RawMessage) (func([]word) []word, error) {
	var all []func([]word) []word
	for _, text := range list {
		f, err := splitter(text)
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return func(words []word) []word {
		for _, f := range all {
			words = f(words)
		}
		return words
	}, nil
}

func parseSplit(text json.RawMessage) (func([]word) []word, error) {
	var s struct {
		field
		Pattern  json.RawMessage `json:"pattern"`
		Behavior string          `json:"behavior"`
		Invert   bool            `json:"invert"`
	}
	if err := strict(text, &s); err != nil {
		return nil, err
	}
	p, err := parsePattern(s.Pattern)
	if err != nil {
		return nil, err
	}
	p.not = s.Invert
	return p.by(s.Behavior)
}

// parseMetaspace parses SentencePiece's handling of spaces: another character replaces them, also
// before the text.
func parseMetaspace(text json.RawMessage) (func([]word) []word, error) {
	m, err := metaspaceOf(text)
	if err != nil {
		return nil, err
	}
	split, err := at(regexp.QuoteMeta(m.Replacement), "MergedWithNext")
	return func(words []word) []word {
		out := make([]word, len(words))
		for i, w := range words {
			w.text = strings.ReplaceAll(w.text, " ", m.Replacement)
			if (m.Prepend == "always" || m.Prepend == "first" && w.first) && !strings.HasPrefix(w.text, m.Replacement) {
				w.text = m.Replacement + w.text
			}
			out[i] = w
		}
		if m.Split {
			out = split(out)
		}
		return out
	}, err
}

// A metaspace has the settings of pre_tokenizer and decoder for it.
type metaspace struct {
	field
	Replacement string `json:"replacement"`
	Prepend     string `json:"prepend_scheme"`
	Split       bool   `json:"split"`
	Old         *bool  `json:"add_prefix_space"` // the old form of prepend_scheme
	OldText     string `json:"str_rep"`
}

func metaspaceOf(text json.RawMessage) (*metaspace, error) {
	m := &metaspace{Replacement: "▁", Prepend: "always", Split: true}
	if err := strict(text, m); err != nil {
		return nil, err
	}
	if m.Old != nil && !*m.Old {
		m.Prepend = "never"
	}
	if m.Prepend != "always" && m.Prepend != "first" && m.Prepend != "never" || utf8.RuneCountInString(m.Replacement) != 1 {
		return nil, fmt.Errorf("prepend_scheme %q with replacement %q is not supported", m.Prepend, m.Replacement)
	}
	return m, nil
}

// gpt2Pattern splits as GPT-2 does.
const gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// parseByteLevel parses GPT-2's way: each byte becomes a letter of a separate alphabet.
func parseByteLevel(text json.RawMessage) (func([]word) []word, error) {
	b := struct {
		field
		Prefix bool `json:"add_prefix_space"`
		Trim   bool `json:"trim_offsets"`
		Regex  bool `json:"use_regex"`
	}{Regex: true}
	if err := strict(text, &b); err != nil {
		return nil, err
	}
	split, err := at(gpt2Pattern, "Isolated")
	return func(words []word) []word {
		if b.Prefix {
			for i, w := range words {
				if !strings.HasPrefix(w.text, " ") {
					words[i].text = " " + w.text
				}
			}
		}
		if b.Regex {
			words = split(words)
		}
		for i, w := range words {
			words[i].text = letters(w.text)
		}
		return words
	}, err
}

// byteLetters has the letter of each byte: the byte itself if it is visible, otherwise a letter
// after all of these. letterBytes has the bytes.
var byteLetters, letterBytes = func() (of [256]rune, bytes map[rune]byte) {
	bytes = make(map[rune]byte)
	next := rune(256)
	for b := range of {
		if r := rune(b); r != 0xad && r > ' ' && r != 0x7f && unicode.IsPrint(r) {
			of[b] = r
		} else {
			of[b] = next
			next++
		}
		bytes[of[b]] = byte(b)
	}
	return of, bytes
}()

func letters(s string) string {
	b := make([]rune, len(s))
	for i := range len(s) {
		b[i] = byteLetters[s[i]]
	}
	return string(b)
}
