package parity_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/optim"
)

// The parity matrix. A cell is a way to train a model on several ranks: three steps of SGD with
// momentum, which does not hide wrong factors as Adam does. Its losses, every named gradient of
// every step and every parameter are compared with
//
//   - one process on the batches of all ranks, one after the other, which knows nothing of ranks:
//     to rounding. Not where something travels in 16 bits, which rounds differently and by far
//     more;
//   - an emulation of the ranks in one process, which takes their gradients one by one and rounds
//     and adds them in loops of its own: to the bit, in every precision.
//
// The matrix has more than half a million cells. Those that run, some 460, contain every pair of
// values of any two axes: each placement, which is a world size with a strategy for it, meets each
// model, policy, precision, prefetch, way to accumulate and extra, and so do those each other.

// paritySteps is the number of updates of a cell.
const paritySteps = 3

// A placement is a number of ranks with a strategy for them.
type placement struct {
	world    int
	strategy fsdp.Strategy
	ranks    int // ShardRanks
}

// placements are all strategies at all world sizes, the hybrid ones with every ShardRanks there is.
func placements() (list []placement) {
	for _, world := range []int{1, 2, 3, 4, 5, 8} {
		for _, s := range []fsdp.Strategy{fsdp.FullShard, fsdp.ShardGradOp, fsdp.NoShard} {
			list = append(list, placement{world, s, 0})
		}
		for ranks := 1; ranks <= world; ranks++ {
			if world%ranks == 0 {
				list = append(list, placement{world, fsdp.HybridShard, ranks}, placement{world, fsdp.HybridGradOp, ranks})
				if kit.LastStrategy == fsdp.SecondaryShard {
					list = append(list, placement{world, fsdp.SecondaryShard, ranks})
				}
			}
		}
	}
	return list
}

// sums returns the groups of ranks that a gradient is summed over, one after the other.
func (l placement) sums() []int {
	hybrid := l.strategy == fsdp.HybridShard || l.strategy == fsdp.HybridGradOp
	if hybrid && l.ranks > 1 && l.ranks < l.world {
		return []int{l.ranks, l.world / l.ranks}
	}
	return []int{l.world}
}

// parityWraps are the policies; nil stands for the one by type, which is the model's.
var parityWraps = []struct {
	name   string
	policy fsdp.Policy
}{
	{"by type", nil},
	{"root only", func(calls []fsdp.CallInfo) []string { return make([]string, len(calls)) }},
	{"each", fsdp.WrapEach()},
	{"by name", fsdp.WrapNames(regexp.MustCompile(`^blocks\.0|^w.e|^in|^out|^a$|^cell`))},
	{"by size", fsdp.WrapMinParams(100)},
}

// parityBackwards are the ways to accumulate: a letter for each Backward, n inside NoSync. After a
// last n comes SyncGrads.
var parityBackwards = []string{"s", "n", "sss", "nss", "sns", "ssn", "nns", "nsn", "snn", "nnn"}

// A parityExtra is a property besides.
type parityExtra struct {
	name            string
	frozen, ignored *regexp.Regexp
	divide          fsdp.GradAverage
}

var parityExtras = []parityExtra{
	{name: "nothing"},
	{name: "frozen", frozen: regexp.MustCompile(`^wpe|ln1|fc\.weight|qkv\.bias|^in\.bias|^mid\.out|^b\.|^cell\.v`)},
	{name: "ignored", ignored: regexp.MustCompile(`^wte|qkv\.bias|^in\.weight|^norm|^cell|lnf`)},
	{name: "weights", divide: fsdp.ByWeights},
	{name: "sums", divide: fsdp.ByOne},
}

// selects is what Config.Frozen and Config.Ignored want.
func selects(re *regexp.Regexp) func(string) bool {
	if re == nil {
		return nil
	}
	return re.MatchString
}

