package metrics_test

import (
	"context"
	"fmt"
	"math"
	"math/big"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"gorgonia.org/tensor"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/metrics"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func of[T any](backing []T, shape ...int) tensor.Tensor {
	return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(backing))
}

// all are metrics of every kind.
type all struct {
	mean       metrics.Mean
	perplexity metrics.Perplexity
	top        [2]metrics.Accuracy
	histogram  metrics.Histogram
	confusion  metrics.Confusion
	set        metrics.Set
}

const classes = 4

func newAll() *all {
	a := &all{top: [2]metrics.Accuracy{{}, {K: 2}}, histogram: metrics.Histogram{Edges: []float64{-1, 0, 0.5, 2}}, confusion: metrics.Confusion{Classes: classes}}
	a.set = metrics.Set{"mean": &a.mean, "perplexity": &a.perplexity, "top 1": &a.top[0], "top 2": &a.top[1], "histogram": &a.histogram, "confusion": &a.confusion}
	return a
}

// sample is a row of logits, its target, and a loss.
type sample struct {
	logits []float64
	target int
	loss   float64
	tokens int
}

func (a *all) add(t require.TestingT, s sample) {
	require.NoError(t, a.mean.AddTensor(of([]float64{s.loss}, 1), float64(s.tokens)))
	require.NoError(t, a.perplexity.Add(s.loss, float64(s.tokens)))
	logits, target := of(s.logits, 1, classes), of([]int{s.target}, 1)
	for i := range a.top {
		require.NoError(t, a.top[i].Add(logits, target))
	}
	require.NoError(t, a.confusion.Add(logits, target))
	require.NoError(t, a.histogram.AddTensor(logits))
}

// check compares with the definitions.
func (a *all) check(t require.TestingT, values map[string]float64, samples []sample) {
	sum, tokens, rows := 0.0, 0.0, 0.0
	var top [2]float64
	var counts [5]int
	var confusion [classes][classes]int
	for _, s := range samples {
		sum, tokens = sum+s.loss*float64(s.tokens), tokens+float64(s.tokens)
		for _, x := range s.logits {
			i := slices.IndexFunc(a.histogram.Edges, func(e float64) bool { return x < e })
			if i < 0 {
				i = 4
			}
			counts[i]++
		}
		if s.target == nn.IgnoreTarget {
			continue
		}
		order := []int{0, 1, 2, 3}
		slices.SortStableFunc(order, func(a, b int) int {
			return int(math.Copysign(1, s.logits[b]-s.logits[a])) * toInt(s.logits[a] != s.logits[b])
		})
		rows++
		for k := range top {
			top[k] += float64(toInt(slices.Contains(order[:k+1], s.target)))
		}
		confusion[s.target][order[0]]++
	}
	near := func(want, got float64) {
		if math.IsNaN(want) {
			require.True(t, math.IsNaN(got), "%v", got)
			return
		}
		require.InDelta(t, want, got, 1e-12*math.Abs(want))
	}
	near(sum/tokens, values["mean"])
	near(math.Exp(sum/tokens), values["perplexity"])
	require.Equal(t, tokens, a.mean.Weight())
	for k, name := range []string{"top 1", "top 2"} {
		near(top[k]/rows, values[name])
	}
	require.Equal(t, counts[:], a.histogram.Counts())
	f1, some := 0.0, 0.0
	for k := range classes {
		is, said := 0, 0
		for j := range classes {
			require.Equal(t, confusion[k][j], a.confusion.Count(k, j))
			is, said = is+confusion[k][j], said+confusion[j][k]
		}
		hits := float64(confusion[k][k])
		precision, recall, f := a.confusion.Of(k)
		near(hits/float64(said), precision)
		near(hits/float64(is), recall)
		if is+said > 0 {
			near(2*hits/float64(is+said), f)
			f1, some = f1+f, some+1
		}
	}
	near(f1/some, values["confusion"])
}

func toInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func drawSamples(t *rapid.T) []sample {
	number := rapid.OneOf(rapid.Float64Range(-3, 3), rapid.SampledFrom([]float64{-1, 0, 0.5, 2}))
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) sample {
		return sample{
			rapid.SliceOfN(number, classes, classes).Draw(t, "logits"), rapid.IntRange(nn.IgnoreTarget, classes-1).Draw(t, "target"),
			rapid.Float64Range(0, 9).Draw(t, "loss"), rapid.IntRange(0, 5).Draw(t, "tokens"),
		}
	}), 0, 20).Draw(t, "samples")
}

