package exec

import (
	"fmt"
	"time"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel"
)

// A Call is the memory of one run of a unit. The caller owns all of it.
type Call struct {
	Memory[[]byte]
	Saved []byte // Unit.Saved bytes, the same in forward and backward
	Work  []byte // Program.Work bytes
	Seed  uint64 // of the random numbers of this call, the same in forward and backward
	Train bool
}

// Memory has the elements of each parameter, input and output of a call, in order. GradIn and
// GradParam may be empty for values without a requested gradient. In backward, Param, In and Out
// may be empty for values that the Unit does not read there.
type Memory[T any] struct {
	Param, In, Out             []T
	GradOut, GradIn, GradParam []T
	// Update receives the new values of buffers in a training forward, one for each of
	// Unit.Updates. It must not be memory in Param, since forward and backward may still read the
	// old values. It may be nil in evaluation and in backward.
	Update []T
}

// Of returns the memory of a space.
func (m *Memory[T]) Of(s Space) []T {
	switch s {
	case SpaceParam:
		return m.Param
	case SpaceIn:
		return m.In
	case SpaceOut:
		return m.Out
	case SpaceGradOut:
		return m.GradOut
	case SpaceGradIn:
		return m.GradIn
	case SpaceGradParam:
		return m.GradParam
	case SpaceUpdate:
		return m.Update
	}
	return nil
}

// A Runner runs units. It belongs to one rank and is not safe for concurrent use. Its threads are
// those of Team.
type Runner struct {
	Team     kernel.Team
	frame    Frame
	host     []G.Value
	operands []Value // of the parts of an instruction: each result followed by its arguments

	// The following fields are set while all threads run an instruction.
	instr *Instr
	parts []share
	split func(c *kernel.Context) // runs one
}

// RunnerBytes returns the most memory that each thread of a Runner holds for units of one element
// type. If low is true, some of the units compute in bfloat16, or write gradients in bfloat16.
func RunnerBytes(dt tensor.Dtype, low bool) int {
	switch {
	case dt == tensor.Float64:
		return kernel.MostBytes[float64, float64]()
	case low:
		return max(kernel.MostBytes[float32, half.BFloat16](), kernel.MostBytes[half.BFloat16, half.BFloat16]())
	default:
		return kernel.MostBytes[float32, float32]()
	}
}

// Forward runs u's forward.
func (r *Runner) Forward(u *Unit, c *Call) error { return r.run(u.Forward, c) }

// Backward runs u's backward.
func (r *Runner) Backward(u *Unit, c *Call) error { return r.run(u.Backward, c) }

func (r *Runner) run(p *Program, c *Call) error {
	if cap(r.host) < p.hosts {
		r.host = make([]G.Value, p.hosts)
	}
	r.host = r.host[:p.hosts]
	defer r.forget()
	for i := range p.instrs {
		in := &p.instrs[i]
		if in.Update && !c.Train {
			continue
		}
		var err error
		begin := started()
		if in.stock == nil {
			err = r.native(p, c, in)
		} else {
			err = r.stock(p, c, in)
		}
		if Watch != nil {
			Watch(p.singles(i), time.Since(begin))
		}
		if err != nil {
			return fmt.Errorf("%v: %w", in.Op, err)
		}
	}
	return nil
}

// Watch, if not nil, is called after every instruction of every Runner, with the instruction and
// its duration. Instructions that run together are one list. It is for programs that measure
// kernels. Set it while nothing runs. Runners in several goroutines call it at the same time.
var Watch func(list []Instr, took time.Duration)

// started returns the time if Watch is set.
func started() (now time.Time) {
	if Watch != nil {
		now = time.Now()
	}
	return now
}

// forget drops the references to the memory of a run.
func (r *Runner) forget() {
	clear(r.host)
	clear(r.operands[:cap(r.operands)])
	r.frame.forget()
	r.instr = nil
	for i := range r.parts {
		p := &r.parts[i]
		p.Frame.forget()
		for k := range p.frames {
			p.frames[k].forget()
		}
	}
}

func (f *Frame) forget() {
	clear(f.In[:cap(f.In)])
	*f = Frame{In: f.In}
}

