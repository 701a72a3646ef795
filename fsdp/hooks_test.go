package fsdp

import (
	"slices"

	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/kernel"
)

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

// Native has models believe that the processor multiplies bfloat16, or that it does not, until
// restore.
func Native(native bool) (restore func()) {
	before := nativeBFloat16
	nativeBFloat16 = func() bool { return native }
	return func() { nativeBFloat16 = before }
}

// LatestOnFS is LatestCheckpoint on a file system.
func LatestOnFS(fsys checkpoint.FS, dir string) (string, error) { return latest(fsys, dir) }
