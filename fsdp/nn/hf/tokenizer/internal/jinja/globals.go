package jinja

import (
	"errors"
	"strings"
	"time"
)

// globals are the variables that every template has.
func globals() map[string]any {
	return map[string]any{
		"range": function(numbers), "namespace": function(newNamespace), "raise_exception": function(func(_ *rendering, a args) any {
			panic(failure{errors.New(textArg("raise_exception", a.bind("raise_exception", "message")[0], ""))})
		}),
		"dict": function(func(r *rendering, a args) any {
			d := new(Dict)
			if len(a.list) > 0 {
				failf("dict: only members with names are supported")
			}
			for _, name := range a.names {
				d.Set(name, a.named[name])
			}
			return d
		}),
		"strftime_now": function(func(_ *rendering, a args) any {
			return strftime(time.Now(), textArg("strftime_now", a.bind("strftime_now", "format")[0], ""))
		}),
		"joiner": function(func(_ *rendering, a args) any {
			between, used := textArg("joiner", a.bind("joiner", "sep")[0], ", "), false
			return function(func(*rendering, args) any {
				if !used {
					used = true
					return ""
				}
				return between
			})
		}),
	}
}

// directives are the layouts of package time for the directives of strftime.
var directives = map[byte]string{
	'd': "02", 'm': "01", 'y': "06", 'Y': "2006", 'b': "Jan", 'B': "January", 'a': "Mon", 'A': "Monday", 'H': "15", 'I': "03", 'M': "04", 'S': "05",
	'p': "PM", 'j': "002",
}

func strftime(t time.Time, format string) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			b.WriteByte(format[i])
			continue
		}
		if i++; i < len(format) && format[i] == '%' {
			b.WriteByte('%')
		} else if i < len(format) && directives[format[i]] != "" {
			b.WriteString(t.Format(directives[format[i]]))
		} else {
			failf("strftime_now: the format %q is not supported", format)
		}
	}
	return b.String()
}

// numbers is range.
func numbers(r *rendering, a args) any {
	if len(a.list) < 1 || len(a.list) > 3 || len(a.named) > 0 {
		failf("range has %d arguments, want 1 to 3", len(a.list)+len(a.named))
	}
	bounds := []int64{0, 0, 1}
	for i, v := range a.list {
		if len(a.list) == 1 {
			i = 1
		}
		bounds[i] = integral("range", v)
	}
	from, to, by := bounds[0], bounds[1], bounds[2]
	if by == 0 {
		failf("range: the step is 0")
	}
	l := new(List)
	for i := from; by > 0 && i < to || by < 0 && i > to; i += by {
		r.step(1)
		l.Items = append(l.Items, i)
		if by > 0 && i > to-by || by < 0 && i < to-by { // the next one would overflow
			break
		}
	}
	return l
}

// newNamespace makes an object whose members can be set.
func newNamespace(_ *rendering, a args) any {
	if len(a.list) > 0 {
		failf("namespace: only arguments with names are supported")
	}
	return &namespace{a.named}
}

// member returns a member of the variable loop.
func (l *loop) member(name string) any {
	n, at := int64(len(l.items)), int64(l.at)
	near := func(i int64) any {
		if i < 0 || i >= n {
			return undefined("loop." + name)
		}
		return l.items[i]
	}
	switch name {
	case "index":
		return at + 1
	case "index0":
		return at
	case "revindex":
		return n - at
	case "revindex0":
		return n - at - 1
	case "first":
		return at == 0
	case "last":
		return at == n-1
	case "length":
		return n
	case "depth":
		return int64(1)
	case "depth0":
		return int64(0)
	case "previtem":
		return near(at - 1)
	case "nextitem":
		return near(at + 1)
	case "cycle":
		return function(func(_ *rendering, a args) any {
			if len(a.list) == 0 {
				failf("loop.cycle has no arguments")
			}
			return a.list[l.at%len(a.list)]
		})
	case "changed":
		return function(func(r *rendering, a args) any {
			now := &List{Items: a.list}
			same := l.changed != nil && r.equal(l.changed, now, 0)
			l.changed = now
			return !same
		})
	}
	return undefined("loop." + name)
}
