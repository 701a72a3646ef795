package ops

import (
	"fmt"

	G "gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/kernel/bf16"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// LinearCrossEntropy is op.LinearCrossEntropy.
func LinearCrossEntropy(x, w, bias, targets *G.Node, l kernel.Loss) (*G.Node, error) {
	if err := checkLoss(l); err != nil {
		return nil, err
	}
	args := G.Nodes{x, w, targets}
	if bias != nil {
		args = append(args, bias)
	}
	packed, err := linearLoss.Apply(l, args...)
	return meanOf(packed, 1, err, targets, l)
}

// SmoothCrossEntropy is op.SmoothCrossEntropy.
func SmoothCrossEntropy(logits, targets *G.Node, l kernel.Loss) (*G.Node, error) {
	if err := checkLoss(l); err != nil {
		return nil, err
	}
	packed, err := rowLosses.Apply(l, logits, targets)
	return meanOf(packed, 0, err, targets, l)
}

func checkLoss(l kernel.Loss) error {
	if !(l.Smoothing >= 0 && l.Smoothing <= 1 && l.Z >= 0) {
		return fmt.Errorf("cross-entropy: label smoothing is %v, want [0, 1], and the weight of the z-loss is %v, want at least 0", l.Smoothing, l.Z)
	}
	return nil
}

// meanOf returns the mean of the losses, which are part number part of packed.
func meanOf(packed *G.Node, part int, err error, targets *G.Node, l kernel.Loss) (*G.Node, error) {
	if err != nil {
		return nil, err
	}
	losses, err := exec.Part(packed, part)
	if err != nil {
		return nil, err
	}
	return meanLoss.Apply(Ignore{l.Ignore}, losses, targets)
}

// lossOf returns the attribute and the sizes of a loss of logits.
func lossOf(o *exec.Op) (l kernel.Loss, n, classes int) {
	return o.Attrs.(kernel.Loss), o.Dim("...") * o.Dim("n"), o.Dim("classes")
}

func checkTargets(o *exec.Op, _ int, v []int) error {
	l, _, classes := lossOf(o)
	return kernel.CheckTargets(v, classes, l.Ignore)
}

var linearLoss = &exec.Row{
	Kind: KindLinearLoss, Attr: kernel.Loss{},
	Doc: "the losses of x·weightᵀ + bias without that product in memory: lse - (1-smoothing)·l[target] - smoothing·mean(l) + z·lse²," +
		" with dx their gradients",
	Shapes: "x [... n d], weight [classes d], targets int [... n], bias? f32 [classes] -> dx [... n d] | losses f32 [... n] | lse f32 [... n]",
	Kernels: kernels(runLinearLoss(kernel.LinearLoss[float32, float32]), runLinearLoss(kernel.LinearLoss[float64, float64]),
		runLinearLoss(kernel.NaiveLinearLoss)),
	BF16: linearLossHalf, BF16Scratch: linearLossHalfScratch, Scratch: linearLossScratch,
	FLOPs: func(o *exec.Op) int { return 2 * lossProduct(o) }, Product: lossSizes, Split: exec.ByKernel, Diff: 4, Check: checkTargets,
	Grad: linearLossGrads, Early: earlyRow,
}

func linearLossGrads(o *exec.Op, in G.Nodes, packed, dy *G.Node) (G.Nodes, error) {
	dx, err := o.Gradient(linearLossGradX, packed, dy)
	if err != nil {
		return nil, err
	}
	args := G.Nodes{in[0], in[1], in[2], packed, dy}
	if len(in) == 3 {
		dw, err := o.Gradient(linearLossGradW, args...)
		return append(dx, dw...), err
	}
	grads, err := o.Gradient(linearLossGradWB, append(args, in[3])...)
	if err != nil {
		return nil, err
	}
	return G.Nodes{dx[0], grads[0], nil, grads[1]}, nil
}

// lossSizes returns the sizes of a product of logits.
func lossSizes(o *exec.Op) (rows, cols, depth int) {
	_, n, classes := lossOf(o)
	return n, classes, o.Dim("d")
}

// lossProduct returns the FLOPs of one product of logits.
func lossProduct(o *exec.Op) int {
	_, n, classes := lossOf(o)
	return 2 * n * o.Dim("d") * classes
}

func linearLossScratch(o *exec.Op) int {
	_, n, classes := lossOf(o)
	return kernel.LinearLossScratch(n, o.Dim("d"), classes)
}

func linearLossHalfScratch(o *exec.Op) int {
	_, n, classes := lossOf(o)
	return kernel.LinearLossBFloat16Scratch(n, o.Dim("d"), classes)
}

func runLinearLoss[T kernel.Float](run func(c *kernel.Context, dx, losses, lse, x, w, bias []T, targets []int, n, d, classes int,
	l kernel.Loss, train bool, scratch []T) error) exec.Kernel {
	return func(f *exec.Frame) error {
		l, n, classes := lossOf(f.Op)
		d, out := f.Op.Dim("d"), result[T](f)
		return run(f.Kernel, out[:n*d], out[n*d:][:n], out[n*d+n:], arg[T](f, 0), arg[T](f, 1), optional[T](f, 3), ints(f, 2), n, d, classes, l, f.Train,
			exec.Data[T](f.Scratch))
	}
}

func linearLossHalf(f *exec.Frame) error {
	l, n, classes := lossOf(f.Op)
	dx, rest := f.Out.Parts()
	return kernel.LinearLoss(f.Kernel, dx, rest[:n], rest[n:], low(f, 0), low(f, 1), optional[float32](f, 3), ints(f, 2), n, f.Op.Dim("d"), classes, l,
		f.Train, wide(f))
}

var linearLossGradX = &exec.Row{
	Kind: KindLinearLossGradX, Attr: kernel.Loss{}, Doc: "the dx that linear loss has found, times the gradients of the losses",
	Shapes:  "packed, dlosses f32 -> dx [... n d]",
	Kernels: kernels(runLinearLossGradX(vec.ScaleTo[float32]), runLinearLossGradX(vec.ScaleTo[float64]), runLinearLossGradX(naiveScale)),
	BF16:    linearLossGradXHalf, BF16Scratch: exec.ElementScratch,
	FLOPs: func(o *exec.Op) int { return exec.Numel(o.Shape) }, Split: exec.ByKernel, Reads: readsAsMany,
}

// readsAsMany is for operations on as many elements of argument 0 as the result has.
func readsAsMany(o *exec.Op, arg int) int {
	if arg > 0 {
		return exec.Numel(o.In[arg])
	}
	return exec.Numel(o.Shape)
}

func runLinearLossGradX[T kernel.Float](scale func(y []T, c T, x []T)) exec.Kernel {
	return func(f *exec.Frame) error {
		_, n, _ := lossOf(f.Op)
		d, dx, x, dlosses := f.Op.Dim("d"), result[T](f), arg[T](f, 0), arg[T](f, 1)
		lo, hi := f.Kernel.Share(n, 1)
		for i := lo; i < hi; i++ {
			scale(dx[i*d:][:d], dlosses[i], x[i*d:][:d])
		}
		return nil
	}
}

func linearLossGradXHalf(f *exec.Frame) error {
	_, n, _ := lossOf(f.Op)
	x, _ := f.In[0].Parts()
	d, dx, dlosses := f.Op.Dim("d"), result[half.BFloat16](f), arg[float32](f, 1)
	lo, hi := f.Kernel.Share(n, 1)
	for i := lo; i < hi; i++ {
		bf16.Unary(nil, func(y, x []float32) { vec.ScaleTo(y, dlosses[i], x) }, dx[i*d:][:d], x[i*d:][:d], wide(f))
	}
	return nil
}

var linearLossGradW = &exec.Row{
	Kind: KindLinearLossGradW, Attr: kernel.Loss{}, Doc: "the gradient of the weight, from logits computed again",
	Shapes: "x, weight, targets int, packed, dlosses f32 -> dweight f32 [classes d]",
	Kernels: kernels(runLinearLossGradW(kernel.LinearLossGradW[float32, float32]), runLinearLossGradW(kernel.LinearLossGradW[float64, float64]),
		runLinearLossGradW(kernel.NaiveLinearLossGradW)),
	BF16: linearLossGradWHalf, BF16Scratch: linearLossHalfScratch, Scratch: linearLossScratch,
	FLOPs: func(o *exec.Op) int { return 2 * lossProduct(o) }, Product: lossSizes, Split: exec.ByKernel, Accumulate: true,
}

// linearLossGradWB is for a loss with a bias.
var linearLossGradWB = &exec.Row{
	Kind: KindLinearLossGradWB, Attr: kernel.Loss{}, Doc: "the gradients of weight and bias, from logits computed again",
	Shapes:  "x, weight, targets int, packed, dlosses f32, bias f32 -> dweight f32 [classes d] | dbias f32 [classes]",
	Kernels: linearLossGradW.Kernels, BF16: linearLossGradWHalf, BF16Scratch: linearLossHalfScratch, Scratch: linearLossScratch,
	FLOPs: linearLossGradW.FLOPs, Product: lossSizes, Split: exec.ByKernel,
}

func runLinearLossGradW[T kernel.Float](run func(c *kernel.Context, dw, dbias, x, w, bias []T, targets []int, lse, dlosses []T, n, d, classes int,
	l kernel.Loss, acc bool, scratch []T)) exec.Kernel {
	return func(f *exec.Frame) error {
		l, n, classes := lossOf(f.Op)
		d, out := f.Op.Dim("d"), result[T](f)
		run(f.Kernel, out[:classes*d], out[classes*d:], arg[T](f, 0), arg[T](f, 1), optional[T](f, 5), ints(f, 2), arg[T](f, 3)[n*d+n:],
			arg[T](f, 4), n, d, classes, l, f.Acc, exec.Data[T](f.Scratch))
		return nil
	}
}

func linearLossGradWHalf(f *exec.Frame) error {
	l, n, classes := lossOf(f.Op)
	_, rest := f.In[3].Parts()
	d, out := f.Op.Dim("d"), result[float32](f)
	kernel.LinearLossGradW(f.Kernel, out[:classes*d], out[classes*d:], low(f, 0), low(f, 1), optional[float32](f, 5), ints(f, 2), rest[n:],
		arg[float32](f, 4), n, d, classes, l, f.Acc, wide(f))
	return nil
}

// earlyLoss is linear loss in training on a device. It computes the gradient of the weight with the
// losses, as if each had the gradient 1. So the logits are computed once, and backward only scales.
// The losses have one gradient, or 0 if they do not count: LinearCrossEntropy takes their mean.
var earlyLoss = &exec.Row{
	Kind: KindEarlyLoss, Attr: kernel.Loss{}, Doc: "linear loss, and the gradient of the weight for gradients of 1",
	Shapes: "x [... n d], weight [classes d], targets int [... n] -> dx [... n d] | losses f32 [... n] | lse f32 [... n] | dweight f32 [classes d]",
	Kernels: kernels(runEarlyLoss(kernel.LinearLoss[float32, float32], kernel.LinearLossGradW[float32, float32]),
		runEarlyLoss(kernel.LinearLoss[float64, float64], kernel.LinearLossGradW[float64, float64]),
		runEarlyLoss(kernel.NaiveLinearLoss, kernel.NaiveLinearLossGradW)),
	BF16: earlyLossHalf, BF16Scratch: func(o *exec.Op) int { return linearLossHalfScratch(o) + lossRows(o) },
	Scratch: func(o *exec.Op) int { return linearLossScratch(o) + lossRows(o) },
	FLOPs:   func(o *exec.Op) int { return 3 * lossProduct(o) }, Product: lossSizes, Diff: 4, Check: checkTargets, Grad: earlyLossGrads,
}

// earlyLossB is for a loss with a bias.
var earlyLossB = &exec.Row{
	Kind: KindEarlyLossB, Attr: kernel.Loss{}, Doc: "linear loss, and the gradients of weight and bias for gradients of 1",
	Shapes: "x [... n d], weight [classes d], targets int [... n], bias f32 [classes]" +
		" -> dx [... n d] | losses f32 [... n] | lse f32 [... n] | dweight f32 [classes d] | dbias f32 [classes]",
	Kernels: earlyLoss.Kernels, BF16: earlyLossHalf, BF16Scratch: earlyLoss.BF16Scratch, Scratch: earlyLoss.Scratch,
	FLOPs: earlyLoss.FLOPs, Product: lossSizes, Diff: 4, Check: checkTargets, Grad: earlyLossGrads,
}

func earlyRow(o *exec.Op, needed func(arg int) bool) *exec.Row {
	switch bias := len(o.In) > 3; {
	case bias && (needed(1) || needed(3)):
		return earlyLossB
	case !bias && needed(1):
		return earlyLoss
	}
	return nil
}

func lossRows(o *exec.Op) int { _, n, _ := lossOf(o); return n }

func earlyLossGrads(o *exec.Op, in G.Nodes, packed, dy *G.Node) (G.Nodes, error) {
	dx, err := o.Gradient(linearLossGradX, packed, dy)
	if err != nil {
		return nil, err
	}
	if len(in) == 3 {
		dw, err := o.Gradient(earlyLossDW, packed, dy)
		return append(dx, dw...), err
	}
	grads, err := o.Gradient(earlyLossDWDB, packed, dy)
	if err != nil {
		return nil, err
	}
	return G.Nodes{dx[0], grads[0], nil, grads[1]}, nil
}

func runEarlyLoss[T kernel.Float](run func(c *kernel.Context, dx, losses, lse, x, w, bias []T, targets []int, n, d, classes int,
	l kernel.Loss, train bool, scratch []T) error, gradW func(c *kernel.Context, dw, dbias, x, w, bias []T, targets []int, lse, dlosses []T,
	n, d, classes int, l kernel.Loss, acc bool, scratch []T)) exec.Kernel {
	return func(f *exec.Frame) error {
		l, n, classes := lossOf(f.Op)
		d, out, scratch := f.Op.Dim("d"), result[T](f), exec.Data[T](f.Scratch)
		lse, dw := out[n*d+n:][:n], out[n*d+2*n:]
		x, w, bias, targets, ones := arg[T](f, 0), arg[T](f, 1), optional[T](f, 3), ints(f, 2), scratch[:n]
		err := run(f.Kernel, out[:n*d], out[n*d:][:n], lse, x, w, bias, targets, n, d, classes, l, f.Train, scratch[n:])
		if err != nil || !f.Train {
			clear(dw)
			return err
		}
		for i := range ones {
			ones[i] = 1
		}
		gradW(f.Kernel, dw[:classes*d], dw[classes*d:], x, w, bias, targets, lse, ones, n, d, classes, l, false, scratch[n:])
		return nil
	}
}

func earlyLossHalf(f *exec.Frame) error {
	l, n, classes := lossOf(f.Op)
	dx, rest := f.Out.Parts()
	d, lse, dw, ones, scratch := f.Op.Dim("d"), rest[n:2*n], rest[2*n:], wide(f)[:n], wide(f)[n:]
	bias := optional[float32](f, 3)
	err := kernel.LinearLoss(f.Kernel, dx, rest[:n], lse, low(f, 0), low(f, 1), bias, ints(f, 2), n, d, classes, l, f.Train, scratch)
	if err != nil || !f.Train {
		clear(dw)
		return err
	}
	vec.Fill(ones, 1)
	kernel.LinearLossGradW(f.Kernel, dw[:classes*d], dw[classes*d:], low(f, 0), low(f, 1), bias, ints(f, 2), lse, ones, n, d, classes, l, false, scratch)
	return nil
}

var earlyLossDW = &exec.Row{
	Kind: KindEarlyLossDW, Attr: kernel.Loss{}, Doc: "the dweight that early linear loss has found, times the gradient of the losses that count",
	Shapes:  "packed, dlosses f32 -> dweight f32 [classes d]",
	Kernels: kernels(runEarlyLossDW[float32], runEarlyLossDW[float64], runEarlyLossDW[float64]), BF16: earlyLossDWHalf,
	FLOPs: func(o *exec.Op) int { return exec.Numel(o.Shape) }, Reads: readsAsMany, Accumulate: true,
}

// earlyLossDWDB is for a loss with a bias.
var earlyLossDWDB = &exec.Row{
	Kind: KindEarlyLossDWDB, Attr: kernel.Loss{}, Doc: "the dweight and dbias of early linear loss, times the gradient of the losses that count",
	Shapes:  "packed, dlosses f32 -> dweight f32 [classes d] | dbias f32 [classes]",
	Kernels: earlyLossDW.Kernels, BF16: earlyLossDWHalf, FLOPs: earlyLossDW.FLOPs, Reads: readsAsMany,
}

func runEarlyLossDW[T kernel.Float](f *exec.Frame) error {
	all, n := arg[T](f, 0), exec.Numel(f.Op.Shape)
	scaleEarly(result[T](f), all[len(all)-n:], arg[T](f, 1), f.Acc)
	return nil
}

func earlyLossDWHalf(f *exec.Frame) error {
	_, all := f.In[0].Parts()
	scaleEarly(result[float32](f), all[len(all)-exec.Numel(f.Op.Shape):], arg[float32](f, 1), f.Acc)
	return nil
}

// scaleEarly writes or adds dw times the gradient of the losses that count: the others have 0.
func scaleEarly[T kernel.Float](y, dw, dlosses []T, acc bool) {
	var up, down T
	for _, d := range dlosses {
		up, down = max(up, d), min(down, d) // NaN stays NaN
	}
	if !acc {
		vec.ScaleTo(y, up+down, dw)
		return
	}
	vec.AddScaled(y, dw, up+down)
}

var rowLosses = &exec.Row{
	Kind: KindRowLosses, Attr: kernel.Loss{}, Doc: "lse - (1-smoothing)·l[target] - smoothing·mean(l) + z·lse² of each row l, and lse",
	Shapes:  "logits [... n classes], targets int [... n] -> losses f32 [... n] | lse f32 [... n]",
	Kernels: kernels(runRowLosses(kernel.RowLosses[float32]), runRowLosses(kernel.RowLosses[float64]), runRowLosses(kernel.NaiveRowLosses)),
	FLOPs:   exec.Each(5), Scratch: rowScratch, Split: exec.ByKernel, Diff: 1, Check: checkTargets,
	Grad: func(o *exec.Op, in G.Nodes, packed, dy *G.Node) (G.Nodes, error) {
		return o.Gradient(rowLossesGrad, in[0], in[1], packed, dy)
	},
}

func rowScratch(o *exec.Op) int { return kernel.CrossEntropyScratch(o.Dim("classes")) }

func runRowLosses[T kernel.Float](run func(losses, lse, logits []T, targets []int, n, classes int, l kernel.Loss, scratch []T) error) exec.Kernel {
	return func(f *exec.Frame) error {
		l, n, classes := lossOf(f.Op)
		lo, hi := f.Kernel.Share(n, 1)
		if err := kernel.CheckTargets(ints(f, 1), classes, l.Ignore); err != nil {
			return err
		}
		losses, lse := result[T](f)[:n], result[T](f)[n:]
		return run(losses[lo:hi], lse[lo:hi], arg[T](f, 0)[lo*classes:hi*classes], ints(f, 1)[lo:hi], hi-lo, classes, l, exec.Data[T](f.Scratch))
	}
}

var rowLossesGrad = &exec.Row{
	Kind: KindRowLossesGrad, Attr: kernel.Loss{},
	Doc:    "(exp(l - lse)·(1 + 2·z·lse) - (1-smoothing)·onehot(target) - smoothing/classes)·dloss of each row l",
	Shapes: "logits, targets int, packed f32, dlosses f32 -> dlogits [... n classes]",
	Kernels: kernels(runRowLossesGrad(kernel.RowLossesGrad[float32]), runRowLossesGrad(kernel.RowLossesGrad[float64]),
		runRowLossesGrad(kernel.NaiveRowLossesGrad)),
	FLOPs: exec.Each(5), Scratch: rowScratch, InPlace: true, Split: exec.ByKernel,
}

func runRowLossesGrad[T kernel.Float](run func(dlogits, logits []T, targets []int, lse, dlosses []T, n, classes int, l kernel.Loss,
	scratch []T)) exec.Kernel {
	return func(f *exec.Frame) error {
		l, n, classes := lossOf(f.Op)
		lo, hi := f.Kernel.Share(n, 1)
		run(result[T](f)[lo*classes:hi*classes], arg[T](f, 0)[lo*classes:hi*classes], ints(f, 1)[lo:hi], arg[T](f, 2)[n:][lo:hi], arg[T](f, 3)[lo:hi],
			hi-lo, classes, l, exec.Data[T](f.Scratch))
		return nil
	}
}

var meanLoss = &exec.Row{
	Kind: KindMeanLoss, Attr: Ignore{}, Doc: "the mean of the losses whose target counts", Shapes: "losses f32 [... n], targets int [... n] -> loss f32 [1]",
	Kernels: kernels(runMeanLoss[float32], runMeanLoss[float64], runMeanLoss[float64]), FLOPs: exec.Each(1), Diff: 1,
	Grad: func(o *exec.Op, in G.Nodes, _, dy *G.Node) (G.Nodes, error) {
		return o.Gradient(meanLossGrad, in[1], dy)
	},
}

func runMeanLoss[T kernel.Float](f *exec.Frame) error {
	result[T](f)[0] = kernel.MeanLoss(arg[T](f, 0), ints(f, 1), f.Op.Attrs.(Ignore).Target)
	return nil
}

var meanLossGrad = &exec.Row{
	Kind: KindMeanLossGrad, Attr: Ignore{}, Doc: "dloss/count, and 0 where a target does not count",
	Shapes:  "targets int, dloss f32 -> dlosses f32 [... n]",
	Kernels: kernels(runMeanLossGrad[float32], runMeanLossGrad[float64], runMeanLossGrad[float64]), FLOPs: exec.Each(1),
}

func runMeanLossGrad[T kernel.Float](f *exec.Frame) error {
	kernel.MeanLossGrad(result[T](f), ints(f, 0), f.Op.Attrs.(Ignore).Target, arg[T](f, 1)[0])
	return nil
}
