package main

import (
	"fmt"
	"strings"
)

// An arg is a parameter, or a field of a struct parameter.
type arg struct {
	name, kind string
	offset     int
}

// structs are the fields of the parameters that are structs of T.
var structs = map[string][]string{
	"adamStep": {"decay", "l2", "gradScale", "beta1", "rest1", "beta2", "rest2", "rate", "inverse", "eps"},
	"sgdStep":  {"rate", "momentum", "l2", "gradScale"},
}

// args lays out the parameters as Go does.
func (f *function) args() []arg {
	var list []arg
	offset := 0
	add := func(name, kind string) {
		size := f.size(kind)
		offset = align(offset, min(size, 8))
		list = append(list, arg{name, kind, offset})
		offset += size
	}
	var names []string
	for _, p := range strings.Split(f.params, ", ") {
		name, kind, typed := strings.Cut(p, " ")
		names = append(names, name)
		if !typed {
			continue
		}
		for _, name := range names {
			if fields := structs[kind]; fields != nil {
				for _, field := range fields {
					add(name+"_"+field, "T")
				}
			} else {
				add(name, kind)
			}
		}
		names = nil
	}
	return list
}

// isSlice reports whether the parameter is a slice of elements.
func (a arg) isSlice() bool { return a.kind == "[]T" || a.kind == "[]L" }

// param returns a parameter.
func (f *function) param(name string) arg {
	for _, a := range f.args() {
		if a.name == name {
			return a
		}
	}
	panic(name)
}

// String returns the operand for a parameter. For a slice it is the pointer.
func (a arg) String() string {
	if strings.HasPrefix(a.kind, "[]") {
		return fmt.Sprintf("%s_base+%d(FP)", a.name, a.offset)
	}
	return fmt.Sprintf("%s+%d(FP)", a.name, a.offset)
}

// end returns the offset behind the last parameter.
func (f *function) end() int {
	args := f.args()
	last := args[len(args)-1]
	return last.offset + f.size(last.kind)
}

// size returns the size of a parameter in bytes.
func (f *function) size(kind string) int {
	return map[string]int{"T": f.bits / 8, "uint32": 4, "float64": 8, "int": 8, "[]T": 24, "[]L": 24, "[]byte": 24, "[][]T": 24}[kind]
}

// results returns the offset of the first result.
func (f *function) results() int { return align(f.end(), 8) }

// frame returns the size of parameters and results. A result is one T, or one or two float64.
func (f *function) frame() int {
	switch f.result {
	case "":
		return f.end()
	case "T":
		return f.results() + f.bits/8
	case "float64":
		return f.results() + 8
	}
	return f.results() + 16
}

func align(n, to int) int { return (n + to - 1) / to * to }
