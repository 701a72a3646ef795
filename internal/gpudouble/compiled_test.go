//go:build linux && cgo

package gpudouble_test

import (
	_ "embed"
	"encoding/binary"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/gpudouble"
	"github.com/gofsdp/gofsdp/internal/half"
)

var (
	//go:embed testdata/math.ptx
	mathText string
	//go:embed testdata/language.ptx
	languageText string
	//go:embed testdata/matrices.ptx
	matricesText string
)

func one(f func(float64) float64) func(x, z float64) float64 {
	return func(x, _ float64) float64 { return f(x) }
}

// mathFunctions are those of testdata/math.cu, and how far float32 may be away, of the result's
// size, if that is more than exact instructions give.
var mathFunctions = map[string]struct {
	f   func(x, z float64) float64
	tol float64
}{
	"exp": {f: one(math.Exp)}, "exp2": {f: one(math.Exp2)}, "expm1": {f: one(math.Expm1)}, "log": {f: one(math.Log)}, "log2": {f: one(func(x float64) float64 { return math.Log(x) / math.Ln2 })},
	"log1p": {f: one(math.Log1p)}, "erf": {f: one(math.Erf)}, "tanh": {f: one(math.Tanh)}, "sin": {f: one(math.Sin)}, "cos": {f: one(math.Cos)},
	"sqrt": {f: one(math.Sqrt)}, "rsqrt": {f: one(func(x float64) float64 { return 1 / math.Sqrt(x) })}, "floor": {f: one(math.Floor)},
	"ceil": {f: one(math.Ceil)}, "rint": {f: one(math.RoundToEven)}, "trunc": {f: one(math.Trunc)}, "round": {f: one(math.Round)},
	"pow": {f: math.Pow}, "copysign": {f: math.Copysign}, "fmod": {f: math.Mod}, "atan2": {f: math.Atan2},
	"fmin": {f: least}, "fmax": {f: func(x, z float64) float64 { return -least(-x, -z) }},
	"div":     {f: func(x, z float64) float64 { return x / z }},
	"sigmoid": {f: one(func(x float64) float64 { return 1 / (1 + math.Exp(-x)) })},
	"finite": {f: one(func(x float64) float64 {
		if math.IsInf(x, 0) || math.IsNaN(x) {
			return 0
		}
		return 1
	})},
	"fast_exp": {one(math.Exp), 1e-4}, "fast_log": {one(math.Log), 1e-4}, "fast_sin": {one(math.Sin), 1e-2}, "fast_cos": {one(math.Cos), 1e-2},
	"fast_pow": {func(x, z float64) float64 { return math.Exp2(z * math.Log2(x)) }, 1e-2}, "fast_div": {func(x, z float64) float64 { return x / z }, 1e-6},
	"saturate": {f: one(func(x float64) float64 {
		if math.IsNaN(x) {
			return 0
		}
		return clamp(x, 0, 1)
	})},
}

