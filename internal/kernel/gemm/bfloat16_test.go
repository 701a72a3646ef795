package gemm

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/half"
)

// halfProblem is one product of bfloat16 with its operands, and C in both types.
type halfProblem struct {
	transA, transB bool
	m, n, k        int
	alpha, beta    float32
	a, b, bias, c  []half.BFloat16
	wide           []float32
	lda, ldb, ldc  int
}

func (p halfProblem) String() string {
	return fmt.Sprintf("m=%d n=%d k=%d transA=%v transB=%v lda=%d ldb=%d ldc=%d alpha=%v beta=%v",
		p.m, p.n, p.k, p.transA, p.transB, p.lda, p.ldb, p.ldc, p.alpha, p.beta)
}

// A draw makes the bits of a bfloat16.
type draw func(r *rand.Rand) uint16

var draws = map[string]draw{
	// Values of training: [-1, 1).
	"ordinary": func(r *rand.Rand) uint16 { return uint16(half.ToBFloat16(float32(r.Float64()*2 - 1))) },
	// Zeros of both signs and subnormals too, and products around the smallest normal number.
	"small": func(r *rand.Rand) uint16 {
		if r.IntN(4) == 0 {
			return uint16(r.IntN(1<<7) | r.IntN(2)<<15)
		}
		return uint16(r.IntN(2)<<15 | (60+r.IntN(8))<<7 | r.IntN(1<<7))
	},
	// Few bits, so that sums cancel, at the limits of what is plain.
	"limits": func(r *rand.Rand) uint16 {
		return uint16(r.IntN(2)<<15 | (76+r.IntN(3)+112*r.IntN(2))<<7 | r.IntN(4)<<5)
	},
	// Anything, infinities and NaN included.
	"any": func(r *rand.Rand) uint16 { return uint16(r.Uint32()) },
}

func (d draw) fill(seed uint64, n int) []half.BFloat16 {
	r := rand.New(rand.NewPCG(seed, 2))
	s := make([]half.BFloat16, n)
	for i := range s {
		s[i] = half.BFloat16(d(r))
	}
	return s
}

func newHalfProblem(transA, transB bool, m, n, k, gap int, alpha, beta float32, d draw, seed uint64) halfProblem {
	p := halfProblem{transA: transA, transB: transB, m: m, n: n, k: k, alpha: alpha, beta: beta}
	var la, lb, lc int
	la, p.lda = stored(transA, m, k, gap)
	lb, p.ldb = stored(transB, k, n, gap)
	lc, p.ldc = stored(false, m, n, gap)
	p.a, p.b, p.c, p.bias = d.fill(seed, la), d.fill(seed+1, lb), d.fill(seed+2, lc), d.fill(seed+3, n)
	p.wide = make([]float32, lc)
	half.Widen(p.wide, p.c)
	return p
}

func drawHalfProblem(t *rapid.T) halfProblem {
	size := rapid.OneOf(rapid.IntRange(0, 40), rapid.IntRange(0, 40), rapid.IntRange(0, 40), rapid.SampledFrom([]int{63, 64, 65}))
	deep := rapid.SampledFrom([]int{512, 767, 768, 769, 1537, 2081})
	depth := rapid.OneOf(rapid.IntRange(0, 70), rapid.IntRange(0, 70), rapid.IntRange(0, 70), deep)
	scalar := rapid.SampledFrom([]float32{0, 1, 1, -1, 0.3, 3})
	return newHalfProblem(rapid.Bool().Draw(t, "transA"), rapid.Bool().Draw(t, "transB"),
		size.Draw(t, "m"), size.Draw(t, "n"), depth.Draw(t, "k"), rapid.SampledFrom([]int{0, 0, 1, 3, 16}).Draw(t, "gap"),
		scalar.Draw(t, "alpha"), scalar.Draw(t, "beta"), draws[rapid.SampledFrom([]string{"ordinary", "small", "limits", "any"}).Draw(t, "values")],
		rapid.Uint64().Draw(t, "seed"))
}

func (p halfProblem) gemm(w *Workspace) []float32 {
	c := slices.Clone(p.wide)
	Gemm(w, p.transA, p.transB, p.m, p.n, p.k, float64(p.alpha), p.a, p.lda, p.b, p.ldb, float64(p.beta), c, p.ldc)
	return c
}

