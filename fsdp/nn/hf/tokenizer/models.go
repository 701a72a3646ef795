package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// parseModel parses how words become tokens.
func parseModel(text json.RawMessage) (model, error) {
	kind, err := kindOf(text)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "BPE", "": // files of early versions leave it out
		return parseBPE(text)
	case "WordPiece":
		return parseWordPiece(text)
	case "Unigram":
		return parseUnigram(text)
	}
	return nil, unsupported(kind)
}

// A vocabulary has the numbers of tokens.
type vocabulary map[string]int

func (v vocabulary) all() map[string]int { return v }

// unknown returns the number of the token for unknown text, or -1.
func (v vocabulary) unknown(token *string) (int, error) {
	if token == nil || *token == "" {
		return -1, nil
	}
	id, ok := v[*token]
	if !ok {
		return -1, fmt.Errorf("unk_token %q is not a token", *token)
	}
	return id, nil
}

// byteTokens returns the tokens of all bytes.
func (v vocabulary) byteTokens() (of [256]int, all bool) {
	all = true
	for b := range of {
		id, ok := v[fmt.Sprintf("<0x%02X>", b)]
		of[b] = id
		if !ok {
			of[b], all = -1, false
		}
	}
	return of, all
}

// A bpe joins pairs of symbols, the pair that was learned first first, until none is left.
type bpe struct {
	vocabulary
	merges   map[[2]int32]merge
	unknown  int
	fuse     bool // unknown characters side by side are one token
	whole    bool // a word that is a token is not merged
	bytes    [256]int
	fallback bool // to bytes
	prefix   string
	suffix   string
	user     trie // symbols that are found first and are not merged
}

// A merge has a rank, which several merges may share, and its result.
type merge struct{ rank, id int32 }

func parseBPE(text json.RawMessage) (model, error) {
	var f struct {
		field
		Dropout  *float64          `json:"dropout"`
		Unknown  *string           `json:"unk_token"`
		Prefix   string            `json:"continuing_subword_prefix"`
		Suffix   string            `json:"end_of_word_suffix"`
		Fuse     bool              `json:"fuse_unk"`
		Fallback bool              `json:"byte_fallback"`
		Whole    bool              `json:"ignore_merges"`
		Vocab    vocabulary        `json:"vocab"`
		Merges   []json.RawMessage `json:"merges"`
	}
	if err := strict(text, &f); err != nil {
		return nil, err
	}
	if f.Dropout != nil && *f.Dropout != 0 {
		return nil, fmt.Errorf("dropout %v is not supported", *f.Dropout)
	}
	m := &bpe{vocabulary: f.Vocab, merges: make(map[[2]int32]merge, len(f.Merges)), fuse: f.Fuse, whole: f.Whole, prefix: f.Prefix, suffix: f.Suffix}
	var err error
	if m.unknown, err = f.Vocab.unknown(f.Unknown); err != nil {
		return nil, err
	}
	m.bytes, _ = f.Vocab.byteTokens()
	m.fallback = f.Fallback
	for rank, text := range f.Merges {
		pair, err := pairOf(text)
		if err != nil {
			return nil, err
		}
		var ids [3]int32
		for i, token := range []string{pair[0], pair[1], pair[0] + strings.TrimPrefix(pair[1], f.Prefix)} {
			id, ok := f.Vocab[token]
			if !ok {
				return nil, fmt.Errorf("merge %s: %q is not a token", text, token)
			}
			ids[i] = int32(id)
		}
		m.merges[[2]int32{ids[0], ids[1]}] = merge{int32(rank), ids[2]}
	}
	return m, nil
}

// pairOf reads "a b" or ["a", "b"].
func pairOf(text json.RawMessage) (pair [2]string, err error) {
	var list []string
	if json.Unmarshal(text, &list) != nil {
		var line string
		if err := json.Unmarshal(text, &line); err != nil {
			return pair, err
		}
		list = strings.Split(line, " ")
	}
	if len(list) != 2 {
		return pair, fmt.Errorf("merge %s is not a pair", text)
	}
	return [2]string(list), nil
}

// A symbol is the token of a part of a word, in a list.
type symbol struct {
	id         int32
	prev, next int32 // -1 at the ends
	gone       bool
}

// A candidate is a pair that may be merged.
type candidate struct {
	merge
	at int32 // place of the first of the two
}

func (c candidate) before(d candidate) bool {
	return c.rank < d.rank || c.rank == d.rank && c.at < d.at
}