// TestRanksShareSamples draws samples, and who has which of them: the values are those of the
// definitions, for all that was added since Reset, and what counts has the same bits for any number
// of ranks.
func TestRanksShareSamples(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		samples := drawSamples(t)
		late := rapid.IntRange(0, len(samples)).Draw(t, "added after a Reduce")
		var first map[string]float64
		for world := 1; world <= 4; world++ {
			owner := rapid.SliceOfN(rapid.IntRange(0, world-1), len(samples), len(samples)).Draw(t, "owners")
			var values map[string]float64
			require.NoError(t, comm.Run(context.Background(), world, func(ctx context.Context, g comm.Group) error {
				a := newAll()
				for _, part := range [][2]int{{0, late}, {late, len(samples)}} {
					for i := part[0]; i < part[1]; i++ {
						if owner[i] == g.Rank() {
							a.add(t, samples[i])
						}
					}
					got, err := a.set.Reduce(ctx, g)
					require.NoError(t, err)
					a.check(t, got, samples[:part[1]])
					if g.Rank() == 0 {
						values = got
					}
				}
				a.set.Reset()
				for i := range late {
					if owner[i] == g.Rank() {
						a.add(t, samples[i])
					}
				}
				got, err := a.set.Reduce(ctx, g)
				require.NoError(t, err)
				a.check(t, got, samples[:late])
				return nil
			}))
			if first == nil {
				first = values
			}
			for _, name := range []string{"top 1", "top 2", "histogram", "confusion"} {
				require.Equal(t, math.Float64bits(first[name]), math.Float64bits(values[name]), "%s on %d ranks", name, world)
			}
		}
	})
}

// counting counts collectives.
type counting struct {
	comm.Group
	n int
}

func (g *counting) AllReduce(b comm.Buffer, op comm.Op) comm.Work {
	g.n++
	return g.Group.AllReduce(b, op)
}

// TestOneCollective reduces a set, an empty one, and one of a single process.
func TestOneCollective(t *testing.T) {
	require.NoError(t, comm.Run(t.Context(), 2, func(ctx context.Context, g comm.Group) error {
		c := &counting{Group: g}
		_, err := newAll().set.Reduce(ctx, c)
		require.NoError(t, err)
		require.Equal(t, 1, c.n)
		values, err := metrics.Set{}.Reduce(ctx, c)
		require.NoError(t, err)
		require.Empty(t, values)
		require.Equal(t, 2, c.n)
		return nil
	}))
	a := newAll()
	a.add(t, sample{[]float64{1, 2, 3, 4}, 3, 2, 1})
	values, err := a.set.Reduce(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, 2.0, values["mean"])
	require.Equal(t, 1.0, values["top 1"])
}

// TestRanksHaveOtherMetrics gives one rank another name, or another field.
func TestRanksHaveOtherMetrics(t *testing.T) {
	for _, odd := range []metrics.Set{
		{"other": &metrics.Accuracy{K: 2}}, {"metric": &metrics.Accuracy{K: 3}}, {"metric": &metrics.Mean{}},
	} {
		errs := make([]error, 2)
		_ = comm.Run(t.Context(), 2, func(ctx context.Context, g comm.Group) error {
			set := metrics.Set{"metric": &metrics.Accuracy{K: 2}}
			if g.Rank() == 1 {
				set = odd
			}
			_, errs[g.Rank()] = set.Reduce(ctx, g)
			return nil
		})
		for _, err := range errs {
			var mismatch *comm.MismatchError
			require.ErrorAs(t, err, &mismatch)
			require.ErrorContains(t, err, "metrics metric: accuracy of 2")
		}
	}
}

// TestOneRankIsRefused changes a field after an Add, or drops a metric, on one rank: that rank says
// why, and the other does not wait. If all ranks do it, the group is still of use.
func TestOneRankIsRefused(t *testing.T) {
	for want, spoil := range map[string]func(metrics.Set){
		"metrics: h: fields have changed since the first Add": func(s metrics.Set) { s["h"].(*metrics.Histogram).Edges = []float64{0, 1, 2} },
		"metrics: h is nil": func(s metrics.Set) { s["h"] = nil },
	} {
		for spoiled := 1; spoiled <= 2; spoiled++ {
			errs := make([]error, 2)
			_ = comm.Run(t.Context(), 2, func(ctx context.Context, g comm.Group) error {
				h := &metrics.Histogram{Edges: []float64{0, 1}}
				require.NoError(t, h.Add(0.5))
				set := metrics.Set{"h": h}
				if g.Rank() < spoiled {
					spoil(set)
				}
				_, errs[g.Rank()] = set.Reduce(ctx, g)
				if spoiled == 2 {
					require.NoError(t, g.Barrier(ctx))
				}
				return nil
			})
			require.EqualError(t, errs[0], want)
			if spoiled == 2 {
				require.EqualError(t, errs[1], want)
				continue
			}
			var mismatch *comm.MismatchError
			require.ErrorAs(t, errs[1], &mismatch)
			require.ErrorContains(t, errs[1], want)
		}
	}
}

