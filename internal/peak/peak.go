// Package peak measures how many floating point operations a second cores do at most: in a loop of
// nothing but independent multiply-adds of vectors in registers. Steps of training are compared
// with that, in the same run, as a core's frequency is not known otherwise.
package peak

import (
	"slices"
	"sync"
	"time"
)

// A Kernel is a loop of multiply-adds in registers.
type Kernel struct {
	Name string                 // what it multiplies, and how
	ops  float64                // of a turn
	loop func(n int, x float32) // n turns, of multiply-adds of x
}

// bursts of turns take about a millisecond each. The fastest counts: whatever disturbs a burst
// makes it slower.
const (
	bursts = 20
	turns  = 1 << 16
)

// Rate returns the floating point operations that a core does in a second while so many cores
// compute. It takes some 20 ms.
func (k Kernel) Rate(cores int) float64 {
	rates := make([]float64, cores)
	var wait sync.WaitGroup
	for core := range cores {
		wait.Go(func() {
			for range bursts {
				begin := time.Now()
				k.loop(turns, 0.5)
				rates[core] = max(rates[core], k.ops*turns/time.Since(begin).Seconds())
			}
		})
	}
	wait.Wait()
	return slices.Min(rates)
}
