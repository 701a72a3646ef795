package join_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/optim"
)

// unevenRun is a training at random by ranks that have different numbers of batches. It is defined
// by a reference: one model on one process for each rank, whose gradients are added up by hand, and
// compared with ranks in a Join under two settings.
type unevenRun struct {
	Model    string
	World    int
	Divide   fsdp.GradAverage
	Grouped  int // ranks that share one unit, 0 if all do
	Every    int // iterations between updates
	NoSync   bool
	Clip     bool
	Scale    float64 // of the loss
	Epochs   []unevenEpoch
	settings [2]kit.Setting
}

// unevenEpoch is one Join.
type unevenEpoch struct {
	Counts []int // of batches, by rank
	Frozen int
	Turns  []unevenTurn // one for each iteration
}

// unevenTurn is what a body does in one iteration.
type unevenTurn struct {
	Kind    string
	Weights []float64 // by rank
	Eval    bool      // of the same batch
	Look    bool      // at the state of the model
	Inner   []int     // batches of a nested Join, by rank; nil for none
	Trains  bool      // it accumulates, too, in place of evaluating
}

// turns are the kinds: backward after forward; two forwards whose backwards come in the other
// order; a forward whose backward comes in the next iteration; none at all.
var turns = []string{"pass", "pass", "pass", "two", "later", "drop"}

// groupedUnit is the unit of each model that may have a group of its own.
var groupedUnit = map[string]string{"chain": "l1", "statistics": "l1", "recurrence": "between", "tied across groups": "b", "an unused call": "b"}

func drawUneven(t *rapid.T) *unevenRun {
	u := &unevenRun{
		Model:  rapid.SampledFrom(slices.Sorted(maps.Keys(groupedUnit))).Draw(t, "model"),
		World:  rapid.IntRange(1, 8).Draw(t, "world"),
		Divide: rapid.SampledFrom([]fsdp.GradAverage{fsdp.ByRanks, fsdp.ByActive, fsdp.ByWeights, fsdp.ByOne}).Draw(t, "divide"),
		Every:  rapid.IntRange(1, 3).Draw(t, "every"), NoSync: rapid.Bool().Draw(t, "no sync"), Clip: rapid.Bool().Draw(t, "clip"),
		Scale: rapid.SampledFrom([]float64{1, 1024}).Draw(t, "scale"),
	}
	if u.World%2 == 0 && rapid.IntRange(0, 3).Draw(t, "groups") == 0 {
		u.Grouped = u.World / 2
	}
	for i := range u.settings {
		k := &u.settings[i]
		k.Knobs = kit.DrawKnobs(t, u.World)
		k.ShardRanks = rapid.SampledFrom(kit.PowersIn(u.World)).Draw(t, "ranks of a shard")
		k.InFlight = rapid.SampledFrom([]int{0, 300, 700}).Draw(t, "bytes in flight")
		k.Strict, k.Ignored = rapid.Bool().Draw(t, "strict group"), rapid.Bool().Draw(t, "ignored")
		if u.Grouped > 0 {
			k.Wrap, k.Ignored = "each", false
		}
	}
	for range rapid.IntRange(1, 2).Draw(t, "epochs") {
		e := unevenEpoch{Frozen: rapid.IntRange(0, 2).Draw(t, "frozen"), Counts: u.drawCounts(t, 7)}
		for range slices.Max(e.Counts) {
			turn := unevenTurn{Kind: rapid.SampledFrom(turns).Draw(t, "kind"), Eval: rapid.Bool().Draw(t, "eval"), Look: rapid.Bool().Draw(t, "look")}
			for range u.World {
				turn.Weights = append(turn.Weights, float64(rapid.IntRange(0, 3).Draw(t, "weight")))
			}
			if rapid.IntRange(0, 3).Draw(t, "nested") == 0 {
				turn.Inner, turn.Trains = u.drawCounts(t, 3), rapid.Bool().Draw(t, "nested training")
			}
			e.Turns = append(e.Turns, turn)
		}
		u.Epochs = append(u.Epochs, e)
	}
	return u
}

