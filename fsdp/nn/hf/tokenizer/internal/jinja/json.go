package jinja

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// json is the filter tojson of transformers, which is Python's json.dumps.
func (r *rendering) json(v any, args []any) any {
	w := &jsonWriter{comma: ", ", colon: ": ", sorted: boolArg(args[3])}
	if boolArg(args[0]) {
		failf("tojson: ensure_ascii=True is not supported")
	}
	if args[1] != (missing{}) && args[1] != nil {
		n := integral("tojson: indent", args[1])
		if n < 0 || n > 16 {
			failf("tojson: indent=%d is not supported", n)
		}
		w.indent, w.lines, w.comma = strings.Repeat(" ", int(n)), true, ","
	}
	if args[2] != (missing{}) && args[2] != nil {
		l, ok := args[2].(*List)
		if !ok || len(l.Items) != 2 {
			failf("tojson: separators are %s, want two texts", describe(args[2]))
		}
		w.comma, w.colon = textArg("tojson", l.Items[0], ""), textArg("tojson", l.Items[1], "")
	}
	w.json(v, "\n", 0)
	return r.text(w.String())
}

// A jsonWriter writes JSON as Python's json.dumps does.
type jsonWriter struct {
	writer
	lines        bool // each element has a line
	indent       string
	comma, colon string
	sorted       bool
}

// json writes a value. line is a line break with the indent of the value.
func (w *jsonWriter) json(v any, line string, depth int) {
	depth = w.enter(depth)
	switch v := v.(type) {
	case *Dict:
		l := pairs(v)
		if w.sorted {
			slices.SortStableFunc(l.Items, func(a, b any) int {
				return strings.Compare(jsonKey(a.(*List).Items[0]), jsonKey(b.(*List).Items[0]))
			})
		}
		w.list("{}", l.Items, line, func(item any, line string) {
			w.text(jsonKey(item.(*List).Items[0]))
			w.WriteString(w.colon)
			w.json(item.(*List).Items[1], line, depth)
		})
	case *List:
		w.list("[]", v.Items, line, func(item any, line string) { w.json(item, line, depth) })
	case string:
		w.text(v)
	case nil:
		w.WriteString("null")
	case bool:
		w.WriteString(strconv.FormatBool(v))
	case int64, float64:
		w.repr(v, depth)
	default:
		failf("tojson: %s has no JSON", describe(v))
	}
}

// jsonKey returns the key of a member as JSON has it.
func jsonKey(key any) string {
	switch k := key.(type) {
	case string:
		return k
	case nil:
		return "null"
	case bool:
		return strconv.FormatBool(k)
	case float64:
		return floatText(k)
	}
	return fmt.Sprint(key)
}

// list writes elements between two brackets.
func (w *jsonWriter) list(brackets string, items []any, line string, item func(v any, line string)) {
	w.WriteByte(brackets[0])
	inner := ""
	if w.lines {
		inner = line + w.indent
	}
	for i, v := range items {
		if i > 0 {
			w.WriteString(w.comma)
		}
		w.WriteString(inner)
		item(v, inner)
	}
	if len(items) > 0 && w.lines {
		w.WriteString(line)
	}
	w.WriteByte(brackets[1])
}

// text writes a text.
func (w *jsonWriter) text(s string) {
	w.WriteByte('"')
	for _, c := range s {
		if i := strings.IndexRune("\"\\\n\r\t\b\f", c); i >= 0 {
			w.WriteByte('\\')
			w.WriteByte(`"\nrtbf`[i])
		} else if c < ' ' {
			fmt.Fprintf(w, `\u%04x`, c)
		} else {
			w.WriteRune(c)
		}
	}
	w.WriteByte('"')
}