// A parityCell is a cell.
type parityCell struct {
	placement
	kit.ParityModel
	wrap      string
	policy    fsdp.Policy
	precision kit.ParityPrecision
	prefetch  int
	backwards string
	extra     parityExtra
}

func (c parityCell) String() string {
	return fmt.Sprintf("%d ranks, %v %d, %s, wrapped %s, %s, prefetch %d, %s, %s",
		c.world, c.strategy, c.ranks, c.Name, c.wrap, c.precision.Name, c.prefetch, c.backwards, c.extra.name)
}

// parityCells are the cells that run.
func parityCells() (cells []parityCell) {
	all, prefetches := placements(), []int{fsdp.NoPrefetch, 1, 2}
	for _, v := range pairwise(len(all), len(kit.ParityModels), len(parityWraps), len(kit.ParityPrecisions), len(prefetches), len(parityBackwards), len(parityExtras)) {
		c := parityCell{
			all[v[0]], kit.ParityModels[v[1]], parityWraps[v[2]].name, parityWraps[v[2]].policy,
			kit.ParityPrecisions[v[3]], prefetches[v[4]], parityBackwards[v[5]], parityExtras[v[6]],
		}
		if c.policy == nil {
			c.policy = c.Typed
		}
		cells = append(cells, c)
	}
	return cells
}

// pairwise returns rows of indices, one for each axis of the given sizes, such that every pair of
// indices of any two axes is in a row. It is greedy: a row begins with a pair that no row has yet,
// and takes of each other axis what adds most of them.
func pairwise(sizes ...int) (rows [][]int) {
	covered := make(map[[4]int]bool)
	var row []int
	gain := func(k, v int) (n int) {
		for i, a := range row {
			if i != k && a >= 0 && !covered[[4]int{i, a, k, v}] {
				n++
			}
		}
		return n
	}
	complete := func() {
		for k, size := range sizes {
			if row[k] >= 0 {
				continue
			}
			best, most := 0, -1
			for v := range size {
				if v = (v + len(rows)) % size; gain(k, v) > most { // ties go round
					best, most = v, gain(k, v)
				}
			}
			row[k] = best
		}
		for i, a := range row {
			for k, b := range row {
				covered[[4]int{i, a, k, b}] = true
			}
		}
		rows = append(rows, row)
	}
	for i := range sizes {
		for k := range i {
			for a := range sizes[i] {
				for b := range sizes[k] {
					if !covered[[4]int{i, a, k, b}] {
						row = slices.Repeat([]int{-1}, len(sizes))
						row[i], row[k] = a, b
						complete()
					}
				}
			}
		}
	}
	return rows
}

// TestPairwise checks what the matrix relies on.
func TestPairwise(t *testing.T) {
	sizes := []int{7, 3, 5, 2}
	rows := pairwise(sizes...)
	require.Less(t, len(rows), 2*7*5)
	for i := range sizes {
		for k := range i {
			seen := make(map[[2]int]bool)
			for _, row := range rows {
				seen[[2]int{row[i], row[k]}] = true
			}
			require.Len(t, seen, sizes[i]*sizes[k])
		}
	}
}

// TestParity runs the matrix.
func TestParity(t *testing.T) {
	alone := make(map[string]kit.Record)
	for _, c := range parityCells() {
		t.Run(c.String(), func(t *testing.T) {
			got := c.train(t)
			requireRecord(t, c.emulate(t), got, 0)
			if c.precision.Tolerance == 0 {
				return
			}
			key := fmt.Sprint(c.Name, c.world, c.precision.Name, len(c.backwards), c.extra.name)
			if alone[key] == nil {
				alone[key] = c.alone(t)
			}
			requireRecord(t, alone[key], got, c.precision.Tolerance)
		})
	}
}