func (p halfProblem) rounded(w *Workspace) []half.BFloat16 {
	c := slices.Clone(p.c)
	Gemm(w, p.transA, p.transB, p.m, p.n, p.k, float64(p.alpha), p.a, p.lda, p.b, p.ldb, float64(p.beta), c, p.ldc)
	return c
}

func (p halfProblem) gemmBias(w *Workspace) []half.BFloat16 {
	c := slices.Clone(p.c)
	GemmBias(w, p.transA, p.transB, p.m, p.n, p.k, p.a, p.lda, p.b, p.ldb, p.bias, c, p.ldc)
	return c
}

// naive computes what [Gemm] does with a result in float32, by the rule in the package comment.
func (p halfProblem) naive() []float32 {
	c := slices.Clone(p.wide)
	va, vb := operand(p.transA, p.a, p.lda), operand(!p.transB, p.b, p.ldb)
	at := func(v view[half.BFloat16], i, k int) float32 {
		if k < p.k {
			return v.at(i, k).Float32()
		}
		return 0
	}
	most, pair, addTerms := 768, 2, func(sum float32, a, b []float32) float32 {
		return fused(a[0], b[0], fused(a[1], b[1], sum))
	}
	switch {
	case active.bf16.tiles:
		most, pair, addTerms = 512, 32, func(sum float32, a, b []float32) float32 {
			var even, odd float32
			for p := 0; p < len(a); p += 2 {
				even, odd = fused(a[p], b[p], even), fused(a[p+1], b[p+1], odd)
			}
			return fused(1, sum, fused(1, even, odd))
		}
	case active.name == "neonbf16":
		pair, addTerms = 4, func(sum float32, a, b []float32) float32 { return dotAdd(dotAdd(sum, a, b), a[2:], b[2:]) }
	}
	depth := newSplit(p.k, most, pair)
	x, y := make([]float32, pair), make([]float32, pair)
	for i := range p.m {
		for j := range p.n {
			beta := p.beta
			for part := range depth.parts {
				var sum float32
				lo, hi := depth.bounds(part)
				for k := lo; k < hi; k += pair {
					for q := range pair {
						x[q], y[q] = at(va, i, k+q), at(vb, j, k+q)
					}
					sum = addTerms(sum, x, y)
				}
				sum = fused(p.alpha, sum, negativeZero)
				if beta != 0 {
					sum = fused(beta, c[i*p.ldc+j], sum)
				}
				c[i*p.ldc+j], beta = sum, 1
			}
		}
	}
	return c
}

// dotAdd adds a dot product of two terms as BFMMLA does.
func dotAdd(sum float32, a, b []float32) float32 {
	product := func(i int) float32 { return toOdd(float64(flush(a[i])) * float64(flush(b[i]))) }
	return addOdd(sum, addOdd(product(0), product(1)))
}

// addOdd returns x + y, rounded to odd.
func addOdd(x, y float32) float32 {
	a, b := float64(flush(x)), float64(flush(y))
	sum := a + b
	if math.IsInf(sum, 0) || sum != sum {
		return float32(sum)
	}
	other := sum - a
	lost := (a - (sum - other)) + (b - other)
	if bits := math.Float64bits(sum); lost != 0 && bits&1 == 0 {
		if (lost > 0) == (sum > 0) {
			bits++
		} else {
			bits--
		}
		sum = math.Float64frombits(bits)
	}
	return toOdd(sum)
}

// toOdd rounds to odd: what is between two numbers becomes the one with an odd last digit, from
// 2^128 on infinity. Subnormal numbers become zeros.
func toOdd(x float64) float32 {
	switch {
	case math.IsInf(x, 0) || x != x:
		return float32(x)
	case math.Abs(x) < smallestNormal:
		return float32(math.Copysign(0, x))
	case math.Abs(x) >= 0x1p128:
		return float32(math.Copysign(math.Inf(1), x))
	}
	toZero := math.Float64frombits(math.Float64bits(x) &^ (1<<29 - 1))
	f := float32(toZero)
	if toZero != x {
		f = math.Float32frombits(math.Float32bits(f) | 1)
	}
	return f
}

// roundedFrom returns C in bfloat16, given what the result in float32 is.
func (p halfProblem) roundedFrom(wide []float32) []half.BFloat16 {
	c := slices.Clone(p.c)
	for i := range p.m {
		if p.n > 0 {
			half.Narrow(c[i*p.ldc:][:p.n], wide[i*p.ldc:])
		}
	}
	return c
}

