package exec

import (
	"encoding/binary"
	"math"
	"reflect"
	"slices"
	"strings"
	"unsafe"
)

// identity identifies a module and a signature: equal texts mean equal types and fields, and the
// same pointers. The text is a snapshot, so a module that has changed since then has another
// identity.
type identity struct {
	text string
	pins []unsafe.Pointer // keeps the memory behind addresses in text alive, so that they are not reused
}

// identify returns the identity of a module and a signature. There is none if the module holds a
// function, which cannot be compared, and is not itself behind a pointer.
func identify(module any, sig *Signature) (id identity, ok bool) {
	var w identityWriter
	v := reflect.ValueOf(module)
	w.typeOf(v)
	if v.Kind() == reflect.Pointer && !v.IsNil() {
		w.value(v.Elem())
		if w.function {
			w.pointer(v.UnsafePointer())
		}
	} else {
		w.value(v)
		if w.function {
			return identity{}, false
		}
	}
	w.value(reflect.ValueOf(sig).Elem())
	return identity{string(w.text), w.pins}, true
}

// identityWriter writes values such that different values have different texts.
type identityWriter struct {
	text     []byte
	pins     []unsafe.Pointer
	function bool // a function was written
}

func (w *identityWriter) number(n uint64) { w.text = binary.LittleEndian.AppendUint64(w.text, n) }

func (w *identityWriter) pointer(p unsafe.Pointer) {
	w.number(uint64(uintptr(p)))
	w.pins = append(w.pins, p)
}

// typeOf writes the type of v, or a mark if v is invalid.
func (w *identityWriter) typeOf(v reflect.Value) {
	if v.IsValid() {
		w.pointer(reflect.ValueOf(v.Type()).UnsafePointer())
	} else {
		w.number(0)
	}
}

// value writes v, whose type is already written.
func (w *identityWriter) value(v reflect.Value) {
	switch v.Kind() {
	case reflect.Invalid:
	case reflect.Bool:
		w.number(map[bool]uint64{true: 1}[v.Bool()])
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		w.number(uint64(v.Int()))
	case reflect.Float32, reflect.Float64:
		w.number(math.Float64bits(v.Float()))
	case reflect.Complex64, reflect.Complex128:
		w.number(math.Float64bits(real(v.Complex())))
		w.number(math.Float64bits(imag(v.Complex())))
	case reflect.String:
		w.number(uint64(v.Len()))
		w.text = append(w.text, v.String()...)
	case reflect.Struct:
		for i := range v.NumField() {
			w.value(v.Field(i))
		}
	case reflect.Array, reflect.Slice:
		w.length(v)
		for i := range v.Len() {
			w.value(v.Index(i))
		}
	case reflect.Map:
		w.length(v)
		w.entries(v)
	case reflect.Interface:
		w.typeOf(v.Elem())
		w.value(v.Elem())
	case reflect.Func:
		w.funcValue(v)
	case reflect.Pointer, reflect.Chan, reflect.UnsafePointer:
		w.pointer(v.UnsafePointer())
	default:
		w.number(v.Uint())
	}
}

// length writes the number of elements of v, or -1 for nil.
func (w *identityWriter) length(v reflect.Value) {
	if v.Kind() != reflect.Array && v.IsNil() {
		w.number(0)
	} else {
		w.number(uint64(v.Len()) + 1)
	}
}

// entries writes the entries of a map in the order of their texts.
func (w *identityWriter) entries(v reflect.Value) {
	var texts []string
	for it := v.MapRange(); it.Next(); {
		e := identityWriter{pins: w.pins, function: w.function}
		e.value(it.Key())
		e.value(it.Value())
		w.pins, w.function = e.pins, e.function
		texts = append(texts, string(e.text))
	}
	slices.Sort(texts)
	w.text = append(w.text, strings.Join(texts, "")...)
}

// funcValue writes the address of a function and of its captured variables, as far as it can be
// found.
func (w *identityWriter) funcValue(v reflect.Value) {
	w.function = w.function || !v.IsNil()
	if v.CanAddr() {
		w.pointer(*(*unsafe.Pointer)(unsafe.Pointer(v.UnsafeAddr())))
	} else {
		w.pointer(v.UnsafePointer())
	}
}
