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
	// The statistics are a separate operation whose result is kept for backward. So the cheap rest
	// can be computed again without the running statistics. Their gradient with respect to x is
	// part of the gradient of the rest.
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
	Kind: KindBatchStats, Attr: BatchStats{}, Doc: "mean and biased variance of each channel, and what the running ones become",
	Shapes: "x [B C ...], running mean f32 [C], running variance f32 [C] -> mean f32 [C] | variance f32 [C] | next mean f32 [C] | next variance f32 [C]",
	Kernels: kernels(runBatchStats(kernel.ChannelStats[float32]), runBatchStats(kernel.ChannelStats[float64]),
		runBatchStats(kernel.NaiveChannelStats)),
	FLOPs: exec.Each(4), Scratch: channelScratch,
}

func runBatchStats[T kernel.Float](run func(mean, variance, x, scratch []T, n, channels, area int)) exec.Kernel {
	return func(f *exec.Frame) error {
		rows, d, area := imageDims(f.Op)
		n := rows * area
		out, running := result[T](f), [2][]T{arg[T](f, 1), arg[T](f, 2)}
		mean, variance, next := out[:d], out[d:2*d], [2][]T{out[2*d : 3*d], out[3*d:]}
		if !f.Train || n == 0 {
			for i := range 2 {
				copy(out[i*d:], running[i])
				copy(next[i], running[i])
			}
			return nil
		}
		run(mean, variance, arg[T](f, 0), scratch[T](f), rows, d, area)
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
	Shapes: "x [B C ...], gain f32 [C], bias f32 [C], statistics f32 -> y [B C ...]",
	Kernels: kernels(runBatchNorm(kernel.ChannelNorm[float32]), runBatchNorm(kernel.ChannelNorm[float64]),
		runBatchNorm(kernel.NaiveChannelNorm)),
	FLOPs: exec.Each(3), Cheap: true, InPlace: true, Diff: 3, Scratch: channelScratch,
	Grad: func(o *exec.Op, in G.Nodes, _, dy *G.Node) (G.Nodes, error) {
		return o.Gradient(batchNormGrad, in[0], in[1], in[3], dy)
	},
}

func runBatchNorm[T kernel.Float](run func(y, x, gain, bias, mean, variance, scratch []T, n, channels, area int, eps float64)) exec.Kernel {
	return func(f *exec.Frame) error {
		n, d, area := imageDims(f.Op)
		stats := arg[T](f, 3)
		run(result[T](f), arg[T](f, 0), arg[T](f, 1), arg[T](f, 2), stats[:d], stats[d:2*d], scratch[T](f), n, d, area, f.Op.Attrs.(Norm).Eps)
		return nil
	}
}

var batchNormGrad = &exec.Row{
	Kind: KindBatchNormGrad, Attr: Norm{}, Doc: "the gradients of batch norm, those through the statistics included",
	Shapes: "x, gain f32, statistics f32, dy -> dx [B C ...] | dgain f32 [C] | dbias f32 [C]",
	Kernels: kernels(runBatchNormGrad(kernel.ChannelNormGrad[float32]), runBatchNormGrad(kernel.ChannelNormGrad[float64]),
		runBatchNormGrad(kernel.NaiveChannelNormGrad)),
	FLOPs: exec.Each(11), Scratch: channelScratch,
}

func runBatchNormGrad[T kernel.Float](run func(dx, dgain, dbias, x, gain, mean, variance, dy, scratch []T,
	n, channels, area int, eps float64)) exec.Kernel {
	return func(f *exec.Frame) error {
		n, d, area := imageDims(f.Op)
		out, stats, nd := result[T](f), arg[T](f, 2), n*d*area
		run(out[:nd], out[nd:nd+d], out[nd+d:], arg[T](f, 0), arg[T](f, 1), stats[:d], stats[d:2*d], arg[T](f, 3), scratch[T](f),
			n, d, area, f.Op.Attrs.(Norm).Eps)
		return nil
	}
}
