package parity_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// The other tests train over groups of goroutines. Those of this file do it over the groups that
// processes have: through sockets, through memory that ranks map, and through both where there are
// several hosts. Ranks still live in one process, but share nothing that processes would not.

// landscape is a model with running statistics and units of 100 bytes, as short as messages may be,
// and of 72 KB, which travel in other ways: between hosts and inside them, from rank to rank, in
// parts.
var landscape kit.Model = func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
	x := t.Call("l0", &kit.Dense{Dim: kit.ShapeDim}, in[0])
	x = t.Call("bn", &nn.BatchNorm{Dim: kit.ShapeDim}, x)
	x = t.Call("l1", &nn.MLP{Dim: kit.ShapeDim, Hidden: 1667, Std: 0.4}, x)
	x = t.Again("bn", x)
	return kit.Regress(t, in, t.Call("l2", &kit.Dense{Dim: kit.ShapeDim}, x)), nil
}

// A journey is a configuration to train under.
type journey struct {
	name   string
	worlds []int
	cfg    fsdp.Config
	own    bool // a unit has a group of its own, of ranks that are not next to each other and in another order
}

// journeys are every strategy, with whole and narrow elements, and what changes where things are or
// what travels.
func journeys(t *testing.T) (list []journey) {
	narrow, half := fsdp.Precision{Gather: fsdp.BFloat16, Reduce: fsdp.BFloat16}, fsdp.BF16()
	all, even := []int{2, 3, 4}, []int{4}
	for s := fsdp.FullShard; s <= kit.LastStrategy; s++ {
		for _, p := range []fsdp.Precision{{}, narrow, half} {
			j := journey{fmt.Sprintf("%v, %v", s, p), all, fsdp.Config{Strategy: s, Precision: p}, false}
			if s >= fsdp.HybridShard {
				j.worlds, j.cfg.ShardRanks = even, 2
			}
			list = append(list, j)
		}
	}
	frozen := func(name string) bool { return name == "l0.w" || name == "bn.weight" }
	dirs := kit.Memories(t)
	if kit.GroupsCarryPasses { // only over processors anything travels in 8 bits
		blocks := fsdp.Precision{Gather: fsdp.Int8, Reduce: fsdp.Int8, TypesOf: kit.TypesByName(fsdp.Int8, fsdp.Int8, map[string][2]fsdp.DType{
			"l0.w": {fsdp.BFloat16, 0}, "l1.out.weight": {fsdp.Int8, fsdp.BFloat16},
		})}
		list = append(list,
			journey{"int8 and others", all, fsdp.Config{Precision: blocks}, false},
			journey{"int8 and others, HybridShard", even, fsdp.Config{Strategy: fsdp.HybridShard, ShardRanks: 2, Precision: blocks, Prefetch: 2}, false},
		)
	}
	return append(list,
		journey{"masters of 16 bits", all, fsdp.Config{Precision: masters16, Threads: 2}, false},
		journey{"masters of 16 bits, HybridShard", even, fsdp.Config{Strategy: fsdp.HybridShard, ShardRanks: 2, Precision: masters16, Frozen: frozen}, false},
		journey{"frozen", all, fsdp.Config{Frozen: frozen}, false},
		journey{"frozen, HybridShard", even, fsdp.Config{Strategy: fsdp.HybridShard, ShardRanks: 2, Frozen: frozen}, false},
		journey{"ignored", all, fsdp.Config{Ignored: func(name string) bool { return name == "l2.w" }, Prefetch: 3}, false},
		journey{"group of its own", all, fsdp.Config{Precision: narrow}, true},
		journey{"files", all, fsdp.Config{Offload: fsdp.Offload{Dir: dirs[len(dirs)-1]}}, false},
	)
}

