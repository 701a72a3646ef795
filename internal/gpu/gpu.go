// Package gpu compiles the programs of package exec for a CUDA device, and runs them there.
//
//	exec.Program ──Compile──▶ Program: launches of kernels, products, copies ──Run──▶ a stream
//
// Compile reads only the instructions: every kind of operation has a lowering, which lists the
// launches of an instruction. Operands become addresses when a program runs: the caller passes the
// memory of each space, as with package exec on the host. A run allocates nothing, waits for
// nothing and reads nothing back.
//
// Kernels are deterministic: every sum has one order, which depends on shapes and on the offsets of
// operands in the memory of their space. They read and write the same values as the host kernels,
// in the same forms (see "Storage" in package exec). A result is the same number up to rounding.
// Integers have 64 bits.
//
// Use everything here from one goroutine at a time. Later calls of the device return the errors of
// kernels.
package gpu

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gofsdp/gofsdp/internal/device"
	"github.com/gofsdp/gofsdp/internal/gpu/kernels"
)

// An Engine holds the common state of the programs of a device: kernels, and plans of products. Its
// programs run on one stream at a time. Without a device it compiles programs that cannot run.
type Engine struct {
	// LossScratch limits the bytes of logits that are computed at once for the loss of a linear
	// layer. It applies to programs compiled later.
	LossScratch int
	// Multiprocessors is the number that products use, 0 for all: collectives use the rest. It applies
	// to programs compiled later.
	Multiprocessors int
	// Hopper is whether attention uses the kernels for compute capability 9.0. New sets it for devices
	// of that capability. It applies to programs compiled later.
	Hopper bool
	agrees map[string]bool // by kernel, see wgmma

	// TF32 lets products round factors in float32 to TF32, for tensor cores. It applies to programs
	// compiled later, but not to Multiply.
	TF32 bool
	// Float16 is whether values of 16 bits (exec.Form.Half) are in float16 instead of bfloat16. It
	// applies to programs compiled later.
	Float16 bool
	// SlopesInProducts makes products of 16 bits multiply by the slope of GELU, where cuBLASLt can do
	// so. It applies to programs compiled later. New sets it for compute capability 9.0: on others a
	// kernel of its own may be faster.
	SlopesInProducts bool

	dev       *device.Device            // or nil
	modules   map[string]*device.Module // by family
	functions map[string]*device.Function
	upload    *device.Stream // of constants
	products  products
	run       run // the program that is being issued to a stream
}

// lossScratch is the default of LossScratch.
const lossScratch = 256 << 20

// leastCapability is the first compute capability, of Ampere, that has the kernels' instructions:
// products of bfloat16, and asynchronous copies into shared memory.
const leastCapability = 8

// New returns an engine. Kernels are loaded when the first program needs them.
func New(dev *device.Device) (*Engine, error) {
	major, minor := dev.Capability()
	if major < leastCapability {
		return nil, fmt.Errorf("gpu: device %d, %s, has compute capability %d.%d, and the kernels need %d.0 (A100, RTX 30 and later)",
			dev.Ordinal(), dev.Name(), major, minor, leastCapability)
	}
	s, err := dev.NewStream()
	if err != nil {
		return nil, err
	}
	hopper := major == 9 && minor == 0
	return &Engine{
		LossScratch: lossScratch, Hopper: hopper, SlopesInProducts: hopper, dev: dev, agrees: make(map[string]bool),
		modules: make(map[string]*device.Module), functions: make(map[string]*device.Function), upload: s,
	}, nil
}

// Close unloads the kernels and closes the plans. No program may be running, and all must have been
// freed. If something cannot be closed, Close can be called again.
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

// Function returns the kernel with a name, which begins with the name of its family. It is nil
// without a device.
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
