package tokenizer

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ardanlabs/jinja"
)

// A chat template is a program, and it often comes with a downloaded model. These limits end it
// within bounded time and memory. The library has no limits, so plainTags adds calls to the
// template: of functions that count its steps, and check its values and its output. Their names
// begin with reserved.
const (
	maxSource    = 1 << 17     // bytes of a template
	maxText      = 1 << 24     // bytes of a value, and of everything that is written
	maxSteps     = 1 << 20     // rounds of loops, calls of macros, and numbers of ranges
	maxCalls     = 100         // macros that call one another
	maxNested    = 200         // lists and objects in one another
	maxOperators = 50          // operators + and ~ in a tag
	maxTime      = time.Minute // of a rendering
)

const reserved = "gofsdp_"

var (
	reservedName = regexp.MustCompile(`\b(` + reserved + `|__filter_)\w*`)
	// The library ignores characters that it does not know.
	unknownCharacter = regexp.MustCompile(`[^\w\s.,:()\[\]{}|~+\-*/%<>=!]|!([^=]|$)`)
	// Transformers refuses methods that change a value, too. The library has no formats.
	refusedMethod = regexp.MustCompile(`\.\s*(append|insert|pop|update|format)\s*\(`)
	// These filters, and one method, are functions of a rendering.
	limitedFilter = regexp.MustCompile(`\|\s*(tojson|string|replace|join|indent)\b`)
	limitedMethod = regexp.MustCompile(`\.\s*(replace)\s*\(`)
	multiply      = regexp.MustCompile(`(?:^|[^*])\*(?:[^*]|$)`)
	multiplyText  = regexp.MustCompile(`^\s*\*\s*\d{1,3}(?:\D|$)`)
	loopVariables = regexp.MustCompile(`^for\s+([\w\s,]*?)\s+in\b`)
	identifier    = regexp.MustCompile(`^[A-Za-z_]\w*$`)
)

// limitCode returns the code of a tag with calls of the functions that have limits. It refuses code
// whose work has no limit.
func limitCode(code string) (string, error) {
	var out strings.Builder
	operators, open, afterText := 0, 0, false
	for code != "" {
		n := strings.IndexAny(code, `'"`)
		if n < 0 {
			n = len(code)
		}
		part := code[:n]
		switch name, unknown := reservedName.FindString(part), unknownCharacter.FindString(part); {
		case name != "":
			return "", fmt.Errorf("the name %s is reserved", name)
		case unknown != "":
			r, _ := utf8.DecodeRuneInString(unknown)
			return "", fmt.Errorf("the character %q is unknown", r)
		case refusedMethod.MatchString(part):
			return "", fmt.Errorf("the method %s is not supported", refusedMethod.FindStringSubmatch(part)[1])
		}
		rest := part
		if afterText && multiplyText.MatchString(part) {
			rest = strings.Replace(part, "*", "", 1)
		}
		if multiply.MatchString(rest) {
			return "", errors.New("the operator * is supported only between a text in quotes and a number below 1000")
		}
		if operators += strings.Count(part, "+") + strings.Count(part, "~"); operators > maxOperators {
			return "", fmt.Errorf("a tag has more than %d operators + and ~", maxOperators)
		}
		for _, c := range part {
			if strings.ContainsRune("([{", c) {
				open++
			} else if strings.ContainsRune(")]}", c) {
				open--
			}
			if open < 0 {
				return "", fmt.Errorf("a bracket %c closes none", c)
			}
		}
		part = strings.ReplaceAll(part, "}", "} ") // the library ends the tag at }}, even of two objects
		part = limitedFilter.ReplaceAllString(part, "|"+reserved+"$1")
		out.WriteString(limitedMethod.ReplaceAllString(part, "|"+reserved+"$1("))
		text := textLength(code[n:])
		out.WriteString(code[n:][:text])
		code, afterText = code[n+text:], true
	}
	return out.String(), nil
}