// travel trains for three steps with everything that a step may have: passes put aside, gradients
// that are reduced later, statistics, both norms, values from outside, and other parameters frozen
// before the last. It returns all there is to see of losses, norms, gradients and parameters.
func (j journey) travel(t require.TestingT, ctx context.Context, g comm.Group) kit.Bits {
	cfg, seen := j.cfg, make(kit.Bits)
	cfg.Group, cfg.WrapPolicy, cfg.Seed, cfg.Poison = g, fsdp.WrapEach(), 5, true
	if j.own {
		own, err := g.Split(ctx, g.Rank()%max(1, g.Size()/2), -g.Rank())
		require.NoError(t, err)
		defer func() { require.NoError(t, own.Close()) }()
		cfg.Unit = kit.GroupOf(func(u fsdp.UnitConfig) comm.Group { return map[string]comm.Group{"l1": own}[u.Name] })
	}
	see := func(what string, x float64) { seen[what] = append(seen[what], math.Float64bits(x)) }
	m := kit.Wrap(t, landscape, cfg)
	opt, err := optim.AdamW{WeightDecay: 0.1}.New(m.Params())
	require.NoError(t, err)
	for step := range 3 {
		at := fmt.Sprintf("step %d: ", step)
		forward := func(i int) {
			seed := 100*step + 20*i + 2*g.Rank()
			loss, err := m.Forward(ctx, kit.InType([]fsdp.Tensor{kit.Floats(seed, 3+i, kit.ShapeDim), kit.Floats(seed+1, 3+i, kit.ShapeDim)}, fsdp.Float32)...)
			require.NoError(t, err)
			see(at+"loss", loss)
		}
		if step == 2 {
			opt = kit.Refreeze(t, ctx, m, func(name string) bool { return name == "l2.w" }, opt, optim.AdamW{WeightDecay: 0.1}.New)
		}
		forward(0)
		held := m.Hold()
		forward(1)
		require.NoError(t, m.NoSync(func() error { return m.Backward(ctx) }))
		if step == 1 {
			require.NoError(t, m.NoSync(func() error { return held.Backward(ctx) }))
			require.NoError(t, m.SyncGrads(ctx))
		} else {
			require.NoError(t, held.Backward(ctx))
		}
		for name, b := range kit.GradBits(t, ctx, m) {
			seen[at+"gradient of "+name] = b
		}
		for _, kind := range []fsdp.Norm{fsdp.L2Norm, fsdp.InfNorm} {
			norms, err := m.GradNorms(ctx, kind)
			require.NoError(t, err)
			for name, norm := range norms {
				see(at+"norms of "+name, norm)
			}
			norm, err := m.ClipGradNorm(ctx, 0.01, kind)
			require.NoError(t, err)
			see(at+"norm", norm)
		}
		require.NoError(t, opt.Step(1e-2))
		m.ZeroGrad()
		switch step {
		case 0:
			require.NoError(t, m.AverageBuffers(ctx))
		case 1:
			require.NoError(t, m.Summon(ctx, []string{"l0.w"}, func(p kit.Params) error {
				elements32(p["l0.w"])[3] += float32(g.Rank())
				return nil
			}, fsdp.WriteBack(g.Size()-1)))
		case 2:
			state, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
			require.NoError(t, err)
			for name, v := range state {
				values := elements32(v)
				for i := range values {
					values[i] *= float32(g.Rank() + 2)
				}
				if j.own && strings.HasPrefix(name, "l1.") { // it has another value on other ranks
					delete(state, name)
				}
			}
			require.NoError(t, m.LoadStateDict(ctx, 1, state))
		}
	}
	for name, b := range kit.StateBits(t, ctx, m) {
		seen["at last "+name] = b
	}
	require.NoError(t, m.Close())
	return seen
}

// elements32 returns the elements of v, to be written.
func elements32(v *tensor.Dense) []float32 { return v.Data().([]float32) }

// TestTransports makes every journey over every transport and requires, on each rank, the bits of a
// group of goroutines.
func TestTransports(t *testing.T) {
	list := journeys(t)
	for _, world := range []int{2, 3, 4} {
		want := make([][]kit.Bits, len(list)) // by journey and rank
		all := func(t *testing.T, groups []comm.Group, arrived func(t *testing.T, i, rank int, seen kit.Bits)) {
			for i, j := range list {
				if slices.Contains(j.worlds, world) {
					t.Run(j.name, func(t *testing.T) {
						kit.OnGroups(t, groups, func(ctx context.Context, g comm.Group) { arrived(t, i, g.Rank(), j.travel(t, ctx, g)) })
					})
				}
			}
		}
		for i := range want {
			want[i] = make([]kit.Bits, world)
		}
		all(t, comm.Local(world), func(t *testing.T, i, rank int, seen kit.Bits) { want[i][rank] = seen })
		for name, change := range kit.Transports {
			t.Run(fmt.Sprintf("%d ranks/%s", world, name), func(t *testing.T) {
				all(t, kit.Connect(t, world, change), func(t *testing.T, i, rank int, seen kit.Bits) {
					kit.RequireSameBits(t, want[i][rank], seen, "rank ", rank)
				})
			})
		}
	}
}