// requireRecord compares records, relative to the largest element of each entry.
func requireRecord(t require.TestingT, want, got kit.Record, tolerance float64) {
	require.Equal(t, slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got)))
	for name, w := range want {
		largest := 0.0
		for _, x := range w {
			largest = max(largest, math.Abs(x))
		}
		require.Len(t, got[name], len(w), name)
		for i, g := range got[name] {
			if !(math.Abs(g-w[i]) <= tolerance*largest) {
				require.Failf(t, "no parity", "%s[%d] is %v, want %v; off by %.2g of %v", name, i, g, w[i], math.Abs(g-w[i])/largest, largest)
			}
		}
	}
}

// config is the cell's configuration.
func (c parityCell) config(g comm.Group) fsdp.Config {
	return fsdp.Config{
		Group: g, Strategy: c.strategy, ShardRanks: c.ranks, WrapPolicy: c.policy, Prefetch: c.prefetch, GradAverage: c.extra.divide,
		Precision: fsdp.Precision{Compute: c.precision.Compute, Gather: c.precision.Gather, Reduce: c.precision.Reduce, Full: travelsFull},
		Frozen:    selects(c.extra.frozen), Ignored: selects(c.extra.ignored), Seed: 3, Poison: true,
	}
}

// travelsFull is Precision.Full of the matrix: vectors travel in full precision.
func travelsFull(_ fsdp.CallInfo, p fsdp.Param) bool { return len(p.Shape) < 2 }

// single is the configuration of one process for the same training. What is ignored is not rounded,
// as under the cell's.
func (c parityCell) single() fsdp.Config {
	full := func(call fsdp.CallInfo, p fsdp.Param) bool {
		return travelsFull(call, p) || c.extra.ignored != nil && c.extra.ignored.MatchString(p.Name)
	}
	return fsdp.Config{
		Strategy: fsdp.NoShard, Precision: fsdp.Precision{Compute: c.precision.Compute, Full: full}, Frozen: selects(c.extra.frozen), Seed: 3,
	}
}

// rows returns the rows of a rank's batches: as many on each, unless they have weights.
func (c parityCell) rows(rank int) int {
	if c.extra.divide == fsdp.ByWeights {
		return 1 + rank%3
	}
	return 2
}

// rankBatch returns the batch of a rank.
func (c parityCell) rankBatch(step, backward, rank int) []fsdp.Tensor {
	return kit.InType(c.Batch(2*(100*step+10*backward+rank), c.rows(rank)), c.precision.Compute)
}

// weighted returns the mean over the ranks of their losses, weighted by their rows.
func (c parityCell) weighted(losses [][]float64) []float64 {
	mean, rows := make([]float64, len(losses[0])), 0.0
	for r := range losses {
		rows += float64(c.rows(r))
	}
	for i := range mean {
		for r := range losses {
			mean[i] += losses[r][i] * float64(c.rows(r)) / rows
		}
	}
	return mean
}

// accumulate runs forward and backward number i, inside NoSync if it is an n, and returns the loss.
func (c parityCell) accumulate(t require.TestingT, ctx context.Context, m *fsdp.Sharded, i int, batch []fsdp.Tensor, opts ...fsdp.BackwardOption) (loss float64) {
	if c.backwards[i] == 's' {
		loss, err := m.Forward(ctx, batch...)
		require.NoError(t, err)
		require.NoError(t, m.Backward(ctx, opts...))
		return loss
	}
	forward := func() (err error) {
		loss, err = m.Forward(ctx, batch...)
		return err
	}
	if i%2 == 0 { // it is Backward that NoSync is about: where the forward is makes no difference
		require.NoError(t, forward())
		require.NoError(t, m.NoSync(func() error { return m.Backward(ctx, opts...) }))
		return loss
	}
	require.NoError(t, m.NoSync(func() error { return errors.Join(forward(), m.Backward(ctx, opts...)) }))
	return loss
}

// rate is the learning rate.
func (c parityCell) rate() float64 {
	if c.extra.divide == fsdp.ByOne {
		return 0.2 / float64(c.world)
	}
	return 0.2
}

