// Package caught converts panics in the user's code to errors: one line with the place, without a
// stack.
package caught

import (
	"fmt"
	"runtime"
	"strings"
)

// Panic, when deferred, converts a panic to an error with the failed function, the line and the
// value of the panic. If the value is an error, it is wrapped.
func Panic(err *error, what string) {
	switch r := recover().(type) {
	case nil:
	case error:
		*err = fmt.Errorf("%s panicked at %s: %w", what, site(), r)
	default:
		*err = fmt.Errorf("%s panicked at %s: %v", what, site(), r)
	}
}

// site returns the line of the user's own code that the recovered panic passed through: the
// innermost line outside of Go, of Gorgonia, and of the functions of this library that users call
// and that call them. If there is none, it is the innermost line outside of Go.
func site() string {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	first, goroot, panicking := "an unknown line", "", false
	for {
		f, more := frames.Next()
		line := fmt.Sprintf("%s:%d", f.File, f.Line)
		switch {
		case f.Function == "runtime.gopanic":
			goroot, panicking = strings.TrimSuffix(f.File, "runtime/panic.go"), true
		case !panicking, strings.HasPrefix(f.Function, "runtime."), goroot != "" && strings.HasPrefix(f.File, goroot):
		case !isLibrary(f.Function):
			return line
		case first == "an unknown line":
			first = line
		}
		if !more {
			return first
		}
	}
}

func isLibrary(function string) bool {
	if strings.HasPrefix(function, "gorgonia.org/") {
		return true
	}
	own, ok := strings.CutPrefix(function, "github.com/gofsdp/gofsdp/")
	if strings.HasPrefix(own, "fsdp/internal/accept/") { // tests: users
		return false
	}
	for _, prefix := range [...]string{"fsdp.", "fsdp/data.", "fsdp/graph.", "fsdp/internal/", "fsdp/op.", "internal/caught.", "internal/exec.", "internal/ops."} {
		if ok && strings.HasPrefix(own, prefix) {
			return true
		}
	}
	return false
}
