package fsdp

import (
	"context"
	"errors"
	"fmt"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/fsdp/internal/state"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/mapped"
	"github.com/gofsdp/gofsdp/internal/program"
	"github.com/gofsdp/gofsdp/optim"
)

// Sharded is one rank's handle of a wrapped model. The methods that take a context are collective: every rank of the group
// calls the same ones in the same order. It is not safe for concurrent use.
//
// Errors that ranks find before a pass starts, such as a batch of the wrong shape, a token out of range or a loss that is
// NaN, are returned on every rank and leave parameters and gradients as they were. An error in the middle of a pass, such as
// a context that ends or an operation of the user's that fails, fails the group: a rank that has finished the pass already
// gets the error from its next call, and no rank can use the model further. So may a context that has ended before a pass: a
// rank that gives up waiting for the others cannot know what they make of it.
type Sharded struct {
	cfg    Config
	trace  *trace        // of Forward
	model  *layout.Model // what has been traced
	save   []exec.Policy // by call: what it keeps for backward
	spill  []bool        // by call: whether in files
	units  []*unit
	layout *layout.Layout
	groups []*flatGroup
	team   *ranks.Team

	files    *mapped.Files // nil unless Config.OffloadDir is set
	arena    *arena.Arena
	runner   exec.Runner
	programs map[string]*program.Program // by what was asked for

	compiled []*compiled    // by batch shape, the last used first
	pass     *pass          // forward done, backward to come
	held     map[*Pass]bool // likewise, put aside
	ended    []*pass        // those that err ended, whose collectives may be in flight
	noSync   bool           // inside NoSync
	dummy    bool           // in an iteration of Join for which this rank has a dummy batch
	joined   bool           // in an iteration of Join for which this rank has no batch
	facts    *facts         // of the last training pass, or nil
	shadows  map[shadowKey]*compiled
	pending  pending        // gradients that are not reduced
	present  []bool         // by parameter: whether it has a gradient
	state    []*arena.Block // of optimizers
	saver    state.Saver    // Save and SaveAsync
	snapshot *arena.Block   // of SaveAsync
	requests int            // collective calls so far, those that ranks could not agree on included
	passes   int            // passes so far: numbers them
	forwards int            // training passes begun so far: keys dropout
	lists    int            // calls of Shards so far
	torn     error          // of a Load or Import that failed in the middle, until one succeeds: no more passes till then
	tornOpt  tornState      // of one that changed optimizers, too: no more steps of them
	err      error          // first failure in the middle of a pass, or errClosed: no more passes
}

// Wrap shards m over the ranks of cfg.Group. It runs m.Forward once to learn the calls, groups their parameters, compiles
// the passes, checks that all ranks mean the same model, and draws this rank's share of the initial parameters. It is a
// collective: every rank calls it, and if one fails all return an error.
func Wrap(m Model, cfg Config) (*Sharded, error) { return WrapContext(context.Background(), m, cfg) }

// WrapContext is Wrap with a context that bounds the exchange with the other ranks.
func WrapContext(ctx context.Context, m Model, cfg Config) (*Sharded, error) {
	if cfg.Group == nil {
		cfg.Group = comm.Local(1)[0]
	}
	s := &Sharded{
		cfg: cfg, team: ranks.NewTeam(cfg.Group, newPeerError),
		arena: arena.New(arena.Sources{}), held: make(map[*Pass]bool), shadows: make(map[shadowKey]*compiled),
	}
	if err := s.wrap(ctx, m); err != nil {
		return nil, fmt.Errorf("fsdp: rank %d: %w", cfg.Group.Rank(), errors.Join(err, s.giveBack()))
	}
	return s, nil
}

// wrap does what needs no other rank, compares it with the others, and then makes this rank's share.
func (s *Sharded) wrap(ctx context.Context, m Model) error {
	_, err := s.team.Agree(ctx, &ranks.Ask{Call: "Wrap", Number: 1}, s.prepare(m))
	if err == nil {
		err = s.team.Same(ctx, "model or configuration", s.manifest(s.units))
	}
	if err != nil {
		return err
	}
	var meshes []ranks.Mesh
	if s.layout, meshes, err = s.lay(ctx, &s.cfg, s.units); err == nil {
		s.groups = flatGroups(s.layout, meshes)
		s.programs, err = s.check(s.layout)
	}
	for i := 0; i < len(s.groups) && err == nil; i++ {
		if err = s.groups[i].alloc(s.arena); err == nil {
			err = s.groups[i].draw(s.trace, s.cfg.Seed)
		}
	}
	if _, err := s.team.Agree(ctx, &ranks.Ask{Call: "Wrap", Number: 2}, err); err != nil {
		return err
	}
	s.log("wrapped")
	return nil
}

// prepare does the part of Wrap that needs no other rank.
func (s *Sharded) prepare(m Model) (err error) {
	if s.cfg, err = s.cfg.withDefaults(); err != nil {
		return err
	}
	if s.trace, err = traceModel(m); err != nil {
		return err
	}
	programs, err := tracePrograms(m, s.trace)
	if err != nil {
		return err
	}
	s.model = layoutModel(s.trace, programs)
	s.present = make([]bool, len(s.trace.params))
	if s.units, err = decideUnits(&s.cfg, s.trace); err != nil {
		return err
	}
	if s.save, s.spill, err = savePolicies(&s.cfg, s.trace.callInfos()); err != nil {
		return err
	}
	sources, err := s.sources()
	if err != nil {
		return err
	}
	s.arena = arena.New(sources)
	s.arena.Poison = s.cfg.Poison
	return nil
}

