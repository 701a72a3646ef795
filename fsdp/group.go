package fsdp

import (
	"fmt"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
	"github.com/gofsdp/gofsdp/internal/rng"
	"github.com/gofsdp/gofsdp/optim"
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
	*layout.Group
	mesh ranks.Mesh

	value, grad *arena.Block // ShardLen elements each; padding is zero; grad is nil if frozen
}

// alloc allocates the shard, all zero.
func (f *flatGroup) alloc(a *arena.Arena) (err error) {
	if f.value, err = a.Alloc(f.ShardBytes(), arena.Shard); err == nil && !f.Kind.Frozen {
		f.grad, err = a.Alloc(f.ShardBytes(), arena.Shard)
	}
	if err != nil {
		return fmt.Errorf("group %s: %w", f.Name, err)
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
	for _, s := range f.Segments() {
		p := tr.params[f.Params[s.Param]]
		if name = p.Name; p.Init == nil {
			continue
		}
		stream := Stream{rng.New(seed, f.Stream(name))}
		for done := 0; done < s.Len; done += len(chunk) {
			part := chunk[:min(len(chunk), s.Len-done)]
			p.Init(stream, s.Offset+done, part)
			f.store(f.value.Data, s.At+done, part)
		}
	}
	return nil
}

// store writes src to elements at, at+1, … of a buffer of the group's type.
func (f *flatGroup) store(buf []byte, at int, src []float64) {
	if f.Compute == comm.Float64 {
		copy(exec.Data[float64](buf)[at:], src)
		return
	}
	dst := exec.Data[float32](buf)[at:]
	for i, v := range src {
		dst[i] = float32(v)
	}
}

// scaleGrad multiplies the gradient shard by c.
func (f *flatGroup) scaleGrad(c float64) {
	if f.Compute == comm.Float64 {
		vec.Scale(exec.Data[float64](f.grad.Data), c)
	} else {
		vec.Scale(exec.Data[float32](f.grad.Data), float32(c))
	}
}

// vec returns n elements of a shard buffer from element at on.
func (f *flatGroup) vec(buf []byte, at, n int) optim.Host {
	if f.Compute == comm.Float64 {
		return optim.Host{F64: exec.Data[float64](buf)[at : at+n : at+n]}
	}
	return optim.Host{F32: exec.Data[float32](buf)[at : at+n : at+n]}
}
