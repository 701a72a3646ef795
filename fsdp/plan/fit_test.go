package plan_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/fsdp/plan"
)

// A knob is a constant that is fitted, for GPUs whose name begins with of.
type knob struct {
	name, of string
	at       func(c *plan.Cluster) *float64
	lo, hi   float64
}

var knobs = []knob{
	{"Software.Product", "a100", func(c *plan.Cluster) *float64 { return &c.Software.Product }, 0.4, 0.98},
	{"Software.Product", "h100", func(c *plan.Cluster) *float64 { return &c.Software.Product }, 0.4, 0.98},
	{"Software.Attention", "a100", func(c *plan.Cluster) *float64 { return &c.Software.Attention }, 0.1, 0.9},
	{"Software.Attention", "h100", func(c *plan.Cluster) *float64 { return &c.Software.Attention }, 0.05, 0.9},
	{"Software.Depth", "", func(c *plan.Cluster) *float64 { return &c.Software.Depth }, 1, 600},
	{"Software.SmallHead", "", func(c *plan.Cluster) *float64 { return &c.Software.SmallHead }, 0.4, 1.5},
	{"Software.Traffic", "", func(c *plan.Cluster) *float64 { return &c.Software.Traffic }, 1, 4},
	{"Software.Overlap", "", func(c *plan.Cluster) *float64 { return &c.Software.Overlap }, 0.001, 0.2},
	{"Software.Step", "", func(c *plan.Cluster) *float64 { return &c.Software.Step }, 1e-4, 0.06},
	{"Between.Hop", "", func(c *plan.Cluster) *float64 { return &c.Between.Hop }, 1e-6, 2e-5},
}

// fitClusters sets the knobs of the clusters so that the rows for the fit are predicted best: the sum
// of soft absolute values of the logarithms of the ratios, by the method of Nelder and Mead (1965).
func fitClusters(t *testing.T, all []*prediction) {
	var list []*prediction
	for _, p := range all {
		if p.forFit() && p.memory <= 0.85 {
			list = append(list, p)
		}
	}
	set := func(x []float64) {
		for i, k := range knobs {
			v := math.Exp(min(max(x[i], math.Log(k.lo)), math.Log(k.hi)))
			for _, p := range all {
				if strings.HasPrefix(p.gpu, k.of) {
					*k.at(p.cluster) = v
				}
			}
		}
	}
	loss := func(x []float64) (sum float64) {
		set(x)
		for _, p := range list {
			e := math.Log1p(p.error()) / 0.05
			sum += math.Sqrt(1+e*e) - 1
		}
		for i, k := range knobs { // beyond the bounds nothing changes
			sum += math.Abs(x[i] - min(max(x[i], math.Log(k.lo)), math.Log(k.hi)))
		}
		return sum
	}
	x := make([]float64, len(knobs))
	for i, k := range knobs {
		for _, p := range list {
			if strings.HasPrefix(p.gpu, k.of) {
				x[i] = math.Log(*k.at(p.cluster))
			}
		}
	}
	for range 4 { // again from where it ended, with a fresh simplex
		x = minimise(loss, x, 0.2, 1500)
	}
	set(x)
	t.Logf("loss %.3f over %d rows", loss(x), len(list))
	for i, k := range knobs {
		t.Logf("%s %s %.3g", k.name, k.of, math.Exp(min(max(x[i], math.Log(k.lo)), math.Log(k.hi))))
	}
}

// minimise returns where f is least, near x.
func minimise(f func([]float64) float64, x []float64, size float64, steps int) []float64 {
	type vertex struct {
		x []float64
		f float64
	}
	var s []vertex
	for i := -1; i < len(x); i++ {
		v := slices.Clone(x)
		if i >= 0 {
			v[i] += size
		}
		s = append(s, vertex{v, f(v)})
	}
	n := len(x)
	at := func(center, from []float64, by float64) vertex {
		v := make([]float64, n)
		for i := range v {
			v[i] = center[i] + by*(from[i]-center[i])
		}
		return vertex{v, f(v)}
	}
	for range steps {
		slices.SortFunc(s, func(a, b vertex) int { return int(math.Copysign(1, a.f-b.f)) })
		center := make([]float64, n)
		for _, v := range s[:n] {
			for i := range center {
				center[i] += v.x[i] / float64(n)
			}
		}
		switch r := at(center, s[n].x, -1); {
		case r.f < s[0].f:
			if e := at(center, s[n].x, -2); e.f < r.f {
				r = e
			}
			s[n] = r
		case r.f < s[n-1].f:
			s[n] = r
		default:
			if c := at(center, s[n].x, 0.5); c.f < s[n].f {
				s[n] = c
				continue
			}
			for i := 1; i <= n; i++ {
				s[i] = at(s[0].x, s[i].x, 0.5)
			}
		}
	}
	return s[0].x
}
