package blaslt

import (
	"errors"
	"fmt"
	"math"
)

// EnvLibrary names the variable that holds the path of the library to load instead of the system's
// libcublasLt.so.13, .12 or .11.
const EnvLibrary = "FSDP_CUBLASLT_LIBRARY"

// Type is a type of elements.
type Type uint8

// These are the types of elements.
const (
	F32 Type = iota
	F64
	BF16
	F16
)

// String names the type.
func (t Type) String() string { return [...]string{"float32", "float64", "bfloat16", "float16"}[t] }

// Size returns the bytes of an element.
func (t Type) Size() int { return [...]int{4, 8, 2, 2}[t] }

// BiasAlign divides the address of a bias, of sums and of the argument of GELU.
const BiasAlign = 16

// Product is the product D = op(A)·op(B) of batches of row-major matrices. It is comparable and can
// be the key of a map of plans.
type Product struct {
	In, Out           Type // of A and B, and of D: the same, or BF16 or F16 and F32
	Rows, Cols, Depth int  // D is [Rows, Cols], op(A) [Rows, Depth], op(B) [Depth, Cols]
	TransA, TransB    bool // whether A is stored as [Depth, Rows], and B as [Cols, Depth]
	LDA, LDB, LDD     int  // elements from one row to the next in memory, 0 for rows without gaps

	Batch                     int // number of products, 0 for one
	StrideA, StrideB, StrideD int // elements from one matrix of a batch to the next

	Bias      bool // whether a vector [Cols] of the type of D is added to each row; only for a single product, and not for F64
	Sums      bool // whether the sums of the rows of op(A), [Rows] of the type of D, are written; under the same conditions, and without a bias
	GELUGrad  bool // whether D is multiplied by the derivative of GELU, approximated by tanh, at a matrix in its layout and type, with LDD a multiple of 8; under the same conditions, and without sums
	TF32      bool // whether factors in F32 may be rounded to 10 bits of mantissa, for tensor cores
	Align     int  // alignment in bytes of the addresses of A, B, C and D: a power of 2, 0 for 256
	Workspace int  // bytes that a run may use in addition to its matrices

	Multiprocessors int // that an algorithm is chosen for, 0 for all of the device: other work uses the rest
}

// geluAlign divides LDD of a product with the derivative of GELU.
const geluAlign = 8

// normal returns x with defaults in place of zeros, or an error if x is invalid.
func (x Product) normal() (Product, error) {
	given := x
	a, b := x.Depth, x.Cols
	if x.TransA {
		a = x.Rows
	}
	if x.TransB {
		b = x.Depth
	}
	x.LDA, x.LDB, x.LDD = orElse(x.LDA, a), orElse(x.LDB, b), orElse(x.LDD, x.Cols)
	x.Batch, x.Align = orElse(x.Batch, 1), orElse(x.Align, 256)
	wrong := func(format string, args ...any) (Product, error) {
		return x, fmt.Errorf("blaslt: %v: %s", given, fmt.Sprintf(format, args...))
	}
	switch {
	case x.In > F16 || x.Out > F16 || x.In != x.Out && (x.In.Size() > 2 || x.Out != F32):
		return wrong("no product has these types")
	case x.Rows < 1 || x.Cols < 1 || x.Depth < 1 || x.Batch < 1:
		return wrong("an empty product")
	case x.LDA < a || x.LDB < b || x.LDD < x.Cols:
		return wrong("rows of %d, %d and %d elements that are %d, %d and %d apart", a, b, x.Cols, x.LDA, x.LDB, x.LDD)
	case x.Bias && (x.Batch > 1 || x.In == F64):
		return wrong("no bias is added to a batch or to float64")
	case x.TF32 && x.In != F32:
		return wrong("only factors in float32 are rounded to TF32")
	case x.Sums && (x.Batch > 1 || x.In == F64 || x.Bias):
		return wrong("no sums are computed with a batch, with float64 or with a bias")
	case x.GELUGrad && (x.Batch > 1 || x.In == F64 || x.Bias || x.Sums || x.LDD%geluAlign != 0):
		return wrong("no gradient of GELU is computed with a batch, float64, a bias, sums, or rows that are %d apart", x.LDD)
	case x.Align&(x.Align-1) != 0 || x.Align < x.In.Size() || x.Align > 256:
		return wrong("matrices at multiples of %d bytes", x.Align)
	case x.Workspace < 0:
		return wrong("a workspace of %d bytes", x.Workspace)
	case x.Multiprocessors < 0 || x.Multiprocessors > math.MaxInt32:
		return wrong("%d multiprocessors", x.Multiprocessors)
	}
	return x, nil
}

func orElse(n, instead int) int {
	if n == 0 {
		return instead
	}
	return n
}

// String formats the product with its shapes and types.
func (x Product) String() string {
	trans := func(name string, t bool) string {
		if t {
			return name + "ᵀ"
		}
		return name
	}
	return fmt.Sprintf("%d × [%d %d] %v = %s [%d %d] · %s [%d %d] %v", max(1, x.Batch), x.Rows, x.Cols, x.Out,
		trans("A", x.TransA), x.Rows, x.Depth, trans("B", x.TransB), x.Depth, x.Cols, x.In)
}

// Operands are the addresses of a run's matrices. They must not overlap, except that C may be D.
type Operands struct {
	A, B, D   uintptr
	C         uintptr // a matrix in the layout of D that is added, or 0
	Bias      uintptr
	Sums      uintptr // is written
	X         uintptr // the argument of GELU
	Workspace uintptr // a multiple of 256, of [Plan.Workspace] bytes, for one stream at a time
}

// check returns an error if the operands are invalid for a run.
func (o Operands) check(x *Product, workspace int) error {
	switch {
	case o.A == 0 || o.B == 0 || o.D == 0 || (o.A|o.B|o.C|o.D)%uintptr(x.Align) != 0:
		return fmt.Errorf("blaslt: %v: the matrices are at %#x, %#x, %#x and %#x: want multiples of %d", x, o.A, o.B, o.C, o.D, x.Align)
	case x.Bias && (o.Bias == 0 || o.Bias%BiasAlign != 0):
		return fmt.Errorf("blaslt: %v: the bias is at %#x: want a multiple of %d", x, o.Bias, BiasAlign)
	case x.Sums && (o.Sums == 0 || o.Sums%BiasAlign != 0):
		return fmt.Errorf("blaslt: %v: the sums are at %#x: want a multiple of %d", x, o.Sums, BiasAlign)
	case x.GELUGrad && (o.X == 0 || o.X%BiasAlign != 0):
		return fmt.Errorf("blaslt: %v: the argument of GELU is at %#x: want a multiple of %d", x, o.X, BiasAlign)
	case workspace > 0 && (o.Workspace == 0 || o.Workspace%256 != 0):
		return fmt.Errorf("blaslt: %v: the workspace is at %#x: want a multiple of 256", x, o.Workspace)
	}
	return nil
}

// Error is a status of cuBLASLt other than success. It is [errors.ErrUnsupported] if no algorithm
// computes a product.
type Error struct {
	Op   string // the function: "cublasLtMatmul"
	Code int    // the cublasStatus_t; if Op is cuCtxSetCurrent, the CUresult
	Text string // the library's text for it
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s (status %d)", e.Op, e.Text, e.Code) }

// Is implements errors.Is.
func (e *Error) Is(target error) bool {
	return target == errors.ErrUnsupported && e.Op == "cublasLtMatmulAlgoGetHeuristic" && e.Code == notSupported
}

// notSupported is CUBLAS_STATUS_NOT_SUPPORTED.
const notSupported = 15
