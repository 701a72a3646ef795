package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/ardanlabs/jinja"
)

// valueOf returns JSON as a value of a template. Objects keep the order of their members, which
// templates write.
func valueOf(text []byte) (jinja.Value, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return decodeValue(d)
}

func decodeValue(d *json.Decoder) (jinja.Value, error) {
	token, err := d.Token()
	if err != nil {
		return jinja.None(), err
	}
	open, ok := token.(json.Delim)
	if !ok {
		return jinja.FromGoValue(token), nil
	}
	list, dict := jinja.NewList(nil), jinja.NewDict()
	for d.More() {
		key := ""
		if open == '{' {
			name, err := d.Token()
			if err != nil {
				return dict, err
			}
			key = name.(string)
		}
		v, err := decodeValue(d)
		if err != nil {
			return v, err
		}
		if open == '{' {
			dict.AsDict().Set(key, v)
		} else {
			list.AsList().Append(v)
		}
	}
	if _, err := d.Token(); err != nil {
		return dict, err
	}
	if open == '{' {
		return dict, nil
	}
	return list, nil
}

// textOf returns a value as Jinja writes it, but null as an empty text.
func textOf(v jinja.Value) string {
	switch {
	case v.IsString():
		return v.AsString()
	case v.IsFloat():
		return floatText(v.AsFloat())
	case v.IsNone() || v.IsUndefined() || v.IsCallable():
		return ""
	}
	return v.String()
}

