package fsdp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/fsdp/internal/record"
	"github.com/gofsdp/gofsdp/fsdp/internal/state"
	"github.com/gofsdp/gofsdp/fsdp/internal/timeline"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/optim"
)

// Sharded is one rank's handle of a wrapped model. The methods that take a context are collective:
// every rank of the group calls the same ones in the same order, except for passes inside
// JoinCalls. A Sharded is for one goroutine at a time: a method that is called while another
// goroutine is in a method returns an error. ZeroGrad, ScaleGrads, Hold and Params return no error.
// They do nothing then, and the next method returns the error.
//
// Errors that ranks find before a pass starts, such as a batch of the wrong shape, a token out of
// range or a loss that is NaN, are returned on every rank. Parameters and gradients do not change.
// An error in the middle of a pass, such as a context that ends or a user's operation that fails,
// fails the group: a rank that has already finished the pass gets the error from its next call, and
// no rank can use the model any more. A context that ends before a pass may do the same, because a
// rank that stops waiting for the others has no way to learn their decision.
type Sharded struct {
	*arrangement
	trace  *trace // of Forward
	team   *ranks.Team
	engine *engine.Engine
	life   life
	busy   methodLock
	saver  state.Saver  // Save and SaveAsync
	copied *arena.Block // by SaveAsync
	files  struct {
		trace  *timeline.File // of a TraceDir, or nil
		hashes *record.File   // of a HashDir, or nil

		dropped runtime.Cleanup // releases the remains

		saves, exports, loads state.Files
	}

	noSync   bool  // inside NoSync
	turn     turn  // in the loops of Join under way
	loops    []int // iterations of these, outer first
	requests int   // collective calls so far, including calls on which ranks could not agree
	forwards int   // training passes begun so far: keys dropout
	lists    int   // calls of Params so far
}

// An arrangement is the result of applying the configuration to the model. It does not change:
// Freeze makes another.
type arrangement struct {
	cfg    Config
	units  []*unit
	layout *layout.Layout
	meshes []ranks.Mesh // by flat group
}

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
	s := &Sharded{arrangement: &arrangement{cfg: cfg}, team: ranks.NewTeam(cfg.Group, newPeerError), life: life{held: make(map[*Pass]bool)}}
	if err := s.wrap(ctx, m); err != nil {
		return nil, fmt.Errorf("fsdp: rank %d: %w", cfg.Group.Rank(), errors.Join(err, giveBack(s)))
	}
	return s, nil
}

// wraps counts the Wraps of this process by rank. The largest count of a model's ranks numbers it.
var wraps sync.Map

// count notes that a rank wraps a model, and returns the number of models it has wrapped.
func count(rank int) float64 {
	n, _ := wraps.LoadOrStore(rank, new(atomic.Int64))
	return float64(n.(*atomic.Int64).Add(1))
}

// wrap does the local work first, compares the result with the other ranks, and then makes this
// rank's share.
func (s *Sharded) wrap(ctx context.Context, m Model) error {
	model, err := prepare(s, m, false)
	set := instructionSet(&s.cfg)
	s.team.Votes = len(kernel.InstructionSets)
	ans, err := s.team.Agree(ctx, &ranks.Ask{Call: "Wrap", Number: 1, Value: count(s.team.Rank()), Has: []int{set}}, err)
	s.team.Model, s.team.Votes = int(ans.Largest), 0
	sets := slices.DeleteFunc(slices.Clone(ans.Had), func(vote int64) bool { return vote == 0 })
	if err == nil {
		err = s.team.Same(ctx, "model or configuration", manifest(&s.cfg, s.trace, model, s.units))
	}
	if err == nil && len(sets) > 1 {
		err = warnOfSets(ctx, s, set)
	}
	if err == nil {
		err = hasMemory(ctx, s, model)
	}
	if err != nil {
		return err
	}
	s.life.passes = s.cfg.passes()
	s.life.updates = updates{model: model, last: make([]updated, len(model.Params))}
	if s.arrangement, err = arrange(ctx, s.team, model, s.cfg, s.units); err == nil {
		err = s.share(ctx, s.engine, s.trace)
	}
	if err == nil {
		err = attach(s)
	}
	if _, err := s.team.Agree(ctx, &ranks.Ask{Call: "Wrap", Number: 2}, err); err != nil {
		return err
	}
	if s.cfg.observe.hashDir != "" {
		s.files.hashes, err = record.Open(s.cfg.observe.hashDir, s.cfg.Group, s.team.Model)
		if _, err := s.team.Agree(ctx, &ranks.Ask{Call: "Wrap", Number: 3}, err); err != nil {
			return fmt.Errorf("HashDir of Config.Observers: %w: give each run a directory of its own", err)
		}
	}
	if s.cfg.observe.traceDir != "" {
		if s.files.trace, err = timeline.Open(ctx, s.cfg.observe.traceDir, s.cfg.Group, s.team.Model); err == nil {
			s.engine.Device().Watch(s.files.trace.Flight)
			err = s.team.Watch(s.files.trace.Flight)
		}
		if _, err := s.team.Agree(ctx, &ranks.Ask{Call: "Wrap", Number: 4}, err); err != nil {
			return fmt.Errorf("TraceDir of Config.Observers: %w: give a directory in which this process may write", err)
		}
	}
	s.team.Votes = s.layout.Votes.Words
	s.log("wrapped", s.trace, s.team.Rank())
	s.cfg.logCores(s.team.Rank())
	warnOfGathers(s)
	releaseDropped(s)
	return nil
}