// train runs the cell.
func (c parityCell) train(t *testing.T) kit.Record {
	records, losses := make([]kit.Record, c.world), make([][]float64, c.world)
	kit.OnRanks(t, c.world, func(ctx context.Context, g comm.Group) {
		r := g.Rank()
		records[r] = make(kit.Record)
		m := kit.Wrap(t, c.Model, c.config(g))
		opt := kit.Momentum(t, m.Params())
		for step := range paritySteps {
			for i := range c.backwards {
				var opts []fsdp.BackwardOption
				if c.extra.divide == fsdp.ByWeights {
					opts = append(opts, fsdp.Weight(float64(c.rows(r))))
				}
				losses[r] = append(losses[r], c.accumulate(t, ctx, m, i, c.rankBatch(step, i, r), opts...))
			}
			require.NoError(t, m.SyncGrads(ctx))
			grads, err := m.FullGrads(ctx)
			require.NoError(t, err)
			records[r].Add(fmt.Sprint("step ", step, ": gradient of"), grads)
			require.NoError(t, opt.Step(c.rate()))
			m.ZeroGrad()
		}
		grads, err := m.FullGrads(ctx)
		require.NoError(t, err)
		require.Empty(t, grads, "ZeroGrad leaves no gradients")
		state, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
		require.NoError(t, err)
		records[r].Add("parameter", state)
		require.NoError(t, m.Close())
	})
	for _, other := range records[1:] {
		requireRecord(t, records[0], other, 0)
	}
	records[0]["loss"] = c.weighted(losses)
	return records[0]
}

// alone trains one process on the batches of all ranks.
func (c parityCell) alone(t *testing.T) kit.Record {
	ctx, rec := t.Context(), make(kit.Record)
	m := kit.Wrap(t, c.Model, c.single())
	opt := kit.Momentum(t, m.Params())
	scale := 1.0
	if c.extra.divide == fsdp.ByOne {
		scale = float64(c.world)
	}
	for step := range paritySteps {
		for i := range c.backwards {
			var batches [][]fsdp.Tensor
			for r := range c.world {
				batches = append(batches, c.rankBatch(step, i, r))
			}
			loss, err := m.Forward(ctx, concatenated(t, batches)...)
			require.NoError(t, err)
			require.NoError(t, m.Backward(ctx, fsdp.Scale(scale)))
			rec["loss"] = append(rec["loss"], loss)
		}
		grads, err := m.FullGrads(ctx)
		require.NoError(t, err)
		rec.Add(fmt.Sprint("step ", step, ": gradient of"), grads)
		require.NoError(t, opt.Step(c.rate()))
		m.ZeroGrad()
	}
	state, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(t, err)
	rec.Add("parameter", state)
	return rec
}

// concatenated returns the rows of all batches as one.
func concatenated(t *testing.T, batches [][]fsdp.Tensor) []fsdp.Tensor {
	all := make([]fsdp.Tensor, len(batches[0]))
	for i := range all {
		var err error
		all[i], err = tensor.Concat(0, batches[0][i], column(batches[1:], i)...)
		if len(batches) == 1 {
			all[i], err = batches[0][i], nil
		}
		require.NoError(t, err)
	}
	return all
}

func column(batches [][]fsdp.Tensor, i int) (list []fsdp.Tensor) {
	for _, b := range batches {
		list = append(list, b[i])
	}
	return list
}

// An emulation is the training of all ranks in one process, one rank after the other, with loops
// for what they do together.
type emulation struct {
	parityCell
	state, grads map[string]*tensor.Dense // whole
	present      map[string]bool          // which gradients there are
}

