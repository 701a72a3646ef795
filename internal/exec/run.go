package exec

import (
	"fmt"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel"
)

// A Call is the memory that one run of a unit works on: the elements of each parameter, input and
// output, in order. The caller owns it all. GradIn and GradParam may hold nil where no gradient was
// asked for. In backward, Param, In and Out may hold nil where the Unit says that it does not read
// them.
type Call struct {
	Param, In, Out             [][]byte
	GradOut, GradIn, GradParam [][]byte
	// Update is where a forward in training puts the new values of buffers, one for each of
	// Unit.Updates. It must not be memory in Param, since forward and backward may still read the
	// old values. In evaluation, and in backward, it may be nil.
	Update [][]byte
	Saved  []byte // Unit.Saved bytes, the same in forward and backward
	Work   []byte // Program.Work bytes
	Seed   uint64 // of the random numbers of this call, the same in forward and backward
	Train  bool
}

// A Runner runs units. It belongs to one rank and is not safe for concurrent use. It has the threads
// that Team was started with.
type Runner struct {
	Team  kernel.Team
	frame Frame
	host  []G.Value

	// Of an instruction that all threads run:
	instr *Instr
	parts []share
	split func(c *kernel.Context) // runs one
}

// RunnerBytes returns what each thread of a Runner comes to hold at most for units of one element type,
// some of which compute in bfloat16 if low is true.
func RunnerBytes(dt tensor.Dtype, low bool) int {
	switch {
	case dt == tensor.Float64:
		return kernel.MostBytes[float64]()
	case low:
		return max(kernel.MostBytes[float32](), kernel.MostBytes[half.BFloat16]())
	default:
		return kernel.MostBytes[float32]()
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
	memory := [spaces][][]byte{
		SpaceParam: c.Param, SpaceIn: c.In, SpaceOut: c.Out,
		SpaceGradOut: c.GradOut, SpaceGradIn: c.GradIn, SpaceGradParam: c.GradParam,
		SpaceUpdate: c.Update,
	}
	defer r.forget()
	for i := range p.instrs {
		in := &p.instrs[i]
		if in.Update && !c.Train {
			continue
		}
		var err error
		if in.stock == nil {
			err = r.native(p, c, &memory, in)
		} else {
			err = r.stock(p, c, &memory, in)
		}
		if err != nil {
			return fmt.Errorf("%v: %w", in.Op, err)
		}
	}
	return nil
}

// forget drops the references to the memory of a run.
func (r *Runner) forget() {
	clear(r.host)
	clear(r.frame.In[:cap(r.frame.In)])
	r.frame.Op, r.frame.Out, r.frame.Scratch, r.instr = nil, Value{}, nil, nil
	for i := range r.parts {
		p := &r.parts[i]
		clear(p.In[:cap(p.In)])
		p.Frame = Frame{In: p.In}
	}
}

func (r *Runner) native(p *Program, c *Call, memory *[spaces][][]byte, in *Instr) error {
	f := &r.frame
	f.Op, f.Kernel, f.Seed, f.Train, f.Acc = in.Op, r.Team.Context(), c.Seed, c.Train, in.Acc
	f.Out = resolve(p, c, memory, &in.Out)
	f.In = f.In[:0]
	for j := range in.In {
		f.In = append(f.In, resolve(p, c, memory, &in.In[j]))
	}
	f.Scratch = nil
	if in.Scratch.Bytes > 0 {
		f.Scratch = c.Work[in.Scratch.Offset:][:in.Scratch.Bytes]
	}
	if r.Team.Size() == 1 || !in.divisible() {
		return in.run(f)
	}
	return r.together(c, in)
}

// divisible tells whether threads share the instruction.
func (in *Instr) divisible() bool {
	return in.Op.Split == ByKernel || in.Op.Split == ByElement && in.Out.Form.Tail == 0
}

// run runs the kernel of the instruction.
func (in *Instr) run(f *Frame) error {
	if in.Half {
		return in.Op.BF16(f)
	}
	return in.Op.run(f)
}

// share is what one thread runs of an instruction.
type share struct {
	Frame
	err error
}

// together runs an instruction, for which the frame is ready, on all threads.
func (r *Runner) together(c *Call, in *Instr) error {
	if r.parts == nil {
		r.parts, r.split = make([]share, r.Team.Size()), r.runPart
	}
	for i := range r.parts {
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
	if p.Op.Split == ByElement {
		n := p.Out.Len()
		lo, hi := c.Share(n, arena.Align)
		for i, v := range p.In {
			if v.Len() == n {
				p.In[i] = v.elements(lo, hi)
			}
		}
		p.Out, p.First = p.Out.elements(lo, hi), lo
		if p.err = nil; lo == hi {
			return
		}
	}
	p.err = r.instr.run(&p.Frame)
}

func (r *Runner) stock(p *Program, c *Call, memory *[spaces][][]byte, in *Instr) error {
	args := make([]G.Value, len(in.In))
	for j := range in.In {
		if in.In[j].Space == SpaceHost {
			args[j] = r.host[in.In[j].Index]
		} else {
			args[j] = stockValue(resolve(p, c, memory, &in.In[j]))
		}
	}
	if in.Out.Space != SpaceHost {
		_, err := runStock(in.stock, resolve(p, c, memory, &in.Out), args)
		return err
	}
	v, err := runStock(in.stock, Value{}, args)
	r.host[in.Out.Index] = v
	return err
}

// resolve returns the value that o addresses in this run.
func resolve(p *Program, c *Call, memory *[spaces][][]byte, o *Operand) Value {
	var b []byte
	switch o.Space {
	case SpaceWork:
		b = c.Work
	case SpaceSaved:
		b = c.Saved
	case SpaceConst:
		b = p.consts[o.Index].Bytes
	default:
		b = memory[o.Space][o.Index]
	}
	end := o.Offset + o.Bytes
	return Value{Shape: o.Shape, DType: o.DType, Bytes: b[o.Offset:end:end], Form: o.Form}
}
