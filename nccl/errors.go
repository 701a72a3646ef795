package nccl

import (
	"errors"
	"fmt"

	"github.com/gofsdp/gofsdp/internal/device"
)

// ErrUnavailable is matched by every error that means that there is no NCCL, no CUDA
// driver or no device on this machine.
var ErrUnavailable = device.ErrUnavailable

// LoadError contains the names under which a library was searched for, and why none was
// loaded.
type LoadError = device.LoadError

// ErrClosed is matched by the errors of calls on a communicator that was destroyed
// or aborted.
var ErrClosed = errors.New("the communicator is closed")

// Result is ncclResult_t. It is an error, so that errors.Is(err, nccl.RemoteError) tests
// for a result of NCCL.
type Result int32

// The results of NCCL.
const (
	Success Result = iota
	UnhandledCUDAError
	SystemError
	InternalError
	InvalidArgument
	InvalidUsage
	RemoteError
	InProgress
	Timeout
)

var results = [...]string{
	"success", "unhandled CUDA error", "system error", "internal error", "invalid argument", "invalid usage",
	"remote error", "in progress", "timeout",
}

// String returns the result in words.
func (r Result) String() string {
	if r < 0 || int(r) >= len(results) {
		return fmt.Sprintf("Result(%d)", int32(r))
	}
	return results[r]
}

func (r Result) Error() string { return "nccl: " + r.String() }

// Error is a call that NCCL has refused, or that has failed.
type Error struct {
	Call   string // NCCL's function
	Name   string // of the communicator
	Rank   int    // of this rank in it
	Size   int    // its number of ranks, 0 if the call is not about a communicator
	Result Result
	Detail string // NCCL's own text; NCCL keeps one text for the whole process
}

func (e *Error) Error() string {
	text := "nccl: "
	if e.Size > 0 {
		text += fmt.Sprintf("rank %d of %d", e.Rank, e.Size)
		if e.Name != "" {
			text += fmt.Sprintf(" of %q", e.Name)
		}
		text += ": "
	}
	text += e.Call + ": " + e.Result.String()
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	return text
}

func (e *Error) Unwrap() error { return e.Result }

// fatal reports whether the communicator is unusable. NCCL promises that a wrong argument
// has no effect.
func (e *Error) fatal() bool { return e.Result != InvalidArgument }
