package gemm

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/half"
)

// eachISA runs f for every instruction set of this machine, with that one active.
func eachISA(t *testing.T, f func(t *testing.T)) {
	best := active
	t.Cleanup(func() { active = best })
	for _, s := range append(supported(), tilesInGo()) {
		active = s
		t.Run(s.name, f)
	}
}

// eachKernel runs the two instances of a generic test on every instruction set that has its own.
func eachKernel(t *testing.T, f32, f64 func(t *testing.T)) {
	eachISA(t, func(t *testing.T) {
		switch active.name {
		case "amx", "avx512bf16", "neonbf16", "tiles in Go":
			return // as another one
		}
		t.Run("float32", f32)
		t.Run("float64", f64)
	})
}

// problem is one product with its operands.
type problem[T Float] struct {
	transA, transB bool
	m, n, k        int
	alpha, beta    T
	a, b, c, bias  []T
	lda, ldb, ldc  int
}

func (p problem[T]) String() string {
	return fmt.Sprintf("m=%d n=%d k=%d transA=%v transB=%v lda=%d ldb=%d ldc=%d alpha=%v beta=%v",
		p.m, p.n, p.k, p.transA, p.transB, p.lda, p.ldb, p.ldc, p.alpha, p.beta)
}

// fill returns n values in [-1, 1) that the seed determines.
func fill[T Float](seed uint64, n int) []T {
	r := rand.New(rand.NewPCG(seed, 1))
	s := make([]T, n)
	for i := range s {
		s[i] = T(r.Float64()*2 - 1)
	}
	return s
}

// stored returns the length of a slice that just holds a matrix, rows×cols after op, and its
// leading dimension.
func stored(trans bool, rows, cols, gap int) (length, ld int) {
	if trans {
		rows, cols = cols, rows
	}
	ld = max(1, cols+gap)
	if rows == 0 {
		return 0, ld
	}
	return (rows-1)*ld + cols, ld
}

// newProblem draws operands whose slices end with the last element of their matrix.
func newProblem[T Float](transA, transB bool, m, n, k, gap int, alpha, beta T, seed uint64) problem[T] {
	p := problem[T]{transA: transA, transB: transB, m: m, n: n, k: k, alpha: alpha, beta: beta}
	var la, lb, lc int
	la, p.lda = stored(transA, m, k, gap)
	lb, p.ldb = stored(transB, k, n, gap)
	lc, p.ldc = stored(false, m, n, gap)
	p.a, p.b, p.c, p.bias = fill[T](seed, la), fill[T](seed+1, lb), fill[T](seed+2, lc), fill[T](seed+3, n)
	return p
}

func drawProblem[T Float](t *rapid.T) problem[T] {
	edge := rapid.SampledFrom([]int{13, 14, 15, 16, 31, 32, 33, 64, 129, 400})
	deep := rapid.SampledFrom([]int{255, 256, 257, 383, 385, 520, 769})
	size := rapid.OneOf(rapid.IntRange(0, 70), rapid.IntRange(0, 70), edge)
	scalar := rapid.SampledFrom([]T{0, 1, -1, 0.5, 3})
	return newProblem(rapid.Bool().Draw(t, "transA"), rapid.Bool().Draw(t, "transB"),
		size.Draw(t, "m"), size.Draw(t, "n"), rapid.OneOf(rapid.IntRange(0, 70), deep).Draw(t, "k"),
		rapid.SampledFrom([]int{0, 0, 1, 3, 16}).Draw(t, "gap"),
		scalar.Draw(t, "alpha"), scalar.Draw(t, "beta"), rapid.Uint64().Draw(t, "seed"))
}

func (p problem[T]) gemm(w *Workspace) []T {
	c := slices.Clone(p.c)
	Gemm(w, p.transA, p.transB, p.m, p.n, p.k, float64(p.alpha), p.a, p.lda, p.b, p.ldb, float64(p.beta), c, p.ldc)
	return c
}

func (p problem[T]) gemmBias(w *Workspace) []T {
	c := slices.Clone(p.c)
	GemmBias(w, p.transA, p.transB, p.m, p.n, p.k, p.a, p.lda, p.b, p.ldb, p.bias, c, p.ldc)
	return c
}

