//go:build linux && cgo

package device

/*
#include <stdlib.h>
#include <string.h>
#include "driver.h"
#cgo nocallback driver_module
#cgo nocallback driver_module_unload
#cgo nocallback driver_function
#cgo nocallback driver_parameter
#cgo nocallback driver_shared
#cgo nocallback driver_launch
#cgo noescape driver_module
#cgo noescape driver_function
#cgo noescape driver_parameter
#cgo noescape driver_launch
*/
import "C"

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
	"strings"
	"unsafe"
)

// Module is a set of kernels that a device has loaded.
type Module struct{ object }

// LoadModule loads PTX text, which the driver compiles for the device, or a cubin. If the text does
// not compile, the error has the compiler's message.
func (d *Device) LoadModule(image []byte) (*Module, error) {
	if len(image) == 0 {
		return nil, fmt.Errorf("device %d: the module is empty", d.ordinal)
	}
	text := append(bytes.Clone(image), 0) // text ends in zero; a cubin contains its length
	var log [4096]C.char
	m := new(Module)
	err := m.create(d, module, 0, "cuModuleLoadDataEx", func(context C.driver_handle) C.driver_result {
		return C.driver_module(context, &m.handle, unsafe.Pointer(&text[0]), &log[0], C.size_t(len(log)))
	})
	if err != nil {
		if said := strings.TrimSpace(C.GoString(&log[0])); said != "" {
			err = fmt.Errorf("%w: %s", err, said)
		}
		return nil, err
	}
	return m, nil
}

// Unload unloads the module. Its functions must not be running.
func (m *Module) Unload() error {
	return m.destroy("cuModuleUnload", func(context, handle C.driver_handle) C.driver_result {
		return C.driver_module_unload(context, handle)
	})
}

// Function is a kernel. It lives as long as its module.
type Function struct {
	module *Module
	name   string
	handle C.driver_handle
	sizes  []int // of the parameters, in bytes; nil if the driver does not know
}

// Function returns the kernel with a name.
func (m *Module) Function(name string) (*Function, error) {
	if err := m.use(); err != nil {
		return nil, err
	}
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	f := &Function{module: m, name: name}
	r := C.driver_function(m.device.context, &f.handle, m.handle, s)
	if err := m.result("cuModuleGetFunction", r); err != nil {
		return nil, fmt.Errorf("kernel %s: %w", name, err)
	}
	if err := f.measure(); err != nil {
		return nil, err
	}
	return f, nil
}

// measure queries the sizes of the parameters. Drivers report them since CUDA 12.4.
func (f *Function) measure() error {
	sizes := []int{}
	for {
		var size C.size_t
		r := C.driver_parameter(f.module.device.context, f.handle, C.size_t(len(sizes)), &size)
		switch {
		case r == C.DRIVER_NOT_SUPPORTED:
			return nil
		case r == C.DRIVER_INVALID_VALUE: // that was the last parameter
			f.sizes = sizes
			return nil
		case r != 0:
			return fmt.Errorf("kernel %s: %w", f.name, f.module.result("cuFuncGetParamInfo", r))
		}
		sizes = append(sizes, int(size))
	}
}

// Params returns the sizes of the kernel's parameters in bytes, or nil if the driver does not
// report them (before CUDA 12.4). The slice must not be changed.
func (f *Function) Params() []int { return f.sizes }

// SetShared allows up to n bytes of dynamic shared memory for a block of the kernel. The default
// limit is 48 KiB minus the static shared memory of the kernel.
func (f *Function) SetShared(n int) error {
	if err := f.module.use(); err != nil {
		return err
	}
	if most := f.module.device.shared; n < 0 || n > most {
		return f.refuse("%d bytes of shared memory, the device has %d for a block", n, most)
	}
	if err := f.module.result("cuFuncSetAttribute", C.driver_shared(f.module.device.context, f.handle, C.int(n))); err != nil {
		return fmt.Errorf("kernel %s: %w", f.name, err)
	}
	return nil
}

