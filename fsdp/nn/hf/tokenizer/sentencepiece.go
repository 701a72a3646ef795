package tokenizer

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// A pieceFile is a model of SentencePiece (Kudo and Richardson, 2018, arXiv:1808.06226), in the
// format https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto.
type pieceFile struct {
	pieces   []piece
	kind     int // model_type
	fallback bool
	suffix   bool      // treat_whitespace_as_suffix
	names    [4]string // of the tokens of Tokenizer, or ""
	normal   pieceNormalizer
	escape   bool // escape_whitespaces
}

// A piece is a token.
type piece struct {
	text  string
	score float32
	kind  int
}

// The kinds of pieces, and of models.
const (
	normalPiece, unknownPiece, controlPiece, userPiece, unusedPiece, bytePiece = 1, 2, 3, 4, 5, 6

	unigramModel, bpeModel = 1, 2
)

// A pieceNormalizer is SentencePiece's normalization of a text. Its zero value changes only spaces.
type pieceNormalizer struct {
	chars  *charsmap // nil for none
	user   trie      // texts that stay as they are
	prefix bool      // a space goes before the text
	always bool      // and before text after an added token
	strip  bool      // one of several spaces is left, and none at the ends
}

// space replaces spaces in pieces.
const space = "▁"

// message decodes the fields of a message that are in the table, and skips others.
func message(b []byte, table map[protowire.Number]any) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		value := b[n:]
		if n = protowire.ConsumeFieldValue(number, kind, value); n < 0 {
			return protowire.ParseError(n)
		}
		value, b = value[:n], value[n:]
		if to, ok := table[number]; ok {
			if err := fieldOf(value, kind, to); err != nil {
				return fmt.Errorf("field %d: %w", number, err)
			}
		}
	}
	return nil
}

// fieldOf decodes a field that protowire has found to be complete.
func fieldOf(b []byte, kind protowire.Type, to any) error {
	want := protowire.BytesType
	switch to := to.(type) {
	case *bool:
		v, _ := protowire.ConsumeVarint(b)
		*to, want = v != 0, protowire.VarintType
	case *int:
		v, _ := protowire.ConsumeVarint(b)
		*to, want = int(int32(v)), protowire.VarintType
	case *float32:
		v, _ := protowire.ConsumeFixed32(b)
		*to, want = math.Float32frombits(v), protowire.Fixed32Type
	case *string:
		v, _ := protowire.ConsumeBytes(b)
		*to = string(v)
	case func([]byte) error:
		if v, _ := protowire.ConsumeBytes(b); kind == want {
			return to(v)
		}
	}
	if kind != want {
		return fmt.Errorf("wire type %d, want %d", kind, want)
	}
	return nil
}

