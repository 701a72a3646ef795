package jinja

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// missing is an argument that a call does not have.
type missing struct{}

// bind returns the arguments of a call in the order of names.
func (a args) bind(what string, names ...string) []any {
	if len(a.list) > len(names) {
		failf("%s has %d arguments, want at most %d", what, len(a.list), len(names))
	}
	values, found := slices.Clone(a.list), 0
	for _, name := range names[len(a.list):] {
		v, ok := a.named[name]
		if found++; !ok {
			v = missing{}
			found--
		}
		values = append(values, v)
	}
	if found < len(a.named) {
		failf("%s has arguments with other names than %v", what, names)
	}
	return values
}

// textArg returns an argument that is a text, or another text if it is missing.
func textArg(what string, v any, otherwise string) string {
	switch v := v.(type) {
	case missing:
		return otherwise
	case string:
		return v
	}
	failf("%s: %s is no text", what, describe(v))
	return ""
}

// boolArg returns whether an argument is given and true.
func boolArg(v any) bool {
	_, absent := v.(missing)
	return !absent && truth(v)
}

// intArg returns an argument that is an integer, or another one if it is missing.
func intArg(what string, v any, otherwise int64) int64 {
	if _, absent := v.(missing); absent {
		return otherwise
	}
	return integral(what, v)
}

// method returns a method of a value, or nil.
func (r *rendering) method(of any, name string) any {
	switch v := of.(type) {
	case string:
		f := textMethods[name]
		if slices.Contains(otherMethods, name) {
			failf("the method %s is not supported", name)
		}
		if f == nil {
			return nil
		}
		return function(func(r *rendering, a args) any { return f(r, v, a) })
	case *Dict:
		return dictMethod(v, name)
	case *List:
		if slices.Contains([]string{"append", "insert", "pop", "extend", "remove", "clear", "sort", "reverse", "count", "index", "copy"}, name) {
			failf("the method %s is not supported", name)
		}
	}
	return nil
}

func dictMethod(d *Dict, name string) any {
	if slices.Contains([]string{"pop", "popitem", "update", "setdefault", "clear", "copy"}, name) {
		failf("the method %s is not supported", name)
	}
	if !slices.Contains([]string{"items", "keys", "values", "get"}, name) {
		return nil
	}
	return function(func(r *rendering, a args) any {
		if name == "get" {
			args := a.bind("get", "key", "default")
			if v, ok := d.Get(args[0]); ok {
				return v
			}
			if _, absent := args[1].(missing); absent {
				return nil
			}
			return args[1]
		}
		a.bind(name)
		r.spend(48 * d.Len())
		switch name {
		case "keys":
			return &List{Items: slices.Clone(d.keys)}
		case "values":
			return &List{Items: slices.Clone(d.values)}
		}
		return pairs(d)
	})
}

// pairs returns the members of an object.
func pairs(d *Dict) *List {
	l := new(List)
	for i, key := range d.keys {
		l.Items = append(l.Items, &List{[]any{key, d.values[i]}, true})
	}
	return l
}

// list returns texts as a list.
func list(r *rendering, parts []string) *List {
	r.spend(16 * len(parts))
	l := new(List)
	for _, part := range parts {
		l.Items = append(l.Items, part)
	}
	return l
}

// isSpace reports whether Python's str.strip removes a character.
func isSpace(c rune) bool { return unicode.IsSpace(c) || c >= 0x1c && c <= 0x1f }

// strip returns a method that removes characters from the ends of a text.
func strip(left, right bool) func(r *rendering, s string, a args) any {
	return func(_ *rendering, s string, a args) any {
		remove := isSpace
		if v := a.bind("strip", "chars")[0]; v != nil && v != (missing{}) {
			chars := textArg("strip", v, "")
			remove = func(c rune) bool { return strings.ContainsRune(chars, c) }
		}
		if left {
			s = strings.TrimLeftFunc(s, remove)
		}
		if right {
			s = strings.TrimRightFunc(s, remove)
		}
		return s
	}
}

// affix returns startswith or endswith.
func affix(what string, has func(s, affix string) bool) func(r *rendering, s string, a args) any {
	return func(r *rendering, s string, a args) any {
		one := a.bind(what, "affix")[0]
		l, ok := one.(*List)
		if !ok || !l.Tuple {
			return has(s, textArg(what, one, ""))
		}
		return slices.ContainsFunc(l.Items, func(v any) bool { return has(s, textArg(what, v, "")) })
	}
}

// all returns a method that reports whether all characters of a text are of a kind.
func all(is func(rune) bool) func(r *rendering, s string, a args) any {
	return func(_ *rendering, s string, a args) any {
		a.bind("the method")
		return s != "" && !strings.ContainsFunc(s, func(c rune) bool { return !is(c) })
	}
}

// change returns a method without arguments that returns another text.
func change(f func(string) string) func(r *rendering, s string, a args) any {
	return func(r *rendering, s string, a args) any {
		a.bind("the method")
		return r.text(f(s))
	}
}

