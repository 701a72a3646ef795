package generate

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"slices"
)

// sample writes the rows of b to their ends, each token from the logits of its own row.
func sample[T float](ctx context.Context, b *batch[T], o Options, emit func(Token) bool) error {
	s := sampler{Options: o}
	for len(b.rows) > 0 {
		logits, vocab, err := b.logits(ctx)
		if err != nil || logits == nil {
			return err
		}
		var going []int
		for i := range b.rows {
			r := &b.rows[i]
			token := s.choose(widened(&s.logits, logits[i*vocab:][:vocab]), uint64(r.prompt), uint64(len(r.tokens)))
			if slices.Contains(o.Stop, token) {
				continue
			}
			if b.stopped = !emit(Token{r.prompt, token}); b.stopped {
				return nil
			}
			if r.tokens = append(r.tokens, token); len(r.tokens) < r.end {
				going = append(going, i)
			}
		}
		if len(going) < len(b.rows) {
			b.keep(going)
		}
	}
	return nil
}

// sampler draws tokens.
type sampler struct {
	Options
	logits []float64
	order  []int
}

// widened returns logits as float64, in memory of buf.
func widened[T float](buf *[]float64, logits []T) []float64 {
	*buf = grown(*buf, len(logits))
	for i, l := range logits {
		(*buf)[i] = float64(l)
	}
	return *buf
}

// choose draws the token at a place of a prompt. It overwrites logits.
func (s *sampler) choose(logits []float64, prompt, place uint64) int {
	if s.Temperature == 0 {
		return best(logits)
	}
	s.order = grown(s.order, len(logits))
	for i := range s.order {
		s.order[i] = i
	}
	top := logits[best(logits)]
	for i, l := range logits {
		logits[i] = math.Exp((l - top) / s.Temperature)
	}
	some := s.order
	if s.TopK > 0 && s.TopK < len(some) || s.TopP > 0 && s.TopP < 1 {
		slices.SortFunc(some, func(a, b int) int { return cmp.Or(cmp.Compare(logits[b], logits[a]), cmp.Compare(a, b)) })
	}
	if s.TopK > 0 {
		some = some[:min(s.TopK, len(some))]
	}
	sum := 0.0
	for _, i := range some {
		sum += logits[i]
	}
	if s.TopP > 0 && s.TopP < 1 {
		some, sum = nucleus(some, logits, s.TopP*sum)
	}
	at := sum * rand.New(rand.NewPCG(s.Seed, prompt<<32^place)).Float64()
	for _, i := range some {
		if at -= logits[i]; at < 0 {
			return i
		}
	}
	return some[0] // rounding
}

// nucleus returns the first elements of order whose weights together reach want, and their sum.
func nucleus(order []int, weights []float64, want float64) ([]int, float64) {
	sum := 0.0
	for n, i := range order {
		if sum += weights[i]; sum >= want {
			return order[:n+1], sum
		}
	}
	return order, sum
}

// best returns the index of the largest logit, the first of equal ones.
func best(logits []float64) int {
	at := 0
	for i, l := range logits {
		if l > logits[at] {
			at = i
		}
	}
	return at
}
