package jinja

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// str returns the text of a value, as Python's str.
func (r *rendering) str(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case undefined:
		return ""
	}
	w := &writer{}
	w.repr(v, 0)
	r.charge(w.Len())
	return w.String()
}

// A writer writes values.
type writer struct{ strings.Builder }

func (w *writer) enter(depth int) int {
	if depth >= maxNested {
		exceed("has a value with more than %d lists and objects in one another", maxNested)
	}
	if w.Len() > maxText {
		exceed("has a value of more than %d bytes", maxText)
	}
	return depth + 1
}

// repr writes a value as Python's repr.
func (w *writer) repr(v any, depth int) {
	depth = w.enter(depth)
	switch v := v.(type) {
	case nil:
		w.WriteString("None")
	case bool:
		w.WriteString(map[bool]string{true: "True", false: "False"}[v])
	case int64:
		w.WriteString(strconv.FormatInt(v, 10))
	case float64:
		w.WriteString(floatText(v))
	case string:
		w.quote(v)
	case undefined:
		w.WriteString("Undefined")
	case *List:
		w.WriteByte("[("[one(v.Tuple)])
		for i, item := range v.Items {
			if i > 0 {
				w.WriteString(", ")
			}
			w.repr(item, depth)
		}
		if v.Tuple && len(v.Items) == 1 {
			w.WriteByte(',')
		}
		w.WriteByte("])"[one(v.Tuple)])
	case *Dict:
		w.WriteByte('{')
		for i, key := range v.keys {
			if i > 0 {
				w.WriteString(", ")
			}
			w.repr(key, depth)
			w.WriteString(": ")
			w.repr(v.values[i], depth)
		}
		w.WriteByte('}')
	default:
		failf("%s has no text", describe(v))
	}
}

func one(is bool) int {
	if is {
		return 1
	}
	return 0
}

// quote writes a text with quotes, as Python does.
func (w *writer) quote(s string) {
	quote := '\''
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	w.WriteRune(quote)
	for _, c := range s {
		switch {
		case c == quote || c == '\\':
			w.WriteRune('\\')
			w.WriteRune(c)
		case c == '\n' || c == '\r' || c == '\t':
			w.WriteByte('\\')
			w.WriteByte("trn"[strings.IndexRune("\t\r\n", c)])
		case c == ' ' || unicode.IsPrint(c):
			w.WriteRune(c)
		case c < 0x100:
			fmt.Fprintf(w, `\x%02x`, c)
		case c < 0x10000:
			fmt.Fprintf(w, `\u%04x`, c)
		default:
			fmt.Fprintf(w, `\U%08x`, c)
		}
	}
	w.WriteRune(quote)
}

// floatText returns a number as Python writes it.
func floatText(f float64) string {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return strings.ToLower(strings.TrimPrefix(strconv.FormatFloat(f, 'g', -1, 64), "+"))
	}
	if size := math.Abs(f); size >= 1e16 || size > 0 && size < 1e-4 {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	text := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}
