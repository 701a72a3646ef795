package engine

import (
	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/program"
)

// # The types of full gradients
//
// The full gradients of a group are float32, or float64, like its shard. Gradients that travel in
// fewer bits are rounded when they are sent. If they travel in bfloat16, backward rounds them
// instead, so that their buffer takes half the memory. The bits are the same, because only
// gradients that are complete are rounded. So these groups stay float32:
//
//   - in a pass inside NoSync, or after one, where passes add to the gradients
//   - with virtual ranks: passes of all numbers of ranks then run the same kernels. A GPU sums the
//     gradient of a bias in the product of its weight only if both are float32
//   - with a parameter that several calls of the pass use, which add their gradients
//   - with a parameter whose gradient Pass.Shares may scale
//   - with a large gradient that no kernel rounds: it takes scratch memory in float32
//
// Int8 and Float16 are not written: a block has one scale for several elements, and Float16 needs
// Options.Before.

// gradTypes returns the types of the full gradients, by group, for passes of a variant. Groups may
// have to be widened for the calls of a pass.
func (e *Engine) gradTypes(v Variant) []comm.DType {
	types := make([]comm.DType, len(e.layout.Groups))
	for g := range types {
		f := &e.layout.Groups[g]
		types[g] = f.Compute
		if f.Reduce == comm.BFloat16 && !f.Kind.Frozen && !v.Eval && !v.NoSync && !v.Pending && e.o.Leaves == 0 {
			types[g] = comm.BFloat16
		}
	}
	for p, word := range e.layout.Votes.Of {
		if word >= 0 {
			e.widen(types, p)
		}
	}
	return types
}

// widen gives the gradients of a parameter's group the type of its shard. It reports whether the
// type has changed.
func (e *Engine) widen(types []comm.DType, param int) bool {
	g := e.layout.Home[param].Group
	before := types[g]
	types[g] = e.layout.Groups[g].Compute
	return types[g] != before
}

// widenRepeated widens the gradients of groups with a parameter that several calls of the pass use.
func (e *Engine) widenRepeated(c *Compiled) {
	for i, firsts := range c.Model.First() {
		for j, first := range firsts {
			if !first {
				e.widen(c.GradType, c.Model.Calls[i].Params[j])
			}
		}
	}
}

// widenLarge widens the gradients of groups in which a gradient that no kernel rounds has at least
// half of the elements: they take less memory in float32. It reports whether there are any.
func (e *Engine) widenLarge(c *Compiled) (changed bool) {
	for i := range c.Calls {
		u := c.Calls[i].Unit
		if u == nil {
			continue
		}
		for j, p := range c.Model.Calls[i].Params {
			at := e.layout.Home[p]
			flat := e.layout.Groups[at.Group].Flat
			if u.WideGrad[j] && 2*flat.Params()[at.Index].Len() >= flat.Len() {
				changed = e.widen(c.GradType, p) || changed
			}
		}
	}
	return changed
}

// groupSizes returns the bytes of the full buffers of every group in a pass.
func (e *Engine) groupSizes(c *Compiled) []program.GroupSizes {
	sizes := e.layout.Sizes()
	for g, t := range c.GradType {
		sizes[g].Grads = e.layout.Groups[g].Flat.Len() * t.Size()
		if e.o.Passes > 0 && !e.layout.Groups[g].Kind.Frozen {
			room, reduce, sync := e.dev.SumWork(&e.layout.Groups[g], c.Leafwise)
			sizes[g].Grads += room
			sizes[g].ReduceWork, sizes[g].SyncWork = reduce, sync
		}
	}
	return sizes
}
