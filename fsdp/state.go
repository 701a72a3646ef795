package fsdp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/fsdp/internal/state"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/phase"
	"github.com/gofsdp/gofsdp/optim"
)

// everywhere as a root means all ranks.
const everywhere = state.Everywhere

// StateDict returns the whole parameters and buffers by name: on rank 0 or another, or on all, see
// [StateDictOptions]. The other ranks get nil and need no memory for it. The tensors belong to the
// caller; a scalar is a tensor of shape (1).
//
// Parameters of units with separate groups differ from group to group. The first rank of each group
// is part of their names: "experts.up@0", "experts.up@2". Buffers are this rank's.
func (s *Sharded) StateDict(ctx context.Context, opts *StateDictOptions) (map[string]*tensor.Dense, error) {
	if err := s.busy.enter("StateDict"); err != nil {
		return nil, err
	}
	defer s.busy.leave()
	o := opts.state(ctx)
	if o.Err == nil && o.Into != nil {
		o.Err = errors.New("StateDictOptions.Into is for OptimStateDict")
	}
	st := s.store(ranks.Ask{Call: "StateDict", Detail: withOption("Rank", o.Root)}, s.checkCall("StateDict"))
	all := make(map[string]*tensor.Dense)
	here, err := st.Values(ctx, o, tensors(s.cfg.Precision.wide(), all, (*state.Tensor).Name))
	if err != nil || !here {
		return nil, st.end(err)
	}
	return all, nil
}

// tensors returns a function that puts a new tensor into all and returns its memory.
func tensors(dtype DType, all map[string]*tensor.Dense, name func(*state.Tensor) string) func(t *state.Tensor) []byte {
	return func(of *state.Tensor) []byte {
		v := newValue(dtype, of.Shape)
		all[name(of)] = v.Tensor()
		return v.Bytes
	}
}

// OptimStateDict returns the whole state of an optimizer of [Sharded.Params] by parameter name, as
// one process would have it: on rank 0 or another, or on all, see [StateDictOptions]. Ranks that do
// not get it return nil and need no memory for it. Every rank gives its optimizer. If
// ranks that share a parameter keep different entries for it, or have made different numbers of
// updates, it fails on all ranks, and the error names the parameter, the ranks and the counts.
//
// Names are the same as in [Sharded.StateDict]. The result of a rank has the settings of its
// optimizer. Its Extra is for the caller's values.
func (s *Sharded) OptimStateDict(ctx context.Context, opt optim.Optimizer, opts *StateDictOptions) (*optim.FullState, error) {
	if err := s.busy.enter("OptimStateDict"); err != nil {
		return nil, err
	}
	defer s.busy.leave()
	o := opts.state(ctx)
	st := s.store(ranks.Ask{Call: "OptimStateDict", Detail: withOption("Rank", o.Root)}, s.checkOptim("OptimStateDict", opt))
	full, err := st.FullOptim(ctx, opt, o)
	return full, st.end(err)
}

// FullGrads returns the whole gradients by name, on every rank, under the plain names of the model.
// Parameters without a gradient are left out. For units with separate groups it returns the
// gradients of this rank's group.
func (s *Sharded) FullGrads(ctx context.Context) (map[string]*tensor.Dense, error) {
	if err := s.busy.enter("FullGrads"); err != nil {
		return nil, err
	}
	defer s.busy.leave()
	var params []int
	for p := range s.trace.params {
		if !s.layout.Groups[s.layout.Home[p].Group].Kind.Frozen {
			params = append(params, p)
		}
	}
	all := make(map[string]*tensor.Dense)
	st := s.store(ranks.Ask{Call: "FullGrads"}, s.checkCall("FullGrads"))
	if err := st.Own(ctx, 0, params, st.Memory.Grad, tensors(s.cfg.Precision.wide(), all, paramOf)); err != nil {
		return nil, st.end(err)
	}
	for p, q := range s.trace.params {
		if !s.engine.Present()[p] {
			delete(all, q.Name)
		}
	}
	return all, nil
}

