package caught

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPanic names the line of whoever called Go's library, wraps errors, and leaves other errors
// alone. Panics that come through this library are tested where it calls its users.
func TestPanic(t *testing.T) {
	lost := errors.New("lost")
	call := func(f func()) (err error) {
		err = lost
		defer Panic(&err, "f")
		f()
		return err
	}
	require.Equal(t, lost, call(func() {}))
	for with, f := range map[string]func(){
		"here":                   func() { panic("here") },
		"lost":                   func() { panic(lost) },
		"cannot be negative":     func() { _ = slices.Grow([]int{}, -1) },
		"integer divide by zero": func() { _ = 1 / len(t.Name()[:0]) },
	} {
		err := call(f)
		_, file, line, _ := runtime.Caller(0)
		require.Regexp(t, fmt.Sprintf(`^f panicked at %s:\d+: .*%s$`, file, with), err.Error())
		require.NotContains(t, err.Error(), fmt.Sprint(":", line-1))
		require.Equal(t, with == "lost", errors.Is(err, lost))
	}
}
