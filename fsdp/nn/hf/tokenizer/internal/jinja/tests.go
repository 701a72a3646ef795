package jinja

// test returns the result of a test.
func (r *rendering) test(name string, v any, a args) bool {
	operators := map[string]string{
		"eq": "==", "equalto": "==", "==": "==", "ne": "!=", "!=": "!=", "gt": ">", "greaterthan": ">", ">": ">", "ge": ">=", ">=": ">=",
		"lt": "<", "lessthan": "<", "<": "<", "le": "<=", "<=": "<=", "in": "in",
	}
	if op, ok := operators[name]; ok {
		return r.compares(op, v, a.bind("the test "+name, "other")[0])
	}
	if name == "divisibleby" || name == "sameas" {
		other := a.bind("the test "+name, "num")[0]
		if name == "sameas" {
			switch v.(type) {
			case nil, bool, int64, string:
				return v == other
			}
			failf("the test sameas is not supported for %s", describe(v))
		}
		n := integral("the test divisibleby", other)
		if n == 0 {
			failf("division by zero")
		}
		return integral("the test divisibleby", v)%n == 0
	}
	a.bind("the test " + name)
	_, isUndefined := v.(undefined)
	_, isBool := v.(bool)
	_, isInt := v.(int64)
	_, isFloat := v.(float64)
	text, isText := v.(string)
	_, isList := v.(*List)
	_, isDict := v.(*Dict)
	_, isFunction := v.(function)
	switch name {
	case "defined":
		return !isUndefined
	case "undefined":
		return isUndefined
	case "none":
		return v == nil
	case "boolean":
		return isBool
	case "true", "false":
		return v == (name == "true")
	case "integer":
		return isInt
	case "float":
		return isFloat
	case "number":
		return isBool || isInt || isFloat
	case "string":
		return isText
	case "mapping":
		return isDict
	case "sequence", "iterable":
		return isText || isList || isDict || isUndefined
	case "callable":
		return isFunction
	case "odd", "even":
		return integral("the test "+name, v)&1 == int64(one(name == "odd"))
	case "upper":
		return textMethods["isupper"](r, text, a).(bool)
	case "lower":
		return textMethods["islower"](r, text, a).(bool)
	}
	failf("the test %s is not supported", name)
	return false
}
