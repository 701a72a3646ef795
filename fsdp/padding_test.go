package fsdp

import "math"

// PoisonPadding sets what belongs to no parameter to NaN, in the shards of parameters and gradients.
func PoisonPadding(s *Sharded) {
	nan := []float64{math.NaN()}
	for _, g := range s.groups {
		owned := make([]bool, g.Flat.ShardLen())
		for _, seg := range g.Segments() {
			for i := range seg.Len {
				owned[seg.At+i] = true
			}
		}
		for i, own := range owned {
			if own {
				continue
			}
			g.store(g.value.Data, i, nan)
			if g.grad != nil {
				g.store(g.grad.Data, i, nan)
			}
		}
	}
}
