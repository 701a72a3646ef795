package jinja

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"unicode/utf8"
)

// List is a list or a tuple.
type List struct {
	Items []any
	Tuple bool
}

// Dict is an object. Its members keep the order in which they were set first.
type Dict struct {
	keys, values []any
	at           map[any]int
}

// Len returns the number of members.
func (d *Dict) Len() int { return len(d.keys) }

// Get returns a member.
func (d *Dict) Get(key any) (v any, ok bool) {
	i, ok := d.at[hashed(key)]
	if !ok {
		return nil, false
	}
	return d.values[i], true
}

// Set sets a member.
func (d *Dict) Set(key, v any) {
	h := hashed(key)
	if i, ok := d.at[h]; ok {
		d.values[i] = v
		return
	}
	if d.at == nil {
		d.at = make(map[any]int)
	}
	d.at[h] = len(d.keys)
	d.keys, d.values = append(d.keys, key), append(d.values, v)
}

// hashed returns a key for a map: numbers of equal value are one key.
func hashed(key any) any {
	switch k := integer(key).(type) {
	case nil, string, int64:
		return k
	case undefined:
		return undefined("")
	case float64:
		if k == math.Trunc(k) && math.Abs(k) < 1<<53 {
			return int64(k)
		}
		return k
	}
	failf("%s cannot be the key of an object", describe(key))
	return nil
}

// A namespace is an object whose members can be set by name.
type namespace struct{ members map[string]any }

func (n *namespace) set(name string, v any) { n.members[name] = v }

// undefined is the value of a variable or member that does not exist. Its text names it.
type undefined string

// A loop is the variable loop in a round of a loop.
type loop struct {
	items   []any
	at      int
	changed *List
}

// Decode returns JSON as a value. Objects keep the order of their members, which templates write.
func Decode(text []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return decode(d)
}

func decode(d *json.Decoder) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := token.(type) {
	case json.Number:
		if n, err := t.Int64(); err == nil {
			return n, nil
		}
		return t.Float64()
	case json.Delim:
		list, dict := new(List), new(Dict)
		for d.More() {
			var key any
			if t == '{' {
				if key, err = d.Token(); err != nil {
					return nil, err
				}
			}
			v, err := decode(d)
			if err != nil {
				return nil, err
			}
			if t == '{' {
				dict.Set(key, v)
			} else {
				list.Items = append(list.Items, v)
			}
		}
		if _, err := d.Token(); err != nil {
			return nil, err
		}
		if t == '{' {
			return dict, nil
		}
		return list, nil
	}
	return token, nil
}

// truth reports whether a value counts as true.
func truth(v any) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case *List:
		return len(v.Items) > 0
	case *Dict:
		return v.Len() > 0
	}
	return true
}

// integer returns true and false as numbers, and other values as they are.
func integer(v any) any {
	switch v {
	case true:
		return int64(1)
	case false:
		return int64(0)
	}
	return v
}

// integral returns v, which must be an integer.
func integral(what string, v any) int64 {
	n, ok := integer(v).(int64)
	if !ok {
		failf("%s: %s is not an integer", what, describe(v))
	}
	return n
}

// items returns the elements of a value.
func (r *rendering) items(v any) []any {
	switch v := v.(type) {
	case undefined:
		return nil
	case *List:
		return v.Items
	case *Dict:
		return v.keys
	case string:
		r.spend(16 * len(v))
		var list []any
		for _, c := range v {
			list = append(list, string(c))
		}
		return list
	}
	failf("%s has no elements", describe(v))
	return nil
}

// float returns a number as a float.
func float(v any) (f float64, ok bool) {
	switch v := integer(v).(type) {
	case int64:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}

// member returns a member of a value by its name: a method, or a member of an object.
func (r *rendering) member(of any, name string) any {
	if m := r.method(of, name); m != nil {
		return m
	}
	switch v := of.(type) {
	case undefined:
		failf("%s is undefined, so it has no member %s", string(v), name)
	case *Dict:
		if v, ok := v.Get(name); ok {
			return v
		}
	case *namespace:
		if v, ok := v.members[name]; ok {
			return v
		}
	case *loop:
		return v.member(name)
	}
	return undefined(name)
}

// item returns an element of a list, a text or an object.
func (r *rendering) item(of, key any) any {
	switch v := of.(type) {
	case undefined:
		failf("%s is undefined, so it has no elements", string(v))
	case *Dict:
		if v, ok := v.Get(key); ok {
			return v
		}
	case *List:
		if i, ok := integer(key).(int64); ok {
			if i = position(i, len(v.Items)); i >= 0 && i < int64(len(v.Items)) {
				return v.Items[i]
			}
			return undefined(fmt.Sprintf("element %d", i))
		}
	case string:
		if i, ok := integer(key).(int64); ok {
			if i = position(i, utf8.RuneCountInString(v)); i >= 0 && i < int64(len(v)) {
				for _, c := range v {
					if i--; i < 0 {
						return string(c)
					}
				}
			}
			return undefined(fmt.Sprintf("character %d", i))
		}
	}
	if name, ok := key.(string); ok {
		return r.member(of, name)
	}
	return undefined("an element")
}

// position returns the index that counts from the beginning.
func position(i int64, n int) int64 {
	if i < 0 {
		i += int64(n)
	}
	return i
}

// slice returns a part of a text or a list.
func (r *rendering) slice(of any, bounds [3]any) any {
	switch v := of.(type) {
	case *List:
		items := sliced(v.Items, bounds)
		r.spend(16 * len(items))
		return &List{items, v.Tuple}
	case string:
		return r.text(string(sliced([]rune(v), bounds)))
	}
	failf("%s has no slices", describe(of))
	return nil
}

func sliced[E any](parts []E, bounds [3]any) (out []E) {
	step, n := int64(1), int64(len(parts))
	if bounds[2] != nil {
		if step = integral("a slice", bounds[2]); step == 0 {
			failf("the step of a slice is 0")
		}
	}
	low, high := int64(0), n // bounds of the bounds
	if step < 0 {
		low, high = -1, n-1
	}
	bound := func(v any, otherwise int64) int64 {
		if v == nil {
			return otherwise
		}
		return min(max(position(integral("a slice", v), len(parts)), low), high)
	}
	from, to := bound(bounds[0], low), bound(bounds[1], high)
	if step < 0 {
		from, to = bound(bounds[0], high), bound(bounds[1], low)
	}
	for i := from; step > 0 && i < to || step < 0 && i > to; i += step {
		out = append(out, parts[i])
		if step > n || step < -n {
			break
		}
	}
	return out
}
