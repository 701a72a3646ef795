package engine

import (
	"fmt"
	"hash/fnv"
	"slices"
	"unsafe"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/program"
	"github.com/gofsdp/gofsdp/shard"
)

// A Variant is the program that a pass runs, and its treatment of gradients.
type Variant struct {
	Program  string // "" is Forward
	Eval     bool   // it has no gradients
	NoSync   bool   // it leaves them unreduced
	Pending  bool   // it adds to unreduced ones
	Leafwise bool   // it reduces them leaf by leaf, see Turn
}

// Compiled is a pass compiled for one set of batch shapes. It does not change.
type Compiled struct {
	Variant
	*Needs
	Absent   bool // it computes nothing: no call is bound
	Path     *layout.Path
	Model    *program.Model // of this pass, without absent calls
	Plan     *program.Plan
	Calls    []Call
	Params   []int          // by group: buffer of the full parameters, or -1
	Grads    []int          // by group: buffer of the full gradients, or -1
	GradType []comm.DType   // by group: type of the full gradients, see Engine.gradTypes
	Second   []int          // by group: buffer of this rank's piece of the second copy, or -1
	Zero     [][]shard.Span // by group: bytes of the full gradients that no call writes
	Wrote    []bool         // by parameter: whether a call writes its gradient; Grad says whether a call of any rank may
	Loss     int            // buffer of the loss
	Seed     int            // buffer of its gradient, or -1
	Home     []layout.Place // by parameter
	Prepared any            // result of Device.Prepare
	Inputs   []exec.Value   // shapes and types of the batch; Bytes is nil
	Targets  []Target       // of its losses
	Hash     uint64         // of the variant, the program and the parameters that get a gradient; 63 bits

	votes []int // words of Layout.Votes whose parameters' gradients a call writes

	bytes int // of memory that it takes, without its units
	units int // bytes of its units
}

// Needs are the needs of a training pass that become known when its calls are compiled for a batch:
// the part of its schedule that is unknown to a rank without a batch.
type Needs struct {
	Reads [][]bool // by call: which of its parameters backward reads; nil for all
	Grad  []bool   // by parameter: whether it gets a gradient; for those in Layout.Votes, whether it may
}

// A Call is a call with its program and the buffers of its operands.
type Call struct {
	Unit    *exec.Unit // nil if this rank's pass does not run the call
	In, Out []int      // buffers; an input from the batch is ^i
	GradOut []int      // buffers, or -1
	GradIn  []int      // buffers, or -1
	Saved   int        // buffer, or -1
	Update  []int      // buffers of new values for the module's buffers
}

// KeepBytes bounds the passes that an engine keeps compiled, with the units of their calls. Tests
// replace it.
var KeepBytes = 64 << 20

// Compiled returns the pass for a batch of these shapes, and compiles it if they are new. If all
// passes take more than KeepBytes, it drops the least recently used ones. A caller that runs a pass
// keeps it. Ranks need not drop the same ones: a pass that is compiled again is the same, bit for
// bit.
func (e *Engine) Compiled(v Variant, batch []exec.Value) (*Compiled, error) {
	for i, c := range e.compiled {
		if c.Variant == v && c.matches(batch) {
			copy(e.compiled[1:i+1], e.compiled[:i]) // move to the front
			e.compiled[0] = c
			return c, nil
		}
	}
	c, err := e.compile(v, batch)
	if err != nil {
		return nil, err
	}
	c.measure()
	e.compiled = fitting(slices.Insert(e.compiled, 0, c), KeepBytes)
	e.dev.Keep(e.compiled)
	return c, nil
}

// fitting returns the first of passes that take at most limit bytes together, and at least one. It
// reuses the memory of passes.
func fitting(passes []*Compiled, limit int) []*Compiled {
	n := 0
	for ; n < len(passes); n++ {
		if limit -= passes[n].bytes + passes[n].units; limit < 0 && n > 0 {
			break
		}
	}
	return slices.Delete(passes, n, len(passes)) // and forget the others
}

// measure sets the bytes that c takes.
func (c *Compiled) measure() {
	const word = int(unsafe.Sizeof(0))
	c.bytes = int(unsafe.Sizeof(*c)) + c.Plan.Bytes() + len(c.Params)*(3*word+int(unsafe.Sizeof([]shard.Span{})+unsafe.Sizeof(comm.Float32)))
	for i := range c.Zero {
		c.bytes += cap(c.Zero[i]) * int(unsafe.Sizeof(shard.Span{}))
	}
	counted := make(map[*exec.Unit]bool)
	for i := range c.Calls {
		k := &c.Calls[i]
		c.bytes += int(unsafe.Sizeof(*k)) + (cap(k.In)+cap(k.Out)+cap(k.GradOut)+cap(k.GradIn)+cap(k.Update))*word
		if k.Unit != nil && !counted[k.Unit] {
			counted[k.Unit] = true
			c.units += k.Unit.Bytes
		}
	}
}

// Beside returns the bytes that passes like c take besides their buffers: their programs, and
// packed operands of products.
func (e *Engine) Beside(c *Compiled) int {
	low := e.o.half() || slices.Contains(c.GradType, comm.BFloat16)
	return c.bytes + c.units + e.dev.Threads()*exec.RunnerBytes(e.o.DType, low)
}