// requireBits compares bit for bit, but one NaN with another. Whole slices are compared, so that a
// write into the gaps between the rows of C shows too.
func requireBits(t require.TestingT, p halfProblem, want, got []float32) {
	for i := range want {
		if w, g := want[i], got[i]; math.Float32bits(w) != math.Float32bits(g) && (w == w || g == g) {
			require.Failf(t, "wrong element", "%v: C[%d][%d] is %v (%#08x), want %v (%#08x)",
				p, i/p.ldc, i%p.ldc, g, math.Float32bits(g), w, math.Float32bits(w))
		}
	}
}

func widened(s []half.BFloat16) []float32 {
	wide := make([]float32, len(s))
	half.Widen(wide, s)
	return wide
}

// TestBFloat16 holds every instruction set to the same bits.
func TestBFloat16(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		var w Workspace
		rapid.Check(t, func(t *rapid.T) {
			p := drawHalfProblem(t)
			want := p.naive()
			requireBits(t, p, want, p.gemm(&w))
			requireBits(t, p, widened(p.roundedFrom(want)), widened(p.rounded(&w)))
		})
	})
}

// TestBFloat16EverywhereTheSame holds all processors, not only all instruction sets of this one, to
// the same bits.
func TestBFloat16EverywhereTheSame(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		sum := crc32.NewIEEE()
		for _, values := range []string{"ordinary", "small"} {
			p := newHalfProblem(false, true, 29, 37, 803, 0, 0.7, 1, draws[values], 5)
			require.NoError(t, binary.Write(sum, binary.LittleEndian, p.gemm(new(Workspace))))
		}
		want := uint32(0xbff95b71)
		switch {
		case active.bf16.tiles:
			want = 0x2d9d5e54 // TDPBF16PS sums in its own order
		case active.name == "neonbf16":
			want = 0x5742265c // BFMMLA rounds in its own way
		}
		require.Equal(t, want, sum.Sum32())
	})
}

// TestBFloat16JustBelowNormal: a sum that rounds to the smallest normal number from below is that,
// but zero with NEON, which looks at it before it rounds.
func TestBFloat16JustBelowNormal(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		a := []half.BFloat16{half.ToBFloat16(-0x1p-80), half.ToBFloat16(0x1p-63)}
		b := []half.BFloat16{half.ToBFloat16(0x1p-80), half.ToBFloat16(0x1p-63)}
		c, want := make([]float32, 1), float32(smallestNormal)
		if active.name == "neon" {
			want = 0
		}
		Gemm(new(Workspace), false, true, 1, 1, 2, 1, a, 2, b, 2, 0, c, 1)
		require.Equal(t, want, c[0])
	})
}

func TestBFloat16Bias(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		var w Workspace
		rapid.Check(t, func(t *rapid.T) {
			p := drawHalfProblem(t)
			p.alpha, p.beta = 1, 1
			got := p.gemmBias(&w)
			for i := range p.m {
				half.Widen(p.wide[i*p.ldc:][:p.n], p.bias)
			}
			requireBits(t, p, widened(p.roundedFrom(p.naive())), widened(got))
		})
	})
}

// TestBFloat16CloseToFloat64 compares with sums in float64: the rule itself makes sense.
func TestBFloat16CloseToFloat64(t *testing.T) {
	p := newHalfProblem(false, true, 9, 11, 1001, 0, 0.5, 2, draws["ordinary"], 1)
	va, vb := operand(p.transA, p.a, p.lda), operand(!p.transB, p.b, p.ldb)
	for at, got := range p.gemm(new(Workspace)) {
		i, j := at/p.ldc, at%p.ldc
		want := 2 * float64(p.wide[at])
		for k := range p.k {
			want += 0.5 * float64(va.at(i, k).Float32()) * float64(vb.at(j, k).Float32())
		}
		require.InDelta(t, want, got, 1e-5)
	}
}

// TestBFloat16StridesThatShareACacheSet takes the way through packed A that rows a multiple of 4096
// bytes apart take.
func TestBFloat16StridesThatShareACacheSet(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		p := newHalfProblem(false, true, 31, 67, 30, 2048-30, 0.5, 1, draws["ordinary"], 7)
		require.Equal(t, 2048, p.lda)
		requireBits(t, p, p.naive(), p.gemm(new(Workspace)))
	})
}

