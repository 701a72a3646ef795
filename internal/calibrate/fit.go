package calibrate

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/fsdp/plan"
)

// A point is a sample with its usual time in seconds.
type point struct {
	sample
	seconds float64
	kept    float64 // see plan.Cluster.Kept
}

// middle returns the mean of the samples without a share at both ends: disturbances of the machine
// make some of them very slow.
func middle(list []float64, share float64) float64 {
	s := slices.Sorted(slices.Values(list))
	cut := int(share * float64(len(s)))
	s = s[cut : len(s)-cut]
	sum := 0.0
	for _, v := range s {
		sum += v
	}
	return max(sum/float64(len(s)), 1e-9)
}

// meets reports whether ranks wait for each other in the sample.
func (s *sample) meets() bool {
	kind := strings.TrimSuffix(s.op, plan.AtOnce)
	return s.ranks > 1 && slices.Contains([]string{"wait", "reduce", "sync", "drain", "pass", "update"}, kind)
}

// rates fits a rate for each operation, type, and number of ranks and threads. It fits two rates
// for operations that were measured both in the cache and beyond it.
func rates(samples map[sample][]float64, c *plan.Cluster) (list []plan.Rate) {
	points := make(map[sample][]point) // by operation
	for s, seconds := range samples {
		of := sample{op: s.op, wide: s.wide, ranks: s.ranks, threads: s.threads}
		share := 0.25
		if s.meets() { // a rank that is slow now and then delays every step of the others
			share = 0.1
		}
		points[of] = append(points[of], point{s, middle(seconds, share), c.Kept(s.ranks, s.touched)})
	}
	for _, of := range slices.SortedFunc(maps.Keys(points), compare) {
		group := points[of]
		slices.SortFunc(group, func(a, b point) int { return compare(a.sample, b.sample) })
		two := apart(group)
		if !two {
			for i := range group {
				group[i].kept = 0
			}
		}
		x := fit(group)
		r := plan.Rate{Op: of.op, Wide: of.wide, Ranks: of.ranks, Fixed: x[0], FLOP: x[1], Byte: x[2], Score: x[3]}
		if of.threads > 1 {
			r.Threads = of.threads
		}
		list = append(list, r)
		if two {
			r.Cached, r.Fixed, r.FLOP, r.Byte, r.Score = true, x[4], x[5], x[6], x[7]
			list = append(list, r)
		}
	}
	return list
}

// apart reports whether some points are in the cache, and some mostly beyond it.
func apart(points []point) bool {
	in := slices.ContainsFunc(points, func(p point) bool { return p.kept == 1 })
	return in && slices.ContainsFunc(points, func(p point) bool { return p.kept < 0.5 })
}

// compare orders samples.
func compare(a, b sample) int {
	wide := func(s sample) int {
		if s.wide {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(a.op, b.op), cmp.Compare(wide(a), wide(b)), cmp.Compare(a.ranks, b.ranks), cmp.Compare(a.threads, b.threads),
		cmp.Compare(a.flops, b.flops), cmp.Compare(a.bytes, b.bytes), cmp.Compare(a.scores, b.scores), cmp.Compare(a.touched, b.touched))
}

// terms is the number of terms of a [plan.Rate], beyond the cache and in it: fixed, by FLOPs, by
// bytes and by scores.
const terms = 8

// fit returns the non-negative terms that explain the points with the least sum of squared errors.
// An error is weighted by the time to the power of 3/4: relative errors of large operations count a
// little more, as steps consist of these. It minimises one term after the other.
func fit(points []point) (x [terms]float64) {
	var a [terms][terms]float64
	var b, scale [terms]float64
	for _, p := range points {
		for i, v := range p.features() {
			scale[i] = max(scale[i], v)
		}
	}
	for _, p := range points {
		f, weight := p.features(), math.Pow(max(p.seconds, 1e-9), -1.5) // a share of a run may be shorter than the clock's resolution
		for i := range f {
			if scale[i] > 0 {
				f[i] /= scale[i]
			}
		}
		for i := range f {
			b[i] += weight * f[i] * p.seconds
			for j := range f {
				a[i][j] += weight * f[i] * f[j]
			}
		}
	}
	for range 20000 {
		for i := range x {
			if a[i][i] == 0 {
				continue
			}
			left := b[i]
			for j := range x {
				left -= a[i][j] * x[j]
			}
			x[i] = max(0, x[i]+left/a[i][i])
		}
	}
	for i := range x {
		if scale[i] > 0 {
			x[i] /= scale[i]
		}
	}
	return x
}

// features returns the factors of the terms.
func (p *point) features() (f [terms]float64) {
	for i, v := range [...]float64{1, float64(p.flops), float64(p.bytes), float64(p.scores)} {
		f[i], f[i+terms/2] = (1-p.kept)*v, p.kept*v
	}
	return f
}
