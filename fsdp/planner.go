package fsdp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime/debug"
	"slices"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/phase"
	"github.com/gofsdp/gofsdp/optim"
)

// A Shape is a tensor of a batch without its elements. Ints and Floats make one. A dimension of 0
// means that the batch lacks the tensor, see [Tape.Optional]. The batch meets all conditions of
// Optional.
type Shape struct {
	dims []int
	ints bool
}

// Ints returns the shape of a tensor of integers, such as tokens.
func Ints(dims ...int) Shape { return Shape{dims, true} }

// Floats returns the shape of a tensor of floats, of the type that the model computes in.
func Floats(dims ...int) Shape { return Shape{dims, false} }

// A Planner plans a training without running it. Nothing is allocated, drawn or sent: Config.Group
// may be a [comm.World], any number of ranks that do not exist, and so may the groups that
// Config.Unit gives. nil means one rank. A plan of a model with 175 billion parameters takes a
// tenth of a second and some 30 MB.
//
//	p := fsdp.Planner{
//		Model:        model,
//		Config:       fsdp.Config{Group: comm.World{Ranks: 128}, WrapPolicy: …},
//		NewOptimizer: optim.AdamW{}.New,
//		Batch:        []fsdp.Shape{fsdp.Ints(1, 2048), fsdp.Ints(1, 2048)},
//	}
//	plan, err := p.Plan()
//	err = p.Fits(80e9)
type Planner struct {
	Model            Model
	Config           Config
	NewOptimizer     func([]optim.Param) (optim.Optimizer, error) // such as the New of an optim.AdamW; nil for no optimizer
	Batch            []Shape                                      // of a pass of one rank
	MemoryCheckpoint bool                                         // the ranks keep one
}

// Plan returns the plan that [Sharded.Plan] gives once the model is wrapped and has the optimizer.
// Plan.BesideBytes excludes the memory that groups copy through, because a Planner has no groups,
// and Plan.MemoryBytes is right to a tenth. All other figures, and the schedule, are the figures of
// a wrapped model. With Config.Device they are figures of a GPU, which need not exist: Device may
// be new(gpu.Device).
func (p Planner) Plan() (*Plan, error) {
	p = p.grouped()
	r, err := p.plan()
	if err != nil {
		return nil, fmt.Errorf("fsdp: a plan for rank %d of %d: %w", p.Config.Group.Rank(), p.Config.Group.Size(), err)
	}
	return r, nil
}

// grouped returns p with a group.
func (p Planner) grouped() Planner {
	if p.Config.Group == nil {
		p.Config.Group = comm.World{Ranks: 1}
	}
	return p
}

// withConfig returns p with another configuration.
func (p Planner) withConfig(cfg Config) Planner {
	p.Config = cfg
	return p
}

// plan does the work of Plan for a configuration with a group. Plan adds the rank and the size of
// the group to its errors.
func (p Planner) plan() (*Plan, error) {
	cfg := p.Config
	if n, rank := cfg.Group.Size(), cfg.Group.Rank(); rank < 0 || rank >= n {
		return nil, errors.New("Config.Group has no such rank")
	}
	d, err := newDesign(p.Model, cfg, true)
	if err != nil {
		return nil, err
	}
	a, err := d.alone()
	if err != nil {
		return nil, err
	}
	s := newSharded(d, ranks.NewTeam(cfg.Group, newPeerError), a)
	if err := s.adopt(context.Background(), s.engine); err != nil {
		return nil, err
	}
	var opt optim.Optimizer
	if p.NewOptimizer != nil {
		if opt, err = p.NewOptimizer(s.Params()); err != nil {
			return nil, err
		}
	}
	if p.MemoryCheckpoint {
		if s.life.kept, err = s.store(ranks.Ask{Call: saveMemory}, nil).KeptBytes(opt); err != nil {
			return nil, err
		}
	}
	values, err := shapeValues(d.model.Paths[""], p.Batch, s.cfg.Precision.Compute.tensor())
	if err != nil {
		return nil, err
	}
	return s.planOf(values)
}