// TestBadInput is refused by name and adds nothing.
func TestBadInput(t *testing.T) {
	logits, targets := of([]float32{1, 2, 3, 4, 5, 6}, 2, 3), of([]int{0, 2}, 2)
	nan := float32(math.NaN())
	a, c, m, h := &metrics.Accuracy{}, &metrics.Confusion{Classes: 3}, &metrics.Mean{}, &metrics.Histogram{Edges: []float64{0, 1}}
	for want, err := range map[string]error{
		"metrics: target 1 is 3, but there are only 3 classes, counted from 0":         a.Add(logits, of([]int{0, 3}, 2)),
		"metrics: target 0 is -2, but there are only 3 classes, counted from 0":        c.Add(logits, of([]int{-2, 0}, 2)),
		"metrics: logits of shape (2, 3) have 2 rows, but targets of shape (3) have 3": a.Add(logits, of([]int{0, 1, 2}, 3)),
		"metrics: logits are int, want floats":                                         a.Add(of([]int{1, 2, 3}, 1, 3), of([]int{0}, 1)),
		"metrics: targets are float32, want ints":                                      a.Add(logits, of([]float32{0, 1}, 2)),
		"metrics: logits: the tensor is nil":                                           a.Add(nil, targets),
		"metrics: targets: the tensor is nil":                                          c.Add(logits, nil),
		"metrics: logits of shape () have no classes":                                  a.Add(tensor.New(tensor.FromScalar(float32(1))), of([]int{0}, 1)),
		"metrics: logits have shape (2, 3), but field Classes is 4":                    (&metrics.Confusion{Classes: 4}).Add(logits, targets),
		"metrics: field Classes is 0: must be at least 1":                              (&metrics.Confusion{}).Add(logits, targets),
		"metrics: field K is -1: must not be negative":                                 (&metrics.Accuracy{K: -1}).Add(logits, targets),
		"metrics: row 1 of the logits has a NaN":                                       c.Add(of([]float32{1, 2, 3, 4, nan, 6}, 2, 3), targets),
		"metrics: the weight is -1: must be finite and not negative":                   m.Add(1, -1),
		"metrics: the weight is NaN: must be finite and not negative":                  m.AddTensor(logits, math.NaN()),
		"metrics: field Edges is empty":                                                (&metrics.Histogram{}).Add(1),
		"metrics: field Edges: edge 1 is 1: they must be finite and ascend":            (&metrics.Histogram{Edges: []float64{1, 1}}).AddTensor(logits),
		"metrics: element type string is not supported: want float32, float64 or int":  h.AddTensor(of([]string{"x"}, 1)),
	} {
		require.EqualError(t, err, want)
	}
	set := metrics.Set{"a": a, "c": c, "m": m, "h": h}
	values, err := set.Reduce(t.Context(), nil)
	require.NoError(t, err)
	for name, v := range values {
		require.True(t, math.IsNaN(v), name)
	}
	for want, set := range map[string]metrics.Set{
		"metrics: x is nil": {"x": nil}, "metrics: x: field K is -1: must not be negative": {"x": &metrics.Accuracy{K: -1}},
	} {
		_, err := set.Reduce(t.Context(), nil)
		require.EqualError(t, err, want)
	}
	h.Edges = h.Edges[:1]
	require.EqualError(t, h.Add(3), "metrics: fields have changed since the first Add")
	require.Panics(t, func() { c.Count(0, 3) })
}

// TestWhatIsNoNumber is passed on by means, unless it has no weight, never right, and counted
// apart.
func TestWhatIsNoNumber(t *testing.T) {
	nan := math.NaN()
	m, a, h := &metrics.Mean{}, &metrics.Accuracy{K: 2}, &metrics.Histogram{Edges: []float64{0}}
	require.NoError(t, m.Add(nan, 0))
	require.NoError(t, m.Add(5, 2))
	require.NoError(t, a.Add(of([]float64{nan, 1, 2, 9, 5, nan, nan, 5, 2, nan, 1, 0}, 4, 3), of([]int{0, 1, 1, 1}, 4)))
	require.NoError(t, h.Add(nan, -1, math.Inf(1), math.Inf(-1)))
	set := metrics.Set{"m": m, "a": a, "h": h}
	values, err := set.Reduce(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, 5.0, values["m"])
	require.Equal(t, 0.5, values["a"], "of a target that is NaN no, of one behind two no")
	require.Equal(t, []int{2, 1}, h.Counts())
	require.Equal(t, 1, h.NaNs())
	require.NoError(t, m.Add(nan, 1))
	values, err = set.Reduce(t.Context(), nil)
	require.NoError(t, err)
	require.True(t, math.IsNaN(values["m"]))
}

