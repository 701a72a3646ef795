package data

import (
	"fmt"
	"reflect"
)

// A field is a field of a struct that holds a part of a sample.
type field struct {
	index   int
	name    string // name of the part: the tag "data", or else the name of the field
	typ     reflect.Type
	list    bool         // an array or a slice
	element reflect.Type // type of the list's elements; otherwise typ
}

// fieldsOf returns the fields of a struct that are exported and do not have the tag "-".
func fieldsOf(t reflect.Type) (list []field, err error) {
	if t.Kind() != reflect.Struct {
		return nil, fmt.Errorf("samples of %v, want a struct", t)
	}
	for i := range t.NumField() {
		f := t.Field(i)
		one := field{index: i, name: f.Name, typ: f.Type, element: f.Type}
		if tag, ok := f.Tag.Lookup("data"); ok {
			one.name = tag
		}
		if !f.IsExported() || one.name == "-" {
			continue
		}
		if k := f.Type.Kind(); k == reflect.Slice || k == reflect.Array {
			one.list, one.element = true, f.Type.Elem()
		}
		list = append(list, one)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("samples of %v, which has no fields", t)
	}
	return list, nil
}

// String returns the declaration.
func (f field) String() string { return fmt.Sprintf("%v `data:%q`", f.typ, f.name) }

// holds reports whether the field has room for n elements.
func (f field) holds(n int) bool {
	switch f.typ.Kind() {
	case reflect.Slice:
		return true
	case reflect.Array:
		return f.typ.Len() == n
	}
	return n == 1
}

// value returns the field of x. If it is a list, it has room for n elements: in the memory of its
// slice, if that is large enough.
func (f field) value(x reflect.Value, n int) reflect.Value {
	v := x.Field(f.index)
	if v.Kind() == reflect.Slice {
		if v.Cap() < n {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
		}
		v.SetLen(n)
	}
	return v
}
