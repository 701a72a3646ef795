package gpu

import (
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// normKinds are layer norm and rms norm.
var normKinds = map[exec.Kind]lowering{
	ops.KindLayerNorm:     norm,
	ops.KindRMSNorm:       norm,
	ops.KindLayerNormGrad: normGrad,
	ops.KindRMSNormGrad:   normGrad,

	ops.KindAddLayerNormGrad: normGrad,
	ops.KindAddRMSNormGrad:   normGrad,
}

// normOf returns the rows of a norm, their length, and the statistics of each.
func normOf(o *exec.Op) (n, d, statistics int) {
	statistics = 1
	if o.Kind == ops.KindLayerNorm || o.Kind == ops.KindLayerNormGrad || o.Kind == ops.KindAddLayerNormGrad {
		statistics = 2
	}
	return o.Dim("..."), o.Dim("d"), statistics
}

func norm(b *builder, in *exec.Instr) error {
	n, d, k := normOf(in.Op)
	x, gain, bias := in.In[0], in.In[1], in.In[len(in.In)-1]
	kernel, threads := "norm_forward_"+b.kind, 32 // of a row
	for threads < 256 && d > 32*threads {
		threads *= 2
	}
	if in.Half && d%8 == 0 && aligned(in.Out, x, gain, bias) {
		kernel += "x8"
	}
	rows := 1 // of a block
	if threads == 32 {
		rows = 8
	}
	return b.launch(kernel, [3]int{parts(n, rows), 1, 1}, [3]int{threads, rows, 1}, 0,
		in.Out, tail(in.Out, n*k), x, gain, bias, int32(n), int32(d), in.Op.Attrs.(ops.Norm).Eps, k > 1)
}

func normGrad(b *builder, in *exec.Instr) error {
	n, d, k := normOf(in.Op)
	args, y := in.In, any(null) // added to dx
	operands := append([]exec.Operand{in.Out}, args...)
	if len(args) > 4 {
		y, args = args[0], args[1:]
	}
	x, gain, stats, dy := args[0], args[1], tail(args[2], n*k), args[3]
	const blocks, widest = 512, 512 // largest number of blocks of a sum, and of threads of a block
	each := parts(n, blocks)        // rows of a block
	size := b.wide().Size()         // of the sums
	sums := b.temp(parts(n, each) * k * d * size)
	var err error
	if threads := parts(d, 16*32) * 32; in.Half && d%8 == 0 && threads <= widest && aligned(operands...) {
		err = b.launch("norm_backward_"+b.kind+"x8", [3]int{parts(n, each), 1, 1}, [3]int{threads, 1, 1}, 0,
			in.Out, sums, x, gain, stats, dy, y, int32(n), int32(d), int32(each), k > 1)
	} else {
		means := b.temp(2 * n * size)
		if err := b.launch("norm_means_"+b.kind, [3]int{parts(n, 8), 1, 1}, [3]int{32, 8, 1}, 0,
			means, x, gain, stats, dy, int32(n), int32(d), k > 1); err != nil {
			return err
		}
		err = b.launch("norm_columns_"+b.kind, [3]int{parts(d, 256), parts(n, each), 1}, [3]int{256, 1, 1}, 0,
			in.Out, sums, means, x, gain, stats, dy, y, int32(n), int32(d), int32(each), k > 1)
	}
	if err != nil {
		return err
	}
	return b.columns(b.wideKind(), tail(in.Out, k*d), sums, parts(n, each), k*d, k*d, false)
}

// parts returns the number of parts of the given size in n.
func parts(n, size int) int { return (n + size - 1) / size }

// aligned reports whether all operands are aligned to 16 bytes.
func aligned(list ...exec.Operand) bool {
	for _, o := range list {
		if o.Offset%16 != 0 {
			return false
		}
	}
	return true
}
