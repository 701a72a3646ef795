package fsdp

import (
	"slices"

	"github.com/gofsdp/gofsdp/fsdp/internal/state"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/kernel"
)

// OnFS has Save and Load use another file system than the system's.
func OnFS(fsys checkpoint.FS) StateOption { return func(o *state.Options) { o.FS = fsys } }

// WithLimits has Wrap believe that these bound the memory of a rank, until the function that it returns is
// called.
func WithLimits(f func(rank int) []arena.Limit) (restore func()) {
	before := limits
	limits = func(cfg *Config, _ int) []arena.Limit { return f(cfg.Group.Rank()) }
	return func() { limits = before }
}

// WithInstructionSet has Wrap believe that ranks compute with the sets of these names, by rank, until the
// function that it returns is called.
func WithInstructionSet(names ...string) (restore func()) {
	before := instructionSet
	instructionSet = func(cfg *Config) int { return slices.Index(kernel.InstructionSets, names[cfg.Group.Rank()]) }
	return func() { instructionSet = before }
}
