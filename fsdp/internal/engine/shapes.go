package engine

import (
	"errors"
	"fmt"
	"slices"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/program"
	"github.com/gofsdp/gofsdp/shard"
)

// shapes compiles the forward of every call of the pass in turn, which gives the shapes of its
// outputs.
func (e *Engine) shapes(c *Compiled) ([][]exec.Input, error) {
	outs := make([][]exec.Input, len(c.Model.Calls))
	for i, need := range c.Model.NeedsForward(c.Model.Ends(c.Eval)) {
		if !need {
			continue
		}
		sig := e.signature(c, i)
		for j, r := range c.Model.Calls[i].In {
			if r.Call != program.Batch && r.Out >= len(outs[r.Call]) {
				return nil, fmt.Errorf("call %s: input %d is output %d of call %s, which has only %d",
					c.Model.Calls[i].Name, j, r.Out, c.Model.Calls[r.Call].Name, len(outs[r.Call]))
			}
			sig.Inputs = append(sig.Inputs, c.input(outs, i, j))
		}
		u, err := e.unit(c, i, sig)
		if err != nil {
			return nil, err
		}
		c.Calls[i].Unit = u
		for o, shape := range u.OutShape {
			outs[i] = append(outs[i], exec.Input{Shape: shape, DType: u.DType, Half: u.OutHalf[o]})
		}
	}
	return outs, c.checkResults(outs)
}

// signature describes a call to the compiler, without its inputs.
func (e *Engine) signature(c *Compiled, call int) *exec.Signature {
	sig := &exec.Signature{DType: e.o.DType, Half: e.module(c, call).Half, Threads: e.dev.Threads(), Apart: e.dev.Apart()}
	params := c.Model.Calls[call].Params
	for j, p := range params {
		if e.layout.Groups[e.layout.Home[p].Group].Read.Size() != 2 {
			continue
		}
		if sig.HalfParam == nil {
			sig.HalfParam = make([]bool, len(params))
		}
		sig.HalfParam[j] = true
	}
	return sig
}

// module returns the module of a call.
func (e *Engine) module(c *Compiled, call int) *Module {
	return &e.o.Modules[c.Path.Calls[call].Module]
}

// input describes input j of a call to the compiler, without its gradient.
func (c *Compiled) input(outs [][]exec.Input, call, j int) (v exec.Input) {
	in := c.Model.Calls[call].In
	if r := in[j]; r.Call == program.Batch {
		v.Shape, v.DType = c.Inputs[r.Out].Shape, c.Inputs[r.Out].DType
	} else {
		v = outs[r.Call][r.Out]
	}
	v.Same = slices.Index(in[:j], in[j]) + 1
	return v
}

// checkResults checks that the results exist and that the loss is one number.
func (c *Compiled) checkResults(outs [][]exec.Input) error {
	results := c.Model.Ends(c.Eval)
	for i, r := range results {
		if r.Call != program.None && r.Out >= len(outs[r.Call]) {
			return fmt.Errorf("result %d is output %d of call %s, which has only %d", i, r.Out, c.Model.Calls[r.Call].Name, len(outs[r.Call]))
		}
	}
	if c.Eval {
		return nil
	}
	if loss := outs[results[0].Call][results[0].Out]; exec.Numel(loss.Shape) != 1 {
		return fmt.Errorf("the loss, output %d of call %s, has shape %v: it must be a single number",
			results[0].Out, c.Model.Calls[results[0].Call].Name, tensor.Shape(loss.Shape))
	}
	return nil
}

// unit returns the program of a call.
func (e *Engine) unit(c *Compiled, call int, sig *exec.Signature) (*exec.Unit, error) {
	m := e.module(c, call)
	u, err := exec.Shared.Unit(m.Key, m.Spec, sig)
	if err != nil {
		return nil, fmt.Errorf("call %s (%T): %w", c.Path.Calls[call].Name, m.Key, err)
	}
	return u, nil
}

// compileTraining compiles forward and backward of the calls that need both, and finds the needs of
// the pass.
func (e *Engine) compileTraining(c *Compiled, shapes [][]exec.Input) error {
	c.Reads = make([][]bool, len(c.Model.Calls))
	e.widenRepeated(c)
	if err := e.compileBackward(c, shapes); err != nil {
		return err
	}
	if e.widenLarge(c) {
		if err := e.compileBackward(c, shapes); err != nil {
			return err
		}
	}
	if c.Path.Varies() {
		return e.varying(c, shapes)
	}
	return nil
}

