package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
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

// indented matches a filter that the library renders in another way than Jinja: it sorts the
// members of objects and escapes characters. A function does the work.
var indented = regexp.MustCompile(`(\w[\w.]*)\s*\|\s*tojson\(\s*indent\s*=\s*(\d+)\s*\)`)

const indentName = "tojson_with_indent"

// indentJSON returns JSON as Python's json.dumps does with an indent.
func indentJSON(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	if len(args) != 2 || !args[1].IsInt() || args[1].AsInt() < 0 || args[1].AsInt() > 16 {
		return jinja.None(), errors.New("tojson: want an indent of 0 to 16")
	}
	var b strings.Builder
	err := writeJSON(&b, args[0], strings.Repeat(" ", int(args[1].AsInt())), "\n")
	return jinja.NewString(b.String()), err
}

func writeJSON(b *strings.Builder, v jinja.Value, indent, line string) error {
	switch {
	case v.IsDict() && v.AsDict().Len() > 0:
		d := v.AsDict()
		b.WriteString("{")
		for i, key := range d.OrderedKeys() {
			if i > 0 {
				b.WriteString(",")
			}
			b.WriteString(line + indent)
			if err := writeJSON(b, jinja.NewString(key), indent, line+indent); err != nil {
				return err
			}
			b.WriteString(": ")
			value, _ := d.Get(key)
			if err := writeJSON(b, value, indent, line+indent); err != nil {
				return err
			}
		}
		b.WriteString(line + "}")
	case v.IsList() && v.AsList().Len() > 0:
		b.WriteString("[")
		for i, item := range v.AsList().Items {
			if i > 0 {
				b.WriteString(",")
			}
			b.WriteString(line + indent)
			if err := writeJSON(b, item, indent, line+indent); err != nil {
				return err
			}
		}
		b.WriteString(line + "]")
	case v.IsString():
		var text bytes.Buffer
		e := json.NewEncoder(&text)
		e.SetEscapeHTML(false)
		if err := e.Encode(v.AsString()); err != nil {
			return err
		}
		b.WriteString(strings.NewReplacer(`\u2028`, "\u2028", `\u2029`, "\u2029").Replace(strings.TrimSpace(text.String())))
	case v.IsNone():
		b.WriteString("null")
	case v.IsBool():
		fmt.Fprint(b, v.AsBool())
	case v.IsNumber():
		b.WriteString(v.String())
	case v.IsDict():
		b.WriteString("{}")
	case v.IsList():
		b.WriteString("[]")
	default:
		return fmt.Errorf("tojson: %s is no JSON", v.String())
	}
	return nil
}
