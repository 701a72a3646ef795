package gpu

import (
	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/program"
	"github.com/gofsdp/gofsdp/nccl"
)

// Forward implements engine.Frame.
func (f *frame) Forward(step *program.Step, seed uint64) error {
	u := f.Calls[step.Call].Unit
	return f.run(u.Forward, step, seed, func(w *nccl.Stream) error {
		if f.Eval {
			return nil
		}
		for k, update := range u.Updates {
			n := exec.Numel(update.Shape) * int(u.DType.Size()) / 4
			if err := f.d.launch(w, "pass_swap", n, uint64(f.d.call.Param[update.Param]), uint64(f.d.call.Update[k]), uint64(n)); err != nil {
				return err
			}
		}
		return nil
	})
}

// Backward implements engine.Frame.
func (f *frame) Backward(step *program.Step, seed uint64) error {
	return f.run(f.Calls[step.Call].Unit.Backward, step, seed, func(*nccl.Stream) error { return nil })
}

// run launches the program of a call, and then calls then.
func (f *frame) run(p *exec.Program, step *program.Step, seed uint64, then func(w *nccl.Stream) error) error {
	counted, err := f.d.counts.Alloc(step.Work, arena.Work)
	if err != nil {
		return err
	}
	defer f.d.counts.Free(counted)
	s := &f.script.steps[f.step]
	f.bind(step)
	f.d.call.Seed, f.d.call.Train = seed, !f.Eval
	f.d.call.Work = f.slab.Addr() + uintptr(s.work)
	f.d.call.Scratch = f.d.call.Work + uintptr(aligned(p.Work))
	return f.issue(s.run, func(w *nccl.Stream) error {
		if err := f.d.programs[p].Run(w, &f.d.call); err != nil {
			return err
		}
		return then(w)
	})
}

// bind sets the addresses of a call's operands. Operands that the call does not use get address 0.
func (f *frame) bind(step *program.Step) {
	b, c := &f.Calls[step.Call], &f.d.call
	f.fill(&c.Out, b.Out)
	f.fill(&c.GradOut, b.GradOut)
	f.fill(&c.GradIn, b.GradIn)
	f.fill(&c.Update, b.Update)
	c.In = c.In[:0]
	for _, id := range b.In {
		if id < 0 {
			c.In = append(c.In, f.slab.Addr()+uintptr(f.script.batch[^id]))
		} else {
			c.In = append(c.In, f.at[id])
		}
	}
	f.bindParams(step)
	c.Saved = f.addr(b.Saved)
}

// bindParams sets the addresses of a call's parameters and of their gradients.
func (f *frame) bindParams(step *program.Step) {
	c := &f.d.call
	c.Param, c.GradParam = c.Param[:0], c.GradParam[:0]
	for _, param := range f.Model.Calls[step.Call].Params {
		at := f.Home[param]
		g := f.s.groups[at.Group]
		full := f.addr(f.Params[at.Group])
		switch {
		case g.Copied:
			full = g.copied.Addr()
		case g.Hold == program.Always:
			full = g.value.Addr()
		}
		c.Param = append(c.Param, g.param(full, at.Index, g.Read))
		grad := uintptr(0)
		if step.Kind == program.Backward && !g.Kind.Frozen {
			grad = g.param(f.addr(f.Grads[at.Group]), at.Index, f.GradType[at.Group])
		}
		c.GradParam = append(c.GradParam, grad)
	}
	if step.Kind != program.Backward {
		return
	}
	for k, u := range f.Calls[step.Call].Unit.Updates {
		if old := c.Update[k]; old != 0 {
			c.Param[u.Param] = old
		}
	}
}

// param returns the address of parameter i in a full buffer of elements of type t, or 0 if full is
// 0.
func (f *group) param(full uintptr, i int, t comm.DType) uintptr {
	if full == 0 {
		return 0
	}
	return full + uintptr(f.Flat.Offset(i)*t.Size())
}

// fill sets dst to the addresses of the buffers.
func (f *frame) fill(dst *[]uintptr, ids []int) {
	*dst = (*dst)[:0]
	for _, id := range ids {
		*dst = append(*dst, f.addr(id))
	}
}

// addr returns the address of a buffer, or 0 if it is not live.
func (f *frame) addr(id int) uintptr {
	if id < 0 {
		return 0
	}
	return f.at[id]
}

// launch launches a kernel with one thread for each of n elements.
func (d *Device) launch(s *nccl.Stream, kernel string, n int, args ...uint64) error {
	f, err := d.engine.Function(kernel)
	if err != nil || n == 0 {
		return err
	}
	return f.LaunchArgs(s, [3]int{(n + 255) / 256, 1, 1}, [3]int{256, 1, 1}, 0, args)
}
