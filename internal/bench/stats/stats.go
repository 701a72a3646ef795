// Package stats is what the benchmarks make of their samples. A sample is a time or a ratio; single
// ones of a busy machine say little, so what is reported is a median.
package stats

import (
	"fmt"
	"math"
	"os"
	"slices"
	"time"
)

// Median returns the middle of the samples, of which there is one at least, or the mean of the two
// in the middle.
func Median[T ~int64 | ~float64](samples []T) T {
	s := slices.Sorted(slices.Values(samples))
	n := len(s)
	return (s[(n-1)/2] + s[n/2]) / 2
}

// Geomean returns the geometric mean of ratios, of which there is one at least.
func Geomean(ratios []float64) float64 {
	sum := 0.0
	for _, r := range ratios {
		sum += math.Log(r)
	}
	return math.Exp(sum / float64(len(ratios)))
}

// ratios returns the ratios of samples that were taken one after the other.
func ratios[T ~int64 | ~float64](samples, to []T) []float64 {
	list := make([]float64, len(samples))
	for i := range samples {
		list[i] = float64(samples[i]) / float64(to[i])
	}
	return list
}

// Ratio returns the median of the ratios of samples that were taken one after the other.
func Ratio[T ~int64 | ~float64](samples, to []T) float64 { return Median(ratios(samples, to)) }

// RatioSpread describes these ratios: their median, and the least and the greatest of the half in
// the middle.
func RatioSpread[T ~int64 | ~float64](samples, to []T) string {
	s := slices.Sorted(slices.Values(ratios(samples, to)))
	return fmt.Sprintf("%.3f (%.3f..%.3f)", Median(s), s[len(s)/4], s[(3*len(s)-1)/4])
}

// Ms returns t in milliseconds.
func Ms(t time.Duration) float64 { return t.Seconds() * 1e3 }

// MB returns bytes in megabytes.
func MB(bytes int) float64 { return float64(bytes) / 1e6 }

// Spread describes times in milliseconds: their median, least, greatest and number.
func Spread(times []time.Duration) string {
	return fmt.Sprintf("%.1f (%.1f..%.1f, %d)", Ms(Median(times)), Ms(slices.Min(times)), Ms(slices.Max(times)), len(times))
}

// Load returns how many processes have wanted a core in the last minute, or 0 if nobody says.
func Load() float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	var one float64
	fmt.Sscan(string(text), &one)
	return one
}
