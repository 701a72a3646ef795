package parity_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/commtest"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/shard"
)

// errDeath ends a rank of a mortal training.
var errDeath = errors.New("this rank has died")

// A death ends a worker in a group, or cuts it off from the result of a collective.
type death struct {
	worker int
	group  int    // number of the group, from 0
	call   uint64 // collective of the worker in that group, from 1
	sort   sort
}

type sort int

const (
	before sort = iota // the call
	issued             // the worker's part of the call is there, but no rank has waited
	after              // all ranks have the result
	deaf               // all ranks have the result but this worker, which lives
	follow             // the worker dies when another one has
)

// A mortal is a training on virtual ranks whose workers die.
type mortal struct {
	workers, spares, virtual int
	steps, distance          int
	cfg                      fsdp.Config
	optimizer                func(params []optim.Param) (optim.Optimizer, error)
	deaths                   []death

	*meeting
	calls    []uint64 // of worker 0 in the first group: at the end of each step
	recovery uint64   // of a worker in the second group: at the end of Load
	restarts int      // of the training, without a step in memory
	loads    []error  // of worker 0
	bits     kit.Bits // at the end, on rank 0
}

// A meeting is where workers find the next group.
type meeting struct {
	sync.Mutex
	number  int   // of the next group
	alive   int   // workers, without spares
	idle    []int // spares that no group has
	arrived []int
	open    chan struct{} // closed when all have arrived
	groups  map[int]comm.Group
}

// arrive returns a worker's group once all workers that live have come. The group has one of the
// idle spares for each worker that has died since the last meeting, if there is one.
func (m *meeting) arrive(worker int) (g comm.Group, number int) {
	m.Lock()
	m.arrived = append(m.arrived, worker)
	open := m.open
	m.begin()
	m.Unlock()
	<-open
	m.Lock()
	defer m.Unlock()
	return m.groups[worker], m.number
}

// begin makes the group if all have arrived.
func (m *meeting) begin() {
	if len(m.arrived) < m.alive {
		return
	}
	slices.Sort(m.arrived)
	m.groups = make(map[int]comm.Group)
	for r, g := range comm.Local(len(m.arrived)) {
		m.groups[m.arrived[r]] = g
	}
	m.number++
	m.arrived = nil
	close(m.open)
	m.open = make(chan struct{})
}

// leave ends a worker: a spare takes its place.
func (m *meeting) leave(replace func(spare int)) {
	m.Lock()
	defer m.Unlock()
	m.alive--
	if len(m.idle) > 0 {
		spare := m.idle[0]
		m.idle = m.idle[1:]
		m.alive++
		replace(spare)
		return
	}
	m.begin()
}

// run trains, and returns the bits at the end.
func (v *mortal) run(t *testing.T) kit.Bits {
	v.meeting = &meeting{alive: v.workers, open: make(chan struct{})}
	for s := range v.spares {
		v.idle = append(v.idle, v.workers+s)
	}
	ctx, cancel := context.WithTimeout(context.Background(), kit.Patience)
	defer cancel()
	var all sync.WaitGroup
	var work func(worker int)
	work = func(worker int) {
		all.Go(func() {
			if v.work(t, ctx, worker) {
				v.leave(work)
			}
		})
	}
	for w := range v.workers {
		work(w)
	}
	all.Wait()
	return v.bits
}

// work is the program of a worker. It reports whether the worker has died.
func (v *mortal) work(t *testing.T, ctx context.Context, worker int) (dead bool) {
	last := fsdp.MemoryCheckpoint{Distance: v.distance}
	var now member
	for step, err := 0, errors.New("no group yet"); step < v.steps; {
		if err != nil {
			g, number := v.arrive(worker)
			former := now.m
			step, err = v.join(ctx, &last, &now, v.mortalGroup(g, worker, number))
			if former != nil {
				require.NoError(t, former.Close())
			}
			if c := now.g.(*counted); err == nil && number == 2 && c.Rank() == 0 {
				v.recovery = c.calls
			}
		} else if err = v.step(ctx, &now, &last, step); err == nil {
			if step++; worker == 0 && v.number == 1 {
				v.calls = append(v.calls, now.g.(*counted).calls)
			}
		}
		if err != nil && now.g.(*counted).dead(err) {
			if now.m != nil {
				require.NoError(t, now.m.Close())
			}
			return true
		}
	}
	if b := now.bits(t, ctx); now.g.Rank() == 0 {
		v.bits = b
	}
	require.NoError(t, now.m.Close())
	return false
}

