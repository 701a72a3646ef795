package fsdp

import (
	"github.com/gofsdp/gofsdp/fsdp/internal/state"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
)

// OnFS has Save and Load use another file system than the system's.
func OnFS(fsys checkpoint.FS) StateOption { return func(o *state.Options) { o.FS = fsys } }
