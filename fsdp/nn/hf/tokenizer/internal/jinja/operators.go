package jinja

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// equal compares two values.
func (r *rendering) equal(a, b any, depth int) bool {
	if depth > maxNested {
		exceed("has a value with more than %d lists and objects in one another", maxNested)
	}
	if x, ok := float(a); ok {
		i, both := integer(a).(int64)
		j, is := integer(b).(int64)
		if both && is {
			return i == j
		}
		y, ok := float(b)
		return ok && x == y
	}
	switch x := a.(type) {
	case *List:
		y, ok := b.(*List)
		if !ok || x.Tuple != y.Tuple || len(x.Items) != len(y.Items) {
			return false
		}
		r.step(1)
		for i := range x.Items {
			if !r.equal(x.Items[i], y.Items[i], depth+1) {
				return false
			}
		}
		return true
	case *Dict:
		y, ok := b.(*Dict)
		if !ok || x.Len() != y.Len() {
			return false
		}
		r.step(1)
		for i, key := range x.keys {
			if v, ok := y.Get(key); !ok || !r.equal(x.values[i], v, depth+1) {
				return false
			}
		}
		return true
	case undefined:
		_, ok := b.(undefined)
		return ok
	case function:
		return false
	}
	if _, ok := b.(function); ok {
		return false
	}
	return a == b
}

// order compares two numbers, texts or lists.
func (r *rendering) order(a, b any) int {
	if x, ok := float(a); ok {
		if y, ok := float(b); ok {
			return cmp.Compare(x, y)
		}
	}
	switch x := a.(type) {
	case string:
		if y, ok := b.(string); ok {
			return cmp.Compare(x, y)
		}
	case *List:
		if y, ok := b.(*List); ok && x.Tuple == y.Tuple {
			r.step(1)
			for i := range min(len(x.Items), len(y.Items)) {
				if !r.equal(x.Items[i], y.Items[i], 0) {
					return r.order(x.Items[i], y.Items[i])
				}
			}
			return cmp.Compare(len(x.Items), len(y.Items))
		}
	}
	failf("%s and %s have no order", describe(a), describe(b))
	return 0
}

// contains reports whether a text, a list or an object has a value.
func (r *rendering) contains(in, v any) bool {
	switch in := in.(type) {
	case string:
		part, ok := v.(string)
		if !ok {
			failf("%s cannot be in a text", describe(v))
		}
		return strings.Contains(in, part)
	case *Dict:
		_, ok := in.Get(v)
		return ok
	}
	return slices.ContainsFunc(r.items(in), func(item any) bool { return r.equal(item, v, 0) })
}

// ints returns the result of an operator between integers.
func ints(op string, x, y int64) any {
	z, fits := int64(0), true
	switch op {
	case "+":
		z, fits = x+y, (x+y > x) == (y > 0)
	case "-":
		z, fits = x-y, (x-y < x) == (y > 0)
	case "*":
		z = x * y
		fits = x == 0 || z/x == y && (x != -1 || y != math.MinInt64)
	case "**":
		if y < 0 {
			return math.Pow(float64(x), float64(y))
		}
		z = 1
		for range min(y, 64) {
			next := ints("*", z, x)
			z = next.(int64)
		}
		fits = y <= 64 || x == 0 || x == 1 || x == -1
		if x == -1 {
			z = 1 - 2*(y%2)
		}
	default:
		if y == 0 {
			failf("division by zero")
		}
		if op == "/" {
			return float64(x) / float64(y)
		}
		z = x / y
		if x%y != 0 && (x < 0) != (y < 0) {
			z--
		}
		if op == "%" {
			z = x - z*y
		}
	}
	if !fits {
		failf("%d %s %d is too large", x, op, y)
	}
	return z
}

// floats returns the result of an operator between floats.
func floats(op string, x, y float64) any {
	switch op {
	case "+":
		return x + y
	case "-":
		return x - y
	case "*":
		return x * y
	case "**":
		return math.Pow(x, y)
	}
	if y == 0 {
		failf("division by zero")
	}
	switch op {
	case "/":
		return x / y
	case "//":
		return math.Floor(x / y)
	}
	return x - y*math.Floor(x/y)
}

// compares reports whether an operator holds.
func (r *rendering) compares(op string, left, right any) bool {
	switch op {
	case "==":
		return r.equal(left, right, 0)
	case "!=":
		return !r.equal(left, right, 0)
	case "in":
		return r.contains(right, left)
	case "not in":
		return !r.contains(right, left)
	}
	c := r.order(left, right)
	return c < 0 && op[0] == '<' || c > 0 && op[0] == '>' || c == 0 && len(op) == 2
}

// binary returns the result of an operator.
func (r *rendering) binary(op string, left, right any) any {
	if op == "~" {
		a, b := r.str(left), r.str(right)
		r.charge(len(a) + len(b))
		return a + b
	}
	a, b := integer(left), integer(right)
	switch x := a.(type) {
	case int64:
		if y, ok := b.(int64); ok {
			return ints(op, x, y)
		}
		if y, ok := b.(float64); ok {
			return floats(op, float64(x), y)
		}
		if op == "*" {
			return r.repeat(right, x)
		}
	case float64:
		if y, ok := b.(int64); ok {
			return floats(op, x, float64(y))
		}
		if y, ok := b.(float64); ok {
			return floats(op, x, y)
		}
	case string:
		y, ok := b.(string)
		if op == "+" && ok {
			r.charge(len(x) + len(y))
			return x + y
		}
		if op == "%" {
			return r.text(r.format(x, right))
		}
	case *List:
		y, ok := b.(*List)
		if op == "+" && ok && x.Tuple == y.Tuple {
			r.spend(16 * (len(x.Items) + len(y.Items)))
			return &List{append(append([]any(nil), x.Items...), y.Items...), x.Tuple}
		}
	}
	if n, ok := b.(int64); ok && op == "*" {
		return r.repeat(left, n)
	}
	failf("the operator %s is not supported between %s and %s", op, describe(left), describe(right))
	return nil
}

// repeat returns n copies of a text or a list, one after another.
func (r *rendering) repeat(v any, n int64) any {
	n = max(n, 0)
	size := func(of int) int {
		if of > 0 && n > maxText/int64(of) {
			return maxText + 1
		}
		return of * int(n)
	}
	switch v := v.(type) {
	case string:
		if r.charge(size(len(v))); v == "" {
			return v
		}
		return strings.Repeat(v, int(n))
	case *List:
		r.charge(size(16 * len(v.Items)))
		l := &List{Tuple: v.Tuple}
		for range n {
			if len(v.Items) == 0 {
				break
			}
			l.Items = append(l.Items, v.Items...)
		}
		return l
	}
	failf("%s cannot be repeated", describe(v))
	return nil
}
