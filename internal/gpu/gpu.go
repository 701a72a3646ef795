// Package gpu compiles the programs of package exec for a CUDA device, and runs them there.
//
//	exec.Program ──Compile──▶ Program: launches of kernels, products, copies ──Run──▶ a stream
//
// Compile looks at nothing but the instructions: every kind of operation has a lowering, which says
// by which launches an instruction runs. Operands become addresses when a program runs: the caller
// says where the memory of each space lies, as with package exec on the host. A run allocates
// nothing, waits for nothing and reads nothing back.
//
// Kernels are deterministic: every sum has one order, which depends on shapes and on where operands lie
// in the memory of their space. They read and write what the host kernels do, in the same forms (see
// "Storage" in package exec), so that a value is the same number within rounding. Integers are of 64
// bits.
//
// Everything here is for one goroutine at a time. Errors of kernels are found by later calls of the
// device.
package gpu

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gofsdp/gofsdp/internal/device"
	"github.com/gofsdp/gofsdp/internal/gpu/kernels"
)

// An Engine has what the programs of a device share: its kernels, and the plans of products. Its
// programs run on one stream at a time. Without a device it compiles programs that cannot run.
type Engine struct {
	// LossScratch is how many bytes the logits may take of which a linear layer's loss is computed at
	// once. Programs compiled from then on keep to it.
	LossScratch int

	dev       *device.Device            // or nil
	modules   map[string]*device.Module // by family
	functions map[string]*device.Function
	upload    *device.Stream // of constants
	products  products
	run       run // the one that is being given to a stream
}

// lossScratch is the LossScratch of those who do not set it.
const lossScratch = 256 << 20

// New returns an engine. Kernels are loaded when the first program needs them.
func New(dev *device.Device) (*Engine, error) {
	s, err := dev.NewStream()
	if err != nil {
		return nil, err
	}
	return &Engine{
		LossScratch: lossScratch, dev: dev, modules: make(map[string]*device.Module), functions: make(map[string]*device.Function), upload: s,
	}, nil
}

// Close unloads the kernels and closes the plans. No program may be running, and all are freed. What
// cannot be closed stays, for another Close.
func (e *Engine) Close() error {
	errs := []error{e.products.close()}
	clear(e.functions)
	for family, m := range e.modules {
		if err := m.Unload(); err != nil {
			errs = append(errs, err)
		} else {
			delete(e.modules, family)
		}
	}
	if e.upload != nil {
		if err := e.upload.Close(); err != nil {
			errs = append(errs, err)
		} else {
			e.upload = nil
		}
	}
	return errors.Join(errs...)
}

// Function returns the kernel of a name, which begins with that of its family. It is nil without a
// device.
func (e *Engine) Function(name string) (*device.Function, error) {
	if f := e.functions[name]; f != nil || e.dev == nil {
		return f, nil
	}
	family, _, _ := strings.Cut(name, "_")
	m := e.modules[family]
	if m == nil {
		text, err := kernels.PTX(family)
		if err == nil {
			m, err = e.dev.LoadModule(text)
		}
		if err != nil {
			return nil, fmt.Errorf("kernels %s: %w", family, err)
		}
		e.modules[family] = m
	}
	f, err := m.Function(name)
	if err != nil {
		return nil, err
	}
	e.functions[name] = f
	return f, nil
}