// instructionSet returns the index in kernel.InstructionSets of this rank's instruction set. Tests replace it.
var instructionSet = func(cfg *Config) int { return kernel.InstructionSet(cfg.Precision.Compute == BFloat16) }

// prepare does the part of Wrap that needs no other rank. A Planner uses it, too.
func prepare(s *Sharded, m Model, dry bool) (model *layout.Model, err error) {
	if s.cfg, err = s.cfg.withDefaults(); err != nil {
		return nil, err
	}
	if s.trace, err = traceModel(m); err != nil {
		return nil, err
	}
	programs, err := tracePrograms(m, s.trace)
	if err != nil {
		return nil, err
	}
	if err := callPolicies(&s.cfg, s.trace); err != nil {
		return nil, err
	}
	if s.cfg.Device != nil && s.cfg.GradAverage == ByActive && s.trace.path().Varies() {
		return nil, errors.New("calls of the model may be absent, see Tape.Optional: Config.Device cannot divide their gradients ByActive, as the processor does")
	}
	if s.units, err = decideUnits(&s.cfg, s.trace); err != nil {
		return nil, err
	}
	if err := virtualModel(&s.cfg, s.trace, s.units); err != nil {
		return nil, err
	}
	device, err := newDevice(&s.cfg, dry)
	if err == nil {
		s.engine = engine.New(device, s.team, engineOptions(s))
	}
	return layoutModel(s.trace, programs), err
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
	d, err := cfg.Device.Engine(engine.DeviceOptions{Dry: dry, Poison: cfg.Poison, Offload: cfg.Offload.Pinned})
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
func engineOptions(s *Sharded) engine.Options {
	cfg, tr := &s.cfg, s.trace
	o := engine.Options{
		DType: cfg.Precision.Compute.tensor(), Prefetch: cfg.Prefetch, InFlight: cfg.InFlight, Seed: cfg.Seed, Passes: cfg.passes(),
		Save: tr.save, Spill: tr.spill, Before: cfg.before, Factor: cfg.factor(),
	}
	for i, c := range tr.calls {
		half := cfg.Precision.Compute == BFloat16 && !tr.wide[i]
		o.Modules = append(o.Modules, engine.Module{Key: c.module, Spec: spec(c.module, c.local), Half: half})
	}
	if seen := cfg.observe; seen.any() {
		o.Trace = func(step *engine.Step) {
			seen.profile.Record(newOperation(step))
			s.files.hashes.Step(step, s.layout, s.engine.Shards())
			s.files.trace.Step(step)
			for _, f := range seen.trace {
				f(newEvent(s.team.Rank(), step))
			}
		}
	}
	return o
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
	if err := (initials{a.layout, e.Shards(), tr.params}).blank(); err != nil {
		return err
	}
	return e.Device().Wait() // a late error fails Wrap, on all ranks
}

// String returns the rank of the handle, the size of its model, and whether it can be used.
func (s *Sharded) String() string {
	elements := 0
	for _, p := range s.layout.Model.Params {
		if !p.Buffer {
			elements += p.Len()
		}
	}
	text := fmt.Sprintf("rank %d of %d: parameters %d, units %d, ", s.team.Rank(), s.team.Size(), elements, len(s.units))
	switch s.life.health {
	case running:
		return text + bytesText(s.layout.ShardBytes()) + " of parameters and gradients here"
	case broken:
		cause, _, _ := strings.Cut(s.life.cause.Error(), "\n")
		return text + "broken: " + cause
	default:
		return text + "closed"
	}
}

// LogValue implements [slog.LogValuer]: it is String.
func (s *Sharded) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(s)) }

