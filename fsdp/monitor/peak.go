package monitor

import (
	"slices"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/peak"
)

// MeasurePeak returns how many floating-point operations a second so many cores do at most on products
// of a type, for Config.Peak of a rank that computes on them: the fused multiply-adds of a loop that
// does nothing else. It takes some 20 ms. Where the processor does not multiply bfloat16 it is that of
// float32. It is 0 where this package cannot measure it: for float64, and on other processors than
// x86-64 with AVX2. Measure on all ranks of a host at once, as they train at once.
func MeasurePeak(cores int, compute fsdp.DType) float64 {
	kernels := peak.Kernels()
	kernel, ok := kernels[compute == fsdp.BFloat16]
	if !ok && compute == fsdp.BFloat16 {
		kernel, ok = kernels[false]
	}
	if !ok || compute == fsdp.Float64 || cores < 1 {
		return 0
	}
	return kernel.Rate(cores) * float64(cores)
}

// flops returns the floating-point operations that the run needs for one unit.
func (c *Config) flops() float64 {
	if c.Plan == nil || !slices.ContainsFunc(c.Plan.Groups, func(g fsdp.GroupPlan) bool { return g.Frozen }) {
		return float64(c.FLOPs)
	}
	cost := c.Plan.Pass.Cost()
	return float64(c.FLOPs) * float64(cost.Needed) / float64(cost.Trained)
}

// utilisation returns the share of the ranks' peak that so many operations in a second are.
func (m *Monitor) utilisation(flops float64) float64 {
	ranks := 1
	if m.cfg.Group != nil {
		ranks = m.cfg.Group.Size()
	}
	return flops / (m.cfg.Peak * float64(ranks))
}
