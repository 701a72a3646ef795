package fsdp

import (
	"context"
	"fmt"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
	"github.com/gofsdp/gofsdp/internal/rng"
	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/shard"
)

// flatGroup is the set of parameters that is gathered, freed and reduced together, and this rank's share of it.
//
//	state        full parameters    full gradients       shard
//	sharded      none               none                 value and gradient, always
//	gathering    being written      -                    read by the group
//	full         valid              -
//	backward     valid              written by calls
//	reducing     none               read by the group    gradient is added to when drained
type flatGroup struct {
	name   string
	layout *shard.Layout
	rank   int
	dtype  DType
	params []int // indices into the model's parameters, in layout order

	value, grad *arena.Block // ShardLen elements each; padding is zero

	gather, reduce comm.Work // in flight, or nil
}

func newFlatGroup(name string, tr *trace, params []int, g comm.Group, dtype DType) (*flatGroup, error) {
	list := make([]shard.Param, len(params))
	for i, p := range params {
		list[i] = shard.Param{Name: tr.params[p].Name, Shape: tr.params[p].Shape}
	}
	layout, err := shard.New(list, g.Size(), shard.DefaultAlign)
	if err != nil {
		return nil, fmt.Errorf("group %s: %w", name, err)
	}
	return &flatGroup{name: name, layout: layout, rank: g.Rank(), dtype: dtype, params: params}, nil
}

// bytes returns the size of the full buffer, shardBytes of one rank's share.
func (f *flatGroup) bytes() int      { return f.layout.Len() * f.dtype.size() }
func (f *flatGroup) shardBytes() int { return f.layout.ShardLen() * f.dtype.size() }

// init allocates the shard and draws this rank's part of every parameter.
func (f *flatGroup) init(tr *trace, a *arena.Arena, seed uint64) (err error) {
	name := ""
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("Init of parameter %s panicked: %v", name, r)
		}
	}()
	if f.value, err = a.Alloc(f.shardBytes(), arena.Shard); err == nil {
		f.grad, err = a.Alloc(f.shardBytes(), arena.Shard)
	}
	if err != nil {
		return fmt.Errorf("group %s: %w", f.name, err)
	}
	clear(f.value.Data)
	clear(f.grad.Data)
	var chunk [4096]float64
	for _, s := range f.layout.Segments(f.rank) {
		p := tr.params[f.params[s.Param]]
		if name = p.Name; p.Init == nil {
			continue
		}
		stream := Stream{rng.New(seed, p.Name)}
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
	if f.dtype == Float64 {
		copy(exec.Data[float64](buf)[at:], src)
		return
	}
	dst := exec.Data[float32](buf)[at:]
	for i, v := range src {
		dst[i] = float32(v)
	}
}

// settle waits for what is in flight, which is over when it has failed, too: then the memory is this rank's again.
func (f *flatGroup) settle() {
	for _, w := range []comm.Work{f.gather, f.reduce} {
		if w != nil {
			_ = w.Wait(context.Background())
		}
	}
	f.gather, f.reduce = nil, nil
}

// buffer returns b as a communication buffer labelled with the group's name.
func (f *flatGroup) buffer(b []byte) comm.Buffer {
	if f.dtype == Float64 {
		return comm.Of(exec.Data[float64](b)).Named(f.name)
	}
	return comm.Of(exec.Data[float32](b)).Named(f.name)
}

// own returns this rank's range of a full buffer.
func (f *flatGroup) own(full []byte) []byte {
	n := f.shardBytes()
	return full[f.rank*n : (f.rank+1)*n : (f.rank+1)*n]
}

// param returns the memory of parameter i of the layout in a full buffer.
func (f *flatGroup) param(full []byte, i int) []byte {
	lo := f.layout.Offset(i) * f.dtype.size()
	hi := lo + f.layout.Params()[i].Len()*f.dtype.size()
	return full[lo:hi:hi]
}

// addGrad adds the reduced gradient in this rank's range of full to the gradient shard.
func (f *flatGroup) addGrad(full []byte) {
	src := f.own(full)
	if f.dtype == Float64 {
		vec.Accumulate(exec.Data[float64](f.grad.Data), exec.Data[float64](src))
	} else {
		vec.Accumulate(exec.Data[float32](f.grad.Data), exec.Data[float32](src))
	}
}

// sumSquares returns the sum of the squares of the gradient shard.
func (f *flatGroup) sumSquares() float64 {
	if f.dtype == Float64 {
		return vec.SumSquares(exec.Data[float64](f.grad.Data))
	}
	return vec.SumSquares(exec.Data[float32](f.grad.Data))
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

// shards returns the segments that this rank owns.
func (f *flatGroup) shards() []optim.Param {
	var list []optim.Param
	for _, s := range f.layout.Segments(f.rank) {
		list = append(list, optim.Param{
			Name: s.Name, Shape: f.layout.Params()[s.Param].Shape, Offset: s.Offset,
			Value: f.vec(f.value.Data, s.At, s.Len), Grad: f.vec(f.grad.Data, s.At, s.Len),
		})
	}
	return list
}

// nonFinite returns the name of the first parameter whose gradient on this rank is not finite, or "".
func (f *flatGroup) nonFinite() string {
	for _, p := range f.shards() {
		if !vec.AllFinite(p.Grad.F32) || !vec.AllFinite(p.Grad.F64) {
			return fmt.Sprintf("%s[%d:%d]", p.Name, p.Offset, p.Offset+p.Grad.Len())
		}
	}
	return ""
}