// Params returns the pieces of the trained parameters that this rank owns, with their gradients,
// for an optimizer. The memory is the model's: values may be written between passes, and both are
// valid until Freeze or Close. A parameter of which this rank owns nothing has an empty piece,
// after the others, so that all ranks can compare their optimizers. If optimizers differ between
// ranks in kind, numbers, learning rate or steps, the next pass returns an error.
//
// Initial values are drawn at their first use, such as a Forward, and are NaN before. A program may
// write values before that, and they stay. To read or scale initial values, call [Sharded.Summon]
// first.
//
// A parameter that no Backward since ZeroGrad has reached has no gradient, and an optimizer does
// not change it. If no parameter has a gradient, the first such step is a warning. Gradients of
// passes inside NoSync are not in the shards until they are reduced. An optimizer refuses to step
// before that, between a Forward and its Backward, and after Freeze and Close. On a rank with a
// gradient that is NaN or infinite it also refuses, and changes nothing. Unless all ranks refuse,
// the step is then applied in part: Forward, Eval, Save, Export, StateDict, OptimStateDict and
// Freeze return an error on every rank until a Load or Import. A ClipGradNorm before the Step finds
// such a gradient on every rank.
//
// The state of an optimizer made of these pieces is in the same memory as the shards. It is counted
// with them until Freeze or Close, even when the optimizer is no longer in use.
func (s *Sharded) Params() []optim.Param {
	if !enterOrNote(s, "Params") {
		return nil
	}
	defer leave(s)
	return shards(s)
}

func shards(s *Sharded) []optim.Param {
	if s.life.health == closed {
		return nil
	}
	s.lists++
	var list, empty []optim.Param
	for i := range s.layout.Groups {
		g := &s.layout.Groups[i]
		if g.Kind.Frozen {
			continue
		}
		pieces := g.Segments()
		for k, p := range g.Params {
			if len(pieces) > 0 && pieces[0].Param == k {
				list = append(list, piece(s, i, p, pieces[0].Offset, pieces[0].At, pieces[0].Len))
				pieces = pieces[1:]
			} else {
				empty = append(empty, piece(s, i, p, 0, 0, 0))
			}
		}
	}
	return append(list, empty...)
}

// piece returns n elements of parameter p from offset on. They begin at index at of the shard of
// group i.
func piece(s *Sharded, i, p, offset, at, n int) optim.Param {
	l, number, shards, present := s.layout, s.lists, s.engine.Shards(), s.engine.Present()
	q := optim.Param{
		Name: l.Model.Params[p].Name, Shape: l.Model.Params[p].Shape, Offset: offset,
		Value: shards.Value(i).Slice(at, at+n), Grad: shards.Grad(i).Slice(at, at+n),
		Absent: func() bool { return !present[p] && lacks(s) }, Peers: s.peers(p),
		Guard: guard{s, l},
		Ready: func() error { return ready(s, l, number) },
		Alloc: func(n int) (optim.Vec, error) {
			v, err := shards.Alloc(i, n)
			if err != nil {
				return nil, fmt.Errorf("rank %d: state of group %s: %w", s.team.Rank(), l.Groups[i].Name, err)
			}
			return v, nil
		},
	}
	shared := s.units[l.Groups[i].Unit].group == nil
	q.Updated = func(u optim.Update) {
		s.life.watch.update(s, p, u)
		if s.files.hashes.Updated(); shared {
			s.life.updates.add(p, u, s.life.grads)
		}
	}
	q.Swapped, q.Warn = s.life.swapped, func(text string) { s.life.watch.warn(s.cfg.warner(s.team.Rank()), text) }
	return q
}

// ZeroGrad drops all gradients, including gradients that are not reduced yet. Without it, the next
// Backward adds to them.
func (s *Sharded) ZeroGrad() {
	if enterOrNote(s, "ZeroGrad") {
		defer leave(s)
		s.life.watch.countDropped(s)
		zeroGrad(s)
	}
}