func (u *unevenRun) drawCounts(t *rapid.T, most int) []int {
	counts := make([]int, u.World)
	for r := range counts {
		counts[r] = rapid.IntRange(0, most).Draw(t, "batches")
	}
	return counts
}

// The seeds of the batches of an iteration, and of those inside of it.
func turnSeed(epoch, i int) int             { return 1000*epoch + 100*i }
func innerSeed(epoch, i, j int) int         { return turnSeed(epoch, i) + 10 + j }
func (e *unevenEpoch) has(rank, i int) bool { return i < e.Counts[rank] }

// A sight is what a rank has seen in some place.
type sight struct {
	where  string
	values kit.Record
}

// defined is the reference at work.
type defined struct {
	*unevenRun
	t        require.TestingT
	ranks    []*fsdp.Sharded
	frozen   func(string) bool
	grads    []kit.Record // by rank, of its model
	velocity []kit.Record
	seen     [][]sight // by rank
}

// define trains by the definition, from these states of the ranks, and returns what each rank
// should see.
func (u *unevenRun) define(t require.TestingT, initial []kit.Params) [][]sight {
	d := &defined{unevenRun: u, t: t, seen: make([][]sight, u.World)}
	for r := range u.World {
		d.ranks = append(d.ranks, kit.Wrap(t, kit.ScriptModel(u.Model), fsdp.Config{Precision: kit.Float64s}))
		require.NoError(t, d.ranks[r].LoadStateDict(context.Background(), 0, initial[r]))
		d.grads, d.velocity = append(d.grads, kit.Record{}), append(d.velocity, kit.Record{})
	}
	for e := range u.Epochs {
		d.epoch(e)
	}
	return d.seen
}

func (d *defined) see(where string, of func(rank int) kit.Record) {
	for r := range d.seen {
		d.seen[r] = append(d.seen[r], sight{where, of(r)})
	}
}

func (d *defined) epoch(e int) {
	epoch := &d.Epochs[e]
	d.frozen = kit.Freezable[epoch.Frozen]
	for r := range d.ranks {
		maps.DeleteFunc(d.velocity[r], func(name string, _ []float64) bool { return d.frozen(name) })
	}
	var later func()
	for i := range slices.Max(epoch.Counts) {
		turn := &epoch.Turns[i]
		has := func(rank int) bool { return epoch.has(rank, i) }
		pass := func(number int) func() {
			return d.forward(turn, has, turnSeed(e, i)+number)
		}
		if later != nil {
			later()
			later = nil
		}
		switch turn.Kind {
		case "pass":
			pass(0)()
		case "two":
			first, second := pass(0), pass(1)
			second()
			first()
		case "later":
			later = pass(0)
		case "drop":
			pass(0)
		}
		if turn.Eval {
			d.eval(has, turnSeed(e, i))
		}
		if turn.Inner != nil {
			for j := range slices.Max(turn.Inner) {
				has := func(rank int) bool { return j < turn.Inner[rank] }
				if turn.Trains {
					d.forward(turn, has, innerSeed(e, i, j))()
				} else {
					d.eval(has, innerSeed(e, i, j))
				}
			}
		}
		if turn.Look {
			d.see("state", d.state)
		}
		if (i+1)%d.Every == 0 || i+1 == len(epoch.Turns) {
			if later != nil {
				later()
				later = nil
			}
			d.update()
		}
	}
	d.see("end of epoch", func(int) kit.Record { return kit.Record{"iterations": {float64(slices.Max(epoch.Counts))}} })
	d.see("state", d.state)
}

