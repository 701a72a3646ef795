package optim

import "math"

// Schedule returns the learning rate of a step. Steps count from 0, the first update, as
// [Optimizer.Steps] does before it: err := opt.Step(schedule(opt.Steps())). It is a pure function,
// so a resumed job continues where it stopped.
type Schedule func(step int) (lr float64)

// Constant is the same learning rate at every step.
func Constant(lr float64) Schedule { return func(int) float64 { return lr } }

// WarmupCosine rises linearly to peak over the first warmup steps and falls to floor along half a
// cosine until step total (https://arxiv.org/abs/1608.03983), where it stays:
//
//	peak · (step+1)/(warmup+1)                     step < warmup
//	floor + (peak - floor) · (1 + cos πx)/2        warmup <= step < total
//	floor                                          step >= total
//
// where x = (step - warmup)/(total - warmup).
// The first step is never wasted on a rate of zero, and step warmup has exactly peak. A warmup that
// reaches total leaves no decay.
func WarmupCosine(peak, floor float64, warmup, total int) Schedule {
	return warmupThen(peak, floor, warmup, total, func(x float64) float64 { return (1 + math.Cos(math.Pi*x)) / 2 })
}

// WarmupLinear is [WarmupCosine] with a straight line in place of the cosine:
// floor + (peak - floor)·(1 - x).
func WarmupLinear(peak, floor float64, warmup, total int) Schedule {
	return warmupThen(peak, floor, warmup, total, func(x float64) float64 { return 1 - x })
}

// warmupThen joins the three phases; shape falls from 1 at x = 0 to 0 at x = 1.
func warmupThen(peak, floor float64, warmup, total int, shape func(x float64) float64) Schedule {
	return func(step int) float64 {
		switch {
		case step < warmup:
			return peak * float64(step+1) / float64(warmup+1)
		case step < total:
			return floor + (peak-floor)*shape(float64(step-warmup)/float64(total-warmup))
		default:
			return floor
		}
	}
}