func zeroGrad(s *Sharded) {
	if s.life.health == closed {
		return
	}
	s.life.zeroGrad()
	_ = s.engine.ZeroGrad() // a device that has failed returns the error again
	if s.life.health == running {
		s.engine.DropWhole()
	}
}

// Close frees the memory of parameters, gradients and buffers. Collective methods return an error
// afterwards. Do not use the result of Params or step an optimizer made of it: the memory may be
// unmapped. Closing again does nothing.
//
// Close is not a collective. After a Forward without a Backward it waits for the gathers under way.
// After SaveAsync it waits until the checkpoint is written, and returns its error unless Wait has.
// If a file system does not respond for the timeout of the group (FSDP_TIMEOUT), Close returns an
// error that names the file, and the memory is freed when the operation ends. While another
// goroutine is in a method, Close returns an error and does nothing.
//
// Close leaves the group open. The group should outlive the model: if it is closed first and its
// memory is gone, Close returns an error and nothing worse happens.
//
// A model that is dropped without Close is freed when the garbage collector finds that neither the Sharded
// nor an [optim.Param] of it is referred to. If it has more than memory of the Go heap, which is the case with
// Config.Threads above 1, Device, Offload.Dir, a HashDir, a TraceDir or shared memory of the group, that is a
// warning: the collector may come late, and slices of an [optim.Vec] must not be used from then on.
func (s *Sharded) Close() error {
	if err := enter(s, "Close"); err != nil {
		return err
	}
	defer leave(s)
	if s.life.health == closed {
		return nil
	}
	if s.life.calls != nil {
		return fmt.Errorf("fsdp: rank %d: Close: %w", s.team.Rank(), errCalls)
	}
	var passes []*engine.Pass
	for _, p := range s.life.waiting() {
		passes = append(passes, p.Pass)
	}
	s.engine.Settle(passes...)
	err := s.saver.Settle(context.Background())
	s.life = life{health: closed}
	s.files.dropped.Stop()
	if err := errors.Join(err, giveBack(s)); err != nil {
		return fmt.Errorf("fsdp: rank %d: Close: %w", s.team.Rank(), err)
	}
	return nil
}

// A PeerError is the failure of another rank before a pass, reported on this one, so that no rank
// waits for a rank that will not come.
type PeerError struct {
	Rank    int
	Message string
}

// Error implements error.
func (e *PeerError) Error() string { return fmt.Sprintf("rank %d: %s", e.Rank, e.Message) }

func newPeerError(rank int, message string) error { return &PeerError{rank, message} }

// ask agrees with the other ranks to run a collective method. err is why this rank cannot, or nil.
func (s *Sharded) ask(ctx context.Context, q *ranks.Ask, err error) (ranks.Answer, error) {
	if err := s.life.withheld(err); err != nil {
		return ranks.Answer{}, fmt.Errorf("fsdp: rank %d: %s: %w", s.team.Rank(), q.Call, err)
	}
	if c := s.life.calls; c != nil && c.failed != nil {
		return ranks.Answer{}, c.failed
	}
	s.requests++
	q.Model, q.Number, q.Loops = s.team.Model, s.requests, s.loops
	if err == nil {
		err = context.Cause(ctx)
	}
	begin := s.cfg.observe.profile.Now()
	ans, all := s.team.Agree(ctx, q, err)
	s.cfg.observe.profile.Agreed(q.Call, begin, s.cfg.observe.profile.Now())
	if all == nil {
		return ans, nil
	}
	if err == nil {
		all = withoutRank(s, q.Call, all)
	}
	err = fmt.Errorf("%s: %w", q.Call, all)
	if errors.As(err, new(*ranks.LostError)) && s.life.health == running {
		err = s.team.Fail(err)
	}
	return ans, s.end(err)
}

// agree is ask for calls that need only the agreement.
func (s *Sharded) agree(ctx context.Context, q ranks.Ask, err error) error {
	_, err = s.ask(ctx, &q, err)
	return err
}

// end returns an error of a method as its user gets it. A failure is the end of the model.
func (s *Sharded) end(err error) error {
	if err == nil {
		return nil
	}
	if failure := new(ranks.Failure); errors.As(err, &failure) {
		s.life.broke(failure.Err)
	}
	err = fmt.Errorf("fsdp: rank %d: %w", s.team.Rank(), err)
	if c := s.life.calls; c != nil && c.failed == nil {
		c.failed = err
	}
	return err
}
