package jinja

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// failure is the panic of an error in a template. Compile and Render return it.
type failure struct{ error }

// failf ends Compile or Render with an error.
func failf(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

// rescue returns the error of failf.
func rescue(err *error) {
	switch r := recover().(type) {
	case nil:
	case failure:
		*err = r.error
	default:
		panic(r)
	}
}

// number returns the value of digits.
func number(digits string, base int) int64 {
	n, err := strconv.ParseInt(strings.ReplaceAll(digits, "_", ""), base, 64)
	if err != nil {
		failf("the number %s: %w", digits, err)
	}
	return n
}

// A parser makes nodes of tags.
type parser struct {
	tags   []tag
	tokens []token // the rest of the current tag
	depth  int     // of expressions and statements
	loops  int     // around the current statement, within its macro or captured block
}

// peek reports whether the next token is an operator or a name.
func (p *parser) peek(text string) bool {
	return len(p.tokens) > 0 && p.tokens[0].text == text && (p.tokens[0].kind == 'o' || p.tokens[0].kind == 'n')
}

// take skips the next token if it is an operator or a name.
func (p *parser) take(text string) bool {
	if !p.peek(text) {
		return false
	}
	p.tokens = p.tokens[1:]
	return true
}

func (p *parser) want(text string) {
	if !p.take(text) {
		failf("%s: want %q", p.rest(), text)
	}
}

// next returns the next token.
func (p *parser) next() token {
	if len(p.tokens) == 0 {
		return token{}
	}
	t := p.tokens[0]
	p.tokens = p.tokens[1:]
	return t
}

func (p *parser) name() string {
	at := p.rest()
	t := p.next()
	if t.kind != 'n' {
		failf("%s: want a name", at)
	}
	return t.text
}

// rest describes the place of an error.
func (p *parser) rest() string {
	if len(p.tokens) == 0 {
		return "at the end of a tag"
	}
	return fmt.Sprintf("at %q", p.tokens[0].text)
}

// end ends a tag.
func (p *parser) end() {
	if len(p.tokens) > 0 {
		failf("%s: want the end of the tag", p.rest())
	}
}

// enter begins a statement or an expression within another one.
func (p *parser) enter() {
	if p.depth++; p.depth > maxNested {
		failf("more than %d statements and expressions in one another", maxNested)
	}
}

func (p *parser) leave() { p.depth-- }

// block parses up to the statement with one of some names, and returns the name.
func (p *parser) block(ends ...string) (list []node, end string) {
	p.enter()
	defer p.leave()
	for len(p.tags) > 0 {
		t := p.tags[0]
		p.tags = p.tags[1:]
		if t.kind == 0 {
			list = append(list, textNode(t.code))
			continue
		}
		p.tokens = lex(t.code)
		if t.kind == '{' {
			list = append(list, writeNode{p.tuple(true)})
			p.end()
			continue
		}
		name := p.name()
		if slices.Contains(ends, name) {
			return list, name
		}
		list = append(list, p.statement(name))
	}
	if len(ends) > 0 {
		failf("{%% %s %%} is missing", ends[len(ends)-1])
	}
	return list, ""
}

// body parses the rest of a statement with an end.
func (p *parser) body(end string) []node {
	p.end()
	list, _ := p.block(end)
	p.end()
	return list
}

// captured is body for a block whose text is a value.
func (p *parser) captured(end string) []node {
	loops := p.loops
	p.loops = 0
	list := p.body(end)
	p.loops = loops
	return list
}

func (p *parser) statement(name string) node {
	switch name {
	case "if":
		return p.condition()
	case "for":
		n := &forNode{target: p.target()}
		p.want("in")
		if n.items = p.tuple(false); p.take("if") {
			n.condition = p.expression()
		}
		if p.peek("recursive") {
			failf("{%% for … recursive %%} is not supported")
		}
		p.end()
		p.loops++
		body, end := p.block("else", "endfor")
		p.loops--
		if n.body = body; end == "else" {
			p.end()
			n.otherwise, _ = p.block("endfor")
		}
		p.end()
		return n
	case "set":
		target := p.target()
		if p.take("=") {
			n := setNode{target, p.tuple(true)}
			p.end()
			return n
		}
		var filters expr = written{}
		for p.peek("|") {
			filters = p.filter(filters)
		}
		return setBlockNode{target, filters, p.captured("endset")}
	case "macro":
		n := &macroNode{name: p.name()}
		n.params = p.params()
		n.body = p.captured("endmacro")
		return n
	case "call":
		n := &macroNode{name: "caller"}
		if p.peek("(") {
			n.params = p.params()
		}
		call, ok := p.expression().(*callExpr)
		if !ok {
			failf("{%% call %%} calls no macro")
		}
		n.body = p.captured("endcall")
		return callNode{n, call}
	case "filter":
		filters := p.filterNamed(written{})
		for p.peek("|") {
			filters = p.filter(filters)
		}
		return filterNode{filters, p.captured("endfilter")}
	case "with":
		n := &withNode{}
		for len(p.tokens) > 0 {
			target := p.target1()
			p.want("=")
			n.sets = append(n.sets, setNode{target, p.expression()})
			if !p.take(",") {
				break
			}
		}
		n.body = p.body("endwith")
		return n
	case "generation":
		return generationNode(p.body("endgeneration"))
	case "break", "continue":
		if p.end(); p.loops == 0 {
			failf("{%% %s %%} is in no loop", name)
		}
		return jumpNode(name)
	}
	failf("the statement %s is not supported", name)
	return nil
}

func (p *parser) condition() node {
	n, word := &ifNode{}, "if"
	for word != "endif" {
		var b branch
		ends := []string{"elif", "else", "endif"}
		if word == "else" {
			ends = ends[2:]
		} else {
			b.condition = p.tuple(true)
		}
		p.end()
		b.body, word = p.block(ends...)
		n.branches = append(n.branches, b)
	}
	p.end()
	return n
}

// A target gets the value of a statement: a variable, a member of a namespace, or several targets.
type target struct {
	name, member string
	list         []target
}

func (p *parser) target() target {
	t := p.target1()
	if !p.peek(",") {
		return t
	}
	list := []target{t}
	for p.take(",") {
		if p.peek("in") || p.peek("=") || p.peek(")") {
			break
		}
		list = append(list, p.target1())
	}
	return target{list: list}
}

func (p *parser) target1() (t target) {
	if p.take("(") {
		t = p.target()
		p.want(")")
		return t
	}
	if t.name = p.name(); p.take(".") {
		t.member = p.name()
	}
	return t
}

// params parses the parameters of a macro.
func (p *parser) params() (list []param) {
	p.want("(")
	for !p.take(")") {
		if len(list) > 0 {
			p.want(",")
		}
		one := param{name: p.name()}
		if p.take("=") {
			one.value = p.expression()
		}
		list = append(list, one)
	}
	return list
}
