package fsdp

import (
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
	"github.com/gofsdp/gofsdp/internal/program"
	"github.com/gofsdp/gofsdp/internal/rng"
	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/shard"
)

// flatGroup is the set of parameters that is gathered, freed and reduced together, and this rank's share of it.
//
//	state        full parameters    full gradients       shard
//	sharded      none               none                 value, and gradient if it is trained, always
//	gathering    being written      -                    read by the group
//	full         valid              -
//	backward     valid              written by calls
//	reducing     none               read by the group    gradient is added to when drained
//
// What is held by every rank (program.Always) has no full parameters but its value.
type flatGroup struct {
	name   string
	layout *shard.Layout
	mesh   *mesh
	peers  comm.Group // all ranks that have these parameters, or buffers
	kind   kind
	hold   program.Hold
	dtype  DType // of computation and of the shard
	gather DType // of the parameters that travel
	reduce DType // of the gradients that travel
	params []int // indices into the model's parameters, in layout order

	value, grad *arena.Block // ShardLen elements each; padding is zero; grad is nil if frozen
}

func newFlatGroup(name string, tr *trace, params []int, m *mesh, k kind, p Precision) (*flatGroup, error) {
	list := make([]shard.Param, len(params))
	for i, p := range params {
		list[i] = shard.Param{Name: tr.params[p].Name, Shape: tr.params[p].Shape}
	}
	layout, err := shard.New(list, m.shard.Size(), shard.DefaultAlign)
	if err != nil {
		return nil, fmt.Errorf("group %s: %w", name, err)
	}
	if layout.Len() > math.MaxInt/Float64.size() {
		return nil, fmt.Errorf("group %s: %d elements are more bytes than an int can count", name, layout.Len())
	}
	f := &flatGroup{
		name: name, layout: layout, mesh: m, kind: k, params: params,
		dtype: p.Compute, gather: p.Gather, reduce: p.Reduce,
	}
	if k.full {
		f.gather, f.reduce = p.Compute, p.Compute
	}
	return f, nil
}

// schedule describes the group to the scheduler.
func (f *flatGroup) schedule(unit string) program.Group {
	wire := f.layout.Len() * f.gather.size()
	if !f.kind.frozen {
		wire = max(wire, f.layout.Len()*f.reduce.size())
	}
	return program.Group{
		Name: f.name, Unit: unit, Hold: f.hold, Frozen: f.kind.frozen, Bytes: wire,
		Shards: f.mesh.shard.Size(), Replicas: f.mesh.replicas(),
	}
}

// sizes returns the bytes of the group's full buffers.
func (f *flatGroup) sizes() program.GroupSizes {
	n := f.layout.Len()
	return program.GroupSizes{
		Params: n * f.dtype.size(), Grads: n * f.dtype.size(),
		ParamsWire: n * f.gather.size(), GradsWire: n * f.reduce.size(),
	}
}

// bytes returns the size of the full buffer, shardBytes of one rank's share.
func (f *flatGroup) bytes() int      { return f.layout.Len() * f.dtype.size() }
func (f *flatGroup) shardBytes() int { return f.layout.ShardLen() * f.dtype.size() }

// alloc allocates the shard, all zero.
func (f *flatGroup) alloc(a *arena.Arena) (err error) {
	if f.value, err = a.Alloc(f.shardBytes(), arena.Shard); err == nil && !f.kind.frozen {
		f.grad, err = a.Alloc(f.shardBytes(), arena.Shard)
	}
	if err != nil {
		return fmt.Errorf("group %s: %w", f.name, err)
	}
	clear(f.value.Data)
	if f.grad != nil {
		clear(f.grad.Data)
	}
	return nil
}

// free gives the shard back.
func (f *flatGroup) free(a *arena.Arena) {
	a.Free(f.value)
	a.Free(f.grad)
	f.value, f.grad = nil, nil
}

// draw sets this rank's part of every parameter to its initial value.
func (f *flatGroup) draw(tr *trace, seed uint64) (err error) {
	name := ""
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("Init of parameter %s panicked: %v", name, r)
		}
	}()
	var chunk [4096]float64
	for _, s := range f.segments() {
		p := tr.params[f.params[s.Param]]
		if name = p.Name; p.Init == nil {
			continue
		}
		stream := Stream{rng.New(seed, f.streamName(name))}
		for done := 0; done < s.Len; done += len(chunk) {
			part := chunk[:min(len(chunk), s.Len-done)]
			p.Init(stream, s.Offset+done, part)
			f.store(f.value.Data, s.At+done, part)
		}
	}
	return nil
}

// streamName names the random numbers of a parameter: others in every group of the user's that has one of that name.
func (f *flatGroup) streamName(param string) string {
	if f.mesh.leader > 0 {
		return fmt.Sprintf("%s of rank %d", param, f.mesh.leader)
	}
	return param
}

// store writes src to elements at, at+1, … of a buffer of the group's type.
func (f *flatGroup) store(buf []byte, at int, src []float64) {
	if f.dtype == Float64 {
		copy(exec.Data[float64](buf)[at:], src)
		return
	}
	dst := exec.Data[float32](buf)[at:]
	for i, v := range src {
		dst[i] = float32(v)
	}
}

// segments returns what this rank owns.
func (f *flatGroup) segments() []shard.Segment { return f.layout.Segments(f.mesh.shard.Rank()) }

// param returns the memory of parameter i of the layout in a full buffer.
func (f *flatGroup) param(full []byte, i int) []byte {
	lo := f.layout.Offset(i) * f.dtype.size()
	hi := lo + f.layout.Params()[i].Len()*f.dtype.size()
	return full[lo:hi:hi]
}

// scaleGrad multiplies the gradient shard by c.
func (f *flatGroup) scaleGrad(c float64) {
	if f.dtype == Float64 {
		vec.Scale(exec.Data[float64](f.grad.Data), c)
	} else {
		vec.Scale(exec.Data[float32](f.grad.Data), float32(c))
	}
}

// vec returns n elements of a shard buffer from element at on.
func (f *flatGroup) vec(buf []byte, at, n int) optim.Vec {
	if f.dtype == Float64 {
		return optim.Vec{F64: exec.Data[float64](buf)[at : at+n : at+n]}
	}
	return optim.Vec{F32: exec.Data[float32](buf)[at : at+n : at+n]}
}
