package fsdp

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/exec"
)

// FullGrads returns the whole gradients by name, on every rank, under the plain names of the model. Those that have no
// gradient are not in it, and of units with groups of their own it has this rank's. It gathers one group at a time.
func (s *Sharded) FullGrads(ctx context.Context) (map[string]*tensor.Dense, error) {
	err := s.err
	if err == nil {
		err = s.pending.reduced()
	}
	all := make(map[string]*tensor.Dense)
	err = s.gatherEach(ctx, ranks.Ask{Call: "FullGrads"}, err, s.trained(), func(g *flatGroup) *arena.Block { return g.grad },
		func(name string, v exec.Value) { all[name] = v.Tensor().Clone().(*tensor.Dense) })
	for p, q := range s.trace.params {
		if !s.present[p] {
			delete(all, q.Name)
		}
	}
	return all, err
}

// Full calls f with the whole values of the parameters and buffers of these names, all if there are none, on every rank. With
// WriteBack, what f has changed on that rank becomes their value on all; otherwise changes are lost. It fails on every rank,
// and changes nothing, if f fails on any. f must not call collective methods of s. WriteBack discards a Forward that waits
// for its Backward, and is refused while Hold has put one aside.
func (s *Sharded) Full(ctx context.Context, names []string, f func(params map[string]*tensor.Dense) error, opts ...FullOption) error {
	o := fullOptions{root: everywhere}
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	err := s.err
	if err == nil {
		err = s.known(names)
	}
	if err == nil && o.write && (o.root < 0 || o.root >= s.cfg.Group.Size()) {
		err = fmt.Errorf("WriteBack(%d): there are %d ranks", o.root, s.cfg.Group.Size())
	}
	want := func(name string) bool { return len(names) == 0 || slices.Contains(names, name) }
	var groups []*flatGroup
	for _, g := range s.groups {
		if slices.ContainsFunc(g.Params, func(p int) bool { return want(s.trace.params[p].Name) }) {
			groups = append(groups, g)
		}
	}
	params := make(map[string]*tensor.Dense)
	r := ranks.Ask{Call: "Full", Detail: writeBack(o.root), Schedule: textHash(names)}
	err = s.gatherEach(ctx, r, err, groups,
		func(g *flatGroup) *arena.Block { return g.value },
		func(name string, v exec.Value) {
			if want(name) {
				params[name] = v.Tensor().Clone().(*tensor.Dense)
			}
		})
	if err != nil {
		return err
	}
	err = ranks.Guarded(func() error { return f(params) })
	if !o.write {
		return s.agree(ctx, r, err)
	}
	for name := range params {
		if err == nil && !want(name) {
			err = fmt.Errorf("the function has added parameter %q, which was not asked for", name)
		}
	}
	return s.set(ctx, r, err, o.root, params)
}

// A FullOption changes Full.
type FullOption func(*fullOptions)

type fullOptions struct {
	root  int
	write bool
}

// WriteBack makes the values that the rank has when the function returns those of all.
func WriteBack(rank int) FullOption {
	return func(o *fullOptions) { *o = fullOptions{root: rank, write: true} }
}

// SetFull gives parameters and buffers the values that rank root has in params, such as weights that only that rank has
// loaded; on other ranks params is not looked at. It goes parameter by parameter, so that no rank but root needs memory for
// all. Names that the model does not have, other shapes and other types are an error on every rank, and change nothing;
// parameters that are missing in params keep their value. Names are those of [Sharded.FullState], whose result it takes. A Forward
// that waits for its Backward is discarded; while Hold has put one aside SetFull fails.
func (s *Sharded) SetFull(ctx context.Context, root int, params map[string]*tensor.Dense) error {
	err := s.err
	if err == nil && (root < 0 || root >= s.cfg.Group.Size()) {
		err = fmt.Errorf("rank %d is not one of the %d ranks", root, s.cfg.Group.Size())
	}
	return s.set(ctx, ranks.Ask{Call: "SetFull", Detail: fromRank(root)}, err, root, params)
}

// set agrees to r and gives the model root's params.
func (s *Sharded) set(ctx context.Context, r ranks.Ask, err error, root int, params map[string]*tensor.Dense) error {
	if err == nil {
		err = s.noneHeld()
	}
	if err := s.agree(ctx, r, err); err != nil {
		return err
	}
	holdings := s.holdings()
	list := s.values(holdings)
	if s.cfg.Group.Rank() == root {
		err = s.fits(list, params)
	}
	var block *arena.Block
	if err == nil {
		largest := 0
		for _, p := range s.trace.params {
			largest = max(largest, p.Len()*s.cfg.Precision.Compute.size())
		}
		block, err = s.arena.Alloc(largest, arena.Gathered)
	}
	defer func() {
		if s.err == nil { // after a failure buffers stay where they are
			s.arena.Free(block)
		}
	}()
	if err := s.agree(ctx, r, err); err != nil {
		return err
	}
	if err := s.discardLast(ctx); err != nil { // gathers for its backward may be reading what is about to change
		return err
	}
	if err := s.store(ctx, list, holdings, root, params, block); err != nil {
		return s.broken(fmt.Errorf("%s: %w", r.Call, err))
	}
	return nil
}

