package fsdp

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/fsdp/internal/record"
	"github.com/gofsdp/gofsdp/fsdp/internal/timeline"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/phase"
	"github.com/gofsdp/gofsdp/optim"
)

// Wrap shards m over the ranks of cfg.Group. It runs m.Forward once to record the calls, groups
// their parameters, compiles the passes, checks that all ranks have the same model, and makes this
// rank's share of the parameters. Their initial values are drawn at their first use. If the shards
// of all ranks in a control group or on a host need more memory than is left there, all ranks
// return an error before they allocate any. Wrap is a collective: every rank calls it, and if one
// fails all return an error.
func Wrap(m Model, cfg Config) (*Sharded, error) { return WrapContext(context.Background(), m, cfg) }

// WrapContext is Wrap with a context that bounds the exchange with the other ranks.
func WrapContext(ctx context.Context, m Model, cfg Config) (*Sharded, error) {
	if cfg.Group == nil {
		cfg.Group = comm.Local(1)[0]
		cfg.warnOfOthers()
	}
	s, err := wrap(ctx, m, cfg)
	if err != nil {
		return nil, fmt.Errorf("fsdp: rank %d: %w", cfg.Group.Rank(), err)
	}
	return s, nil
}

// wrap designs the model, agrees with the other ranks on the result, and then makes this rank's
// share.
func wrap(ctx context.Context, m Model, cfg Config) (*Sharded, error) {
	defer phase.Begin("fsdp: wrapping the model", 0).End()
	team := ranks.NewTeam(cfg.Group, newPeerError)
	d, err := newDesign(m, cfg, false)
	if err := d.agree(ctx, team, err); err != nil {
		return nil, errors.Join(err, d.close(), team.Close())
	}
	var s *Sharded // nil if the units cannot be arranged
	a, err := arrange(ctx, team, d.model, d.cfg, d.units, d.device)
	if err == nil {
		s = newSharded(d, team, a)
		err = s.share(ctx, s.engine, s.trace)
	}
	if err == nil {
		err = s.attach()
	}
	if _, err = team.Agree(ctx, &ranks.Ask{Call: "Wrap", Number: 2}, err); err == nil {
		err = s.open(ctx)
	}
	switch {
	case err == nil:
		return s, nil
	case s == nil:
		return nil, errors.Join(err, d.close(), team.Close())
	default:
		return nil, errors.Join(err, s.giveBack())
	}
}

// A design holds a rank's own decisions about its model, made without the other ranks. Its device
// has no memory yet.
type design struct {
	cfg    Config // with defaults
	trace  *trace // of Forward
	units  []*unit
	model  *layout.Model
	device engine.Device // nil after an error
}

// newDesign needs no other rank. A dry design is for a plan, and its device never has memory.
func newDesign(m Model, cfg Config, dry bool) (d design, err error) {
	if d.cfg, err = cfg.withDefaults(); err != nil {
		return d, err
	}
	if d.trace, err = traceModel(m); err != nil {
		return d, err
	}
	programs, err := tracePrograms(m, d.trace)
	if err != nil {
		return d, err
	}
	if err := callPolicies(&d.cfg, d.trace); err != nil {
		return d, err
	}
	if d.cfg.Device != nil && d.cfg.GradAverage == ByActive && d.trace.path().Varies() {
		return d, errors.New("Config.Device does not support Config.GradAverage = ByActive for a model with optional calls (Tape.Optional)")
	}
	if d.units, err = decideUnits(&d.cfg, d.trace); err != nil {
		return d, err
	}
	if err := virtualModel(&d.cfg, d.trace, d.units); err != nil {
		return d, err
	}
	d.model = layoutModel(d.trace, programs)
	d.device, err = newDevice(&d.cfg, dry)
	return d, err
}

func (d *design) close() error {
	if d.device == nil {
		return nil
	}
	return d.device.Close()
}

// wraps counts the Wraps of this process by rank. The number of a model is the largest count among
// its ranks.
var wraps sync.Map

// count notes that a rank wraps a model, and returns the number of models it has wrapped.
func count(rank int) float64 {
	n, _ := wraps.LoadOrStore(rank, new(atomic.Int64))
	return float64(n.(*atomic.Int64).Add(1))
}

// agree compares d with the other ranks' designs. err is why this rank has no design, or nil.
func (d *design) agree(ctx context.Context, team *ranks.Team, err error) error {
	set := instructionSet(&d.cfg)
	team.Votes = len(kernel.InstructionSets)
	ans, err := team.Agree(ctx, &ranks.Ask{Call: "Wrap", Number: 1, Value: count(team.Rank()), Has: []int{set}}, err)
	team.Model, team.Votes = int(ans.Largest), 0
	sets := slices.DeleteFunc(slices.Clone(ans.Had), func(vote int64) bool { return vote == 0 })
	if err == nil {
		err = team.Same(ctx, "model or configuration", manifest(&d.cfg, d.trace, d.model, d.units))
	}
	if err == nil && len(sets) > 1 {
		err = warnOfSets(ctx, team, &d.cfg, set)
	}
	if err == nil {
		err = hasMemory(ctx, team, d)
	}
	return err
}

