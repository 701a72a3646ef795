package metrics

import (
	"fmt"
	"math"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
)

// Mean is a weighted mean, for example of losses by their number of tokens. Its sums are exact, so
// it has the same bits on any number of ranks that share the numbers.
type Mean struct{ sums }

// Add adds x with a weight, such as the number of tokens that x is a mean over. A weight of 0 adds
// nothing, even if x is NaN. Add returns an error, and adds nothing, if the weight is negative or
// not finite.
func (m *Mean) Add(x, weight float64) error {
	if !(weight >= 0) || math.IsInf(weight, 0) {
		return fmt.Errorf("metrics: the weight is %v: must be finite and not negative", weight)
	}
	s, err := m.sized()
	if err == nil && weight > 0 {
		addExact(s.local[:words], weight*x)
		addExact(s.local[words:], weight)
	}
	return err
}

// AddTensor adds each number of x, such as the loss that Eval returns, with a weight.
func (m *Mean) AddTensor(x tensor.Tensor, weight float64) error {
	return each(x, func(x float64) error { return m.Add(x, weight) })
}

// Value implements [Metric].
func (m *Mean) Value() float64 {
	return exactSum(m.totals(2 * words)[:words]) / m.Weight()
}

// Weight returns the sum of all weights over all ranks, as of the last Reduce.
func (m *Mean) Weight() float64 { return exactSum(m.totals(2 * words)[words:]) }

func (m *Mean) sized() (*sums, error) { return m.reserve(2 * words) }
func (m *Mean) description() string   { return "mean" }

// Perplexity is e to the power of a [Mean] of losses in nats, weighted by their numbers of tokens.
type Perplexity struct{ Mean }

// Value implements [Metric].
func (p *Perplexity) Value() float64 { return math.Exp(p.Mean.Value()) }

func (p *Perplexity) description() string { return "perplexity" }

// each calls f with each number of a tensor, until f fails.
func each(x tensor.Tensor, f func(x float64) error) error {
	v, err := exec.FromBatch(x)
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	switch v.DType {
	case tensor.Float32:
		return eachOf(exec.Data[float32](v.Bytes), f)
	case tensor.Float64:
		return eachOf(exec.Data[float64](v.Bytes), f)
	default:
		return eachOf(exec.Data[int](v.Bytes), f)
	}
}

func eachOf[T float32 | float64 | int](list []T, f func(x float64) error) error {
	for _, x := range list {
		if err := f(float64(x)); err != nil {
			return err
		}
	}
	return nil
}
