package metrics

import (
	"errors"
	"fmt"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
)

// ignored is nn.IgnoreTarget: rows with this target do not count.
const ignored = -1

// Accuracy is the share of rows whose target is among the K classes with the largest logits. If
// logits are equal, the lower class comes first. In a row with NaN logits, classes with NaN come
// before the target, and a target with NaN comes last.
type Accuracy struct {
	K int // 0 means 1
	sums
}

// Add adds rows of logits [..., classes] and their targets, ints, such as [...]. A target of
// nn.IgnoreTarget does not count. Add returns an error, and adds nothing, if there are more or
// fewer targets than rows, or if a target is not a class.
func (a *Accuracy) Add(logits, targets tensor.Tensor) error {
	r, err := newRows(logits, targets)
	if err != nil {
		return err
	}
	s, err := a.sized()
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	for i, y := range r.targets {
		if y == ignored {
			continue
		}
		if s.local[1]++; r.countBefore(i, y) < max(a.K, 1) {
			s.local[0]++
		}
	}
	return nil
}

// Value implements [Metric].
func (a *Accuracy) Value() float64 {
	t := a.totals(2)
	return t[0] / t[1]
}

func (a *Accuracy) sized() (*sums, error) {
	if a.K < 0 {
		return nil, fmt.Errorf("field K is %d: must not be negative", a.K)
	}
	return a.reserve(2)
}

func (a *Accuracy) description() string { return fmt.Sprintf("accuracy of %d", max(a.K, 1)) }

// Confusion counts rows by target and by the class with the largest logit.
type Confusion struct {
	Classes int // at least 1
	sums
}

// Add adds rows of logits [..., Classes] and their targets, as [Accuracy.Add] does. If a row has
// NaN logits, Add returns an error and adds nothing.
func (c *Confusion) Add(logits, targets tensor.Tensor) error {
	s, err := c.sized()
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	r, err := newRows(logits, targets)
	if err != nil {
		return err
	}
	if r.classes != c.Classes {
		return fmt.Errorf("metrics: logits have shape %v, but field Classes is %d", logits.Shape(), c.Classes)
	}
	predicted := make([]int, len(r.targets))
	for i := range predicted {
		if predicted[i] = r.largest(i); predicted[i] < 0 {
			return fmt.Errorf("metrics: row %d of the logits has a NaN", i)
		}
	}
	for i, y := range r.targets {
		if y != ignored {
			s.local[y*c.Classes+predicted[i]]++
		}
	}
	return nil
}

// Count returns how many rows of class target were predicted as class predicted, over all ranks. It
// panics if there is no such class.
func (c *Confusion) Count(target, predicted int) int {
	if min(target, predicted) < 0 || max(target, predicted) >= c.Classes {
		panic(fmt.Sprintf("metrics: Count(%d, %d) of %d classes", target, predicted, c.Classes))
	}
	return int(c.totals(c.Classes * c.Classes)[target*c.Classes+predicted])
}

// Of returns three numbers for one class: precision, the share of its predictions that are right;
// recall, the share of its rows that were predicted; and F1 = 2·hits/(rows of it + rows predicted),
// the harmonic mean of the two. 0/0 is NaN.
func (c *Confusion) Of(class int) (precision, recall, f1 float64) {
	is, said := 0, 0
	for k := range c.Classes {
		is, said = is+c.Count(class, k), said+c.Count(k, class)
	}
	hits := float64(c.Count(class, class))
	return hits / float64(said), hits / float64(is), 2 * hits / float64(is+said)
}

// Value implements [Metric]. It returns the mean of F1 over the classes that are the target or the
// prediction of a row.
func (c *Confusion) Value() float64 {
	sum, n := 0.0, 0.0
	for k := range c.Classes {
		if _, _, f1 := c.Of(k); f1 == f1 {
			sum, n = sum+f1, n+1
		}
	}
	return sum / n
}

func (c *Confusion) sized() (*sums, error) {
	if c.Classes < 1 {
		return nil, fmt.Errorf("field Classes is %d: must be at least 1", c.Classes)
	}
	return c.reserve(c.Classes * c.Classes)
}

func (c *Confusion) description() string { return fmt.Sprintf("confusion of %d", c.Classes) }

// rows has logits and the target of each row. f32 or f64 is nil.
type rows struct {
	f32     []float32
	f64     []float64
	classes int
	targets []int
}

// newRows returns the rows. It returns an error if a target is neither a class nor ignored.
func newRows(logits, targets tensor.Tensor) (*rows, error) {
	z, err := exec.FromBatch(logits)
	if err != nil {
		return nil, fmt.Errorf("metrics: logits: %w", err)
	}
	y, err := exec.FromBatch(targets)
	if err != nil {
		return nil, fmt.Errorf("metrics: targets: %w", err)
	}
	if len(z.Shape) == 0 {
		return nil, errors.New("metrics: logits of shape () have no classes")
	}
	r := &rows{classes: z.Shape[len(z.Shape)-1]}
	switch {
	case z.DType == tensor.Float32:
		r.f32 = exec.Data[float32](z.Bytes)
	case z.DType == tensor.Float64:
		r.f64 = exec.Data[float64](z.Bytes)
	default:
		return nil, fmt.Errorf("metrics: logits are %v, want floats", z.DType)
	}
	if y.DType != tensor.Int {
		return nil, fmt.Errorf("metrics: targets are %v, want ints", y.DType)
	}
	if r.targets = exec.Data[int](y.Bytes); len(r.targets)*r.classes != z.Len() {
		return nil, fmt.Errorf("metrics: logits of shape %v have %d rows, but targets of shape %v have %d", z.Shape, z.Len()/r.classes, y.Shape, len(r.targets))
	}
	for i, t := range r.targets {
		if t != ignored && (t < 0 || t >= r.classes) {
			return nil, fmt.Errorf("metrics: target %d is %d, but there are only %d classes, counted from 0", i, t, r.classes)
		}
	}
	return r, nil
}

// countBefore returns how many classes of row i come before class y.
func (r *rows) countBefore(i, y int) int {
	lo, hi := i*r.classes, (i+1)*r.classes
	if r.f32 != nil {
		return before(r.f32[lo:hi], y)
	}
	return before(r.f64[lo:hi], y)
}

func before[T float32 | float64](row []T, y int) int {
	z, n := row[y], 0
	for _, other := range row[:y] {
		if !(other < z) {
			n++
		}
	}
	for _, other := range row[y+1:] {
		if !(other <= z) {
			n++
		}
	}
	return n
}

// largest returns the class of row i with the largest logit, or -1 if a logit is NaN.
func (r *rows) largest(i int) int {
	lo, hi := i*r.classes, (i+1)*r.classes
	if r.f32 != nil {
		return largest(r.f32[lo:hi])
	}
	return largest(r.f64[lo:hi])
}

func largest[T float32 | float64](row []T) int {
	at := 0
	for i, z := range row {
		if z != z {
			return -1
		}
		if z > row[at] {
			at = i
		}
	}
	return at
}
