package gpu

import (
	"fmt"
	"slices"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/kernel"
)

// movementKinds copy elements to other positions.
var movementKinds = map[exec.Kind]lowering{
	exec.KindTranspose: transpose,
	exec.KindSlice:     slice,
	exec.KindSliceGrad: sliceGrad,
	exec.KindSliceAdd:  sliceAdd,
	exec.KindConcat:    concat,
}

// A part of a value is count runs of elements in each pitch elements. The first run begins at
// start, and the runs are apart elements apart.
type part struct{ count, run, pitch, start, apart int }

// partOf returns the part that a slice with n elements is of a value with the given shape.
func partOf(s exec.Slice, shape tensor.Shape, n int) part {
	outer, inner := exec.Numel(shape[:s.Axis]), exec.Numel(shape[s.Axis+1:])
	p := part{1, n / outer, shape[s.Axis] * inner, s.Start * inner, shape[s.Axis] * inner}
	if s.Step > 1 {
		p.count, p.run, p.apart = p.run/inner, inner, s.Step*inner
	}
	return p
}

// words returns the part in words of word bytes, for elements of size bytes.
func (p part) words(word, size int) []any {
	in := func(n int) any { return uint64(n * size / word) }
	return []any{uint64(p.count), in(p.run), in(p.pitch), in(p.start), in(p.apart)}
}

// part launches a kernel that copies between a whole and its part. n is the number of elements of
// one of them.
func (b *builder) part(kernel string, n int, p part, to, from exec.Operand) error {
	size := elementSize(to)
	word := wordOf((p.run|p.pitch|p.start|p.apart)*size, to, from)
	n = n * size / word
	args := append([]any{to, from, uint64(n)}, p.words(word, size)...)
	return b.threads(fmt.Sprintf("movement_%s_b%d", kernel, 8*word), n, args...)
}

func slice(b *builder, in *exec.Instr) error {
	n := exec.Numel(in.Out.Shape)
	return b.part("take", n, partOf(in.Op.Attrs.(exec.Slice), in.Op.In[0], n), in.Out, in.In[0])
}

func sliceGrad(b *builder, in *exec.Instr) error {
	p := partOf(in.Op.Attrs.(exec.Slice), in.Op.Shape, exec.Numel(in.In[0].Shape))
	return b.part("spread", exec.Numel(in.Out.Shape), p, in.Out, in.In[0])
}

func sliceAdd(b *builder, in *exec.Instr) error {
	b.move(operandAddress(in.Out), operandAddress(in.In[0]), in.Out.Bytes)
	n := exec.Numel(in.In[1].Shape)
	args := partOf(in.Op.Attrs.(exec.Slice), in.Op.Shape, n).words(1, 1)
	return b.each("movement_add", n, append([]any{in.Out, in.In[1], uint64(n)}, args...)...)
}

func concat(b *builder, in *exec.Instr) error {
	outer := exec.Numel(in.Op.Shape[:int(in.Op.Attrs.(exec.Axis))])
	pitch, start := exec.Numel(in.Op.Shape)/outer, 0
	for _, x := range in.In {
		n := exec.Numel(x.Shape)
		if err := b.part("put", n, part{1, n / outer, pitch, start, pitch}, in.Out, x); err != nil {
			return err
		}
		start += n / outer
	}
	return nil
}

// An axis of a transposition has a length, and strides of its elements in x and y.
type axis struct{ n, from, to int }

// axesOf returns the axes of y in a transposition of x. It omits axes of length 1, and merges an
// axis with the one before if it continues that.
func axesOf(shape tensor.Shape, o exec.Order) (list []axis) {
	l, to := kernel.Layout{Shape: shape, Order: o.Order}, exec.Numel(shape)
	for i := range shape {
		n, from := l.Axis(i)
		to /= n
		switch last := len(list) - 1; {
		case n == 1:
		case last >= 0 && list[last].from == n*from:
			list[last] = axis{list[last].n * n, from, to}
		default:
			list = append(list, axis{n, from, to})
		}
	}
	return list
}

// transpose moves squares of the last axis of x and the last axis of y. If these are the same axis,
// it moves words.
func transpose(b *builder, in *exec.Instr) error {
	axes, size := axesOf(in.Op.In[0], in.Op.Attrs.(exec.Order)), elementSize(in.Out)
	if len(axes) > 8 {
		return fmt.Errorf("%v in order %v has %d axes that move, more than 8", in.Op.In[0], in.Op.Attrs, len(axes))
	}
	first := slices.IndexFunc(axes, func(a axis) bool { return a.from == 1 })
	if last := len(axes) - 1; first < last {
		return b.squares(in, axes[first], axes[last], append(axes[:first:first], axes[first+1:last]...))
	}
	word := size
	if last := len(axes) - 1; last >= 0 {
		word = wordOf(axes[last].n*size, in.Out, in.In[0])
		axes[last].n = axes[last].n * size / word
		for i := range axes[:last] {
			axes[i].from = axes[i].from * size / word
		}
	}
	n := exec.Numel(in.Out.Shape) * size / word
	args := []any{in.Out, in.In[0], uint64(n), uint32(len(axes))}
	for i := range 8 {
		a := axis{n: 1}
		if i < len(axes) {
			a = axes[i]
		}
		args = append(args, uint64(a.n), uint64(a.from))
	}
	return b.threads(fmt.Sprintf("movement_gather_b%d", 8*word), n, args...)
}

// squares moves matrices whose rows are along the first axis and whose columns are along the last.
func (b *builder) squares(in *exec.Instr, first, last axis, rest []axis) error {
	blocks := (first.n + 31) / 32 * ((last.n + 31) / 32)
	args := []any{in.Out, in.In[0], uint64(first.n), uint64(first.to), uint64(last.n), uint64(last.from), uint32(len(rest))}
	for i := range 6 {
		a := axis{n: 1}
		if i < len(rest) {
			a = rest[i]
		}
		args = append(args, uint64(a.n), uint64(a.from), uint64(a.to))
		blocks *= a.n
	}
	return b.launch(fmt.Sprintf("movement_transpose_b%d", 8*elementSize(in.Out)), [3]int{blocks, 1, 1}, [3]int{32, 8, 1}, 0, args...)
}
