package fsdp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/shard"
)

// SetFullOptim gives the optimizers of all ranks the state that rank root has in full, which other ranks do not look at: that of
// [Sharded.FullOptimState] or of another program, made by any number of ranks, in float32 or float64. It goes parameter by
// parameter, so that no rank but root needs memory for more than one.
//
// What does not fit is a *StateError on every rank, which names all of it, and changes nothing: [Rename], [AllowMissing] and
// [AllowExtra] make exceptions, by names such as "exp_avg:wte.weight". The entries of one parameter are there together or not at
// all; where they may be missing the optimizer keeps its own. full.Extra stays where it is: it is the caller's to send to other
// ranks, if they need it.
//
// An optimizer that does not take what fits, which none of package optim does, leaves the model unusable until a SetFullOptim, Load or
// Import succeeds.
func (s *Sharded) SetFullOptim(ctx context.Context, root int, opt optim.Optimizer, full *optim.FullState, opts ...StateOption) error {
	r := ranks.Ask{Call: "SetFullOptim", Detail: fromRank(root)}
	isRoot := s.cfg.Group.Rank() == root
	var names naming
	var sheet *stateSheet
	o, err := s.stateOptions(opts, "Rename", "AllowMissing", "AllowExtra")
	if err == nil && (root < 0 || root >= s.cfg.Group.Size()) {
		err = fmt.Errorf("rank %d is not one of the %d ranks", root, s.cfg.Group.Size())
	}
	if err == nil {
		err = s.err
	}
	if err == nil {
		_, err = s.memoryWith(opt)
	}
	if err == nil {
		names, err = s.naming(&o)
	}
	if err == nil && isRoot {
		sheet, err = newStateSheet(full)
	}
	if err := s.agree(ctx, r, err); err != nil {
		return err
	}
	f := &optimFiller{s: s, opt: opt, root: root, full: full, names: names}
	if err := f.plan(ctx, &o, sheet); err != nil {
		return err
	}
	defer func() {
		if s.err == nil { // after a failure buffers stay where they are
			s.arena.Free(f.block)
		}
	}()
	if err := f.run(ctx); err != nil {
		return err
	}
	err = s.agree(ctx, r, f.failed)
	if err != nil {
		s.torn = fmt.Errorf("%w: %w", errOptimTorn, err)
		s.tearState("a SetFullOptim")
		return err
	}
	if errors.Is(s.torn, errOptimTorn) {
		s.torn = nil
	}
	s.tornOpt = tornState{}
	return nil
}

// errOptimTorn is why a model is torn by SetFullOptim.
var errOptimTorn = errors.New("a SetFullOptim has broken off: the optimizers are not whole until a SetFullOptim, Load or Import succeeds")

// A stateSheet says what is in a full state.
type stateSheet struct {
	Steps  int
	Params map[string]sheetParam
}

type sheetParam struct {
	Shape   []int
	Steps   int
	Entries []string // sorted
}

// newStateSheet describes a full state, or returns what is wrong with it.
func newStateSheet(full *optim.FullState) (*stateSheet, error) {
	if full == nil {
		return nil, errors.New("the full state is nil")
	}
	if full.Steps < 0 {
		return nil, fmt.Errorf("the full state has made %d steps", full.Steps)
	}
	sheet := &stateSheet{Steps: full.Steps, Params: make(map[string]sheetParam)}
	for _, name := range slices.Sorted(maps.Keys(full.Params)) {
		p := full.Params[name]
		if _, err := shard.New([]shard.Param{{Name: name, Shape: p.Shape}}, 1, 1); err != nil {
			return nil, fmt.Errorf("the full state: %w", err)
		}
		n := shard.Param{Shape: p.Shape}.Len()
		for entry, v := range p.Entries {
			switch {
			case v.Len() != n || v.F32 != nil && v.F64 != nil:
				return nil, fmt.Errorf("the full state has %d float32 and %d float64 elements of %s of parameter %s %v", len(v.F32), len(v.F64), entry, name, p.Shape)
			case p.Steps < 0 || p.Steps == 0 && !zero(v):
				return nil, fmt.Errorf("the full state has %s of parameter %s after %d updates, which is not zero", entry, name, p.Steps)
			}
		}
		sheet.Params[name] = sheetParam{p.Shape, p.Steps, slices.Sorted(maps.Keys(p.Entries))}
	}
	return sheet, nil
}

