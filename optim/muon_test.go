package optim_test

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/kernel/gemm"
	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/shard"
)

// A product returns alpha·a·b + beta·c, with a [m, k], b [k, n] and c [m, n], row-major.
type product[T float32 | float64] func(alpha float64, a, b []T, beta float64, c []T, m, k, n int) []T

// naive is the product by its definition.
func naive[T float32 | float64](alpha float64, a, b []T, beta float64, c []T, m, k, n int) []T {
	out := make([]T, m*n)
	for i := range m {
		for j := range n {
			var sum T
			for l := range k {
				sum += a[i*k+l] * b[l*n+j]
			}
			out[i*n+j] = T(alpha)*sum + T(beta)*c[i*n+j]
		}
	}
	return out
}

// fast is the product by the kernel that training computes with.
func fast[T float32 | float64](alpha float64, a, b []T, beta float64, c []T, m, k, n int) []T {
	out := slices.Clone(c)
	gemm.Gemm(new(gemm.Workspace), false, false, m, n, k, alpha, a, k, b, n, beta, out, n)
	return out
}

// transposed returns a [rows, cols] as [cols, rows].
func transposed[T any](a []T, rows, cols int) []T {
	t := make([]T, len(a))
	for i, x := range a {
		t[i%cols*rows+i/cols] = x
	}
	return t
}

// reference is Muon of one matrix by Keller Jordan's description, with all of it in one place.
type reference[T float32 | float64] struct {
	optim.Muon
	mul  product[T]
	p, b []T
}

func (r *reference[T]) step(g []T, rows, cols int, lr float64) {
	mu := T(cmp.Or(r.Momentum, 0.95))
	u := make([]T, len(g))
	for i, x := range g {
		r.b[i] += (1 - mu) * (x - r.b[i])
		u[i] = r.b[i]
		if !r.NoNesterov {
			u[i] = x + mu*(r.b[i]-x)
		}
	}
	blocks := 1
	if r.Blocks != nil {
		blocks = r.Blocks(optim.Param{Shape: []int{rows, cols}})
	}
	rows /= blocks
	scale := 0.2 * math.Sqrt(float64(max(rows, cols)))
	if r.Scale == optim.ByShape {
		scale = math.Sqrt(max(1, float64(rows)/float64(cols)))
	}
	for k := range blocks {
		for i, o := range r.orthogonal(u[k*rows*cols:(k+1)*rows*cols], rows, cols) {
			i += k * rows * cols
			r.p[i] = r.p[i]*T(1-lr*r.WeightDecay) - o*T(lr*scale)
		}
	}
}

func (r *reference[T]) orthogonal(x []T, rows, cols int) []T {
	const a, b, c = 3.4445, -4.7750, 2.0315
	sum := 0.0
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	x = slices.Clone(x)
	for i := range x {
		x[i] *= T(1 / max(math.Sqrt(sum), 1e-7))
	}
	tall, n := rows >= cols, min(rows, cols)
	for range 5 {
		t, g := transposed(x, rows, cols), make([]T, n*n)
		if tall {
			g = r.mul(1, t, x, 0, g, cols, rows, cols)
		} else {
			g = r.mul(1, x, t, 0, g, rows, cols, rows)
		}
		q := r.mul(c, g, g, b, g, n, n, n)
		if tall {
			x = r.mul(1, x, q, a, x, rows, cols, cols)
		} else {
			x = r.mul(1, q, x, a, x, rows, rows, cols)
		}
	}
	return x
}

// muonCase is a few matrices, cut over ranks.
type muonCase struct {
	muon   optim.Muon
	params []shard.Param
	layout *shard.Layout
	zero   bool // parameters begin at zero
	world  int  // a multiple of the layout's: sets of ranks that have everything
	steps  int
}

// initial returns the values of a parameter before the first step.
func initial[T float32 | float64](c muonCase, p shard.Param) []T {
	if c.zero {
		return make([]T, p.Len())
	}
	return gradient[T](p, 99)
}

// gradient returns that of a parameter in a step.
func gradient[T float32 | float64](p shard.Param, step int) []T {
	r := rand.New(rand.NewPCG(uint64(step), uint64(len(p.Name))*1000+uint64(p.Name[0])))
	g := make([]T, p.Len())
	for i := range g {
		g[i] = T(r.NormFloat64())
	}
	return g
}

