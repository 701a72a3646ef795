package monitor

import (
	"slices"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/peak"
)

// MeasurePeak returns the maximum number of floating-point operations per second of the given
// number of cores on products of a type, for Config.Peak of a rank that computes on them. It
// measures a loop of fused multiply-adds only, in about 20 ms. If the processor cannot multiply
// bfloat16, the result is for float32. It is 0 where this package cannot measure: for float64, and
// on processors other than x86-64 with AVX2. Measure on all ranks of a host at the same time, as
// they train.
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

// utilisation returns the share of the ranks' peak that flops operations per second use.
func (m *Monitor) utilisation(flops float64) float64 {
	ranks := 1
	if m.cfg.Group != nil {
		ranks = m.cfg.Group.Size()
	}
	return flops / (m.cfg.Peak * float64(ranks))
}
