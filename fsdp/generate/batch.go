package generate

import (
	"context"
	"fmt"
	"math"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
)

// row is a text that is being written.
type row struct {
	prompt int   // index of the prompt
	source int   // its row in the encoder's results
	tokens []int // tokens of the prompt and after it
	cached int   // number of tokens in the cache
	end    int   // largest number of tokens
	score  float64
	rank   int // of a beam, among those of its prompt
}

// batch is the rows of a pass, with their cache.
type batch[T float] struct {
	*Generator
	rows    []row
	cache   *cache[T]
	source  source[T]
	stopped bool // the caller has stopped

	// Data of a pass, reused by the next pass:
	tokens, positions, mask, last, none []int
	from, held                          []int
	news                                [][]T
}

func newBatch[T float](g *Generator, rows int) *batch[T] {
	return &batch[T]{Generator: g, rows: make([]row, rows), cache: newCache[T](g.size), news: make([][]T, 2*g.size.Layers)}
}

// logits runs passes until the cache has every token of every row. It returns the logits of the
// next tokens, [rows, vocab], and the size of the vocabulary. It returns no logits in an iteration
// of Join in which this rank's data does not count.
func (b *batch[T]) logits(ctx context.Context) (all []T, vocab int, err error) {
	for pending := -1; pending != 0; {
		pending = 0
		for _, r := range b.rows {
			pending = max(pending, len(r.tokens)-r.cached)
		}
		length := min(bucket(pending), b.c.Chunk)
		out, err := b.pass(ctx, length)
		if err != nil || out == nil {
			return nil, 0, err
		}
		vocab = out[0].Shape()[1]
		all = grown(all, len(b.rows)*vocab)
		from := out[0].Data().([]T)
		pending -= length
		for i := range b.rows {
			r := &b.rows[i]
			n := min(length, len(r.tokens)-r.cached)
			if n > 0 {
				copy(all[i*vocab:][:vocab], from[i*vocab:])
			}
			r.cached += n
		}
		pending = max(0, pending)
	}
	for i, r := range b.rows {
		if err := choosable(all[i*vocab:][:vocab]); err != nil {
			return nil, 0, fmt.Errorf("prompt %d: token %d: %w", r.prompt, len(r.tokens), err)
		}
	}
	return all, vocab, nil
}

// choosable returns an error if logits do not define probabilities.
func choosable[T float](logits []T) error {
	top := math.Inf(-1)
	for token, l := range logits {
		if !(float64(l) <= math.MaxFloat64) {
			return fmt.Errorf("the logit of token %d is %v", token, l)
		}
		top = max(top, float64(l))
	}
	if math.IsInf(top, -1) {
		return fmt.Errorf("all %d logits are %v", len(logits), top)
	}
	return nil
}

// pass computes at most length more tokens of each row.
func (b *batch[T]) pass(ctx context.Context, length int) ([]fsdp.Tensor, error) {
	b.fit(length)
	c, rows := b.cache, b.cache.rows
	keys := c.capacity + length
	b.tokens, b.positions = grown(b.tokens, rows*length), grown(b.positions, rows*length)
	b.mask, b.last, b.none = grown(b.mask, rows*keys), grown(b.last, rows), grown(b.none, rows)
	clear(b.tokens)
	clear(b.positions)
	clear(b.mask)
	clear(b.last)
	for i := range b.none {
		b.none[i] = -1
	}
	for i, r := range b.rows {
		n := min(length, len(r.tokens)-r.cached)
		for j := range n {
			b.tokens[i*length+j], b.positions[i*length+j] = r.tokens[r.cached+j], r.cached+j
			b.mask[i*keys+c.capacity+j] = 1
		}
		lo, hi := c.held(min(r.cached, c.capacity))
		for j := lo; j < hi; j++ {
			b.mask[i*keys+j] = 1
		}
		b.last[i] = i*length + max(0, n-1)
	}
	in := []fsdp.Tensor{matrix(b.tokens, rows, length), matrix(b.positions, rows, length), matrix(b.mask, rows, keys), matrix(b.last, rows), matrix(b.none, rows)}
	for _, a := range c.arrays {
		in = append(in, matrix(a, rows, c.capacity, c.width))
	}
	if b.source.hasResult() {
		in = append(in, b.source.inputs(b.rows, rows)...)
	}
	out, err := b.m.EvalProgram(ctx, Program, in...)
	if err != nil || out == nil {
		return nil, err
	}
	if len(out) != 1+len(c.arrays) {
		return nil, fmt.Errorf("the program %q has %d results, want %d", Program, len(out), 1+len(c.arrays))
	}
	for i := range b.news {
		b.news[i] = out[1+i].Data().([]T)
	}
	for i, r := range b.rows {
		c.add(i, r.cached, min(length, len(r.tokens)-r.cached), b.news, length)
	}
	return out, nil
}

// fit makes room in the cache for length more tokens of each row.
func (b *batch[T]) fit(length int) {
	most := 0
	for _, r := range b.rows {
		most = max(most, min(len(r.tokens), r.cached+length))
	}
	rows, capacity := bucket(len(b.rows)), b.cache.need(most)
	if rows == b.cache.rows && capacity <= b.cache.capacity {
		return
	}
	b.from = b.from[:0]
	for i := range b.rows {
		b.from = append(b.from, i)
	}
	b.arrange(rows, max(capacity, b.cache.capacity))
}

// arrange copies row b.from[i] of the cache to row i.
func (b *batch[T]) arrange(rows, capacity int) {
	b.held = b.held[:0]
	for _, r := range b.rows {
		b.held = append(b.held, min(r.cached, b.cache.capacity))
	}
	b.cache.arrange(b.from, b.held, rows, capacity)
}

// keep reduces the rows to those at the indices in from.
func (b *batch[T]) keep(from []int) {
	rows := make([]row, len(from))
	for i, j := range from {
		rows[i] = b.rows[j]
	}
	b.rows, b.from = rows, append(b.from[:0], from...)
	b.arrange(bucket(len(rows)), b.cache.capacity)
}

// matrix returns a tensor that uses data.
func matrix[E any](data []E, shape ...int) fsdp.Tensor {
	return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(data))
}
