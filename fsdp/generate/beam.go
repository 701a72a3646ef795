package generate

import (
	"cmp"
	"context"
	"math"
	"slices"
)

// A beam search keeps, for each prompt, the Beams likeliest rows, and sets ended rows aside. A
// prompt is done when Beams rows have ended, and no other row can become better than the worst of
// them: each further token makes a row less likely.
type beams[T float] struct {
	*batch[T]
	Options
	ended map[int][]row // by prompt
	buf   []float64
	next  []candidate
}

// candidate is a row with one more token.
type candidate struct {
	row, token int
	score      float64 // sum of the logarithms of the probabilities
}

// search writes the rows of b, one for each prompt, by beam search.
func search[T float](ctx context.Context, b *batch[T], o Options, emit func(Token) bool) error {
	s := beams[T]{batch: b, Options: o, ended: make(map[int][]row)}
	s.LengthPenalty = cmp.Or(o.LengthPenalty, 1)
	start := make(map[int]int)
	for _, r := range b.rows {
		start[r.prompt] = len(r.tokens)
	}
	for len(b.rows) > 0 {
		logits, vocab, err := b.logits(ctx)
		if err != nil || logits == nil {
			return err
		}
		var from []int
		var rows []row
		for i, n := 0, 0; i < len(b.rows); i += n {
			prompt := b.rows[i].prompt
			for n = 1; i+n < len(b.rows) && b.rows[i+n].prompt == prompt; n++ {
			}
			kept := s.step(i, n, logits, vocab, start[prompt])
			if kept == nil {
				s.emit(prompt, start[prompt], emit)
				if b.stopped {
					return nil
				}
			}
			for _, rank := range stableOrder(kept, i) {
				c := kept[rank]
				r := b.rows[c.row]
				r.tokens, r.score, r.rank = append(slices.Clone(r.tokens), c.token), c.score, rank
				from, rows = append(from, c.row), append(rows, r)
			}
		}
		b.keep(from)
		copy(b.rows, rows)
	}
	return nil
}

// stableOrder returns an order of kept in which as many candidates as possible have the index of
// the row that they continue, counted from i. The cache of these rows stays in place.
func stableOrder(kept []candidate, i int) []int {
	order, left := slices.Repeat([]int{-1}, len(kept)), []int(nil)
	for rank, c := range kept {
		if at := c.row - i; at < len(order) && order[at] < 0 {
			order[at] = rank
		} else {
			left = append(left, rank)
		}
	}
	for at := range order {
		if order[at] < 0 {
			order[at], left = left[0], left[1:]
		}
	}
	return order
}

// step returns the rows that continue the search for a prompt, whose rows are n from i on, or nil
// if the search is done.
func (s *beams[T]) step(i, n int, logits []T, vocab, start int) []candidate {
	s.next = s.next[:0]
	for rank := range n {
		r := i + slices.IndexFunc(s.rows[i:i+n], func(r row) bool { return r.rank == rank })
		l := widened(&s.buf, logits[r*vocab:][:vocab])
		norm := logSumExp(l)
		for token, v := range l {
			s.offer(candidate{r, token, s.rows[r].score + v - norm})
		}
	}
	var kept []candidate
	for rank, c := range s.next {
		switch r := s.rows[c.row]; {
		case slices.Contains(s.Stop, c.token):
			if rank < s.Beams {
				s.end(r, c.score, len(r.tokens)+1-start) // the stop token is not part of the text, but counts
			}
		case len(kept) < s.Beams:
			kept = append(kept, c)
		}
	}
	r := s.rows[i]
	if len(r.tokens)+1 >= r.end {
		for _, c := range kept {
			r := s.rows[c.row]
			r.tokens = append(slices.Clone(r.tokens), c.token)
			s.end(r, c.score, len(r.tokens)-start)
		}
		return nil
	}
	ended := s.ended[r.prompt]
	if len(kept) == 0 || len(ended) >= s.Beams && s.worth(kept[0].score, len(r.tokens)+1-start) <= ended[len(ended)-1].score {
		return nil
	}
	return kept
}

// offer keeps the best candidates in order: enough that Beams are left if every row ends in every
// way.
func (s *beams[T]) offer(c candidate) {
	most := max(2, 1+len(s.Stop)) * s.Beams
	if len(s.next) == most && c.score <= s.next[most-1].score {
		return
	}
	at, _ := slices.BinarySearchFunc(s.next, c, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.score, a.score), -1) // after equal ones
	})
	s.next = slices.Insert(s.next, at, c)
	s.next = s.next[:min(len(s.next), most)]
}

// end sets a row aside that has ended with a score, after length tokens.
func (s *beams[T]) end(r row, score float64, length int) {
	r.tokens, r.score = slices.Clone(r.tokens), s.worth(score, length)
	list := append(s.ended[r.prompt], r)
	slices.SortStableFunc(list, func(a, b row) int { return cmp.Compare(b.score, a.score) })
	s.ended[r.prompt] = list[:min(len(list), s.Beams)]
}

// worth returns the score that compares texts. length counts the tokens of the text and the stop
// token.
func (s *beams[T]) worth(score float64, length int) float64 {
	return score / math.Pow(float64(length), s.LengthPenalty)
}

// emit emits the best text of a prompt.
func (s *beams[T]) emit(prompt, start int, emit func(Token) bool) {
	for _, token := range s.ended[prompt][0].tokens[start:] {
		if s.stopped = !emit(Token{prompt, token}); s.stopped {
			return
		}
	}
}

func logSumExp(l []float64) float64 {
	top, sum := l[best(l)], 0.0
	for _, v := range l {
		sum += math.Exp(v - top)
	}
	return top + math.Log(sum)
}