// TestStepsOfFewElements: fewer elements than a step have no steps, as a pointer to one would reach
// beyond them.
func TestStepsOfFewElements(t *testing.T) {
	elements := make([]half.BFloat16, 5)
	require.Nil(t, steps[float32](elements[:1]))
	require.Nil(t, steps[float32](elements[:0]))
	require.Len(t, steps[float32](elements), 2)
}

// TestBFloat16Blocks takes results in bfloat16 through several blocks of rows and columns.
func TestBFloat16Blocks(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		p := newHalfProblem(false, true, 2*stripsAtOnce*active.bf16.mr+17, min(active.bf16.nc, 448)+17, 770, 1, 1, 1, draws["ordinary"], 1)
		var w Workspace
		want := p.gemm(&w)
		require.Equal(t, p.roundedFrom(want), p.rounded(&w))
		require.LessOrEqual(t, w.Bytes(), MostBytes[half.BFloat16, half.BFloat16]())
		require.LessOrEqual(t, MostBytes[half.BFloat16, half.BFloat16](), 7<<20)
	})
}

// TestBFloat16Whole takes A that tiles pack once for two blocks of columns: with columns along k,
// and with rows that share sets of a cache.
func TestBFloat16Whole(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		if !active.bf16.tiles {
			return
		}
		for transA, gap := range map[bool]int{true: 0, false: 2048 - 32} {
			p := newHalfProblem(transA, false, stripsAtOnce*active.bf16.mr+1, mostColumns+1, 32, gap, 1, 1, draws["ordinary"], 1)
			var w Workspace
			want := p.gemm(&w)
			requireBits(t, p, p.naive(), want)
			require.Len(t, w.f32.apack, p.m*(active.bf16.depth(p.k)+rowGap))
			require.Equal(t, p.roundedFrom(want), p.rounded(&w))
			require.LessOrEqual(t, w.Bytes(), MostBytes[half.BFloat16, half.BFloat16]())
		}
	})
}

// TestBFloat16PackedOnce takes results in bfloat16 through blocks of rows with two groups of ranges
// of k, and through three groups, for which tiles do not pack B once.
func TestBFloat16PackedOnce(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		var w Workspace
		for _, k := range []int{1030, 2060} {
			p := newHalfProblem(true, false, 400, 40, k, 1, 1, 1, draws["ordinary"], 1)
			require.Equal(t, p.roundedFrom(p.gemm(&w)), p.rounded(&w))
			require.LessOrEqual(t, w.Bytes(), MostBytes[half.BFloat16, half.BFloat16]())
		}
	})
}

// TestBFloat16Streamed compares weight gradients that tiles write past the caches with the same
// gradients at an address that does not allow it: in one block of columns, and in two with gaps.
func TestBFloat16Streamed(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		if !active.bf16.tiles {
			return
		}
		for _, size := range [][4]int{{273, 256, 33, 0}, {63, mostColumns + 32, 64, 16}} {
			p := newHalfProblem(true, false, size[0], size[1], size[2], size[3], 0.3, 0, draws["ordinary"], 1)
			gemm := func(c []float32) []float32 {
				var w Workspace
				x := newProduct(&w, p.m, p.n, p.k, p.alpha, operand(true, p.a, p.lda), operand(true, p.b, p.ldb))
				x.c, x.ldc, x.add = c, p.ldc, addend[float32]{c, p.ldc, 0}
				require.Equal(t, uintptr(unsafe.Pointer(&c[0]))%cacheLine == 0, x.mayStream())
				x.run()
				return c
			}
			streamed := slices.Clone(p.wide)
			require.Zero(t, uintptr(unsafe.Pointer(&streamed[0]))%cacheLine)
			requireBits(t, p, gemm(slices.Concat([]float32{0}, p.wide)[1:]), gemm(streamed))
		}
	})
}

func TestBFloat16Workspace(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		var w Workspace
		p := newHalfProblem(false, true, 9, 8, 7, 0, 1, 1, draws["ordinary"], 1)
		require.Zero(t, testing.AllocsPerRun(3, func() {
			Gemm(&w, p.transA, p.transB, p.m, p.n, p.k, 1, p.a, p.lda, p.b, p.ldb, 1, p.wide, p.ldc)
			Gemm(&w, p.transA, p.transB, p.m, p.n, p.k, 1, p.a, p.lda, p.b, p.ldb, 1, p.c, p.ldc)
			GemmBias(&w, p.transA, p.transB, p.m, p.n, p.k, p.a, p.lda, p.b, p.ldb, p.bias, p.c, p.ldc)
		}))
		require.Positive(t, w.Bytes())
		require.Zero(t, w.f32.tile, "keeps operands alive")
	})
}

