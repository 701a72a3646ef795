package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/ops"
	"github.com/gofsdp/gofsdp/internal/program"
	"github.com/gofsdp/gofsdp/optim"
)

// Options are the inputs of an Engine besides its layout and Device.
type Options struct {
	DType    tensor.Dtype  // of shards, and of computation except in modules that are Half
	Modules  []Module      // by call of Forward that has brought one
	Save     []exec.Policy // by call of Forward: the data that it keeps for backward
	Spill    []bool        // likewise: whether in files
	Prefetch int           // units gathered ahead
	InFlight int           // bytes of collectives under way, 0 for any number
	Seed     uint64        // of dropout
	Passes   int           // of a step on each rank, whose gradients are summed in one tree; 0: each pass is added to the shards
	Leaves   int           // of this tree, on all ranks: the last pass may have one for some of the ranks only

	Before func(group *layout.Group) float32 // factor for gradients before they are summed
	Factor float64                           // total factor for gradients
	Trace  func(*Step)                       // nil, or called after each operation
}

// A Module is the computation of a call.
type Module struct {
	Key  any // modules that are equal share compiled programs
	Spec *exec.Spec
	Half bool // it computes in 16 bits
}

// half reports whether any module computes in 16 bits.
func (o *Options) half() bool {
	return slices.ContainsFunc(o.Modules, func(m Module) bool { return m.Half })
}

// An Engine runs the passes of a model.
type Engine struct {
	o    Options
	dev  Device
	team *ranks.Team

	layout  *layout.Layout
	shards  Shards
	trained []int       // groups that have gradients
	grads   []optim.Vec // their shards

	programs Programs
	compiled []*Compiled // by batch shape, the last used first
	needs    *Needs      // of the last training pass, or nil
	nothing  *Needs      // of a pass for which no rank has a batch: everything that a pass may need
	absent   map[absentKey]*Compiled

	passes  int       // so far: numbers them
	pending int       // passes whose gradients are not in the shards
	whole   bool      // these passes, of a step of Options.Passes, are inside NoSync
	weights []float64 // of 2^k passes of the step by k, as gradients are kept: see Weigh
	weight  float64   // of all passes of the last step, or 0
	met     bool      // in the step of Options.Passes under way a rank has had a batch
	present []bool    // by parameter: whether it has a gradient
	failed  []*Pass   // whose collectives may be in flight
}

// New returns an engine without a layout.
func New(dev Device, team *ranks.Team, o Options) *Engine {
	return &Engine{o: o, dev: dev, team: team, absent: make(map[absentKey]*Compiled)}
}

// Adopt makes the engine use another layout, for which Check has returned programs. The former
// shards are freed. No gradients are left.
func (e *Engine) Adopt(l *layout.Layout, s Shards, programs Programs) {
	if e.shards != nil {
		e.shards.DropWhole()
		e.shards.Free()
	}
	e.layout, e.shards, e.programs = l, s, programs
	e.compiled, e.needs, e.pending = nil, nil, 0
	clear(e.absent)
	e.dev.Keep(nil)
	e.trained, e.grads = nil, nil
	for g := range l.Groups {
		if v := s.Grad(g); v != nil {
			e.trained, e.grads = append(e.trained, g), append(e.grads, v)
		}
	}
	e.present = make([]bool, len(l.Model.Params))
	e.nothing = &Needs{Grad: make([]bool, len(l.Model.Params))}
}

// Close drops the compiled passes and closes the device.
func (e *Engine) Close() error {
	e.compiled = nil
	clear(e.absent)
	return e.dev.Close()
}

// Device returns the device.
func (e *Engine) Device() Device { return e.dev }

// Shards returns the shards of the present layout.
func (e *Engine) Shards() Shards { return e.shards }

// Pending returns the number of passes whose gradients are not in the shards, because they are not
// reduced, or parts of a step.
func (e *Engine) Pending() int { return e.pending }

// Training returns the variant of a training pass that begins now.
func (e *Engine) Training(noSync bool) Variant {
	t, _ := e.Turn(noSync) // the error is for callers that run the pass
	return Variant{NoSync: noSync, Pending: e.pending > 0 && e.o.Passes == 0, Leafwise: t.Leafwise && !noSync}
}

// Present reports, by parameter, whether it has a gradient. The slice belongs to the engine.
func (e *Engine) Present() []bool { return e.present }

// Grads returns the groups that have gradients in shards, and the shards. Both slices belong to the
// engine.
func (e *Engine) Grads() (groups []int, grads []optim.Vec) { return e.trained, e.grads }

// ZeroGrad drops all gradients in shards.
func (e *Engine) ZeroGrad() error {
	clear(e.present)
	for _, g := range e.grads {
		if err := g.Zero(); err != nil {
			return err
		}
	}
	return nil
}

// DropWhole drops the gradients that are not reduced.
func (e *Engine) DropWhole() {
	e.shards.DropWhole()
	e.pending, e.met = 0, false
}

// Forget drops the rounding errors of gradients, which would travel with the next gradients.
func (e *Engine) Forget() { e.shards.Forget() }

