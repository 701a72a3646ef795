package main

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
)

// vocabulary has the texts of tokens: of bytes, then of frequent words and other pieces of text. Any
// text is that of its tokens in a row.
type vocabulary struct {
	pieces  []string
	tokenOf map[string]int
}

const (
	numBytes = 256
	end      = 0 // ends a comment, and is what the decoder starts with, as in T5
)

// piece matches what may be a token: a part of a word in camel case, with the space before it, or the
// beginning of a line, or a character.
var piece = regexp.MustCompile(`(?s) ?[A-Z]?[a-z]+| ?[A-Z]+|\n\t*|.`)

// learn returns a vocabulary of at most size tokens, with the pieces that are the most frequent.
func learn(all []function, size int) vocabulary {
	count := make(map[string]int)
	for _, f := range all {
		for _, p := range append(piece.FindAllString(f.source, -1), piece.FindAllString(f.comment, -1)...) {
			if len(p) > 1 {
				count[p]++
			}
		}
	}
	frequent := slices.SortedFunc(maps.Keys(count), func(a, b string) int {
		return cmp.Or(count[b]-count[a], cmp.Compare(a, b))
	})
	v := vocabulary{tokenOf: make(map[string]int)}
	for i := range numBytes {
		v.pieces = append(v.pieces, string([]byte{byte(i)}))
	}
	v.pieces = append(v.pieces, frequent[:min(len(frequent), size-numBytes)]...)
	for i, p := range v.pieces {
		v.tokenOf[p] = i
	}
	return v
}

// tokens returns the tokens of a text. A piece that has none is in bytes.
func (v vocabulary) tokens(text string) (tokens []int) {
	for _, p := range piece.FindAllString(text, -1) {
		if t, ok := v.tokenOf[p]; ok {
			tokens = append(tokens, t)
			continue
		}
		for _, b := range []byte(p) {
			tokens = append(tokens, int(b))
		}
	}
	return tokens
}

// text returns the text of tokens.
func (v vocabulary) text(tokens []int) (text string) {
	for _, t := range tokens {
		text += v.pieces[t]
	}
	return text
}
