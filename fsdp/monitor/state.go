package monitor

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// A Point is the value of the curve at a step.
type Point struct {
	Step int
	Loss float64
}

// State is the state of a run. It is saved as JSON, see [Monitor.State].
type State struct {
	Step              int
	Units             int           // of all ranks, in all steps
	Elapsed           time.Duration // by the clock of rank 0
	Train, Validation []Point       // the curves, thinned
	Loss              Average       // of the curve's values
	Seconds, Count    Average       // of the seconds and the units of a row
	Targets, Masked   int           // targets of the model that count, and that do not, like Units
	Counted           Average       // of the targets of a row that count
}

// Average is an exponential moving average that does not start at zero: it is corrected as the
// moments of Adam are (Kingma and Ba, 2015, arXiv:1412.6980, section 3).
type Average struct{ Sum, Weight float64 }

func (a *Average) add(x float64) {
	const keep = 0.95
	a.Sum = keep*a.Sum + (1-keep)*x
	a.Weight = keep*a.Weight + (1 - keep)
}

func (a *Average) value() float64 { return a.Sum / a.Weight }

func (s *State) clone() State {
	c := *s
	c.Train, c.Validation = slices.Clone(thin(s.Train, curvePoints)), slices.Clone(thin(s.Validation, curvePoints))
	return c
}

// best returns the best validation, if there are two or more: the lowest value, or the highest if
// the values of training have risen, as accuracies do.
func (s *State) best() (what string, best Point, ok bool) {
	if len(s.Validation) < 2 {
		return "", Point{}, false
	}
	order := func(a, b Point) int { return cmp.Compare(a.Loss, b.Loss) }
	if line := smooth(s.Train); len(line) > 1 && line[len(line)-1].Loss > line[0].Loss {
		return "highest", slices.MaxFunc(s.Validation, order), true
	}
	return "lowest", slices.MinFunc(s.Validation, order), true
}

// finite reports whether v can be drawn, averaged and saved as JSON.
func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// curvePoints limits the points of a curve. It is more than the columns of a screen.
const curvePoints = 1000

// thinned keeps a growing curve below twice curvePoints.
func thinned(points []Point) []Point {
	if len(points) < 2*curvePoints {
		return points
	}
	return thin(points, curvePoints)
}
