package join_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/optim"
)

// The models of this file compute in whole numbers, which are summed without rounding: in any order
// the sums have the same bits.

// affine is x·w + m·v.
type affine struct{ kit.Dense }

func (m *affine) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	y, err := m.Sum(b, in)
	return gorgonia.Nodes{y}, err
}

// inner is the sum of x∘y, without parameters, and x as a second output.
var inner = &kit.Module{Graph: func(_ *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
	product, err := gorgonia.HadamardProd(in[0], in[1])
	if err != nil {
		return nil, err
	}
	loss, err := gorgonia.Sum(product)
	return gorgonia.Nodes{loss}, err
}}

// wholeTranslator is a translator of whole numbers.
type wholeTranslator struct{}

func (wholeTranslator) Inputs() []string { return []string{"source", "state", "target"} }

func (m wholeTranslator) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	state := m.decode(t, in[1], m.encode(t, in[0]))
	return []fsdp.Ref{t.Call("loss", inner, state, in[2]), state}, nil
}

func (wholeTranslator) encode(t *fsdp.Tape, source fsdp.Ref) fsdp.Ref {
	return t.Call("enc", &affine{kit.Dense{Dim: kit.ShapeDim}}, source)
}

func (wholeTranslator) decode(t *fsdp.Tape, state, memory fsdp.Ref) fsdp.Ref {
	return t.Again("dec.0", t.Call("dec.1", &affine{kit.Dense{Dim: kit.ShapeDim}}, t.Call("dec.0", &affine{kit.Dense{Dim: kit.ShapeDim, Mem: true}}, state, memory)), memory)
}

func (m wholeTranslator) Programs() map[string]fsdp.Program {
	decode := func(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
		return []fsdp.Ref{m.decode(t, in[0], in[1])}, nil
	}
	return map[string]fsdp.Program{
		"encode": func(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) { return []fsdp.Ref{m.encode(t, in[0])}, nil },
		"decode": decode, "step": decode,
	}
}

// integers returns whole numbers from -2 to 2, another number of rows for each seed.
func integers(seed int, shape ...int) *tensor.Dense {
	v := kit.Floats(seed, shape...)
	for i, x := range v.Float64s() {
		v.Float64s()[i] = float64(int(2.5 * x))
	}
	return v
}

func wholeBatch(seed int) []fsdp.Tensor {
	var batch []fsdp.Tensor
	for i := range 3 {
		batch = append(batch, integers(3*seed+i, 1+seed%3, kit.ShapeDim))
	}
	return batch
}

// An errand is what a rank does once inside JoinCalls.
type errand struct {
	Kind   string
	Seed   int // of its batch
	Weight float64
}

// errands are the kinds: those that evaluate a program by name, and those that train. "drop" is a
// forward whose backward never comes.
var errands = []string{"", "encode", "decode", "step", "train", "train", "quiet", "drop"}

const errandSeeds = 6

// drawErrands draws what ranks do in some JoinCalls: by JoinCalls and rank.
func drawErrands(world, times, most int, draw func(n int) int) [][][]errand {
	all := make([][][]errand, times)
	for i := range all {
		all[i] = make([][]errand, world)
		for r := range world {
			for range draw(most + 1) {
				e := errand{errands[draw(len(errands))], draw(errandSeeds), float64(draw(3))}
				all[i][r] = append(all[i][r], e)
			}
		}
	}
	return all
}

// run runs e and returns what it sees. Weight is for ByWeights, and a scale otherwise.
func (e errand) run(ctx context.Context, m *fsdp.Sharded, divide fsdp.GradAverage) ([]float64, error) {
	batch := wholeBatch(e.Seed)
	opt := fsdp.Scale(e.Weight)
	if divide == fsdp.ByWeights {
		opt = fsdp.Weight(e.Weight)
	}
	step := func() (seen []float64, err error) {
		loss, err := m.Forward(ctx, batch...)
		if err == nil && e.Kind != "drop" {
			err = m.Backward(ctx, opt)
		}
		return []float64{loss}, err
	}
	switch e.Kind {
	case "train", "drop":
		return step()
	case "quiet":
		var seen []float64
		return seen, m.NoSync(func() (err error) { seen, err = step(); return err })
	case "encode":
		batch = batch[:1]
	case "decode", "step":
		batch = batch[:2]
	}
	out, err := m.EvalProgram(ctx, e.Kind, batch...)
	var seen []float64
	for _, v := range out {
		seen = append(seen, kit.Elements(v)...)
	}
	return seen, err
}