// textLength returns the length of the text in quotes that code begins with.
func textLength(code string) int {
	n := min(1, len(code))
	for ; n < len(code); n++ {
		switch code[n] {
		case '\\':
			n++
		case code[0]:
			return n + 1
		}
	}
	return len(code)
}

// writeStatement writes the tag of a statement with the calls that count its work.
func writeStatement(out *strings.Builder, code string) error {
	code, err := limitCode(strings.TrimSpace(code))
	if err != nil {
		return err
	}
	word, rest := code, ""
	if n := strings.IndexFunc(code, func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') }); n >= 0 {
		word, rest = code[:n], code[n:]
	}
	target, value, assigns := strings.Cut(rest, "=")
	before, after := "", ""
	switch {
	case word == "raw":
		return errors.New("the statement raw is not supported")
	case word == "for":
		if names := loopVariables.FindStringSubmatch(code); names != nil {
			after = call("step", names[1])
		} else {
			return fmt.Errorf("{%% %.40s %%} has no variables", code)
		}
	case word == "macro":
		_, parameters, _ := strings.Cut(rest, "(")
		after = call("enter", strings.TrimSuffix(parameters, ")"))
	case word == "endmacro":
		before = call("leave", "")
	case word == "set" && assigns:
		owner, _, _ := strings.Cut(target, ".")
		if strings.Contains(target, ".") {
			value += ", " + owner
		}
		code = "set" + target + "= " + reserved + "keep(" + value + ")"
	}
	out.WriteString(before + "{% " + code + " %}" + after)
	return nil
}

// call returns a tag that calls a function with the variables in a list.
func call(function, list string) string {
	var names []string
	for name := range strings.SplitSeq(list, ",") {
		name, _, _ = strings.Cut(name, "=")
		if name = strings.TrimSpace(name); identifier.MatchString(name) {
			names = append(names, name)
		}
	}
	return "{{ " + reserved + function + "(" + strings.Join(names, ", ") + ") }}"
}

// A rendering is one run of a template.
type rendering struct {
	steps, calls, written int
	end                   time.Time
	namespaces            map[*jinja.Dict]bool
	err                   error // of the limit that the template exceeds, or nil
}

func newRendering() *rendering {
	return &rendering{end: time.Now().Add(maxTime), namespaces: make(map[*jinja.Dict]bool)}
}

// addTo adds the functions of the rendering to the variables of the template.
func (r *rendering) addTo(values map[string]jinja.Value) {
	for name, f := range map[string]func([]jinja.Value, map[string]jinja.Value) (jinja.Value, error){
		"range": r.numbers, "namespace": r.namespace, "dict": dictOf,
		reserved + "step": r.step, reserved + "enter": r.enter, reserved + "leave": r.leave, reserved + "keep": r.keep, reserved + "show": r.show,
		reserved + "tojson": toJSON, reserved + "string": toString, reserved + "replace": replace, reserved + "join": join, reserved + "indent": indent,
	} {
		values[name] = jinja.NewCallable(strings.TrimPrefix(name, reserved), f)
	}
}

// fail records that the template exceeds a limit.
func (r *rendering) fail(format string, args ...any) error {
	r.err = fmt.Errorf("the chat template "+format+": it may be damaged, so take the template from another copy of the model", args...)
	return r.err
}

// count counts steps.
func (r *rendering) count(n int) error {
	if r.steps += n; r.steps > maxSteps {
		return r.fail("takes more than %d steps in loops, macros and ranges", maxSteps)
	}
	if time.Now().After(r.end) {
		return r.fail("runs for more than %v", maxTime)
	}
	return nil
}

