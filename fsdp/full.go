package fsdp

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/optim"
)

// FullState returns the whole parameters and buffers by name, on every rank or, with [OnlyOn], on one; the others get nil and
// need no memory for it. The tensors belong to the caller; a scalar comes as a tensor of shape (1).
//
// Parameters of units with groups of their own, which are others in every group, are named "experts.up@0", "experts.up@2": by
// the first rank of each group. Buffers are those of this rank.
func (s *Sharded) FullState(ctx context.Context, opts ...StateOption) (map[string]*tensor.Dense, error) {
	o, err := s.stateOptions(opts, "OnlyOn")
	if err == nil {
		err = s.usable()
	}
	r := ranks.Ask{Call: "FullState", Detail: onlyOn(o.root)}
	if err := s.agree(ctx, r, err); err != nil {
		return nil, err
	}
	c := s.collector(nil, o.root)
	list := s.values(c.holdings)
	if err := distinct(list, (*stateTensor).Name); err != nil {
		return nil, s.refused(r.Call, err)
	}
	all := make(map[string]*tensor.Dense, len(list))
	c.room = func(t *stateTensor) []byte {
		v := exec.Value{Shape: t.shape, DType: s.cfg.Precision.Compute.tensor()}
		v.Bytes = elementBytes(s.vec(v.Len()))
		all[t.Name()] = v.Tensor()
		return v.Bytes
	}
	if err := c.run(ctx, list); err != nil {
		return nil, err
	}
	if o.root != everywhere && o.root != s.cfg.Group.Rank() {
		return nil, nil
	}
	return all, nil
}

// FullOptimState returns the state of an optimizer of [Sharded.Shards] whole, by parameter name, as that of one process would be:
// on every rank or, with [OnlyOn], on one; the others get nil and need no memory for it. Every rank gives its optimizer. It fails
// on all ranks, and names parameter, ranks and counts, if those that share a parameter keep different entries for it or have
// made different numbers of updates.
//
// Names are those of [Sharded.FullState]. What [Extra] gives on a rank goes into the result there, as it is.
func (s *Sharded) FullOptimState(ctx context.Context, opt optim.Optimizer, opts ...StateOption) (*optim.FullState, error) {
	o, err := s.stateOptions(opts, "OnlyOn", "Extra")
	if err == nil {
		err = s.usableWith(opt)
	}
	var parts map[key][]byte
	if err == nil {
		parts, err = s.memoryWith(opt)
	}
	r := ranks.Ask{Call: "FullOptimState", Detail: onlyOn(o.root)}
	if err := s.agree(ctx, r, err); err != nil {
		return nil, err
	}
	c := s.collector(parts, o.root)
	all, err := s.exchange(ctx, s.inventory(opt))
	if err != nil {
		return nil, s.broken(fmt.Errorf("%s: %w", r.Call, err))
	}
	state, err := s.merge(all, c.holdings, true)
	if err == nil {
		err = distinct(state.tensors, (*stateTensor).Name)
	}
	if err != nil {
		return nil, s.refused(r.Call, err)
	}
	full := &optim.FullState{Steps: state.steps, Params: make(map[string]optim.FullParam), Extra: o.extra}
	c.room = func(t *stateTensor) []byte {
		v := s.vec(t.len())
		name := paramName(t)
		p, ok := full.Params[name]
		if !ok {
			p = optim.FullParam{Shape: slices.Clone(t.shape), Steps: t.steps, Entries: make(map[string]optim.Host)}
			full.Params[name] = p
		}
		p.Entries[t.Entry] = v
		return elementBytes(v)
	}
	if err := c.run(ctx, state.tensors); err != nil {
		return nil, err
	}
	if o.root != everywhere && o.root != s.cfg.Group.Rank() {
		return nil, nil
	}
	return full, nil
}

// collector returns a collector of what this rank has in parts, or of the values if that is nil.
func (s *Sharded) collector(parts map[key][]byte, root int) *collector {
	if parts == nil {
		parts, _ = s.memory(nil) // what the model itself has is always in order
	}
	return &collector{s: s, holdings: s.holdings(), parts: parts, root: root, ahead: inFlight}
}

// memoryWith returns the parts that this rank has of the values and of the optimizer's state.
func (s *Sharded) memoryWith(opt optim.Optimizer) (map[key][]byte, error) {
	if opt == nil {
		return nil, errors.New("the optimizer is nil")
	}
	return s.memory(opt)
}

// vec returns n elements in the type of the computation.
func (s *Sharded) vec(n int) optim.Host {
	if s.cfg.Precision.Compute == Float64 {
		return optim.Host{F64: make([]float64, n)}
	}
	return optim.Host{F32: make([]float32, n)}
}

// refused returns an error that all ranks return, with nothing changed.
func (s *Sharded) refused(call string, err error) error {
	return fmt.Errorf("fsdp: rank %d: %s: %w", s.cfg.Group.Rank(), call, err)
}

// paramName is the name of the parameter that an entry is about, as FullState has it.
func paramName(t *stateTensor) string {
	return checkpoint.Key{Param: t.Param, Owner: t.Owner}.Name()
}

// distinct returns an error if two tensors have one name: a parameter may be named as those of a group of the user's are, or as
// what an optimizer keeps for another.
func distinct(list []stateTensor, nameOf func(*stateTensor) string) error {
	seen := make(map[string]bool, len(list))
	for i := range list {
		name := nameOf(&list[i])
		if seen[name] {
			return fmt.Errorf("the state would have two tensors named %q: rename the parameter", name)
		}
		seen[name] = true
	}
	return nil
}