// forward runs the batches of the ranks that have one, and returns their backward.
func (d *defined) forward(turn *unevenTurn, has func(rank int) bool, seed int) func() {
	losses, grads := make([]float64, d.World), make([]kit.Record, d.World)
	total, active := 0.0, 0.0
	for r, m := range d.ranks {
		if has(r) {
			m.ZeroGrad()
			losses[r] = kit.ForwardBackward(d.t, context.Background(), m, kit.UnevenBatch(seed, r))
			grads[r] = kit.GradsOf(d.t, context.Background(), m)
			total, active = total+turn.Weights[r], active+1
		}
	}
	d.see("forward", func(r int) kit.Record { return kit.Record{"loss": {losses[r]}} })
	return func() {
		if d.Divide == fsdp.ByWeights && total == 0 {
			d.see("refused", func(int) kit.Record { return nil })
			return
		}
		for from, g := range grads {
			c := map[fsdp.GradAverage]float64{
				fsdp.ByRanks: 1 / float64(d.World), fsdp.ByActive: 1 / active, fsdp.ByWeights: turn.Weights[from] / total, fsdp.ByOne: 1,
			}[d.Divide]
			for name, v := range g {
				if d.frozen(name) {
					continue
				}
				for to := range d.grads {
					share := c
					if d.apart(name) && from/d.Grouped != to/d.Grouped {
						share = 0
					}
					kit.AddTo(d.grads[to], kit.Record{name: v}, share)
				}
			}
		}
	}
}

// apart tells whether a parameter is another's under the same name on other ranks.
func (d *defined) apart(name string) bool {
	return d.Grouped > 0 && name[:len(name)-2] == groupedUnit[d.Model]
}

func (d *defined) eval(has func(rank int) bool, seed int) {
	d.see("eval", func(r int) kit.Record {
		if !has(r) {
			return nil
		}
		out, err := d.ranks[r].Eval(context.Background(), kit.UnevenBatch(seed, r)...)
		require.NoError(d.t, err)
		return kit.Record{"loss": kit.Elements(out[0]), "output": kit.Elements(out[1])}
	})
}