func paramOf(t *state.Tensor) string { return t.Param }

// Summon calls f with the whole values of the parameters and buffers of these names, or of all if
// there are none, on every rank. With WriteBack, the changes that f makes on that rank become the
// values on all ranks; otherwise changes are lost. If f fails on any rank, Summon fails on every
// rank and changes nothing. f must not call collective methods of s. WriteBack discards a Forward
// that waits for its Backward, and fails while a pass is put aside by Hold.
func (s *Sharded) Summon(ctx context.Context, names []string, f func(params map[string]*tensor.Dense) error, opts ...SummonOption) error {
	if err := s.busy.enter("Summon"); err != nil {
		return err
	}
	defer s.busy.leave()
	o := summonOptions{root: everywhere}
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	err := s.checkCall("Summon")
	if err == nil {
		err = known(s.layout, names)
	}
	if err == nil && o.write && (o.root < 0 || o.root >= s.cfg.Group.Size()) {
		err = fmt.Errorf("WriteBack(%d): there are %d ranks", o.root, s.cfg.Group.Size())
	}
	want := func(name string) bool { return len(names) == 0 || slices.Contains(names, name) }
	var params []int
	for p, q := range s.trace.params {
		if want(q.Name) {
			params = append(params, p)
		}
	}
	all := make(map[string]*tensor.Dense)
	r := ranks.Ask{Call: "Summon", Detail: withOption("WriteBack", o.root), Schedule: state.Hash(names...)}
	st := s.store(r, err)
	if err := st.Own(ctx, r.Schedule, params, st.Memory.Value, tensors(s.cfg.Precision.wide(), all, paramOf)); err != nil {
		return st.end(err)
	}
	s.busy.leave() // f may call methods that are not collective
	err = ranks.Guarded("the function", func() error { return f(all) })
	if s.busy.Lock(); !o.write { // a method that f has left to another goroutine ends first
		return s.agree(ctx, r, err)
	}
	for name := range all {
		if err == nil && !want(name) {
			err = fmt.Errorf("the function has added parameter %q, which Summon was not asked for", name)
		}
	}
	return s.set(ctx, r, err, o.root, all)
}

// A SummonOption changes Summon.
type SummonOption func(*summonOptions)

type summonOptions struct {
	root  int
	write bool
}

// WriteBack copies the values that the rank has when the function returns to all ranks.
func WriteBack(rank int) SummonOption {
	return func(o *summonOptions) { *o = summonOptions{root: rank, write: true} }
}

// LoadStateDict gives parameters and buffers the values that rank root has in params, such as
// weights that only that rank has loaded. It ignores params on other ranks. If root has none, and
// another rank has some, that is an error. It works parameter by parameter, so that only root needs
// memory for all. Names that the model does not have, other shapes and other types are an error on
// every rank, and change nothing. Parameters that are missing in params keep their value. Names are
// the same as in [Sharded.StateDict], whose result it takes. It discards a Forward that waits for
// its Backward, and fails while a pass is put aside by Hold.
func (s *Sharded) LoadStateDict(ctx context.Context, root int, params map[string]*tensor.Dense) error {
	if err := s.busy.enter("LoadStateDict"); err != nil {
		return err
	}
	defer s.busy.leave()
	err := s.set(ctx, ranks.Ask{Call: "LoadStateDict", Detail: fromRank(root)}, nil, root, params)
	if err == nil {
		s.life.updates.clear()
		s.saver.Rebase()
	}
	return err
}