// A lookout knows which operation every rank of a process waits for, so that one can die when all
// others can do nothing but wait, and where that is.
type lookout struct {
	mu      sync.Mutex
	changed *sync.Cond
	issued  map[string][]int // operations by group and rank in it
	waiting []*waited        // by rank of all: what it waits for, or nil
	ended   bool             // a rank has given up: nobody will be stuck
}

// waited is an operation of a group, counted from 1.
type waited struct {
	group string
	seq   int
}

func newLookout(world int) *lookout {
	w := &lookout{issued: make(map[string][]int), waiting: make([]*waited, world)}
	w.changed = sync.NewCond(&w.mu)
	return w
}

// stuck tells whether every rank but one waits for an operation that some rank of its group has not
// begun. Called with mu held.
func (w *lookout) stuck(but int) bool {
	for r, on := range w.waiting {
		if r != but && (on == nil || slices.Min(w.issued[on.group]) >= on.seq) {
			return false
		}
	}
	return true
}

// awaitStuck returns the groups in which the other ranks wait, once they are stuck.
func (w *lookout) awaitStuck(but int) (groups []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for !w.ended && !w.stuck(but) {
		w.changed.Wait()
	}
	for _, on := range w.waiting {
		if on == nil {
			on = new(waited)
		}
		groups = append(groups, on.group)
	}
	return groups
}

// note changes what is known.
func (w *lookout) note(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
	w.changed.Broadcast()
}

// watchedGroup tells a lookout what it does.
type watchedGroup struct {
	comm.Group
	watch *lookout
	name  string
	all   int // rank among all
	parts int // groups that were split from it
}

// watched returns a rank's handle of a group as one that is watched. It is an allocator if the
// group is.
func (w *lookout) watched(g comm.Group, name string, all int) comm.Group {
	w.note(func() {
		if w.issued[name] == nil {
			w.issued[name] = make([]int, g.Size())
		}
	})
	wg := &watchedGroup{g, w, name, all, 0}
	if memory, ok := g.(comm.Allocator); ok {
		return struct {
			*watchedGroup
			comm.Allocator
		}{wg, memory}
	}
	return wg
}

type watchedWork struct {
	comm.Work
	group *watchedGroup
	seq   int
}

func (w *watchedWork) Wait(ctx context.Context) error {
	g := w.group
	g.watch.note(func() { g.watch.waiting[g.all] = &waited{g.name, w.seq} })
	defer g.watch.note(func() { g.watch.waiting[g.all] = nil })
	return w.Work.Wait(ctx)
}

// begun counts an operation.
func (g *watchedGroup) begun(work comm.Work) comm.Work {
	w := &watchedWork{Work: work, group: g}
	g.watch.note(func() {
		g.watch.issued[g.name][g.Rank()]++
		w.seq = g.watch.issued[g.name][g.Rank()]
	})
	return w
}

func (g *watchedGroup) AllGather(dst, src comm.Buffer) comm.Work {
	return g.begun(g.Group.AllGather(dst, src))
}

func (g *watchedGroup) ReduceScatter(dst, src comm.Buffer, op comm.Op) comm.Work {
	return g.begun(g.Group.ReduceScatter(dst, src, op))
}

func (g *watchedGroup) AllReduce(buf comm.Buffer, op comm.Op) comm.Work {
	return g.begun(g.Group.AllReduce(buf, op))
}

func (g *watchedGroup) Broadcast(buf comm.Buffer, root int) comm.Work {
	return g.begun(g.Group.Broadcast(buf, root))
}

