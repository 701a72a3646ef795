package fsdp

import (
	"fmt"
	"slices"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/program"
)

// compiled is a pass compiled for one set of batch shapes: the plan with its buffers, the program of each call, and where
// each call finds its memory.
type compiled struct {
	eval   bool
	inputs []exec.Value // shapes and types of the batch; Bytes is nil
	plan   *program.Plan
	calls  []boundCall
	params []int    // by group: buffer of the full parameters, or -1
	grads  []int    // by group: buffer of the full gradients, or -1
	zero   [][]span // by group: bytes of the full gradients that no call writes
	loss   int      // buffer of the loss
	seed   int      // buffer of its gradient, or -1
}

// span is a range of bytes.
type span struct{ lo, hi int }

// boundCall is a call with its program and the buffers of its operands.
type boundCall struct {
	unit     *exec.Unit // nil if the pass does not run the call
	in, out  []int      // buffers; an input from the batch is ^i
	gradOut  []int      // buffers, or -1
	gradIn   []int      // buffers, or -1
	saved    int        // buffer, or -1
	bindings exec.Call  // slices of the right lengths, filled before each run
}

// maxCompiled bounds the number of batch shapes kept ready.
const maxCompiled = 64

// compiledFor returns the pass for a batch of these shapes, compiling it when they are new.
func (s *Sharded) compiledFor(eval bool, batch []exec.Value) (*compiled, error) {
	for i, c := range s.compiled {
		if c.eval == eval && c.matches(batch) {
			copy(s.compiled[1:i+1], s.compiled[:i]) // move to the front
			s.compiled[0] = c
			return c, nil
		}
	}
	c, err := s.compile(eval, batch)
	if err != nil {
		return nil, err
	}
	s.compiled = slices.Insert(s.compiled, 0, c)
	s.compiled = s.compiled[:min(len(s.compiled), maxCompiled)]
	return c, nil
}

func (c *compiled) matches(batch []exec.Value) bool {
	for i, v := range batch {
		if v.DType != c.inputs[i].DType || !slices.Equal(v.Shape, c.inputs[i].Shape) {
			return false
		}
	}
	return true
}

// shapeless returns batch without its memory.
func shapeless(batch []exec.Value) []exec.Value {
	out := slices.Clone(batch)
	for i := range out {
		out[i].Shape, out[i].Bytes = out[i].Shape.Clone(), nil
	}
	return out
}

// compile infers the shapes of all values, compiles every call and plans the buffers.
func (s *Sharded) compile(eval bool, batch []exec.Value) (*compiled, error) {
	prog := s.train
	if eval {
		prog = s.eval
	}
	c := &compiled{eval: eval, inputs: shapeless(batch), calls: make([]boundCall, len(s.model.Calls))}
	shapes, err := s.shapes(prog, c)
	if err != nil {
		return nil, err
	}
	if !eval {
		if err := s.compileTraining(c, shapes); err != nil {
			return nil, err
		}
	}
	if c.plan, err = program.NewPlan(prog, s.sizes(c)); err != nil {
		return nil, err
	}
	s.bind(c)
	return c, nil
}

// shapes compiles the forward of every call of the pass in turn, which gives the shapes of its outputs.
func (s *Sharded) shapes(prog *program.Program, c *compiled) ([][]exec.Value, error) {
	outs := make([][]exec.Value, len(s.model.Calls))
	for _, op := range prog.Ops {
		if op.Kind != program.Forward {
			continue
		}
		sig := &exec.Signature{DType: s.cfg.Precision.Compute.tensor()}
		for j, r := range s.model.Calls[op.Call].In {
			if r.Call != program.Batch && r.Out >= len(outs[r.Call]) {
				return nil, fmt.Errorf("call %s: input %d is output %d of call %s, which has %d",
					s.model.Calls[op.Call].Name, j, r.Out, s.model.Calls[r.Call].Name, len(outs[r.Call]))
			}
			sig.Inputs = append(sig.Inputs, s.input(c, outs, op.Call, j))
		}
		u, err := s.unit(op.Call, sig)
		if err != nil {
			return nil, err
		}
		c.calls[op.Call].unit = u
		for _, shape := range u.OutShape {
			outs[op.Call] = append(outs[op.Call], exec.Value{Shape: shape, DType: u.DType})
		}
	}
	return outs, s.checkResults(prog, outs)
}

// input describes input j of a call to the compiler, without its gradient.
func (s *Sharded) input(c *compiled, outs [][]exec.Value, call, j int) exec.Input {
	in := s.model.Calls[call].In
	from := c.inputs
	if in[j].Call != program.Batch {
		from = outs[in[j].Call]
	}
	v := from[in[j].Out]
	return exec.Input{Shape: v.Shape, DType: v.DType, Same: slices.Index(in[:j], in[j]) + 1}
}

// checkResults checks that the results exist and that the loss is one number.
func (s *Sharded) checkResults(prog *program.Program, outs [][]exec.Value) error {
	results := s.model.Results
	if !prog.Options.Eval {
		results = results[:1]
	}
	for i, r := range results {
		if r.Out >= len(outs[r.Call]) {
			return fmt.Errorf("result %d is output %d of call %s, which has %d", i, r.Out, s.model.Calls[r.Call].Name, len(outs[r.Call]))
		}
	}
	if loss := outs[results[0].Call][results[0].Out]; !prog.Options.Eval && loss.Len() != 1 {
		return fmt.Errorf("the loss, output %d of call %s, has shape %v: it must be one number to train on",
			results[0].Out, s.model.Calls[results[0].Call].Name, loss.Shape)
	}
	return nil
}