// set agrees with the other ranks on request r, and then gives the model the values that the root
// has in params.
func (s *Sharded) set(ctx context.Context, r ranks.Ask, err error, root int, params map[string]*tensor.Dense) error {
	if err == nil {
		err = s.checkReplace("LoadStateDict", nil)
	}
	st := s.store(r, err)
	plan, err := st.PlanSet(ctx, root, func(list []state.Tensor) error { return fits(s.layout, s.cfg.Precision.wide(), list, params) }, func(name string) []byte {
		if params[name] == nil {
			return nil
		}
		v, _ := exec.FromTensor(params[name]) // fits has seen it
		return v.Bytes
	})
	if err != nil {
		return st.end(err)
	}
	defer plan.Close()
	if err := s.discard(ctx, s.life.takeLast()); err != nil { // its gathers may read parameters that will change
		return err
	}
	s.life.frozen.changes++
	return st.end(plan.Run(ctx))
}

// fits returns an error if values do not fit the tensors of the model.
func fits(l *layout.Layout, dtype DType, list []state.Tensor, params map[string]*tensor.Dense) error {
	left := maps.Clone(params)
	for i := range list {
		want := &list[i]
		name := want.Name()
		t, ok := left[name]
		if !ok {
			continue
		}
		delete(left, name)
		v, err := exec.FromTensor(t)
		if err != nil {
			return fmt.Errorf("parameter %s: %w", name, err)
		}
		if v.DType != dtype.tensor() || !slices.Equal(state.Squeezed(v.Shape), state.Squeezed(want.Shape)) {
			return fmt.Errorf("parameter %s is %v %v, got %v %v", name, dtype, want.Shape, v.DType, v.Shape)
		}
	}
	if len(left) == 0 {
		return nil
	}
	name := slices.Min(slices.Collect(maps.Keys(left)))
	if _, ok := l.Model.Index[name]; ok {
		return fmt.Errorf("parameter %s belongs to a unit with its own process group, so its values differ between ranks: use the names that StateDict returns", name)
	}
	return unknown(l, name)
}

// LoadOptimStateDict gives the optimizers of all ranks the full state that rank root has; it
// ignores full on other ranks. The state comes from [Sharded.OptimStateDict] or from another
// program, made by any number of ranks, in float32 or float64. It works tensor by tensor, so that
// ranks other than root need memory for at most two.
//
// State that does not fit is a *StateError on every rank, which names all mismatches, and changes
// nothing. Rename, AllowMissing and AllowExtra of the options make exceptions, by names such as
// "exp_avg:wte.weight". The entries of one parameter are present together or not at all. If they
// may be missing, the optimizer keeps its current ones. Another kind of optimizer in full.Groups is
// an error, too. Other settings are a warning, and RestoreHyperparameters takes them. full.Extra is
// not sent: the caller sends it to other ranks if they need it.
//
// If an optimizer refuses state that fits, which optimizers of package optim do not, the model is
// unusable until a LoadOptimStateDict, Load or Import succeeds.
func (s *Sharded) LoadOptimStateDict(ctx context.Context, root int, opt optim.Optimizer, full *optim.FullState, opts *LoadOptions) error {
	if err := s.busy.enter("LoadOptimStateDict"); err != nil {
		return err
	}
	defer s.busy.leave()
	st := s.store(ranks.Ask{Call: "LoadOptimStateDict", Detail: fromRank(root)}, s.checkOptim("LoadOptimStateDict", opt))
	plan, err := st.PlanSetOptim(ctx, root, opt, full, opts.inMemory(ctx))
	if err != nil {
		return st.end(err)
	}
	defer plan.Close()
	if err := st.end(plan.Run(ctx)); err != nil {
		s.life.mixed = fmt.Errorf("%w: %w", errOptimMixed, err)
		s.life.markMixedOpt("a LoadOptimStateDict", s.lists)
		return err
	}
	s.life.markWholeOpt()
	st.differ(plan.Differ)
	return nil
}

