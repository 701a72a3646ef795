package parity_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/shard"
)

// A member is one rank's part in a training whose ranks change.
type member struct {
	m   *fsdp.Sharded // nil while this rank is not in it
	opt optim.Optimizer
	g   comm.Group
}

// A moving is a training on virtual ranks whose ranks change before each phase.
type moving struct {
	cfg    fsdp.Config
	rules  []optim.Rule
	ema    bool
	muon   bool
	phases [][]int // ranks of the universe that are in it, of which there are four virtual
}

const universe = 4

// wrap wraps the model on g with an optimizer.
func (v *moving) wrap(t require.TestingT, g comm.Group, virtual int) member {
	model, cfg := kit.TinyGPT(2), v.cfg
	model.Dropout = 0.1
	cfg.Group, cfg.VirtualRanks, cfg.Seed = g, virtual, 7
	m := kit.Wrap(t, model, cfg)
	opt, err := optim.AdamW{WeightDecay: 0.1, Rules: v.rules}.New(m.Params())
	if v.muon {
		opt, err = muonFor(optim.Muon{WeightDecay: 0.1}, m.Params())
	}
	require.NoError(t, err)
	if v.ema {
		require.NoError(t, optim.EMA(opt, 0.9))
	}
	return member{m, opt, g}
}

// step makes a step.
func (p *member) step(t require.TestingT, ctx context.Context, step int) {
	size := p.g.Size()
	for k := range universe / size {
		kit.ForwardBackward(t, ctx, p.m, kit.TinyBatch(step, k*size+p.g.Rank(), 2, kit.TinyContext))
	}
	_, err := p.m.ClipGradNorm(ctx, 0.5)
	require.NoError(t, err)
	require.NoError(t, p.opt.Step(1e-2))
	p.m.ZeroGrad()
}

// bits returns everything that a step depends on, on rank 0 of the group.
func (p *member) bits(t require.TestingT, ctx context.Context) kit.Bits {
	all := kit.StateBits(t, ctx, p.m)
	full, err := p.m.OptimStateDict(ctx, p.opt, nil)
	require.NoError(t, err)
	if p.g.Rank() == 0 {
		all["steps"] = []uint64{uint64(full.Steps)}
		for _, e := range full.Entries() {
			for _, x := range kit.CopyOf(t, e.Data).F32 {
				all[e.Param+" "+e.Name] = append(all[e.Param+" "+e.Name], uint64(math.Float32bits(x)))
			}
		}
	}
	return all
}

// onGoroutines runs f on the ranks of the universe.
func onGoroutines(t require.TestingT, f func(ctx context.Context, g comm.Group)) {
	kit.OnRanks(t, universe, f)
}

// train makes two steps in each phase and returns the last bits.
func (v *moving) train(t require.TestingT, run func(t require.TestingT, f func(ctx context.Context, g comm.Group))) (last kit.Bits) {
	run(t, func(ctx context.Context, all comm.Group) {
		var now member
		for i, ranks := range v.phases {
			at := slices.Index(ranks, all.Rank()) // the order of ranks is the phase's
			next := v.onGroup(t, ctx, all, at, func(g comm.Group) comm.Group { return g })
			if i > 0 && (now.m != nil || next.m != nil) {
				require.NoError(t, fsdp.CopyState(ctx, now.m, next.m, now.opt, next.opt))
			}
			if now.m != nil {
				require.NoError(t, now.m.Close())
			}
			if now = next; now.m == nil {
				continue
			}
			for step := range 2 {
				now.step(t, ctx, 2*i+step)
			}
		}
		if now.m != nil {
			if b := now.bits(t, ctx); now.g.Rank() == 0 {
				last = b
			}
			require.NoError(t, now.m.Close())
		}
	})
	return last
}

// TestCopyStateSameBits: a training whose ranks leave, join and change their order has the bits of
// one that stays on its ranks.
func TestCopyStateSameBits(t *testing.T) {
	inBits := func(n int) []optim.Rule {
		return []optim.Rule{{Match: func(optim.Param) bool { return true }, Bits: new(n)}}
	}
	phases := [][]int{{0, 1, 2, 3}, {2, 1}, {1}, {3, 1, 0, 2}, {0, 3}}
	stays := slices.Repeat([][]int{{0, 1, 2, 3}}, len(phases))
	for name, v := range map[string]moving{
		"FullShard":   {ema: true},
		"HybridShard": {cfg: fsdp.Config{Strategy: fsdp.HybridShard, ShardRanks: 1}},
		"ShardGradOp": {cfg: fsdp.Config{Strategy: fsdp.ShardGradOp}},
		"NoShard":     {cfg: fsdp.Config{Strategy: fsdp.NoShard}},
		"bfloat16":    {cfg: fsdp.Config{Precision: fsdp.Precision{Compute: fsdp.BFloat16}}, ema: true},
		"masters16":   {cfg: fsdp.Config{Precision: masters16}, ema: true},
		"16 bits":     {rules: inBits(16)},
		"8 bits":      {rules: inBits(8), cfg: fsdp.Config{Unit: kit.CutAll(shard.Cut{Block: func(shard.Param) int { return 256 }})}},
		"Muon":        {muon: true},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "Muon" {
				kit.Needs(t, kit.Matrices)
			}
			v.phases = stays
			want := v.train(t, onGoroutines)
			v.phases = phases
			kit.RequireSameBits(t, want, v.train(t, onGoroutines))
			if name != "FullShard" {
				return
			}
			for name, change := range kit.Transports {
				kit.RequireSameBits(t, want, v.train(t, func(_ require.TestingT, f func(context.Context, comm.Group)) {
					kit.OnGroups(t, kit.Connect(t, universe, change), f)
				}), name)
			}
		})
	}
}