func hostOf[T float32 | float64](s []T) optim.Host {
	switch s := any(s).(type) {
	case []float32:
		return optim.Host{F32: s}
	default:
		return optim.Host{F64: s.([]float64)}
	}
}

// pieces returns what a rank has, as fsdp's Shards does: empty pieces last.
func (c *muonCase) pieces(g comm.Group, values, grads map[string]optim.Host) (list []optim.Param) {
	l, place := c.layout, g.Rank()%c.layout.World()
	span := func(i int) func(int) shard.Span {
		return func(place int) shard.Span {
			for _, s := range l.Segments(place) {
				if s.Param == i {
					return shard.Span{Start: s.Offset, End: s.Offset + s.Len}
				}
			}
			return shard.Span{}
		}
	}
	var empty []optim.Param
	for i, p := range l.Params() {
		s := span(i)(place)
		q := optim.Param{
			Name: p.Name, Shape: p.Shape, Offset: s.Start, Value: hollow{n: s.End - s.Start},
			Peers: &optim.Peers{Group: g, Places: l.World(), Span: span(i)},
		}
		if values != nil {
			q.Value, q.Grad = values[p.Name].Slice(s.Start, s.End), grads[p.Name].Slice(s.Start, s.End)
		}
		if s.Start < s.End {
			list = append(list, q)
		} else {
			empty = append(empty, q)
		}
	}
	return append(list, empty...)
}

// run returns the parameters and the momenta after the steps, put together from the ranks.
func runMuon[T float32 | float64](t require.TestingT, c muonCase) map[string][]T {
	out := make(map[string][]T)
	for _, p := range c.params {
		out[p.Name], out["b "+p.Name] = make([]T, p.Len()), make([]T, p.Len())
	}
	pieces := make([][]optim.Param, c.world)
	states := make([][]optim.Entry, c.world)
	require.NoError(t, comm.Run(context.Background(), c.world, func(_ context.Context, g comm.Group) error {
		values, grads := make(map[string]optim.Host), make(map[string]optim.Host)
		for _, p := range c.params {
			values[p.Name], grads[p.Name] = hostOf(initial[T](c, p)), hostOf(make([]T, p.Len()))
		}
		pieces[g.Rank()] = c.pieces(g, values, grads)
		opt, err := c.muon.New(pieces[g.Rank()])
		if err != nil {
			return err
		}
		for step := range c.steps {
			for _, p := range c.params {
				if err := grads[p.Name].Write(hostOf(gradient[T](p, step))); err != nil {
					return err
				}
			}
			if err := opt.Step(0.1); err != nil {
				return err
			}
		}
		states[g.Rank()] = opt.State()
		return nil
	}))
	for r := range c.world {
		for _, p := range pieces[r] {
			require.NoError(t, p.Value.Read(hostOf(out[p.Name][p.Offset:p.Offset+p.Value.Len()])))
		}
		for _, e := range states[r] {
			require.NoError(t, e.Data.Read(hostOf(out["b "+e.Param][e.Offset:e.Offset+e.Data.Len()])))
		}
		if r >= c.layout.World() { // a replica has what the first of its place has
			for i, p := range pieces[r] {
				require.Equal(t, pieces[r%c.layout.World()][i].Value, p.Value)
			}
		}
	}
	return out
}

// refer returns what runMuon should.
func refer[T float32 | float64](c muonCase, mul product[T]) map[string][]T {
	out := make(map[string][]T)
	for _, p := range c.params {
		r := reference[T]{Muon: c.muon, mul: mul, p: initial[T](c, p), b: make([]T, p.Len())}
		for step := range c.steps {
			r.step(gradient[T](p, step), p.Shape[0], p.Len()/max(p.Shape[0], 1), 0.1)
		}
		out[p.Name], out["b "+p.Name] = r.p, r.b
	}
	return out
}

