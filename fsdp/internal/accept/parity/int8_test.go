package parity_test

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/optim"
)

// inBlocks returns x after a journey as Int8, by its definition.
func inBlocks(x []float32) []float32 {
	const block = 256
	y := make([]float32, len(x))
	for at := 0; at < len(x); at += block {
		most := float32(0)
		for _, v := range x[at:min(at+block, len(x))] {
			most = max(most, float32(math.Abs(float64(v))))
		}
		for i := at; i < min(at+block, len(x)); i++ {
			y[i] = float32(math.RoundToEven(float64(x[i]*(127/most)))) * (most / 127)
		}
	}
	return y
}

// bareBlocks is a model of a product with a parameter of n elements, and one with another that is
// Full. The loss is the sum of theirs; the other results are the products.
func bareBlocks(n int) kit.Model {
	return func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		a, exact := t.Call("a", &bare{n: n}, in[0]), t.Call("exact", &bare{n, true}, in[0])
		return []fsdp.Ref{t.Call("both", sum, a, exact), a.At(1), exact.At(1)}, nil
	}
}

// onlyFull selects what says so, vectors or not.
func onlyFull(_ fsdp.CallInfo, p fsdp.Param) bool { return p.Full }

// TestForwardSeesBlocks checks that what forward computes with is exactly what blocks of a
// parameter are rounded to, under every strategy and number of ranks, and that the optimizer's stay
// as they are.
func TestForwardSeesBlocks(t *testing.T) {
	kit.Needs(t, kit.EightBits)
	for _, world := range []int{1, 3, 4} {
		kit.EveryStrategy(t, world, func(t *testing.T, cfg fsdp.Config) {
			kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
				cfg := cfg
				cfg.Group, cfg.WrapPolicy = g, fsdp.WrapEach()
				cfg.Precision = fsdp.Precision{Gather: fsdp.Int8, Full: onlyFull}
				m := kit.Wrap(t, bareBlocks(640), cfg)
				want, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
				require.NoError(t, err)
				out, err := m.Eval(ctx, kit.Ones(640))
				require.NoError(t, err)
				require.Equal(t, inBlocks(floats32(want["a.w"])), floats32(out[1]))
				require.NotEqual(t, floats32(want["a.w"]), floats32(out[1]))
				require.Equal(t, floats32(want["exact.w"]), floats32(out[2]))
				loss := kit.ForwardBackward(t, ctx, m, []fsdp.Tensor{kit.Ones(640)})
				require.Equal(t, float32(loss), floats32(out[0])[0], "training sees the same")
				kit.RequireSameBits(t, kit.BitsOf(want), kit.StateBits(t, ctx, m), "masters are not rounded")
			})
		})
	}
}

// TestVectorsAreNoBlocks checks that parameters of one dimension are not rounded unless Full says
// so.
func TestVectorsAreNoBlocks(t *testing.T) {
	kit.Needs(t, kit.EightBits)
	m := kit.Wrap(t, bareBlocks(640), fsdp.Config{WrapPolicy: fsdp.WrapEach(), Precision: fsdp.Precision{Gather: fsdp.Int8}})
	state, err := m.StateDict(t.Context(), &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(t, err)
	out, err := m.Eval(t.Context(), kit.Ones(640))
	require.NoError(t, err)
	require.Equal(t, floats32(state["a.w"]), floats32(out[1]))
}

// TestSumsOfBlocks compares gradients with a sum in float32 of what the ranks' are rounded to, in
// two backwards: with the second goes what the first has lost.
func TestSumsOfBlocks(t *testing.T) {
	kit.Needs(t, kit.EightBits)
	const n = 512
	x := func(rank int) func(int) float32 {
		return func(i int) float32 { return float32(kit.Value(i, rank)) } // in [-1, 1)
	}
	for _, world := range []int{1, 2, 3, 4} {
		kit.EveryStrategy(t, world, func(t *testing.T, cfg fsdp.Config) {
			kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
				cfg := cfg
				cfg.Group, cfg.WrapPolicy, cfg.Precision = g, fsdp.WrapEach(), fsdp.Precision{Reduce: fsdp.Int8, Full: onlyFull}
				m := kit.Wrap(t, bareBlocks(n), cfg)
				lost := make([][]float32, world)
				for pass := range 3 {
					m.ZeroGrad()
					kit.ForwardBackward(t, ctx, m, []fsdp.Tensor{kit.Filled(n, x(g.Rank()))})
					grads, err := m.FullGrads(ctx)
					require.NoError(t, err)
					sent, exact := make([][]float32, world), make([][]float32, world)
					for r := range sent {
						exact[r] = floats32(kit.Filled(n, func(i int) float32 { return x(r)(i) / n }))
						sum := slices.Clone(exact[r])
						for i, e := range lost[r] {
							sum[i] += e
						}
						sent[r] = inBlocks(sum)
						for i := range sum {
							sum[i] -= sent[r][i]
						}
						lost[r] = inBlocks(sum)
					}
					for name, ranks := range map[string][][]float32{"a.w": sent, "exact.w": exact} {
						for i, got := range floats32(grads[name]) {
							each := make([]float32, world)
							for r := range each {
								each[r] = ranks[r][i]
							}
							require.Equal(t, treeSum(each)*float32(1/float64(world)), got, "pass %d: %s[%d]", pass, name, i)
						}
					}
				}
			})
		})
	}
}

