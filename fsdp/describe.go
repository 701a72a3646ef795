package fsdp

import (
	"fmt"
	"hash/fnv"
	"io"
	"reflect"
	"slices"
	"strings"
)

// describe returns v as text with what it points to, so that modules that are deeply equal read the
// same in every process. What has no value outside one, such as a function, reads as its type.
func describe(v any) string {
	var b strings.Builder
	writeValue(&b, reflect.ValueOf(v), 0)
	return b.String()
}

const (
	deepest = 16 // levels of a value that are written: a cycle must end
	longest = 16 // elements of a slice that are written; of a longer one, length and hash
)

var typeOfType = reflect.TypeFor[reflect.Type]()

func writeValue(w io.Writer, v reflect.Value, depth int) {
	switch {
	case !v.IsValid():
		io.WriteString(w, "nil")
		return
	case depth > deepest:
		io.WriteString(w, "…")
		return
	case v.Type().Implements(typeOfType): // points into the program, which differs from build to build
		if v.CanInterface() {
			fmt.Fprint(w, v)
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		writeValue(w, v.Elem(), depth+1)
	case reflect.Struct:
		io.WriteString(w, v.Type().String()+"{")
		for i := range v.NumField() {
			fmt.Fprintf(w, " %s:", v.Type().Field(i).Name)
			writeValue(w, v.Field(i), depth+1)
		}
		io.WriteString(w, " }")
	case reflect.Slice, reflect.Array:
		writeList(w, v, depth)
	case reflect.Map:
		var entries []string
		for it := v.MapRange(); it.Next(); {
			var b strings.Builder
			writeValue(&b, it.Key(), depth+1)
			b.WriteByte(':')
			writeValue(&b, it.Value(), depth+1)
			entries = append(entries, b.String())
		}
		slices.Sort(entries)
		fmt.Fprint(w, entries)
	case reflect.Func, reflect.Chan, reflect.Uintptr, reflect.UnsafePointer:
		io.WriteString(w, v.Type().String())
	case reflect.String:
		fmt.Fprintf(w, "%q", v.String())
	default:
		fmt.Fprint(w, v)
	}
}

func writeList(w io.Writer, v reflect.Value, depth int) {
	n := v.Len()
	if n > longest {
		h := fnv.New64a()
		for i := range n {
			writeValue(h, v.Index(i), depth+1)
			h.Write([]byte{' '})
		}
		fmt.Fprintf(w, "[%d elements, hash %016x]", n, h.Sum64())
		return
	}
	io.WriteString(w, "[")
	for i := range n {
		writeValue(w, v.Index(i), depth+1)
		io.WriteString(w, " ")
	}
	io.WriteString(w, "]")
}
