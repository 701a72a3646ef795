// Package jinja renders chat templates: programs in the language of Jinja, often from a downloaded
// directory. A template renders to the text that transformers makes of it. A construct that is not
// supported is an error that names it. Limits end a template within bounded time and memory.
//
//	t, err := jinja.Compile("{% for m in messages %}{{ m.role }} {% endfor %}")
//	text, err := t.Render(map[string]any{"messages": list})
//
// # Values
//
//	none, true, 1, 1.5, "text"   nil, bool, int64, float64, string
//	[1, 2] and (1, 2)            *List
//	{"a": 1}                     *Dict
//
// [Decode] makes values of JSON.
package jinja

import (
	"fmt"
	"maps"
	"strings"
	"time"
)

// The limits of a rendering.
const (
	maxText   = 1 << 24     // bytes of a text, and of everything that is written
	maxMade   = 1 << 28     // bytes of all texts and lists that are made
	maxSteps  = 1 << 20     // rounds of loops, calls of macros, and numbers of ranges
	maxCalls  = 100         // macros that call one another
	maxNested = 200         // lists and objects in one another, or statements or expressions of a template
	maxTime   = time.Minute // of a rendering
)

// The marks around a generation block of a template, as characters that no text should have.
const MarkStart, MarkEnd = "\U0010FFF0", "\U0010FFF1"

// A LimitError says which limit a template exceeds.
type LimitError struct{ text string }

func (e *LimitError) Error() string { return e.text }

// Template is a parsed template. It may be rendered by several goroutines at the same time.
type Template struct{ body []node }

// Compile parses a template.
func Compile(source string) (t *Template, err error) {
	defer rescue(&err)
	p := &parser{tags: scan(source)}
	body, _ := p.block()
	return &Template{body}, nil
}

// Render returns the text of the template for some variables.
func (t *Template) Render(variables map[string]any) (text string, err error) {
	defer rescue(&err)
	r := &rendering{out: new(strings.Builder), end: time.Now().Add(maxTime)}
	all := &scope{vars: globals()}
	maps.Copy(all.vars, variables)
	r.run(t.body, all.inner())
	return r.out.String(), nil
}

// A rendering is one run of a template.
type rendering struct {
	out           *strings.Builder
	steps, calls  int
	written, made int
	end           time.Time
}

func exceed(format string, args ...any) { panic(failure{&LimitError{fmt.Sprintf(format, args...)}}) }

// step counts steps.
func (r *rendering) step(n int) {
	if r.steps += n; r.steps > maxSteps {
		exceed("takes more than %d steps in loops, macros and ranges", maxSteps)
	}
	if time.Now().After(r.end) {
		exceed("runs for more than %v", maxTime)
	}
}

// charge counts the bytes of a text before it is made.
func (r *rendering) charge(size int) {
	if size > maxText {
		exceed("has a value of more than %d bytes", maxText)
	}
	r.spend(size)
}

// spend counts the bytes of a list before it is made. A list may be larger than a text.
func (r *rendering) spend(size int) {
	if r.made += size; r.made > maxMade {
		exceed("makes values of more than %d bytes", maxMade)
	}
}

// text counts a text that was made.
func (r *rendering) text(s string) string {
	r.charge(len(s))
	return s
}

// write writes text.
func (r *rendering) write(text string) {
	if r.written += len(text); r.written > maxText {
		exceed("writes more than %d bytes", maxText)
	}
	r.out.WriteString(text)
}

// capture returns the text that f writes.
func (r *rendering) capture(f func()) string {
	out, written := r.out, r.written
	r.out = new(strings.Builder)
	f()
	text := r.out.String()
	r.out, r.written = out, written
	r.charge(len(text))
	return text
}

// A scope has the variables of a block.
type scope struct {
	vars   map[string]any
	parent *scope
}

func (s *scope) lookup(name string) any {
	for ; s != nil; s = s.parent {
		if v, ok := s.vars[name]; ok {
			return v
		}
	}
	return undefined(name)
}

func (s *scope) set(name string, v any) {
	if s.vars == nil {
		s.vars = make(map[string]any)
	}
	s.vars[name] = v
}

func (s *scope) inner() *scope { return &scope{parent: s} }