// instructionSet returns the index in kernel.InstructionSets of this rank's instruction set. Tests
// replace it.
var instructionSet = func(cfg *Config) int { return kernel.InstructionSet(cfg.Precision.Compute == BFloat16) }

// newSharded returns the model that a design becomes by an arrangement. It has no shards yet, see
// arrangement.adopt.
func newSharded(d design, team *ranks.Team, a *arrangement) *Sharded {
	s := &Sharded{saver: newSaver(team, a.cfg.Logger)}
	s.arrangement, s.trace, s.team, s.busy.rank = a, d.trace, team, team.Rank()
	s.life.held = make(map[*Pass]bool)
	s.life.passes, s.life.uneven = a.cfg.passes(), a.cfg.VirtualRanks%team.Size() != 0
	s.life.updates = updates{model: d.model, last: make([]updated, len(d.model.Params))}
	s.engine = engine.New(d.device, team, s.engineOptions())
	return s
}

// open opens the files of the observers, and logs the model.
func (s *Sharded) open(ctx context.Context) (err error) {
	if s.cfg.observe.hashDir != "" {
		s.hashes, err = record.Open(s.cfg.observe.hashDir, s.cfg.Group, s.team.Model)
		if _, err := s.team.Agree(ctx, &ranks.Ask{Call: "Wrap", Number: 3}, err); err != nil {
			return fmt.Errorf("HashDir of Config.Observers: %w: give each run a directory of its own", err)
		}
	}
	if s.cfg.observe.traceDir != "" {
		if s.timeline, err = timeline.Open(ctx, s.cfg.observe.traceDir, s.cfg.Group, s.team.Model); err == nil {
			s.engine.Device().Watch(s.timeline.Flight)
			err = s.team.Watch(s.timeline.Flight)
		}
		if _, err := s.team.Agree(ctx, &ranks.Ask{Call: "Wrap", Number: 4}, err); err != nil {
			return fmt.Errorf("TraceDir of Config.Observers: %w: give a directory in which this process may write", err)
		}
	}
	s.team.Votes = s.layout.Votes.Words
	s.log("wrapped", s.trace, s.team.Rank())
	s.cfg.logCores(s.team.Rank())
	s.warnOfGathers()
	s.releaseDropped()
	return nil
}

// newDevice returns the device that a model computes on. For a plan the device has no memory.
func newDevice(cfg *Config, dry bool) (engine.Device, error) {
	if cfg.Device == nil {
		d, err := engine.Default(cfg.Group.Rank(), hostOptions(cfg), dry)
		if err != nil && cfg.Offload.Dir != "" {
			err = fmt.Errorf("Config.Offload.Dir: %w", err)
		}
		return d, err
	}
	ranks, cores := cfg.cores()
	d, err := cfg.Device.Engine(engine.DeviceOptions{
		Dry: dry, Poison: cfg.Poison, Offload: cfg.Offload.Pinned, Cores: min(cores/ranks, runtime.GOMAXPROCS(0)),
		Virtual: cfg.VirtualRanks > 0, Float16: cfg.Precision.Compute == Float16,
	})
	if err != nil {
		return nil, fmt.Errorf("Config.Device: %w", err)
	}
	return d, nil
}

// hostOptions returns the configuration of the host's memory and threads.
func hostOptions(cfg *Config) engine.HostOptions {
	o := engine.HostOptions{Dir: cfg.Offload.Dir, Poison: cfg.Poison, Threads: cfg.Threads}
	if shared, ok := cfg.Group.(comm.Allocator); ok {
		o.Collective = shared
	}
	return o
}

// engineOptions returns the configuration of the passes.
func (s *session) engineOptions() engine.Options {
	cfg, tr := &s.cfg, s.trace
	o := engine.Options{
		DType: cfg.Precision.Compute.tensor(), Prefetch: cfg.Prefetch, InFlight: cfg.InFlight, Seed: cfg.Seed, Passes: cfg.passes(), Leaves: cfg.VirtualRanks,
		Save: tr.save, Spill: tr.spill, Before: cfg.preScale, Factor: cfg.factor(),
	}
	for i, c := range tr.calls {
		half := cfg.Precision.low() && !tr.wide[i]
		o.Modules = append(o.Modules, engine.Module{Key: c.module, Spec: spec(c.module, c.local), Half: half})
	}
	if seen := cfg.observe; seen.any() {
		o.Trace = func(step *engine.Step) {
			seen.profile.Record(newOperation(step))
			s.hashes.Step(step, s.layout, s.engine.Shards())
			s.timeline.Step(step)
			for _, f := range seen.trace {
				f(newEvent(s.team.Rank(), step))
			}
		}
	}
	return o
}