// ProgramBytes returns the bytes of compiled programs: the programs that the process keeps for all
// its ranks and models, and the passes of this engine.
func (e *Engine) ProgramBytes() int {
	n := exec.Shared.Bytes()
	counted := make(map[*exec.Unit]bool) // that are only in passes
	for _, c := range e.compiled {
		n += c.bytes
		for i := range c.Calls {
			if u := c.Calls[i].Unit; u != nil && !u.Cached() && !counted[u] {
				counted[u] = true
				n += u.Bytes
			}
		}
	}
	return n
}

func (c *Compiled) matches(batch []exec.Value) bool {
	for i, v := range batch {
		if v.DType != c.Inputs[i].DType || !slices.Equal(v.Shape, c.Inputs[i].Shape) {
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

// newCompiled returns an empty pass of a variant.
func (e *Engine) newCompiled(v Variant) *Compiled {
	grad := make([]bool, len(e.layout.Model.Params))
	return &Compiled{
		Variant: v, Home: e.layout.Home, Path: e.layout.Model.Paths[v.Program], Model: e.layout.Entries[v.Program],
		Needs: &Needs{Grad: grad}, Wrote: grad, GradType: e.gradTypes(v),
	}
}

// Computes reports whether a pass computes an operation on a call: it has a batch, and the call is
// present.
func (c *Compiled) Computes(op program.Op) bool {
	if c.Calls == nil || c.Calls[op.Call].Unit == nil {
		return false
	}
	return op.Kind == program.Forward || c.Calls[op.Call].Unit.Backward != nil
}

// compile infers the shapes of all values, compiles every call, schedules the pass for the
// parameters that the calls read in backward, and plans the buffers.
func (e *Engine) compile(v Variant, batch []exec.Value) (*Compiled, error) {
	c := e.newCompiled(v)
	c.Inputs, c.Calls = shapeless(batch), make([]Call, len(c.Model.Calls))
	if c.Path.Varies() {
		given := make([]bool, len(batch))
		for i := range batch {
			given[i] = batch[i].Len() > 0
		}
		c.Model, c.Wrote = c.Path.At(c.Model, v.Eval, given), make([]bool, len(c.Wrote))
	}
	shapes, err := e.shapes(c)
	if err != nil {
		return nil, err
	}
	if !v.Eval {
		if err := e.compileTraining(c, shapes); err != nil {
			return nil, err
		}
		c.Needs = e.remember(c.Needs)
		c.Targets = c.targets()
	}
	sizes, err := e.sizes(c)
	if err != nil {
		return nil, err
	}
	return c, e.schedule(c, sizes)
}

// schedule compiles and plans the pass and looks up its buffers.
func (e *Engine) schedule(c *Compiled, sizes *program.Sizes) error {
	prog, err := e.program(e.layout, e.programs, c.Variant, c.Reads)
	if err != nil {
		return err
	}
	if c.Plan, err = program.NewPlan(prog.With(c.Model), sizes); err != nil {
		return err
	}
	e.bind(c)
	h := fnv.New64a()
	fmt.Fprint(h, prog.Hash(), c.Variant, c.Grad)
	c.Hash = h.Sum64() >> 1
	c.Prepared, err = e.dev.Prepare(c)
	return err
}

// verify checks every schedule before it runs. Tests replace it.
var verify = program.Verify

// Programs are the compiled schedules of a layout, by variant and reads.
type Programs map[string]*program.Program

// Check compiles the passes of a layout as far as that is possible without a batch.
func (e *Engine) Check(l *layout.Layout) (Programs, error) {
	programs := make(Programs)
	variants := []Variant{{}}
	for name := range l.Entries {
		variants = append(variants, Variant{Program: name, Eval: true})
	}
	for _, v := range variants {
		if _, err := e.program(l, programs, v, nil); err != nil {
			return nil, err
		}
	}
	return programs, nil
}

// Gathers returns how many all-gathers of each group a training pass has, if its calls read all of
// their parameters in backward.
func (e *Engine) Gathers() ([]int, error) {
	p, err := e.program(e.layout, e.programs, Variant{}, nil)
	if err != nil {
		return nil, err
	}
	return p.Gathers(), nil
}

// program returns the schedule of a pass whose calls read these of their parameters in backward;
// nil means all. It verifies a schedule that it compiles, and keeps it in programs.
func (e *Engine) program(l *layout.Layout, programs Programs, v Variant, reads [][]bool) (*program.Program, error) {
	v.Leafwise = false // the schedule is the same
	key := fmt.Sprint(v, reads)
	if p := programs[key]; p != nil {
		return p, nil
	}
	p, err := program.Compile(l.Entries[v.Program], program.Options{
		Prefetch: e.o.Prefetch, InFlight: e.o.InFlight, Eval: v.Eval, NoSync: v.NoSync, Pending: v.Pending, Reads: reads,
	})
	if err == nil {
		err = verify(p)
	}
	if err != nil {
		return nil, err
	}
	programs[key] = p
	return p, nil
}
