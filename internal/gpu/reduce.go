package gpu

import (
	"fmt"
	"math/bits"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
)

// reduceKinds fold values along axes.
var reduceKinds = map[exec.Kind]lowering{
	exec.KindSum:     func(b *builder, in *exec.Instr) error { return b.reduce("sum", in) },
	exec.KindMax:     func(b *builder, in *exec.Instr) error { return b.reduce("max", in) },
	exec.KindMaxGrad: maxGrad,
	exec.KindRepeat:  repeat,
	exec.KindSoftmax: func(b *builder, in *exec.Instr) error { return b.softmax("softmax", in, in.Out, in.In[0]) },
	exec.KindSoftmaxGrad: func(b *builder, in *exec.Instr) error {
		return b.softmax("softmax_grad", in, in.Out, in.In[0], in.In[1])
	},
}

// A span is successive axes, which are all folded or all kept.
type span struct {
	n      int
	folded bool
}

// spansOf returns the axes of a shape as spans that alternate between folded and kept. Axes of
// length 1 may join either kind.
func spansOf(shape tensor.Shape, axes exec.Axes) (list []span) {
	for axis, n := range shape {
		folded := axes>>axis&1 == 1
		switch last := len(list) - 1; {
		case n == 1:
		case last >= 0 && list[last].folded == folded:
			list[last].n *= n
		default:
			list = append(list, span{n, folded})
		}
	}
	return list
}

// reduce folds one span of axes after the other.
func (b *builder) reduce(name string, in *exec.Instr) error {
	from, size := operandAddress(in.In[0]), elementSize(in.Out)
	outer, inner := 1, exec.Numel(in.In[0].Shape)
	for _, s := range spansOf(in.Op.In[0], in.Op.Attrs.(exec.Axes)) {
		inner /= s.n
		if !s.folded {
			outer *= s.n
			continue
		}
		to := operandAddress(in.Out)
		if outer*inner*size > in.Out.Bytes {
			to = b.temp(outer * inner * size)
		}
		if err := b.fold(name, to, from, outer, s.n, inner, size); err != nil {
			return err
		}
		from = to
	}
	if from == operandAddress(in.In[0]) { // all axes were of length 1
		b.move(operandAddress(in.Out), from, in.Out.Bytes)
	}
	return nil
}

// fold writes x [outer n inner], folded over n, to y [outer inner]. If there are too few results to
// occupy a device, pieces of the axis are folded first.
func (b *builder) fold(name string, y, x address, outer, n, inner, size int) error {
	const (
		longest = 1 << 14 // elements that a block folds to one
		threads = 1 << 16 // threads that occupy a device
	)
	results, pieces, columns := outer*inner, 1, inner >= 32 || n < 32
	switch {
	case columns && n > 64:
		pieces = min((n+31)/32, (threads+results-1)/results)
	case !columns:
		pieces = min((n+longest-1)/longest, mostBlocks)
	}
	chunk := (n + pieces - 1) / pieces
	pieces = (n + chunk - 1) / chunk
	to := y
	if pieces > 1 {
		to = b.temp(results * pieces * size)
	}
	kernel, blocks, block, args := "rows", results, min(256, (chunk+31)/32*32), []any{to, x}
	if columns {
		kernel, blocks, block, args = "columns", (results+255)/256, 256, append(args, uint64(results))
	}
	args = append(args, uint64(n), uint64(inner), uint64(chunk))
	err := b.launch(fmt.Sprintf("reduce_%s_%s_%s", name, kernel, b.kind), [3]int{blocks, pieces, 1}, [3]int{block, 1, 1}, 0, args...)
	if err != nil || pieces == 1 {
		return err
	}
	return b.fold(name, y, to, outer, pieces, inner, size)
}

func maxGrad(b *builder, in *exec.Instr) error {
	const pairs = 4 // as in reduce.cu
	n := exec.Numel(in.Out.Shape)
	args := []any{in.Out, in.In[0], in.In[1], in.In[2], uint64(n)}
	spans := spansOf(in.Op.Shape, in.Op.Attrs.(exec.Axes))
	if len(spans) > 0 && spans[0].folded {
		spans = append([]span{{n: 1}}, spans...)
	}
	if len(spans) > 2*pairs {
		return fmt.Errorf("axes %v of shape %v form %d groups, at most %d are supported", in.Op.Attrs, in.Op.Shape, len(spans), 2*pairs)
	}
	for _, s := range spans {
		args = append(args, uint64(s.n))
	}
	for len(args) < 5+2*pairs {
		args = append(args, uint64(1))
	}
	return b.each("reduce_max_grad", n, args...)
}

func repeat(b *builder, in *exec.Instr) error {
	n := exec.Numel(in.Out.Shape)
	inner := exec.Numel(in.Op.Shape[bits.Len32(uint32(in.Op.Attrs.(exec.Axes))):])
	run := n / exec.Numel(in.In[0].Shape) * inner
	kernel := fmt.Sprintf("reduce_repeat_b%d", 8*elementSize(in.Out))
	return b.threads(kernel, n, in.Out, in.In[0], uint64(n), uint64(inner), uint64(run))
}

// softmax launches a kernel with one block for each row. If the axis is not the last, it has one
// thread for each column.
func (b *builder) softmax(name string, in *exec.Instr, operands ...any) error {
	s := in.Op.Attrs.(exec.Softmax)
	n, inner := in.Op.Shape[s.Axis], exec.Numel(in.Op.Shape[s.Axis+1:])
	columns := exec.Numel(in.Op.Shape) / n
	if inner > 1 {
		return b.each("reduce_"+name+"_columns", columns, append(operands, uint64(columns), uint64(n), uint64(inner), s.Log)...)
	}
	return b.launch("reduce_"+name+"_rows_"+b.kind, [3]int{columns, 1, 1}, [3]int{min(256, (n+31)/32*32), 1, 1}, 0, append(operands, uint64(n), s.Log)...)
}
