package ops

import (
	"fmt"

	G "gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/kernel"
)

// BatchStats is the attribute of KindBatchStats.
type BatchStats struct{ Momentum float64 }

// BatchNorm is op.BatchNorm.
func BatchNorm(x, gain, bias, runningMean, runningVar *G.Node, eps, momentum float64) (y, mean, variance *G.Node, err error) {
	if !(momentum > 0 && momentum <= 1) {
		return nil, nil, nil, fmt.Errorf("batch norm: momentum %v is not in (0, 1]", momentum)
	}
	// The statistics are an operation of their own, which is kept for backward, so that the cheap
	// rest can be computed again without the running ones. Their gradient with respect to x is part
	// of that of the rest.
	stats, err := batchStats.Apply(BatchStats{momentum}, x, runningMean, runningVar)
	if err != nil {
		return nil, nil, nil, err
	}
	if mean, err = exec.Part(stats, 2); err != nil {
		return nil, nil, nil, err
	}
	if variance, err = exec.Part(stats, 3); err != nil {
		return nil, nil, nil, err
	}
	y, err = batchNorm.Apply(Norm{eps}, x, gain, bias, stats)
	return y, mean, variance, err
}

var batchStats = &exec.Row{
	Kind: KindBatchStats, Attr: BatchStats{}, Doc: "mean and biased variance of each column, and what the running ones become",
	Shapes: "x [... d], running mean f32 [d], running variance f32 [d] -> mean f32 [d] | variance f32 [d] | next mean f32 [d] | next variance f32 [d]",
	Kernels: kernels(runBatchStats(kernel.BatchStats[float32]), runBatchStats(kernel.BatchStats[float64]),
		runBatchStats(kernel.NaiveBatchStats)),
	FLOPs: exec.Each(4),
}

func runBatchStats[T kernel.Float](run func(mean, variance, x []T, n, d int)) exec.Kernel {
	return func(f *exec.Frame) error {
		n, d := normDims(f.Op)
		out, running := result[T](f), [2][]T{arg[T](f, 1), arg[T](f, 2)}
		mean, variance, next := out[:d], out[d:2*d], [2][]T{out[2*d : 3*d], out[3*d:]}
		if !f.Train || n == 0 {
			for i := range 2 {
				copy(out[i*d:], running[i])
				copy(next[i], running[i])
			}
			return nil
		}
		run(mean, variance, arg[T](f, 0), n, d)
		momentum, unbiased := f.Op.Attrs.(BatchStats).Momentum, float64(n)/float64(max(1, n-1))
		for j := range d {
			next[0][j] = T((1-momentum)*float64(running[0][j]) + momentum*float64(mean[j]))
			next[1][j] = T((1-momentum)*float64(running[1][j]) + momentum*unbiased*float64(variance[j]))
		}
		return nil
	}
}

var batchNorm = &exec.Row{
	Kind: KindBatchNorm, Attr: Norm{}, Doc: "(x - mean)/√(variance + eps)·gain + bias",
	Shapes: "x [... d], gain f32 [d], bias f32 [d], statistics f32 -> y [... d]",
	Kernels: kernels(runBatchNorm(kernel.BatchNorm[float32]), runBatchNorm(kernel.BatchNorm[float64]),
		runBatchNorm(kernel.NaiveBatchNorm)),
	FLOPs: exec.Each(3), Cheap: true, InPlace: true, Diff: 3,
	Grad: func(o *exec.Op, in G.Nodes, _, dy *G.Node) (G.Nodes, error) {
		return o.Gradient(batchNormGrad, in[0], in[1], in[3], dy)
	},
}

func runBatchNorm[T kernel.Float](run func(y, x, gain, bias, mean, variance []T, n, d int, eps float64)) exec.Kernel {
	return func(f *exec.Frame) error {
		n, d := normDims(f.Op)
		stats := arg[T](f, 3)
		run(result[T](f), arg[T](f, 0), arg[T](f, 1), arg[T](f, 2), stats[:d], stats[d:2*d], n, d, f.Op.Attrs.(Norm).Eps)
		return nil
	}
}

var batchNormGrad = &exec.Row{
	Kind: KindBatchNormGrad, Attr: Norm{}, Doc: "the gradients of batch norm, those through the statistics included",
	Shapes: "x, gain f32, statistics f32, dy -> dx [... d] | dgain f32 [d] | dbias f32 [d]",
	Kernels: kernels(runBatchNormGrad(kernel.BatchNormGrad[float32]), runBatchNormGrad(kernel.BatchNormGrad[float64]),
		runBatchNormGrad(kernel.NaiveBatchNormGrad)),
	FLOPs: exec.Each(11),
}

func runBatchNormGrad[T kernel.Float](run func(dx, dgain, dbias, x, gain, mean, variance, dy []T, n, d int,
	eps float64)) exec.Kernel {
	return func(f *exec.Frame) error {
		n, d := normDims(f.Op)
		out, stats, nd := result[T](f), arg[T](f, 2), n*d
		run(out[:nd], out[nd:nd+d], out[nd+d:], arg[T](f, 0), arg[T](f, 1), stats[:d], stats[d:2*d], arg[T](f, 3), n, d,
			f.Op.Attrs.(Norm).Eps)
		return nil
	}
}
