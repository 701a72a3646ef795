package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// A Tokenizer is safe for concurrent use. Do not modify its fields.
type Tokenizer struct {
	BOS, EOS, Pad, Unknown int // tokens that tokenizer_config.json names, or -1
	Size                   int // one more than the largest token: rows that an embedding needs

	raw, normal []*added // added tokens in texts as they are, and in normalized ones
	normalize   func(string) string
	split       func([]word) []word
	model       model
	before      []int // of the template
	after       []int
	decode      func([]string) []string

	ids     map[string]int
	tokens  map[int]string
	special map[int]bool
	chat    chatTemplate
	twice   sync.Once // warns of a text that begins with the tokens that the template adds
	endless sync.Once // warns of answers without a token at their end
}

// A model turns a word into tokens.
type model interface {
	encode(ids []int, word string) []int
	all() map[string]int
}

// A word is a part of a text that tokens do not cross.
type word struct {
	text  string
	first bool // begins at the beginning of the text
}

// An added token is found in a text before all other steps.
type added struct {
	ID         int    `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// Open reads tokenizer.json in a directory and the names of special tokens in
// tokenizer_config.json, if it exists. Without tokenizer.json, it reads tokenizer.model or
// spiece.model, and the files next to it.
func Open(dir string) (*Tokenizer, error) {
	t, err := open(dir)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %s: %w", dir, err)
	}
	return t, nil
}

func open(dir string) (*Tokenizer, error) {
	t, c, err := openFiles(dir)
	if err == nil {
		err = t.readTemplate(dir, c)
	}
	return t, err
}

// openFiles reads everything but the chat template. It also returns tokenizer_config.json, with the
// settings that other files add to it.
func openFiles(dir string) (*Tokenizer, settings, error) {
	text, err := os.ReadFile(filepath.Join(dir, "tokenizer.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return openPieces(dir, err)
	}
	if err != nil {
		return nil, nil, err
	}
	t, err := parse(text)
	if err != nil {
		return nil, nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	text, err = os.ReadFile(filepath.Join(dir, "tokenizer_config.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil, nil
	}
	var c settings
	if err == nil {
		c, err = t.configure(text)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("tokenizer_config.json: %w", err)
	}
	return t, c, nil
}

// configure reads the names of special tokens, and checks that the template adds the requested
// tokens.
func (t *Tokenizer) configure(text []byte) (c settings, err error) {
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, err
	}
	if err := t.name(c); err != nil {
		return nil, err
	}
	bos, err1 := read(c, "add_bos_token", (*bool)(nil))
	eos, err2 := read(c, "add_eos_token", (*bool)(nil))
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	if has := len(t.before) > 0 && t.before[0] == t.BOS; bos != nil && t.BOS >= 0 && *bos != has {
		return nil, fmt.Errorf("add_bos_token is %t, but the post_processor of tokenizer.json says %t", *bos, has)
	}
	if has := len(t.after) > 0 && t.after[len(t.after)-1] == t.EOS; eos != nil && t.EOS >= 0 && *eos != has {
		return nil, fmt.Errorf("add_eos_token is %t, but the post_processor of tokenizer.json says %t", *eos, has)
	}
	return c, nil
}

// Encode returns the tokens of a text, with the template's tokens around it. Bytes that are not
// UTF-8 become U+FFFD. A text that begins with the first token of the template, as rendered chat
// templates do, gets that token twice. The first such text causes a warning: use EncodePlain for
// it.
func (t *Tokenizer) Encode(text string) []int {
	ids := t.appendPlain(append([]int(nil), t.before...), text)
	if n := len(t.before); n > 0 && len(ids) > n && ids[n] == t.before[0] {
		t.twice.Do(func() {
			slog.Warn(fmt.Sprintf("tokenizer: a text begins with %q, which Encode puts before every text, so the token is there twice: use EncodePlain",
				t.tokens[t.before[0]]))
		})
	}
	return append(ids, t.after...)
}

// EncodePlain is Encode without the template. Special tokens in the text are found.
func (t *Tokenizer) EncodePlain(text string) []int { return t.appendPlain(nil, text) }

func (t *Tokenizer) appendPlain(ids []int, text string) []int {
	first := true
	cut(lossy([]byte(text)), t.raw, func(part string, token *added) {
		ids = t.appendPart(ids, part, token, first)
		first = false
	})
	return ids
}

// appendPart appends the tokens of one part of a text. A part is an added token or the text between
// two of them.
func (t *Tokenizer) appendPart(ids []int, part string, token *added, first bool) []int {
	if token != nil {
		return append(ids, token.ID)
	}
	cut(t.normalize(part), t.normal, func(part string, token *added) {
		if token != nil {
			ids = append(ids, token.ID)
		} else {
			for _, w := range t.split([]word{{part, first}}) {
				ids = t.model.encode(ids, w.text)
			}
		}
		first = false
	})
	return ids
}

// Decode returns the text of tokens, without special tokens. Unknown tokens are left out.
func (t *Tokenizer) Decode(ids []int) string { return t.text(ids, false) }

// DecodeAll is Decode with the special tokens.
func (t *Tokenizer) DecodeAll(ids []int) string { return t.text(ids, true) }

func (t *Tokenizer) text(ids []int, special bool) string {
	var tokens []string
	for _, id := range ids {
		if token, ok := t.tokens[id]; ok && (special || !t.special[id]) {
			tokens = append(tokens, token)
		}
	}
	return strings.Join(t.decode(tokens), "")
}

// Token returns the text of a token in the vocabulary, which may differ from the text that it
// stands for.
func (t *Tokenizer) Token(id int) (token string, ok bool) {
	token, ok = t.tokens[id]
	return token, ok
}

// ID returns the token with a text in the vocabulary, such as "<|endoftext|>".
func (t *Tokenizer) ID(token string) (id int, ok bool) {
	id, ok = t.ids[token]
	return id, ok
}

// IsSpecial reports whether Decode leaves a token out.
func (t *Tokenizer) IsSpecial(id int) bool { return t.special[id] }

// cut calls f for the parts of a text: the added tokens, the longest if several begin at one place,
// and the text between them.
func cut(text string, tokens []*added, f func(part string, token *added)) {
	start := 0 // start of the text that f has not got
	for at := 0; at < len(text) && len(tokens) > 0; {
		token := longest(text[at:], tokens)
		if token == nil {
			at++
			continue
		}
		from, to := at, at+len(token.Content)
		at = to
		if token.SingleWord && (endsInWord(text[:from]) || beginsInWord(text[to:])) {
			continue
		}
		if token.LStrip {
			from = max(start, len(strings.TrimRightFunc(text[:from], unicode.IsSpace)))
		}
		if token.RStrip {
			to = len(text) - len(strings.TrimLeftFunc(text[to:], unicode.IsSpace))
			at = to
		}
		if start < from {
			f(text[start:from], nil)
		}
		f(text[from:to], token)
		start = to
	}
	if start < len(text) {
		f(text[start:], nil)
	}
}

// longest returns the longest token that text begins with, or nil. tokens are ordered by length.
func longest(text string, tokens []*added) *added {
	for _, t := range tokens {
		if text[0] == t.Content[0] && strings.HasPrefix(text, t.Content) {
			return t
		}
	}
	return nil
}

func endsInWord(s string) bool {
	r, n := utf8.DecodeLastRuneInString(s)
	return n > 0 && isWord(r)
}

func beginsInWord(s string) bool {
	r, n := utf8.DecodeRuneInString(s)
	return n > 0 && isWord(r)
}

// isWord is \w.
func isWord(r rune) bool {
	return r == '_' || unicode.In(r, unicode.L, unicode.M, unicode.Nd, unicode.Nl, unicode.Pc)
}

// lossy returns b with U+FFFD for each longest beginning of a character that does not continue as
// one, as Unicode recommends.
func lossy(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	var s strings.Builder
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 {
			for n < len(b) && !utf8.RuneStart(b[n]) && !utf8.FullRune(b[:n]) && n < utf8.UTFMax {
				n++
			}
			if n > 1 && utf8.FullRune(b[:n]) { // the last byte does not fit
				n--
			}
		}
		s.WriteRune(r)
		b = b[n:]
	}
	return s.String()
}
