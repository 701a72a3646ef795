package vec

import (
	"fmt"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/internal/half"
)

// benchmark is a primitive on n float32 elements: how many bytes an element moves, and the call.
type benchmark struct {
	name  string
	bytes int
	call  func(s [][]float32)
}

var benchmarks = []benchmark{
	{"copy", 8, func(s [][]float32) { copy(s[0], s[1]) }},
	{"Add", 12, func(s [][]float32) { Add(s[0], s[1], s[2]) }},
	{"Accumulate", 12, func(s [][]float32) { Accumulate(s[0], s[1]) }},
	{"AddScaled", 12, func(s [][]float32) { AddScaled(s[0], s[1], 0) }},
	{"ScaleTo", 8, func(s [][]float32) { ScaleTo(s[0], 0.5, s[1]) }},
	{"Sum", 4, func(s [][]float32) { Sum(s[0]) }},
	{"SumSquares", 4, func(s [][]float32) { SumSquares(s[0]) }},
	{"Squares", 4, func(s [][]float32) { q := NewSquares(2); AddSquares(&q, s[0]) }},
	{"MaxAbs", 4, func(s [][]float32) { MaxAbs(s[0]) }},
	{"Max", 4, func(s [][]float32) { Max(s[0]) }},
	{"TreeSum4", 20, func(s [][]float32) { TreeSum(s[0], s[:4], 0.25) }},
	{"ReLU", 8, func(s [][]float32) { ReLU(s[0], s[1]) }},
	{"Less", 12, func(s [][]float32) { Less(s[0], s[1], s[2]) }},
	{"Greater", 12, func(s [][]float32) { Greater(s[0], s[1], s[2]) }},
	{"Exp", 8, func(s [][]float32) { Exp(s[0], s[1]) }},
	{"Log", 8, func(s [][]float32) { Log(s[0], s[3]) }},
	{"Tanh", 8, func(s [][]float32) { Tanh(s[0], s[1]) }},
	{"Sigmoid", 8, func(s [][]float32) { Sigmoid(s[0], s[1]) }},
	{"ExpSubSum", 8, func(s [][]float32) { ExpSubSum(s[0], s[1], 1, 0) }},
	{"GELUErf", 8, func(s [][]float32) { GELUErf(s[0], s[1]) }},
	{"GELUErfGrad", 12, func(s [][]float32) { GELUErfGrad(s[0], s[1], s[2]) }},
	{"GELUTanh", 8, func(s [][]float32) { GELUTanh(s[0], s[1]) }},
	{"GELUTanhGrad", 12, func(s [][]float32) { GELUTanhGrad(s[0], s[1], s[2]) }},
	{"SoftmaxRow256", 8, rowsOf(256, func(r [][]float32) { SoftmaxRow(r[0], r[1], 0.125) })},
	{"LayerNorm384", 8, rowsOf(384, func(r [][]float32) {
		mean, variance := MeanVar(r[1])
		NormRow(r[0], r[1], r[2], r[3], float32(mean), float32(variance))
	})},
	{"NormGradRow384", 12, func(s [][]float32) {
		dgain, dbias, gain := s[3][:384], s[3][384:768], s[3][768:1152]
		rowsOf(384, func(r [][]float32) { NormGradRow(r[0], dgain, dbias, r[1], gain, r[2], 0, 1) })(s[:3])
	}},
	{"ColSum384", 4, func(s [][]float32) { n := len(s[1]) / 384; ColSum(s[0][:384], s[1][:n*384], n, 384) }},
	{"Dropout", 8, func(s [][]float32) { Dropout(s[0], s[1], 1, 0, 0.1) }},
	{"SGD", 20, func(s [][]float32) { SGD(s[0], s[1], s[2], SGDHyper{LR: 1e-3, Momentum: 0.9, GradScale: 1}) }},
	{"AdamW", 28, func(s [][]float32) {
		Adam(s[0], s[1], s[2], s[3], AdamHyper{
			LR: 1e-3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, GradScale: 1,
			BiasCorrection1: 0.5, BiasCorrection2Sqrt: 0.5, Decoupled: true,
		})
	}},
}

// rowsOf calls f on consecutive rows of the slices.
func rowsOf(d int, f func(rows [][]float32)) func(s [][]float32) {
	return func(s [][]float32) {
		rows := make([][]float32, len(s))
		for i := 0; i+d <= len(s[0]); i += d {
			for k := range s {
				rows[k] = s[k][i : i+d]
			}
			f(rows)
		}
	}
}

