package metrics

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/gofsdp/gofsdp/comm"
)

// A Metric is one of this package: its fields say what it measures, and are the same on every rank.
// The zero value of the rest has seen nothing. It is for one goroutine at a time.
type Metric interface {
	// Value returns the result over all ranks, as of the last Reduce; NaN if there was none, or if
	// nothing had been added.
	Value() float64
	// Reset forgets what this rank has added. The results of the last Reduce stay.
	Reset()
	// sized returns the sums, as many as on every rank.
	sized() (*sums, error)
	// what describes the metric: ranks compare it.
	what() string
}

// sums are what a metric adds up, and the totals of the last Reduce.
type sums struct{ local, total []float64 }

// Reset forgets what this rank has added. The results of the last Reduce stay.
func (s *sums) Reset() { clear(s.local) }

// of returns s with room for n sums.
func (s *sums) of(n int) (*sums, error) {
	if s.local == nil {
		s.local = make([]float64, n)
	}
	if len(s.local) != n {
		return nil, errors.New("fields have changed since the first Add")
	}
	return s, nil
}

// totals returns the n sums over all ranks, zeros before the first Reduce.
func (s *sums) totals(n int) []float64 {
	if len(s.total) != n {
		s.total = make([]float64, n)
	}
	return s.total
}

// A Set is metrics by name.
type Set map[string]Metric

// Reduce adds up what all ranks have added since the last Reset, and returns the values by name, on
// every rank; the metrics have the rest, such as the counts of a [Histogram]. It is a collective of
// g, the group of the model, in which the model must not be in the middle of a call; nil is for one
// process. Ranks whose sets have other names, or metrics with other fields, get a
// [comm.MismatchError]. So do the others of a rank whose set is of no use, such as one with a field
// that has changed since the first Add; that rank returns why. What ranks have added stays: a Reduce in the middle of an epoch is of all
// that has been added since its beginning.
func (s Set) Reduce(ctx context.Context, g comm.Group) (map[string]float64, error) {
	names := slices.Sorted(maps.Keys(s))
	each, all, label, refused := s.sums(names)
	if refused != nil {
		all, label = []float64{0}, refused.Error() // the others must not wait for this rank
	}
	if g != nil {
		err := g.AllReduce(comm.Of(all).Named(label), comm.Sum).Wait(ctx)
		if err != nil && refused == nil {
			return nil, fmt.Errorf("metrics: rank %d: %w", g.Rank(), err)
		}
	}
	if refused != nil {
		return nil, refused
	}
	values := make(map[string]float64, len(s))
	for i, name := range names {
		n := len(each[i].local)
		each[i].total, all = all[:n:n], all[n:]
		values[name] = s[name].Value()
	}
	return values, nil
}

// sums returns those of each name, all of them in a row, and what ranks compare.
func (s Set) sums(names []string) (each []*sums, all []float64, label string, err error) {
	label = "metrics"
	for _, name := range names {
		m := s[name]
		if m == nil {
			return nil, nil, "", fmt.Errorf("metrics: %s is nil", name)
		}
		sums, err := m.sized()
		if err != nil {
			return nil, nil, "", fmt.Errorf("metrics: %s: %w", name, err)
		}
		each, all = append(each, sums), append(all, sums.local...)
		label += fmt.Sprintf(" %s: %s", name, m.what())
	}
	return each, all, label, nil
}

// Reset forgets what this rank has added to any metric. The results of the last Reduce stay.
func (s Set) Reset() {
	for _, m := range s {
		m.Reset()
	}
}
