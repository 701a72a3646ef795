package metrics

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/gofsdp/gofsdp/comm"
)

// A Metric is one of the metrics of this package. Its fields configure it and must be the same on
// every rank. Everything else is zero in a new metric. One goroutine at a time may use it.
type Metric interface {
	// Value returns the result over all ranks, as of the last Reduce. It is NaN before the first
	// Reduce, or if nothing had been added.
	Value() float64
	// Reset forgets the additions of this rank. The results of the last Reduce stay.
	Reset()
	// sized returns the sums, the same number on every rank.
	sized() (*sums, error)
	// what describes the metric. Ranks compare the descriptions.
	description() string
}

// sums has the sums of a metric, and the totals of the last Reduce.
type sums struct{ local, total []float64 }

// Reset forgets the additions of this rank. The results of the last Reduce stay.
func (s *sums) Reset() { clear(s.local) }

// reserve returns s with room for n sums.
func (s *sums) reserve(n int) (*sums, error) {
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

// A Set is a set of metrics by name.
type Set map[string]Metric

// Reduce sums the additions of all ranks since the last Reset, and returns the values by name, on
// every rank. The metrics have the rest, such as the counts of a [Histogram]. Reduce is a
// collective of g, the group of the model, and must not run during a call of the model; g is nil
// for one process. Ranks whose sets have other names, or metrics with other fields, get a
// [comm.MismatchError]. If the set of one rank is invalid, for example because a field has changed
// since the first Add, this rank returns the reason, and the others get a [comm.MismatchError]. The
// additions stay: a Reduce in the middle of an epoch covers all additions since the beginning of
// the epoch.
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

// sums returns the sums of each metric, all sums in a row, and the label that ranks compare.
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
		label += fmt.Sprintf(" %s: %s", name, m.description())
	}
	return each, all, label, nil
}

// Reset forgets all additions of this rank to any metric. The results of the last Reduce stay.
func (s Set) Reset() {
	for _, m := range s {
		m.Reset()
	}
}