func (p problem[T]) naive() []T {
	c := slices.Clone(p.c)
	naive(p.transA, p.transB, p.m, p.n, p.k, p.alpha, p.a, p.lda, p.b, p.ldb, p.beta, c, p.ldc)
	return c
}

func (v view[T]) at(r, p int) T { return v.data[r*v.line+p*v.step] }

// naive computes what [Gemm] does by the three loops of the definition. It rounds differently (no
// fused multiply-add, one sum over all of k).
func naive[T Float](transA, transB bool, m, n, k int, alpha T, a []T, lda int, b []T, ldb int, beta T, c []T, ldc int) {
	check(transA, transB, m, n, k, len(a), lda, len(b), ldb, len(c), ldc)
	va, vb := operand(transA, a, lda), operand(!transB, b, ldb)
	for i := range m {
		for j := range n {
			var sum T
			for p := range k {
				sum += va.at(i, p) * vb.at(j, p)
			}
			sum *= alpha
			if beta != 0 {
				sum += beta * c[i*ldc+j]
			}
			c[i*ldc+j] = sum
		}
	}
}

// tolerance bounds the difference of two ways to round: k terms of at most 1, each wrong by at most
// k*eps in the worst case and by far less for the random signs drawn here.
func (p problem[T]) tolerance() float64 {
	eps := 0x1p-52
	if unsafe.Sizeof(p.alpha) == 4 {
		eps = 0x1p-23
	}
	return eps * (4 + float64(p.k)) * (1 + math.Abs(float64(p.alpha)) + math.Abs(float64(p.beta)))
}

// requireClose compares whole slices, so that a write into the gaps between the rows of C shows
// too.
func requireClose[T Float](t require.TestingT, p problem[T], want, got []T) {
	limit := p.tolerance()
	for i := range want {
		if d := math.Abs(float64(want[i]) - float64(got[i])); !(d <= limit) { // so that NaN fails
			require.Failf(t, "wrong element", "%v: C[%d][%d] is %v, want %v", p, i/p.ldc, i%p.ldc, got[i], want[i])
		}
	}
}

func TestGemmEqualsNaive(t *testing.T) {
	eachKernel(t, gemmEqualsNaive[float32], gemmEqualsNaive[float64])
}

func gemmEqualsNaive[T Float](t *testing.T) {
	var w Workspace
	rapid.Check(t, func(t *rapid.T) {
		p := drawProblem[T](t)
		requireClose(t, p, p.naive(), p.gemm(&w))
	})
}

func TestGemmBiasEqualsNaive(t *testing.T) {
	eachKernel(t, gemmBiasEqualsNaive[float32], gemmBiasEqualsNaive[float64])
}

func gemmBiasEqualsNaive[T Float](t *testing.T) {
	var w Workspace
	rapid.Check(t, func(t *rapid.T) {
		p := drawProblem[T](t)
		p.alpha, p.beta = 1, 1
		got := p.gemmBias(&w)
		for i := range p.m {
			copy(p.c[i*p.ldc:][:p.n], p.bias)
		}
		requireClose(t, p, p.naive(), got)
	})
}

// TestStridesThatShareACacheSet takes the way through packed A that rows a multiple of 4096 bytes
// apart take.
func TestStridesThatShareACacheSet(t *testing.T) {
	eachKernel(t, stridesThatShareACacheSet[float32], stridesThatShareACacheSet[float64])
}

func stridesThatShareACacheSet[T Float](t *testing.T) {
	var w Workspace
	for _, transA := range []bool{false, true} {
		m, n, k := 31, 67, 29
		cols := k
		if transA {
			cols = m
		}
		p := newProblem[T](transA, false, m, n, k, 1024-cols, 0.5, 1, 7)
		require.Equal(t, 1024, p.lda)
		requireClose(t, p, p.naive(), p.gemm(&w))
	}
}

// TestElementsDoNotDependOnTheirNeighbours computes a part of a product and expects the bits that
// the whole has there, though sizes, tiles, packing and alignment differ.
func TestElementsDoNotDependOnTheirNeighbours(t *testing.T) {
	eachKernel(t, elementsDoNotDependOnTheirNeighbours[float32], elementsDoNotDependOnTheirNeighbours[float64])
}