// drawMuon draws matrices, and how they are cut.
func drawMuon(t *rapid.T, block func(shard.Param) int) muonCase {
	c := muonCase{steps: 2, muon: optim.Muon{
		WeightDecay: rapid.SampledFrom([]float64{0, 0.1}).Draw(t, "decay"), NoNesterov: rapid.Bool().Draw(t, "plain"),
		Scale: rapid.SampledFrom([]optim.Scale{optim.MatchAdamW, optim.ByShape}).Draw(t, "scale"),
	}}
	for i := range rapid.IntRange(1, 5).Draw(t, "matrices") {
		shape := []int{2 * rapid.IntRange(1, 20).Draw(t, "rows"), rapid.IntRange(1, 30).Draw(t, "columns")}
		if rapid.IntRange(0, 5).Draw(t, "dimensions") == 0 {
			shape = append(shape, 3)
		}
		c.params = append(c.params, shard.Param{Name: fmt.Sprint(string(rune('a'+i)), ".weight"), Shape: shape})
	}
	if rapid.Bool().Draw(t, "blocks") {
		c.muon.Blocks = func(optim.Param) int { return 2 }
	}
	places := rapid.SampledFrom([]int{1, 2, 3, 4, 8}).Draw(t, "places")
	var err error
	c.layout, err = shard.Cut{Block: block}.New(c.params, places, 4)
	require.NoError(t, err)
	c.world = places
	return c
}

// Owner and Gather give the bits of the reference in one process, over any number of ranks and replicas, however
// matrices are cut.
func TestMuonHasTheBitsOfTheReference(t *testing.T) {
	t.Run("float32", func(t *testing.T) { rapid.Check(t, testMuonBits[float32]) })
	t.Run("float64", func(t *testing.T) { rapid.Check(t, testMuonBits[float64]) })
}

func testMuonBits[T float32 | float64](t *rapid.T) {
	seed := rapid.IntRange(0, 5).Draw(t, "cut")
	c := drawMuon(t, func(p shard.Param) int { return []int{1, 1, 3, 7, p.Len(), shard.Rows(1)(p)}[seed] })
	c.muon.Method = rapid.SampledFrom([]optim.Method{optim.Owner, optim.Gather}).Draw(t, "method")
	c.world *= rapid.SampledFrom([]int{1, 1, 2}).Draw(t, "sets")
	require.Equal(t, refer(c, fast[T]), runMuon[T](t, c))
}

// requireClose compares by the norms of differences.
func requireClose[T float32 | float64](t require.TestingT, want map[string][]float64, got map[string][]T, tolerance float64) {
	for name := range want {
		sum, all := 0.0, 0.0
		for i, w := range want[name] {
			sum += (w - float64(got[name][i])) * (w - float64(got[name][i]))
			all += w * w
		}
		require.LessOrEqual(t, math.Sqrt(sum), tolerance*math.Sqrt(all), name)
	}
}

// Gram over rows is within 1e-6 of the reference in float64.
func TestMuonByGram(t *testing.T) {
	for _, places := range []int{1, 2, 4, 7} {
		c := muonCase{steps: 3, world: places, zero: true, muon: optim.Muon{Method: optim.Gram, WeightDecay: 0.1}}
		for i, shape := range [][]int{{96, 24}, {40, 40}, {64, 5}, {12, 8}, {700, 16}} {
			c.params = append(c.params, shard.Param{Name: fmt.Sprint(string(rune('a'+i)), ".weight"), Shape: shape})
		}
		var err error
		c.layout, err = shard.Cut{Block: shard.Rows(1)}.New(c.params, places, 16)
		require.NoError(t, err)
		requireClose(t, refer(c, naive[float64]), runMuon[float32](t, c), 1e-6)
		requireClose(t, refer(c, naive[float64]), runMuon[float64](t, c), 1e-12)
		c.muon.Method = optim.Owner
		requireClose(t, refer(c, naive[float64]), runMuon[float32](t, c), 1e-5)
	}
}

// Several methods, parameters without a gradient and steps without an allocation, in one optimizer.
func TestMuonMixed(t *testing.T) {
	c := muonCase{steps: 3, world: 4}
	c.muon.Machine = optim.Machine{FLOPS: 1e9, Bandwidth: 1e12, Latency: 1e-9}
	for i, shape := range [][]int{{300, 2}, {8, 8}, {12, 8}, {4, 20}} {
		c.params = append(c.params, shard.Param{Name: fmt.Sprint(string(rune('a'+i)), ".weight"), Shape: shape})
	}
	var err error
	c.layout, err = shard.Cut{Block: shard.Rows(1)}.New(c.params, 4, 4)
	require.NoError(t, err)
	plan, err := c.muon.Plan(c.pieces(comm.World{Ranks: 4, Place: 1}, nil, nil))
	require.NoError(t, err)
	var methods []string
	for _, m := range plan.Matrices {
		methods = append(methods, fmt.Sprint(m.Method, " on ", m.Owner))
	}
	require.Equal(t, "[gram on 1 owner on 2 owner on 3 owner on 0]", fmt.Sprint(methods))
	requireClose(t, refer(c, naive[float64]), runMuon[float32](t, c), 1e-6)
	exact := c.pieces(comm.World{Ranks: 4, Place: 1}, nil, nil)
	for i := range exact {
		exact[i].Peers.Exact = true
	}
	plan, err = c.muon.Plan(exact)
	require.NoError(t, err)
	require.Equal(t, optim.Owner, plan.Matrices[0].Method, "the bits may not depend on the ranks")

	opt, err := optim.Muon{}.New(c.pieces(comm.Local(1)[0], nil, nil)[:0])
	require.NoError(t, err, "a rank may have nothing")
	require.NoError(t, opt.Step(1))
}