// TestInt8AfterLoad checks that a training which goes on from a checkpoint has the bits of the one
// that has saved it and gone on, although what gradients have lost is not there, whatever it had
// lost before the Load.
func TestInt8AfterLoad(t *testing.T) {
	kit.Needs(t, kit.EightBits)
	const world, saved = 2, 3
	dir := t.TempDir()
	run := func(first, n int, then ...func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer) error) kit.Bits {
		states := make([]kit.Bits, world)
		kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
			m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g, WrapPolicy: kit.Blocks, Precision: fsdp.Precision{Gather: fsdp.Int8, Reduce: fsdp.Int8}})
			opt, err := optim.AdamW{}.New(m.Params())
			require.NoError(t, err)
			steps := func(first, n int) {
				for step := first; step < first+n; step++ {
					kit.ForwardBackward(t, ctx, m, kit.TinyBatch(step, g.Rank(), 2, kit.TinyContext))
					require.NoError(t, opt.Step(0.01))
					m.ZeroGrad()
				}
			}
			steps(first, n)
			for _, f := range then {
				require.NoError(t, f(ctx, m, opt))
				steps(saved, 2)
			}
			states[g.Rank()] = kit.StateBits(t, ctx, m)
		})
		return states[0]
	}
	save := func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer) error {
		return m.Save(ctx, dir, opt, nil)
	}
	async := func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer) error {
		v, err := m.SaveAsync(ctx, filepath.Join(dir, "async"), opt, nil)
		if err == nil {
			err = v.Wait(ctx)
		}
		return err
	}
	load := func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer) error {
		return kit.ErrorOf(m.Load(ctx, dir, opt, nil))
	}
	want := run(0, saved, save)
	kit.RequireSameBits(t, want, run(0, saved, async))
	kit.RequireSameBits(t, want, run(0, 0, load))
	kit.RequireSameBits(t, want, run(7, 2, load), "what others have lost")
	require.NotEqual(t, want, run(0, saved+2), "without a Save it is not lost")
}

// TestInt8Memory checks that a rank keeps what its gradients lose, and that the plan says so, also
// where some of them travel in other types.
func TestInt8Memory(t *testing.T) {
	kit.Needs(t, kit.EightBits)
	others := kit.TypesByName(fsdp.Int8, fsdp.Int8, map[string][2]fsdp.DType{"wte.weight": {}, "blocks.1.fc.weight": {fsdp.Int8, fsdp.Float16}})
	for i, c := range kit.Cuts(4) {
		kit.OnRanks(t, 4, func(ctx context.Context, g comm.Group) {
			p := fsdp.Precision{Gather: fsdp.Int8, Reduce: fsdp.Int8}
			if i%2 == 1 {
				p.TypesOf = others
			}
			m := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: g, WrapPolicy: kit.Blocks, Strategy: c.Strategy, ShardRanks: c.Ranks, Precision: p, Poison: true})
			plan, err := m.Plan(kit.GoodBatch(0)...)
			require.NoError(t, err)
			blocks := 0
			for _, g := range plan.Groups {
				if !strings.Contains(g.Name, "(") {
					blocks += g.Bytes / 1024
				}
			}
			require.Equal(t, 260*blocks, plan.ErrorBytes)
			require.Equal(t, plan.ShardBytes+plan.ErrorBytes, m.Memory().Live)
			kit.RequirePeaks(t, ctx, m, g.Rank())
		})
	}
}

// labeledGroup counts blocks, which travel as bytes under the name of their unit, as floats.
type labeledGroup struct{ *kit.CountingGroup }

