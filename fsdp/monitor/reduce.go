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

// A mean is a weighted mean. Values without weight count only until one with a weight arrives;
// until then they count equally. The mean of equal values is that value, to the bit.
type mean struct {
	value, weight float64
	alike         int // number of values without weight
}

func (a *mean) add(x, weight float64) {
	switch {
	case weight > 0 && a.weight == 0:
		a.value, a.weight = x, weight
	case weight > 0:
		a.weight += weight
		a.moveToward(x, (x-a.value)*(weight/a.weight))
	case a.weight == 0:
		a.alike++
		a.moveToward(x, (x-a.value)/float64(a.alike))
	}
}

// moveToward moves the mean by a step toward x. An infinity stays an infinity.
func (a *mean) moveToward(x, step float64) {
	if !finite(x) || !finite(a.value) {
		a.value += x
		return
	}
	a.value += step
}

// result returns the mean, and whether there is one.
func (a *mean) result() (float64, bool) { return a.value, a.weight > 0 || a.alike > 0 }

// A table holds values by name from one row to the next. Names stay in the order in which they
// arrived.
type table struct {
	label  string // of the exchange; the names follow
	prefix string // of names in rows
	index  map[string]int
	names  []string // with the prefix
	means  []mean   // of this rank since the last row
	fresh  []string
	// results are the results of the last row, over all ranks.
	results []mean
}

// add counts values with a weight. New names are inserted in alphabetical order.
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

// legal returns an error if a value must not have that name.
func legal(name string) error {
	switch {
	case name == "" || strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("%q is not a valid name of a value", name)
	case name == "step" || name == "time" || strings.HasPrefix(name, "run/"):
		return fmt.Errorf("the name %q is reserved for a value of the monitor", name)
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

// The data of a rank. A pair of numbers for each value follows: its mean, and its weight, negative
// if there is no value.
const (
	hasFailed = iota // 1 if a writer has failed
	hasElapsed
	hasTaken
	hasMemory
	hasPlanned // planned memory
	hasUnits
	hasCounted // targets that count
	hasMasked  // targets that do not
	header
)

// totals are the results of an exchange apart from the values.
type totals struct {
	took  float64 // seconds of the steps in the row
	units int     // of all ranks

	counted, masked int // targets of all ranks
}

// exchange computes the results of t, and the totals, from the data of all ranks: one all-gather.
// Sums in rank order, and rank 0's clock, make them the same everywhere.
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
		m.sum.counted, m.sum.masked = m.sum.counted+int(rank[hasCounted]), m.sum.masked+int(rank[hasMasked])
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

// tell fills mine with the data of this rank.
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
	counted, all := m.targets()
	m.mine[hasCounted], m.mine[hasMasked] = float64(counted-m.counted), float64(all-counted-m.masked)
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

// targets returns the targets of this rank in all steps: those that count, and all. With Agreed the
// ranks do not exchange them.
func (m *Monitor) targets() (counted, all int) {
	if m.cfg.Model == nil || m.cfg.Agreed {
		return 0, 0
	}
	return m.cfg.Model.Targets()
}

// markTargets makes the next row count targets from here on.
func (m *Monitor) markTargets() {
	counted, all := m.targets()
	m.counted, m.masked = counted, all-counted
}

// advanceTargets adds the targets of a row to the state.
func (m *Monitor) advanceTargets() {
	s := &m.state
	s.Targets, s.Masked = s.Targets+m.sum.counted, s.Masked+m.sum.masked
	s.Counted.add(float64(m.sum.counted))
	m.markTargets()
}

// appendTargets appends the monitor's numbers of targets to a row, if the model has targets.
func (m *Monitor) appendTargets(list []Value) []Value {
	if m.state.Targets+m.state.Masked == 0 {
		return list
	}
	list = append(list, Value{"run/targets", float64(m.state.Targets)})
	if m.sum.took > 0 {
		list = append(list, Value{"run/targets_per_second", float64(m.sum.counted) / m.sum.took})
	}
	return list
}

// text writes a value for people.
func (v Value) text() string { return v.Name + " " + strconv.FormatFloat(v.Value, 'g', 4, 64) }