// compileBackward compiles forward and backward of the calls that need both, for the types of
// gradients in c.GradType.
func (e *Engine) compileBackward(c *Compiled, shapes [][]exec.Input) error {
	firsts, back, trained := c.Model.First(), c.Model.NeedsBackward(), c.Model.Trained()
	grads := gradients(c.Model, back, trained)
	written := make(map[program.Ref]bool) // gradients that an earlier backward has written
	for i := len(back) - 1; i >= 0; i-- {
		if !back[i] {
			continue
		}
		sig := e.signature(c, i)
		sig.GradOut, sig.Save = grads.used(i, len(shapes[i])), e.o.Save[i]
		for j, r := range c.Model.Calls[i].In {
			in := c.input(shapes, i, j)
			if r.Call != program.Batch {
				in.Grad = trained[r.Call] && in.Same == 0
				in.Acc = in.Grad && written[r]
				written[r] = true
			}
			sig.Inputs = append(sig.Inputs, in)
		}
		for j, p := range c.Model.Calls[i].Params {
			sig.AccParam = append(sig.AccParam, c.Pending || !firsts[i][j])
			sig.FrozenParam = append(sig.FrozenParam, e.frozen(p))
			sig.HalfGrad = append(sig.HalfGrad, c.GradType[e.layout.Home[p].Group] == comm.BFloat16)
		}
		u, err := e.unit(c, i, sig)
		if err != nil {
			return err
		}
		c.Calls[i].Unit, c.Reads[i] = u, u.ReadParam
		for j, p := range c.Model.Calls[i].Params {
			c.Wrote[p] = c.Wrote[p] || u.HasGrad[j]
		}
	}
	return nil
}

// frozen reports whether a parameter is not trained.
func (e *Engine) frozen(param int) bool {
	return e.layout.Groups[e.layout.Home[param].Group].Kind.Frozen
}

// outputs are some outputs of calls.
type outputs map[program.Ref]bool

// gradients returns the outputs that receive a gradient.
func gradients(m *program.Model, back, trained []bool) outputs {
	grads := make(outputs)
	for _, loss := range m.Ends(false) {
		grads[loss] = true
	}
	for i, call := range m.Calls {
		for _, r := range call.In {
			if back[i] && r.Call != program.Batch && trained[r.Call] {
				grads[r] = true
			}
		}
	}
	return grads
}

// used reports which of the n outputs of a call are among them.
func (s outputs) used(call, n int) []bool {
	is := make([]bool, n)
	for o := range is {
		is[o] = s[program.Ref{Call: call, Out: o}]
	}
	return is
}

// varying replaces the needs of the pass by the needs of all ranks together, for any absent calls.
// For calls that every pass runs, these are the needs with a gradient for each input and for each
// output that has one in some pass. Nothing is known of the other calls: they are assumed to read
// all their parameters, and to have gradients for all.
func (e *Engine) varying(c *Compiled, shapes [][]exec.Input) error {
	all := e.layout.Entries[c.Program]
	certain, back, trained := c.Path.Certain(), all.NeedsBackward(), all.Trained()
	grads := gradients(all, back, trained)
	c.Reads = make([][]bool, len(all.Calls))
	for i, call := range all.Calls {
		if !back[i] {
			continue
		}
		has := slices.Repeat([]bool{true}, len(call.Params))
		if certain[i] {
			sig := e.signature(c, i)
			sig.GradOut, sig.Save = grads.used(i, len(shapes[i])), e.o.Save[i]
			for j, r := range c.Path.Calls[i].In {
				in, refs := c.input(shapes, i, j), c.Path.Calls[i].In
				in.Same = slices.Index(refs[:j], r) + 1 // for any values of the choices
				in.Grad = in.Same == 0 && slices.ContainsFunc(c.Path.Alternatives(r), func(r program.Ref) bool {
					return r.Call != program.Batch && trained[r.Call]
				})
				sig.Inputs = append(sig.Inputs, in)
			}
			for _, p := range call.Params {
				sig.FrozenParam = append(sig.FrozenParam, e.frozen(p))
			}
			u, err := e.unit(c, i, sig)
			if err != nil {
				return err
			}
			c.Reads[i], has = u.ReadParam, u.HasGrad
		}
		for j, p := range call.Params {
			c.Grad[p] = c.Grad[p] || has[j] && !e.frozen(p)
		}
	}
	for p, word := range e.layout.Votes.Of {
		if word >= 0 && c.Wrote[p] {
			c.votes = append(c.votes, word)
		}
	}
	return nil
}

// sizes returns the bytes that the planner needs.
func (e *Engine) sizes(c *Compiled) (*program.Sizes, error) {
	z := &program.Sizes{Group: e.groupSizes(c)}
	trained, es := c.Model.Trained(), int(e.o.DType.Size())
	var refused refusals
	for i, call := range c.Model.Calls {
		u := c.Calls[i].Unit
		if u == nil {
			z.Call = append(z.Call, program.CallSizes{})
			continue
		}
		cs := program.CallSizes{KeepIn: u.KeepIn, KeepOut: u.KeepOut, Saved: u.Saved, Spill: !c.Eval && e.o.Spill[i]}
		if err := e.work(u, &cs); errors.Is(err, errors.ErrUnsupported) {
			refused.add(fmt.Sprintf("call %s (%T)", c.Path.Calls[i].Name, e.module(c, i).Key), err)
		} else if err != nil {
			return nil, fmt.Errorf("call %s (%T): %w", c.Path.Calls[i].Name, e.module(c, i).Key, err)
		}
		for _, update := range u.Updates {
			if !c.Eval {
				cs.Update = append(cs.Update, exec.Numel(update.Shape)*es)
				cs.KeepUpdate = append(cs.KeepUpdate, u.ReadParam[update.Param])
			}
		}
		for o := range u.OutShape {
			cs.Out = append(cs.Out, outBytes(u, o))
		}
		cs.GradIn = make([]int, len(call.In))
		if u.Backward != nil {
			for j, r := range call.In {
				if r.Call != program.Batch && trained[r.Call] {
					cs.GradIn[j] = outBytes(c.Calls[r.Call].Unit, r.Out)
				}
			}
		}
		z.Call = append(z.Call, cs)
	}
	return z, refused.err()
}