func elementsDoNotDependOnTheirNeighbours[T Float](t *testing.T) {
	var w Workspace
	rapid.Check(t, func(t *rapid.T) {
		p := drawProblem[T](t)
		if p.m == 0 || p.n == 0 || p.k == 0 {
			return
		}
		i0, j0 := rapid.IntRange(0, p.m-1).Draw(t, "i0"), rapid.IntRange(0, p.n-1).Draw(t, "j0")
		part := p
		part.m, part.n = rapid.IntRange(1, p.m-i0).Draw(t, "rows"), rapid.IntRange(1, p.n-j0).Draw(t, "columns")
		part.a = operand(p.transA, p.a, p.lda).tail(i0, 0)
		part.b = operand(!p.transB, p.b, p.ldb).tail(j0, 0)
		part.c = p.c[i0*p.ldc+j0:]
		whole, got := p.gemm(&w)[i0*p.ldc+j0:], part.gemm(new(Workspace))
		for i := range part.m {
			require.Equal(t, whole[i*p.ldc:][:part.n], got[i*p.ldc:][:part.n], "%v row %d", part, i)
		}
	})
}

// TestVectorKernelsAgreeEverywhere holds the vector kernels of all processors, not only those of
// this one, to the same bits.
func TestVectorKernelsAgreeEverywhere(t *testing.T) {
	t.Run("float32", func(t *testing.T) { vectorKernelsGive[float32](t, 0xdc6376cd) })
	t.Run("float64", func(t *testing.T) { vectorKernelsGive[float64](t, 0x76151757) })
}

func vectorKernelsGive[T Float](t *testing.T, want uint32) {
	eachISA(t, func(t *testing.T) {
		if active.f32.mr == portable().f32.mr {
			return // rounds as the compiler does
		}
		sum := crc32.NewIEEE()
		for _, trans := range []bool{false, true} {
			p := newProblem[T](trans, !trans, 29, 37, 803, 1, 0.7, 0.3, 5)
			require.NoError(t, binary.Write(sum, binary.LittleEndian, p.gemm(new(Workspace))))
		}
		require.Equal(t, want, sum.Sum32())
	})
}

// TestVectorKernelsAgree compares AVX2 and AVX-512 bit for bit: ranks on different processors
// compute the same.
func TestVectorKernelsAgree(t *testing.T) {
	t.Run("float32", vectorKernelsAgree[float32])
	t.Run("float64", vectorKernelsAgree[float64])
}

func vectorKernelsAgree[T Float](t *testing.T) {
	best := active
	defer func() { active = best }()
	vector := supported()
	vector = vector[:len(vector)-1] // the last one is Go
	var w Workspace
	rapid.Check(t, func(t *rapid.T) {
		p := drawProblem[T](t)
		var want []T
		for i, s := range vector {
			active = s
			got := p.gemm(&w)
			if i == 0 {
				want = got
			}
			require.Equal(t, want, got, "%v: %s and %s differ", p, vector[0].name, s.name)
		}
	})
}

func TestSpecialValues(t *testing.T) {
	eachKernel(t, specialValues[float32], specialValues[float64])
}

func specialValues[T Float](t *testing.T) {
	nan, inf := T(math.NaN()), T(math.Inf(1))
	var w Workspace
	for _, size := range []int{1, 5, 40} {
		for _, k := range []int{0, 1, 9} {
			p := newProblem[T](false, true, size, size, k, 0, 1, 0, 3)
			for i := range p.c {
				p.c[i] = nan
			}
			require.NotContains(t, fmt.Sprint(p.gemm(&w)), "NaN", "beta = 0 reads C")
			require.NotContains(t, fmt.Sprint(p.gemmBias(&w)), "NaN", "bias reads C")
		}
		for _, special := range []T{nan, inf} {
			p := newProblem[T](false, true, size, size, 9, 0, 1, 0, 3)
			clear(p.a)
			p.b[0] = special // meets only zeros, in column 0
			requireNaN(t, p, p.gemm(&w))
			requireNaN(t, p, p.naive())
			p.a, p.alpha = fill[T](1, len(p.a)), 0
			requireNaN(t, p, p.gemm(&w))
		}
	}
}

// requireNaN expects NaN in column 0 and zero elsewhere.
func requireNaN[T Float](t *testing.T, p problem[T], c []T) {
	for i, v := range c {
		if i%p.ldc == 0 {
			require.True(t, v != v, "%v: C[%d][0] is %v", p, i/p.ldc, v)
		} else {
			require.Zero(t, v, "%v: C[%d][%d]", p, i/p.ldc, i%p.ldc)
		}
	}
}

