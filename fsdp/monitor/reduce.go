package monitor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/gofsdp/gofsdp/comm"
)

// A mean is a weighted mean. What has no weight counts only as long as nothing has: then all of it
// counts alike. The mean of equal values is that value, to the bit.
type mean struct {
	value, weight float64
	alike         int // values without weight
}

func (a *mean) add(x, weight float64) {
	switch {
	case weight > 0 && a.weight == 0:
		a.value, a.weight = x, weight
	case weight > 0:
		a.weight += weight
		a.toward(x, (x-a.value)*(weight/a.weight))
	case a.weight == 0:
		a.alike++
		a.toward(x, (x-a.value)/float64(a.alike))
	}
}

// toward moves the mean by a step on the way to x. An infinity stays one.
func (a *mean) toward(x, step float64) {
	if !finite(x) || !finite(a.value) {
		a.value += x
		return
	}
	a.value += step
}

// result returns the mean, and whether there is one.
func (a *mean) result() (float64, bool) { return a.value, a.weight > 0 || a.alike > 0 }

// A table holds values by name from one row to the next. Names keep the place where they first came.
type table struct {
	label  string // of the exchange; the names follow
	prefix string // of what is added
	index  map[string]int
	names  []string // with the prefix
	means  []mean   // of this rank since the last row
	fresh  []string
	// results are over all ranks, of the last row.
	results []mean
}

// add counts values with a weight. Names that are new get places in their order.
func (t *table) add(values map[string]float64, weight float64) error {
	t.fresh = t.fresh[:0]
	for name := range values {
		if _, ok := t.index[name]; !ok {
			t.fresh = append(t.fresh, name)
		}
	}
	slices.Sort(t.fresh)
	for _, name := range t.fresh {
		if err := legal(t.prefix + name); err != nil {
			return err
		}
		t.insert(name)
	}
	for name, v := range values {
		t.means[t.index[name]].add(v, weight)
	}
	return nil
}

func (t *table) insert(name string) {
	if t.index == nil {
		t.index = make(map[string]int)
	}
	t.index[name] = len(t.names)
	t.names = append(t.names, t.prefix+name)
	t.means = append(t.means, mean{})
	t.results = append(t.results, mean{})
	t.label += " " + name
}

// legal returns why a value must not have that name.
func legal(name string) error {
	switch {
	case name == "" || strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("%q is no name of a value", name)
	case name == "step" || name == "time" || strings.HasPrefix(name, "run/"):
		return fmt.Errorf("the name %q belongs to what the monitor writes itself", name)
	}
	return nil
}

// value returns a result of the last row, by its name without the prefix.
func (t *table) value(name string) (float64, bool) {
	i, ok := t.index[name]
	if !ok {
		return 0, false
	}
	return t.results[i].result()
}

// appendTo appends the results of the last row.
func (t *table) appendTo(list []Value) []Value {
	for i, name := range t.names {
		if v, ok := t.results[i].result(); ok {
			list = append(list, Value{name, v})
		}
	}
	return list
}

// What a rank tells of itself, before a pair of numbers for each value: its mean and its weight,
// negative if it has none.
const (
	hasFailed = iota // 1 if a writer has
	hasElapsed
	hasTaken
	hasMemory
	hasPlanned // for its memory
	hasUnits
	header
)

// totals are what all ranks know after an exchange, beside the values.
type totals struct {
	took  float64 // seconds by the steps of the row
	units int     // of all ranks
}

// exchange makes the results of t, and the totals, of what all ranks have: one all-gather. The rank
// order of the sums, and rank 0's clock, make them the same everywhere.
func (m *Monitor) exchange(ctx context.Context, t *table) error {
	m.tell(t)
	n := len(m.mine)
	if m.ranks > 1 {
		m.all = slices.Grow(m.all[:0], n*m.ranks)[:n*m.ranks]
		if err := m.cfg.Group.AllGather(comm.Of(m.all).Named(t.label), comm.Of(m.mine).Named(t.label)).Wait(ctx); err != nil {
			return err
		}
	} else {
		m.all = append(m.all[:0], m.mine...)
	}
	m.state.Elapsed = time.Duration(m.all[hasElapsed] * float64(time.Second))
	m.sum = totals{took: m.all[hasTaken]}
	clear(t.results)
	for lo := 0; lo < len(m.all); lo += n {
		rank := m.all[lo : lo+n]
		m.sum.units += int(rank[hasUnits])
		m.memory, m.planned = max(m.memory, int(rank[hasMemory])), max(m.planned, int(rank[hasPlanned]))
		for i := range t.results {
			if v, w := rank[header+2*i], rank[header+2*i+1]; w >= 0 {
				t.results[i].add(v, w)
			}
		}
	}
	clear(t.means)
	if m.all[hasFailed] == 0 {
		return nil
	}
	if err := m.failed(); err != nil {
		return err
	}
	return errors.New("a writer of rank 0 has failed: the error of rank 0 says why") // fsdprun blames rank 0
}

// tell fills mine with what this rank has.
func (m *Monitor) tell(t *table) {
	m.mine = slices.Grow(m.mine[:0], header+2*len(t.names))[:header]
	clear(m.mine)
	if m.failure != nil {
		m.mine[hasFailed] = 1
	}
	m.mine[hasElapsed] = (m.cfg.State.Elapsed + time.Since(m.begin)).Seconds()
	m.mine[hasTaken], m.mine[hasUnits] = m.took.Seconds(), float64(m.units)
	if m.cfg.Model != nil {
		m.mine[hasMemory] = float64(m.cfg.Model.Memory().Peak)
	}
	if m.cfg.Plan != nil {
		m.mine[hasPlanned] = float64(m.cfg.Plan.Peak())
	}
	for i := range t.means {
		a := &t.means[i]
		weight := a.weight
		if _, ok := a.result(); !ok {
			weight = -1
		}
		m.mine = append(m.mine, a.value, weight)
	}
}

// text writes a value for people.
func (v Value) text() string { return v.Name + " " + strconv.FormatFloat(v.Value, 'g', 4, 64) }
