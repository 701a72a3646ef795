package vec

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// use makes an instruction set the active one until the test ends.
func use(t testing.TB, set isa) {
	before := active
	active = set
	t.Cleanup(func() { active = before })
}

// eachISA runs a test under every instruction set of this machine.
func eachISA(t *testing.T, f func(t *testing.T)) {
	for _, set := range supported() {
		t.Run(set.name, func(t *testing.T) {
			use(t, set)
			f(t)
		})
	}
}

// guarded is a slice at some offset of a buffer whose other elements must not change.
type guarded[T Float] struct {
	buffer []T
	lo, hi int
}

const guard = -12345.5

func newGuarded[T Float](x []T, offset int) guarded[T] {
	g := guarded[T]{make([]T, offset+len(x)+20), offset, offset + len(x)}
	for i := range g.buffer {
		g.buffer[i] = guard
	}
	copy(g.slice(), x)
	return g
}

func (g guarded[T]) slice() []T { return g.buffer[g.lo:g.hi:g.hi] }

func (g guarded[T]) intact() bool {
	for i, v := range g.buffer {
		if (i < g.lo || i >= g.hi) && v != guard {
			return false
		}
	}
	return true
}

// drawSlices returns slices of one random length; every element is representable as float32.
func drawSlices(t *rapid.T, count int, kind inputs) [][]float32 {
	n := rapid.IntRange(0, 200).Draw(t, "length")
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "elements"), 1))
	special := []float32{0, float32(math.Copysign(0, -1)), 1, -1}
	chance := 0.05
	if kind == wide {
		inf := float32(math.Inf(1))
		special = append(special, inf, -inf, float32(math.NaN()), math.MaxFloat32, -math.MaxFloat32, 1e-40, -1e-45, 1e20, -1e-20, 88.5, -95)
		chance = rapid.SampledFrom([]float64{0.02, 0.5}).Draw(t, "special")
	}
	s := make([][]float32, count)
	for k := range s {
		s[k] = make([]float32, n)
		for i := range s[k] {
			s[k][i] = float32(rng.NormFloat64() * 2)
			if rng.Float64() < chance {
				s[k][i] = special[rng.IntN(len(special))]
			}
		}
	}
	return s
}

func convert[T Float](s [][]float32) [][]T {
	out := make([][]T, len(s))
	for k := range s {
		out[k] = make([]T, len(s[k]))
		for i, v := range s[k] {
			out[k][i] = T(v)
		}
	}
	return out
}

// equalBits treats all NaNs alike, as their sign and payload say nothing.
func equalBits(a, b float64) bool {
	return math.Float64bits(a) == math.Float64bits(b) || a != a && b != b
}

func near(got, want, tol float64) bool {
	return equalBits(got, want) || math.Abs(got-want) <= tol*(1+math.Abs(want))
}

// TestAgainstPortable compares every primitive, on every instruction set, with its portable
// definition; unaligned, of all lengths, and without touching memory outside its slices.
func TestAgainstPortable(t *testing.T) {
	f32, f64 := ops[float32](), ops[float64]()
	for i := range f32 {
		t.Run(f32[i].name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				in, n := drawSlices(t, f32[i].slices, f32[i].inputs), drawNumbers(t)
				offset := rapid.IntRange(0, 16).Draw(t, "offset")
				reference := convert[float64](in)
				same64 := results(f64[i], portable(), reference, n, 0, t)
				same32 := results(f32[i], portable(), in, n, 0, t)
				for _, set := range supported() {
					got := results(f32[i], set, in, n, offset, t)
					for j := range got {
						if f32[i].exact {
							require.True(t, equalBits(got[j], same32[j]), "%s float32: result %d is %v, want %v", set.name, j, got[j], same32[j])
						} else {
							want := same64[j]
							if f32[i].inputs == wide {
								want = float64(float32(want))
							}
							require.True(t, near(got[j], want, f32[i].tol*0x1p-24), "%s float32: result %d is %v, want %v", set.name, j, got[j], want)
						}
					}
					got = results(f64[i], set, reference, n, offset, t)
					for j := range got {
						require.True(t, near(got[j], same64[j], 2e-12), "%s float64: result %d is %v, want %v", set.name, j, got[j], same64[j])
					}
				}
			})
		})
	}
}

// results runs a primitive and returns everything that it wrote, in one list.
func results[T Float, U Float](o op[T], set isa, in [][]U, n numbers, offset int, t require.TestingT) []float64 {
	before := active
	active = set
	defer func() { active = before }()
	var buffers []guarded[T]
	var args [][]T
	for k := range in {
		x := make([]T, len(in[k]))
		for i, v := range in[k] {
			x[i] = T(v)
		}
		buffers = append(buffers, newGuarded(x, (offset+k)%17))
		args = append(args, buffers[k].slice())
	}
	list := o.call(args, n)
	for k, b := range buffers {
		require.True(t, b.intact(), "%s wrote outside slice %d", o.name, k)
		for i, v := range args[k] {
			if k < o.written {
				list = append(list, float64(v))
			} else {
				require.True(t, equalBits(float64(v), float64(in[k][i])), "%s changed source %d", o.name, k)
			}
		}
	}
	return list
}

// TestDependsOnNothingElse: the same bits wherever a slice lies in memory and however it is cut.
func TestDependsOnNothingElse(t *testing.T) {
	t.Run("float32", dependsOnNothingElse[float32])
	t.Run("float64", dependsOnNothingElse[float64])
}

func dependsOnNothingElse[T Float](t *testing.T) {
	for _, o := range ops[T]() {
		eachISA(t, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				in, n := drawSlices(t, o.slices, o.inputs), drawNumbers(t)
				want := results(o, active, in, n, 0, t)
				require.True(t, equalAll(want, results(o, active, in, n, rapid.IntRange(1, 16).Draw(t, "offset"), t)), "%s: alignment matters", o.name)
				if !o.local || len(in[0]) == 0 {
					return
				}
				cut := rapid.IntRange(0, len(in[0])).Draw(t, "cut")
				parts := [2][][]float32{}
				for k := range in {
					parts[0] = append(parts[0], in[k][:cut])
					parts[1] = append(parts[1], in[k][cut:])
				}
				left, right := results(o, active, parts[0], n, 0, t), results(o, active, parts[1], n, 0, t)
				var joined []float64
				for w := range o.written {
					joined = append(joined, left[w*cut:(w+1)*cut]...)
					rest := len(in[0]) - cut
					joined = append(joined, right[w*rest:(w+1)*rest]...)
				}
				require.True(t, equalAll(want, joined), "%s: position matters", o.name)
			})
		})
	}
}

func equalAll(a, b []float64) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !equalBits(a[i], b[i]) {
			return false
		}
	}
	return true
}

// TestAliasing: the destination may be any of the sources.
func TestAliasing(t *testing.T) {
	t.Run("float32", aliasing[float32])
	t.Run("float64", aliasing[float64])
}

func aliasing[T Float](t *testing.T) {
	for _, o := range ops[T]() {
		if o.written == 0 || o.written == o.slices {
			continue // nothing is written, or nothing is a source only
		}
		eachISA(t, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				in, n := drawSlices(t, o.slices, o.inputs), drawNumbers(t)
				k := rapid.IntRange(o.written, o.slices-1).Draw(t, "source")
				copy(in[0], in[k])
				apart, alias := convert[T](in), convert[T](in)
				o.call(apart, n)
				alias[0] = alias[k]
				o.call(alias, n)
				for i := range apart[0] {
					require.True(t, equalBits(float64(apart[0][i]), float64(alias[0][i])), "%s: element %d", o.name, i)
				}
			})
		})
	}
}