// work sets the scratch memory of a call.
func (e *Engine) work(u *exec.Unit, cs *program.CallSizes) (err error) {
	if cs.Work, err = e.dev.Work(u.Forward); err == nil && u.Backward != nil {
		cs.BackWork, err = e.dev.Work(u.Backward)
	}
	return err
}

// refusals are the calls that a device cannot run, by the reason.
type refusals []refusal

type refusal struct {
	call string // the first
	more int    // calls with the same reason
	err  error
}

// add adds a call. Calls of one kind of layer have one reason.
func (r *refusals) add(call string, err error) {
	for i := range *r {
		if old := &(*r)[i]; old.err.Error() == err.Error() {
			old.more++
			return
		}
	}
	*r = append(*r, refusal{call, 0, err})
}

// err returns an error that names all reasons, or nil.
func (r refusals) err() error {
	var errs []error
	for _, f := range r {
		if f.more > 0 {
			f.call = fmt.Sprintf("%s and %d more calls", f.call, f.more)
		}
		errs = append(errs, fmt.Errorf("%s: %w", f.call, f.err))
	}
	return errors.Join(errs...)
}

// outBytes returns the size of an output of a call, and of its gradient.
func outBytes(u *exec.Unit, o int) int {
	size := int(u.DType.Size())
	if u.OutHalf[o] {
		size = comm.BFloat16.Size()
	}
	return exec.Numel(u.OutShape[o]) * size
}

// bind looks up the buffers of every operand, so that running a pass needs no maps.
func (e *Engine) bind(c *Compiled) {
	for g := range e.layout.Groups {
		c.Params = append(c.Params, c.Plan.Lookup(program.GroupParams, g, 0))
		c.Grads = append(c.Grads, c.Plan.Lookup(program.GroupGrads, g, 0))
		c.Second = append(c.Second, c.Plan.Lookup(program.GroupSecond, g, 0))
		c.Zero = append(c.Zero, e.unwritten(c, g))
	}
	loss := c.Model.Results[0]
	c.Loss, c.Seed = c.Plan.Lookup(program.CallOut, loss.Call, loss.Out), c.Plan.Lookup(program.CallGradOut, loss.Call, loss.Out)
	for i := range c.Calls {
		call, b := c.Model.Calls[i], &c.Calls[i]
		if b.Unit == nil {
			continue
		}
		for _, r := range call.In {
			if r.Call == program.Batch {
				b.In, b.GradIn = append(b.In, ^r.Out), append(b.GradIn, -1)
				continue
			}
			b.In = append(b.In, c.Plan.Lookup(program.CallOut, r.Call, r.Out))
			b.GradIn = append(b.GradIn, c.Plan.Lookup(program.CallGradOut, r.Call, r.Out))
		}
		for o := range b.Unit.OutShape {
			b.Out = append(b.Out, c.Plan.Lookup(program.CallOut, i, o))
			b.GradOut = append(b.GradOut, c.Plan.Lookup(program.CallGradOut, i, o))
		}
		b.Saved = c.Plan.Lookup(program.CallSaved, i, 0)
		for k := range b.Unit.Updates {
			b.Update = append(b.Update, c.Plan.Lookup(program.CallUpdate, i, k))
		}
	}
}

// unwritten returns the ranges of a group's full gradients that no backward writes: padding, and
// parameters that the loss does not depend on; all, if the pass computes nothing. They are set to
// zero before the reduction.
func (e *Engine) unwritten(c *Compiled, g int) []shard.Span {
	f := &e.layout.Groups[g]
	es := c.GradType[g].Size()
	if c.Absent {
		return []shard.Span{{Start: 0, End: f.Flat.Len() * es}}
	}
	var zero []shard.Span
	for _, p := range f.Flat.Padding() {
		zero = append(zero, shard.Span{Start: p.Start * es, End: p.End * es})
	}
	for i, p := range f.Params {
		if !c.Wrote[p] {
			lo := f.Flat.Offset(i) * es
			zero = append(zero, shard.Span{Start: lo, End: lo + f.Flat.Params()[i].Len()*es})
		}
	}
	return zero
}
