package fsdp

import (
	"slices"

	"github.com/gofsdp/gofsdp/fsdp/internal/state"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/kernel"
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

// WithInstructionSet has Wrap believe that ranks compute with the sets of these names, by rank, until the
// function that it returns is called.
func WithInstructionSet(names ...string) (restore func()) {
	before := instructionSet
	instructionSet = func(cfg *Config) int { return slices.Index(kernel.InstructionSets, names[cfg.Group.Rank()]) }
	return func() { instructionSet = before }
}