func (m *bpe) encode(ids []int, word string) []int {
	if id, ok := m.vocabulary[word]; ok && m.whole {
		return append(ids, id)
	}
	var room [48]symbol
	list := m.symbols(room[:0], word)
	var heap heap
	push := func(at int32) {
		if at < 0 || list[at].next < 0 {
			return
		}
		if found, ok := m.merges[[2]int32{list[at].id, list[list[at].next].id}]; ok {
			heap.push(candidate{found, at})
		}
	}
	for i := range list {
		push(int32(i))
	}
	for len(heap) > 0 {
		c := heap.pop()
		first := &list[c.at]
		if first.gone || first.next < 0 {
			continue
		}
		second := &list[first.next]
		if now, ok := m.merges[[2]int32{first.id, second.id}]; !ok || now != c.merge {
			continue // one of the two has become another
		}
		first.id, first.next, second.gone = c.id, second.next, true
		if first.next >= 0 {
			list[first.next].prev = c.at
		}
		push(first.prev)
		push(c.at)
	}
	for i := range list {
		if !list[i].gone {
			ids = append(ids, int(list[i].id))
		}
	}
	return ids
}

// symbols are the characters of a word.
func (m *bpe) symbols(list []symbol, word string) []symbol {
	add := func(id int) {
		n := int32(len(list))
		if n > 0 {
			list[n-1].next = n
		}
		list = append(list, symbol{id: int32(id), prev: n - 1, next: -1})
	}
	unknown := false // the last one is
	for at := 0; at < len(word); {
		if id, n := m.user.longest(word[at:]); n > 0 {
			add(int(id))
			at, unknown = at+n, false
			continue
		}
		_, n := utf8.DecodeRuneInString(word[at:])
		c := word[at : at+n]
		if at > 0 {
			c = m.prefix + c
		}
		if at += n; at == len(word) {
			c += m.suffix
		}
		id, ok := m.vocabulary[c]
		switch {
		case ok:
			add(id)
			unknown = false
		case m.fallback && m.inBytes(c):
			for _, b := range []byte(c) {
				add(m.bytes[b])
			}
			unknown = false
		case m.unknown >= 0:
			if !unknown || !m.fuse {
				add(m.unknown)
			}
			unknown = true
		}
	}
	return list
}

// inBytes reports whether all bytes of a text are tokens.
func (m *bpe) inBytes(s string) bool {
	for _, b := range []byte(s) {
		if m.bytes[b] < 0 {
			return false
		}
	}
	return true
}

// A heap has the first candidate first.
type heap []candidate

func (h *heap) push(c candidate) {
	*h = append(*h, c)
	list := *h
	for i := len(list) - 1; i > 0 && list[i].before(list[(i-1)/2]); i = (i - 1) / 2 {
		list[i], list[(i-1)/2] = list[(i-1)/2], list[i]
	}
}

func (h *heap) pop() candidate {
	list := *h
	first, last := list[0], len(list)-1
	list[0] = list[last]
	list = list[:last]
	for i := 0; ; {
		least := i
		for _, child := range []int{2*i + 1, 2*i + 2} {
			if child < last && list[child].before(list[least]) {
				least = child
			}
		}
		if least == i {
			break
		}
		list[i], list[least] = list[least], list[i]
		i = least
	}
	*h = list
	return first
}

// A wordPiece takes the longest token that a word begins with, and continues after it.
type wordPiece struct {
	vocabulary
	unknown int
	prefix  string // of tokens inside of words
	longest int    // largest number of characters in a known word
	bytes   int    // of the longest token
}

func parseWordPiece(text json.RawMessage) (model, error) {
	f := struct {
		field
		Unknown string     `json:"unk_token"`
		Prefix  string     `json:"continuing_subword_prefix"`
		Longest int        `json:"max_input_chars_per_word"`
		Vocab   vocabulary `json:"vocab"`
	}{Unknown: "[UNK]", Prefix: "##", Longest: 100}
	if err := strict(text, &f); err != nil {
		return nil, err
	}
	m := &wordPiece{vocabulary: f.Vocab, prefix: f.Prefix, longest: f.Longest}
	for token := range f.Vocab {
		m.bytes = max(m.bytes, len(token))
	}
	var err error
	if m.unknown, err = f.Vocab.unknown(&f.Unknown); err == nil && m.unknown < 0 {
		err = errors.New(`unk_token "" is not supported`)
	}
	return m, err
}

func (m *wordPiece) encode(ids []int, word string) []int {
	if utf8.RuneCountInString(word) > m.longest {
		return append(ids, m.unknown)
	}
	whole := len(ids)
	for at := 0; at < len(word); {
		prefix := ""
		if at > 0 {
			prefix = m.prefix
		}
		end := min(len(word), at+m.bytes)
		for ; end > at; end-- {
			if end < len(word) && !utf8.RuneStart(word[end]) {
				continue
			}
			if id, ok := m.vocabulary[prefix+word[at:end]]; ok {
				ids = append(ids, id)
				break
			}
		}
		if end == at {
			return append(ids[:whole], m.unknown)
		}
		at = end
	}
	return ids
}

