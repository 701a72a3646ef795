package fsdp

import (
	"math"

	"github.com/gofsdp/gofsdp/optim"
)

// PoisonPadding sets what belongs to no parameter to NaN, in the shards of parameters and
// gradients.
func PoisonPadding(s *Sharded) error {
	for i := range s.layout.Groups {
		g := &s.layout.Groups[i]
		owned := make([]bool, g.Flat.ShardLen())
		for _, seg := range g.Segments() {
			for i := range seg.Len {
				owned[seg.At+i] = true
			}
		}
		for _, v := range []optim.Vec{s.engine.Shards().Value(i), s.engine.Shards().Grad(i)} {
			if v == nil {
				continue
			}
			nan := optim.Host{F32: []float32{float32(math.NaN())}}
			if v.Float64() {
				nan = optim.Host{F64: []float64{math.NaN()}}
			}
			for at, own := range owned {
				if own {
					continue
				}
				if err := v.Slice(at, at+1).Write(nan); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