func (r *Runner) native(p *Program, c *Call, in *Instr) error {
	f := &r.frame
	f.Op, f.Kernel, f.Seed, f.Train, f.Acc, f.First = in.Op, r.Team.Context(), c.Seed, c.Train, in.Acc, 0
	f.In, r.operands = f.In[:0], r.operands[:0]
	if in.parts == nil {
		f.Out = resolve(p, c, &in.Out)
		for j := range in.In {
			f.In = append(f.In, resolve(p, c, &in.In[j]))
		}
	}
	for i := range in.parts {
		for o := range in.parts[i].operands {
			r.operands = append(r.operands, resolve(p, c, o))
		}
	}
	f.Scratch = nil
	if in.Scratch.Bytes > 0 {
		f.Scratch = c.Work[in.Scratch.Offset:][:in.Scratch.Bytes]
	}
	switch {
	case r.Team.Size() > 1 && in.divisible():
		return r.together(c, in)
	case in.parts != nil:
		s := &r.threads()[0]
		s.ready(in, f, r.operands)
		return s.blocks(in, f.Scratch, r.operands, 0, Numel(in.Out.Shape))
	default:
		return in.run(f)
	}
}

// divisible reports whether threads share the instruction.
func (in *Instr) divisible() bool { return in.Op.Split == ByKernel || in.elementwise() }

// run runs the kernel of the instruction.
func (in *Instr) run(f *Frame) error {
	if in.Half {
		return in.Op.BF16(f)
	}
	return in.Op.run(f)
}

// share is one thread's part of an instruction.
type share struct {
	Frame
	frames []Frame // of the parts of an instruction that runs block by block
	err    error
}

// threads returns the share of each thread.
func (r *Runner) threads() []share {
	if r.parts == nil {
		r.parts, r.split = make([]share, r.Team.Size()), r.runPart
	}
	return r.parts
}

// together runs an instruction on all threads. Its frame is ready.
func (r *Runner) together(c *Call, in *Instr) error {
	for i := range r.threads() {
		p := &r.parts[i]
		args := append(p.In[:0], r.frame.In...)
		p.Frame = r.frame
		p.In = args
		p.Scratch = c.Work[in.Scratch.Offset+i*align(in.Scratch.Bytes):][:in.Scratch.Bytes]
	}
	r.instr = in
	r.Team.Run(r.split)
	for i := range r.parts {
		if err := r.parts[i].err; err != nil {
			return err
		}
	}
	return nil
}

func (r *Runner) runPart(c *kernel.Context) {
	p := &r.parts[c.Part()]
	p.Kernel = c
	if r.instr.Op.Split == ByKernel {
		p.err = r.instr.run(&p.Frame)
		return
	}
	n := Numel(r.instr.Out.Shape)
	lo, hi := c.Share(n, arena.Align)
	switch p.err = nil; {
	case lo == hi:
	case r.instr.parts != nil:
		p.ready(r.instr, &p.Frame, r.operands)
		p.err = p.blocks(r.instr, p.Scratch, r.operands, lo, hi)
	default:
		for i, v := range p.In {
			if v.Len() == n {
				p.In[i] = v.elements(lo, hi)
			}
		}
		p.Out, p.First = p.Out.elements(lo, hi), lo
		p.err = r.instr.run(&p.Frame)
	}
}

func (r *Runner) stock(p *Program, c *Call, in *Instr) error {
	args := make([]G.Value, len(in.In))
	for j := range in.In {
		if in.In[j].Space == SpaceHost {
			args[j] = r.host[in.In[j].Index]
		} else {
			args[j] = stockValue(resolve(p, c, &in.In[j]))
		}
	}
	if in.Out.Space != SpaceHost {
		_, err := runStock(in.stock, resolve(p, c, &in.Out), args)
		return err
	}
	v, err := runStock(in.stock, Value{}, args)
	r.host[in.Out.Index] = v
	return err
}

// resolve returns the value that o addresses in this run.
func resolve(p *Program, c *Call, o *Operand) Value {
	var b []byte
	switch o.Space {
	case SpaceWork:
		b = c.Work
	case SpaceSaved:
		b = c.Saved
	case SpaceConst:
		b = p.consts[o.Index].Bytes
	case SpaceBlock:
		return Value{Shape: o.Shape, DType: o.DType, Form: o.Form}
	default:
		b = c.Of(o.Space)[o.Index]
	}
	end := o.Offset + o.Bytes
	return Value{Shape: o.Shape, DType: o.DType, Bytes: b[o.Offset:end:end], Form: o.Form}
}
