package tokenizer

import (
	"fmt"
	"strings"
)

// The marks around a generation block of a template, as characters that no text should have.
const markStart, markEnd = "\U0010FFF0", "\U0010FFF1"

var unmarked = strings.NewReplacer(markStart, "", markEnd, "")

// plainTags returns a template without text outside of tags: text becomes expressions of quoted
// text. The spaces and line breaks that Jinja removes around tags are gone, by the settings of
// transformers, trim_blocks and lstrip_blocks. So the template renders the same under any settings.
// The tags of generation blocks become expressions of their marks, and comments are gone. Tags have
// the calls that keep the template within its limits.
func plainTags(source string) (string, error) {
	source = strings.TrimSuffix(strings.ReplaceAll(source, "\r\n", "\n"), "\n")
	var out strings.Builder
	for lineStart := true; source != ""; {
		at := nextTag(source)
		text := source[:at]
		if at == len(source) {
			writeText(&out, text)
			break
		}
		kind, tag := source[at+1], source[at+2:]
		length, err := tagLength(kind, tag)
		if err != nil {
			return "", err
		}
		inside, rest := tag[:length], tag[length+2:]
		switch {
		case strings.HasPrefix(inside, "-"):
			text = strings.TrimRight(text, blanks)
		case kind != '{' && !strings.HasPrefix(inside, "+"):
			line := strings.LastIndexByte(text, '\n') + 1
			if (line > 0 || lineStart) && strings.Trim(text[line:], " \t") == "" {
				text = text[:line]
			}
		}
		writeText(&out, text)
		left := len(rest)
		switch {
		case strings.HasSuffix(inside, "-"):
			rest = strings.TrimLeft(rest, blanks)
		case kind != '{' && !strings.HasSuffix(inside, "+"):
			rest = strings.TrimPrefix(rest, "\n")
		}
		removed := tag[length+2:][:left-len(rest)]
		lineStart = strings.HasSuffix(removed, "\n")
		if err := writeTag(&out, kind, inside); err != nil {
			return "", err
		}
		source = rest
	}
	return out.String(), nil
}

// blanks are the characters that Python's str.strip removes and that templates have.
const blanks = " \t\n\r\v\f"

// nextTag returns the place of the next tag, or the length of the text.
func nextTag(text string) int {
	for i := 0; i+1 < len(text); i++ {
		if text[i] == '{' && strings.IndexByte("{%#", text[i+1]) >= 0 {
			return i
		}
	}
	return len(text)
}

// tagLength returns the length of the inside of a tag, whose end is outside of strings.
func tagLength(kind byte, tag string) (int, error) {
	end := map[byte]string{'{': "}}", '%': "%}", '#': "#}"}[kind]
	depth := 0 // of objects in an expression
	for i := 0; i < len(tag); i++ {
		c := tag[i]
		switch {
		case depth == 0 && strings.HasPrefix(tag[i:], end):
			return i, nil
		case kind == '#':
		case c == '{':
			depth++
		case c == '}':
			depth--
		case c == '\'' || c == '"':
			for i++; i < len(tag) && tag[i] != c; i++ {
				if tag[i] == '\\' {
					i++
				}
			}
		}
	}
	return 0, fmt.Errorf("the tag {%c%.30s… has no end", kind, tag)
}

// writeText writes text that is in no tag.
func writeText(out *strings.Builder, text string) {
	if text != "" {
		writeExpression(out, `"`+strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text)+`"`)
	}
}

// writeExpression writes the tag of an expression whose code has its limits.
func writeExpression(out *strings.Builder, code string) {
	out.WriteString("{{ " + reserved + "show(" + code + ") }}")
}

func writeTag(out *strings.Builder, kind byte, inside string) error {
	if inside != "" && strings.ContainsAny(inside[:1], "-+") {
		inside = inside[1:]
	}
	if n := len(inside); n > 0 && strings.ContainsAny(inside[n-1:], "-+") {
		inside = inside[:n-1]
	}
	switch name := strings.TrimSpace(inside); {
	case kind == '%' && name == "generation":
		writeText(out, markStart)
	case kind == '%' && name == "endgeneration":
		writeText(out, markEnd)
	case kind == '%':
		return writeStatement(out, inside)
	case kind == '{':
		code, err := limitCode(inside)
		if err != nil {
			return err
		}
		writeExpression(out, code)
	}
	return nil
}
