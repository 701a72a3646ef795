package data

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/gofsdp/gofsdp/internal/text"
)

// OpenJSON opens a file of JSON lines. Every line is a JSON value, which [json.Unmarshal] decodes
// into a sample. Blank lines are skipped.
//
// If T has structs, objects must have a member for every exported field. A member that is missing
// or null is an error, unless the field is a pointer or its tag says omitempty or omitzero. Members
// without a field are left out, with one log line. A member with the misspelled name of a missing
// field is an error, and so is a JSON array with another length than an array of T. OpenJSON
// returns an error of the first line, At an error of another line. Both name the line, the member
// and the type.
//
//	type question struct {
//		Text   string `json:"text"`
//		Answer int    `json:"answer"`
//		Level  int    `json:"level,omitempty"` // 0 in objects without it
//	}
//	questions, err := data.OpenJSON[question]("train.jsonl")
func OpenJSON[T any](path string) (*File[T], error) {
	in, starts, err := openText(path, true)
	if err != nil {
		return nil, err
	}
	objects := jsonObjects{path: path}
	f := newFile("JSON lines", []*input{in}, len(starts)-1, func(i int, _ T) (x T, err error) {
		b, err := in.readPart(starts, i)
		if err != nil {
			return x, err
		}
		b = bytes.TrimRight(b, " \t\r\n")
		wrongType := (*json.UnmarshalTypeError)(nil)
		if err = json.Unmarshal(b, &x); errors.As(err, &wrongType) {
			err = fmt.Errorf("%s is %s, want %v", member(wrongType.Field), wrongType.Value, wrongType.Type)
			if wrongType.Field == "" && wrongType.Value == "array" && i == 0 {
				err = fmt.Errorf("%w%s", err, hintLines(b))
			}
		} else if err != nil && i == 0 {
			err = fmt.Errorf("%w%s", err, hintLines(b))
		} else if err == nil {
			err = objects.check("", b, reflect.TypeFor[T]())
		}
		if err != nil {
			return x, fmt.Errorf("data: %s: %w", in.line(starts[i], 1), err)
		}
		return x, nil
	})
	if _, err := f.At(0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// hintLines ends errors about the first line of a file that may be JSON, but not JSON lines.
func hintLines(line []byte) string {
	convert := "jq -c . converts values of several lines to such lines"
	if bytes.HasPrefix(bytes.TrimSpace(line), []byte("[")) {
		convert = "jq -c '.[]' converts an array to such lines"
	}
	return ": each line must have one sample, as a complete JSON value; " + convert
}

// jsonObjects checks the objects of a file against the fields of the structs that hold them.
type jsonObjects struct {
	path    string
	members sync.Map  // [reflect.Type] of a struct to its []jsonMember
	extra   sync.Once // logs that members are left out
}

// A jsonMember is the member of an object that belongs to a field.
type jsonMember struct {
	name     string
	typ      reflect.Type
	optional bool
}

// member names a member of a value, or the value itself.
func member(path string) string {
	if path == "" {
		return "the value"
	}
	return fmt.Sprintf("member %q", path)
}

// check compares the text of a value that json has decoded with its Go type. path is the path to
// the value from the whole value.
func (o *jsonObjects) check(path string, b []byte, t reflect.Type) error {
	b = bytes.TrimSpace(b)
	null, kind := string(b) == "null", t.Kind()
	switch {
	case decodesItself(t), kind == reflect.Interface:
		return nil
	case kind == reflect.Pointer && !null:
		return o.check(path, b, t.Elem())
	case null && kind != reflect.Pointer && kind != reflect.Slice && kind != reflect.Map:
		return fmt.Errorf("%s is null, want %v%s", member(path), t, hintOptional)
	case null:
		return nil
	}
	switch kind {
	case reflect.Struct:
		return o.checkObject(path, b, t)
	case reflect.Map:
		var values map[string]json.RawMessage
		if err := json.Unmarshal(b, &values); err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(values)) {
			if err := o.check(join(path, name), values[name], t.Elem()); err != nil {
				return err
			}
		}
	case reflect.Slice, reflect.Array:
		if b[0] != '[' || kind == reflect.Slice && plain(t.Elem()) && !bytes.Contains(b, []byte("null")) {
			return nil // bytes in base 64, or elements without members
		}
		var values []json.RawMessage
		if err := json.Unmarshal(b, &values); err != nil {
			return err
		}
		if kind == reflect.Array && len(values) != t.Len() {
			return fmt.Errorf("%s has %d elements, want %v", member(path), len(values), t)
		}
		for i, value := range values {
			if err := o.check(fmt.Sprintf("%s[%d]", path, i), value, t.Elem()); err != nil {
				return err
			}
		}
	}
	return nil
}

// hintOptional ends errors about missing members.
const hintOptional = ": if it may be missing, add omitempty to the tag of its field"

// checkObject checks the members of an object that decodes into a struct.
func (o *jsonObjects) checkObject(path string, b []byte, t reflect.Type) error {
	var values map[string]json.RawMessage
	if err := json.Unmarshal(b, &values); err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(values))
	var missing []jsonMember
	for _, m := range o.membersOf(t) {
		name := m.name
		value, ok := values[name]
		for other := range values { // json accepts any case
			if !ok && strings.EqualFold(other, m.name) {
				name, value, ok = other, values[other], true
			}
		}
		delete(values, name)
		if !ok {
			missing = append(missing, m)
			continue
		}
		if m.optional && string(value) == "null" {
			continue
		}
		if err := o.check(join(path, m.name), value, m.typ); err != nil {
			return err
		}
	}
	left := slices.Sorted(maps.Keys(values))
	for _, m := range missing {
		meant := text.Nearest(m.name, left)
		switch {
		case meant != "":
			return fmt.Errorf("%s (%v) is missing; did you mean %q?", member(join(path, m.name)), m.typ, meant)
		case !m.optional:
			return fmt.Errorf("%s (%v) is missing among %q%s", member(join(path, m.name)), m.typ, names, hintOptional)
		}
	}
	if len(left) > 0 {
		o.extra.Do(func() {
			slog.Info("data: members of JSON objects are ignored, because the struct has no field for them", "file", o.path, "members", left, "type", t)
		})
	}
	return nil
}

// membersOf returns the members of the objects that decode into a struct.
func (o *jsonObjects) membersOf(t reflect.Type) []jsonMember {
	if list, ok := o.members.Load(t); ok {
		return list.([]jsonMember)
	}
	var list []jsonMember
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		inner := f.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		if f.Tag.Get("json") == "-" || !f.IsExported() || f.Anonymous && name == "" && inner.Kind() == reflect.Struct {
			continue // an embedded struct has its own members
		}
		if name == "" {
			name = f.Name
		}
		optional := f.Type.Kind() == reflect.Pointer || strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero")
		for i := range len(f.Index) - 1 { // members of an embedded pointer may be missing
			optional = optional || t.FieldByIndex(f.Index[:i+1]).Type.Kind() == reflect.Pointer
		}
		list = append(list, jsonMember{name, f.Type, optional})
	}
	o.members.Store(t, list)
	return list
}

// decodesItself reports whether json leaves the decoding of a value to its type.
func decodesItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[json.Unmarshaler]()) || p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// plain reports whether values of a type are numbers, text, or true and false.
func plain(t reflect.Type) bool {
	k := t.Kind()
	return k >= reflect.Bool && k <= reflect.Complex128 || k == reflect.String
}

// join returns the path to a member of an object.
func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