func (e errand) trains() bool { return e.Kind == "train" || e.Kind == "quiet" }

// wholeParams gives the model whole numbers.
func wholeParams(t require.TestingT, ctx context.Context, m *fsdp.Sharded) {
	params, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(t, err)
	for i, name := range kit.SortedKeys(params) {
		params[name] = integers(50+i, params[name].Shape()...)
	}
	require.NoError(t, m.LoadStateDict(ctx, 0, params))
}

// mix is what ranks do in JoinCalls at random, and under which setting.
type mix struct {
	World   int
	Divide  fsdp.GradAverage
	Errands [][][]errand
	kit.Setting
}

// mixed is what a rank has seen of a mix.
type mixed struct {
	seen   [][]float64
	passes []int // by own backward: its number, the same on all ranks
	grads  kit.Record
	state  kit.Bits
}

func drawMix(t *rapid.T) *mix {
	x := &mix{
		World:  rapid.IntRange(1, 8).Draw(t, "world"),
		Divide: rapid.SampledFrom([]fsdp.GradAverage{fsdp.ByOne, fsdp.ByOne, fsdp.ByRanks, fsdp.ByActive, fsdp.ByWeights}).Draw(t, "divide"),
	}
	x.Knobs = kit.DrawKnobs(t, x.World)
	x.ShardRanks = rapid.SampledFrom(kit.PowersIn(x.World)).Draw(t, "ranks of a shard")
	x.InFlight = rapid.SampledFrom([]int{0, 300, 700}).Draw(t, "bytes in flight")
	x.Strict = rapid.Bool().Draw(t, "strict group")
	x.Errands = drawErrands(x.World, rapid.IntRange(1, 2).Draw(t, "times"), 6, func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "errand") })
	return x
}

// play runs the mix on one rank.
func (x *mix) play(t require.TestingT, ctx context.Context, g comm.Group) (got mixed) {
	book := new(kit.StrictBook)
	if x.Strict {
		g = &kit.StrictGroup{Group: g, Book: book}
	}
	cfg := x.Config()
	cfg.Group, cfg.GradAverage, cfg.InFlight = g, x.Divide, x.InFlight
	cfg.Observers = append(cfg.Observers, fsdp.TraceFunc(func(e fsdp.Event) {
		if e.Kind == "backward" && !e.Absent && (len(got.passes) == 0 || got.passes[len(got.passes)-1] != e.Pass) {
			got.passes = append(got.passes, e.Pass)
		}
	}))
	m := kit.Wrap(t, wholeTranslator{}, cfg)
	wholeParams(t, ctx, m)
	opt, err := optim.SGD{}.New(m.Params())
	require.NoError(t, err)
	for _, errands := range x.Errands {
		require.NoError(t, m.JoinCalls(ctx, func() error {
			for _, e := range errands[g.Rank()] {
				seen, err := e.run(ctx, m, x.Divide)
				if err != nil {
					return err
				}
				got.seen = append(got.seen, seen)
			}
			return nil
		}))
	}
	require.NoError(t, m.SyncGrads(ctx))
	kit.RequireIdle(t, ctx, m, wholeBatch(0))
	got.grads = kit.GradsOf(t, ctx, m)
	require.NoError(t, opt.Step(1))
	got.state = kit.StateBits(t, ctx, m)
	require.NoError(t, m.Close())
	book.Require(t)
	return got
}