// parsePieces reads a file.
func parsePieces(b []byte) (*pieceFile, error) {
	f := &pieceFile{kind: unigramModel, escape: true}
	f.normal.prefix, f.normal.strip = true, true
	var chars, back string // what texts go through first, and decoded ones at last
	var p piece
	pieceFields := map[protowire.Number]any{1: &p.text, 2: &p.score, 3: &p.kind}
	sub := func(name string, table map[protowire.Number]any) any {
		return func(b []byte) error {
			if err := message(b, table); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		}
	}
	err := message(b, map[protowire.Number]any{
		1: func(b []byte) error {
			p = piece{kind: normalPiece}
			err := message(b, pieceFields)
			f.pieces = append(f.pieces, p)
			return err
		},
		2: sub("trainer_spec", map[protowire.Number]any{3: &f.kind, 24: &f.suffix, 35: &f.fallback,
			45: &f.names[3], 46: &f.names[0], 47: &f.names[1], 48: &f.names[2]}),
		3: sub("normalizer_spec", map[protowire.Number]any{2: &chars, 3: &f.normal.prefix, 4: &f.normal.strip, 5: &f.escape}),
		5: sub("denormalizer_spec", map[protowire.Number]any{2: &back}),
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("not a SentencePiece model: %w", err)
	case len(f.pieces) == 0:
		return nil, errors.New("not a SentencePiece model: it has no pieces")
	case f.kind != unigramModel && f.kind != bpeModel:
		return nil, fmt.Errorf("trainer_spec.model_type %d is not supported, only 1, unigram, and 2, BPE", f.kind)
	case f.suffix:
		return nil, errors.New("trainer_spec.treat_whitespace_as_suffix true is not supported")
	case !f.escape:
		return nil, errors.New("normalizer_spec.escape_whitespaces false is not supported")
	case back != "":
		return nil, errors.New("denormalizer_spec.precompiled_charsmap is not supported")
	}
	if chars != "" {
		if f.normal.chars, err = newCharsmap([]byte(chars)); err != nil {
			return nil, fmt.Errorf("normalizer_spec: %w", err)
		}
	}
	return f, nil
}

// tokenizer makes a tokenizer with the same tokens as SentencePiece. It cuts no token out of texts.
func (f *pieceFile) tokenizer() (*Tokenizer, error) {
	names, err := f.vocabulary()
	if err != nil {
		return nil, err
	}
	unknown := slices.IndexFunc(f.pieces, func(p piece) bool { return p.kind == unknownPiece })
	bytes, all := names.byteTokens()
	if unknown < 0 || f.fallback && !all {
		return nil, errors.New("the pieces for unknown characters are incomplete")
	}
	t := newTokenizer()
	t.normalize = func(s string) string { return s }
	if f.kind == unigramModel {
		t.model = f.unigram(unknown, bytes)
	} else if t.model, err = f.bpe(names, unknown, bytes); err != nil {
		return nil, err
	}
	for id, p := range f.pieces {
		switch p.kind {
		case userPiece:
			f.normal.user.insert(p.text, int32(id))
		case controlPiece, unknownPiece:
			t.special[id] = true
		}
	}
	t.split = f.normal.words
	t.decode = f.decode
	usual := [4]string{"<s>", "</s>", "<pad>", "<unk>"}
	for i, to := range []*int{&t.BOS, &t.EOS, &t.Pad, &t.Unknown} {
		if id, ok := names[cmp.Or(f.names[i], usual[i])]; ok && t.special[id] {
			*to = id
		}
	}
	return t, t.add(names, nil)
}

// vocabulary returns the numbers of the pieces.
func (f *pieceFile) vocabulary() (vocabulary, error) {
	names := make(vocabulary, len(f.pieces))
	for id, p := range f.pieces {
		_, twice := names[p.text]
		switch {
		case p.text == "" || !utf8.ValidString(p.text):
			return nil, fmt.Errorf("piece %d %q is not valid text", id, p.text)
		case twice:
			return nil, fmt.Errorf("piece %d %q is also piece %d", id, p.text, names[p.text])
		case p.kind < normalPiece || p.kind > bytePiece:
			return nil, fmt.Errorf("piece %d %q has unknown type %d", id, p.text, p.kind)
		case p.kind == bytePiece && !f.fallback:
			return nil, fmt.Errorf("piece %d %q is a byte, but trainer_spec.byte_fallback is false", id, p.text)
		case math.IsNaN(float64(p.score)):
			return nil, fmt.Errorf("piece %d %q has no score", id, p.text)
		}
		names[p.text] = id
	}
	return names, nil
}

// unigram makes a unigram model. The score of pieces that users have defined is the best score of
// all pieces, for each of their bytes.
func (f *pieceFile) unigram(unknown int, bytes [256]int) *unigram {
	least, most := float32(math.MaxFloat32), float32(0.1)
	for _, p := range f.pieces {
		if p.kind == normalPiece {
			least, most = min(least, p.score), max(most, p.score)
		}
	}
	m := &unigram{scores: make([]float64, len(f.pieces)), unknown: unknown, least: float64(least - 10), bytes: bytes, fallback: f.fallback, single: true}
	for id, p := range f.pieces {
		switch p.kind {
		case normalPiece:
			m.scores[id] = float64(p.score)
		case userPiece:
			m.scores[id] = float64(float32(len(p.text))*most - 0.1)
		default:
			continue
		}
		m.insert(p.text, int32(id))
	}
	return m
}

// longestPiece limits the bytes of pieces that are merged, and so the time to find their halves.
// SentencePiece makes no pieces of more than 16 characters by default.
const longestPiece = 1 << 10

// bpe makes a BPE model. All pairs that make a piece are merged in the order of its score, and from
// left to right if scores are equal.
func (f *pieceFile) bpe(names vocabulary, unknown int, bytes [256]int) (*bpe, error) {
	m := &bpe{vocabulary: make(vocabulary), merges: make(map[[2]int32]merge), unknown: unknown, fuse: true, bytes: bytes, fallback: f.fallback}
	var scores []float32
	for id, p := range f.pieces {
		switch p.kind {
		case normalPiece:
			m.vocabulary[p.text] = id
			scores = append(scores, -p.score)
		case userPiece:
			m.user.insert(p.text, int32(id))
		case unusedPiece:
			return nil, fmt.Errorf("piece %d %q is unused, which is not supported for BPE", id, p.text)
		}
	}
	slices.Sort(scores)
	scores = slices.Compact(scores)
	for id, p := range f.pieces {
		if p.kind != normalPiece {
			continue
		}
		if len(p.text) > longestPiece {
			return nil, fmt.Errorf("piece %d %.20q… has %d bytes, more than %d", id, p.text, len(p.text), longestPiece)
		}
		rank, _ := slices.BinarySearch(scores, -p.score)
		for i, c := range p.text {
			if of, ok := names[string(c)]; !ok || f.pieces[of].kind != normalPiece && f.pieces[of].kind != userPiece {
				return nil, fmt.Errorf("piece %d %q: the character %q is not a piece", id, p.text, c)
			}
			first, ok1 := m.vocabulary[p.text[:i]]
			second, ok2 := m.vocabulary[p.text[i:]]
			if ok1 && ok2 {
				m.merges[[2]int32{int32(first), int32(second)}] = merge{int32(rank), int32(id)}
			}
		}
	}
	return m, nil
}

// words normalizes words, and does not split them.
func (n *pieceNormalizer) words(words []word) []word {
	out := make([]word, len(words))
	for i, w := range words {
		out[i] = word{n.apply(w.text, n.prefix && (w.first || n.always)), w.first}
	}
	return out
}

// apply normalizes a text.
func (n *pieceNormalizer) apply(s string, prefix bool) string {
	var b strings.Builder
	if prefix && s != "" {
		b.WriteString(space)
	}
	after := n.strip // a space, or at the beginning
	for len(s) > 0 {
		part, size := n.next(s)
		s = s[size:]
		if after {
			part = strings.TrimLeft(part, " ")
		}
		if part != "" {
			b.WriteString(part)
			after = n.strip && strings.HasSuffix(part, " ")
		}
	}
	s = strings.ReplaceAll(b.String(), " ", space)
	if n.strip {
		s = strings.TrimRight(s, space)
	}
	return s
}

// next returns the replacement of the beginning of a text, and the length of the beginning in
// bytes.
func (n *pieceNormalizer) next(s string) (part string, size int) {
	if _, size := n.user.longest(s); size > 0 {
		return s[:size], size
	}
	if n.chars != nil {
		if part, size := n.chars.lookup(s, true); size > 0 {
			return part, size
		}
	}
	_, size = utf8.DecodeRuneInString(s)
	return s[:size], size
}

// decode restores spaces, except the spaces that normalization has put before the text.
func (f *pieceFile) decode(tokens []string) []string {
	if f.fallback {
		tokens = decodeFallback(tokens)
	}
	first := f.normal.prefix || f.normal.strip
	return each(func(_ int, token string) string {
		rest, found := strings.CutPrefix(token, space)
		if first && found {
			token = rest
		}
		first = first && token == "" && f.normal.strip
		return strings.ReplaceAll(token, space, " ")
	})(tokens)
}