func (g labeledGroup) AllGather(dst, src comm.Buffer) comm.Work {
	if l := dst.Label(); g.Size() > 1 && dst.DType() == comm.Uint8 && (strings.HasPrefix(l, "root") || strings.HasPrefix(l, "blocks.")) {
		g.Gathers++
		g.Bytes += dst.Len() / g.Size() * (g.Size() - 1)
	}
	return g.CountingGroup.AllGather(dst, src)
}

func (g labeledGroup) AllToAll(dst, src comm.Buffer) comm.Work {
	g.Reduces++
	g.Bytes += dst.Len() / g.Size() * (g.Size() - 1)
	return g.CountingGroup.AllToAll(dst, src)
}

func (g labeledGroup) Split(ctx context.Context, color, key int) (comm.Group, error) {
	child, err := g.CountingGroup.Split(ctx, color, key)
	return labeledGroup{child.(*kit.CountingGroup)}, err
}

// TestTraffic8 compares the bytes of passes whose parameters, and then gradients, too, travel as
// Int8 with the plan and with the formulas: 65 bytes for the 256 of 64 float32. Between replicas
// sums are float32.
func TestTraffic8(t *testing.T) {
	kit.Needs(t, kit.GroupCollectives)
	const world, layers, prefetch = 4, 3, 1
	for _, c := range kit.Cuts(world) {
		for _, reduce := range []fsdp.DType{fsdp.Float32, fsdp.Int8} {
			t.Run(fmt.Sprintf("%v/%v", c, reduce), func(t *testing.T) {
				kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
					counting := labeledGroup{&kit.CountingGroup{Group: g, Tally: &kit.Tally{}}}
					m := kit.Wrap(t, kit.TinyGPT(layers), fsdp.Config{
						Group: counting, WrapPolicy: kit.Blocks, Strategy: c.Strategy, ShardRanks: c.Ranks, Prefetch: prefetch,
						Precision: fsdp.Precision{Gather: fsdp.Int8, Reduce: reduce, Full: func(fsdp.CallInfo, fsdp.Param) bool { return false }},
					})
					batch := kit.TinyBatch(0, g.Rank(), 1, 2)
					plan, err := m.Plan(batch...)
					require.NoError(t, err)
					root, block := plan.Groups[0].Bytes, plan.Groups[1].Bytes
					require.Zero(t, block%1024, "blocks of 256 float32")
					root8, block8 := root/256*65, block/256*65
					forward, backward := c.Pass(world, layers, prefetch, root8, block8)
					shards, _ := c.Over(world)
					backward.Bytes += c.Sum(world, root) + layers*c.Sum(world, block)
					if reduce == fsdp.Int8 {
						backward.Bytes -= (root - root8 + layers*(block-block8)) / shards * (shards - 1)
					}
					backward.Bytes -= c.Sum(world, root8) + layers*c.Sum(world, block8)
					want := kit.Tally{Gathers: forward.Gathers + backward.Gathers, Reduces: backward.Reduces, AllReduces: backward.AllReduces, Bytes: forward.Bytes + backward.Bytes}
					require.Equal(t, want, kit.Tally{Gathers: plan.Gathers, Reduces: plan.Reduces, AllReduces: plan.AllReduces, Bytes: plan.Traffic}, "plan")
					counting.Take()
					kit.ForwardBackward(t, ctx, m, batch)
					require.Equal(t, want, counting.Take())
					_, err = m.Eval(ctx, batch...)
					require.NoError(t, err)
					require.Equal(t, forward, counting.Take())
				})
			})
		}
	}
}

