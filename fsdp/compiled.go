package fsdp

import (
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/program"
)

// compiled is a pass compiled for one set of batch shapes: the plan with its buffers, the program of each call, and where
// each call finds its memory.
type compiled struct {
	variant
	path   *layout.Path
	model  *program.Model
	inputs []exec.Value // shapes and types of the batch; Bytes is nil
	plan   *program.Plan
	calls  []boundCall
	params []int    // by group: buffer of the full parameters, or -1
	grads  []int    // by group: buffer of the full gradients, or -1
	zero   [][]span // by group: bytes of the full gradients that no call writes
	lossAt int      // buffer of the loss
	seedAt int      // buffer of its gradient, or -1
	hash   uint64   // of the program and of which parameters get a gradient
	shadow bool     // the pass computes nothing: calls are not compiled
	*facts
}

// facts are what a training pass turns out to need when its calls are compiled for a batch: the part of its schedule that a
// rank without a batch cannot know.
type facts struct {
	reads [][]bool // by call: which of its parameters backward reads; nil for all
	grad  []bool   // by parameter: whether it gets a gradient
}

// variant is which program a pass runs, and what it does about gradients.
type variant struct {
	entry   string // "" is Forward
	eval    bool   // it has none
	noSync  bool   // it leaves them unreduced
	pending bool   // it adds to unreduced ones
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
	update   []int      // buffers of new values for the module's buffers
	bindings exec.Call  // slices of the right lengths, filled before each run
}

// maxCompiled bounds the number of batch shapes kept ready.
const maxCompiled = 64