// Fits returns nil if a pass, as planned by Plan, holds no more than this number of bytes in memory
// at once. If not, the error is a [*plan.Misfit]: the live memory at the peak by class and by unit,
// and the changes of the configuration, of the ranks or of the batch that would help, each planned
// alone, the largest saving first. BF16, Precision.Master, another number of ranks, another batch
// and AdamW with a state of 8 bits round differently; the other changes alter no bit of a step's
// result. The state of 8 bits is planned for every Planner that has an optimizer: it is another
// update rule if the optimizer is SGD or Muon, not AdamW.
//
// If the pass fits, Fits also plans it with Activations.Save: WrapEach(), under which backward
// computes nothing twice. If that fits too, Fits reports it to Config.Logger, if there is one.
func (p Planner) Fits(bytes int) error {
	p = p.grouped()
	r, err := p.Plan()
	if err != nil {
		return err
	}
	if err = p.advised(r.Pass.Fits(bytes)); err != nil {
		return fmt.Errorf("fsdp: rank %d of %d: %w", p.Config.Group.Rank(), p.Config.Group.Size(), err)
	}
	p.proposeSave(bytes, r.Pass)
	return nil
}

// proposeSave reports to Config.Logger that memory allows Activations.Save, unless it saves no
// computation.
func (p Planner) proposeSave(bytes int, now *plan.Pass) {
	cfg := p.Config
	if cfg.Logger == nil || cfg.Activations.Save != nil {
		return
	}
	text := "fsdp: memory allows Activations.Save: WrapEach()"
	if cfg.Activations.Recompute != nil {
		text += " in place of Recompute"
	}
	keep := cfg
	keep.Activations.Save, keep.Activations.Recompute = WrapEach(), nil
	saved, err := p.withConfig(keep).plan()
	if err != nil || saved.Pass.Fits(bytes) != nil || saved.Pass.Cost().Bytes >= now.Cost().Bytes {
		return // an error such as of a policy that accepts one call only: Fits is about cfg
	}
	peak := func(p *plan.Pass) int { return p.Ops[p.Peak()].Live.Total() }
	cfg.Logger.Info(text+": backward would recompute nothing", "rank", cfg.Group.Rank(), "takes", plan.Bytes(peak(saved.Pass)), "now", plan.Bytes(peak(now)))
}

// limits returns the memory limits of this rank as arena.Limits does. Tests replace it.
var limits = func(_ *Config, enough int) []arena.Limit { return arena.Limits(enough) }

// limitsCounted is how many limits of a rank count: those with the least memory left.
const limitsCounted = 8

// alone lays the model out without communication.
func (d *design) alone() (*arrangement, error) {
	a := &arrangement{cfg: d.cfg, units: d.units}
	own := make([]*layout.Own, len(d.units))
	for i, u := range d.units {
		if u.group != nil {
			own[i] = &layout.Own{Ranks: u.group.Size(), Rank: u.group.Rank()}
		}
	}
	return a, a.lay(d.model, own, d.device)
}

