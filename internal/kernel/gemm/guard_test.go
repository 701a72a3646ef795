//go:build unix

package gemm

import (
	"os"
	"runtime/debug"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// fence is memory between two pages that cannot be touched.
type fence []byte

func newFence(t *testing.T, size int) fence {
	page := os.Getpagesize()
	size = (size + page - 1) / page * page
	m, err := syscall.Mmap(-1, 0, size+2*page, syscall.PROT_NONE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Munmap(m)) })
	inner := m[page : page+size : page+size]
	require.NoError(t, syscall.Mprotect(inner, syscall.PROT_READ|syscall.PROT_WRITE))
	return fence(inner)
}

// enclose copies s to the very end of the fence, or to its start.
func enclose[T Element](f fence, s []T, end bool) []T {
	if len(s) == 0 {
		return nil
	}
	size := len(s) * int(unsafe.Sizeof(s[0]))
	at := 0
	if end {
		at = len(f) - size
	}
	in := unsafe.Slice((*T)(unsafe.Pointer(&f[at])), len(s))
	copy(in, s)
	return in
}

// TestNothingOutsideTheSlicesIsTouched puts every operand against a forbidden page: an access past
// it faults.
func TestNothingOutsideTheSlicesIsTouched(t *testing.T) {
	eachKernel(t, nothingOutsideTheSlicesIsTouched[float32], nothingOutsideTheSlicesIsTouched[float64])
}

func nothingOutsideTheSlicesIsTouched[T Float](t *testing.T) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	const most = 700 * 800 * 8 // bytes of the largest matrix drawn
	var fences [4]fence
	for i := range fences {
		fences[i] = newFence(t, most)
	}
	var w Workspace
	rapid.Check(t, func(t *rapid.T) {
		p := drawProblem[T](t)
		end := rapid.Bool().Draw(t, "end")
		p.a, p.b, p.bias = enclose(fences[0], p.a, end), enclose(fences[1], p.b, end), enclose(fences[2], p.bias, end)
		c := enclose(fences[3], p.c, end)
		want := p.naive()
		Gemm(&w, p.transA, p.transB, p.m, p.n, p.k, float64(p.alpha), p.a, p.lda, p.b, p.ldb, float64(p.beta), c, p.ldc)
		requireClose(t, p, want, c)
		GemmBias(&w, p.transA, p.transB, p.m, p.n, p.k, p.a, p.lda, p.b, p.ldb, p.bias, c, p.ldc)
	})
}

func TestBFloat16TouchesNothingOutsideTheSlices(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		var fences [5]fence
		for i := range fences {
			fences[i] = newFence(t, 2100*90*2) // the largest matrix drawn
		}
		var w Workspace
		rapid.Check(t, func(t *rapid.T) {
			p := drawHalfProblem(t)
			end := rapid.Bool().Draw(t, "end")
			p.a, p.b, p.bias = enclose(fences[0], p.a, end), enclose(fences[1], p.b, end), enclose(fences[2], p.bias, end)
			c, wide := enclose(fences[3], p.c, end), enclose(fences[4], p.wide, end)
			Gemm(&w, p.transA, p.transB, p.m, p.n, p.k, float64(p.alpha), p.a, p.lda, p.b, p.ldb, float64(p.beta), wide, p.ldc)
			Gemm(&w, p.transA, p.transB, p.m, p.n, p.k, float64(p.alpha), p.a, p.lda, p.b, p.ldb, float64(p.beta), c, p.ldc)
			GemmBias(&w, p.transA, p.transB, p.m, p.n, p.k, p.a, p.lda, p.b, p.ldb, p.bias, c, p.ldc)
			if p.beta == 0 {
				requireBits(t, p, p.gemm(&w), wide)
			}
		})
	})
}
