package fsdp

import (
	"github.com/gofsdp/gofsdp/fsdp/internal/state"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
)

// OnFS has Save and Load use another file system than the system's.
func OnFS(fsys checkpoint.FS) StateOption { return func(o *state.Options) { o.FS = fsys } }

// WithMemory has Wrap believe that so many bytes of memory are left, until the function that it returns is
// called.
func WithMemory(bytes int, limit string) (restore func()) {
	before := available
	available = func() (int, string) { return bytes, limit }
	return func() { available = before }
}