// TestCopyStateJoins: ranks join that the old group does not know. All ranks connect anew, while
// the old connections live.
func TestCopyStateJoins(t *testing.T) {
	v := &moving{}
	for name, change := range kit.Transports {
		t.Run(name, func(t *testing.T) {
			const before, after = 1, 2
			old := make([]member, after)
			kit.OnGroups(t, kit.Connect(t, before, change), func(ctx context.Context, g comm.Group) {
				old[g.Rank()] = v.wrap(t, g, universe)
				old[g.Rank()].step(t, ctx, 0)
			})
			var got kit.Bits
			kit.OnGroups(t, kit.Connect(t, after, change), func(ctx context.Context, g comm.Group) {
				now, next := old[g.Rank()], v.wrap(t, g, universe)
				require.NoError(t, fsdp.CopyState(ctx, now.m, next.m, now.opt, next.opt))
				if now.m != nil {
					require.NoError(t, now.m.Close())
				}
				next.step(t, ctx, 1)
				if b := next.bits(t, ctx); g.Rank() == 0 {
					got = b
				}
				require.NoError(t, next.m.Close())
			})
			v.phases = [][]int{{0}} // two steps
			kit.RequireSameBits(t, v.train(t, onGoroutines), got)
		})
	}
}

// TestCopyStateRefuses: what cannot be copied is the same error on the ranks of both groups, and
// the old training goes on.
func TestCopyStateRefuses(t *testing.T) {
	v := &moving{}
	sgd := func(t require.TestingT, m *fsdp.Sharded) optim.Optimizer {
		opt, err := optim.SGD{Momentum: 0.9}.New(m.Params())
		require.NoError(t, err)
		return opt
	}
	for want, c := range map[string]func(t require.TestingT, rank int, now, next *member){
		"one of the two optimizers is nil": func(_ require.TestingT, rank int, now, next *member) {
			if rank == 1 {
				next.opt = nil
			}
		},
		"saved by another kind of optimizer: AdamW -> SGD": func(t require.TestingT, rank int, now, next *member) {
			if next.m != nil {
				next.opt = sgd(t, next.m)
			}
		},
	} {
		t.Run(want, func(t *testing.T) {
			kit.OnRanks(t, 3, func(ctx context.Context, all comm.Group) {
				old, fresh := all.Rank() < 2, all.Rank() > 0 // rank 1 stays
				now, next := v.half(t, ctx, all, old), v.half(t, ctx, all, fresh)
				if old {
					now.step(t, ctx, 0)
				}
				from, to := now, next
				c(t, all.Rank(), &from, &to)
				err := fsdp.CopyState(ctx, from.m, to.m, from.opt, to.opt)
				require.ErrorContains(t, err, want, "rank %d", all.Rank())
				if old {
					now.step(t, ctx, 1)
				}
			})
		})
	}
}

// TestCopyStateNeedsBridge: a copy between groups without a common rank is an error, as is one of
// nothing.
func TestCopyStateNeedsBridge(t *testing.T) {
	v := &moving{}
	kit.OnRanks(t, 3, func(ctx context.Context, all comm.Group) {
		now, next := v.half(t, ctx, all, all.Rank() == 0), v.half(t, ctx, all, all.Rank() > 0)
		err := fsdp.CopyState(ctx, now.m, next.m, now.opt, next.opt)
		if all.Rank() == 0 {
			require.ErrorContains(t, err, "no rank of the old group has the new model")
		} else {
			require.ErrorContains(t, err, "no rank of the new group has the old model")
		}
	})
	require.ErrorContains(t, fsdp.CopyState(t.Context(), nil, nil, nil, nil), "this rank gives no model")
}

// half wraps the model on some of the ranks, of which this is one if in is true.
func (v *moving) half(t require.TestingT, ctx context.Context, all comm.Group, in bool) member {
	at := -1
	if in {
		at = all.Rank()
	}
	return v.onGroup(t, ctx, all, at, func(g comm.Group) comm.Group { return g })
}