// floatText returns a number as Python writes it.
func floatText(f float64) string {
	if size := math.Abs(f); size >= 1e16 || size > 0 && size < 1e-4 {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	text := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}

// dictOf is dict.
func dictOf(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	v := jinja.NewDict()
	if len(args) > 0 || len(kwargs) > 1 {
		return v, errors.New("dict: only one member with a name is supported: write {…}")
	}
	for name, value := range kwargs {
		v.AsDict().Set(name, value)
	}
	return v, nil
}

var errLong = fmt.Errorf("a text has more than %d bytes", maxText)

// toString is the filter string.
func toString(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	text := textOf(args[0])
	if len(text) > maxText {
		return jinja.None(), errLong
	}
	return jinja.NewString(text), nil
}

// replace is the filter replace and the method of texts.
func replace(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	if len(args) < 3 || len(args) > 4 || len(kwargs) > 0 {
		return jinja.None(), errors.New("replace: want an old text, a new text, and perhaps a number")
	}
	n := -1
	if len(args) == 4 && args[3].IsInt() {
		n = int(args[3].AsInt())
	}
	text, old, to := textOf(args[0]), textOf(args[1]), textOf(args[2])
	if count := strings.Count(text, old); len(text)+count*(len(to)-len(old)) > maxText {
		return jinja.None(), errLong
	}
	return jinja.NewString(strings.Replace(text, old, to, n)), nil
}

// join is the filter join.
func join(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	between := ""
	if d, ok := kwargs["d"]; ok {
		args = append(args, d)
	}
	if len(args) > 1 {
		between = textOf(args[1])
	}
	var items []jinja.Value
	switch v := args[0]; {
	case v.IsList():
		items = v.AsList().Items
	case v.IsString():
		for _, c := range v.AsString() {
			items = append(items, jinja.NewString(string(c)))
		}
	default:
		return jinja.None(), errors.New("join: want a list")
	}
	var b strings.Builder
	for i, item := range items {
		if i > 0 {
			b.WriteString(between)
		}
		if name, ok := kwargs["attribute"]; ok && item.IsDict() {
			item, _ = item.AsDict().Get(textOf(name))
		}
		b.WriteString(textOf(item))
		if b.Len() > maxText {
			return jinja.None(), errLong
		}
	}
	return jinja.NewString(b.String()), nil
}

// indent is the filter indent.
func indent(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	for _, key := range []string{"width", "first"} {
		if v, ok := kwargs[key]; ok {
			args = append(args, v)
		}
	}
	width, first := int64(4), false
	for _, v := range args[1:] {
		switch {
		case v.IsInt():
			width = v.AsInt()
		case v.IsBool():
			first = v.AsBool()
		}
	}
	if width < 0 || width > 100 {
		return jinja.None(), fmt.Errorf("indent: the width is %d, want 0 to 100", width)
	}
	space, lines := strings.Repeat(" ", int(width)), strings.Split(textOf(args[0]), "\n")
	for i, line := range lines {
		if i == 0 && first || i > 0 && line != "" {
			lines[i] = space + line
		}
	}
	text := strings.Join(lines, "\n")
	if len(text) > maxText {
		return jinja.None(), errLong
	}
	return jinja.NewString(text), nil
}

// A jsonWriter writes JSON as Python's json.dumps does.
type jsonWriter struct {
	strings.Builder
	indent       string // of a level, or "" for one line
	comma, colon string
	sorted       bool
}

// toJSON is the filter tojson of transformers.
func toJSON(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	w := &jsonWriter{comma: ", ", colon: ": "}
	for key, v := range kwargs {
		pair := v.IsList() && v.AsList().Len() == 2
		switch {
		case v.IsNone():
		case key == "indent" && v.IsInt() && v.AsInt() > 0 && v.AsInt() <= 16:
			w.indent = strings.Repeat(" ", int(v.AsInt()))
			if _, ok := kwargs["separators"]; !ok {
				w.comma = ","
			}
		case key == "separators" && pair:
			w.comma, w.colon = textOf(v.AsList().Get(0)), textOf(v.AsList().Get(1))
		case key == "sort_keys" && v.IsBool():
			w.sorted = v.AsBool()
		case key == "ensure_ascii" && v.IsBool() && !v.AsBool():
		default:
			return jinja.None(), fmt.Errorf("tojson: %s=%s is not supported", key, v.String())
		}
	}
	if err := w.value(args[0], "\n"); err != nil {
		return jinja.None(), fmt.Errorf("tojson: %w", err)
	}
	return jinja.NewString(w.String()), nil
}

// value writes a value. line is a line break with the indent of the value.
func (w *jsonWriter) value(v jinja.Value, line string) error {
	switch {
	case v.IsDict():
		d := v.AsDict()
		keys := d.OrderedKeys()
		if w.sorted {
			slices.Sort(keys)
		}
		return w.list("{", "}", len(keys), line, func(i int, line string) error {
			w.text(keys[i])
			w.WriteString(w.colon)
			return w.value(d.Data[keys[i]], line)
		})
	case v.IsList():
		items := v.AsList().Items
		return w.list("[", "]", len(items), line, func(i int, line string) error { return w.value(items[i], line) })
	case v.IsString():
		w.text(v.AsString())
	case v.IsNone():
		w.WriteString("null")
	case v.IsBool():
		w.WriteString(strconv.FormatBool(v.AsBool()))
	case v.IsNumber():
		w.WriteString(textOf(v))
	default:
		return fmt.Errorf("%s has no JSON", v.String())
	}
	if w.Len() > maxText {
		return errLong
	}
	return nil
}

// list writes a list, or the members of an object.
func (w *jsonWriter) list(open, end string, n int, line string, item func(i int, line string) error) error {
	w.WriteString(open)
	inner := ""
	if w.indent != "" {
		inner = line + w.indent
	}
	for i := range n {
		if i > 0 {
			w.WriteString(w.comma)
		}
		w.WriteString(inner)
		if err := item(i, inner); err != nil {
			return err
		}
	}
	if n > 0 && w.indent != "" {
		w.WriteString(line)
	}
	w.WriteString(end)
	return nil
}

// text writes a text.
func (w *jsonWriter) text(s string) {
	w.WriteByte('"')
	for _, r := range s {
		if i := strings.IndexRune("\"\\\n\r\t\b\f", r); i >= 0 {
			w.WriteByte('\\')
			w.WriteByte(`"\nrtbf`[i])
		} else if r < ' ' {
			fmt.Fprintf(w, `\u%04x`, r)
		} else {
			w.WriteRune(r)
		}
	}
	w.WriteByte('"')
}
