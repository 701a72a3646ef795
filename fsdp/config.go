package fsdp

import (
	"fmt"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
)

// Config configures Wrap. The zero value shards fully (ZeRO-3) over one rank, in one group, in float32, with one group
// gathered ahead. Every rank must use the same values, except for Group, Poison and Trace; Wrap checks that.
type Config struct {
	// Group is the process group to shard over; nil means one rank. Its collectives must not be used by others while a
	// method of Sharded runs. If it is a [comm.Allocator], parameters and gradients live in its memory. Sharded does not
	// close it: keep it open until [Sharded.Close].
	Group comm.Group
	// Wrap groups the parameters into units; nil puts all of them into the root group.
	Wrap Policy
	// Precision of parameters, gradients and computation.
	Precision Precision
	// Prefetch is the number of groups gathered ahead of the one that computes: 0 means 1, NoPrefetch none.
	Prefetch int
	// Checkpoint selects calls that keep only their inputs for backward and compute the rest again (activation
	// checkpointing): least memory, a third more computation. Nil selects none.
	Checkpoint Policy
	// Keep selects calls that keep everything their backward uses: most memory, no computation twice. Nil selects none. Calls
	// that neither selects keep what is dear to compute, such as products, and recompute what is cheap, such as activations.
	Keep Policy
	// Seed of the initial parameters and of dropout.
	Seed uint64
	// Poison fills freed buffers with NaN, so that a use after free shows. It costs a pass over that memory: for tests.
	Poison bool
	// Trace, if set, is called after every operation of a pass, on the rank's own goroutine.
	Trace func(Event)
}

// NoPrefetch as Config.Prefetch gathers each group when it is needed.
const NoPrefetch = -1

// Precision says in which type a model computes.
type Precision struct {
	// Compute is the type of parameters, gradients and activations.
	Compute DType
}

// DType is an element type.
type DType uint8

// The element types. The zero value is Float32.
const (
	Float32 DType = iota
	Float64
)

// String returns the name of the Go type.
func (d DType) String() string {
	switch d {
	case Float32:
		return "float32"
	case Float64:
		return "float64"
	default:
		return fmt.Sprintf("DType(%d)", uint8(d))
	}
}

// size returns the bytes of an element.
func (d DType) size() int {
	if d == Float64 {
		return 8
	}
	return 4
}

func (d DType) tensor() tensor.Dtype {
	if d == Float64 {
		return tensor.Float64
	}
	return tensor.Float32
}

// withDefaults returns c with zero values replaced, or what is wrong with it.
func (c Config) withDefaults() (Config, error) {
	if d := c.Precision.Compute; d != Float32 && d != Float64 {
		return c, fmt.Errorf("Config.Precision.Compute is %v: want Float32 or Float64", d)
	}
	switch {
	case c.Prefetch == 0:
		c.Prefetch = 1
	case c.Prefetch == NoPrefetch:
		c.Prefetch = 0
	case c.Prefetch < 0:
		return c, fmt.Errorf("Config.Prefetch is %d: want a depth, or NoPrefetch", c.Prefetch)
	}
	return c, nil
}

// apply returns p's names for the calls, checked. A nil policy names none.
func (p Policy) apply(field string, calls []CallInfo) (names []string, err error) {
	if p == nil {
		return make([]string, len(calls)), nil
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("policy Config.%s panicked: %v", field, r)
		}
	}()
	if names = p(calls); len(names) != len(calls) {
		return nil, fmt.Errorf("policy Config.%s returned %d names for %d calls", field, len(names), len(calls))
	}
	return names, nil
}