// join begins in a group, and returns the step to continue with.
func (v *mortal) join(ctx context.Context, last *fsdp.MemoryCheckpoint, now *member, g comm.Group) (step int, err error) {
	*now = member{g: g}
	model, cfg := kit.TinyGPT(1), v.cfg
	model.Dropout = 0.1
	cfg.Group, cfg.VirtualRanks, cfg.Seed = g, v.virtual, 7
	if now.m, err = fsdp.Wrap(model, cfg); err != nil {
		return 0, err
	}
	if now.opt, err = v.optimizer(now.m.Params()); err != nil {
		return 0, err
	}
	if v.number == 1 {
		return 0, nil
	}
	c, err := last.Load(ctx, now.m, now.opt)
	if g.Rank() == 0 {
		v.loads = append(v.loads, err)
	}
	if errors.Is(err, fsdp.ErrNoCheckpoint) {
		if g.Rank() == 0 {
			v.restarts++
		}
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return c.Step, c.Extra("next", &step)
}

// step makes a step.
func (v *mortal) step(ctx context.Context, now *member, last *fsdp.MemoryCheckpoint, step int) error {
	size := now.g.Size()
	for first := 0; first < v.virtual; first += size {
		var batch []fsdp.Tensor
		if at := first + now.g.Rank(); at < v.virtual {
			batch = kit.TinyBatch(step, at, 1, kit.TinyContext)
		}
		if err := kit.TrainStep(ctx, now.m, batch); err != nil {
			return err
		}
	}
	if _, err := now.m.ClipGradNorm(ctx, 0.5); err != nil {
		return err
	}
	if err := now.opt.Step(1e-2); err != nil {
		return err
	}
	now.m.ZeroGrad()
	return last.Save(ctx, now.m, now.opt, map[string]any{"next": step + 1})
}

// counted is a group that counts a worker's collectives.
type counted struct {
	comm.Group
	calls uint64
	fate  *death // of this worker in this group, or nil
}

// mortalGroup returns g, in which the worker may die.
func (v *mortal) mortalGroup(g comm.Group, worker, number int) *counted {
	c := &counted{Group: g}
	for i := range v.deaths {
		if d := &v.deaths[i]; d.worker == worker && d.group == number-1 {
			c.fate = d
		}
	}
	c.Group = commtest.Faulty(deafness{g, c}, func(call commtest.Call) (f commtest.Fault) {
		c.calls = call.Seq
		if c.fate == nil || c.fate.call != call.Seq {
			return f
		}
		switch c.fate.sort {
		case before:
			f.Err = errDeath
		case issued:
			f.Issued = func() { g.Abort(errDeath) }
		case after:
			f.Waiting = func(ended context.Context, _ context.CancelFunc) {
				<-ended.Done()
				g.Abort(errDeath)
			}
		}
		return f
	})
	return c
}

// dead reports whether the worker has died, or was cut off for good.
func (g *counted) dead(err error) bool {
	return g.fate != nil && (g.fate.sort == follow || g.fate.sort != deaf && errors.Is(err, errDeath) && g.calls >= g.fate.call)
}

// deafness is a group whose rank does not get the result of one all-reduce.
type deafness struct {
	comm.Group
	of *counted
}

func (g deafness) AllReduce(b comm.Buffer, op comm.Op) comm.Work {
	w := g.Group.AllReduce(b, op)
	if f := g.of.fate; f != nil && f.sort == deaf && f.call == g.of.calls {
		return &unheard{w, g.Group}
	}
	return w
}

// unheard is a collective whose result is lost.
type unheard struct {
	comm.Work
	g comm.Group
}

func (w *unheard) Wait(ctx context.Context) error {
	if err := w.Work.Wait(ctx); err != nil {
		return err
	}
	err := errors.New("the result is lost")
	w.g.Abort(err)
	return err
}

// adamw makes the usual optimizer.
func adamw(params []optim.Param) (optim.Optimizer, error) {
	return optim.AdamW{WeightDecay: 0.1}.New(params)
}

// TestMemoryCheckpointAnyMoment: a rank dies in any collective of a step and of the copy of the
// step. The others, with a spare or without, end with the bits of an undisturbed training.
func TestMemoryCheckpointAnyMoment(t *testing.T) {
	kit.Needs(t, kit.GroupCollectives)
	for _, c := range []struct{ workers, spares, virtual int }{{2, 0, 2}, {2, 1, 2}, {3, 0, 6}, {3, 1, 4}, {4, 0, 4}, {4, 1, 4}, {5, 1, 5}} {
		t.Run(fmt.Sprintf("%d workers, %d spares", c.workers, c.spares), func(t *testing.T) {
			v := mortal{workers: c.workers, spares: c.spares, virtual: c.virtual, steps: 3, optimizer: adamw}
			undisturbed := v
			want := undisturbed.run(t)
			last := undisturbed.calls[1]
			for call := undisturbed.calls[0] + 1; call <= last; call++ {
				one := v
				one.deaths = []death{{int(call) % c.workers, 0, call, sort(call / 2 % 3)}}
				got := one.run(t)
				require.Equal(t, 0, one.restarts, "%+v: %v", one.deaths, one.loads)
				kit.RequireSameBits(t, want, got, fmt.Sprintf("%+v", one.deaths))
			}
		})
	}
}

// TestMemoryCheckpointDeaf: some ranks have the result of the agreement that ends a copy, and
// others do not.
func TestMemoryCheckpointDeaf(t *testing.T) {
	kit.Needs(t, kit.GroupCollectives)
	v := mortal{workers: 4, spares: 1, virtual: 4, steps: 3, optimizer: adamw}
	undisturbed := v
	want := undisturbed.run(t)
	for _, dies := range []int{0, 1, 2, 3} {
		for _, deafs := range [][]int{{1}, {2, 3}, {0, 1, 2, 3}} { // a worker that dies is not deaf
			one := v
			last := undisturbed.calls[1]
			one.deaths = []death{{dies, 0, last, after}}
			for _, w := range deafs {
				if w != dies {
					one.deaths = append(one.deaths, death{w, 0, last, deaf})
				}
			}
			kit.RequireSameBits(t, want, one.run(t), fmt.Sprintf("%+v", one.deaths))
			require.Equal(t, 0, one.restarts)
		}
	}
}

// TestMemoryCheckpointRecovery: a second rank dies in any collective of the recovery: one that is
// new, or one that was in the first group.
func TestMemoryCheckpointRecovery(t *testing.T) {
	kit.Needs(t, kit.GroupCollectives)
	v := mortal{workers: 4, spares: 2, virtual: 4, steps: 3, optimizer: adamw}
	once := v
	undisturbed := v
	want := undisturbed.run(t)
	once.deaths = []death{{0, 0, undisturbed.calls[0] + 5, before}}
	kit.RequireSameBits(t, want, once.run(t))
	require.Positive(t, once.recovery)
	const copies = 20 // the last calls of a recovery: they are the first copy in the new group
	for call := uint64(1); call <= once.recovery; call++ {
		if call%5 > 0 && call+copies < once.recovery { // one tensor after another
			continue
		}
		one := v
		second := []int{v.workers, 2}[call%2]
		one.deaths = append(once.deaths, death{second, 1, call, sort(call / 2 % 3)})
		got := one.run(t)
		require.Equal(t, 3, one.number, "%+v", one.deaths)
		require.Equal(t, 0, one.restarts, "%+v: %v", one.deaths, one.loads)
		kit.RequireSameBits(t, want, got, fmt.Sprintf("%+v", one.deaths))
	}
}

// TestMemoryCheckpointKinds: strategies, precisions and optimizers keep their bits.
func TestMemoryCheckpointKinds(t *testing.T) {
	kit.Needs(t, kit.GroupCollectives)
	inBits := func(n int) func([]optim.Param) (optim.Optimizer, error) {
		return optim.AdamW{Rules: []optim.Rule{{Match: func(optim.Param) bool { return true }, Bits: new(n)}}}.New
	}
	averaged := func(params []optim.Param) (optim.Optimizer, error) {
		opt, err := adamw(params)
		if err == nil {
			err = optim.EMA(opt, 0.9)
		}
		return opt, err
	}
	frozen := func(name string) bool { return name == "wte.weight" }
	for name, v := range map[string]mortal{
		"HybridShard": {cfg: fsdp.Config{Strategy: fsdp.HybridShard, ShardRanks: 2}, spares: 1},
		"ShardGradOp": {cfg: fsdp.Config{Strategy: fsdp.ShardGradOp}},
		"NoShard":     {cfg: fsdp.Config{Strategy: fsdp.NoShard}},
		"bfloat16":    {cfg: fsdp.Config{Precision: fsdp.Precision{Compute: fsdp.BFloat16}}},
		"masters16":   {cfg: fsdp.Config{Precision: masters16}},
		"float64":     {cfg: fsdp.Config{Precision: kit.Float64s}},
		"frozen":      {cfg: fsdp.Config{Frozen: frozen}},
		"EMA":         {optimizer: averaged},
		"SGD":         {optimizer: optim.SGD{Momentum: 0.9}.New},
		"plain SGD":   {optimizer: optim.SGD{}.New},
		"16 bits":     {optimizer: inBits(16)},
		"8 bits":      {optimizer: inBits(8), cfg: fsdp.Config{Unit: kit.CutAll(shard.Cut{Block: func(shard.Param) int { return 256 }})}},
		"Muon": {optimizer: func(params []optim.Param) (optim.Optimizer, error) {
			return muonFor(optim.Muon{WeightDecay: 0.1}, params)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "Muon" {
				kit.Needs(t, kit.Matrices)
			}
			v.workers, v.virtual, v.steps = 4, 4, 3
			v.spares = 1
			if v.optimizer == nil {
				v.optimizer = adamw
			}
			undisturbed := v
			want := undisturbed.run(t)
			for _, call := range []uint64{undisturbed.calls[0] + 6, undisturbed.calls[1], undisturbed.calls[1] + 9} {
				one := v
				one.deaths = []death{{int(call) % v.workers, 0, call, before}}
				kit.RequireSameBits(t, want, one.run(t), fmt.Sprintf("%+v", one.deaths))
				require.Equal(t, 0, one.restarts, "%v", one.loads)
			}
		})
	}
}

// TestMemoryCheckpointLost: if a rank is lost together with the rank that has its copy, the error
// names both.
func TestMemoryCheckpointLost(t *testing.T) {
	kit.Needs(t, kit.GroupCollectives)
	v := mortal{workers: 4, virtual: 4, steps: 3, optimizer: adamw}
	undisturbed := v
	want := undisturbed.run(t)
	v.deaths = []death{{2, 0, undisturbed.calls[1], before}, {1, 0, 0, follow}}
	kit.RequireSameBits(t, want, v.run(t))
	require.Equal(t, 1, v.restarts)
	require.ErrorContains(t, v.loads[0], "of the 4 ranks that made the last step in memory, rank 2 is lost, and so is rank 1, which had the copy of its share")
	require.ErrorContains(t, v.loads[0], "load a checkpoint of a directory")
}

// TestMemoryCheckpointBytes: the plan of a training that exists counts the memory, and a Planner
// predicts it.
func TestMemoryCheckpointBytes(t *testing.T) {
	frozen := func(name string) bool { return name == "wte.weight" }
	for _, c := range []fsdp.Config{{}, {Frozen: frozen}, {Strategy: fsdp.NoShard}, {Precision: kit.Float64s}, {Precision: masters16}} {
		kit.OnRanks(t, 4, func(ctx context.Context, g comm.Group) {
			c := c
			c.Group = g
			batch := kit.TinyBatch(0, g.Rank(), 1, kit.TinyContext)
			shapes := []fsdp.Shape{fsdp.Ints(1, kit.TinyContext), fsdp.Ints(1, kit.TinyContext)}
			dry, err := fsdp.Planner{Model: kit.TinyGPT(2), Config: c, NewOptimizer: adamw, Batch: shapes, MemoryCheckpoint: true}.Plan()
			require.NoError(t, err)
			m := kit.Wrap(t, kit.TinyGPT(2), c)
			opt, err := adamw(m.Params())
			require.NoError(t, err)
			plan, err := m.Plan(batch...)
			require.NoError(t, err)
			require.Zero(t, plan.MemoryBytes)
			var last fsdp.MemoryCheckpoint
			for range 3 {
				require.NoError(t, last.Save(ctx, m, opt, nil))
			}
			plan, err = m.Plan(batch...)
			require.NoError(t, err)
			require.InEpsilon(t, plan.MemoryBytes, dry.MemoryBytes, 0.1)
			m.ResetPeak()
			kit.ForwardBackward(t, ctx, m, batch)
			require.Equal(t, plan.Peak(), m.Memory().Peak)
			require.Contains(t, plan.String(), "checkpoint in memory")
			require.NoError(t, m.Close())
		})
	}
}

// TestMemoryCheckpointDistance: with the right Distance, all ranks of a host may die. Ranks agree
// on it.
func TestMemoryCheckpointDistance(t *testing.T) {
	kit.Needs(t, kit.GroupCollectives)
	v := mortal{workers: 4, virtual: 12, steps: 3, distance: 2, optimizer: adamw}
	undisturbed := v
	want := undisturbed.run(t)
	for host := range 2 {
		one := v
		one.spares = host
		one.deaths = []death{{2 * host, 0, undisturbed.calls[0] + 3, before}, {2*host + 1, 0, 0, follow}}
		kit.RequireSameBits(t, want, one.run(t))
		require.Equal(t, 0, one.restarts, "%v", one.loads)
	}
	for want, distance := range map[string]func(rank int) int{
		"the Distance of the MemoryCheckpoint is -1": func(rank int) int { return -rank },
		"rank 0 runs MemoryCheckpoint.Save as call 1 with Distance 1, rank 1 runs MemoryCheckpoint.Save as call 1 with Distance 2": func(rank int) int { return 1 + rank },
	} {
		errs := kit.ErrorsOf(t, 2, func(ctx context.Context, g comm.Group) error {
			m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g})
			last := fsdp.MemoryCheckpoint{Distance: distance(g.Rank())}
			return last.Save(ctx, m, nil, nil)
		})
		for r, err := range errs {
			require.ErrorContains(t, err, want, "rank %d", r)
		}
	}
}