// An arrangement is the result of applying the configuration to the model. It does not change:
// Freeze makes another.
type arrangement struct {
	cfg    Config
	units  []*unit
	layout *layout.Layout
	meshes []ranks.Mesh // by flat group
}

// adopt makes this rank's shards, all zero.
func (a *arrangement) adopt(ctx context.Context, e *engine.Engine) error {
	programs, err := e.Check(a.layout)
	if err != nil {
		return err
	}
	shards, err := e.Device().NewShards(ctx, a.layout, a.meshes)
	if err != nil {
		return err
	}
	e.Adopt(a.layout, shards, programs)
	return nil
}

// share makes this rank's share of the parameters, without values.
func (a *arrangement) share(ctx context.Context, e *engine.Engine, tr *trace) error {
	if err := a.adopt(ctx, e); err != nil {
		return err
	}
	if err := (initials{a.layout, e.Shards(), tr.params}).blank(a.cfg.Seed); err != nil {
		return err
	}
	return e.Device().Wait() // a late error fails Wrap, on all ranks
}

// Freeze changes which parameters are frozen, between two steps: frozen replaces Config.Frozen, nil
// freezes none. It compiles the schedule again and moves parameters to their place in the new
// layout. It drops gradients, and a Forward that waits for its Backward. The earlier result of
// Shards must not be used any more: make a new optimizer; the old one refuses to step, to be saved
// and to be loaded. Given the old one, Freeze returns the state that this rank needs, for the new
// one to adopt. Parameters that were frozen until now start with none. A nil opt has no state.
// Either all ranks give an optimizer, or none does.
//
//	frozen := func(name string) bool { return !strings.HasPrefix(name, "head") }
//	entries, err := m.Freeze(ctx, frozen, opt)
//	next, err := optim.AdamW{}.New(m.Params())
//	err = next.Adopt(opt.Steps(), entries)
//	opt = next
//
// An error that is found before anything moves leaves parameters and optimizer unchanged, on every
// rank.
func (s *Sharded) Freeze(ctx context.Context, frozen func(name string) bool, opt optim.Optimizer) ([]optim.Entry, error) {
	if err := s.busy.enter("Freeze"); err != nil {
		return nil, err
	}
	defer s.busy.leave()
	cfg := s.cfg
	cfg.Frozen = frozen
	var units []*unit
	err := s.checkReplace("Freeze", opt)
	if err == nil {
		units, err = decideUnits(&cfg, s.trace)
	}
	if err == nil {
		err = virtualModel(&cfg, s.trace, units)
	}
	q := ranks.Ask{Call: "Freeze"}
	if opt != nil {
		q.Detail = " with an optimizer" // else pieces of the others would be zero
	}
	if err := s.agree(ctx, q, err); err != nil {
		return nil, err
	}
	if err := s.team.Same(ctx, "frozen parameters", manifest(&cfg, s.trace, s.layout.Model, units)); err != nil {
		return nil, s.end(fmt.Errorf("Freeze: %w", err))
	}
	st := s.store(ranks.Ask{Call: "Freeze"}, nil)
	plan, err := st.PlanMove(ctx, opt)
	if err != nil {
		return nil, st.end(err)
	}
	defer plan.Close()
	next, err := arrange(ctx, s.team, s.layout.Model, cfg, units, s.engine.Device())
	if err != nil {
		return nil, s.end(s.team.Fail(fmt.Errorf("Freeze: %w", err)))
	}
	var shards engine.Shards
	programs, err := s.engine.Check(next.layout)
	if err == nil {
		shards, err = s.engine.Device().NewShards(ctx, next.layout, next.meshes)
	}
	if err := s.agree(ctx, ranks.Ask{Call: "Freeze"}, err); err != nil {
		if shards != nil {
			shards.Free()
		}
		return nil, err
	}
	if err := s.discard(ctx, s.life.takeLast()); err != nil {
		return nil, err
	}
	entries, err := plan.Run(ctx, next.layout, memory{s, shards})
	if err != nil {
		return nil, st.end(err)
	}
	s.engine.Adopt(next.layout, shards, programs)
	s.life.grads = gradients{}
	s.arrangement = next
	s.log("frozen anew", s.trace, s.team.Rank())
	return entries, nil
}