// onGroup wraps the model on the group of the ranks with a place at of 0 and more, or on what with
// makes of that group. Other ranks may leave.
func (v *moving) onGroup(t require.TestingT, ctx context.Context, all comm.Group, at int, with func(comm.Group) comm.Group) member {
	color := comm.Detached
	if at < 0 {
		color = -1
	}
	g, err := all.Split(ctx, color, at)
	require.NoError(t, err)
	if at < 0 {
		return member{}
	}
	return v.wrap(t, with(g), universe)
}

// TestCopyStateLoses: if a rank is lost at the beginning, all ranks return an error, and none
// hangs.
func TestCopyStateLoses(t *testing.T) {
	v := &moving{}
	lost := errors.New("lost")
	ctx, cancel := context.WithTimeout(context.Background(), kit.Patience)
	defer cancel()
	errs := make([]error, 3)
	err := comm.Run(ctx, 3, func(ctx context.Context, all comm.Group) error {
		now, next := v.half(t, ctx, all, all.Rank() < 2), v.half(t, ctx, all, all.Rank() > 0)
		if all.Rank() == 2 {
			return lost
		}
		errs[all.Rank()] = fsdp.CopyState(ctx, now.m, next.m, now.opt, next.opt)
		return nil
	})
	require.ErrorIs(t, err, lost)
	for r := range 2 {
		require.ErrorContains(t, errs[r], fmt.Sprintf("rank %d: CopyState", r))
		require.Regexp(t, `lost|rank 1 of group "world/detached" has ended`, errs[r].Error())
		require.NotErrorIs(t, errs[r], context.DeadlineExceeded)
	}
}

// TestCopyStateLosesInTheMiddle ends the new group at a broadcast: all ranks of both groups get the
// error.
func TestCopyStateLosesInTheMiddle(t *testing.T) {
	v := &moving{}
	lost := errors.New("lost")
	for _, nth := range []int{1, 2, 7, 30} {
		t.Run(fmt.Sprint(nth), func(t *testing.T) {
			errs := kit.ErrorsOf(t, 3, func(ctx context.Context, all comm.Group) error {
				now := v.half(t, ctx, all, all.Rank() < 2)
				left := nth
				if all.Rank() != 2 {
					left = 0
				}
				next := v.onGroup(t, ctx, all, all.Rank()-1, func(g comm.Group) comm.Group { return &ending{g, left, lost} })
				return fsdp.CopyState(ctx, now.m, next.m, now.opt, next.opt)
			})
			for r, err := range errs {
				require.ErrorContains(t, err, "lost", "rank %d", r)
			}
		})
	}
}

// ending is a group that ends at a broadcast.
type ending struct {
	comm.Group
	left  int // broadcasts until then; 0 for no end
	cause error
}

func (g *ending) Broadcast(b comm.Buffer, root int) comm.Work {
	if g.left--; g.left == 0 {
		g.Group.Abort(g.cause)
	}
	return g.Group.Broadcast(b, root)
}

// TestCopyStateBuffers: a rank that stays keeps its own buffers. A rank that joins gets the buffers
// of a rank that stays.
func TestCopyStateBuffers(t *testing.T) {
	kit.OnRanks(t, 3, func(ctx context.Context, all comm.Group) {
		g, err := all.Split(ctx, min(all.Rank(), 2)/2, all.Rank())
		require.NoError(t, err)
		var from *fsdp.Sharded
		if all.Rank() < 2 {
			from = kit.Wrap(t, kit.Statistics, fsdp.Config{Group: g, Precision: kit.Float64s})
			_, err = from.Forward(ctx, kit.ShapeBatch(all.Rank())...)
			require.NoError(t, err)
			require.NoError(t, from.Backward(ctx))
		}
		to := kit.Wrap(t, kit.Statistics, fsdp.Config{Group: all, Seed: 5, Precision: kit.Float64s})
		require.NoError(t, fsdp.CopyState(ctx, from, to, nil, nil))
		here := buffersOf(t, ctx, to)
		require.NotEmpty(t, here)
		if from != nil {
			require.Equal(t, buffersOf(t, ctx, from), here, "rank %d", all.Rank())
		}
		last := make([]float64, 3*len(here))
		require.NoError(t, all.AllGather(comm.Of(last), comm.Of(here)).Wait(ctx))
		first, second, joined := last[:len(here)], last[len(here):2*len(here)], last[2*len(here):]
		require.NotEqual(t, first, second)
		require.Equal(t, first, joined)
	})
}

// buffersOf returns the elements of this rank's buffers.
func buffersOf(t require.TestingT, ctx context.Context, m *fsdp.Sharded) (list []float64) {
	values, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(t, err)
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if strings.HasPrefix(name, "bn.running") {
			list = append(list, values[name].Data().([]float64)...)
		}
	}
	return list
}
