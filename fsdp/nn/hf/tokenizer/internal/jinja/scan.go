package jinja

import (
	"regexp"
	"strings"
)

// A tag is a part of a template: text, or the inside of an expression or a statement.
type tag struct {
	kind byte // 0 for text, '{' or '%'
	code string
}

// blanks are the characters that Python's str.strip removes and that templates have.
const blanks = " \t\n\r\v\f"

var endRaw = regexp.MustCompile(`\{%[-+]?\s*endraw\s*[-+]?%\}`)

// scan cuts a template into its tags, without comments. The spaces and line breaks that Jinja
// removes around tags are gone, by the settings of transformers, trim_blocks and lstrip_blocks.
func scan(source string) (list []tag) {
	source = strings.TrimSuffix(strings.ReplaceAll(source, "\r\n", "\n"), "\n")
	raw := false // text up to endraw
	for lineStart := true; source != ""; {
		at := nextTag(source, raw)
		text := source[:at]
		if at == len(source) {
			if raw {
				failf("{%% endraw %%} is missing")
			}
			return addText(list, text)
		}
		kind, rest := source[at+1], source[at+2:]
		length := tagLength(kind, rest)
		inside, rest := rest[:length], rest[length+2:]
		switch {
		case strings.HasPrefix(inside, "-"):
			text = strings.TrimRight(text, blanks)
		case kind != '{' && !strings.HasPrefix(inside, "+"):
			line := strings.LastIndexByte(text, '\n') + 1
			if (line > 0 || lineStart) && strings.Trim(text[line:], " \t") == "" {
				text = text[:line]
			}
		}
		list = addText(list, text)
		after := rest
		switch {
		case strings.HasSuffix(inside, "-"):
			rest = strings.TrimLeft(rest, blanks)
		case kind != '{' && !strings.HasSuffix(inside, "+") && strings.TrimSpace(trimSign(inside)) != "raw":
			rest = strings.TrimPrefix(rest, "\n")
		}
		lineStart = strings.HasSuffix(after[:len(after)-len(rest)], "\n")
		source = rest
		inside = strings.TrimSpace(trimSign(inside))
		switch {
		case kind == '%' && (inside == "raw" || inside == "endraw"):
			raw = inside == "raw"
		case kind != '#':
			list = append(list, tag{kind, inside})
		}
	}
	if raw {
		failf("{%% endraw %%} is missing")
	}
	return list
}

func addText(list []tag, text string) []tag {
	if text == "" {
		return list
	}
	return append(list, tag{0, text})
}

// trimSign removes the signs at the ends of a tag.
func trimSign(inside string) string {
	if inside != "" && strings.ContainsAny(inside[:1], "-+") {
		inside = inside[1:]
	}
	if n := len(inside); n > 0 && strings.ContainsAny(inside[n-1:], "-+") {
		inside = inside[:n-1]
	}
	return inside
}

// nextTag returns the place of the next tag, or the length of the text.
func nextTag(text string, raw bool) int {
	if raw {
		if at := endRaw.FindStringIndex(text); at != nil {
			return at[0]
		}
		return len(text)
	}
	for i := 0; i+1 < len(text); i++ {
		if text[i] == '{' && strings.IndexByte("{%#", text[i+1]) >= 0 {
			return i
		}
	}
	return len(text)
}

// tagLength returns the length of the inside of a tag, whose end is outside of strings.
func tagLength(kind byte, tag string) int {
	end := map[byte]string{'{': "}}", '%': "%}", '#': "#}"}[kind]
	depth := 0 // of objects in an expression
	for i := 0; i < len(tag); i++ {
		c := tag[i]
		switch {
		case depth == 0 && strings.HasPrefix(tag[i:], end):
			return i
		case kind == '#':
		case c == '{':
			depth++
		case c == '}':
			depth--
		case c == '\'' || c == '"':
			i += quoted(tag[i:]) - 1
		}
	}
	failf("the tag {%c%.30s… has no end", kind, tag)
	return 0
}

// quoted returns the length of the text in quotes that code begins with.
func quoted(code string) int {
	for n := 1; n < len(code); n++ {
		switch code[n] {
		case '\\':
			n++
		case code[0]:
			return n + 1
		}
	}
	return len(code)
}

// A token is a part of the code of a tag.
type token struct {
	kind byte   // 'n' for a name, 's' a text, 'i' an integer, 'f' a float, 'o' an operator, or 0 at the end
	text string // of a text without its quotes and escapes
}

var (
	tokenName     = regexp.MustCompile(`^[\p{L}_][\p{L}\p{N}_]*`)
	tokenFloat    = regexp.MustCompile(`^\d+(_\d+)*(\.\d+(_\d+)*([eE][+-]?\d+)?|[eE][+-]?\d+)`)
	tokenInteger  = regexp.MustCompile(`^\d+(_\d+)*`)
	tokenOperator = regexp.MustCompile(`^(\*\*|//|==|!=|<=|>=|[-+*/%~<>=.,:|()\[\]{}])`)
)

// lex returns the tokens of code.
func lex(code string) (list []token) {
	for code = strings.TrimLeft(code, blanks); code != ""; code = strings.TrimLeft(code, blanks) {
		var t token
		n := 0
		if code[0] == '\'' || code[0] == '"' {
			if n = quoted(code); n < 2 || code[n-1] != code[0] {
				failf("the text %.30s… has no end", code)
			}
			t = token{'s', unescape(code[1 : n-1])}
		} else {
			for _, kind := range []struct {
				kind byte
				re   *regexp.Regexp
			}{{'n', tokenName}, {'f', tokenFloat}, {'i', tokenInteger}, {'o', tokenOperator}} {
				if text := kind.re.FindString(code); text != "" {
					t, n = token{kind.kind, text}, len(text)
					break
				}
			}
			if n == 0 {
				failf("the character %q is unknown", []rune(code)[0])
			}
		}
		list, code = append(list, t), code[n:]
	}
	return list
}

var escaped = regexp.MustCompile(`(?s)\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|.)`)

// unescape replaces the escapes of a text by their characters, as Python does. It leaves others as
// they are.
func unescape(text string) string {
	return escaped.ReplaceAllStringFunc(text, func(e string) string {
		switch c := e[1]; {
		case (c == 'x' || c == 'u' || c == 'U') && len(e) > 2:
			return string(rune(number(e[2:], 16)))
		case c >= '0' && c <= '7':
			return string(rune(number(e[1:], 8)))
		case c == '\n':
			return ""
		case c == 'x' || c == 'u' || c == 'U' || c == 'N':
			failf("the escape %s is not supported", e)
		default:
			if i := strings.IndexByte(`\'"abfnrtv`, c); i >= 0 {
				return "\\'\"\a\b\f\n\r\t\v"[i : i+1]
			}
		}
		return e
	})
}
