package tokenizer

import (
	"encoding/json"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// normalizer parses how a text is normalized.
func normalizer(text json.RawMessage) (func(string) string, error) {
	if absent(text) {
		return func(s string) string { return s }, nil
	}
	kind, err := kindOf(text)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "NFC":
		return norm.NFC.String, nil
	case "NFD":
		return norm.NFD.String, nil
	case "NFKC":
		return norm.NFKC.String, nil
	case "NFKD":
		return norm.NFKD.String, nil
	case "Lowercase":
		return lower, nil
	case "StripAccents":
		return func(s string) string { return without(s, unicode.M) }, nil
	case "Sequence":
		return normalizers(text)
	case "BertNormalizer":
		return bertNormalizer(text)
	case "Precompiled":
		return precompiled(text)
	case "Prepend":
		var p struct {
			field
			Prepend string `json:"prepend"`
		}
		err := strict(text, &p)
		return func(s string) string {
			if s == "" {
				return s
			}
			return p.Prepend + s
		}, err
	case "Replace":
		return replacer(text)
	case "Strip":
		p := struct {
			field
			Left  bool `json:"strip_left"`
			Right bool `json:"strip_right"`
		}{}
		err := strict(text, &p)
		return func(s string) string {
			if p.Left {
				s = strings.TrimLeftFunc(s, unicode.IsSpace)
			}
			if p.Right {
				s = strings.TrimRightFunc(s, unicode.IsSpace)
			}
			return s
		}, err
	}
	return nil, unsupported(kind)
}

func normalizers(text json.RawMessage) (func(string) string, error) {
	var s struct {
		field
		Normalizers []json.RawMessage `json:"normalizers"`
	}
	if err := strict(text, &s); err != nil {
		return nil, err
	}
	var all []func(string) string
	for _, n := range s.Normalizers {
		f, err := normalizer(n)
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return func(s string) string {
		for _, f := range all {
			s = f(s)
		}
		return s
	}, nil
}

// replacer parses a replacement, for normalizers and decoders.
func replacer(text json.RawMessage) (func(string) string, error) {
	var r struct {
		field
		Pattern json.RawMessage `json:"pattern"`
		Content string          `json:"content"`
	}
	if err := strict(text, &r); err != nil {
		return nil, err
	}
	p, err := parsePattern(r.Pattern)
	return func(s string) string {
		var b strings.Builder
		p.parts(s, func(part string, match bool) {
			if match {
				part = r.Content
			}
			b.WriteString(part)
		})
		return b.String()
	}, err
}

// lower maps letters one by one. One letter has two in lower case.
func lower(s string) string {
	return strings.ToLower(strings.ReplaceAll(s, "İ", "i̇"))
}

// without removes characters.
func without(s string, table *unicode.RangeTable) string {
	return strings.Map(func(r rune) rune {
		if unicode.Is(table, r) {
			return -1
		}
		return r
	}, s)
}

// bertNormalizer is the normalizer of BERT's own tokenizer.
func bertNormalizer(text json.RawMessage) (func(string) string, error) {
	var b struct {
		field
		Clean   bool  `json:"clean_text"`
		Chinese bool  `json:"handle_chinese_chars"`
		Accents *bool `json:"strip_accents"` // null: as Lower
		Lower   bool  `json:"lowercase"`
	}
	err := strict(text, &b)
	return func(s string) string {
		if b.Clean {
			s = strings.Map(clean, s)
		}
		if b.Chinese {
			s = apart(s)
		}
		if b.Accents != nil && *b.Accents || b.Accents == nil && b.Lower {
			s = without(norm.NFD.String(s), unicode.Mn)
		}
		if b.Lower {
			s = lower(s)
		}
		return s
	}, err
}

// clean removes invisible characters, and turns all white space into spaces.
func clean(r rune) rune {
	switch {
	case unicode.IsSpace(r):
		return ' '
	case r == 0 || r == unicode.ReplacementChar || unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co):
		return -1
	}
	return r
}

// apart puts spaces around Chinese characters.
func apart(s string) string {
	var b strings.Builder
	for _, r := range s {
		if isChinese(r) {
			b.WriteByte(' ')
			b.WriteRune(r)
			b.WriteByte(' ')
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func isChinese(r rune) bool {
	for _, block := range [...][2]rune{
		{0x4e00, 0x9fff}, {0x3400, 0x4dbf}, {0x20000, 0x2a6df}, {0x2a700, 0x2b73f}, {0x2b740, 0x2b81f}, {0x2b920, 0x2ceaf},
		{0xf900, 0xfaff}, {0x2f800, 0x2fa1f},
	} {
		if block[0] <= r && r <= block[1] {
			return true
		}
	}
	return false
}
