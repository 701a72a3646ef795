package tokenizer

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// decoder parses how tokens become texts, which are joined.
func decoder(text json.RawMessage) (func([]string) []string, error) {
	if absent(text) {
		return func(tokens []string) []string { return []string{strings.Join(tokens, " ")} }, nil
	}
	kind, err := kindOf(text)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "ByteLevel":
		return decodeBytes, nil
	case "ByteFallback":
		return decodeFallback, nil
	case "Fuse":
		return func(tokens []string) []string { return []string{strings.Join(tokens, "")} }, nil
	case "Replace":
		f, err := replacer(text)
		return each(func(_ int, token string) string { return f(token) }), err
	case "Sequence":
		return decoders(text)
	case "Metaspace":
		m, err := metaspaceOf(text)
		if err != nil {
			return nil, err
		}
		return each(func(i int, token string) string {
			if i == 0 && m.Prepend != "never" {
				return strings.ReplaceAll(token, m.Replacement, "")
			}
			return strings.ReplaceAll(token, m.Replacement, " ")
		}), nil
	case "Strip":
		return parseStrip(text)
	case "WordPiece":
		return parseWordPieces(text)
	case "BPEDecoder":
		var b struct {
			field
			Suffix string `json:"suffix"`
		}
		err := strict(text, &b)
		return func(tokens []string) []string {
			return each(func(i int, token string) string {
				space := " "
				if i == len(tokens)-1 {
					space = ""
				}
				return strings.ReplaceAll(token, b.Suffix, space)
			})(tokens)
		}, err
	}
	return nil, unsupported(kind)
}

// each maps tokens one by one.
func each(f func(i int, token string) string) func([]string) []string {
	return func(tokens []string) []string {
		out := make([]string, len(tokens))
		for i, token := range tokens {
			out[i] = f(i, token)
		}
		return out
	}
}

func decoders(text json.RawMessage) (func([]string) []string, error) {
	var s struct {
		field
		Decoders []json.RawMessage `json:"decoders"`
	}
	if err := strict(text, &s); err != nil {
		return nil, err
	}
	var all []func([]string) []string
	for _, d := range s.Decoders {
		f, err := decoder(d)
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return func(tokens []string) []string {
		for _, f := range all {
			tokens = f(tokens)
		}
		return tokens
	}, nil
}

// decodeBytes is the reverse of letters. A token with other characters, as added tokens may have,
// stays as it is.
func decodeBytes(tokens []string) []string {
	var all []byte
	for _, token := range tokens {
		start := len(all)
		for _, r := range token {
			b, ok := letterBytes[r]
			if !ok {
				all = append(all[:start], token...)
				break
			}
			all = append(all, b)
		}
	}
	return []string{lossy(all)}
}

// decodeFallback joins runs of tokens for bytes, such as <0x0A>, to characters. Each byte of a run
// that is no text becomes U+FFFD.
func decodeFallback(tokens []string) (out []string) {
	var run []byte
	flush := func() {
		if utf8.Valid(run) {
			if len(run) > 0 {
				out = append(out, string(run))
			}
		} else {
			out = append(out, strings.Repeat(string(utf8.RuneError), len(run)))
		}
		run = run[:0]
	}
	for _, token := range tokens {
		if len(token) == 6 && strings.HasPrefix(token, "<0x") && token[5] == '>' {
			if b, err := strconv.ParseUint(token[3:5], 16, 8); err == nil {
				run = append(run, byte(b))
				continue
			}
		}
		flush()
		out = append(out, token)
	}
	flush()
	return out
}

// parseStrip parses how many of a character are removed at the ends.
func parseStrip(text json.RawMessage) (func([]string) []string, error) {
	var s struct {
		field
		Content string `json:"content"`
		Start   int    `json:"start"`
		Stop    int    `json:"stop"`
	}
	err := strict(text, &s)
	if err == nil && utf8.RuneCountInString(s.Content) != 1 {
		err = fmt.Errorf("content %q is not a character", s.Content)
	}
	return each(func(_ int, token string) string {
		for i := 0; i < s.Start && strings.HasPrefix(token, s.Content); i++ {
			token = token[len(s.Content):]
		}
		for i := 0; i < s.Stop && strings.HasSuffix(token, s.Content); i++ {
			token = token[:len(token)-len(s.Content)]
		}
		return token
	}), err
}

// tidy removes spaces that BERT's words have before punctuation.
var tidy = strings.NewReplacer(" .", ".", " ?", "?", " !", "!", " ,", ",")

// parseWordPieces parses how words are joined.
func parseWordPieces(text json.RawMessage) (func([]string) []string, error) {
	w := struct {
		field
		Prefix  string `json:"prefix"`
		Cleanup bool   `json:"cleanup"`
	}{Prefix: "##", Cleanup: true}
	err := strict(text, &w)
	more := [][2]string{{" ' ", "'"}, {" n't", "n't"}, {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}}
	return each(func(i int, token string) string {
		if i > 0 {
			if rest, ok := strings.CutPrefix(token, w.Prefix); ok {
				token = rest
			} else {
				token = " " + token
			}
		}
		if w.Cleanup {
			token = tidy.Replace(token)
			for _, m := range more {
				token = strings.ReplaceAll(token, m[0], m[1])
			}
		}
		return token
	}), err
}