func (d *defined) state(rank int) kit.Record {
	state, err := d.ranks[rank].StateDict(context.Background(), &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(d.t, err)
	return kit.RecordOf(state)
}

// update clips, and makes a step of SGD with momentum and weight decay on every rank.
func (d *defined) update() {
	c := 1.0
	if d.Clip {
		squares := 0.0
		for r, grads := range d.grads {
			for name, g := range grads {
				if r == 0 || d.apart(name) && r%d.Grouped == 0 {
					for _, x := range g {
						squares += x * x
					}
				}
			}
		}
		norm := math.Sqrt(squares)
		d.see("clip", func(int) kit.Record { return kit.Record{"norm": {norm}} })
		c = min(1, kit.ScriptLimit/(norm+1e-6))
	}
	for r, grads := range d.grads {
		values := d.state(r)
		next := kit.Params{}
		for name, g := range grads {
			v := d.velocity[r][name]
			if v == nil {
				v = make([]float64, len(g))
				d.velocity[r][name] = v
			}
			for i := range g {
				v[i] = kit.ScriptMomentum*v[i] + c*g[i] + kit.ScriptDecay*values[name][i]
				values[name][i] -= kit.ScriptRate * v[i]
			}
			next[name] = kit.TensorOf(values[name])
		}
		require.NoError(d.t, d.ranks[r].LoadStateDict(context.Background(), 0, next))
		d.grads[r] = kit.Record{}
	}
}

// learner is one rank of the run.
type learner struct {
	*unevenRun
	t     require.TestingT
	g     comm.Group
	m     *fsdp.Sharded
	opt   optim.Optimizer
	loss  *optim.LossScaler
	later func()
	seen  []sight
}

// train trains one rank and returns what it sees, beginning with the state before.
func (u *unevenRun) train(t require.TestingT, ctx context.Context, g comm.Group, k kit.Setting) []sight {
	book := new(kit.StrictBook)
	if k.Strict {
		g = &kit.StrictGroup{Group: g, Book: book}
	}
	cfg := k.Config()
	cfg.Group, cfg.GradAverage, cfg.InFlight, cfg.Frozen = g, u.Divide, k.InFlight, kit.Freezable[u.Epochs[0].Frozen]
	if k.Ignored {
		cfg.Ignored = func(name string) bool { return len(name)%3 == 1 }
	}
	if u.Grouped > 0 {
		cfg.Unit = kit.Units(kit.GroupedBy(t, ctx, g, groupedUnit[u.Model], u.Grouped).Unit, cfg.Unit, func(i *fsdp.UnitConfig) {
			if i.Name == groupedUnit[u.Model] {
				i.Strategy = fsdp.FullShard
			}
		})
	}
	l := &learner{unevenRun: u, t: t, g: g, m: kit.Wrap(t, kit.ScriptModel(u.Model), cfg)}
	var err error
	l.opt, err = kit.ScriptOptimizer(l.m.Params())
	require.NoError(t, err)
	l.loss, err = optim.LossScale{Init: u.Scale}.New()
	require.NoError(t, err)
	l.see("state", l.state(ctx))
	for e := range u.Epochs {
		if e > 0 {
			l.opt = kit.Refreeze(t, ctx, l.m, kit.Freezable[u.Epochs[e].Frozen], l.opt, kit.ScriptOptimizer)
		}
		l.epoch(ctx, e)
	}
	require.NoError(t, l.m.Close())
	book.Require(t)
	return l.seen
}

func (l *learner) see(where string, values kit.Record) { l.seen = append(l.seen, sight{where, values}) }

func (l *learner) state(ctx context.Context) kit.Record {
	state, err := kit.OwnState(ctx, l.m)
	require.NoError(l.t, err)
	return kit.RecordOf(state)
}

func (l *learner) epoch(ctx context.Context, e int) {
	epoch, rank, i := &l.Epochs[e], l.g.Rank(), 0
	for batch, err := range l.m.Join(ctx, kit.Batches(epoch.Counts[rank], func(i int) []fsdp.Tensor { return kit.UnevenBatch(turnSeed(e, i), rank) })) {
		require.NoError(l.t, err)
		turn := &epoch.Turns[i]
		ends := (i+1)%l.Every == 0 || i+1 == len(epoch.Turns)
		pass := func(number int) func() {
			b := batch
			if b != nil {
				b = kit.UnevenBatch(turnSeed(e, i)+number, rank)
			}
			return l.forward(ctx, turn, b, l.NoSync && !ends)
		}
		l.settle()
		switch turn.Kind {
		case "pass":
			pass(0)()
		case "two":
			first, second := pass(0), pass(1)
			second()
			first()
		case "later":
			l.later = pass(0)
		case "drop":
			l.run(ctx, batch)
		}
		if turn.Eval {
			l.eval(ctx, batch)
		}
		if turn.Inner != nil {
			for inner, err := range l.m.Join(ctx, kit.Batches(turn.Inner[rank], func(j int) []fsdp.Tensor { return kit.UnevenBatch(innerSeed(e, i, j), rank) })) {
				require.NoError(l.t, err)
				if turn.Trains {
					l.forward(ctx, turn, inner, l.NoSync)()
				} else {
					l.eval(ctx, inner)
				}
			}
		}
		if turn.Look {
			l.see("state", l.state(ctx))
		}
		if ends {
			l.settle()
			l.update(ctx)
		}
		i++
	}
	l.see("end of epoch", kit.Record{"iterations": {float64(i)}})
	l.see("state", l.state(ctx))
	kit.RequireIdle(l.t, ctx, l.m, kit.UnevenBatch(0, rank))
}

// settle runs the backward that was left for later.
func (l *learner) settle() {
	if l.later != nil {
		l.later()
	}
	l.later = nil
}

// run runs a forward.
func (l *learner) run(ctx context.Context, batch []fsdp.Tensor) {
	loss, err := l.m.Forward(ctx, batch...)
	require.NoError(l.t, err)
	l.see("forward", kit.Record{"loss": {loss}})
}

// forward runs a forward, puts it aside, and returns its backward.
func (l *learner) forward(ctx context.Context, turn *unevenTurn, batch []fsdp.Tensor, noSync bool) func() {
	l.run(ctx, batch)
	p := l.m.Hold()
	opts := []fsdp.BackwardOption{fsdp.Scale(l.loss.Scale())}
	if l.Divide == fsdp.ByWeights {
		opts = append(opts, fsdp.Weight(turn.Weights[l.g.Rank()]))
	}
	return func() {
		run := func() error { return p.Backward(ctx, opts...) }
		err := error(nil)
		if noSync {
			err = l.m.NoSync(run)
		} else {
			err = run()
		}
		if err != nil {
			require.ErrorContains(l.t, err, "the mean of the ranks' weights is 0")
			l.see("refused", nil)
		}
	}
}

func (l *learner) eval(ctx context.Context, batch []fsdp.Tensor) {
	out, err := l.m.Eval(ctx, batch...)
	require.NoError(l.t, err)
	if batch == nil {
		require.Empty(l.t, out)
		l.see("eval", nil)
		return
	}
	l.see("eval", kit.Record{"loss": kit.Elements(out[0]), "output": kit.Elements(out[1])})
}

func (l *learner) update(ctx context.Context) {
	require.NoError(l.t, l.m.Hold().Discard(ctx)) // a dropped forward may be gathering what is about to change
	require.NoError(l.t, l.m.SyncGrads(ctx))
	finite, err := l.m.Unscale(ctx, l.loss)
	require.NoError(l.t, err)
	require.True(l.t, finite)
	if l.Clip {
		norm, err := l.m.ClipGradNorm(ctx, kit.ScriptLimit)
		require.NoError(l.t, err)
		l.see("clip", kit.Record{"norm": {norm}})
	}
	require.NoError(l.t, l.opt.Step(kit.ScriptRate))
	l.m.ZeroGrad()
}

// check trains under both settings, and compares them with the definition, and with each other to
// the bit.
func (u *unevenRun) check(t require.TestingT) {
	var seen [2][][]sight
	for i, k := range u.settings {
		seen[i] = make([][]sight, u.World)
		kit.OnRanks(t, u.World, func(ctx context.Context, g comm.Group) { seen[i][g.Rank()] = u.train(t, ctx, g, k) })
	}
	initial := make([]kit.Params, u.World)
	for r := range initial {
		initial[r] = kit.Params{}
		for name, v := range seen[0][r][0].values {
			initial[r][name] = kit.TensorOf(v)
		}
	}
	tol := 1e-12
	if u.Model == "statistics" { // normalizing rows that are nearly the same magnifies what was rounded
		tol = 1e-9
	}
	for r, want := range u.define(t, initial) {
		require.Len(t, seen[0][r][1:], len(want), "rank %d", r)
		for i, w := range want {
			got := seen[0][r][1+i]
			where := fmt.Sprintf("rank %d, sight %d: %s: ", r, i, w.where)
			require.Equal(t, w.where, got.where, where)
			require.Equal(t, len(w.values), len(got.values), where)
			for name, x := range w.values {
				kit.RequireWithin(t, x, got.values[name], tol, where+name)
			}
			require.Equal(t, got.values, seen[1][r][1+i].values, "%sbits under the other setting", where)
		}
	}
}

// TestJoinAtRandom compares Join with the definition of what it does.
func TestJoinAtRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { drawUneven(t).check(t) })
}

// TestJoinNeverWaits runs some of those trainings where time stands still as long as any rank can
// go on: ranks that all wait for each other would reach the deadline at once.
func TestJoinNeverWaits(t *testing.T) {
	uneven := rapid.Custom(drawUneven)
	for seed := range 8 {
		u := uneven.Example(seed)
		synctest.Test(t, func(t *testing.T) { u.check(t) })
	}
}