// emulate trains as the ranks of the cell do.
func (c parityCell) emulate(t *testing.T) kit.Record {
	ctx, rec := t.Context(), make(kit.Record)
	m := kit.Wrap(t, c.Model, c.single())
	e := &emulation{parityCell: c, grads: make(map[string]*tensor.Dense), present: make(map[string]bool)}
	var err error
	e.state, err = m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(t, err)
	opt := kit.Momentum(t, e.params(m.Params()))
	losses := make([][]float64, c.world)
	for step := range paritySteps {
		require.NoError(t, m.LoadStateDict(ctx, 0, e.gathered()))
		e.zeroGrad()
		for first := 0; first < len(c.backwards); {
			last := first // of those that are reduced together
			for last < len(c.backwards)-1 && c.backwards[last] == 'n' {
				last++
			}
			var ranks []map[string]*tensor.Dense
			for r := range c.world {
				for i := first; i <= last; i++ {
					losses[r] = append(losses[r], c.accumulate(t, ctx, m, i, c.rankBatch(step, i, r), fsdp.Scale(c.relativeWeight(r))))
				}
				require.NoError(t, m.SyncGrads(ctx))
				grads, err := m.FullGrads(ctx)
				require.NoError(t, err)
				ranks = append(ranks, grads)
				m.ZeroGrad()
			}
			e.reduce(ranks)
			first = last + 1
		}
		for name := range e.present {
			rec.Add(fmt.Sprint("step ", step, ": gradient of"), map[string]*tensor.Dense{name: e.grads[name].Clone().(*tensor.Dense)})
		}
		require.NoError(t, opt.Step(c.rate()))
	}
	rec.Add("parameter", e.state)
	rec["loss"] = c.weighted(losses)
	return rec
}

// params describes the emulated parameters to the optimizer: those that are trained.
func (e *emulation) params(trained []optim.Param) (list []optim.Param) {
	for _, p := range trained {
		e.grads[p.Name] = e.state[p.Name].Clone().(*tensor.Dense)
		list = append(list, optim.Param{
			Name: p.Name, Shape: p.Shape, Value: vecOf(e.state[p.Name]), Grad: vecOf(e.grads[p.Name]),
			Absent: func() bool { return !e.present[p.Name] },
		})
	}
	return list
}

func (e *emulation) zeroGrad() {
	clear(e.present)
	for _, g := range e.grads {
		g.Zero()
	}
}

// full tells whether a parameter travels in full precision.
func (e *emulation) full(name string) bool {
	return travelsFull(fsdp.CallInfo{}, fsdp.Param{Shape: e.state[name].Shape()}) || e.ignored(name)
}

func (e *emulation) ignored(name string) bool {
	return e.extra.ignored != nil && e.extra.ignored.MatchString(name)
}

// relativeWeight returns the weight of a rank among those of all.
func (c parityCell) relativeWeight(rank int) float64 {
	if c.extra.divide != fsdp.ByWeights {
		return 1
	}
	sum := 0
	for r := range c.world {
		sum += c.rows(r)
	}
	return float64(c.rows(rank)) / (float64(sum) / float64(c.world))
}

// gathered returns the parameters as forward and backward see them.
func (e *emulation) gathered() map[string]*tensor.Dense {
	seen := make(map[string]*tensor.Dense)
	for name, v := range e.state {
		typ := e.precision.Gather
		if e.full(name) {
			typ = e.precision.Master()
		}
		v = v.Clone().(*tensor.Dense)
		kit.SetEach(vecOf(v), func(_ int, x float64) float64 { return nearest(typ, x) })
		seen[name] = v
	}
	return seen
}

// reduce adds the gradients of all ranks to the reduced ones.
func (e *emulation) reduce(ranks []map[string]*tensor.Dense) {
	divisor := 1.0
	if e.extra.divide != fsdp.ByOne {
		divisor = float64(e.world)
	}
	for name := range ranks[0] {
		e.present[name] = true
		typ, groups, before := e.precision.Reduce, e.sums(), 1.0
		if e.full(name) {
			typ = e.precision.Master()
		}
		if e.ignored(name) {
			groups = []int{e.world}
		}
		if typ == fsdp.Float16 && divisor > 1 {
			before = predivisor(e.world)
		}
		list := make([][]float64, e.world)
		for r, grads := range ranks {
			list[r] = kit.Elements(grads[name])
		}
		values := make([]float64, e.world)
		kit.SetEach(vecOf(e.grads[name]), func(i int, grad float64) float64 {
			for r := range values {
				values[r] = nearest(typ, nearest(e.precision.Master(), list[r][i]/before))
			}
			sum := e.sum(values, groups, typ)
			return grad + nearest(e.precision.Master(), sum*nearest(e.precision.Master(), before/divisor))
		})
	}
}