// unit returns the program of a call.
func (s *Sharded) unit(call int, sig *exec.Signature) (*exec.Unit, error) {
	t := s.trace.calls[call]
	u, err := exec.Shared.Unit(t.module, spec(t.module, t.local), sig)
	if err != nil {
		return nil, fmt.Errorf("call %s (%T): %w", t.name, t.module, err)
	}
	return u, nil
}

// compileTraining compiles forward and backward of the calls that need both.
func (s *Sharded) compileTraining(c *compiled, shapes [][]exec.Value) error {
	back, trained := s.model.NeedsBackward(), s.model.Trained()
	gradOut := make([][]bool, len(s.model.Calls)) // which outputs receive a gradient
	for i := range gradOut {
		gradOut[i] = make([]bool, len(shapes[i]))
	}
	loss := s.model.Results[0]
	gradOut[loss.Call][loss.Out] = true
	for i, call := range s.model.Calls {
		for _, r := range call.In {
			if back[i] && r.Call != program.Batch && trained[r.Call] {
				gradOut[r.Call][r.Out] = true
			}
		}
	}
	written := make(map[program.Ref]bool) // gradients that an earlier backward has written
	for i := len(back) - 1; i >= 0; i-- {
		if !back[i] {
			continue
		}
		sig := &exec.Signature{DType: s.cfg.Precision.Compute.tensor(), GradOut: gradOut[i], Save: s.save[i]}
		for j, r := range s.model.Calls[i].In {
			in := s.input(c, shapes, i, j)
			if r.Call != program.Batch {
				in.Grad = trained[r.Call] && in.Same == 0
				in.Acc = in.Grad && written[r]
				written[r] = true
			}
			sig.Inputs = append(sig.Inputs, in)
		}
		for _, first := range s.train.First[i] {
			sig.AccParam = append(sig.AccParam, !first)
		}
		u, err := s.unit(i, sig)
		if err != nil {
			return err
		}
		c.calls[i].unit = u
	}
	return nil
}

// sizes returns the bytes that the planner needs.
func (s *Sharded) sizes(c *compiled) *program.Sizes {
	z := &program.Sizes{}
	for _, g := range s.groups {
		z.Group = append(z.Group, program.GroupSizes{Params: g.bytes(), Grads: g.bytes()})
	}
	trained, es := s.model.Trained(), s.cfg.Precision.Compute.size()
	for i, call := range s.model.Calls {
		u := c.calls[i].unit
		if u == nil {
			z.Call = append(z.Call, program.CallSizes{})
			continue
		}
		cs := program.CallSizes{KeepIn: u.KeepIn, KeepOut: u.KeepOut, Saved: u.Saved, Work: u.Forward.Work}
		for _, shape := range u.OutShape {
			cs.Out = append(cs.Out, exec.Numel(shape)*es)
		}
		cs.GradIn = make([]int, len(call.In))
		if u.Backward != nil {
			cs.BackWork = u.Backward.Work
			for j, r := range call.In {
				if r.Call != program.Batch && trained[r.Call] {
					cs.GradIn[j] = exec.Numel(c.calls[r.Call].unit.OutShape[r.Out]) * es
				}
			}
		}
		z.Call = append(z.Call, cs)
	}
	return z
}

// bind looks up the buffers of every operand, so that running a pass needs no maps.
func (s *Sharded) bind(c *compiled) {
	for g := range s.groups {
		c.params = append(c.params, c.plan.Lookup(program.GroupParams, g, 0))
		c.grads = append(c.grads, c.plan.Lookup(program.GroupGrads, g, 0))
		c.zero = append(c.zero, s.unwritten(g))
	}
	loss := s.model.Results[0]
	c.loss, c.seed = c.plan.Lookup(program.CallOut, loss.Call, loss.Out), c.plan.Lookup(program.CallGradOut, loss.Call, loss.Out)
	for i, call := range s.model.Calls {
		b := &c.calls[i]
		if b.unit == nil {
			continue
		}
		for _, r := range call.In {
			if r.Call == program.Batch {
				b.in, b.gradIn = append(b.in, ^r.Out), append(b.gradIn, -1)
				continue
			}
			b.in = append(b.in, c.plan.Lookup(program.CallOut, r.Call, r.Out))
			b.gradIn = append(b.gradIn, c.plan.Lookup(program.CallGradOut, r.Call, r.Out))
		}
		for o := range b.unit.OutShape {
			b.out = append(b.out, c.plan.Lookup(program.CallOut, i, o))
			b.gradOut = append(b.gradOut, c.plan.Lookup(program.CallGradOut, i, o))
		}
		b.saved = c.plan.Lookup(program.CallSaved, i, 0)
		b.bindings = exec.Call{
			Param: make([][]byte, len(call.Params)), GradParam: make([][]byte, len(call.Params)),
			In: make([][]byte, len(b.in)), GradIn: make([][]byte, len(b.in)),
			Out: make([][]byte, len(b.out)), GradOut: make([][]byte, len(b.out)),
		}
	}
}

// unwritten returns the ranges of a group's full gradients that no backward writes: padding, and parameters that the loss
// does not depend on. They are set to zero before the reduction.
func (s *Sharded) unwritten(g int) []span {
	f := s.groups[g]
	es := f.dtype.size()
	var zero []span
	for _, p := range f.layout.Padding() {
		zero = append(zero, span{p.Start * es, p.End * es})
	}
	written := make(map[int]bool)
	for i, back := range s.model.NeedsBackward() {
		if back {
			for _, p := range s.model.Calls[i].Params {
				written[p] = true
			}
		}
	}
	for i, p := range f.params {
		if !written[p] {
			lo := f.layout.Offset(i) * es
			zero = append(zero, span{lo, lo + f.layout.Params()[i].Len()*es})
		}
	}
	return zero
}
