package data

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
	"slices"
	"unsafe"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
)

// A Collate function makes a batch of samples. It adds the tensors that the model takes, in their
// order, by [Tensor], [Stack], [Column], [Pad] and [Mask]. A [Loader] calls it on several
// goroutines at the same time, each with another batch. It must not keep batch or samples.
type Collate[T any] func(batch *Batch, samples []T) error

// A Batch collects the tensors of a batch.
type Batch struct {
	tensors []fsdp.Tensor
	bytes   int
	doubt   string // a likely mistake, of which rank 0 warns if it is in the first batch
}

// equal reports whether both have the same tensors, to the bit.
func (b *Batch) equal(other *Batch) bool {
	return slices.EqualFunc(b.tensors, other.tensors, func(t, u fsdp.Tensor) bool {
		return t.Shape().Eq(u.Shape()) && t.Dtype() == u.Dtype() && bytes.Equal(memoryOf(t), memoryOf(u))
	})
}

// memoryOf returns the memory of a tensor.
func memoryOf(t fsdp.Tensor) []byte {
	v := reflect.ValueOf(t.Data())
	if v.Kind() != reflect.Slice { // a scalar
		v = reflect.Append(reflect.MakeSlice(reflect.SliceOf(v.Type()), 0, 1), v)
	}
	return unsafe.Slice((*byte)(v.UnsafePointer()), v.Len()*int(v.Type().Elem().Size()))
}

// Rows returns the number of samples in a batch of a [Loader]: the first dimension of its tensors,
// or 0 for a nil batch.
func Rows(batch []fsdp.Tensor) int {
	if len(batch) == 0 {
		return 0
	}
	return batch[0].Shape()[0]
}

// An Element is the type of a tensor's elements in batches. Modules see integers as int.
type Element interface {
	~float32 | ~float64 | ~int | ~int32 | ~int64
}

// Tensor adds a tensor of the shape to the batch and returns its elements, row-major and 0, for the
// caller to fill in. It panics if the shape is negative or has more elements than an int can count.
// A [Loader] turns the panic into an error.
func Tensor[E Element](b *Batch, shape ...int) []E {
	n := 1
	for _, d := range shape {
		if d < 0 || d > 0 && n > math.MaxInt/d {
			panic(fmt.Sprintf("invalid tensor shape %v", slices.Clone(shape)))
		}
		n *= d
	}
	data := make([]E, n)
	b.tensors = append(b.tensors, tensor.New(tensor.WithShape(slices.Clone(shape)...), tensor.WithBacking(data)))
	b.bytes += n * int(unsafe.Sizeof(*new(E)))
	return data
}

// rowError is an error of one sample of a batch.
type rowError struct {
	row int
	err error
}

func (e *rowError) Error() string { return fmt.Sprintf("row %d: %v", e.row, e.err) }

func (e *rowError) Unwrap() error { return e.err }

// Stack adds a tensor [len(samples), shape...] with a field of each sample. Every field must have
// as many elements as shape. Without a shape, the tensor has two dimensions, and the first sample
// decides the second.
func Stack[T any, E Element](b *Batch, samples []T, field func(T) []E, shape ...int) error {
	full := append([]int{len(samples)}, shape...)
	if len(shape) == 0 && len(samples) > 0 {
		full = append(full, len(field(samples[0])))
	}
	out := Tensor[E](b, full...)
	width := len(out) / max(1, len(samples))
	for i, sample := range samples {
		values := field(sample)
		if len(values) != width {
			return &rowError{i, fmt.Errorf("got %d elements, want %d for shape %v", len(values), width, full[1:])}
		}
		copy(out[i*width:], values)
	}
	return nil
}

// Column adds a tensor [len(samples)] with a number of each sample.
func Column[T any, E Element](b *Batch, samples []T, field func(T) E) {
	out := Tensor[E](b, len(samples))
	for i, sample := range samples {
		out[i] = field(sample)
	}
}

// A Width returns the number of columns of a batch whose longest sample has longest elements. The
// model is compiled for every width, so there should be few.
type Width func(longest int) (int, error)

// Widths returns the Width that picks the smallest sufficient one of widths. If none is sufficient,
// it returns an error.
func Widths(widths ...int) Width {
	widths = slices.Sorted(slices.Values(widths))
	return func(longest int) (int, error) {
		for _, w := range widths {
			if w >= longest {
				return w, nil
			}
		}
		return 0, fmt.Errorf("got %d elements, want at most %v", longest, widths)
	}
}

// MultipleOf returns the Width that picks the least sufficient multiple of n, at least n itself.
func MultipleOf(n int) Width {
	return func(longest int) (int, error) {
		if n < 1 {
			return 0, fmt.Errorf("no width is a multiple of %d", n)
		}
		return max(1, (longest+n-1)/n) * n, nil
	}
}

