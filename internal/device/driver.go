//go:build linux && cgo

package device

/*
#cgo CFLAGS: -O2 -Wall -Wextra
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "driver.h"

// None of these calls back into Go, and none keeps an address of Go memory.
#cgo nocallback driver_open
#cgo nocallback driver_init
#cgo nocallback driver_count
#cgo nocallback driver_version
#cgo nocallback driver_describe
#cgo noescape driver_open
#cgo noescape driver_count
#cgo noescape driver_version
#cgo noescape driver_describe
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// builtIn reports whether this build can load libraries at all.
const builtIn = true

var driver = Library{
	What: "the CUDA driver", Names: []string{"libcuda.so.1"}, Variable: EnvCUDA,
	Hint: "it comes with the NVIDIA driver, and " + EnvCUDA + " may name its file",
	Open: load,
}

// textBytes is the size of the buffer for messages of the loader or the driver.
const textBytes = 512

// Load loads the CUDA driver, see [Library.Load]. Only callers with a path need it.
func Load(path string) error { return driver.Load(path) }

// load loads a library and initializes it.
func load(path string) (why string, err error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var text [textBytes]C.char
	if C.driver_open(name, &text[0], textBytes) != 0 {
		return C.GoString(&text[0]), nil
	}
	if err := result("cuInit", C.driver_init()); err != nil { // no device, or a kernel module of another version
		return "", fmt.Errorf("the CUDA driver %s is %w: %w", path, ErrUnavailable, err)
	}
	return "", nil
}

// result converts the result of the driver's function op to an error.
func result(op string, r C.driver_result) error {
	if r == 0 {
		return nil
	}
	if r < 0 {
		op, r = "cuCtxSetCurrent", -r
	}
	var text [textBytes]C.char
	C.driver_describe(r, &text[0], textBytes)
	return &Error{Op: op, Code: int(r), Text: C.GoString(&text[0])}
}

// Symbol returns the address of a function of the driver, by its name with version, or 0 if there
// is none. It is for other libraries that must set a context in their own C calls.
func Symbol(name string) uintptr {
	if Load("") != nil {
		return 0
	}
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	return uintptr(C.driver_symbol(s))
}

// Version returns the CUDA version of the driver: 13000 for 13.0.
func Version() (int, error) {
	if err := Load(""); err != nil {
		return 0, err
	}
	var v C.int
	if err := result("cuDriverGetVersion", C.driver_version(&v)); err != nil {
		return 0, err
	}
	return int(v), nil
}

// Count returns the number of devices.
func Count() (int, error) {
	if err := Load(""); err != nil {
		return 0, err
	}
	var n C.int
	if err := result("cuDeviceGetCount", C.driver_count(&n)); err != nil {
		return 0, err
	}
	return int(n), nil
}