// predivisor is what PyTorch divides gradients by before it sums them over n ranks in float16.
func predivisor(n int) float64 {
	d := 1
	for n%d == 0 && n/d > d {
		d *= 2
	}
	return float64(d)
}

// sum adds values over groups of neighbours of the first size, their sums over groups of the next,
// and so on, each sum in the type of the computation and then rounded to typ.
func (e *emulation) sum(values []float64, groups []int, typ fsdp.DType) float64 {
	for _, n := range groups {
		var sums []float64
		for part := range slices.Chunk(values, n) {
			sums = append(sums, nearest(typ, e.tree(part)))
		}
		values = sums
	}
	return values[0]
}

// tree adds values in the canonical order of package comm.
func (e *emulation) tree(x []float64) float64 {
	if len(x) == 1 {
		return x[0]
	}
	mid := 1
	for 2*mid < len(x) {
		mid *= 2
	}
	return nearest(e.precision.Master(), e.tree(x[:mid])+e.tree(x[mid:]))
}

// nearest returns the number of the type next to x, the even one of two. Nothing here overflows.
func nearest(typ fsdp.DType, x float64) float64 {
	digits, least := 0, 0 // of the fraction; exponent of the smallest normal number
	switch typ {
	case fsdp.Float64:
		return x
	case fsdp.Float32:
		return float64(float32(x))
	case fsdp.BFloat16:
		digits, least = 7, -126
	case fsdp.Float16:
		digits, least = 10, -14
	}
	_, exponent := math.Frexp(x) // |x| < 2^exponent
	unit := math.Ldexp(1, max(exponent-1, least)-digits)
	return math.RoundToEven(x/unit) * unit
}

// vecOf returns a tensor's elements, aliased.
func vecOf(v *tensor.Dense) optim.Host {
	if data, ok := v.Data().([]float32); ok {
		return optim.Host{F32: data}
	}
	return optim.Host{F64: v.Float64s()}
}

// TestUnitOfWeights checks that only the ratio of the ranks' weights counts: in float16, too, whose
// range their unit must not use up.
func TestUnitOfWeights(t *testing.T) {
	gradients := func(precision fsdp.Precision, weights ...float64) (grads kit.Record) {
		kit.OnRanks(t, len(weights), func(ctx context.Context, g comm.Group) {
			c := parityCell{ParityModel: kit.ParityModels[1]}
			m := kit.Wrap(t, c.Model, fsdp.Config{Group: g, Precision: precision, GradAverage: fsdp.ByWeights})
			_, err := m.Forward(ctx, c.Batch(2*g.Rank(), 2)...)
			require.NoError(t, err)
			require.NoError(t, m.Backward(ctx, fsdp.Weight(weights[g.Rank()])))
			full, err := m.FullGrads(ctx)
			require.NoError(t, err)
			if g.Rank() == 0 {
				grads = make(kit.Record)
				grads.Add("gradient of", full)
			}
		})
		return grads
	}
	for _, p := range []fsdp.Precision{kit.Float64s, {}, {Reduce: fsdp.Float16}} {
		want := gradients(p, 1, 2, 5)
		requireRecord(t, want, gradients(p, 1<<20, 2<<20, 5<<20), 0)
		requireRecord(t, want, gradients(p, 0x1p-40, 0x2p-40, 0x5p-40), 0)
	}
}
