package optim

import (
	"log/slog"
	"math"
	"slices"
)

// Schedule returns the learning rate of a step. Steps count from 0, the first update, as
// [Optimizer.Steps] does before it: err := opt.Step(schedule(opt.Steps())). A Schedule is a pure
// function, so a resumed job continues where it stopped.
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
// The first step has a rate above zero, and step warmup has exactly peak. If warmup is not less
// than total, there is no decay, and a warning is logged.
func WarmupCosine(peak, floor float64, warmup, total int) Schedule {
	return warmupThen(peak, floor, warmup, total, func(x float64) float64 { return (1 + math.Cos(math.Pi*x)) / 2 })
}

// WarmupLinear is [WarmupCosine] with a straight line in place of the cosine:
// floor + (peak - floor)·(1 - x).
func WarmupLinear(peak, floor float64, warmup, total int) Schedule {
	return warmupThen(peak, floor, warmup, total, func(x float64) float64 { return 1 - x })
}

// WarmupPolynomial is [WarmupCosine] with a power in place of the cosine:
// floor + (peak - floor)·(1 - x)^power.
func WarmupPolynomial(peak, floor float64, warmup, total int, power float64) Schedule {
	return warmupThen(peak, floor, warmup, total, func(x float64) float64 { return math.Pow(1-x, power) })
}

// WarmupInverseSqrt rises like [WarmupCosine] and then falls as 1/√step, without an end
// (https://arxiv.org/abs/1706.03762): peak · √((warmup+1)/(step+1)).
func WarmupInverseSqrt(peak float64, warmup int) Schedule {
	return Warmup(warmup, func(step int) float64 { return peak * math.Sqrt(float64(warmup+1)/float64(max(step, warmup)+1)) })
}

// WSD rises like [WarmupCosine], stays at peak, and falls to floor in a straight line over the last
// decay steps before total: warmup, stable, decay (https://arxiv.org/abs/2404.06395). A training
// can continue from before the decay with a larger total.
//
//	peak · (step+1)/(warmup+1)                              step < warmup
//	peak                                                    step < total - decay
//	floor + (peak - floor) · (total - step)/decay           step < total
//	floor                                                   step >= total
func WSD(peak, floor float64, warmup, decay, total int) Schedule {
	if warmup+decay > total {
		slog.Warn("optim: WSD: warmup and decay take more steps than total: the order of the arguments is warmup, decay, total",
			"warmup", warmup, "decay", decay, "total", total)
	}
	return Warmup(warmup, func(step int) float64 {
		left := float64(total-step) / float64(max(decay, 1))
		return floor + (peak-floor)*min(max(left, 0), 1)
	})
}

// StepDecay begins at peak and is multiplied by factor at each of these steps. The rate is peak ·
// factor^n, where n is how many of these steps are at most step.
func StepDecay(peak, factor float64, at ...int) Schedule {
	at = slices.Sorted(slices.Values(at))
	return func(step int) float64 {
		n, _ := slices.BinarySearch(at, step+1)
		return peak * math.Pow(factor, float64(n))
	}
}

// Warmup begins any schedule with a linear rise: its rate times (step+1)/(warmup+1) before step
// warmup.
func Warmup(warmup int, s Schedule) Schedule {
	return func(step int) float64 {
		if step < warmup {
			return s(step) * float64(step+1) / float64(warmup+1)
		}
		return s(step)
	}
}

// warmupThen joins the three phases; shape falls from 1 at x = 0 to 0 at x = 1.
func warmupThen(peak, floor float64, warmup, total int, shape func(x float64) float64) Schedule {
	if warmup >= total {
		slog.Warn("optim: the warmup of a schedule takes all of its steps, so its rate does not fall: the order of the arguments is warmup, total",
			"warmup", warmup, "total", total)
	}
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