// CopyState copies a training to a model of the same kind that other ranks have: the number of
// ranks changes between two steps, without a checkpoint. Ranks that stay give both models and both
// optimizers. A rank that leaves gives to and next as nil, and a rank that joins gives from and opt
// as nil. All ranks of both groups call it, and at least one rank is in both.
//
//	to, err := fsdp.Wrap(model, fsdp.Config{Group: group}) // of the new ranks
//	next, err := optim.AdamW{}.New(to.Params())
//	err = fsdp.CopyState(ctx, from, to, opt, next)
//	err = from.Close()
//
// It copies parameters and buffers, the state and the settings of the optimizer, and the count that
// keys dropout. Strategies, units and precisions may differ, as for [Sharded.Load]. A tensor is
// whole on one rank for a moment, and that rank needs memory for about four of the largest. A rank
// that stays has both models and both optimizers in memory until from is closed, which no [Plan]
// counts. It keeps its own buffers, and a rank that joins gets the buffers of a rank that stays.
// The optimizers are nil on all ranks if only the model is copied. Gradients are not copied, nor
// the rounding errors of gradients that travel as [Int8]: call CopyState after Step and ZeroGrad.
//
// With [Config.VirtualRanks] the training continues with the same bits as if its ranks had not
// changed. Positions of loaders and state of a monitor or a loss scaler are the program's: give
// them to the ranks that join.
//
// The old training does not change. After an error it may continue, unless the error is that of a
// lost rank. A new model that is copied in part refuses to compute until a CopyState, Load or
// Import succeeds.
func CopyState(ctx context.Context, from, to *Sharded, opt, next optim.Optimizer) (err error) {
	if from == nil && to == nil || from == to {
		return errors.New("fsdp: CopyState: this rank gives no model, or one model twice: give from if the rank was in the old group, to if it is in the new one")
	}
	const call = "CopyState"
	asking := func(opt optim.Optimizer) ranks.Ask {
		q := ranks.Ask{Call: call}
		if opt != nil {
			q.Detail = " with an optimizer"
		}
		return q
	}
	var old, here *store // of the two groups
	var src, dst *state.Store
	var about state.Meta
	if from != nil {
		if err := from.busy.enter(call); err != nil {
			return err
		}
		defer from.busy.leave()
		old = from.store(asking(opt), from.checkOptim(call, opt))
		src, about = &old.Store, state.Meta{Run: from.saver.Name(), Forwards: from.forwards}
	}
	if to != nil {
		if err := to.busy.enter(call); err != nil {
			return err
		}
		defer to.busy.leave()
		here = to.store(asking(next), to.checkReplace("Load", next))
		dst = &here.Store
	}
	plan, err := state.PlanCopy(ctx, src, dst, opt, next, &about)
	if err != nil {
		return cmp.Or(old, here).end(err)
	}
	defer plan.Close()
	if to == nil {
		return old.end(plan.Run(ctx))
	}
	if err := here.replace(ctx, "a CopyState", plan); err != nil {
		return err
	}
	to.forwards = plan.About.Forwards
	if plan.About.Run != "" {
		to.saver.Took(&plan.About)
	}
	to.hashes.At(plan.Step())
	return nil
}

// Export writes the whole parameters and buffers to one file in the format safetensors, which
// Python and [Sharded.Import] read. Rank 0 writes them as they arrive, in the order of the model,
// and needs memory for about two of them; the other ranks need none. The path is rank 0's. The new
// file replaces an old one when all of it is on disk. Before that, and after an error, which every
// rank returns, the old file remains. An Export that was killed leaves a file named after the path,
// which the next Export to that path removes.
//
// Rename, Transpose, Concat and Exclude of the options give names and layouts, DType the type.
// Values that are NaN, infinite or beyond the range of that type are an error, see AllowNotFinite.
// Optimizer adds the state of an optimizer, with names such as "exp_avg:wte.weight", transposed as
// its parameter is. Metadata adds text. MaxFileSize and ExtraFiles write more files: they replace
// old files one after the other when all are on disk, the index last. Parameters of units with
// separate groups are named as in [Sharded.StateDict].
//
// Buffers are rank 0's. If they differ between ranks that is a warning, see AverageBuffers.
// Replicas of parameters that have diverged are an error, as in [Sharded.Save].
func (s *Sharded) Export(ctx context.Context, path string, opts *ExportOptions) error {
	if err := s.busy.enter("Export"); err != nil {
		return err
	}
	defer s.busy.leave()
	defer phase.Begin("fsdp: exporting to "+path, 0).End()
	o := opts.state(ctx)
	st := s.store(ranks.Ask{Call: "Export"}, s.checkOptim("Export", o.Optimizer))
	return st.end(st.Export(ctx, path, o))
}

