package generate

import (
	"context"
	"fmt"
	"slices"

	"github.com/gofsdp/gofsdp/fsdp"
)

// source is the encoder's result for a batch.
type source[T float] struct {
	length int
	width  int
	mask   []int // [prompts, length]
	arrays [][]T // keys and values of each layer, [prompts, length, width]

	// The same for the rows of the last pass:
	of    []int // by row: its index in the arrays
	given []fsdp.Tensor
}

// hasResult reports whether there is a result.
func (s *source[T]) hasResult() bool { return s.arrays != nil }

// read runs the encoder on some of the prompts.
func (s *source[T]) read(ctx context.Context, g *Generator, prompts [][]int, some []int) error {
	rows, longest := bucket(len(some)), smallest
	for _, p := range some {
		longest = max(longest, len(prompts[p]))
	}
	s.length, s.width = bucket(longest), g.size.Width
	tokens := make([]int, rows*s.length)
	s.mask = make([]int, rows*s.length)
	for i, p := range some {
		copy(tokens[i*s.length:], prompts[p])
		for j := range prompts[p] {
			s.mask[i*s.length+j] = 1
		}
	}
	out, err := g.m.EvalProgram(ctx, EncodeProgram, matrix(tokens, rows, s.length), matrix(s.mask, rows, s.length))
	if err != nil || out == nil {
		return err
	}
	if len(out) != 2*g.size.Layers {
		return fmt.Errorf("the program %q has %d results, want %d", EncodeProgram, len(out), 2*g.size.Layers)
	}
	for _, t := range out {
		s.arrays = append(s.arrays, t.Data().([]T))
	}
	return nil
}

// inputs returns the encoder's results for the prompts of rows, padded to n rows.
func (s *source[T]) inputs(rows []row, n int) []fsdp.Tensor {
	of := make([]int, n)
	for i, r := range rows {
		of[i] = r.source
	}
	if slices.Equal(of, s.of) {
		return s.given
	}
	s.of, s.given = of, []fsdp.Tensor{matrix(chosen(s.mask, of, s.length), n, s.length)}
	for _, a := range s.arrays {
		s.given = append(s.given, matrix(chosen(a, of, s.length*s.width), n, s.length, s.width))
	}
	return s.given
}

// chosen returns the rows of data, each of width elements, at the indices of of.
func chosen[E any](data []E, of []int, width int) []E {
	rows := make([]E, 0, len(of)*width)
	for _, i := range of {
		rows = append(rows, data[i*width:][:width]...)
	}
	return rows
}