// hasMemory returns an error on all ranks if the shards of ranks that share a limit, such as memory
// of their host or of their pod, need more than is left there. Otherwise the kernel would kill
// processes silently. All ranks have the same model, and none has allocated shards yet.
func hasMemory(ctx context.Context, team *ranks.Team, d *design) error {
	need, largest := 0, ""
	if d.cfg.Device == nil && d.cfg.Offload.Dir == "" {
		if a, err := d.alone(); err == nil { // or arrange returns the error
			need = a.layout.ShardBytes()
			largest = slices.MaxFunc(a.layout.Groups, func(x, y layout.Group) int { return cmp.Compare(x.ShardBytes(), y.ShardBytes()) }).Name
		}
	}
	enough := min(need, math.MaxInt/team.Size()) * team.Size() // if all ranks shared the limit
	tight := []float64{0}                                      // number of ranks whose limit is lower
	if near := nearest(limits(&d.cfg, enough)); len(near) > 0 && near[0].Left < enough {
		debug.FreeOSMemory() // of models that are closed, for example
		tight[0] = 1
	}
	if err := team.Sum(ctx, tight); err != nil {
		return fmt.Errorf("comparing the memory of ranks: %w", err)
	}
	if tight[0] == 0 {
		return nil
	}
	mine := make([]int64, 1+2*limitsCounted)
	mine[0] = int64(need)
	near := nearest(limits(&d.cfg, math.MaxInt))
	for i, l := range near {
		mine[1+2*i], mine[2+2*i] = int64(l.ID), int64(l.Left)
	}
	all, err := team.Each(ctx, "memory", mine)
	if err != nil {
		return fmt.Errorf("comparing the memory of ranks: %w", err)
	}
	type sharing struct{ ranks, need, left int }
	shared, short := make(map[uint64]sharing), false // by ID
	for words := range slices.Chunk(all, len(mine)) {
		counted := make(map[uint64]bool)
		for i := 1; i < len(words); i += 2 {
			id, left := uint64(words[i]), int(words[i+1])
			l, known := shared[id]
			if id == 0 || counted[id] {
				continue
			}
			counted[id] = true
			if !known {
				l.left = left
			}
			l.left, l.ranks = min(l.left, left), l.ranks+1
			l.need += min(int(words[0]), math.MaxInt-l.need)
			shared[id], short = l, short || l.need > l.left
		}
	}
	if !short {
		return nil
	}
	for _, n := range near {
		if l := shared[n.ID]; need > 0 && l.need > l.left {
			err = fmt.Errorf("group %s, the largest: parameters and gradients of this rank take %s. The %d ranks that share this memory need %s, "+
				"but only %s are available: %s. Activations and the optimizer's state (AdamW: as much again) are not counted. "+
				"FullShard on more hosts needs less on each, Config.Offload.Dir keeps shards in files, and Fits of fsdp.Planner plans a whole pass",
				largest, bytesText(need), l.ranks, bytesText(l.need), bytesText(l.left), n.Name)
			break
		}
	}
	_, err = team.Agree(ctx, &ranks.Ask{Call: "Wrap", Number: 2}, err)
	return err
}

// nearest returns the limits of a rank that have the least memory left, at most limitsCounted.
func nearest(list []arena.Limit) []arena.Limit {
	slices.SortFunc(list, func(x, y arena.Limit) int { return cmp.Compare(x.Left, y.Left) })
	return list[:min(len(list), limitsCounted)]
}

// advised adds the changes that would help to a Misfit of a configuration. Other errors are
// unchanged.
func (p Planner) advised(err error) error {
	var misfit *plan.Misfit
	if !errors.As(err, &misfit) {
		return err
	}
	for _, c := range p.changes() {
		r, err := c.plan()
		if err != nil {
			continue // such as of a policy for this number of ranks only: the change does not help
		}
		most := r.Pass.Ops[r.Pass.Peak()].Live.Total()
		if saved := misfit.Live.Total() - most; saved > 0 {
			misfit.Changes = append(misfit.Changes, plan.Change{Name: c.name, Memory: most, Saved: saved})
		}
	}
	slices.SortStableFunc(misfit.Changes, func(a, b plan.Change) int { return b.Saved - a.Saved })
	return err
}

// A change is another way to train.
type change struct {
	name string
	Planner
}