// A unigram chooses the most likely sequence of tokens (Viterbi).
type unigram struct {
	vocabulary
	trie
	scores   []float64
	unknown  int
	least    float64 // score of an unknown character
	bytes    [256]int
	fallback bool
	single   bool // sums of scores are float32
}

// A trie has the numbers of texts. Its zero value is empty.
type trie struct {
	next map[uint64]int32 // node and byte to node
	ends []int32          // by node: token that ends there, or -1
}

func parseUnigram(text json.RawMessage) (model, error) {
	var f struct {
		field
		Unknown  *int     `json:"unk_id"`
		Vocab    [][2]any `json:"vocab"`
		Fallback bool     `json:"byte_fallback"`
	}
	if err := strict(text, &f); err != nil {
		return nil, err
	}
	m := &unigram{vocabulary: make(vocabulary), unknown: -1, least: math.Inf(1)}
	if f.Unknown != nil {
		if m.unknown = *f.Unknown; m.unknown < 0 || m.unknown >= len(f.Vocab) {
			return nil, fmt.Errorf("unk_id %d is not one of the %d tokens", m.unknown, len(f.Vocab))
		}
	}
	for id, v := range f.Vocab {
		token, ok := v[0].(string)
		score, number := v[1].(float64)
		if !ok || !number {
			return nil, fmt.Errorf("vocab: %v is not a token with its score", v)
		}
		m.vocabulary[token], m.scores, m.least = id, append(m.scores, score), min(m.least, score)
		m.insert(token, int32(id))
	}
	if m.least -= 10; m.unknown < 0 {
		return nil, errors.New("unk_id null is not supported")
	}
	var all bool
	m.bytes, all = m.byteTokens()
	m.fallback = f.Fallback && all
	return m, nil
}

// insert adds a token.
func (t *trie) insert(token string, id int32) {
	if t.next == nil {
		t.next, t.ends = make(map[uint64]int32), []int32{-1}
	}
	at := int32(0)
	for i := range len(token) {
		next, ok := t.step(at, token[i])
		if !ok {
			next = int32(len(t.ends))
			t.next[uint64(at)<<8|uint64(token[i])], t.ends = next, append(t.ends, -1)
		}
		at = next
	}
	t.ends[at] = id
}

// step follows a byte from a node.
func (t *trie) step(node int32, b byte) (next int32, ok bool) {
	next, ok = t.next[uint64(node)<<8|uint64(b)]
	return next, ok
}

// longest returns the longest token that a text begins with, and its bytes: 0 for none.
func (t *trie) longest(text string) (id int32, n int) {
	node, ok := int32(0), len(t.next) > 0
	for i := 0; ok && i < len(text); i++ {
		if node, ok = t.step(node, text[i]); ok && t.ends[node] >= 0 {
			id, n = t.ends[node], i+1
		}
	}
	return id, n
}

// A step is the best way to a place in a word.
type step struct {
	score float64
	from  int32 // place before, -1 if there is no way yet
	id    int32
}

func (m *unigram) encode(ids []int, word string) []int {
	best := m.ways(word)
	var path []int32 // places, from the last
	for at := int32(len(word)); at > 0; at = best[at].from {
		path = append(path, at)
	}
	for i := len(path) - 1; i >= 0; i-- {
		at := path[i]
		if id := int(best[at].id); id != m.unknown {
			ids = append(ids, id)
			continue
		}
		from := best[at].from
		for i > 0 && int(best[path[i-1]].id) == m.unknown {
			i--
			at = path[i]
		}
		if !m.fallback {
			ids = append(ids, m.unknown)
			continue
		}
		for _, b := range []byte(word[from:at]) {
			ids = append(ids, m.bytes[b])
		}
	}
	return ids
}

// ways returns the best way to every place.
func (m *unigram) ways(word string) []step {
	best := make([]step, len(word)+1)
	for i := range best {
		best[i].from = -1
	}
	take := func(from, to int, score float64, id int32) {
		score += best[from].score
		if m.single {
			score = float64(float32(score))
		}
		if best[to].from < 0 || score > best[to].score {
			best[to] = step{score, int32(from), id}
		}
	}
	for from := 0; from < len(word); {
		_, n := utf8.DecodeRuneInString(word[from:])
		node, single := int32(0), false
		for to := from; to < len(word); {
			var ok bool
			if node, ok = m.step(node, word[to]); !ok {
				break
			}
			to++
			if id := m.ends[node]; id >= 0 {
				take(from, to, m.scores[id], id)
				single = single || to == from+n
			}
		}
		if !single {
			take(from, from+n, m.least, int32(m.unknown))
		}
		from += n
	}
	return best
}