// flatGroups returns the groups of a layout, without memory.
func flatGroups(l *layout.Layout, meshes []ranks.Mesh) []*flatGroup {
	list := make([]*flatGroup, len(meshes))
	for i, m := range meshes {
		list[i] = &flatGroup{Group: &l.Groups[i], mesh: m}
	}
	return list
}

// check compiles the passes as far as that is possible without a batch, and keeps their programs.
func (s *Sharded) check(l *layout.Layout) (map[string]*program.Program, error) {
	programs := make(map[string]*program.Program)
	variants := []variant{{}}
	for name := range l.Entries {
		variants = append(variants, variant{entry: name, eval: true})
	}
	for _, v := range variants {
		if _, err := s.program(l, programs, v, nil); err != nil {
			return nil, err
		}
	}
	return programs, nil
}

// shardBytes returns the bytes of this rank's parameters and gradients.
func (s *Sharded) shardBytes() int {
	n := 0
	for _, g := range s.groups {
		n += len(g.value.Data)
		if g.grad != nil {
			n += len(g.grad.Data)
		}
	}
	return n
}

// Shards returns the pieces of the trained parameters that this rank owns, with their gradients, for an optimizer. The memory is
// the model's: values may be written between passes, and both are valid until Freeze or Close. A rank may own nothing.
//
// A parameter that no Backward since ZeroGrad has reached has no gradient, and an optimizer leaves it alone. Gradients of
// passes inside NoSync are not in the shards yet. An optimizer refuses to step then, between a Forward and its Backward, and
// after Freeze and Close.
//
// The state of an optimizer that is made of these pieces lies where the shards do, and is counted with them until Freeze or
// Close, also when the optimizer is no longer in use.
func (s *Sharded) Shards() []optim.Param {
	if s.err == errClosed {
		return nil
	}
	s.lists++
	var list []optim.Param
	for _, g := range s.groups {
		if !g.Kind.Frozen {
			list = append(list, s.shardsOf(g)...)
		}
	}
	return list
}

// shardsOf returns the segments of a trained group.
func (s *Sharded) shardsOf(f *flatGroup) []optim.Param {
	var list []optim.Param
	number := s.lists
	for _, seg := range f.Segments() {
		present := &s.present[f.Group.Params[seg.Param]]
		list = append(list, optim.Param{
			Name: seg.Name, Shape: f.Flat.Params()[seg.Param].Shape, Offset: seg.Offset,
			Value: f.vec(f.value.Data, seg.At, seg.Len), Grad: f.vec(f.grad.Data, seg.At, seg.Len),
			Absent: func() bool { return !*present },
			Ready:  func() error { return s.steppable(f, number) },
			Alloc:  func(n int) (optim.Vec, error) { return s.allocState(f, n) },
		})
	}
	return list
}

// steppable says why an optimizer must not touch the shards of a group now. It was made of those that the call of Shards with
// this number has returned.
func (s *Sharded) steppable(f *flatGroup, list int) error {
	switch {
	case s.err == errClosed:
		return s.err
	case f.value == nil:
		return errFormer
	case s.torn != nil:
		return s.torn
	case list <= s.tornOpt.lists && s.tornOpt.err != nil:
		return s.tornOpt.err
	case s.pass != nil || len(s.held) > 0:
		return errors.New("a Forward waits for its Backward: parameters must not change in between")
	}
	return s.pending.reduced()
}

// allocState returns n elements for an optimizer.
func (s *Sharded) allocState(f *flatGroup, n int) (optim.Vec, error) {
	b, err := s.arena.Alloc(n*f.Compute.Size(), arena.State)
	if err != nil {
		return nil, fmt.Errorf("rank %d: state of group %s: %w", s.cfg.Group.Rank(), f.Name, err)
	}
	s.state = append(s.state, b)
	return f.vec(b.Data, 0, n), nil
}

// ZeroGrad drops all gradients, those that are not reduced yet included. Without it, the next Backward adds to them.
func (s *Sharded) ZeroGrad() {
	if s.err == errClosed {
		return
	}
	for _, g := range s.groups {
		if g.grad != nil {
			clear(g.grad.Data)
		}
	}
	clear(s.present)
	if s.err == nil {
		s.pending.drop(s.arena)
	}
}

// errClosed is why a closed model can do nothing.
var errClosed = errors.New("the model is closed")

// Close gives back the memory of parameters, gradients and buffers. From then on collective methods return an error, and
// what Shards returned must not be touched, nor an optimizer stepped that was made of it: the memory may not be there.
// Closing again does nothing.
//
// Close is not a collective, but after a Forward without a Backward it waits for the gathers that were begun, and after
// SaveAsync until the checkpoint is written, whose error it returns unless Wait has. It leaves the group open, which best outlives
// the model: if the memory was the group's and has gone with it, Close says so, and nothing worse happens.
func (s *Sharded) Close() error {
	if s.err == errClosed {
		return nil
	}
	for _, p := range s.waiting() {
		p.settle()
	}
	err := s.saver.Settle(context.Background())
	s.err, s.pass, s.held = errClosed, nil, nil
	if err := errors.Join(err, s.giveBack()); err != nil {
		return fmt.Errorf("fsdp: rank %d: Close: %w", s.cfg.Group.Rank(), err)
	}
	return nil
}

// giveBack closes what the model has opened.
func (s *Sharded) giveBack() error {
	err := s.arena.Close()
	if s.files != nil {
		err = errors.Join(err, s.files.Close())
	}
	return errors.Join(err, s.saver.Close(), s.team.Close())
}
