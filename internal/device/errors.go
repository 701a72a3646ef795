package device

import (
	"errors"
	"fmt"
	"strings"
)

// EnvCUDA names the variable that holds the path of the CUDA driver to load instead of the
// system's libcuda.so.1.
const EnvCUDA = "FSDP_CUDA_LIBRARY"

// ErrUnavailable is matched by every error for a library or device that this machine does not have.
var ErrUnavailable = errors.New("not available on this machine")

// ErrClosed is matched by the errors of calls on objects that were freed or closed before.
var ErrClosed = errors.New("closed already")

// LoadError lists the places where a library was searched. It matches [ErrUnavailable].
type LoadError struct {
	What  string   // "the CUDA driver"
	Tried []string // a name and the loader's answer: "libcuda.so.1: cannot open shared object file"
	Hint  string   // what to install or set
}

func (e *LoadError) Error() string {
	text := fmt.Sprintf("%s is %v", e.What, ErrUnavailable)
	if len(e.Tried) > 0 {
		text += " (" + strings.Join(e.Tried, ", ") + ")"
	}
	if e.Hint != "" {
		text += ": " + e.Hint
	}
	return text
}

func (e *LoadError) Unwrap() error { return ErrUnavailable }

// Error is a CUresult other than CUDA_SUCCESS.
type Error struct {
	Op   string // the function of the driver, without its version: "cuMemAlloc"
	Code int    // the CUresult
	Text string // the driver's name and description of it
}

// Fault reports whether the device has failed because of an earlier operation in a stream. The call
// that returned the error did not cause it.
func (e *Error) Fault() bool {
	const uncorrectable, nvlink, illegalAddress, timeout, assert, stack, launchFailed = 214, 220, 700, 702, 710, 714, 719
	switch e.Code {
	case uncorrectable, nvlink, illegalAddress, timeout, assert:
		return true
	}
	return e.Code >= stack && e.Code <= launchFailed
}

// OutOfMemory reports whether an allocation has failed because too little memory is free.
func (e *Error) OutOfMemory() bool { return e.Code == 2 }

func (e *Error) Error() string { return fmt.Sprintf("%s: %s (CUresult %d)", e.Op, e.Text, e.Code) }