// TestBFloat16DoesNotDependOnNeighbours computes a part of a product and expects the bits that the
// whole has there.
func TestBFloat16DoesNotDependOnNeighbours(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		var w Workspace
		rapid.Check(t, func(t *rapid.T) {
			p := drawHalfProblem(t)
			if p.m == 0 || p.n == 0 || p.k == 0 {
				return
			}
			i0, j0 := rapid.IntRange(0, p.m-1).Draw(t, "i0"), rapid.IntRange(0, p.n-1).Draw(t, "j0")
			part := p
			part.m, part.n = rapid.IntRange(1, p.m-i0).Draw(t, "rows"), rapid.IntRange(1, p.n-j0).Draw(t, "columns")
			part.a = operand(p.transA, p.a, p.lda).tail(i0, 0)
			part.b = operand(!p.transB, p.b, p.ldb).tail(j0, 0)
			part.wide = p.wide[i0*p.ldc+j0:]
			whole, got := p.gemm(&w)[i0*p.ldc+j0:], part.gemm(new(Workspace))
			for i := range part.m {
				requireBits(t, part, whole[i*p.ldc:][:part.n], got[i*p.ldc:][:part.n])
			}
		})
	})
}

func TestBFloat16Misuse(t *testing.T) {
	var w Workspace
	p := newHalfProblem(false, true, 4, 5, 6, 0, 1, 0, draws["ordinary"], 1)
	require.PanicsWithValue(t, "gemm: products of half.BFloat16 are not summed in float64", func() {
		Gemm(&w, false, true, 4, 5, 6, 1, p.a, 6, p.b, 6, 0, make([]float64, 20), 5)
	})
	require.PanicsWithValue(t, "gemm: A, stored as [4, 6] with leading dimension 6, does not fit 23 elements", func() {
		p.a = p.a[:23]
		p.rounded(&w)
	})
}

// TestFused compares with arithmetic of 1000 bits.
func TestFused(t *testing.T) {
	near := rapid.Custom(func(t *rapid.T) float32 { // around the smallest normal number
		return math.Float32frombits(rapid.Uint32Range(0, 3<<23).Draw(t, "magnitude") | uint32(rapid.IntRange(0, 1).Draw(t, "sign"))<<31)
	})
	bits := rapid.Custom(func(t *rapid.T) float32 { return math.Float32frombits(rapid.Uint32().Draw(t, "bits")) })
	middle := rapid.Custom(func(t *rapid.T) float32 { return rapid.Float32Range(0x1p-64, 0x1p-62).Draw(t, "factor") })
	rapid.Check(t, func(t *rapid.T) {
		factor := rapid.OneOf(bits, middle, rapid.Float32Range(-2, 2))
		x, y, z := factor.Draw(t, "x"), factor.Draw(t, "y"), rapid.OneOf(bits, near, rapid.Float32Range(-2, 2)).Draw(t, "z")
		want, got := exactFused(x, y, z), fused(x, y, z)
		if want != want {
			require.True(t, got != got)
			return
		}
		require.Equal(t, math.Float32bits(want), math.Float32bits(got), "%g * %g + %g is %g, want %g", x, y, z, got, want)
	})
}

func exactFused(x, y, z float32) float32 {
	x, y, z = flush(x), flush(y), flush(z)
	ordinary := func(f float32) bool { return f-f == 0 }
	if !ordinary(x) || !ordinary(y) || !ordinary(z) {
		return float32(float64(x)*float64(y) + float64(z))
	}
	number := func(f float32) *big.Float { return new(big.Float).SetPrec(1000).SetFloat64(float64(f)) }
	sum := number(x)
	sum.Add(sum.Mul(sum, number(y)), number(z))
	if sum.Sign() == 0 {
		return float32(float64(x)*float64(y) + float64(z)) // for the sign
	}
	sum.SetMode(big.ToNearestEven).SetPrec(24)
	f, _ := sum.Float32()
	return flush(f)
}
