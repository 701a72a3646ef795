package exec

import (
	"fmt"

	G "gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/kernel"
)

// A Call is the memory that one run of a unit works on: for each parameter, input and output, in order, its elements.
// The caller owns it all. GradIn and GradParam may hold nil where no gradient was asked for, and in backward so may Param,
// In and Out where the Unit says that it does not read them.
type Call struct {
	Param, In, Out             [][]byte
	GradOut, GradIn, GradParam [][]byte
	// Update is where a forward in training puts the new values of buffers, one for each of Unit.Updates. It must not be
	// the memory in Param, whose old values the rest of the forward, and the backward, may still read. In evaluation no
	// update is computed and it may be nil; backward does not use it.
	Update [][]byte
	Saved  []byte // Unit.Saved bytes, the same in forward and backward
	Work   []byte // Program.Work bytes
	Seed   uint64 // of the random numbers of this call, the same in forward and backward
	Train  bool
}

// A Runner runs units. It belongs to one rank and is not safe for concurrent use.
type Runner struct {
	Kernel kernel.Context
	frame  Frame
	host   []G.Value
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
		spaceParam: c.Param, spaceIn: c.In, spaceOut: c.Out,
		spaceGradOut: c.GradOut, spaceGradIn: c.GradIn, spaceGradParam: c.GradParam,
		spaceUpdate: c.Update,
	}
	defer r.forget()
	for i := range p.instrs {
		in := &p.instrs[i]
		if in.update && !c.Train {
			continue
		}
		var err error
		if in.op != nil {
			err = r.native(p, c, &memory, in)
		} else {
			err = r.stock(p, c, &memory, in)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", in.name, err)
		}
	}
	return nil
}

// forget drops the references to the memory of a run.
func (r *Runner) forget() {
	clear(r.host)
	clear(r.frame.In[:cap(r.frame.In)])
	r.frame.Out, r.frame.Scratch = Value{}, nil
}

func (r *Runner) native(p *Program, c *Call, memory *[spaces][][]byte, in *instr) error {
	f := &r.frame
	f.Kernel, f.Seed, f.Train, f.Acc = &r.Kernel, c.Seed, c.Train, in.acc
	f.Out = resolve(p, c, memory, &in.out)
	f.In = f.In[:0]
	for j := range in.in {
		f.In = append(f.In, resolve(p, c, memory, &in.in[j]))
	}
	f.Scratch = nil
	if in.scratch.bytes > 0 {
		f.Scratch = c.Work[in.scratch.offset:][:in.scratch.bytes]
	}
	return in.op.run(f)
}

func (r *Runner) stock(p *Program, c *Call, memory *[spaces][][]byte, in *instr) error {
	args := make([]G.Value, len(in.in))
	for j := range in.in {
		if in.in[j].space == spaceHost {
			args[j] = r.host[in.in[j].index]
		} else {
			args[j] = stockValue(resolve(p, c, memory, &in.in[j]))
		}
	}
	if in.out.space == spaceHost {
		v, err := runHost(in.stock, args)
		r.host[in.out.index] = v
		return err
	}
	return runStock(in.stock, resolve(p, c, memory, &in.out), args)
}

// resolve returns the value that o addresses in this run.
func resolve(p *Program, c *Call, memory *[spaces][][]byte, o *operand) Value {
	var b []byte
	switch o.space {
	case spaceWork:
		b = c.Work
	case spaceSaved:
		b = c.Saved
	case spaceConst:
		b = p.consts[o.index].Bytes
	default:
		b = memory[o.space][o.index]
	}
	return Value{Shape: o.shape, DType: o.dtype, Bytes: b[o.offset : o.offset+o.bytes : o.offset+o.bytes]}
}
