package jinja

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// length returns the number of elements.
func (r *rendering) length(v any) int64 {
	switch v := v.(type) {
	case string:
		return int64(len([]rune(v)))
	case *Dict:
		return int64(v.Len())
	}
	return int64(len(r.items(v)))
}

// filter returns the result of a filter.
func (r *rendering) filter(name string, v any, a args) any {
	bind := func(names ...string) []any { return a.bind("the filter "+name, names...) }
	switch name {
	case "default", "d":
		args := bind("default_value", "boolean")
		_, none := v.(undefined)
		if !none && (!boolArg(args[1]) || truth(v)) {
			return v
		}
		if _, absent := args[0].(missing); absent {
			return ""
		}
		return args[0]
	case "length", "count":
		bind()
		return r.length(v)
	case "string":
		bind()
		return r.str(v)
	case "trim":
		if args := bind("chars"); args[0] != (missing{}) && args[0] != nil {
			return strip(true, true)(r, r.str(v), a)
		}
		return strings.TrimFunc(r.str(v), isSpace)
	case "upper", "lower", "title", "capitalize":
		bind()
		f := map[string]func(string) string{"upper": strings.ToUpper, "lower": strings.ToLower, "title": title, "capitalize": capitalize}[name]
		return r.text(f(r.str(v)))
	case "replace":
		args := bind("old", "new", "count")
		return r.replaced(r.str(v), args)
	case "safe":
		bind()
		return v
	case "escape", "e":
		bind()
		return r.text(strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`, "&#34;").Replace(r.str(v)))
	case "indent":
		return r.indent(r.str(v), bind("width", "first", "blank"))
	case "wordcount":
		bind()
		return int64(len(strings.FieldsFunc(r.str(v), isSpace)))
	case "tojson":
		return r.json(v, bind("ensure_ascii", "indent", "separators", "sort_keys"))
	case "int", "float", "abs", "round":
		return r.numeric(name, v, a)
	case "items", "dictsort":
		return r.members(name, v, a)
	}
	return r.listFilter(name, v, a)
}

// members returns the members of an object, in their order or sorted by key or value.
func (r *rendering) members(name string, v any, a args) any {
	if _, none := v.(undefined); none && name == "items" {
		return new(List)
	}
	d, ok := v.(*Dict)
	if !ok {
		failf("the filter %s: %s is no object", name, describe(v))
	}
	r.spend(48 * d.Len())
	l := pairs(d)
	if name == "items" {
		a.bind("the filter items")
		return l
	}
	args := a.bind("the filter dictsort", "case_sensitive", "by", "reverse")
	by := slices.Index([]string{"key", "value"}, textArg("the filter dictsort", args[1], "key"))
	if by < 0 {
		failf("the filter dictsort sorts by key or value")
	}
	r.sort(l.Items, boolArg(args[2]), func(v any) any { return folded(v.(*List).Items[by], boolArg(args[0])) })
	return l
}

// folded returns a text in lower case, unless case matters.
func folded(v any, sensitive bool) any {
	if s, ok := v.(string); ok && !sensitive {
		return strings.ToLower(s)
	}
	return v
}

func (r *rendering) sort(items []any, reverse bool, key func(any) any) {
	slices.SortStableFunc(items, func(a, b any) int {
		if reverse {
			a, b = b, a
		}
		return r.order(key(a), key(b))
	})
}

// numeric returns the result of a filter of numbers.
func (r *rendering) numeric(name string, v any, a args) any {
	switch name {
	case "abs":
		a.bind("the filter abs")
		if f, ok := integer(v).(float64); ok {
			return math.Abs(f)
		}
		return max(integral("the filter abs", v), -integral("the filter abs", v))
	case "round":
		args := a.bind("the filter round", "precision", "method")
		f, ok := float(v)
		if !ok {
			failf("the filter round: %s is no number", describe(v))
		}
		if _, isInt := integer(v).(int64); isInt && textArg("the filter round", args[1], "common") == "common" && intArg("the filter round", args[0], 0) >= 0 {
			return integer(v)
		}
		scale := math.Pow(10, float64(intArg("the filter round", args[0], 0)))
		switch textArg("the filter round", args[1], "common") {
		case "common":
			return math.RoundToEven(f*scale) / scale
		case "ceil":
			return math.Ceil(f*scale) / scale
		case "floor":
			return math.Floor(f*scale) / scale
		}
		failf("the filter round has the methods common, ceil and floor")
	}
	args := a.bind("the filter "+name, "default")
	f, ok := float(v)
	exact, isInt := integer(v).(int64)
	if s, isText := v.(string); isText {
		s = strings.TrimSpace(s)
		var err error
		exact, err = strconv.ParseInt(s, 10, 64)
		isInt = err == nil
		f, err = strconv.ParseFloat(s, 64)
		ok = err == nil
	}
	switch _, absent := args[0].(missing); {
	case name == "int" && isInt:
		return exact
	case name == "int" && ok && math.Abs(f) < 1<<62:
		return int64(f)
	case name == "float" && ok:
		return f
	case !absent:
		return args[0]
	case name == "int":
		return int64(0)
	}
	return 0.0
}

// attribute returns a member of a member … of a value: "function.name".
func (r *rendering) attribute(v, path any) any {
	if i, ok := path.(int64); ok {
		return r.item(v, i)
	}
	for part := range strings.SplitSeq(textArg("an attribute", path, ""), ".") {
		if i, err := strconv.ParseInt(part, 10, 64); err == nil {
			v = r.item(v, i)
		} else {
			v = r.item(v, part)
		}
	}
	return v
}

// key returns a function of an element. A filter compares its results.
func (r *rendering) key(attribute any, sensitive bool) func(v any) any {
	return func(v any) any {
		if attribute != nil && attribute != (missing{}) {
			v = r.attribute(v, attribute)
		}
		return folded(v, sensitive)
	}
}

// listFilter returns the result of a filter of lists.
func (r *rendering) listFilter(name string, v any, a args) any {
	known := []string{"join", "first", "last", "list", "reverse", "sort", "unique", "sum", "min", "max", "batch", "map", "select", "reject", "selectattr", "rejectattr"}
	if !slices.Contains(known, name) {
		failf("the filter %s is not supported", name)
	}
	bind := func(names ...string) []any { return a.bind("the filter "+name, names...) }
	items := r.items(v)
	r.spend(16 * len(items))
	out := new(List)
	switch name {
	case "join":
		args := bind("d", "attribute")
		texts := slices.Clone(items)
		for i := range texts {
			if args[1] != nil && args[1] != (missing{}) {
				texts[i] = r.attribute(texts[i], args[1])
			}
		}
		return r.joined(texts, textArg("the filter join", args[0], ""))
	case "first", "last":
		bind()
		if len(items) == 0 {
			return undefined("the " + name + " element")
		}
		return items[map[string]int{"first": 0, "last": len(items) - 1}[name]]
	case "list":
		bind()
		out.Items = slices.Clone(items)
	case "reverse":
		bind()
		out.Items = slices.Clone(items)
		slices.Reverse(out.Items)
		if _, ok := v.(string); ok {
			return r.joined(out.Items, "")
		}
	case "sort":
		args := bind("reverse", "case_sensitive", "attribute")
		out.Items = slices.Clone(items)
		r.sort(out.Items, boolArg(args[0]), r.key(args[2], boolArg(args[1])))
	case "unique":
		args := bind("case_sensitive", "attribute")
		key, seen := r.key(args[1], boolArg(args[0])), make(map[any]bool)
		for _, item := range items {
			if h := hashed(key(item)); !seen[h] {
				seen[h] = true
				out.Items = append(out.Items, item)
			}
		}
	case "sum":
		return r.sum(items, bind("attribute", "start"))
	case "min", "max":
		return r.extreme(name, items, bind("case_sensitive", "attribute"))
	case "batch":
		out.Items = r.batch(items, bind("linecount", "fill_with"))
	default:
		r.each(name, items, a, out)
	}
	return out
}

// sum adds the items, or an attribute of each, to the start.
func (r *rendering) sum(items, args []any) any {
	var total any = int64(0)
	if args[1] != (missing{}) {
		total = args[1]
	}
	for _, item := range items {
		total = r.binary("+", total, r.key(args[0], true)(item))
	}
	return total
}

// extreme returns the smallest item for the filter min, and the largest one for max.
func (r *rendering) extreme(name string, items, args []any) any {
	if len(items) == 0 {
		return undefined("the " + name)
	}
	key, best := r.key(args[1], boolArg(args[0])), items[0]
	for _, item := range items[1:] {
		if c := r.order(key(item), key(best)); c < 0 && name == "min" || c > 0 && name == "max" {
			best = item
		}
	}
	return best
}

// batch divides the items into lists of one length. The last list is filled up if there is a
// filling.
func (r *rendering) batch(items, args []any) (lists []any) {
	n := int(min(integral("the filter batch", args[0]), maxSteps))
	if n < 1 {
		failf("the filter batch: the size is %d", n)
	}
	for part := range slices.Chunk(items, n) {
		part = slices.Clone(part)
		for args[1] != (missing{}) && args[1] != nil && len(part) < n {
			r.step(1)
			part = append(part, args[1])
		}
		lists = append(lists, &List{Items: part})
	}
	return lists
}

// each is map, select and reject, with an attribute or without.
func (r *rendering) each(name string, items []any, a args, out *List) {
	byAttribute := strings.HasSuffix(name, "attr")
	if path, ok := a.named["attribute"]; ok && name == "map" && len(a.list) == 0 {
		otherwise, has := a.named["default"]
		for _, item := range items {
			v := r.attribute(item, path)
			if _, none := v.(undefined); none && has {
				v = otherwise
			}
			out.Items = append(out.Items, v)
		}
		return
	}
	rest := a.list
	var path any
	if byAttribute || name == "map" {
		if len(rest) == 0 {
			failf("the filter %s has no arguments", name)
		}
		path, rest = rest[0], rest[1:]
	}
	test := "true" // of the value itself
	if name != "map" && len(rest) > 0 {
		test, rest = textArg("the filter "+name, rest[0], ""), rest[1:]
	} else if name != "map" {
		test = ""
	}
	for _, item := range items {
		r.step(1)
		more := args{slices.Clone(rest), maps.Clone(a.named), a.names}
		if name == "map" {
			out.Items = append(out.Items, r.filter(textArg("the filter map", path, ""), item, more))
			continue
		}
		v := item
		if byAttribute {
			v = r.attribute(item, path)
		}
		is := truth(v)
		if test != "" {
			is = r.test(test, v, more)
		}
		if is != strings.HasPrefix(name, "reject") {
			out.Items = append(out.Items, item)
		}
	}
}

// indent is the filter indent.
func (r *rendering) indent(text string, args []any) any {
	space, isText := args[0].(string)
	if width := int64(4); !isText {
		if width = intArg("indent", args[0], width); width < 0 || width > 100 {
			failf("indent: the width is %d, want 0 to 100", width)
		}
		space = strings.Repeat(" ", int(width))
	}
	r.charge(len(text) + strings.Count(text, "\n")*len(space))
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if i == 0 && boolArg(args[1]) || i > 0 && (line != "" || boolArg(args[2])) {
			lines[i] = space + line
		}
	}
	return r.text(strings.Join(lines, "\n"))
}
