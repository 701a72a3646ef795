package jinja

// A node is a part of a template. Its run returns "break" or "continue" if that ends the round of a
// loop.
type node interface {
	run(r *rendering, s *scope) (jump string)
}

type (
	textNode       string
	writeNode      struct{ value expr }
	jumpNode       string
	generationNode []node
	ifNode         struct{ branches []branch }
	branch         struct {
		condition expr // nil for else
		body      []node
	}
	forNode struct {
		target           target
		items, condition expr // condition may be nil
		body, otherwise  []node
	}
	setNode struct {
		target target
		value  expr
	}
	setBlockNode struct {
		target  target
		filters expr
		body    []node
	}
	filterNode struct {
		filters expr
		body    []node
	}
	withNode struct {
		sets []setNode
		body []node
	}
	macroNode struct {
		name   string
		params []param
		body   []node
	}
	param struct {
		name  string
		value expr // or nil
	}
	callNode struct {
		caller *macroNode
		call   *callExpr
	}
)

// run runs nodes up to a jump.
func (r *rendering) run(list []node, s *scope) (jump string) {
	for _, n := range list {
		if jump := n.run(r, s); jump != "" {
			return jump
		}
	}
	return ""
}

func (n textNode) run(r *rendering, _ *scope) string { r.write(string(n)); return "" }

func (n writeNode) run(r *rendering, s *scope) string { r.write(r.str(n.value.eval(r, s))); return "" }

func (n jumpNode) run(*rendering, *scope) string { return string(n) }

func (n generationNode) run(r *rendering, s *scope) string {
	r.write(MarkStart)
	jump := r.run(n, s)
	r.write(MarkEnd)
	return jump
}

func (n *ifNode) run(r *rendering, s *scope) string {
	for _, b := range n.branches {
		if b.condition == nil || truth(b.condition.eval(r, s)) {
			return r.run(b.body, s)
		}
	}
	return ""
}

func (n *forNode) run(r *rendering, s *scope) string {
	var items []any
	for _, item := range r.items(n.items.eval(r, s)) {
		if n.condition != nil {
			r.step(1)
			in := s.inner()
			r.assign(in, n.target, item)
			if !truth(n.condition.eval(r, in)) {
				continue
			}
		}
		items = append(items, item)
	}
	l := &loop{items: items}
	for l.at = range items {
		r.step(1)
		in := s.inner()
		in.set("loop", l)
		r.assign(in, n.target, items[l.at])
		if r.run(n.body, in) == "break" {
			break
		}
	}
	if len(items) == 0 {
		return r.run(n.otherwise, s.inner())
	}
	return ""
}

// assign gives a target a value.
func (r *rendering) assign(s *scope, t target, v any) {
	switch {
	case t.list != nil:
		items := r.items(v)
		if len(items) != len(t.list) {
			failf("%d values for %d variables", len(items), len(t.list))
		}
		for i, one := range t.list {
			r.assign(s, one, items[i])
		}
	case t.member != "":
		n, ok := s.lookup(t.name).(*namespace)
		if !ok {
			failf("%s is no namespace: only members of a namespace can be set", t.name)
		}
		n.set(t.member, v)
	default:
		s.set(t.name, v)
	}
}

func (n setNode) run(r *rendering, s *scope) string {
	r.assign(s, n.target, n.value.eval(r, s))
	return ""
}

// filtered returns the text of nodes after filters.
func (r *rendering) filtered(body []node, filters expr, s *scope) any {
	in := s.inner()
	text := r.capture(func() { r.run(body, in) })
	in = s.inner()
	in.set("", text)
	return filters.eval(r, in)
}

// written is the text of a block, which its filters change.
type written struct{}

func (written) eval(_ *rendering, s *scope) any { return s.lookup("") }

func (n setBlockNode) run(r *rendering, s *scope) string {
	r.assign(s, n.target, r.filtered(n.body, n.filters, s))
	return ""
}

func (n filterNode) run(r *rendering, s *scope) string {
	r.write(r.str(r.filtered(n.body, n.filters, s)))
	return ""
}

func (n *withNode) run(r *rendering, s *scope) string {
	in := s.inner()
	for _, set := range n.sets {
		r.assign(in, set.target, set.value.eval(r, s))
	}
	return r.run(n.body, in)
}

func (n *macroNode) run(_ *rendering, s *scope) string {
	s.set(n.name, n.function(s))
	return ""
}

func (n callNode) run(r *rendering, s *scope) string {
	f := n.call.f.eval(r, s)
	args := n.call.args.eval(r, s)
	args.named["caller"] = n.caller.function(s)
	r.write(r.str(call(r, f, args)))
	return ""
}

// function returns the macro as a value.
func (n *macroNode) function(outer *scope) function {
	return func(r *rendering, a args) any {
		r.step(1)
		if r.calls++; r.calls > maxCalls {
			exceed("has more than %d macros that call one another", maxCalls)
		}
		s := outer.inner()
		if caller, ok := a.named["caller"]; ok {
			s.set("caller", caller)
			delete(a.named, "caller")
		}
		if len(a.list) > len(n.params) {
			failf("macro %s has %d parameters, and the call %d arguments", n.name, len(n.params), len(a.list))
		}
		for i, p := range n.params {
			v, named := a.named[p.name]
			delete(a.named, p.name)
			switch {
			case i < len(a.list):
				v = a.list[i]
			case named:
			case p.value != nil:
				v = p.value.eval(r, s)
			default:
				v = undefined(p.name)
			}
			s.set(p.name, v)
		}
		for name := range a.named {
			failf("macro %s has no parameter %s", n.name, name)
		}
		text := r.capture(func() { r.run(n.body, s) })
		r.calls--
		return text
	}
}