// TestMath runs what NVRTC makes of the functions of the math library: their float64 ones consist
// of tables, calls, carries and approximate instructions. Go's own Pow is off by up to 3e-15.
func TestMath(t *testing.T) {
	m := newMachine(t)
	mod := m.load(mathText)
	r := rand.New(rand.NewPCG(1, 2))
	const n = 1000
	x, z := make([]float64, n), make([]float64, n)
	special := []float64{0, math.Copysign(0, -1), 1, -1, 0.5, 2.5, math.Inf(1), math.Inf(-1), math.NaN(), 1e6, -1e6, 88, -100, 3e-39, 709, 1e30}
	for i := range x {
		x[i] = float64(float32(r.NormFloat64() * math.Exp2(float64(r.IntN(16)-10))))
		z[i] = float64(float32(r.NormFloat64() * 3))
	}
	for i, s := range special {
		x[i], x[n-1-i], z[n-1-i] = float64(float32(s)), special[len(special)-1-i], float64(float32(s))
		x[n-1-i] = float64(float32(x[n-1-i]))
	}
	for name, of := range mathFunctions {
		fast := of.tol > 0
		if name != "saturate" && !fast {
			y := values(make([]float64, n))
			require.NoError(t, m.run(function(t, mod, name+"_f64"), 8, 128, 0, y, values(x), values(z), int32(n)), name)
			closeTo(t, name+"_f64", of.f, x, z, decode[float64](y), 4e-15, math.SmallestNonzeroFloat64*4)
		}
		narrow := func(x []float64) (list []float32) {
			for _, v := range x {
				list = append(list, float32(v))
			}
			return list
		}
		y := values(make([]float32, n))
		require.NoError(t, m.run(function(t, mod, name+"_f32"), 8, 128, 0, y, values(narrow(x)), values(narrow(z)), int32(n)), name)
		wide := make([]float64, n)
		for i, v := range decode[float32](y) {
			wide[i] = float64(v)
		}
		closeTo(t, name+"_f32", of.f, x, z, wide, max(1e-6, of.tol), max(1e-38, of.tol*1e-3))
	}
}

// closeTo compares results with a function, to within tol of their size or least.
func closeTo(t *testing.T, name string, f func(x, z float64) float64, x, z, got []float64, tol, least float64) {
	t.Helper()
	for i, g := range got {
		want := f(x[i], z[i])
		if tol > 1e-7 {
			want = float64(float32(want))
			if least > 1e-7 && (math.Abs(x[i]) > 80 || math.Abs(want) > 1e30 || want != want || math.Abs(x[i]) < 1e-30) {
				continue // where the fast functions make no promise
			}
		}
		switch {
		case want == g || want != want && g != g:
		case math.Abs(want-g) > tol*math.Abs(want)+least || want != want || g != g:
			t.Fatalf("%s(%v, %v) = %v, want %v", name, x[i], z[i], g, want)
		}
	}
}

// TestLanguage runs testdata/language.cu: every kernel in both orders.
func TestLanguage(t *testing.T) {
	m := newMachine(t)
	for name, checks := range map[string]gpudouble.Check{
		"in order": gpudouble.Races | gpudouble.Unset, "reversed": gpudouble.Races | gpudouble.Unset | gpudouble.Reverse, "unchecked": 0,
	} {
		t.Run(name, func(t *testing.T) {
			m := &machine{t, m.cuda, m.d, m.s}
			m.cuda.Checks(t, checks)
			t.Run("functions", m.functions)
			t.Run("local", m.local)
			t.Run("parameters", m.parameters)
			t.Run("switches", m.switches)
			t.Run("generic", m.generic)
			t.Run("vectors", m.vectors)
			t.Run("converts", m.converts)
			t.Run("warps", m.warps)
			t.Run("atomics", m.atomics)
		})
	}
}

// launch runs a kernel of testdata/language.cu.
func (m *machine) launch(t *testing.T, name string, grid, block, shared int, args ...any) {
	t.Helper()
	require.NoError(t, m.run(function(t, m.load(languageText), name), grid, block, shared, args...))
}

func sequence[T any](n int, f func(i int) T) (list []T) {
	for i := range n {
		list = append(list, f(i))
	}
	return list
}

func (m *machine) functions(t *testing.T) {
	const n = 50
	x := sequence(n, func(i int) float64 { return float64(i)/16 - 1 })
	y := values(make([]float64, 4*n))
	m.launch(t, "functions", 1, 64, 0, y, values(x), int32(n))
	got := decode[float64](y)
	for i, x := range x {
		var series float32
		for range i {
			series = float32(math.FMA(float64(series), x, 1))
		}
		nested, third := -x, 0.0
		if i%2 == 0 {
			nested = x*float64(i) - (x - float64(i))
		}
		if i%3 != 0 {
			third = x * float64(i)
		}
		require.Equal(t, float64(int(1)<<(i&3)*(i&3+1)*10), got[i])
		require.InEpsilon(t, float64(series)+1e-9, got[n+i]+1e-9, 1e-5)
		require.InDelta(t, nested, got[2*n+i], 1e-12)
		require.Equal(t, third, got[3*n+i])
	}
}