func zero(v optim.Host) bool {
	return !slices.ContainsFunc(v.F32, func(x float32) bool { return x != 0 }) && !slices.ContainsFunc(v.F64, func(x float64) bool { return x != 0 })
}

// An optimFiller gives optimizers a full state.
type optimFiller struct {
	s     *Sharded
	opt   optim.Optimizer
	root  int
	full  *optim.FullState // on root
	names naming           // in the full state

	steps    int
	holdings []holding
	params   [][]stateTensor // that change: the entries of each, with the steps that they will have had
	block    *arena.Block    // for those of one parameter
	failed   error           // first error of Adopt
}

// plan compares the full state with what the optimizers keep. It is a collective and returns the same on all ranks.
func (f *optimFiller) plan(ctx context.Context, o *stateOptions, own *stateSheet) (err error) {
	s := f.s
	if err := s.team.Same(ctx, "options", f.names.text); err != nil {
		return s.refused("SetFullOptim", err)
	}
	f.holdings = s.holdings()
	inv := s.inventory(f.opt)
	inv.Full = own
	all, err := s.exchange(ctx, inv)
	if err != nil {
		return s.broken(fmt.Errorf("%s: %w", "SetFullOptim", err))
	}
	sheet := all[f.root].Full
	f.steps = sheet.Steps
	have, err := s.merge(all, f.holdings, false)
	if err == nil {
		err = distinct(have.tensors, f.names.of)
	}
	if err == nil {
		err = ranks.Guarded(func() error { return f.match(sheet, have.tensors, o) })
	}
	var chosen []string
	largest := 0
	for _, entries := range f.params {
		for _, t := range entries {
			chosen = append(chosen, f.names.of(&t))
		}
		largest = max(largest, len(entries)*entries[0].len()*s.cfg.Precision.Compute.size())
	}
	if err == nil {
		f.block, err = s.arena.Alloc(largest, arena.Gathered)
	}
	err = s.agree(ctx, ranks.Ask{Call: "SetFullOptim", Detail: fromRank(f.root), Schedule: textHash(chosen)}, err)
	if err != nil && s.err == nil {
		s.arena.Free(f.block)
	}
	return err
}

// match fills params, or returns a *StateError.
func (f *optimFiller) match(sheet *stateSheet, have []stateTensor, o *stateOptions) error {
	e := &StateError{Where: fmt.Sprintf("the optimizer's state on rank %d", f.root)}
	used := make(map[string]bool)
	for len(have) > 0 {
		n := 1
		for n < len(have) && have[n].param == have[0].param && have[n].Owner == have[0].Owner {
			n++
		}
		entries := have[:n]
		have = have[n:]
		name := f.names.param(&entries[0])
		p := sheet.Params[name]
		used[name] = true
		var missing []string
		for i := range entries {
			if _, ok := slices.BinarySearch(p.Entries, entries[i].Entry); !ok {
				missing = append(missing, f.names.of(&entries[i]))
			}
			entries[i].steps = p.Steps
		}
		switch {
		case len(missing) == n && !slices.ContainsFunc(missing, func(name string) bool { return !o.mayMiss(name) }):
			continue
		case len(missing) > 0:
			e.Missing = append(e.Missing, missing...)
		case !slices.Equal(squeezed(p.Shape), squeezed(entries[0].shape)):
			e.Reshaped = append(e.Reshaped, fmt.Sprintf("%s %v -> %v", name, p.Shape, entries[0].shape))
		default:
			f.params = append(f.params, entries)
		}
		e.Extra = append(e.Extra, extraEntries(name, p, entries, o)...)
	}
	for _, name := range slices.Sorted(maps.Keys(sheet.Params)) {
		if !used[name] {
			e.Extra = append(e.Extra, extraEntries(name, sheet.Params[name], nil, o)...)
		}
	}
	return e.orNil()
}