// check compares ranks with one process that makes the calls of all of them, one after the other.
func (x *mix) check(t require.TestingT) {
	got := make([]mixed, x.World)
	kit.OnRanks(t, x.World, func(ctx context.Context, g comm.Group) { got[g.Rank()] = x.play(t, ctx, g) })
	ctx := context.Background()
	one := kit.Wrap(t, wholeTranslator{}, fsdp.Config{Precision: kit.Float64s})
	wholeParams(t, ctx, one)
	together := map[int]float64{} // by number of a pass: the weights of those that run it
	own := make([][]kit.Record, x.World)
	for r := range x.World {
		var seen [][]float64
		for _, errands := range x.Errands {
			for _, e := range errands[r] {
				one.ZeroGrad()
				c := e.Weight
				if x.Divide == fsdp.ByWeights {
					e.Weight = 1
				}
				what, err := e.run(ctx, one, fsdp.ByOne)
				require.NoError(t, err)
				seen = append(seen, what)
				if !e.trains() {
					continue
				}
				require.NoError(t, one.SyncGrads(ctx))
				if x.Divide != fsdp.ByWeights {
					c = 1
				}
				require.Less(t, len(own[r]), len(got[r].passes), "rank %d", r)
				together[got[r].passes[len(own[r])]] += c
				sum := kit.Record{}
				kit.AddTo(sum, kit.GradsOf(t, ctx, one), c)
				own[r] = append(own[r], sum)
			}
		}
		require.Equal(t, seen, got[r].seen, "rank %d", r)
		require.Len(t, got[r].passes, len(own[r]), "rank %d", r)
	}
	want := kit.Record{}
	for r, list := range own {
		for i, g := range list {
			c := map[fsdp.GradAverage]float64{fsdp.ByRanks: 1 / float64(x.World), fsdp.ByOne: 1}[x.Divide]
			if sum := together[got[r].passes[i]]; c == 0 && sum > 0 {
				c = 1 / sum
			}
			kit.AddTo(want, g, c)
		}
	}
	for r := range got {
		require.Len(t, got[r].grads, len(want))
		for name, w := range want {
			if x.Divide == fsdp.ByOne || x.Divide == fsdp.ByRanks && x.World&(x.World-1) == 0 {
				require.Equal(t, w, got[r].grads[name], "rank %d: %s", r, name)
			} else {
				kit.RequireWithin(t, w, got[r].grads[name], 1e-13, name)
			}
		}
		kit.RequireSameBits(t, got[0].state, got[r].state, "rank ", r)
	}
}

// TestJoinCallsAtRandom compares any calls in any order, on any number of ranks under any strategy,
// with the same calls on one process: results and sums of gradients have the same bits.
func TestJoinCallsAtRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { drawMix(t).check(t) })
}

// TestJoinCallsNeverHangs runs ten thousand random mixes where time stands still as long as any rank
// can go on: ranks that all wait for each other would reach the deadline at once. In some of them
// the function of a rank fails in the end, which all ranks are told, and go on with the next.
func TestJoinCallsNeverHangs(t *testing.T) {
	kit.Needs(t, kit.FakeTime)
	for world, mixes := range map[int]int{1: 100, 2: 6000, 3: 3000, 4: 700, 5: 50, 6: 50, 7: 50, 8: 50} {
		all := drawErrands(world, mixes, 3, rand.New(rand.NewPCG(1, uint64(world))).IntN)
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
				m := kit.Wrap(t, wholeTranslator{}, fsdp.Config{Group: g, WrapPolicy: kit.EveryOther, Precision: kit.Float64s})
				for i := range all {
					fails, how := (i/3)%(4*world), i%3 // rank, if there is one, and in which way
					err := m.JoinCalls(ctx, func() error {
						for _, e := range all[i][g.Rank()] {
							if _, err := e.run(ctx, m, fsdp.ByOne); err != nil {
								return err
							}
						}
						if g.Rank() != fails || how == 0 {
							return nil
						} else if how == 1 {
							return kit.ErrOops
						}
						panic(kit.ErrOops)
					})
					if fails >= world || how == 0 {
						require.NoError(t, err)
					} else {
						require.ErrorContains(t, err, kit.ErrOops.Error())
						require.Contains(t, err.Error(), fmt.Sprintf("rank %d: ", fails))
					}
					m.ZeroGrad()
				}
				kit.RequireIdle(t, ctx, m, wholeBatch(0))
			})
			require.Zero(t, time.Since(begin), "a rank has waited for another that does not come")
		})
	}
}
