package metrics

import (
	"errors"
	"fmt"
	"math"
	"sort"

	"gorgonia.org/tensor"
)

// Histogram counts numbers by interval:
//
//	count   0            1                     …  len(Edges)
//	x       < Edges[0]   [Edges[0], Edges[1])     >= the last edge
type Histogram struct {
	Edges []float64 // at least one, finite and ascending
	sums
}

// Add adds numbers. NaN is counted separately. Add returns an error, and adds nothing, if Edges is
// invalid.
func (h *Histogram) Add(numbers ...float64) error {
	s, err := h.sized()
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	for _, x := range numbers {
		h.count(s, x)
	}
	return nil
}

// AddTensor adds each number of x.
func (h *Histogram) AddTensor(x tensor.Tensor) error {
	s, err := h.sized()
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	return each(x, func(x float64) error {
		h.count(s, x)
		return nil
	})
}

func (h *Histogram) count(s *sums, x float64) {
	i := sort.Search(len(h.Edges), func(i int) bool { return x < h.Edges[i] })
	if math.IsNaN(x) {
		i = len(h.Edges) + 1
	}
	s.local[i]++
}

// Counts returns the number of values in each interval, over all ranks: one more than there are
// edges.
func (h *Histogram) Counts() []int {
	n := len(h.Edges)
	counts := make([]int, n+1)
	for i, c := range h.totals(n + 2)[:n+1] {
		counts[i] = int(c)
	}
	return counts
}

// NaNs returns the number of NaN values, over all ranks.
func (h *Histogram) NaNs() int {
	n := len(h.Edges)
	return int(h.totals(n + 2)[n+1])
}

// Quantile returns the number below which a share q of all numbers lies, for q in [0, 1]. It treats
// the numbers of an interval as evenly spread. Below the first edge and above the last it returns
// that edge.
func (h *Histogram) Quantile(q float64) float64 {
	counts, all := h.Counts(), 0
	for _, c := range counts {
		all += c
	}
	if all == 0 || !(q >= 0 && q <= 1) {
		return math.NaN()
	}
	left := q * float64(all)
	for i, c := range counts {
		if n := float64(c); n == 0 || left > n {
			left -= n
			continue
		}
		switch i {
		case 0:
			return h.Edges[0]
		case len(h.Edges):
			return h.Edges[i-1]
		}
		lo, hi := h.Edges[i-1], h.Edges[i]
		return lo + (hi-lo)*left/float64(c)
	}
	return h.Edges[len(h.Edges)-1]
}

// Value implements [Metric]. It returns the median, as Quantile does.
func (h *Histogram) Value() float64 { return h.Quantile(0.5) }

func (h *Histogram) sized() (*sums, error) {
	if len(h.Edges) == 0 {
		return nil, errors.New("field Edges is empty")
	}
	if h.local != nil { // they were checked before
		return h.reserve(len(h.Edges) + 2)
	}
	for i, e := range h.Edges {
		if math.IsNaN(e) || math.IsInf(e, 0) || i > 0 && e <= h.Edges[i-1] {
			return nil, fmt.Errorf("field Edges: edge %d is %v: they must be finite and ascend", i, e)
		}
	}
	return h.reserve(len(h.Edges) + 2)
}

func (h *Histogram) description() string { return fmt.Sprint("histogram of ", h.Edges) }