// A parameter without a gradient stays, and the others do not notice.
func TestMuonAbsent(t *testing.T) {
	value := func() optim.Host { return hostOf(gradient[float32](shard.Param{Name: "w", Shape: []int{6, 4}}, 1)) }
	absent := false
	params := []optim.Param{
		{Name: "a", Shape: []int{6, 4}, Value: value(), Grad: value(), Absent: func() bool { return absent }},
		{Name: "b", Shape: []int{6, 4}, Value: value(), Grad: value()},
	}
	opt, err := optim.Muon{}.New(params)
	require.NoError(t, err)
	require.NoError(t, opt.Step(0.1))
	require.Equal(t, params[0].Value, params[1].Value)
	before := slices.Clone(params[0].Value.(optim.Host).F32)
	absent = true
	require.Zero(t, testing.AllocsPerRun(5, func() { require.NoError(t, opt.Step(0.1)) }))
	require.Equal(t, before, params[0].Value.(optim.Host).F32)
	require.NotEqual(t, params[0].Value, params[1].Value)
	steps := make(map[string]int)
	for _, e := range opt.State() {
		steps[e.Param+" "+e.Name] = e.Steps
	}
	require.Equal(t, map[string]int{"a momentum_buffer": 1, "b momentum_buffer": 7}, steps)
}

// What cannot be is an error that says so.
func TestMuonErrors(t *testing.T) {
	param := func(shape ...int) optim.Param {
		n := shard.Param{Shape: shape}.Len()
		return optim.Param{Name: "w", Shape: shape, Value: hostOf(make([]float32, n)), Grad: hostOf(make([]float32, n))}
	}
	piece, cut := param(4, 4), param(4, 4)
	piece.Value, piece.Grad = piece.Value.Slice(0, 8), piece.Grad.Slice(0, 8)
	cut.Peers = &optim.Peers{Group: comm.World{Ranks: 2}, Places: 2, Span: func(p int) shard.Span { return shard.Span{Start: 7 * p, End: 7 + 9*p} }}
	cut.Value, cut.Grad = cut.Value.Slice(0, 7), cut.Grad.Slice(0, 7)
	far := param(4, 4)
	far.Value, far.Grad = unreachable{far.Value}, unreachable{far.Grad}
	other := param(2, 2)
	other.Name, other.Value, other.Grad = "x", hostOf(make([]float64, 4)), hostOf(make([]float64, 4))
	for _, c := range []struct {
		muon   optim.Muon
		params []optim.Param
		want   string
	}{
		{optim.Muon{}, []optim.Param{param(3)}, `parameter "w": shape [3] is not a matrix: use another optimizer for it`},
		{optim.Muon{}, []optim.Param{piece}, `parameter "w": only elements [0:8] of 16 are on this rank, and Peers is nil`},
		{optim.Muon{}, []optim.Param{far}, `parameter "w": a value of type optim_test.unreachable cannot be updated, because it does not implement vec.Addressable`},
		{optim.Muon{}, []optim.Param{param(4, 4), other}, `parameter "x": its element type differs from the other parameters`},
		{optim.Muon{Method: optim.Gram}, []optim.Param{cut}, `parameter "w": Gram needs`},
		{optim.Muon{Method: optim.Gram}, []optim.Param{param(2, 3)}, `parameter "w": Gram needs at least as many rows as columns`},
		{optim.Muon{Method: 9}, []optim.Param{cut}, "unknown Method(9)"},
		{optim.Muon{Blocks: func(optim.Param) int { return 3 }}, []optim.Param{param(4, 4)}, `parameter "w": 4 rows are not a multiple of 3 blocks`},
		{optim.Muon{Momentum: 1}, nil, "Momentum is 1"},
		{optim.Muon{Momentum: optim.Zero}, nil, "field Nesterov needs Momentum"},
		{optim.Muon{Steps: -1}, nil, "Steps is -1"},
		{optim.Muon{Scale: 7}, nil, "Scale is Scale(7)"},
	} {
		_, err := c.muon.New(c.params)
		require.ErrorContains(t, err, c.want)
	}
	opt, err := optim.Muon{}.New([]optim.Param{cut})
	require.NoError(t, err)
	require.ErrorIs(t, opt.Step(0.1), comm.ErrWorld)
}