// BenchmarkVec runs every primitive at a size that stays in the cache and at one that does not, and
// reports GB/s and, measured in the same run, how many times faster than the portable kernel that
// is.
func BenchmarkVec(b *testing.B) {
	for _, n := range []int{16 << 10, 1 << 20, 16 << 20} {
		s := make([][]float32, 4)
		for k := range s {
			s[k] = make([]float32, n)
			for i := range s[k] {
				s[k][i] = float32(int(hash32(uint32(i), uint32(k)))>>8%1000)/500 - 1
			}
			if k == 3 {
				ScaleTo(s[k], 1e-3, s[k])
				for i := range s[k] {
					s[k][i] *= s[k][i]
				}
			}
		}
		for _, set := range supported()[:len(supported())-1] {
			for _, m := range benchmarks {
				b.Run(fmt.Sprintf("%s/%dKi/%s", m.name, n>>10, set.name), func(b *testing.B) {
					portableTime := time.Duration(1 << 62)
					if n == 16<<10 {
						use(b, portable())
						for range 5 {
							start := time.Now()
							m.call(s)
							portableTime = min(portableTime, time.Since(start))
						}
					}
					use(b, set)
					best := time.Duration(1 << 62)
					for b.Loop() {
						start := time.Now()
						m.call(s)
						best = min(best, time.Since(start))
					}
					b.ReportMetric(float64(n*m.bytes)/float64(best.Nanoseconds()), "GB/s(best)")
					if n == 16<<10 {
						b.ReportMetric(float64(portableTime)/float64(best), "x-portable")
					}
				})
			}
		}
	}
}

// BenchmarkSquares reports how many times longer [AddSquares] takes than [SumSquares], the two in
// turns.
func BenchmarkSquares(b *testing.B) {
	b.Run("float32", benchmarkSquares[float32])
	b.Run("float64", benchmarkSquares[float64])
}

func benchmarkSquares[T Float](b *testing.B) {
	for _, n := range []int{4 << 10, 64 << 10, 4 << 20} {
		x := make([]T, n)
		for i := range x {
			x[i] = T(int(hash32(uint32(i), 0))>>8%1000)/500 - 1
		}
		for _, set := range supported() {
			b.Run(fmt.Sprintf("%dKi/%s", n>>10, set.name), func(b *testing.B) {
				use(b, set)
				fixed, plain := time.Duration(1<<62), time.Duration(1<<62)
				for b.Loop() {
					start := time.Now()
					s := NewSquares(1)
					AddSquares(&s, x)
					middle := time.Now()
					SumSquares(x)
					fixed, plain = min(fixed, middle.Sub(start)), min(plain, time.Since(middle))
				}
				b.ReportMetric(float64(fixed)/float64(plain), "x-SumSquares")
			})
		}
	}
}

// BenchmarkAdamNarrow reports the nanoseconds an element that a step takes with moments in 8 and 16
// bits, and with all of its numbers in 16 bits, and how many times longer than with float32 that
// is, the four in turns.
func BenchmarkAdamNarrow(b *testing.B) {
	h := AdamHyper{LR: 1e-3, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, BiasCorrection1: 0.5, BiasCorrection2Sqrt: 0.5, GradScale: 1, Decoupled: true}
	for _, n := range []int{16 << 10, 4 << 20} {
		b.Run(fmt.Sprintf("%dKi", n>>10), func(b *testing.B) {
			p, g, m, v := make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n)
			for i := range g {
				g[i] = float32(int(hash32(uint32(i), 0))>>8%1000)/500 - 1
			}
			m8 := NewBlocks8(make([]float32, Words8(0, n)), 0, n, false)
			v8 := NewBlocks8(make([]float32, Words8(0, n)), 0, n, true)
			m16, v16 := Halves(make([]float32, Words16(n)), n), Halves(make([]float32, Words16(n)), n)
			p16, g16 := Numbers{F16: make([]half.BFloat16, n)}, Numbers{F16: make([]half.BFloat16, n)}
			half.Narrow(g16.F16, g)
			best := map[string]time.Duration{}
			take := func(name string, f func()) {
				start := time.Now()
				f()
				if d := time.Since(start); best[name] == 0 || d < best[name] {
					best[name] = d
				}
			}
			for b.Loop() {
				take("8", func() { Adam8(p, g, m8, v8, h) })
				take("16", func() {
					Adam16(Numbers{F32: p}, Numbers{F32: g}, Numbers{F16: m16, Seed: 1}, Numbers{F16: v16, Seed: 2}, 0, h)
				})
				take("all-16", func() { Adam16(p16, g16, Numbers{F16: m16, Seed: 1}, Numbers{F16: v16, Seed: 2}, 0, h) })
				take("32", func() { Adam(p, g, m, v, h) })
			}
			for _, bits := range []string{"8", "16", "all-16"} {
				b.ReportMetric(float64(best[bits].Nanoseconds())/float64(n), "ns/element("+bits+")")
				b.ReportMetric(float64(best[bits])/float64(best["32"]), "x-Adam("+bits+")")
			}
		})
	}
}