// Launch runs the kernel on a grid of blocks of threads, with shared bytes of dynamic shared memory
// for each block.
//
// Arguments are int32, uint32, int64, uint64, float32, float64, a *Memory, or a uintptr, which is
// an address in device memory. int is refused: kernels have no such type. From CUDA 12.4 on the
// driver reports the kernel's parameters, and Launch compares the number and sizes of the arguments
// with them.
func (f *Function) Launch(s *Stream, grid, block [3]int, shared int, args ...any) error {
	if most := C.DRIVER_MAX_ARGUMENTS; len(args) > most {
		return f.refuse("%d arguments, at most %d can be", len(args), most)
	}
	if f.sizes != nil && len(args) != len(f.sizes) {
		return f.refuse("%d arguments for %d parameters", len(args), len(f.sizes))
	}
	var values [C.DRIVER_MAX_ARGUMENTS]uint64
	for i, a := range args {
		value, size := argument(a)
		if size == 0 {
			return f.refuse("argument %d is a %v, which is closed or not of a kernel's types", i, reflect.TypeOf(a))
		}
		if f.sizes != nil && size != f.sizes[i] {
			return f.refuse("argument %d is a %v of %d bytes, the parameter has %d", i, reflect.TypeOf(a), size, f.sizes[i])
		}
		values[i] = value
	}
	return f.LaunchArgs(s, grid, block, shared, values[:len(args)])
}

// LaunchArgs is Launch for callers that have compared the arguments with Params: values are the
// bits of the arguments, in the first bytes of each. It allocates nothing.
func (f *Function) LaunchArgs(s *Stream, grid, block [3]int, shared int, values []uint64) error {
	if err := f.module.use(); err != nil {
		return err
	}
	if err := s.use(); err != nil {
		return err
	}
	if s.device.context != f.module.device.context {
		return f.refuse("a stream of device %d", s.device.ordinal)
	}
	g, ok1 := extent(grid)
	b, ok2 := extent(block)
	if !ok1 || !ok2 || shared < 0 || shared > math.MaxInt32 {
		return f.refuse("grid %v of blocks %v with %d bytes of shared memory", grid, block, shared)
	}
	if n := len(values); n > C.DRIVER_MAX_ARGUMENTS || f.sizes != nil && n != len(f.sizes) {
		return f.refuse("%d values for %d parameters, at most %d can be", n, len(f.sizes), C.DRIVER_MAX_ARGUMENTS)
	}
	r := C.driver_launch(f.module.device.context, f.handle, g, b, C.uint(shared), s.handle,
		(*C.uint64_t)(unsafe.SliceData(values)), C.int(len(values)))
	if r != 0 {
		return fmt.Errorf("kernel %s: %w", f.name, s.result("cuLaunchKernel", r))
	}
	return nil
}

// refuse returns the error for an invalid launch.
func (f *Function) refuse(format string, args ...any) error {
	return fmt.Errorf("device %d: kernel %s: "+format, append([]any{f.module.device.ordinal, f.name}, args...)...)
}

// extent reports whether sizes are valid for a grid or a block.
func extent(n [3]int) (e C.driver_extent, ok bool) {
	for _, n := range n {
		if n < 1 || n > math.MaxInt32 {
			return e, false
		}
	}
	return C.driver_extent{x: C.uint(n[0]), y: C.uint(n[1]), z: C.uint(n[2])}, true
}

// argument returns the bits of an argument and its size in bytes. The size is 0 if a kernel cannot
// take it. Values are in the first bytes: all machines with CUDA are little-endian.
func argument(a any) (bits uint64, size int) {
	switch a := a.(type) {
	case int32:
		return uint64(uint32(a)), 4
	case uint32:
		return uint64(a), 4
	case int64:
		return uint64(a), 8
	case uint64:
		return a, 8
	case float32:
		return uint64(math.Float32bits(a)), 4
	case float64:
		return math.Float64bits(a), 8
	case uintptr:
		return uint64(a), 8
	case *Memory:
		if a != nil && a.use() == nil {
			return uint64(a.Addr()), 8
		}
	}
	return 0, 0
}
