package fsdp

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/exec"
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
	trace  *trace
	model  *program.Model
	groups []*flatGroup
	train  *program.Program
	eval   *program.Program

	save      []exec.Policy // by call: what it keeps for backward
	home      []place       // by parameter
	arena     *arena.Arena
	runner    exec.Runner
	agreement *agreement

	compiled []*compiled // by batch shape, the last used first
	pass     *pass       // forward done, backward to come
	requests int         // collective calls so far, those that ranks could not agree on included
	passes   int         // passes so far: numbers them
	forwards int         // training passes begun so far: keys dropout
	err      error       // first failure in the middle of a pass, or errClosed: no more passes
}

// place is where a parameter lives: in which group, and which of its parameters it is.
type place struct{ group, index int }

// Wrap shards m over the ranks of cfg.Group. It runs m.Forward once to learn the calls, groups their parameters, compiles
// the passes, checks that all ranks mean the same model, and draws this rank's share of the initial parameters. It is a
// collective: every rank calls it, and if one fails all return an error.
func Wrap(m Model, cfg Config) (*Sharded, error) { return WrapContext(context.Background(), m, cfg) }

// WrapContext is Wrap with a context that bounds the exchange with the other ranks.
func WrapContext(ctx context.Context, m Model, cfg Config) (*Sharded, error) {
	if cfg.Group == nil {
		cfg.Group = comm.Local(1)[0]
	}
	s, err := newSharded(m, cfg)
	agreement := newAgreement(cfg.Group)
	if err = agreement.on(ctx, request{kind: passWrap}, err); err == nil && cfg.Group.Size() > 1 {
		err = sameText(ctx, cfg.Group, "model or configuration", s.manifest())
	}
	if err != nil {
		if s != nil { // this rank could have gone on
			err = errors.Join(err, s.arena.Close())
		}
		return nil, fmt.Errorf("fsdp: rank %d: %w", cfg.Group.Rank(), err)
	}
	s.agreement = agreement
	return s, nil
}

// newSharded does the part of Wrap that needs no other rank.
func newSharded(m Model, cfg Config) (*Sharded, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	shared, _ := cfg.Group.(comm.Allocator)
	s := &Sharded{cfg: cfg, arena: arena.New(shared)}
	s.arena.Poison = cfg.Poison
	if s.trace, err = traceModel(m); err != nil {
		return nil, err
	}
	if err := s.makeGroups(); err != nil {
		return nil, err
	}
	if s.train, err = program.Compile(s.model, program.Options{Prefetch: cfg.Prefetch}); err != nil {
		return nil, err
	}
	if s.eval, err = program.Compile(s.model, program.Options{Prefetch: cfg.Prefetch, Eval: true}); err != nil {
		return nil, err
	}
	if err := errors.Join(program.Verify(s.train), program.Verify(s.eval)); err != nil {
		return nil, err
	}
	for _, g := range s.groups {
		if err := g.init(s.trace, s.arena, cfg.Seed); err != nil {
			return nil, errors.Join(err, s.arena.Close())
		}
	}
	return s, nil
}

// rootName is what the root group is called in events and messages.
const rootName = "root"

// makeGroups applies the policies and describes the model to the scheduler.
func (s *Sharded) makeGroups() error {
	infos := s.callInfos()
	units, err := s.cfg.Wrap.apply("Wrap", infos)
	if err != nil {
		return err
	}
	if s.save, err = s.savePolicies(infos); err != nil {
		return err
	}
	names, byName := []string{rootName}, map[string]int{"": program.Root}
	members := make([][]int, 1)
	s.home = make([]place, len(s.trace.params))
	for i, c := range s.trace.calls {
		if units[i] == rootName {
			return fmt.Errorf("policy Config.Wrap named the unit of call %q %q, which is the name of the root group", c.name, rootName)
		}
		g, ok := byName[units[i]]
		if !ok && len(c.owned) > 0 {
			g = len(names)
			byName[units[i]] = g
			names, members = append(names, units[i]), append(members, nil)
		}
		for _, p := range c.owned {
			s.home[p] = place{g, len(members[g])}
			members[g] = append(members[g], p)
		}
	}
	s.model = &program.Model{Inputs: s.trace.inputs, Results: s.trace.results}
	for g, name := range names {
		f, err := newFlatGroup(name, s.trace, members[g], s.cfg.Group, s.cfg.Precision.Compute)
		if err != nil {
			return err
		}
		s.groups = append(s.groups, f)
		s.model.Groups = append(s.model.Groups, program.Group{Name: name})
	}
	for i, p := range s.trace.params {
		s.model.Params = append(s.model.Params, program.Param{Name: p.Name, Group: s.home[i].group})
	}
	for _, c := range s.trace.calls {
		s.model.Calls = append(s.model.Calls, program.Call{Name: c.name, In: c.in, Params: c.params})
	}
	return nil
}