// extraEntries returns the names of what a full state has of a parameter beside the given entries.
func extraEntries(name string, p sheetParam, entries []stateTensor, o *stateOptions) (extra []string) {
	for _, entry := range p.Entries {
		known := slices.ContainsFunc(entries, func(t stateTensor) bool { return t.Entry == entry })
		if full := entryName(entry, name); !known && !o.mayBeExtra(full) {
			extra = append(extra, full)
		}
	}
	return extra
}

// entryName is the name of an entry of a parameter that has its name in a state, with an owner if it has one.
func entryName(entry, param string) string {
	return checkpoint.Key{Param: param, Entry: entry, Owner: checkpoint.Shared}.Name()
}

// run sends the state, one parameter after the other. What an optimizer does not take is kept in failed, so that all ranks get
// to the end.
func (f *optimFiller) run(ctx context.Context) error {
	for _, entries := range f.params {
		if err := f.send(ctx, entries); err != nil {
			return f.s.broken(fmt.Errorf("%s: state of parameter %s: %w", "SetFullOptim", entries[0].Param, err))
		}
	}
	f.adopt(nil) // also where this rank owns nothing, or the optimizer has no entries
	return nil
}

// send sends the entries of one parameter, and has the optimizer adopt them if this rank has a part of it.
func (f *optimFiller) send(ctx context.Context, entries []stateTensor) error {
	s, t := f.s, &entries[0]
	home := s.layout.Home[t.param]
	g, h := s.groups[home.Group], &f.holdings[home.Group]
	size := t.len() * g.Compute.Size()
	adopted := make([]optim.Entry, len(entries))
	works := make([]comm.Work, len(entries))
	for i := range entries {
		e := &entries[i]
		whole := f.block.Data[i*size:][:size:size]
		if f.root == s.cfg.Group.Rank() {
			whole = f.convert(whole, f.full.Params[f.names.param(e)].Entries[e.Entry])
		}
		works[i] = s.cfg.Group.Broadcast(g.buffer(whole, g.Compute).Named(e.Name()), f.root)
		adopted[i] = optim.Entry{Param: e.Param, Name: e.Entry, Shape: e.shape, Steps: e.steps, Data: g.vec(whole, 0, e.len())}
	}
	var err error
	for _, w := range works { // all of them, as the memory is the group's until then
		if werr := w.Wait(ctx); err == nil {
			err = werr
		}
	}
	me := s.cfg.Group.Rank()
	if span := g.Span(g.Member(me).Place, home.Index); err == nil && h.has(me, t.Owner) && span.End > span.Start {
		f.adopt(adopted)
	}
	return err
}

// convert returns the memory of v if that is in the type of the computation, or else room with the elements in it.
func (f *optimFiller) convert(room []byte, v optim.Host) []byte {
	compute := f.s.cfg.Precision.Compute
	switch {
	case v.F64 != nil && compute == Float32:
		for i, x := range v.F64 {
			exec.Data[float32](room)[i] = float32(x)
		}
		return room
	case v.F32 != nil && compute == Float64:
		for i, x := range v.F32 {
			exec.Data[float64](room)[i] = float64(x)
		}
		return room
	default:
		return elementBytes(v)
	}
}

// adopt hands entries to the optimizer.
func (f *optimFiller) adopt(entries []optim.Entry) {
	if err := f.opt.Adopt(f.steps, entries); f.failed == nil {
		f.failed = err
	}
}
