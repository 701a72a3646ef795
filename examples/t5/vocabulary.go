package main

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// vocabulary has the words that are tokens.
type vocabulary struct {
	words   []string
	tokenOf map[string]int
}

// end ends a comment, and is the decoder's first input, as in T5. It also stands between the name
// of a function and its source.
const end = 0

// word matches a word of text or code. Names in camel case have several.
var word = regexp.MustCompile(`[A-Z]+[a-z]*|[a-z]+|[0-9]+`)

// split returns the words of a text in lower case. Code and comments share their words.
func split(text string) []string {
	list := word.FindAllString(text, -1)
	for i, w := range list {
		list[i] = strings.ToLower(w)
	}
	return list
}

// learn returns a vocabulary of at most size tokens, with the words that are the most frequent.
func learn(all []function, size int) vocabulary {
	count := make(map[string]int)
	for _, f := range all {
		for _, w := range split(f.source + " " + f.comment) {
			count[w]++
		}
	}
	frequent := slices.SortedFunc(maps.Keys(count), func(a, b string) int {
		return cmp.Or(count[b]-count[a], cmp.Compare(a, b))
	})
	v := vocabulary{words: append([]string{""}, frequent[:min(len(frequent), size-1)]...), tokenOf: make(map[string]int)}
	for i, w := range v.words {
		v.tokenOf[w] = i
	}
	return v
}

// tokens returns the tokens of a text. Words that have none are left out.
func (v vocabulary) tokens(text string) (tokens []int) {
	for _, w := range split(text) {
		if t, ok := v.tokenOf[w]; ok {
			tokens = append(tokens, t)
		}
	}
	return tokens
}

// text returns the words of tokens.
func (v vocabulary) text(tokens []int) string {
	var list []string
	for _, t := range tokens {
		list = append(list, v.words[t])
	}
	return strings.Join(list, " ")
}