func TestMisuse(t *testing.T) {
	var w Workspace
	good := newProblem[float32](false, true, 4, 5, 6, 0, 1, 0, 1)
	require.NotPanics(t, func() { good.gemm(&w) })
	for name, spoil := range map[string]func(p *problem[float32]){
		"negative size m=4 n=-1 k=6": func(p *problem[float32]) { p.n = -1 },
		"A, stored as [4, 6] with leading dimension 6, does not fit 23 elements": func(p *problem[float32]) { p.a = p.a[:23] },
		"B, stored as [5, 6] with leading dimension 5, does not fit 30 elements": func(p *problem[float32]) { p.ldb = 5 },
		"C, stored as [4, 5] with leading dimension 6, does not fit 20 elements": func(p *problem[float32]) { p.ldc = 6 },
		"leading dimension 9223372036854775807":                                  func(p *problem[float32]) { p.lda = math.MaxInt },
	} {
		p := good
		spoil(&p)
		require.Panics(t, func() { p.naive() }, name)
		func() {
			defer func() { require.Contains(t, fmt.Sprint(recover()), name) }()
			p.gemm(&w)
		}()
	}
	good.bias = good.bias[:4]
	require.PanicsWithValue(t, "gemm: bias has 4 elements for 5 columns", func() { good.gemmBias(&w) })
}

// TestFloat32Rounded: a result in bfloat16 is the float32 result, rounded once, also for blocks of
// rows and several ranges of k. The workspace stays within its bound.
func TestFloat32Rounded(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		var w Workspace
		check := func(t require.TestingT, p problem[float32]) {
			got, want := make([]half.BFloat16, len(p.c)), make([]half.BFloat16, len(p.c))
			half.Narrow(got, p.c)
			half.Widen(p.c, got) // beta·C has the same C
			Gemm(&w, p.transA, p.transB, p.m, p.n, p.k, float64(p.alpha), p.a, p.lda, p.b, p.ldb, float64(p.beta), got, p.ldc)
			half.Narrow(want, p.gemm(new(Workspace)))
			require.Equal(t, want, got, "%v", p)
			require.LessOrEqual(t, w.Bytes(), MostBytes[float32, half.BFloat16]())
		}
		check(t, newProblem[float32](true, false, sumRows(active.f32.nc)+17, active.f32.nc+17, 2*active.f32.kc+17, 0, 1, 0, 1))
		rapid.Check(t, func(t *rapid.T) { check(t, drawProblem[float32](t)) })
	})
}

// TestPackedWhole takes A whose rows share a cache set through two blocks of columns, for which it
// is packed once, and expects the bits of A in place.
func TestPackedWhole(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		p := newProblem[float32](false, true, 2*active.f32.mr+3, active.f32.nc+1, 30, 1024-30, 1, 0, 1)
		require.Equal(t, 1024, p.lda)
		var w Workspace
		got := p.gemm(&w)
		if active.f32.inPlace {
			require.Len(t, w.f32.apack, p.m*(p.k+rowGap))
		}
		dense := p
		dense.a, dense.lda = nil, p.k
		for r := range p.m {
			dense.a = append(dense.a, p.a[r*p.lda:][:p.k]...)
		}
		require.Equal(t, dense.gemm(new(Workspace)), got)
	})
}

// TestWorkspace holds the workspace to what its comment promises: no allocation once grown, and a
// bound.
func TestWorkspace(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		var w Workspace
		require.Zero(t, w.Bytes())
		p := newProblem[float32](true, true, 17, 1200, 1000, 0, 1, 0, 1)
		p.gemm(&w)
		held := w.Bytes()
		require.Positive(t, held)
		require.LessOrEqual(t, held, MostBytes[float32, float32]())
		require.LessOrEqual(t, MostBytes[float32, float32](), 11<<19)
		require.Zero(t, testing.AllocsPerRun(3, func() {
			Gemm(&w, p.transA, p.transB, p.m, p.n, p.k, float64(p.alpha), p.a, p.lda, p.b, p.ldb, float64(p.beta), p.c, p.ldc)
		}))
		require.Equal(t, held, w.Bytes())
		require.Zero(t, w.f32.tile, "keeps operands alive")
	})
}