// check returns an error if a value is too large. A namespace may not be within another value, so
// no value contains itself.
func (r *rendering) check(v jinja.Value, depth int) error {
	size := 0
	var add func(v jinja.Value, depth int) error
	add = func(v jinja.Value, depth int) (err error) {
		switch {
		case depth > maxNested:
			return r.fail("has a value with more than %d lists and objects in one another", maxNested)
		case v.IsString():
			size += len(v.AsString())
		case v.IsList():
			for _, item := range v.AsList().Items {
				if err = add(item, depth+1); err != nil {
					return err
				}
			}
		case v.IsDict() && depth > 0 && r.namespaces[v.AsDict()]:
			return r.fail("puts a namespace into another value")
		case v.IsDict():
			for _, key := range v.AsDict().Keys {
				size += len(key)
				if err = add(v.AsDict().Data[key], depth+1); err != nil {
					return err
				}
			}
		}
		if size += 16; size > maxText {
			return r.fail("has a value of more than %d bytes", maxText)
		}
		return nil
	}
	return add(v, depth)
}

// step begins a round of a loop with these variables.
func (r *rendering) step(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	err := r.count(1)
	for _, v := range args {
		if err == nil {
			err = r.check(v, 0)
		}
	}
	return jinja.None(), err
}

// enter begins a macro with these arguments.
func (r *rendering) enter(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	if r.calls++; r.calls > maxCalls {
		return jinja.None(), r.fail("has more than %d macros that call one another", maxCalls)
	}
	return r.step(args, kwargs)
}

// leave ends a macro.
func (r *rendering) leave([]jinja.Value, map[string]jinja.Value) (jinja.Value, error) {
	r.calls--
	return jinja.None(), nil
}

// keep returns a value for a variable, or for a member of a namespace.
func (r *rendering) keep(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	switch len(args) {
	case 0:
		return jinja.None(), nil
	case 1:
		return args[0], errors.Join(r.count(0), r.check(args[0], 0))
	}
	if owner := args[len(args)-1]; len(args) > 2 || !owner.IsDict() || !r.namespaces[owner.AsDict()] {
		return jinja.None(), errors.New("only members of a namespace can be set, and to one value")
	}
	return args[0], errors.Join(r.count(0), r.check(args[0], 1))
}

// show returns the text of a value that is written.
func (r *rendering) show(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	if len(args) == 0 {
		return jinja.None(), nil
	}
	if len(args) > 1 || len(kwargs) > 0 {
		return jinja.None(), errors.New("a tag writes more than one value")
	}
	if err := errors.Join(r.count(0), r.check(args[0], 0)); err != nil {
		return jinja.None(), err
	}
	text := textOf(args[0])
	if r.written += len(text); r.written > maxText {
		return jinja.None(), r.fail("writes more than %d bytes", maxText)
	}
	return jinja.NewString(text), nil
}

// numbers is range.
func (r *rendering) numbers(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	bounds := []int64{0, 0, 1}
	if len(args) < 1 || len(args) > 3 {
		return jinja.None(), fmt.Errorf("range has %d arguments, want 1 to 3", len(args))
	}
	for i, v := range args {
		if !v.IsInt() {
			return jinja.None(), fmt.Errorf("range: %s is not an integer", textOf(v))
		}
		if len(args) == 1 {
			i = 1
		}
		bounds[i] = v.AsInt()
	}
	from, to, by := bounds[0], bounds[1], bounds[2]
	if by == 0 {
		return jinja.None(), errors.New("range: the step is 0")
	}
	var list []jinja.Value
	for i := from; by > 0 && i < to || by < 0 && i > to; i += by {
		if err := r.count(1); err != nil {
			return jinja.None(), err
		}
		list = append(list, jinja.NewInt(i))
		if by > 0 && i > to-by || by < 0 && i < to-by { // the next one would overflow
			break
		}
	}
	return jinja.NewList(list), nil
}

// namespace makes an object whose members can be set.
func (r *rendering) namespace(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	if len(args) > 0 {
		return jinja.None(), errors.New("namespace: only arguments with names are supported")
	}
	v := jinja.NewDict()
	for _, name := range slices.Sorted(maps.Keys(kwargs)) {
		if err := r.check(kwargs[name], 1); err != nil {
			return v, err
		}
		v.AsDict().Set(name, kwargs[name])
	}
	r.namespaces[v.AsDict()] = true
	return v, nil
}
