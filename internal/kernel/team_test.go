package kernel

import (
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/half"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// team returns a team of n threads that ends with the test.
func team(t interface{ Cleanup(func()) }, n int) *Team {
	team := new(Team)
	team.Start(n)
	t.Cleanup(team.Close)
	return team
}

// TestTeamRunsEveryPartOnce checks that every turn runs every part once, by whichever thread, also
// after the threads have gone to sleep, and allocates nothing.
func TestTeamRunsEveryPartOnce(t *testing.T) {
	for n := 1; n <= 5; n++ {
		team := team(t, n)
		require.Equal(t, n, team.Size())
		counts := make([]int, n) // a part belongs to one goroutine at a time
		part := func(c *Context) { counts[c.Part()]++ }
		turns := 0
		turn := func() {
			team.Run(part)
			turns++
			for _, k := range counts {
				require.Equal(t, turns, k)
			}
		}
		for range 3 {
			for range 200 {
				turn()
			}
			for _, h := range team.others {
				require.Eventually(t, h.asleep.Load, time.Minute, time.Millisecond)
			}
		}
		require.Zero(t, testing.AllocsPerRun(20, func() { team.Run(part) }))
	}
}

// TestTeamPanics checks that the panic of a part comes out of Run when all other parts are done, and
// that the team goes on.
func TestTeamPanics(t *testing.T) {
	team := team(t, 4)
	for bad := range 4 {
		var done atomic.Int32
		func() {
			defer func() {
				text := fmt.Sprint(recover())
				require.True(t, strings.HasPrefix(text, fmt.Sprint("part ", bad)), text)
				if strings.Contains(text, "on another thread") {
					require.Contains(t, text, "TestTeamPanics", "the stack is that of the part")
				}
			}()
			team.Run(func(c *Context) {
				if c.Part() == bad {
					panic(fmt.Sprint("part ", bad))
				}
				done.Add(1)
			})
		}()
		was := done.Load()
		require.LessOrEqual(t, int(was), 3)
		team.Run(func(*Context) { done.Add(1) })
		require.Equal(t, was+4, done.Load(), "nothing of the failed turn has run later")
	}
}

// TestShares checks that the shares of all parts follow each other, begin at multiples of the unit and
// differ by one unit at most.
func TestShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, unit, parts := rapid.IntRange(0, 500).Draw(t, "n"), rapid.IntRange(1, 40).Draw(t, "unit"), rapid.IntRange(1, 7).Draw(t, "parts")
		at, least, most := 0, math.MaxInt, 0
		for i := range parts {
			c := Context{part: i, parts: parts}
			lo, hi := c.Share(n, unit)
			require.Equal(t, at, lo)
			require.True(t, lo%unit == 0 || lo == n)
			units := (hi - lo + unit - 1) / unit
			at, least, most = hi, min(least, units), max(most, units)
		}
		require.Equal(t, n, at)
		require.LessOrEqual(t, most-least, 1)
	})
	var all Context
	lo, hi := all.Share(7, 2)
	require.Equal(t, [2]int{0, 7}, [2]int{lo, hi})
}

// TestSplitKernels checks that a kernel gives the same bits for any number of threads.
func TestSplitKernels(t *testing.T) {
	var teams [5]*Team
	for n := 1; n < len(teams); n++ {
		teams[n] = team(t, n)
	}
	t.Run("float32", rapid.MakeCheck(func(t *rapid.T) { splitKernels(t, teams[:], func(x []float32) []float32 { return x }) }))
	t.Run("float64", rapid.MakeCheck(func(t *rapid.T) { splitKernels(t, teams[:], func(x []float64) []float64 { return x }) }))
	t.Run("bfloat16", rapid.MakeCheck(func(t *rapid.T) {
		splitKernels[half.BFloat16, float32](t, teams[:], func(x []float32) []half.BFloat16 {
			y := make([]half.BFloat16, len(x))
			half.Narrow(y, x)
			return y
		})
	}))
}

// splitKernels compares a kernel on all teams with itself on a Context alone.
func splitKernels[E Element, T Float](t *rapid.T, teams []*Team, from func([]T) []E) {
	threads := rapid.IntRange(1, len(teams)-1).Draw(t, "threads")
	s := newSource[T](t)
	var run func(c *Context, results []any)
	var sizes []result
	if rapid.Bool().Draw(t, "linear") {
		run, sizes = linearCall(t, s, from)
	} else {
		run, sizes = attentionCall(t, s, from)
	}
	want, got := make([]any, len(sizes)), make([]any, len(sizes))
	for i, r := range sizes {
		x := s.result(r.n, r.acc)
		if r.wide {
			want[i], got[i] = clone(x), x
		} else {
			want[i], got[i] = from(clone(x)), from(x)
		}
	}
	run(new(Context), want)
	teams[threads].Run(func(c *Context) { run(c, got) })
	for i := range want {
		require.Equal(t, bits(want[i]), bits(got[i]), "result %d with %d threads", i, threads)
	}
}

