package exec

import (
	"reflect"
	"unsafe"
)

// footprint returns the bytes of heap memory reachable from p, including p itself. It looks at all
// fields, because a stock operation may keep anything.
func footprint(p any) int {
	w := walk{seen: make(map[unsafe.Pointer]bool)}
	w.value(reflect.ValueOf(p))
	return w.bytes
}

// walk adds up the memory reachable from values.
type walk struct {
	seen  map[unsafe.Pointer]bool // allocations, by their address
	bytes int
}

// shared are pointer types whose targets exist once in a process.
var shared = map[reflect.Type]bool{
	reflect.TypeFor[*Row]():                true,
	reflect.TypeFor[*function]():           true,
	reflect.TypeFor[*pairing]():            true,
	reflect.TypeOf(reflect.TypeFor[int]()): true, // *reflect.rtype
}

// value adds the memory that v refers to. The memory of v itself is already counted.
func (w *walk) value(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !shared[v.Type()] && w.first(v, int(v.Type().Elem().Size())) {
			w.value(v.Elem())
		}
	case reflect.Interface:
		e := v.Elem()
		if e.IsValid() && e.Kind() != reflect.Pointer {
			w.add(int(e.Type().Size())) // its copy on the heap
		}
		w.value(e)
	case reflect.Slice:
		if w.first(v, v.Cap()*int(v.Type().Elem().Size())) {
			w.elements(v)
		}
	case reflect.Array:
		w.elements(v)
	case reflect.Struct:
		for i := range v.NumField() {
			w.value(v.Field(i))
		}
	case reflect.Map:
		if w.first(v, 2*v.Len()*int(v.Type().Key().Size()+v.Type().Elem().Size())) { // half of a map's table is free
			for it := v.MapRange(); it.Next(); {
				w.value(it.Key())
				w.value(it.Value())
			}
		}
	}
}

// elements adds the memory that the elements of an array or a slice refer to.
func (w *walk) elements(v reflect.Value) {
	switch v.Type().Elem().Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Slice, reflect.Array, reflect.Struct, reflect.Map:
		for i := range v.Len() {
			w.value(v.Index(i))
		}
	}
}

// first adds n bytes behind v, and reports whether they are counted for the first time.
func (w *walk) first(v reflect.Value, n int) bool {
	p := v.UnsafePointer()
	if p == nil || w.seen[p] {
		return false
	}
	w.seen[p] = true
	w.add(n)
	return true
}

// add adds an allocation of n bytes, rounded up to a multiple of 16 as in the runtime.
func (w *walk) add(n int) { w.bytes += (n + 15) &^ 15 }