func (m *machine) local(t *testing.T) {
	const n = 32
	x := sequence(n, func(i int) float32 { return float32(i * i) })
	at := sequence(16, func(i int) int32 { return int32(7 * i) })
	y := values(make([]float32, n))
	m.launch(t, "local", 1, n, 0, y, values(x), values(at), int32(n))
	for i, got := range decode[float32](y) {
		var table [16]float32
		for k := range table {
			table[k] = x[(i+k)%n]
		}
		for k := range table {
			table[at[k]&15] += float32(k)
		}
		var sum float32
		for k, v := range table {
			sum += float32(k+1) * v
		}
		require.Equal(t, sum, got)
	}
}

func (m *machine) parameters(t *testing.T) {
	f := function(t, m.load(languageText), "parameters")
	require.Equal(t, []int{8, 1, 2, 1, 4, 8}, f.Params())
	y := values(make([]float64, 4))
	mem := m.upload(y)
	args := []uint64{uint64(mem.Addr()), 0xf0, 0x8000, 1, b32(0.5), b64(0.25)}
	require.NoError(t, f.LaunchArgs(m.s, [3]int{1, 1, 1}, [3]int{4, 1, 1}, 0, args))
	m.download(y, mem)
	require.NoError(t, mem.Free())
	const first = -16 - 32768 + 100 + 0.5
	require.Equal(t, []float64{first, first + 0.25, first + 0.5, first + 0.75}, decode[float64](y))
}

func (m *machine) switches(t *testing.T) {
	x := sequence(32, func(i int) int32 { return int32(i*5) % 7 })
	y := values(make([]int32, 64))
	m.launch(t, "switches", 1, 32, 0, y, values(x))
	for i, got := range decode[int32](y)[:32] {
		root := int32(math.Ceil(math.Sqrt(float64(i))))
		want := []int32{5, 9, x[i^1], int32(100 / (i + 1)), root, 0, -1}[x[i]]
		require.Equal(t, want, got, i)
	}
}

func (m *machine) generic(t *testing.T) {
	const n = 64
	x := sequence(n, func(i int) float32 { return float32(i) / 2 })
	y := values(make([]float32, 2*n))
	m.launch(t, "generic", 1, n, 8*n, y, values(x))
	got := decode[float32](y)
	for i := range n {
		in, shared := x[63-i]+float32((i+1)&63)+2*x[(i+5)&63], x[i]
		if i%2 == 0 {
			in++
		} else {
			shared++
		}
		require.Equal(t, []float32{in, shared}, []float32{got[i], got[n+i]}, i)
	}
}

func (m *machine) vectors(t *testing.T) {
	const n = 16
	x := sequence(4*n, func(i int) float32 { return float32(i) })
	c := sequence(4*n, func(i int) uint8 { return uint8(i * 37) })
	h := sequence(4*n, func(i int) int16 { return int16(i*1000 - 9) })
	l := sequence(2*n, func(i int) int64 { return int64(i) << 40 })
	y, cs, hs, ls := values(make([]float32, 4*n)), values(c), values(h), values(l)
	m.launch(t, "vectors", 1, n, 0, y, values(x), cs, hs, ls)
	for i := range n {
		v, w, u := x[4*i:4*i+4], c[4*i:4*i+4], h[4*i:4*i+4]
		require.Equal(t, []float32{v[3], v[2], v[1], v[0]}, decode[float32](y)[4*i:4*i+4])
		require.Equal(t, []uint8{w[0] + w[1], w[2], w[3], 7}, decode[uint8](cs)[4*i:4*i+4])
		require.Equal(t, []int16{u[1] * u[2], u[0], -u[3], 7}, decode[int16](hs)[4*i:4*i+4])
		require.Equal(t, []int64{l[2*i+1] + 1, l[2*i] - 1}, decode[int64](ls)[2*i:2*i+2])
	}
}