// SyncGrads reduces the gradients that passes have left unreduced.
func (e *Engine) SyncGrads(ctx context.Context) error {
	for i := range e.layout.Groups {
		g := &e.layout.Groups[i]
		if !e.shards.Whole(i) {
			continue
		}
		before := e.o.Before(g)
		if err := e.shards.ReduceWhole(ctx, i, before, e.factor()/float64(before)); err != nil {
			return e.team.Fail(fmt.Errorf("SyncGrads: group %s: %w", g.Name, err))
		}
	}
	e.pending = 0
	return nil
}

// CheckBatch finds tokens and targets that are out of range while the batch can still be refused.
// In the middle of a pass they would make the model unusable.
func (c *Compiled) CheckBatch(batch []exec.Value) error {
	for i, call := range c.Model.Calls {
		for j, r := range call.In {
			if c.Calls[i].Unit == nil || r.Call != program.Batch || batch[r.Out].DType != tensor.Int {
				continue
			}
			if err := c.Calls[i].Unit.Check(j, exec.Data[int](batch[r.Out].Bytes)); err != nil {
				return fmt.Errorf("%s: call %s: %w", c.Path.Input(r.Out), call.Name, err)
			}
		}
	}
	return nil
}

// A Target is a batch tensor of targets: a loss of the forward is a mean over the targets that
// count.
type Target struct {
	Input  int // index of the batch tensor
	Ignore int // the target that does not count
}

// targets returns the batch tensors that are targets of calls of the pass, in their order.
func (c *Compiled) targets() (list []Target) {
	for i, call := range c.Model.Calls {
		if c.Calls[i].Unit == nil {
			continue
		}
		for in := range c.Calls[i].Unit.Forward.All() {
			ignore, loss := in.Op.Attrs.(ops.Ignore)
			if !loss || in.In[1].Space != exec.SpaceIn {
				continue
			}
			t := Target{call.In[in.In[1].Index].Out, ignore.Target}
			if call.In[in.In[1].Index].Call == program.Batch && !slices.Contains(list, t) {
				list = append(list, t)
			}
		}
	}
	slices.SortFunc(list, func(a, b Target) int { return cmp.Compare(a.Input, b.Input) })
	return list
}

// remember keeps the needs of a training pass, for passes without a batch. It returns the kept
// needs, the same pointer for equal needs: passes are found by it.
func (e *Engine) remember(n *Needs) *Needs {
	if e.needs == nil || !reflect.DeepEqual(n, e.needs) {
		e.needs = n
		clear(e.absent)
	}
	return e.needs
}

// absentKey identifies the schedule of a pass without computation.
type absentKey struct {
	Variant
	*Needs
}

// Absent returns a pass without computation. In training it has the needs n, or the last known
// needs if n is nil.
func (e *Engine) Absent(v Variant, n *Needs) (*Compiled, error) {
	switch {
	case v.Eval:
		n = nil
	case n == nil:
		n = e.needs
	}
	k := absentKey{v, n}
	if c := e.absent[k]; c != nil {
		return c, nil
	}
	c := e.newCompiled(v)
	c.Absent = true
	if n != nil {
		c.Needs = n
	}
	if err := e.schedule(c, &program.Sizes{Group: e.groupSizes(c)}); err != nil {
		return nil, err
	}
	e.absent[k] = c
	return c, nil
}

// Settle waits for the collectives of passes that have failed, and of the given passes.
func (e *Engine) Settle(passes ...*Pass) {
	for _, p := range append(e.failed, passes...) {
		p.frame.Settle()
	}
}

// errNoBatch is the reason why no rank can run a pass.
var errNoBatch = errors.New("no rank has a batch")

// told is the leader's description of its pass.
type told struct {
	Variant
	*Needs
	Hash uint64
}

// Agreed is for passes that some ranks run without a batch, or with other schedules. If a rank does
// not know the leader's pass, the leader sends it. Agreed returns the pass that this rank runs: c
// if its schedule is the same, or a pass without computation. In a step of Options.Passes some
// passes may be without a batch on any rank, but not all.
func (e *Engine) Agreed(ctx context.Context, c *Compiled, ans *ranks.Answer) (*Compiled, error) {
	switch {
	case ans.Leader < 0 && e.o.Passes > 1 && (c.Eval || e.met || e.pending+1 < e.o.Passes):
		return e.Absent(c.Variant, e.nothing)
	case ans.Leader < 0:
		if !c.Eval && e.o.Passes > 1 { // a step of nothing has not begun
			e.DropWhole()
		}
		return nil, errNoBatch
	}
	if ans.Known {
		return c, nil
	}
	t := told{Variant: c.Variant, Hash: c.Hash}
	if !c.Eval {
		t.Needs = c.Needs
	}
	said, err := json.Marshal(t)
	if err == nil {
		said, err = e.team.Tell(ctx, ans.Leader, said)
	}
	t = (told{})
	if err == nil {
		err = json.Unmarshal(said, &t)
	}
	if err == nil && t.Hash != c.Hash {
		if !t.Eval {
			t.Needs = e.remember(t.Needs)
		}
		if c, err = e.Absent(t.Variant, t.Needs); err == nil && c.Hash != t.Hash {
			err = fmt.Errorf("rank %d runs schedule %016x, but this rank computes schedule %016x from the same needs", ans.Leader, t.Hash, c.Hash)
		}
	}
	if err != nil {
		return nil, e.team.Fail(fmt.Errorf("receiving the schedule: %w", err))
	}
	return c, nil
}