// changes lists changes that might need less memory.
func (p Planner) changes() (list []change) {
	cfg := p.Config
	try := func(may bool, name string, set func(c *Config)) {
		if c := (change{name, p}); may {
			set(&c.Config)
			list = append(list, c)
		}
	}
	n, types := cfg.Group.Size(), cfg.Precision
	try(cfg.Unit == nil, fmt.Sprintf("training on %d ranks", 2*n), func(c *Config) {
		c.Group = comm.World{Ranks: 2 * n, Place: cfg.Group.Rank()}
		c.ShardRanks *= 2
	})
	try(cfg.Unit == nil && cfg.Strategy != FullShard, "Strategy: FullShard", func(c *Config) { c.Strategy, c.ShardRanks = FullShard, 0 })
	try(true, "WrapPolicy: WrapEach()", func(c *Config) { c.WrapPolicy = WrapEach() })
	try(true, "Activations.Recompute: WrapEach()", func(c *Config) { c.Activations.Recompute, c.Activations.Save = WrapEach(), nil })
	try(cfg.Activations.Save != nil, "no Activations.Save", func(c *Config) { c.Activations.Save = nil })
	try(cfg.Prefetch != NoPrefetch, "Prefetch: NoPrefetch", func(c *Config) { c.Prefetch = NoPrefetch })
	try(types.Compute == Float32, "Precision: BF16()", func(c *Config) { c.Precision = BF16() })
	try(types.Reduce == Float32 && (types.Compute == Float32 || types.Compute == BFloat16), "Precision.Reduce: BFloat16 (rounds gradients)", func(c *Config) { c.Precision.Reduce = BFloat16 })
	try(types.Compute == BFloat16 && types.Master != BFloat16, "Precision.Master: BFloat16 (rounds parameters and gradients)", func(c *Config) { c.Precision.Master = BFloat16 })
	try(cfg.Device != nil && !cfg.Offload.Pinned, "Offload.Pinned", func(c *Config) { c.Offload.Pinned = true })
	try(cfg.Device == nil && cfg.Offload.Dir == "", "Offload.Dir (on a GPU Offload.Pinned)", func(c *Config) { c.Offload.Dir = "files" }) // of which a plan makes none
	if p.NewOptimizer != nil {
		small := p
		small.NewOptimizer = optim.AdamW{Bits: 8}.New
		list = append(list, change{"optim.AdamW{Bits: 8} (rounds differently)", small})
	}
	if batch := halved(p.Batch); batch != nil {
		half := p
		half.Batch = batch
		list = append(list, change{"half the batch", half})
	}
	return list
}

// halved returns the shapes of half as many samples, or nil if there is no half.
func halved(batch []Shape) (half []Shape) {
	for _, b := range batch {
		if len(b.dims) == 0 || b.dims[0]%2 != 0 || b.dims[0] != batch[0].dims[0] {
			return nil
		}
		dims := slices.Clone(b.dims)
		dims[0] /= 2
		half = append(half, Shape{dims, b.ints})
	}
	return half
}

// shapeValues returns a batch without memory.
func shapeValues(p *layout.Path, batch []Shape, computed tensor.Dtype) ([]exec.Value, error) {
	if len(batch) != p.Inputs {
		return nil, fmt.Errorf("the batch has %d shapes, but the model takes %d tensors", len(batch), p.Inputs)
	}
	values := make([]exec.Value, len(batch))
	for i, b := range batch {
		if slices.Contains(p.Optional, i) && slices.Contains(b.dims, 0) {
			values[i] = exec.Absent
			continue
		}
		for _, d := range b.dims {
			if d < 1 {
				return nil, fmt.Errorf("%s: the shape %v is empty", p.Input(i), b.dims)
			}
		}
		values[i] = exec.Value{Shape: b.dims, DType: computed}
		if b.ints {
			values[i].DType = tensor.Int
		}
	}
	for range p.Conditions {
		values = append(values, met)
	}
	return values, nil
}

// Tune returns Config with the fastest units, strategy, Prefetch and Activations for a step on a
// cluster, among the settings that fit in this number of bytes, and all the choices it had. It
// plans each of them by Plan, which takes a tenth of a second or less. It does not change a field
// that Config sets. Its choice changes no bit of a step's result, unless gradients travel in 16
// bits and it takes a hybrid strategy, see [Strategy]. It does not change Precision and the
// optimizer. Every rank that makes the same call gets the same answer.
//
// If nothing fits, the error is a [*plan.Misfit] of the choice that needs least, as in Fits.
func (p Planner) Tune(c *plan.Cluster, memory int) (Config, []plan.Choice, error) {
	p = p.grouped()
	cfg := p.Config
	if err := c.Check(); err != nil {
		return cfg, nil, fmt.Errorf("fsdp: tuning: %w", err)
	}
	tuning := phase.Begin("fsdp: tuning, settings planned", 0)
	defer tuning.End()
	choices, err := plan.Search(space(&cfg, c), memory, c, func(s plan.Setting) (*plan.Pass, error) {
		defer tuning.Add(1)
		r, err := p.withConfig(chosen(cfg, s)).plan()
		if err != nil {
			return nil, err
		}
		return r.Pass, nil
	})
	if err == nil && choices[0].Time == nil {
		err = p.withConfig(chosen(cfg, choices[0].Setting)).advised(choices[0].Misfit)
	}
	if err != nil {
		return cfg, choices, fmt.Errorf("fsdp: tuning for %d ranks: %w", cfg.Group.Size(), err)
	}
	return chosen(cfg, choices[0].Setting), choices, nil
}

