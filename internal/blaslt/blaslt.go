//go:build linux && cgo

package blaslt

/*
#cgo CFLAGS: -O2 -Wall -Wextra
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "shim.h"
#cgo nocallback blaslt_create
#cgo nocallback blaslt_destroy
#cgo nocallback blaslt_plan_make
#cgo nocallback blaslt_plan_run
#cgo nocallback blaslt_plan_end
#cgo noescape blaslt_create
#cgo noescape blaslt_plan_make
#cgo noescape blaslt_plan_run
*/
import "C"

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/gofsdp/gofsdp/internal/device"
)

var library = device.Library{
	What: "cuBLASLt", Names: []string{"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11"}, Variable: EnvLibrary,
	Hint: "it comes with CUDA's toolkit and Python's nvidia-cublas, and " + EnvLibrary + " may name its file",
	Open: open,
}

// Load loads cuBLASLt, see [device.Library.Load]. Only callers with a path need it. It needs no
// device.
func Load(path string) error { return library.Load(path) }

// open loads the library at path, or returns why it cannot.
func open(path string) (why string, err error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var text [512]C.char
	if C.blaslt_open(name, &text[0], C.size_t(len(text))) != 0 {
		return C.GoString(&text[0]), nil
	}
	return "", nil
}

// Version returns the version of the library: 130400 for 13.4.0.
func Version() (int, error) {
	if err := Load(""); err != nil {
		return 0, err
	}
	return int(C.blaslt_version()), nil
}

// attach loads the library and passes it the driver.
func attach() error {
	return library.Attach(func(f uintptr) { C.blaslt_driver(C.uintptr_t(f)) })
}

// result returns the error of a result.
func result(r C.blaslt_result) error {
	if r.status == 0 {
		return nil
	}
	e := &Error{Op: C.GoString(r.function), Code: int(r.status), Text: "the driver cannot set the context"}
	if e.Op != "cuCtxSetCurrent" {
		e.Text = C.GoString(C.blaslt_text(r.status))
	}
	return fmt.Errorf("blaslt: %w", e)
}

// Handle is cuBLASLt on a device.
type Handle struct {
	context C.uintptr_t
	handle  C.uintptr_t
	plans   atomic.Int64
	closed  atomic.Bool
}

// New opens cuBLASLt on a device, which stays open until the handle is closed.
func New(dev *device.Device) (*Handle, error) {
	if err := attach(); err != nil {
		return nil, err
	}
	h := &Handle{context: C.uintptr_t(dev.Context())}
	if err := result(C.blaslt_create(h.context, &h.handle)); err != nil {
		return nil, err
	}
	return h, nil
}

// Close closes h. If plans are open, it does nothing but return an error that counts them.
func (h *Handle) Close() error {
	if h.closed.Load() {
		return fmt.Errorf("blaslt: the handle is %w", device.ErrClosed)
	}
	if n := h.plans.Load(); n > 0 {
		return fmt.Errorf("blaslt: the handle cannot be closed, still open: %d × plan", n)
	}
	if err := result(C.blaslt_destroy(h.context, h.handle)); err != nil {
		return err
	}
	h.closed.Store(true)
	return nil
}

// Plan is a product that is ready to run.
type Plan struct {
	handle  *Handle
	product Product // with its defaults
	plan    *C.blaslt_plan

	mu sync.Mutex // guards the address of a bias, of sums or of GELU's argument, which a run writes to the plan
}

// Plan prepares a product. If cuBLASLt offers several algorithms, the plan uses the first.
func (h *Handle) Plan(x Product) (*Plan, error) {
	if h.closed.Load() {
		return nil, fmt.Errorf("blaslt: no plan of a handle that is %w", device.ErrClosed)
	}
	x, err := x.normal()
	if err != nil {
		return nil, err
	}
	p := &Plan{handle: h, product: x}
	described := describe(&x)
	if err := result(C.blaslt_plan_make(h.context, h.handle, &described, &p.plan)); err != nil {
		_ = result(C.blaslt_plan_end(p.plan)) // the first error is more important
		return nil, fmt.Errorf("%w: %v", err, x)
	}
	h.plans.Add(1)
	return p, nil
}

// describe returns a product in cuBLASLt's terms.
func describe(x *Product) C.blaslt_product {
	types := [...]C.int{F32: C.LT_R_32F, F64: C.LT_R_64F, BF16: C.LT_R_16BF, F16: C.LT_R_16F}
	y := C.blaslt_product{
		in: types[x.In], out: types[x.Out], scale: C.LT_R_32F, compute: C.LT_COMPUTE_32F,
		epilogue: C.LT_EPILOGUE_DEFAULT, trans_a: flag(x.TransA), trans_b: flag(x.TransB),
		batch: C.int(x.Batch), stride_a: C.int64_t(x.StrideA), stride_b: C.int64_t(x.StrideB), stride_d: C.int64_t(x.StrideD),
		rows: C.uint64_t(x.Rows), cols: C.uint64_t(x.Cols), depth: C.uint64_t(x.Depth), workspace: C.uint64_t(x.Workspace),
		lda: C.int64_t(x.LDA), ldb: C.int64_t(x.LDB), ldd: C.int64_t(x.LDD), align: C.uint32_t(x.Align),
		multiprocessors: C.int(x.Multiprocessors),
	}
	switch {
	case x.Bias:
		y.epilogue = C.LT_EPILOGUE_BIAS
	case x.Sums:
		y.epilogue = C.LT_EPILOGUE_BGRADB // its B is A: see struct blaslt_plan
	case x.GELUGrad:
		y.epilogue = C.LT_EPILOGUE_DGELU
	}
	switch {
	case x.In == F64:
		y.scale, y.compute = C.LT_R_64F, C.LT_COMPUTE_64F
	case x.TF32:
		y.compute = C.LT_COMPUTE_32F_FAST_TF32
	}
	return y
}

func flag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

// Workspace returns the bytes of workspace for a run.
func (p *Plan) Workspace() int { return int(C.blaslt_plan_workspace(p.plan)) }

// Run makes the stream, which must be of the same device, compute the product D = op(A)·op(B), plus
// C if there is one. D is only written, unless C is D.
func (p *Plan) Run(s *device.Stream, at Operands) error {
	stream := s.Handle()
	if stream == 0 || p.plan == nil {
		return fmt.Errorf("blaslt: %v: the stream or the plan is %w", p.product, device.ErrClosed)
	}
	if err := at.check(&p.product, p.Workspace()); err != nil {
		return err
	}
	if p.product.Bias || p.product.Sums || p.product.GELUGrad {
		p.mu.Lock()
		defer p.mu.Unlock()
	}
	extra := at.Bias
	switch {
	case p.product.Sums:
		extra = at.Sums
	case p.product.GELUGrad:
		extra = at.X
	}
	o := C.blaslt_operands{a: C.uint64_t(at.A), b: C.uint64_t(at.B), c: C.uint64_t(at.C), d: C.uint64_t(at.D),
		extra: C.uint64_t(extra), workspace: C.uint64_t(at.Workspace)}
	return result(C.blaslt_plan_run(p.plan, &o, C.uintptr_t(stream)))
}

// Close closes p. Streams still compute the products that were issued.
func (p *Plan) Close() error {
	if p.plan == nil {
		return fmt.Errorf("blaslt: the plan is %w", device.ErrClosed)
	}
	if err := result(C.blaslt_plan_end(p.plan)); err != nil {
		return err
	}
	p.plan = nil
	p.handle.plans.Add(-1)
	return nil
}
