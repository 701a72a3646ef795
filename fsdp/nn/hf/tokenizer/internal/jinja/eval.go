package jinja

import "fmt"

// An expr is an expression.
type expr interface {
	eval(r *rendering, s *scope) any
}

type (
	valueExpr  struct{ value any }
	nameExpr   string
	memberExpr struct {
		of   expr
		name string
	}
	itemExpr  struct{ of, key expr }
	sliceExpr struct {
		of     expr
		bounds [3]expr
	}
	callExpr struct {
		f    expr
		args arguments
	}
	filterExpr struct {
		value expr
		name  string
		args  arguments
	}
	testExpr struct {
		value expr
		name  string
		args  arguments
	}
	ifExpr    struct{ yes, condition, no expr } // no may be nil
	logicExpr struct {
		or          bool
		left, right expr
	}
	notExpr  struct{ value expr }
	signExpr struct {
		minus bool
		value expr
	}
	binaryExpr struct {
		op          string
		left, right expr
	}
	compareExpr struct {
		first  expr
		ops    []string
		values []expr
	}
	listExpr struct {
		items []expr
		tuple bool
	}
	dictExpr struct{ keys, values []expr }
)

func (e valueExpr) eval(*rendering, *scope) any { return e.value }

func (e nameExpr) eval(_ *rendering, s *scope) any { return s.lookup(string(e)) }

func (e memberExpr) eval(r *rendering, s *scope) any { return r.member(e.of.eval(r, s), e.name) }

func (e itemExpr) eval(r *rendering, s *scope) any { return r.item(e.of.eval(r, s), e.key.eval(r, s)) }

func (e sliceExpr) eval(r *rendering, s *scope) any {
	var bounds [3]any
	for i, b := range e.bounds {
		if b != nil {
			bounds[i] = b.eval(r, s)
		}
	}
	return r.slice(e.of.eval(r, s), bounds)
}

// args are the arguments of a call.
type args struct {
	list  []any
	named map[string]any
	names []string // of named, in order
}

func (a arguments) eval(r *rendering, s *scope) args {
	values, first := args{named: make(map[string]any), names: a.names}, len(a.list)-len(a.names)
	for i, e := range a.list {
		v := e.eval(r, s)
		if i < first {
			values.list = append(values.list, v)
		} else if _, twice := values.named[a.names[i-first]]; twice {
			failf("the argument %s is given twice", a.names[i-first])
		} else {
			values.named[a.names[i-first]] = v
		}
	}
	return values
}

// A function is a value that can be called.
type function func(r *rendering, a args) any

func (e *callExpr) eval(r *rendering, s *scope) any {
	f := e.f.eval(r, s)
	return call(r, f, e.args.eval(r, s))
}

func call(r *rendering, f any, a args) any {
	if f, ok := f.(function); ok {
		return f(r, a)
	}
	failf("%s cannot be called", describe(f))
	return nil
}

func (e *filterExpr) eval(r *rendering, s *scope) any {
	return r.filter(e.name, e.value.eval(r, s), e.args.eval(r, s))
}

func (e *testExpr) eval(r *rendering, s *scope) any {
	return r.test(e.name, e.value.eval(r, s), e.args.eval(r, s))
}

func (e *ifExpr) eval(r *rendering, s *scope) any {
	switch {
	case truth(e.condition.eval(r, s)):
		return e.yes.eval(r, s)
	case e.no == nil:
		return undefined("the value of an if without else")
	}
	return e.no.eval(r, s)
}

func (e logicExpr) eval(r *rendering, s *scope) any {
	if v := e.left.eval(r, s); truth(v) == e.or {
		return v
	}
	return e.right.eval(r, s)
}

func (e notExpr) eval(r *rendering, s *scope) any { return !truth(e.value.eval(r, s)) }

func (e signExpr) eval(r *rendering, s *scope) any {
	switch v := integer(e.value.eval(r, s)).(type) {
	case int64:
		if e.minus {
			return -v
		}
		return v
	case float64:
		if e.minus {
			return -v
		}
		return v
	default:
		failf("%s has no sign", describe(v))
		return nil
	}
}

func (e binaryExpr) eval(r *rendering, s *scope) any {
	left := e.left.eval(r, s)
	return r.binary(e.op, left, e.right.eval(r, s))
}

func (e compareExpr) eval(r *rendering, s *scope) any {
	left := e.first.eval(r, s)
	for i, op := range e.ops {
		right := e.values[i].eval(r, s)
		if !r.compares(op, left, right) {
			return false
		}
		left = right
	}
	return true
}

func (e listExpr) eval(r *rendering, s *scope) any {
	r.spend(16 * len(e.items))
	l := &List{Tuple: e.tuple}
	for _, item := range e.items {
		l.Items = append(l.Items, item.eval(r, s))
	}
	return l
}

func (e dictExpr) eval(r *rendering, s *scope) any {
	r.spend(32 * len(e.keys))
	d := new(Dict)
	for i, key := range e.keys {
		d.Set(key.eval(r, s), e.values[i].eval(r, s))
	}
	return d
}

// describe names a value in errors.
func describe(v any) string {
	switch v := v.(type) {
	case undefined:
		return fmt.Sprintf("%s, which is undefined,", string(v))
	case function:
		return "a function"
	case *List:
		return "a list"
	case *Dict, *namespace:
		return "an object"
	case string:
		return fmt.Sprintf("the text %.40q", v)
	case nil:
		return "none"
	}
	return fmt.Sprint(v)
}