// compiledFor returns the pass for a batch of these shapes, compiling it when they are new.
func (s *Sharded) compiledFor(v variant, batch []exec.Value) (*compiled, error) {
	for i, c := range s.compiled {
		if c.variant == v && c.matches(batch) {
			copy(s.compiled[1:i+1], s.compiled[:i]) // move to the front
			s.compiled[0] = c
			return c, nil
		}
	}
	c, err := s.compile(v, batch)
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

// compile infers the shapes of all values, compiles every call, schedules the pass with what the calls turn out to read in
// backward, and plans the buffers.
func (s *Sharded) compile(v variant, batch []exec.Value) (*compiled, error) {
	c := &compiled{
		variant: v, path: s.model.Paths[v.entry], model: s.layout.Entries[v.entry], inputs: shapeless(batch),
		calls: make([]boundCall, len(s.model.Paths[v.entry].Calls)), facts: &facts{grad: make([]bool, len(s.model.Params))},
	}
	shapes, err := s.shapes(c)
	if err != nil {
		return nil, err
	}
	if !v.eval {
		if c.reads, err = s.compileTraining(c, shapes); err != nil {
			return nil, err
		}
		c.facts = s.learn(c.facts)
	}
	return c, s.schedule(c, s.sizes(c))
}

// schedule compiles and plans the pass and looks up its buffers.
func (s *Sharded) schedule(c *compiled, sizes *program.Sizes) error {
	prog, err := s.program(s.layout, s.programs, c.variant, c.reads)
	if err != nil {
		return err
	}
	if c.plan, err = program.NewPlan(prog, sizes); err != nil {
		return err
	}
	s.bind(c)
	h := fnv.New64a()
	fmt.Fprint(h, prog.Hash(), c.grad)
	c.hash = h.Sum64() >> 1 // ranks agree on numbers of 63 bits
	return nil
}

// program returns the schedule of a pass whose calls read these of their parameters in backward; nil means all. What is compiled
// is verified, and kept in programs.
func (s *Sharded) program(l *layout.Layout, programs map[string]*program.Program, v variant, reads [][]bool) (*program.Program, error) {
	key := fmt.Sprint(v, reads)
	if p := programs[key]; p != nil {
		return p, nil
	}
	p, err := program.Compile(l.Entries[v.entry], program.Options{
		Prefetch: s.cfg.Prefetch, InFlight: s.cfg.InFlight, Eval: v.eval, NoSync: v.noSync, Pending: v.pending, Reads: reads,
	})
	if err == nil {
		err = program.Verify(p)
	}
	if err != nil {
		return nil, err
	}
	programs[key] = p
	return p, nil
}

// shapes compiles the forward of every call of the pass in turn, which gives the shapes of its outputs.
func (s *Sharded) shapes(c *compiled) ([][]exec.Value, error) {
	outs := make([][]exec.Value, len(c.model.Calls))
	for i, need := range c.model.NeedsForward(c.results()) {
		if !need {
			continue
		}
		sig := &exec.Signature{DType: s.cfg.Precision.Compute.tensor()}
		for j, r := range c.model.Calls[i].In {
			if r.Call != program.Batch && r.Out >= len(outs[r.Call]) {
				return nil, fmt.Errorf("call %s: input %d is output %d of call %s, which has %d",
					c.model.Calls[i].Name, j, r.Out, c.model.Calls[r.Call].Name, len(outs[r.Call]))
			}
			sig.Inputs = append(sig.Inputs, c.input(outs, i, j))
		}
		u, err := s.unit(c, i, sig)
		if err != nil {
			return nil, err
		}
		c.calls[i].unit = u
		for _, shape := range u.OutShape {
			outs[i] = append(outs[i], exec.Value{Shape: shape, DType: u.DType})
		}
	}
	return outs, c.checkResults(outs)
}

// results returns those of the model that a pass computes: all in an evaluation, the loss in training.
func (c *compiled) results() []program.Ref {
	if c.eval {
		return c.model.Results
	}
	return c.model.Results[:1]
}

// input describes input j of a call to the compiler, without its gradient.
func (c *compiled) input(outs [][]exec.Value, call, j int) exec.Input {
	in := c.model.Calls[call].In
	from := c.inputs
	if in[j].Call != program.Batch {
		from = outs[in[j].Call]
	}
	v := from[in[j].Out]
	return exec.Input{Shape: v.Shape, DType: v.DType, Same: slices.Index(in[:j], in[j]) + 1}
}

// checkResults checks that the results exist and that the loss is one number.
func (c *compiled) checkResults(outs [][]exec.Value) error {
	results := c.results()
	for i, r := range results {
		if r.Out >= len(outs[r.Call]) {
			return fmt.Errorf("result %d is output %d of call %s, which has %d", i, r.Out, c.model.Calls[r.Call].Name, len(outs[r.Call]))
		}
	}
	if loss := outs[results[0].Call][results[0].Out]; !c.eval && loss.Len() != 1 {
		return fmt.Errorf("the loss, output %d of call %s, has shape %v: it must be one number to train on",
			results[0].Out, c.model.Calls[results[0].Call].Name, loss.Shape)
	}
	return nil
}

// unit returns the program of a call.
func (s *Sharded) unit(c *compiled, call int, sig *exec.Signature) (*exec.Unit, error) {
	t := s.trace.calls[c.path.Calls[call].Module]
	u, err := exec.Shared.Unit(t.module, spec(t.module, t.local), sig)
	if err != nil {
		return nil, fmt.Errorf("call %s (%T): %w", c.path.Calls[call].Name, t.module, err)
	}
	return u, nil
}

// compileTraining compiles forward and backward of the calls that need both. It returns which parameters the backward of
// each call reads.
func (s *Sharded) compileTraining(c *compiled, shapes [][]exec.Value) (reads [][]bool, err error) {
	reads = make([][]bool, len(c.model.Calls))
	firsts := c.model.First()
	back, trained := c.model.NeedsBackward(), c.model.Trained()
	gradOut := make([][]bool, len(c.model.Calls)) // which outputs receive a gradient
	for i := range gradOut {
		gradOut[i] = make([]bool, len(shapes[i]))
	}
	loss := c.model.Results[0]
	gradOut[loss.Call][loss.Out] = true
	for i, call := range c.model.Calls {
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
		for j, r := range c.model.Calls[i].In {
			in := c.input(shapes, i, j)
			if r.Call != program.Batch {
				in.Grad = trained[r.Call] && in.Same == 0
				in.Acc = in.Grad && written[r]
				written[r] = true
			}
			sig.Inputs = append(sig.Inputs, in)
		}
		for j, p := range c.model.Calls[i].Params {
			sig.AccParam = append(sig.AccParam, c.pending || !firsts[i][j])
			sig.FrozenParam = append(sig.FrozenParam, s.groups[s.layout.Home[p].Group].Kind.Frozen)
		}
		u, err := s.unit(c, i, sig)
		if err != nil {
			return nil, err
		}
		c.calls[i].unit, reads[i] = u, u.ReadParam
		for j, p := range c.model.Calls[i].Params {
			c.grad[p] = c.grad[p] || u.HasGrad[j]
		}
	}
	return reads, nil
}

// sizes returns the bytes that the planner needs.
func (s *Sharded) sizes(c *compiled) *program.Sizes {
	z := s.groupSizes()
	trained, es := c.model.Trained(), s.cfg.Precision.Compute.size()
	for i, call := range c.model.Calls {
		u := c.calls[i].unit
		if u == nil {
			z.Call = append(z.Call, program.CallSizes{})
			continue
		}
		cs := program.CallSizes{KeepIn: u.KeepIn, KeepOut: u.KeepOut, Saved: u.Saved, Spill: !c.eval && s.spill[i], Work: u.Forward.Work}
		for _, update := range u.Updates {
			if !c.eval {
				cs.Update = append(cs.Update, exec.Numel(update.Shape)*es)
				cs.KeepUpdate = append(cs.KeepUpdate, u.ReadParam[update.Param])
			}
		}
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

// groupSizes returns the bytes that a pass without computation needs.
func (s *Sharded) groupSizes() *program.Sizes {
	return &program.Sizes{Group: s.layout.Sizes()}
}

// bind looks up the buffers of every operand, so that running a pass needs no maps.
func (s *Sharded) bind(c *compiled) {
	for g := range s.groups {
		c.params = append(c.params, c.plan.Lookup(program.GroupParams, g, 0))
		c.grads = append(c.grads, c.plan.Lookup(program.GroupGrads, g, 0))
		c.zero = append(c.zero, s.unwritten(c, g))
	}
	loss := c.model.Results[0]
	c.lossAt, c.seedAt = c.plan.Lookup(program.CallOut, loss.Call, loss.Out), c.plan.Lookup(program.CallGradOut, loss.Call, loss.Out)
	for i := range c.calls {
		call, b := c.model.Calls[i], &c.calls[i]
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
		for k := range b.unit.Updates {
			b.update = append(b.update, c.plan.Lookup(program.CallUpdate, i, k))
		}
		b.bindings = exec.Call{
			Param: make([][]byte, len(call.Params)), GradParam: make([][]byte, len(call.Params)),
			In: make([][]byte, len(b.in)), GradIn: make([][]byte, len(b.in)),
			Out: make([][]byte, len(b.out)), GradOut: make([][]byte, len(b.out)), Update: make([][]byte, len(b.update)),
		}
	}
}

// unwritten returns the ranges of a group's full gradients that no backward writes: padding, and parameters that the loss
// does not depend on; all, if the pass computes nothing. They are set to zero before the reduction.
func (s *Sharded) unwritten(c *compiled, g int) []span {
	f := s.groups[g]
	es := f.Compute.Size()
	if c.shadow {
		return []span{{0, f.Bytes()}}
	}
	var zero []span
	for _, p := range f.Flat.Padding() {
		zero = append(zero, span{p.Start * es, p.End * es})
	}
	for i, p := range f.Params {
		if !c.grad[p] {
			lo := f.Flat.Offset(i) * es
			zero = append(zero, span{lo, lo + f.Flat.Params()[i].Len()*es})
		}
	}
	return zero
}