// savePolicies says what each call keeps for backward.
func (s *Sharded) savePolicies(infos []CallInfo) ([]exec.Policy, error) {
	checkpoint, err := s.cfg.Checkpoint.apply("Checkpoint", infos)
	if err != nil {
		return nil, err
	}
	keep, err := s.cfg.Keep.apply("Keep", infos)
	if err != nil {
		return nil, err
	}
	save := make([]exec.Policy, len(infos)) // exec.Balanced
	for i, c := range infos {
		switch {
		case checkpoint[i] != "" && keep[i] != "":
			return nil, fmt.Errorf("call %q is selected by both Config.Checkpoint and Config.Keep", c.Name)
		case checkpoint[i] != "":
			save[i] = exec.RecomputeAll
		case keep[i] != "":
			save[i] = exec.SaveAll
		}
	}
	return save, nil
}

// callInfos describes the calls to the policies.
func (s *Sharded) callInfos() []CallInfo {
	infos := make([]CallInfo, len(s.trace.calls))
	for i, c := range s.trace.calls {
		infos[i] = CallInfo{Name: c.name, Module: c.module}
		for _, p := range c.owned {
			infos[i].Params = append(infos[i].Params, s.trace.params[p].Param)
		}
	}
	return infos
}

// manifest is what all ranks must agree on, as text, so that a difference can be shown.
func (s *Sharded) manifest() string {
	var b strings.Builder
	fmt.Fprintf(&b, "precision %v, prefetch %d, seed %d\n", s.cfg.Precision.Compute, s.cfg.Prefetch, s.cfg.Seed)
	for i, g := range s.groups {
		fmt.Fprintf(&b, "group %s of %d elements\n", g.name, g.layout.Len())
		for _, p := range g.layout.Params() {
			fmt.Fprintf(&b, "parameter %s %v in group %s\n", p.Name, p.Shape, s.groups[i].name)
		}
	}
	for i, c := range s.trace.calls {
		fmt.Fprintf(&b, "call %s %v of %s, checkpoint %t, keep %t\n", c.name, c.in, describe(c.module),
			s.save[i] == exec.RecomputeAll, s.save[i] == exec.SaveAll)
	}
	fmt.Fprintf(&b, "schedule %016x %016x\n", s.train.Hash(), s.eval.Hash())
	return b.String()
}

// Shards returns the pieces of the parameters that this rank owns, with their gradients, for an optimizer. The memory is
// the model's: values may be written between passes, and both are valid until Close. A rank may own nothing.
func (s *Sharded) Shards() []optim.Param {
	if s.err == errClosed {
		return nil
	}
	var list []optim.Param
	for _, g := range s.groups {
		list = append(list, g.shards()...)
	}
	return list
}

// ZeroGrad sets the gradients to zero. Without it, the next Backward adds to them.
func (s *Sharded) ZeroGrad() {
	if s.err == errClosed {
		return
	}
	for _, g := range s.groups {
		clear(g.grad.Data)
	}
}

// errClosed is why a closed model can do nothing.
var errClosed = errors.New("the model is closed")

// Close gives back the memory of parameters, gradients and buffers. From then on collective methods return an error, and
// what Shards returned must not be touched, nor an optimizer stepped that was made of it: the memory may not be there.
// Closing again does nothing.
//
// Close is not a collective, but after a Forward without a Backward it waits for the gathers that were begun. It leaves the
// group open, which best outlives the model: if the memory was the group's and has gone with it, Close says so, and nothing
// worse happens.
func (s *Sharded) Close() error {
	if s.err == errClosed {
		return nil
	}
	for _, g := range s.groups {
		g.settle()
	}
	s.err, s.pass = errClosed, nil
	if err := s.arena.Close(); err != nil {
		return fmt.Errorf("fsdp: rank %d: Close: %w", s.cfg.Group.Rank(), err)
	}
	return nil
}