// Pad adds a tensor [len(samples), width] with a field of each sample, and fill after the shorter
// fields. It returns the width, which [Mask] takes. If width is nil, the width is the length of the
// longest field.
func Pad[T any, E Element](b *Batch, samples []T, field func(T) []E, width Width, fill E) (int, error) {
	longest, row := 0, 0
	for i, sample := range samples {
		if n := len(field(sample)); n > longest {
			longest, row = n, i
		}
	}
	columns := longest
	if width != nil {
		var err error
		if columns, err = width(longest); err == nil && columns < longest {
			err = fmt.Errorf("got %d elements, more than the width of %d", longest, columns)
		}
		if err != nil {
			return 0, &rowError{row, err}
		}
	}
	out := Tensor[E](b, len(samples), columns)
	for i, sample := range samples {
		line := out[i*columns : (i+1)*columns]
		for k := copy(line, field(sample)); k < columns; k++ {
			line[k] = fill
		}
	}
	return columns, nil
}

// Mask adds a tensor [len(samples), width] that is 1 at the first length elements of each sample,
// and 0 in the padding of [Pad]. For the lengths themselves, use [Column].
func Mask[E Element, T any](b *Batch, samples []T, length func(T) int, width int) {
	out := Tensor[E](b, len(samples), width)
	for i, sample := range samples {
		line, n := out[i*width:(i+1)*width], length(sample)
		for k := range min(n, width) {
			line[k] = 1
		}
	}
}

// ignoreTarget is nn.IgnoreTarget.
const ignoreTarget = -1

// A Token is the type of tokens in files and in memory.
type Token interface {
	~uint8 | ~uint16 | ~uint32 | ~int | ~int32 | ~int64
}

// TokensAndTargets returns the Collate function of language models, for windows of context+1
// tokens. It makes tokens, ints [len(samples), context], and targets of the same shape, the tokens
// that follow them. After the end of a shorter sample tokens are 0, with targets that do not count.
func TokensAndTargets[E Token](context int) Collate[[]E] {
	return func(b *Batch, samples [][]E) error {
		if context < 1 {
			return fmt.Errorf("TokensAndTargets: context %d: must be positive", context)
		}
		if len(samples) > 1 && !slices.ContainsFunc(samples, func(window []E) bool { return len(window) != context }) {
			b.doubt = fmt.Sprintf("all samples of the first batch have %d tokens, so the last position of TokensAndTargets(%d) never has a target: "+
				"make windows of %d tokens", context, context, context+1)
		}
		tokens, targets := Tensor[int](b, len(samples), context), Tensor[int](b, len(samples), context)
		for i, window := range samples {
			if err := tokensAndTargets(tokens[i*context:(i+1)*context], targets[i*context:(i+1)*context], window); err != nil {
				return &rowError{i, err}
			}
		}
		return nil
	}
}

// tokensAndTargets fills a row of tokens and of their targets.
func tokensAndTargets[E Token](tokens, targets []int, window []E) error {
	context, n := len(tokens), len(window)-1
	if n < 1 || n > context {
		return fmt.Errorf("got %d tokens, want 2 to %d, the context and the token that follows it: make windows of %d tokens, or raise the context", len(window), context+1, context+1)
	}
	for k, token := range window[:n] {
		tokens[k] = int(token)
	}
	copy(targets, tokens[1:n])
	targets[n-1] = int(window[n])
	for k := n; k < context; k++ {
		targets[k] = ignoreTarget
	}
	return nil
}

// TokensAndPositions returns the Collate function of language models that are Packed, for samples
// of context+1 tokens or fewer from [Pack], [PackWhole] or [PackLabeled]. It makes the tensors of
// [TokensAndTargets], and positions of the same shape, which count the tokens of each document from
// 0. The last token of a document has no target, as the token that follows it is of another
// document, and tokens that are not to be learnt are no targets. Padding has position 0: each token
// of it is a document.
func TokensAndPositions[E Token](context int) Collate[Packed[E]] {
	return func(b *Batch, samples []Packed[E]) error {
		if context < 1 {
			return fmt.Errorf("TokensAndPositions: context %d: must be positive", context)
		}
		tokens, targets := Tensor[int](b, len(samples), context), Tensor[int](b, len(samples), context)
		positions := Tensor[int](b, len(samples), context)
		for i, p := range samples {
			next := targets[i*context : (i+1)*context]
			err := tokensAndTargets(tokens[i*context:(i+1)*context], next, p.Elements)
			if err == nil && p.Target != nil && len(p.Target) != len(p.Elements) {
				err = fmt.Errorf("there are %d elements, and Target has %d", len(p.Elements), len(p.Target))
			}
			if err != nil {
				return &rowError{i, err}
			}
			copy(positions[i*context:], p.Positions()[:len(p.Elements)-1])
			for _, start := range p.Starts {
				if start > 0 {
					next[start-1] = ignoreTarget
				}
			}
			for k, target := range p.Target {
				if k > 0 && !target {
					next[k-1] = ignoreTarget
				}
			}
		}
		return nil
	}
}