// result is one of a kernel's: its elements, whether it is added to, and whether it has the type of
// sums.
type result struct {
	n         int
	acc, wide bool
}

func bits(x any) []uint64 {
	var b []uint64
	switch x := x.(type) {
	case []float32:
		for _, v := range x {
			b = append(b, uint64(math.Float32bits(v)))
		}
	case []float64:
		for _, v := range x {
			b = append(b, math.Float64bits(v))
		}
	case []half.BFloat16:
		for _, v := range x {
			b = append(b, uint64(v))
		}
	}
	return b
}

// linearCall draws one of the kernels of linear layers. Sizes reach beyond a register tile and, for
// k, beyond a range of sums.
func linearCall[E Element, T Float](t *rapid.T, s *source[T], from func([]T) []E) (func(c *Context, results []any), []result) {
	size := rapid.OneOf(rapid.IntRange(0, 40), rapid.IntRange(40, 120), rapid.Just(400))
	n, in, out := size.Draw(t, "n"), size.Draw(t, "in"), size.Draw(t, "out")
	x, w, b, dy := from(s.normal(n*in)), from(s.normal(in*out)), from(s.normal(out)), from(s.normal(n*out))
	acc := rapid.Bool().Draw(t, "acc")
	switch rapid.IntRange(0, 4).Draw(t, "kernel") {
	case 0:
		return func(c *Context, r []any) { Linear(c, r[0].([]E), x, w, b, n, in, out) }, []result{{n: n * out}}
	case 1:
		return func(c *Context, r []any) { Linear(c, r[0].([]E), x, w, nil, n, in, out) }, []result{{n: n * out}}
	case 2:
		return func(c *Context, r []any) { LinearAdd(c, r[0].([]E), x, w, n, in, out) }, []result{{n: n * out, acc: true}}
	case 3:
		return func(c *Context, r []any) { LinearGradX(c, r[0].([]E), dy, w, n, in, out) }, []result{{n: n * in}}
	default:
		return func(c *Context, r []any) { LinearGradW(c, r[0].([]T), dy, x, n, in, out, acc) },
			[]result{{n: in * out, acc: acc, wide: true}}
	}
}

// attentionCall draws attention and its gradient.
func attentionCall[E Element, T Float](t *rapid.T, s *source[T], from func([]T) []E) (func(c *Context, results []any), []result) {
	a := Attention{
		Batch: rapid.IntRange(0, 3).Draw(t, "batch"), Heads: rapid.IntRange(1, 5).Draw(t, "heads"),
		QLen: rapid.IntRange(1, 130).Draw(t, "queries"), KLen: rapid.IntRange(1, 130).Draw(t, "keys"),
		HeadDim: rapid.IntRange(1, 40).Draw(t, "columns"), Causal: rapid.Bool().Draw(t, "causal"),
	}
	if rapid.Bool().Draw(t, "square") {
		a.KLen = a.QLen
		a.Positions = drawPositions(t, a.Batch, a.KLen)
	}
	d := a.Heads * a.HeadDim
	a.QStride, a.KStride, a.VStride, a.OutStride = d, d, d, d
	rows, keys, stats := a.Batch*a.QLen, a.Batch*a.KLen, a.Batch*a.Heads*a.QLen
	q, k, v, dout := from(s.normal(rows*d)), from(s.normal(keys*d)), from(s.normal(keys*d)), from(s.normal(rows*d))
	var mask []int
	var bias []T
	sizes := []result{{n: rows * d}, {n: stats, wide: true}, {n: rows * d}, {n: keys * d}, {n: keys * d}, {wide: true, acc: true}}
	if rapid.Bool().Draw(t, "mask") {
		mask = s.ints(keys, 0, 2)
	}
	if rapid.Bool().Draw(t, "bias") {
		bias, sizes[5].n = s.normal(a.Heads*a.QLen*a.KLen), a.Heads*a.QLen*a.KLen
	}
	run := func(c *Context, r []any) {
		out, lse, scratch := r[0].([]E), r[1].([]T), make([]T, AttentionBFloat16Scratch(a))
		AttentionForward(c, a, out, lse, q, k, v, mask, bias, scratch)
	}
	if rapid.Bool().Draw(t, "forward alone") {
		return run, sizes[:2]
	}
	out, lse := from(garbage[T](rows*d)), garbage[T](stats)
	run(new(Context), []any{out, lse})
	return func(c *Context, r []any) {
		var dbias []T
		if bias != nil {
			dbias = r[3].([]T)
		}
		AttentionBackward(c, a, r[0].([]E), r[1].([]E), r[2].([]E), dbias, q, k, v, out, lse, dout, mask, bias,
			make([]T, AttentionBFloat16Scratch(a)))
	}, sizes[2:]
}