// store broadcasts root's params, one after the other into the block, and keeps what this rank owns of each.
func (s *Sharded) store(ctx context.Context, list []stateTensor, holdings []holding, root int, params map[string]*tensor.Dense, block *arena.Block) error {
	me := s.cfg.Group.Rank()
	has := make([]uint8, len(list))
	for i := range list {
		has[i] = uint8(0)
		if me == root && params[list[i].Name()] != nil {
			has[i] = 1
		}
	}
	if err := s.cfg.Group.Broadcast(comm.Of(has).Named("names"), root).Wait(ctx); err != nil {
		return err
	}
	for i := range list {
		t := &list[i]
		if has[i] == 0 {
			continue
		}
		home := s.layout.Home[t.param]
		g := s.groups[home.Group]
		b := block.Data[:t.len()*g.Compute.Size()]
		if me == root {
			v, _ := exec.FromTensor(params[t.Name()]) // fits has seen it
			copy(b, v.Bytes)
		}
		if err := s.cfg.Group.Broadcast(g.buffer(b, g.Compute).Named(t.Name()), root).Wait(ctx); err != nil {
			return fmt.Errorf("parameter %s: %w", t.Name(), err)
		}
		if holdings[home.Group].has(me, t.Owner) {
			g.take(g.value.Data, home.Index, b)
		}
	}
	return nil
}

// fits tells what is wrong with values for the tensors of the model.
func (s *Sharded) fits(list []stateTensor, params map[string]*tensor.Dense) error {
	if err := distinct(list, (*stateTensor).Name); err != nil {
		return err
	}
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
		if v.DType != s.cfg.Precision.Compute.tensor() || !slices.Equal(squeezed(v.Shape), squeezed(want.shape)) {
			return fmt.Errorf("parameter %s is %v %v, got %v %v", name, s.cfg.Precision.Compute, want.shape, v.DType, v.Shape)
		}
	}
	if len(left) == 0 {
		return nil
	}
	name := slices.Min(slices.Collect(maps.Keys(left)))
	if _, ok := s.trace.byName[name]; ok {
		return fmt.Errorf("parameter %s belongs to a unit with a process group of its own: its values differ from rank to rank, and have the names of FullState", name)
	}
	return fmt.Errorf("the model has no parameter %q", name)
}

// squeezed returns shape without dimensions of 1: a scalar comes back as a tensor of one element.
func squeezed(shape []int) []int {
	return slices.DeleteFunc(slices.Clone(shape), func(d int) bool { return d == 1 })
}

// known returns an error that names the first name that the model does not have.
func (s *Sharded) known(names []string) error {
	for _, name := range names {
		if _, ok := s.trace.byName[name]; !ok {
			return fmt.Errorf("the model has no parameter %q", name)
		}
	}
	return nil
}

// AverageBuffers gives every buffer the mean of its values on all ranks: the statistics that ranks have collected from
// their own batches, before they are evaluated with or saved.
func (s *Sharded) AverageBuffers(ctx context.Context) error {
	if err := s.agree(ctx, ranks.Ask{Call: "AverageBuffers"}, s.err); err != nil {
		return err
	}
	for _, g := range s.groups {
		if !g.Kind.Buffer {
			continue
		}
		if err := g.mesh.Peers.AllReduce(g.buffer(g.value.Data, g.Compute), comm.Avg).Wait(ctx); err != nil {
			return s.broken(fmt.Errorf("AverageBuffers: group %s: %w", g.Name, err))
		}
	}
	return nil
}

// gatherEach agrees to r and calls f with every parameter of the groups, whole, one group at a time. The memory is f's until
// it returns.
func (s *Sharded) gatherEach(ctx context.Context, r ranks.Ask, err error, groups []*flatGroup, shard func(*flatGroup) *arena.Block, f func(name string, v exec.Value)) error {
	largest := 0
	for _, g := range groups {
		largest = max(largest, g.Bytes())
	}
	var block *arena.Block // while ranks can still say that they have no memory
	if err == nil {
		block, err = s.arena.Alloc(largest, arena.Gathered)
	}
	defer func() {
		if s.err == nil { // after a failure buffers stay where they are
			s.arena.Free(block)
		}
	}()
	if err := s.agree(ctx, r, err); err != nil {
		return err
	}
	for _, g := range groups {
		if err := g.gatherNow(ctx, block.Data, shard(g).Data); err != nil {
			return s.broken(err)
		}
		for i, p := range g.Flat.Params() {
			f(p.Name, exec.Value{Shape: p.Shape, DType: s.cfg.Precision.Compute.tensor(), Bytes: g.Param(block.Data, i)})
		}
	}
	return nil
}
