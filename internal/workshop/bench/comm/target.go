package comm

import (
	"fmt"
	"math"
	"slices"

	"github.com/gofsdp/gofsdp/internal/workshop/bench/stats"
)

// results holds the seconds of one operation in each round, by cell and candidate.
type results map[cell]map[string][]float64

// target is the required speed of a candidate relative to an anchor: the geometric mean over tensor
// sizes of anchor time divided by candidate time. If there are several anchors, the fastest counts,
// size by size.
type target struct {
	world     int
	candidate string
	against   string // common name of the anchors
	anchors   []string
	least     int                // bytes of the smallest tensor that counts
	only      int                // the one size that counts, or 0
	factors   map[string]float64 // by operation
}

var (
	ompi = []string{"ompi-shm"}
	mpi  = []string{"ompi-tcp", "mpich-tcp"}
	gloo = []string{"gloo"}
	wall = []string{"memcpy"}
)

// targets are some 15 to 35 percent below the speed of prototypes, which shared machines need.
var targets = []target{
	{2, "local", "Open MPI shm", ompi, 0, 0, factors(0.6, 1.4, 3, 2.2, 1.2)},
	{4, "local", "Open MPI shm", ompi, 0, 0, factors(1, 1.8, 5, 2.5, 2)},
	{2, "local", "memcpy", wall, 0, 16 << 20, factors(0, 0.85, 0, 0, 0)},
	{2, "shm", "Open MPI shm", ompi, 0, 0, factors(0.65, 1.4, 3, 2, 1.2)},
	{4, "shm", "Open MPI shm", ompi, 0, 0, factors(0.9, 1.8, 5, 2.5, 2)},
	{2, "shm-staged", "Open MPI shm", ompi, 64 << 10, 0, factors(0, 0.65, 1.6, 1.3, 0)},
	{4, "shm-staged", "Open MPI shm", ompi, 64 << 10, 0, factors(0, 0.65, 3, 1.3, 0)},
	{2, "tcp", "Gloo", gloo, 0, 0, factors(5, 1.6, 1.6, 1.8, 1.4)},
	{4, "tcp", "Gloo", gloo, 64 << 10, 0, factors(0, 1.8, 2, 1.8, 0)},
	{2, "tcp", "best MPI tcp", mpi, 0, 0, factors(0.75, 0.8, 1.2, 1.2, 0.85)},
	{4, "tcp", "Open MPI tcp", mpi[:1], 0, 0, factors(0.8, 0.75, 1.3, 1, 0)},
}

// factors names the targets of one row; 0 is none.
func factors(flag, allGather, reduceScatter, allReduce, broadcast float64) map[string]float64 {
	return map[string]float64{"flag": flag, "all-gather": allGather, "reduce-scatter": reduceScatter, "all-reduce": allReduce, "broadcast": broadcast}
}

// verdict compares a measured ratio with its target.
type verdict struct {
	World     int     `json:"world"`
	Op        string  `json:"op"`
	Candidate string  `json:"candidate"`
	Against   string  `json:"against"`
	Ratio     float64 `json:"ratio"`  // anchor time by candidate time, of the medians
	Best      float64 `json:"best"`   // of the best rounds, which were disturbed least
	Target    float64 `json:"target"` // 0: no target, the ratio is for information
	Sizes     int     `json:"sizes"`  // number of sizes in the mean
}

// String returns PASS or miss, or "" if there is no target.
func (v verdict) String() string {
	switch {
	case v.Target == 0:
		return ""
	case v.Ratio >= v.Target:
		return "PASS"
	}
	return "miss"
}

// judgeTargets returns the verdicts for a world, operation by operation, without operations that
// were not measured.
func judgeTargets(r results, world int, ops []string) []verdict {
	var list []verdict
	for _, t := range targets {
		for _, op := range ops {
			if t.world != world || t.only > 0 && t.factors[op] == 0 {
				continue
			}
			if ratios := t.ratios(r, op, stats.Median[float64]); len(ratios) > 0 {
				best := stats.Geomean(t.ratios(r, op, slices.Min))
				list = append(list, verdict{world, op, t.candidate, t.describe(), stats.Geomean(ratios), best, t.factors[op], len(ratios)})
			}
		}
	}
	return list
}

// describe names the anchor, and the sizes if not all count.
func (t target) describe() string {
	switch {
	case t.only > 0:
		return fmt.Sprintf("%s, %s", t.against, sizeName(t.only))
	case t.least > 0:
		return fmt.Sprintf("%s, from %s", t.against, sizeName(t.least))
	}
	return t.against
}

// ratios returns anchor time divided by candidate time for all sizes of op that count and were
// measured for both. pick reduces the times of all rounds to one.
func (t target) ratios(r results, op string, pick func([]float64) float64) []float64 {
	var list []float64
	for c, times := range r {
		tensor := c.Bytes > elementSize
		if c.World != t.world || c.Op != op || tensor && c.Bytes < t.least || t.only > 0 && c.Bytes != t.only {
			continue
		}
		anchor := math.Inf(1)
		for _, name := range t.anchors {
			if rounds := times[name]; len(rounds) > 0 {
				anchor = min(anchor, pick(rounds))
			}
		}
		if ours := times[t.candidate]; len(ours) > 0 && !math.IsInf(anchor, 1) {
			list = append(list, anchor/pick(ours))
		}
	}
	slices.Sort(list) // so that the mean does not depend on the order of a map
	return list
}