func (m *machine) converts(t *testing.T) {
	x := []float64{0, 1.5, -1.5, 2.5, 100.7, 255.9, 1e5, 123456789.123, 65535.5, 3e9, 1 << 40, 1<<53 - 1}
	n := len(x)
	y := values(make([]float64, 25*n))
	m.launch(t, "converts", 1, 32, 0, y, values(x), int32(n))
	got := decode[float64](y)
	for i, x := range x {
		f := float64(float32(x))
		small := func(v float64) float64 { return math.Trunc(clamp(v, math.MinInt32, math.MaxInt32)) }
		unsigned := func(v, most float64) float64 { return math.Trunc(clamp(v, 0, most)) }
		want := map[int]float64{
			0: small(x), 1: math.Trunc(x), 2: unsigned(x, math.MaxUint32), 3: unsigned(x, math.MaxUint64), 4: small(f), 5: math.Trunc(f),
			6: unsigned(f, math.MaxUint32), 7: unsigned(f, math.MaxUint64), 8: float64(float32(int64(x))), 9: float64(float32(int32(small(x)))),
			10: float64(int16(int32(small(x)))), 11: float64(int8(int32(small(x)))), 12: float64(uint16(int32(small(x)))),
			13: clamp(math.RoundToEven(f), math.MinInt32, math.MaxInt32), 15: clamp(math.Floor(x), math.MinInt32, math.MaxInt32),
			16: math.Ceil(f), 18: f64(b64(x) &^ math.MaxUint32), 19: clamp(math.Ceil(f), 0, math.MaxUint32), 24: float64(uint8(int32(small(x)))),
			20: float64(float32(unsigned(x, math.MaxUint64))),
		}
		for row, w := range want {
			require.Equal(t, w, got[row*n+i], "row %d of %v", row, x)
		}
		require.LessOrEqual(t, math.Abs(got[14*n+i]), math.Abs(x))
		require.InEpsilon(t, x+1, got[14*n+i]+1, 1.3e-7)
		require.LessOrEqual(t, math.Abs(got[17*n+i]), math.Abs(math.Trunc(x)))
		require.LessOrEqual(t, got[21*n+i], f+1)
		require.GreaterOrEqual(t, got[22*n+i], f*f)
		require.Less(t, math.Abs(got[23*n+i]-(x+0.1)), 1e-15*math.Abs(x)+2e-16)
	}
}

func (m *machine) warps(t *testing.T) {
	x := sequence(64, func(i int) uint32 { return uint32(i*7) % 50 })
	y := values(make([]uint32, 17*64))
	m.launch(t, "warps", 1, 64, 0, y, values(x))
	got := decode[uint32](y)
	for i := range x {
		warp := x[i/32*32 : i/32*32+32]
		lane := i % 32
		var ballot, same, sum uint32
		odd, some := uint32(0), uint32(0)
		for l, v := range warp {
			ballot |= v & 1 << l
			if v&3 == x[i]&3 {
				same |= 1 << l
			}
			sum += v
		}
		for _, v := range x {
			odd += v & 1
			some |= uint32(truth(v == 5))
		}
		var half uint32
		for l, v := range warp {
			if l&2 != 0 {
				half += v
			}
		}
		up, down := x[i], x[i]
		if lane >= 2 {
			up = warp[lane-2]
		}
		if lane < 27 {
			down = warp[lane+5]
		}
		want := []uint32{
			warp[3], up, down, warp[lane^7], warp[lane&^7|lane&3], ballot, uint32(truth(slices.Contains(warp, 5))), 1, same, 0, sum, slices.Max(warp),
			odd, some, 1, math.MaxUint32, half * uint32(lane>>1&1),
		}
		for row, w := range want {
			require.Equal(t, w, got[row*64+i], "row %d of lane %d", row, i)
		}
	}
	require.Equal(t, 0, bits.OnesCount32(got[9*64]))
}