// tunedUnits, tunedRecompute and tunedStrategies are the choices of Tune, by name. Blocks are calls
// that follow each other and have modules of one type. Recomputation is named by the part of a
// block that backward recomputes.
var (
	tunedUnits = map[string]Policy{
		"one unit": nil, "calls": WrapEach(), "blocks": wrapLike(1), "2 blocks": wrapLike(2), "4 blocks": wrapLike(4),
	}
	tunedRecompute = map[string]struct{ recompute, save Policy }{
		"full": {recompute: wrapLike(1)}, "some": {}, "none": {save: WrapEach()},
	}
	tunedStrategies = map[string]Strategy{
		"FullShard": FullShard, "ShardGradOp": ShardGradOp, "NoShard": NoShard, "HybridShard": HybridShard, "HybridGradOp": HybridGradOp,
		"SecondaryShard": SecondaryShard,
	}
)

// given is the name of a setting that the configuration already decides.
const given = "as given"

// space returns the settings that a configuration leaves open.
func space(cfg *Config, c *plan.Cluster) *plan.Space {
	s := &plan.Space{
		Units:      []string{"blocks", "2 blocks", "4 blocks", "calls", "one unit"},
		Strategies: []string{"FullShard", "ShardGradOp", "NoShard"}, Hybrid: []string{"HybridShard", "HybridGradOp", "SecondaryShard"},
		Recompute: []string{"some", "none", "full"}, Prefetch: []int{1, 2, 3, 0}, Micro: []int{1}, Samples: 1,
	}
	n := cfg.Group.Size()
	r := cfg.Precision.Reduce
	twice := cfg.VirtualRanks > 0 && (r == BFloat16 || r == Float16 || cfg.Precision.TypesOf != nil) // see virtualModel
	if cfg.Device != nil || c.Cores == 0 {                                                           // GPUs keep no second copy
		s.Hybrid = s.Hybrid[:2]
	}
	if k := c.PerHost; k > 1 && k < n && n%k == 0 && k&(k-1) == 0 && !twice {
		s.Strategies, s.ShardRanks = append(s.Strategies, s.Hybrid...), []int{k}
	}
	if cfg.WrapPolicy != nil {
		s.Units = []string{given}
	}
	if cfg.Activations.Recompute != nil || cfg.Activations.Save != nil {
		s.Recompute = []string{given}
	}
	if cfg.Strategy != FullShard || cfg.Unit != nil || cfg.ShardRanks != 0 {
		s.Strategies, s.Hybrid = []string{given}, nil
	}
	if n == 1 {
		s.Strategies = []string{given}
	}
	switch {
	case cfg.Prefetch == NoPrefetch:
		s.Prefetch = []int{0}
	case cfg.Prefetch > 0:
		s.Prefetch = []int{cfg.Prefetch}
	}
	return s
}

// chosen returns cfg with a setting.
func chosen(cfg Config, s plan.Setting) Config {
	if s.Units != given {
		cfg.WrapPolicy = tunedUnits[s.Units]
	}
	if s.Recompute != given {
		c := tunedRecompute[s.Recompute]
		cfg.Activations.Recompute, cfg.Activations.Save = c.recompute, c.save
	}
	if s.Strategy != given {
		cfg.Strategy, cfg.ShardRanks = tunedStrategies[s.Strategy], s.ShardRanks
	}
	if cfg.Prefetch = s.Prefetch; s.Prefetch == 0 {
		cfg.Prefetch = NoPrefetch
	}
	return cfg
}

// wrapLike makes units of n calls each that follow each other and have modules of one type, such as
// the blocks of a transformer. Types that a model calls once are left out.
func wrapLike(n int) Policy {
	return func(calls []CallInfo) []string {
		names := make([]string, len(calls))
		for first := 0; first < len(calls); {
			end := first + 1
			for end < len(calls) && reflect.TypeOf(calls[end].Module) == reflect.TypeOf(calls[first].Module) {
				end++
			}
			for i := first; i < end && end-first > 1; i++ {
				names[i] = calls[first+(i-first)/n*n].Name
			}
			first = end
		}
		return names
	}
}