// find returns find, rfind, index or rindex. The result counts characters.
func find(index func(s, part string) int, fail bool) func(r *rendering, s string, a args) any {
	return func(_ *rendering, s string, a args) any {
		args := a.bind("find", "sub", "start")
		skip := intArg("find", args[1], 0)
		at := 0
		for i := range position(skip, utf8.RuneCountInString(s)) {
			if at >= len(s) && i >= 0 {
				return int64(-1)
			}
			_, n := utf8.DecodeRuneInString(s[at:])
			at += n
		}
		i := index(s[at:], textArg("find", args[0], ""))
		if i < 0 && fail {
			failf("the text is not found")
		}
		if i < 0 {
			return int64(-1)
		}
		return int64(utf8.RuneCountInString(s[:at+i]))
	}
}

// split is split and rsplit.
func split(right bool) func(r *rendering, s string, a args) any {
	return func(r *rendering, s string, a args) any {
		args := a.bind("split", "sep", "maxsplit")
		n := intArg("split", args[1], -1)
		if args[0] == nil || args[0] == (missing{}) {
			if n >= 0 {
				failf("split: maxsplit without a separator is not supported")
			}
			return list(r, strings.FieldsFunc(s, isSpace))
		}
		sep := textArg("split", args[0], "")
		switch {
		case sep == "":
			failf("split: the separator is empty")
		case n < 0:
			return list(r, strings.Split(s, sep))
		case !right:
			return list(r, strings.SplitN(s, sep, int(min(n, maxText))+1))
		}
		var parts []string
		for ; n > 0; n-- {
			at := strings.LastIndex(s, sep)
			if at < 0 {
				break
			}
			parts, s = append(parts, s[at+len(sep):]), s[:at]
		}
		parts = append(parts, s)
		slices.Reverse(parts)
		return list(r, parts)
	}
}

// partition is partition and rpartition.
func partition(index func(s, sep string) int, right bool) func(r *rendering, s string, a args) any {
	return func(_ *rendering, s string, a args) any {
		sep := textArg("partition", a.bind("partition", "sep")[0], "")
		at := index(s, sep)
		switch {
		case sep == "":
			failf("partition: the separator is empty")
		case at >= 0:
			return &List{[]any{s[:at], sep, s[at+len(sep):]}, true}
		case right:
			return &List{[]any{"", "", s}, true}
		}
		return &List{[]any{s, "", ""}, true}
	}
}

// pad returns ljust, rjust, center or zfill.
func pad(what string, left func(n int64, s string) int64) func(r *rendering, s string, a args) any {
	return func(r *rendering, s string, a args) any {
		args := a.bind(what, "width", "fillchar")
		fill, n := textArg(what, args[1], " "), integral(what, args[0])-int64(utf8.RuneCountInString(s))
		if what == "zfill" {
			fill = "0"
		}
		if utf8.RuneCountInString(fill) != 1 {
			failf("%s: the fill %q is not one character", what, fill)
		}
		if n <= 0 {
			return s
		}
		before := left(n, s)
		sign := ""
		if what == "zfill" && s != "" && (s[0] == '-' || s[0] == '+') {
			sign, s = s[:1], s[1:]
		}
		return sign + r.repeat(fill, before).(string) + s + r.repeat(fill, n-before).(string)
	}
}

func splitLines(s string) (lines []string) {
	s = strings.NewReplacer("\r\n", "\n", "\r", "\n", "\v", "\n", "\f", "\n", "\x1c", "\n", "\x1d", "\n", "\x1e", "\n", "\u0085", "\n", "\u2028", "\n", "\u2029", "\n").Replace(s)
	if s == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(s, "\n"), "\n")
}

// capitalize returns a text with its first character in upper case and the others in lower case.
func capitalize(s string) string {
	_, n := utf8.DecodeRuneInString(s)
	return strings.ToUpper(s[:n]) + strings.ToLower(s[n:])
}

// title returns a text with the first letter of each word in upper case.
func title(s string) string {
	inWord := false
	return strings.Map(func(c rune) rune {
		before := inWord
		if inWord = unicode.IsLetter(c); before {
			return unicode.ToLower(c)
		}
		return unicode.ToTitle(c)
	}, s)
}

// replaced returns a text with another one in place of some of its parts.
func (r *rendering) replaced(s string, args []any) any {
	old, to, n := r.str(args[0]), r.str(args[1]), -1
	if args[2] != nil {
		n = int(max(-1, min(intArg("replace", args[2], -1), maxText)))
	}
	count := strings.Count(s, old)
	if n >= 0 {
		count = min(count, n)
	}
	r.charge(max(0, len(s)+count*(len(to)-len(old))))
	return strings.Replace(s, old, to, n)
}