// Import gives parameters and buffers the values in a file of the format safetensors, or in all
// files of an index, whose name ends in ".index.json". [Sharded.Export] or another program wrote
// them. Every rank opens the file and reads only the parts that it owns or, for a matrix that is
// transposed in the file, the range that covers them. Any float type is converted to the type of
// the computation.
//
// Rename, Transpose and Concat of the options say how the model's parameters appear in the file.
// Names, shapes and types are checked first. Any mismatch is a *StateError on every rank, which
// names all of them, and changes nothing; AllowMissing and AllowExtra make exceptions. A later
// error, such as a NaN that AllowNotFinite does not accept, leaves the model with a part of the
// values. The model then refuses passes, steps and Save until an Import or Load succeeds, and the
// optimizer until one with it does.
//
// Optimizer also reads the state of an optimizer, written by an Export with that option.
// Without it such state is ignored. Its settings are compared as in [Sharded.Load]. The entries of
// one parameter are present together or not at all. If they may be missing, the optimizer keeps its
// current ones. In the file the number of its steps has the name "optimizer".
//
// Buffers of all ranks get the values of the file. Import drops the gradients, and a Forward that
// waits for its Backward. It fails while a pass is put aside by Hold.
func (s *Sharded) Import(ctx context.Context, path string, opts *ImportOptions) error {
	if err := s.busy.enter("Import"); err != nil {
		return err
	}
	defer s.busy.leave()
	defer phase.Begin("fsdp: importing "+path, 0).End()
	o := opts.state(ctx)
	st := s.store(ranks.Ask{Call: "Import"}, s.checkReplace("Import", o.Optimizer))
	f, err := st.PlanImport(ctx, path, o)
	if err != nil {
		return st.end(err)
	}
	err = st.replace(ctx, "an Import of "+path, f)
	if err == nil {
		st.differ(f.Differ)
	}
	return errors.Join(err, st.end(f.Close()))
}

// known returns an error that names the first name that the model does not have.
func known(l *layout.Layout, names []string) error {
	for _, name := range names {
		if _, ok := l.Model.Index[name]; !ok {
			return unknown(l, name)
		}
	}
	return nil
}

// unknown returns the error for a name that the model does not have. It lists some of the model's
// names.
func unknown(l *layout.Layout, name string) error {
	return fmt.Errorf("the model has no parameter %q: its parameters are %v", name, some(slices.Sorted(maps.Keys(l.Model.Index))))
}

// AverageBuffers gives every buffer the mean of its values on all ranks. Call it before evaluating
// or saving: ranks have collected these statistics from their own batches.
func (s *Sharded) AverageBuffers(ctx context.Context) error {
	if err := s.busy.enter("AverageBuffers"); err != nil {
		return err
	}
	defer s.busy.leave()
	if err := s.agree(ctx, ranks.Ask{Call: "AverageBuffers"}, s.checkCall("AverageBuffers")); err != nil {
		return err
	}
	for i, g := range s.layout.Groups {
		if !g.Kind.Buffer {
			continue
		}
		if err := s.engine.Shards().Average(ctx, i); err != nil {
			return s.end(s.team.Fail(fmt.Errorf("AverageBuffers: group %s: %w", g.Name, err)))
		}
	}
	return nil
}
