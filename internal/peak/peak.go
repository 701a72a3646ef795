// Package peak measures the largest number of floating point operations per second of the cores: in
// a loop of independent vector multiply-adds in registers. Training steps are compared with it in
// the same run, as there is no other way to know a core's frequency.
package peak

import (
	"slices"
	"sync"
	"time"
)

// A Kernel is a loop of multiply-adds in registers.
type Kernel struct {
	Name string                 // the type and the instruction
	ops  float64                // of a turn
	loop func(n int, x float32) // n iterations of multiply-adds of x
}

// bursts of iterations take about a millisecond each. The fastest counts: disturbances only make a
// burst slower.
const (
	bursts = 20
	turns  = 1 << 16
)

// Rate returns the floating point operations per second of one core while the given number of cores
// compute. It takes about 20 ms.
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