func (g *watchedGroup) Gather(dst, src comm.Buffer, counts []int, root int) comm.Work {
	return g.begun(g.Group.Gather(dst, src, counts, root))
}

func (g *watchedGroup) Split(ctx context.Context, color, key int) (comm.Group, error) {
	part, err := g.Group.Split(ctx, color, key)
	if err != nil {
		return nil, err
	}
	g.parts++
	return g.watch.watched(part, fmt.Sprintf("%s %d", []string{"shard", "replica"}[g.parts-1], color), g.all), nil
}

// deaths are how a rank may go.
var deaths = map[string]func(comm.Group){
	"Close": func(g comm.Group) { _ = g.Close() },
	"Abort": func(g comm.Group) { g.Abort(errors.New("no more memory")) },
	"panic": func(comm.Group) {},
}

// TestDeathInHybridStep ends one of four ranks after the first operation of every kind in a step,
// when the others wait for it, or for one that does: in the group that shares their shards, among
// their replicas, or among all. Each gets an error that tells which rank it was, soon, although
// none of them leaves.
func TestDeathInHybridStep(t *testing.T) {
	kit.Needs(t, kit.GroupCollectives)
	connects := map[string]func(*testing.T) []comm.Group{"goroutines": func(*testing.T) []comm.Group { return comm.Local(deathRanks) }}
	for name, change := range kit.Transports {
		connects[name] = func(t *testing.T) []comm.Group { return kit.Connect(t, deathRanks, change) }
	}
	for name, connect := range connects {
		met := make(map[string]bool)
		for _, kind := range []string{"gather", "wait", "forward", "turn", "backward", "reduce", "sync", "drain"} {
			for way, die := range deaths {
				t.Run(fmt.Sprintf("%s/%s/%s", name, kind, way), func(t *testing.T) {
					groups, errs := dieAt(t, connect(t), kind, die)
					for _, name := range groups {
						met[name] = true
					}
					for r, err := range errs[:deathVictim] {
						require.ErrorContains(t, err, fmt.Sprintf("fsdp: rank %d: ", r))
						require.Regexp(t, `rank 3 of group "world"|among ranks \[[12] 3\]: comm: rank 1 of group "world/\d"`, err)
						require.NotErrorIs(t, err, comm.ErrTimeout)
						require.NotErrorIs(t, err, context.DeadlineExceeded)
					}
				})
			}
		}
		for _, group := range []string{"all", "shard 0", "shard 1", "replica 2", "replica 3"} {
			require.True(t, met[group], "%s: a rank has waited in %s", name, group)
		}
	}
}

const (
	deathRanks  = 4
	deathVictim = 3
)

// dieAt trains until the victim dies after an operation of the second pass. It returns the groups
// in which the others waited then, and the errors of all.
func dieAt(t *testing.T, handles []comm.Group, kind string, die func(comm.Group)) (groups []string, errs []error) {
	watch, over := newLookout(deathRanks), new(sync.WaitGroup)
	errs = make([]error, deathRanks)
	over.Add(deathRanks)
	kit.OnGroups(t, handles, func(ctx context.Context, g comm.Group) {
		cfg := fsdp.Config{
			Group: watch.watched(g, "all", g.Rank()), Strategy: fsdp.HybridShard, ShardRanks: 2,
			WrapPolicy: fsdp.WrapEach(), Precision: kit.Float64s,
		}
		if g.Rank() == deathVictim {
			cfg.Observers = append(cfg.Observers, fsdp.TraceFunc(func(e fsdp.Event) {
				if e.Pass == 2 && e.Kind == kind {
					groups = watch.awaitStuck(deathVictim)
					die(g)
					panic("dead")
				}
			}))
		}
		m := kit.Wrap(t, kit.Shapes["chain"], cfg)
		var err error
		for err == nil {
			if _, err = m.Forward(ctx, kit.ShapeBatch(g.Rank())...); err == nil {
				err = m.Backward(ctx)
			}
		}
		errs[g.Rank()] = err
		watch.note(func() { watch.ended = true })
		over.Done()
		over.Wait()   // closing would tell the others
		_ = m.Close() // memory may have gone with the group
	})
	return groups, errs
}
