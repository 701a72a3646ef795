// Package stats summarises the samples of the benchmarks. A sample is a time or a ratio. Single
// samples of a busy machine say little, so the benchmarks report medians.
package stats

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Median returns the median of at least one sample.
func Median[T ~int64 | ~float64](samples []T) T {
	s := slices.Sorted(slices.Values(samples))
	n := len(s)
	return (s[(n-1)/2] + s[n/2]) / 2
}

// Geomean returns the geometric mean of at least one ratio.
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

// RatioSpread describes these ratios: their median, and the quartiles.
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

// Load returns the average number of runnable processes in the last minute, or 0 if it is unknown.
func Load() float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	var one float64
	fmt.Sscan(string(text), &one)
	return one
}

// Others returns a function that returns the share of the cores' time that other processes have
// used since, or 0 if it is unknown. Unlike the load it does not count processes that were stopped
// meanwhile.
func Others() (share func() float64) {
	before, mine := used()
	return func() float64 {
		now, own := used()
		all, busy := 0.0, 0.0
		for i := range now {
			d := now[i] - before[i]
			all += d
			if i != idle && i != waiting {
				busy += d
			}
		}
		return max(0, busy-(own-mine)) / max(1, all)
	}
}

// Places in the first line of /proc/stat.
const idle, waiting = 3, 4

// used returns the times of the cores so far, as in the first line of /proc/stat, and the time of
// this process.
func used() (cores [8]float64, own float64) {
	text, _ := os.ReadFile("/proc/stat") // is only there on Linux
	line, _, _ := strings.Cut(string(text), "\n")
	fmt.Sscanf(line, "cpu %f %f %f %f %f %f %f %f", &cores[0], &cores[1], &cores[2], &cores[3], &cores[4], &cores[5], &cores[6], &cores[7])
	text, _ = os.ReadFile("/proc/self/stat")
	_, line, _ = strings.Cut(string(text), ") ")
	if f := strings.Fields(line); len(f) > 12 {
		for _, v := range f[11:13] { // user and system
			ticks, _ := strconv.ParseFloat(v, 64) // of the kernel
			own += ticks
		}
	}
	return cores, own
}
