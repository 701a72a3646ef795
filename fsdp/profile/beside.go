package profile

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/internal/text"
)

// A Comparison is a training pass of a rank, the mean of the passes since the last Reset, next to
// its prediction for a cluster.
type Comparison struct {
	Cluster   string
	Passes    int
	Pass      Pair    // seconds of the operations in a pass
	Calls     Pair    // part of Pass: calls
	Waits     Pair    // part of Pass: waits for collectives
	Between   float64 // measured seconds between operations, per pass
	Optimizer float64 // predicted seconds of an update, which is part of Between
	Memory    Pair    // peak bytes, without the scratch of calls
	Ops       []Deviation
}

// A Pair is a prediction and a measurement.
type Pair struct{ Predicted, Measured float64 }

// A Deviation is an operation with its seconds. A Comparison has the largest deviations first.
type Deviation struct {
	Op    string
	Index int // in plan.Pass.Ops
	Pair
}

// off returns the absolute error of the prediction.
func (p Pair) off() float64 { return math.Abs(p.Measured - p.Predicted) }

func (p *Pair) add(q Pair) { p.Predicted, p.Measured = p.Predicted+q.Predicted, p.Measured+q.Measured }

// Beside compares the passes of this rank with a planned pass, Plan.Pass of package fsdp for the
// same batch, on a cluster. Make the plan after the optimizer, as otherwise its memory lacks the
// optimizer's state. It returns an error if an operation of the plan has not run: the plan is of
// other settings, or a pass begins inside NoSync.
func (p *Profile) Beside(pass *plan.Pass, c *plan.Cluster) (*Comparison, error) {
	t := p.Totals()
	if t.Passes == 0 {
		return nil, errNoPass
	}
	line := pass.Time(c, 1)
	predicted := make([]float64, len(pass.Ops))
	for _, e := range line.Events {
		if e.Op >= 0 && e.Stream == plan.Computing {
			predicted[e.Op] += e.End - e.Begin
		}
	}
	b := &Comparison{Cluster: c.Name, Passes: t.Passes, Optimizer: line.Optimizer}
	at, count := make(map[key]*Op), make(map[key]int)
	for i := range t.Ops {
		o := &t.Ops[i]
		at[key{o.Kind, o.Name, o.Nth}] = o
		b.Memory.Measured = max(b.Memory.Measured, float64(o.Live))
	}
	for i, op := range pass.Ops {
		kind, name, _ := strings.Cut(pass.Text(op), " ")
		k := key{kind: kind, name: name}
		k.nth = count[k]
		count[key{kind: kind, name: name}]++
		o := at[k]
		if o == nil || o.Count == 0 {
			return nil, fmt.Errorf("profile: %q of the plan has not run: the plan belongs to another model or to other settings", pass.Text(op))
		}
		d := Deviation{pass.Text(op), i, Pair{predicted[i], o.each()}}
		b.Memory.Predicted = max(b.Memory.Predicted, float64(op.Live.Total()-op.Live.Work))
		b.Pass.add(d.Pair)
		switch {
		case o.computes():
			b.Calls.add(d.Pair)
		case o.waits():
			b.Waits.add(d.Pair)
		}
		b.Ops = append(b.Ops, d)
	}
	b.Between = max(0, t.Took.Seconds()/float64(t.Passes)-b.Pass.Measured)
	slices.SortStableFunc(b.Ops, func(x, y Deviation) int { return cmp.Compare(y.off(), x.off()) })
	return b, nil
}

// errNoPass is the error before the first counted pass.
var errNoPass = errors.New("profile: no pass has been counted: the first pass of a model and evaluations do not count")

// mostOff is the number of operations that String lists.
const mostOff = 3

// String returns time, memory and the operations with the largest deviations.
func (b *Comparison) String() string {
	var w strings.Builder
	say := func(format string, args ...any) {
		w.WriteString(text.Fill(fmt.Sprintf(format, args...), columns, "") + "\n")
	}
	say("A pass takes %s, predicted for %s %s: calls %s, predicted %s, waits %s, predicted %s. Between operations it takes %s, for the optimizer %s were predicted.",
		seconds(b.Pass.Measured), b.Cluster, b.Pass.text(), seconds(b.Calls.Measured), b.Calls.text(), seconds(b.Waits.Measured), b.Waits.text(),
		seconds(b.Between), seconds(b.Optimizer))
	say("Memory is %s at most, predicted %s.", plan.Bytes(int(b.Memory.Measured)), plan.Bytes(int(b.Memory.Predicted)))
	w.WriteString("Furthest off:\n")
	for _, d := range b.Ops[:min(mostOff, len(b.Ops))] {
		fmt.Fprintf(&w, "  %-32s %9s, predicted %s\n", text.Cut(d.Op, 32), seconds(d.Measured), d.text())
	}
	return strings.TrimRight(w.String(), "\n")
}

// text returns the prediction and the relative deviation of the measurement.
func (p Pair) text() string {
	if p.Predicted <= 0 {
		return seconds(p.Predicted)
	}
	return fmt.Sprintf("%s (%+.0f %%)", seconds(p.Predicted), 100*(p.Measured/p.Predicted-1))
}