// hollow is a vector of which only the length is known.
type hollow struct {
	optim.Vec
	n int
}

func (h hollow) Len() int      { return h.n }
func (h hollow) Float64() bool { return false }

// unreachable is memory that only Read and Write reach.
type unreachable struct{ optim.Vec }

// The work is shared: no rank of several computes more than its part and a matrix, and what all
// compute is what one would.
func TestMuonPlanSharesTheWork(t *testing.T) {
	var params []shard.Param
	for i := range 12 {
		params = append(params,
			shard.Param{Name: fmt.Sprintf("h.%d.attn.qkv.weight", i), Shape: []int{3 * 768, 768}}, shard.Param{Name: fmt.Sprintf("h.%d.attn.proj.weight", i), Shape: []int{768, 768}},
			shard.Param{Name: fmt.Sprintf("h.%d.mlp.fc.weight", i), Shape: []int{3072, 768}}, shard.Param{Name: fmt.Sprintf("h.%d.mlp.proj.weight", i), Shape: []int{768, 3072}})
	}
	heads := func(p optim.Param) int {
		if p.Shape[0] == 3*768 {
			return 36
		}
		return 1
	}
	var one float64
	for _, world := range []int{1, 8} {
		c := muonCase{params: params}
		var err error
		c.layout, err = shard.New(params, world, 16)
		require.NoError(t, err)
		most, all := 0.0, 0.0
		for rank := range world {
			pieces := c.pieces(comm.World{Ranks: world, Place: rank}, nil, nil)
			plan, err := optim.Muon{Blocks: heads, Method: optim.Owner}.Plan(pieces)
			require.NoError(t, err)
			most, all = max(most, plan.Mine), plan.FLOPs
		}
		one = max(one, all)
		if world > 1 {
			require.Equal(t, one, all, "each matrix once")
			require.Less(t, most, 1.1*all/float64(world), "%d ranks", world)
		}
	}
}

// TestMuonClampsTheNorm compares with numbers of torch.optim.Muon of PyTorch 2.15, whose iteration was run in
// float64: a matrix is divided by its norm, or by Eps if that is more.
func TestMuonClampsTheNorm(t *testing.T) {
	unit := []float64{3e-8, 2e-8, 1e-8, -1e-8, -4e-8, 0} // 3 rows of 2; the norm is 5.57e-8
	small := []float64{0.3252654564809094, 0.6032525612924136, 0.20406759200480998, -0.4450949404129674, -0.5867205123924234, 0.22954985562681643}
	large := []float64{0.31448046247183986, 0.7884360446511804, 0.24808979186436403, -0.6091124788862164, -0.6485280369604544, 0.34383113049700215}
	for _, method := range []optim.Method{optim.Owner, optim.Gather, optim.Gram} {
		for scale, want := range map[float64][]float64{1: small, 1e6: large, 1e8: large} {
			p := optim.Param{Name: "w", Shape: []int{3, 2}, Value: optim.Host{F64: make([]float64, 6)}, Grad: optim.Host{F64: slices.Clone(unit)}}
			for i := range unit {
				p.Grad.(optim.Host).F64[i] *= scale
			}
			opt, err := optim.Muon{Momentum: optim.Zero, NoNesterov: true, Scale: optim.ByShape, Method: method}.New([]optim.Param{p})
			require.NoError(t, err)
			require.NoError(t, opt.Step(1))
			for i, o := range want {
				require.InDelta(t, -o*math.Sqrt(1.5), p.Value.(optim.Host).F64[i], 1e-12, "%v, %v: element %d", method, scale, i)
			}
		}
	}
}