// TestInt8BesideOthers has three parameters of one unit travel in three ways: each as if it were
// alone, so that no block has elements of another.
func TestInt8BesideOthers(t *testing.T) {
	kit.Needs(t, kit.EightBits)
	types := kit.TypesByName(0, 0, map[string][2]fsdp.DType{"a.w": {fsdp.Int8, fsdp.Int8}, "b.w": {fsdp.BFloat16, 0}})
	for _, world := range []int{1, 3, 4} {
		kit.EveryStrategy(t, world, func(t *testing.T, cfg fsdp.Config) {
			kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
				cfg := cfg
				cfg.Group, cfg.Precision = g, fsdp.Precision{TypesOf: types}
				m := kit.Wrap(t, bares, cfg)
				state, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
				require.NoError(t, err)
				out, err := m.Eval(ctx, kit.Ones(bareLen))
				require.NoError(t, err)
				require.Equal(t, inBlocks(floats32(state["a.w"])), floats32(out[1]))
				require.Equal(t, floats32(state["exact.w"]), floats32(out[2]))
				for i, v := range floats32(state["b.w"]) {
					require.Equal(t, kit.Rounded(v, fsdp.BFloat16), floats32(out[3])[i])
				}
				exact := func(rank int) []float32 {
					return floats32(kit.Filled(bareLen, func(i int) float32 { return float32(kit.Value(i, rank)) / bareLen }))
				}
				kit.ForwardBackward(t, ctx, m, []fsdp.Tensor{kit.Filled(bareLen, func(i int) float32 { return float32(kit.Value(i, g.Rank())) })})
				grads, err := m.FullGrads(ctx)
				require.NoError(t, err)
				for name, grad := range grads {
					for i, got := range floats32(grad) {
						sent := make([]float32, world)
						for r := range sent {
							sent[r] = exact(r)[i]
							if name == "a.w" {
								sent[r] = inBlocks(exact(r))[i]
							}
						}
						require.Equal(t, treeSum(sent)*float32(1/float64(world)), got, "%s[%d]", name, i)
					}
				}
				plan, err := m.Plan(kit.Ones(bareLen))
				require.NoError(t, err)
				var groups []string
				for _, g := range plan.Groups {
					groups = append(groups, g.Name)
				}
				require.Equal(t, []string{"root (full)", "root (gather bfloat16, reduce float32)", "root (gather int8, reduce int8)"}, groups)
			})
		})
	}
}

// TestTraffic8BesideOthers compares bytes with the plan and with the formulas where the root unit
// travels in float32, and all of a block as Int8 but for a matrix, which takes collectives of its
// own.
func TestTraffic8BesideOthers(t *testing.T) {
	kit.Needs(t, kit.GroupCollectives)
	const world, layers = 4, 3
	types := func(c fsdp.CallInfo, p fsdp.Param) (gather, reduce fsdp.DType) {
		switch {
		case !strings.HasPrefix(c.Name, "blocks."):
			return fsdp.Float32, fsdp.Float32
		case strings.HasSuffix(p.Name, ".fc.weight"):
			return fsdp.BFloat16, fsdp.Float16
		}
		return fsdp.Int8, fsdp.Int8
	}
	for _, c := range kit.Cuts(world) {
		for _, prefetch := range []int{1, 2} {
			t.Run(fmt.Sprintf("%v/prefetch %d", c, prefetch), func(t *testing.T) {
				kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
					counting := labeledGroup{&kit.CountingGroup{Group: g, Tally: &kit.Tally{}}}
					m := kit.Wrap(t, kit.TinyGPT(layers), fsdp.Config{
						Group: counting, WrapPolicy: kit.Blocks, Strategy: c.Strategy, ShardRanks: c.Ranks, Prefetch: prefetch,
						Precision: fsdp.Precision{Gather: fsdp.Int8, Reduce: fsdp.Int8, TypesOf: types, Full: func(fsdp.CallInfo, fsdp.Param) bool { return false }},
					})
					batch := kit.TinyBatch(0, g.Rank(), 1, 2)
					plan, err := m.Plan(batch...)
					require.NoError(t, err)
					require.Equal(t, "blocks.0 (gather bfloat16, reduce float16)", plan.Groups[2].Name)
					root, block, half := plan.Groups[0].Bytes, plan.Groups[1].Bytes, plan.Groups[2].Bytes/2
					block8 := block / 1024 * 260
					forward, backward := c.Pass(world, layers, prefetch, root, block8)
					forwardHalf, backwardHalf := c.Pass(world, layers, prefetch, 0, half)
					shards, _ := c.Over(world)
					backward.Bytes += layers * (c.Sum(world, block) - (block-block8)/shards*(shards-1) - c.Sum(world, block8)) // between replicas float32
					butRoot := func(n int) int { return max(0, n-1) }
					want := kit.Tally{
						Gathers: forward.Gathers + backward.Gathers + butRoot(forwardHalf.Gathers) + backwardHalf.Gathers,
						Reduces: backward.Reduces + butRoot(backwardHalf.Reduces), AllReduces: backward.AllReduces + butRoot(backwardHalf.AllReduces),
						Bytes: forward.Bytes + backward.Bytes + forwardHalf.Bytes + backwardHalf.Bytes,
					}
					require.Equal(t, want, kit.Tally{Gathers: plan.Gathers, Reduces: plan.Reduces, AllReduces: plan.AllReduces, Bytes: plan.Traffic}, "plan")
					counting.Take()
					kit.ForwardBackward(t, ctx, m, batch)
					require.Equal(t, want, counting.Take())
				})
			})
		}
	}
}