// joined returns the texts of values with another one between them.
func (r *rendering) joined(items []any, between string) string {
	size := 0
	texts := make([]string, len(items))
	for i, item := range items {
		texts[i] = r.str(item)
		size += len(texts[i]) + len(between)
		if size > maxText {
			r.charge(size)
		}
	}
	r.charge(size)
	return strings.Join(texts, between)
}

// otherMethods are the methods of texts in Python that are not supported.
var otherMethods = []string{"casefold", "encode", "expandtabs", "format", "format_map", "isascii", "isdecimal", "isidentifier", "isnumeric", "isprintable",
	"istitle", "maketrans", "swapcase", "translate"}

// textMethods are the methods of texts. It is set by init, as methods call methods.
var textMethods map[string]func(r *rendering, s string, a args) any

func init() {
	textMethods = map[string]func(r *rendering, s string, a args) any{
		"strip": strip(true, true), "lstrip": strip(true, false), "rstrip": strip(false, true),
		"startswith": affix("startswith", strings.HasPrefix), "endswith": affix("endswith", strings.HasSuffix),
		"upper": change(strings.ToUpper), "lower": change(strings.ToLower), "title": change(title), "capitalize": change(capitalize),
		"isdigit": all(unicode.IsDigit), "isalpha": all(unicode.IsLetter), "isspace": all(isSpace),
		"isalnum": all(func(c rune) bool { return unicode.IsLetter(c) || unicode.IsNumber(c) }),
		"isupper": func(_ *rendering, s string, _ args) any { return s == strings.ToUpper(s) && s != strings.ToLower(s) },
		"islower": func(_ *rendering, s string, _ args) any { return s == strings.ToLower(s) && s != strings.ToUpper(s) },
		"split":   split(false), "rsplit": split(true),
		"partition": partition(strings.Index, false), "rpartition": partition(strings.LastIndex, true),
		"find": find(strings.Index, false), "rfind": find(strings.LastIndex, false), "index": find(strings.Index, true), "rindex": find(strings.LastIndex, true),
		"ljust":  pad("ljust", func(int64, string) int64 { return 0 }),
		"rjust":  pad("rjust", func(n int64, _ string) int64 { return n }),
		"zfill":  pad("zfill", func(n int64, _ string) int64 { return n }),
		"center": pad("center", func(n int64, s string) int64 { return n/2 + n&(n+int64(utf8.RuneCountInString(s)))&1 }),
		"count": func(_ *rendering, s string, a args) any {
			return int64(strings.Count(s, textArg("count", a.bind("count", "sub")[0], "")))
		},
		"splitlines": func(r *rendering, s string, a args) any {
			a.bind("splitlines")
			return list(r, splitLines(s))
		},
		"replace": func(r *rendering, s string, a args) any {
			args := a.bind("replace", "old", "new", "count")
			return r.replaced(textArg("replace", s, ""), []any{textArg("replace", args[0], ""), textArg("replace", args[1], ""), args[2]})
		},
		"join": func(r *rendering, s string, a args) any {
			items := r.items(a.bind("join", "iterable")[0])
			for _, item := range items {
				textArg("join", item, "")
			}
			return r.joined(items, s)
		},
		"removeprefix": func(_ *rendering, s string, a args) any {
			return strings.TrimPrefix(s, textArg("removeprefix", a.bind("removeprefix", "prefix")[0], ""))
		},
		"removesuffix": func(_ *rendering, s string, a args) any {
			return strings.TrimSuffix(s, textArg("removesuffix", a.bind("removesuffix", "suffix")[0], ""))
		},
	}
}

// format is the operator % of a text.
func (r *rendering) format(s string, v any) string {
	values := []any{v}
	if l, ok := v.(*List); ok && l.Tuple {
		values = l.Items
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		from := i
		for i++; i < len(s) && strings.IndexByte("-+ 0123456789.", s[i]) >= 0; i++ {
		}
		if i < len(s) && s[i] == '%' && i == from+1 {
			b.WriteByte('%')
			continue
		}
		if i == len(s) || len(values) == 0 || i-from > 6 {
			failf("the format %.40q does not fit its values", s)
		}
		value := values[0]
		values = values[1:]
		switch s[i] {
		case 's':
			fmt.Fprintf(&b, s[from:i]+"s", r.str(value))
		case 'd', 'i':
			f, ok := float(value)
			if !ok {
				failf("the format %.40q needs a number", s)
			}
			n, exact := integer(value).(int64)
			if !exact {
				n = int64(f)
			}
			fmt.Fprintf(&b, s[from:i]+"d", n)
		case 'f':
			f, ok := float(value)
			if !ok {
				failf("the format %.40q needs a number", s)
			}
			fmt.Fprintf(&b, s[from:i]+"f", f)
		default:
			failf("the format %.40q is not supported", s)
		}
		if b.Len() > maxText {
			r.charge(b.Len())
		}
	}
	if len(values) > 0 {
		failf("the format %.40q does not fit its values", s)
	}
	return b.String()
}
