package jinja

import (
	"slices"
	"strconv"
	"strings"
)

// tuple parses expressions with commas between them. Without conditional, "if" is no part of them.
func (p *parser) tuple(conditional bool) expr {
	one := p.or
	if conditional {
		one = p.expression
	}
	first := one()
	if !p.peek(",") {
		return first
	}
	list := []expr{first}
	for p.take(",") {
		if len(p.tokens) == 0 || p.peek(")") || p.peek("if") {
			break
		}
		list = append(list, one())
	}
	return listExpr{list, true}
}

// expression parses an expression, with "a if b else c".
func (p *parser) expression() expr {
	p.enter()
	defer p.leave()
	e := p.or()
	for p.take("if") {
		n := &ifExpr{yes: e, condition: p.or()}
		if p.take("else") {
			n.no = p.expression()
		}
		e = n
	}
	return e
}

func (p *parser) or() expr {
	e := p.and()
	for p.take("or") {
		e = logicExpr{true, e, p.and()}
	}
	return e
}

func (p *parser) and() expr {
	e := p.not()
	for p.take("and") {
		e = logicExpr{false, e, p.not()}
	}
	return e
}

func (p *parser) not() expr {
	n := 0
	for p.take("not") {
		n++
	}
	e := p.comparison()
	for range n {
		e = notExpr{e}
	}
	return e
}

func (p *parser) comparison() expr {
	first := p.sum()
	n := compareExpr{first: first}
	for {
		op := ""
		for _, o := range []string{"==", "!=", "<=", ">=", "<", ">", "in"} {
			if p.take(o) {
				op = o
				break
			}
		}
		if op == "" && p.peek("not") && len(p.tokens) > 1 && p.tokens[1] == (token{'n', "in"}) {
			p.tokens, op = p.tokens[2:], "not in"
		}
		if op == "" {
			break
		}
		n.ops, n.values = append(n.ops, op), append(n.values, p.sum())
	}
	if n.ops == nil {
		return first
	}
	return n
}

// binary parses a chain of operators, the first of which comes first.
func (p *parser) binary(operand func() expr, operators ...string) expr {
	e := operand()
again:
	for _, op := range operators {
		if p.take(op) {
			e = binaryExpr{op, e, operand()}
			goto again
		}
	}
	return e
}

func (p *parser) sum() expr     { return p.binary(p.concat, "+", "-") }
func (p *parser) concat() expr  { return p.binary(p.product, "~") }
func (p *parser) product() expr { return p.binary(p.power, "*", "//", "/", "%") }
func (p *parser) power() expr   { return p.binary(func() expr { return p.unary(true) }, "**") }

// unary parses an operand, with its filters and tests or without.
func (p *parser) unary(filters bool) expr {
	p.enter()
	defer p.leave()
	var e expr
	switch {
	case p.take("-"):
		e = signExpr{true, p.unary(false)}
	case p.take("+"):
		e = signExpr{false, p.unary(false)}
	default:
		e = p.primary()
	}
	for e = p.postfix(e); filters; {
		switch {
		case p.peek("|"):
			e = p.filter(e)
		case p.take("is"):
			e = p.test(e)
		case p.peek("("):
			e = p.call(e)
		default:
			return e
		}
	}
	return e
}

func (p *parser) filter(e expr) expr {
	p.want("|")
	return p.filterNamed(e)
}

func (p *parser) filterNamed(e expr) expr {
	n := &filterExpr{value: e, name: p.name()}
	if p.take("(") {
		n.args = p.arguments()
	}
	return n
}

func (p *parser) test(e expr) expr {
	negated := p.take("not")
	n := &testExpr{value: e, name: p.name()}
	if p.take("(") {
		n.args = p.arguments()
	} else if len(p.tokens) > 0 {
		t := p.tokens[0]
		named := t.kind == 'n' && !slices.Contains([]string{"else", "or", "and", "is", "if", "in", "not"}, t.text)
		if named || t.kind == 's' || t.kind == 'i' || t.kind == 'f' || p.peek("[") || p.peek("{") {
			n.args = arguments{list: []expr{p.postfix(p.primary())}}
		}
	}
	if negated {
		return notExpr{n}
	}
	return n
}

func (p *parser) postfix(e expr) expr {
	for {
		switch {
		case p.take("."):
			t := p.next()
			if t.kind == 'i' {
				e = itemExpr{e, valueExpr{number(t.text, 10)}}
			} else if t.kind == 'n' {
				e = memberExpr{e, t.text}
			} else {
				failf("a name is missing after %q", ".")
			}
		case p.take("["):
			e = p.subscript(e)
		case p.peek("("):
			e = p.call(e)
		default:
			return e
		}
	}
}

func (p *parser) subscript(e expr) expr {
	var bounds [3]expr
	n := 0
	for !p.peek("]") {
		if p.take(":") {
			if n++; n > 2 {
				failf("a slice has more than two colons")
			}
			continue
		}
		if bounds[n] != nil {
			failf("%s: want %q", p.rest(), "]")
		}
		bounds[n] = p.expression()
	}
	p.want("]")
	if n == 0 {
		if bounds[0] == nil {
			failf("an index is missing")
		}
		return itemExpr{e, bounds[0]}
	}
	return sliceExpr{e, bounds}
}

// arguments are expressions for a call.
type arguments struct {
	list  []expr
	names []string // of the last ones
}

func (p *parser) call(e expr) expr {
	p.want("(")
	return &callExpr{e, p.arguments()}
}

func (p *parser) arguments() (a arguments) {
	for !p.take(")") {
		if len(a.list) > 0 {
			if p.want(","); p.take(")") {
				break
			}
		}
		if len(p.tokens) > 1 && p.tokens[0].kind == 'n' && p.tokens[1] == (token{'o', "="}) {
			a.names = append(a.names, p.name())
			p.want("=")
		} else if a.names != nil {
			failf("an argument without a name follows one with a name")
		}
		a.list = append(a.list, p.expression())
	}
	return a
}

func (p *parser) primary() expr {
	at := p.rest()
	t := p.next()
	switch t.kind {
	case 'n':
		switch t.text {
		case "true", "True":
			return valueExpr{true}
		case "false", "False":
			return valueExpr{false}
		case "none", "None":
			return valueExpr{nil}
		}
		return nameExpr(t.text)
	case 's':
		text := t.text
		for len(p.tokens) > 0 && p.tokens[0].kind == 's' {
			text += p.next().text
		}
		return valueExpr{text}
	case 'i':
		return valueExpr{number(t.text, 10)}
	case 'f':
		f, err := strconv.ParseFloat(strings.ReplaceAll(t.text, "_", ""), 64)
		if err != nil {
			failf("the number %s: %w", t.text, err)
		}
		return valueExpr{f}
	}
	switch t.text {
	case "(":
		if p.take(")") {
			return listExpr{nil, true}
		}
		e := p.tuple(true)
		p.want(")")
		return e
	case "[":
		return listExpr{p.items("]"), false}
	case "{":
		var d dictExpr
		for !p.take("}") {
			if len(d.keys) > 0 {
				if p.want(","); p.take("}") {
					break
				}
			}
			d.keys = append(d.keys, p.expression())
			p.want(":")
			d.values = append(d.values, p.expression())
		}
		return d
	}
	failf("%s: want a value", at)
	return nil
}

func (p *parser) items(end string) (list []expr) {
	for !p.take(end) {
		if len(list) > 0 {
			if p.want(","); p.take(end) {
				break
			}
		}
		list = append(list, p.expression())
	}
	return list
}