func (m *machine) atomics(t *testing.T) {
	const n = 100
	x := sequence(n, func(i int) int32 { return int32(i*31%97) - 40 })
	s := make([]int32, 10)
	s[3] = -1
	ints, longs, floats := values(s), values(make([]uint64, 2)), values([]float32{0.5})
	m.launch(t, "atomics", 4, 25, 0, ints, longs, floats, values(x))
	var sum int32
	and, or, xor := int32(-1), int32(0), int32(0)
	var wide uint64
	for _, v := range x {
		sum, and, or, xor = sum+v, and&v, or|v, xor^v
		wide += uint64(int64(v)) << 32
	}
	got := decode[int32](ints)
	require.Equal(t, []int32{sum, slices.Max(x), slices.Min(x), and, or, xor, n % 5}, got[:7])
	winner := got[8] - 1
	require.Equal(t, x[winner], got[9])
	require.Equal(t, wide, decode[uint64](longs)[0])
	require.Equal(t, []float32{n + 0.5}, decode[float32](floats))
	require.Equal(t, 40, binary.Size(s))
}

// TestMatrices compares the instructions of tensor cores with the sum of products that they are.
func TestMatrices(t *testing.T) {
	m := newMachine(t)
	text := m.load(matricesText)
	for name, number := range map[string]struct {
		of func(a uint64) uint64
		to func(bits uint16) float32
	}{
		"product":     {bf16, func(bits uint16) float32 { return half.BFloat16(bits).Float32() }},
		"product_f16": {f16, func(bits uint16) float32 { return half.Float16(bits).Float32() }},
	} {
		r := rand.New(rand.NewPCG(1, 2))
		random := func(n int) []uint16 {
			return sequence(n, func(int) uint16 { return uint16(number.of(b32(float32(r.NormFloat64())))) })
		}
		a, b := random(16*16), random(16*8)
		y := values(make([]float32, 16*8))
		require.NoError(t, m.run(function(t, text, name), 1, 32, 0, y, values(a), values(b), float32(-2), int32(3)))
		for i, got := range decode[float32](y) {
			var sum float64
			for k := range 16 {
				sum += float64(number.to(a[i/8*16+k])) * float64(number.to(b[k*8+i%8]))
			}
			require.InDelta(t, -6*sum, got, 1e-5, name)
		}
	}
}

// BenchmarkMachine reports how many instructions run in a second, counted for each lane.
func BenchmarkMachine(b *testing.B) {
	m := newMachine(b)
	const n = 1 << 18
	x, y := values(make([]float32, n)), values(make([]float32, n))
	sevenths := values(sequence(n, func(i int) float32 { return float32(i%7) / 7 }))
	left, right := values(make([]uint16, 256)), values(make([]uint16, 128))
	for _, kernel := range []struct {
		name        string
		text        string
		grid, block int
		args        []any
	}{
		{"exp_f32", mathText, n / 256, 256, []any{y, sevenths, x, int32(n)}},
		{"exp_f64", mathText, n / 2 / 256, 256, []any{y, sevenths, x, int32(n / 2)}},
		{"squares", matricesText, 16, 256, []any{y, sevenths, int32(n)}},
		{"product", matricesText, 64, 32, []any{y, left, right, float32(1), int32(1000)}},
	} {
		f := function(b, m.load(kernel.text), kernel.name)
		for name, checks := range map[string]gpudouble.Check{"unchecked": 0, "checked": gpudouble.Races | gpudouble.Unset} {
			b.Run(kernel.name+"/"+name, func(b *testing.B) {
				m.cuda.Checks(b, checks)
				before := m.cuda.Live("instructions")
				for b.Loop() {
					require.NoError(b, m.run(f, kernel.grid, kernel.block, 0, kernel.args...))
				}
				b.ReportMetric(float64(m.cuda.Live("instructions")-before)/b.Elapsed().Seconds()/1e6, "M/s")
			})
		}
	}
}