// TestQuantile spreads numbers evenly, and finds them again.
func TestQuantile(t *testing.T) {
	h := &metrics.Histogram{Edges: []float64{0, 10, 20, 100}}
	for i := range 1000 {
		require.NoError(t, h.Add(float64(i)/10))
	}
	require.True(t, math.IsNaN(h.Quantile(0.5)), "nothing is reduced")
	_, err := metrics.Set{"h": h}.Reduce(t.Context(), nil)
	require.NoError(t, err)
	for _, q := range []float64{0, 0.05, 0.1, 0.15, 0.5, 1} {
		require.InDelta(t, 100*q, h.Quantile(q), 1e-9)
	}
	require.True(t, math.IsNaN(h.Quantile(1.1)))
	require.NoError(t, h.Add(slices.Repeat([]float64{-5}, 3000)...))
	require.NoError(t, h.Add(slices.Repeat([]float64{500}, 4000)...))
	_, err = metrics.Set{"h": h}.Reduce(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, 0.0, h.Quantile(0.3))
	require.Equal(t, 100.0, h.Quantile(0.9))
}

// TestAddAllocatesNothing, as it is called for each batch.
func TestAddAllocatesNothing(t *testing.T) {
	m := &metrics.Mean{}
	require.NoError(t, m.Add(1, 1))
	require.Zero(t, testing.AllocsPerRun(100, func() { _ = m.Add(1, 1) }))
}

// TestConfusionBefore has the values of many classes before any Reduce.
func TestConfusionBefore(t *testing.T) {
	c := &metrics.Confusion{Classes: 1000}
	allocs := testing.AllocsPerRun(1, func() { require.True(t, math.IsNaN(c.Value())) })
	require.Less(t, allocs, 10.)
}

// TestReduceOfNone has a rank whose set is empty, and all ranks.
func TestReduceOfNone(t *testing.T) {
	errs := make([]error, 2)
	err := comm.Run(t.Context(), 2, func(ctx context.Context, g comm.Group) error {
		values, err := metrics.Set{}.Reduce(ctx, g)
		require.NoError(t, err)
		require.Empty(t, values)
		set := metrics.Set{}
		if g.Rank() == 0 {
			set["loss"] = &metrics.Mean{}
		}
		_, errs[g.Rank()] = set.Reduce(ctx, g)
		return errs[g.Rank()]
	})
	require.Error(t, err)
	for _, err := range errs {
		var mismatch *comm.MismatchError
		require.ErrorAs(t, err, &mismatch)
	}
}

// TestMeanIsExact compares sums of numbers of all magnitudes with those of big numbers, in any
// order and over any number of ranks.
func TestMeanIsExact(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		list := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) float64 {
			x := math.Ldexp(rapid.Float64Range(-2, 2).Draw(rt, "x"), rapid.IntRange(-1074, 1000).Draw(rt, "exponent"))
			return rapid.SampledFrom([]float64{x, -x, 1, -1, 0x1p-1074, 1 + 0x1p-52}).Draw(rt, "of")
		}), 1, 20).Draw(rt, "numbers")
		sum := new(big.Float).SetPrec(4000)
		ranks := make([]metrics.Mean, rapid.IntRange(1, 3).Draw(rt, "ranks"))
		for i, x := range list {
			sum.Add(sum, big.NewFloat(x))
			require.NoError(rt, ranks[i%len(ranks)].Add(x, 1))
		}
		want, _ := sum.Float64()
		require.NoError(rt, comm.Run(t.Context(), len(ranks), func(ctx context.Context, g comm.Group) error {
			m := &ranks[g.Rank()]
			_, err := metrics.Set{"m": m}.Reduce(ctx, g)
			if err == nil && (m.Value() != want/float64(len(list)) || m.Weight() != float64(len(list))) {
				err = fmt.Errorf("the mean is %v, want %v", m.Value(), want/float64(len(list)))
			}
			return err
		}))
	})
	var m metrics.Mean
	for _, x := range []float64{1, math.Inf(1)} {
		require.NoError(t, m.Add(x, 1))
	}
	_, err := metrics.Set{"m": &m}.Reduce(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, math.Inf(1), m.Value())
}
