package ops

import (
	"fmt"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/kernel"
)

// batchNorm is the geometry of a batch norm: n rows of d channels.
type batchNorm struct {
	n, d          int
	shape         tensor.Shape
	eps, momentum float64
}

// BatchNorm returns (x - mean) / sqrt(var + eps) * gain + bias for each channel of x [..., d] (Ioffe and Szegedy, 2015,
// arXiv:1502.03167). In training mean and var are those of the rows of x, var the biased one; in evaluation they are
// runningMean and runningVar. mean and variance are what the running statistics become after a forward in training: the
// old ones times 1-momentum plus those of x times momentum, var the unbiased one, 0 for a single row.
func BatchNorm(x, gain, bias, runningMean, runningVar *G.Node, eps, momentum float64) (y, mean, variance *G.Node, err error) {
	if err := wantRank("batch norm", "x", x, 1); err != nil {
		return nil, nil, nil, err
	}
	n, d := rows(x)
	for _, p := range []struct {
		name string
		node *G.Node
	}{{"gain", gain}, {"bias", bias}, {"running mean", runningMean}, {"running variance", runningVar}} {
		if err := wantShape("batch norm", p.name, p.node, d); err != nil {
			return nil, nil, nil, err
		}
	}
	if !(momentum > 0 && momentum <= 1) {
		return nil, nil, nil, fmt.Errorf("batch norm: momentum %v is not in (0, 1]", momentum)
	}
	k := batchNorm{n, d, x.Shape().Clone(), eps, momentum}
	// The statistics are an operation of their own, which is kept for backward, so that the cheap rest can be computed
	// again without the running ones. Their gradient with respect to x is part of that of the rest.
	stats, err := body{batchStats[float32](k), batchStats[float64](k)}.apply(exec.Op{ // [mean | var | new running mean | new running var]
		Name: fmt.Sprintf("batch statistics(%v,%g)", k.shape, momentum), Shape: tensor.Shape{4 * d},
	}, x, runningMean, runningVar)
	if err != nil {
		return nil, nil, nil, err
	}
	if mean, err = part(stats, 2*d, tensor.Shape{d}, false); err != nil {
		return nil, nil, nil, err
	}
	if variance, err = part(stats, 3*d, tensor.Shape{d}, false); err != nil {
		return nil, nil, nil, err
	}
	y, err = body{batchNormal[float32](k), batchNormal[float64](k)}.apply(exec.Op{
		Name: fmt.Sprintf("batch norm(%v,%g)", k.shape, eps), Shape: k.shape, Cheap: true, InPlace: true,
		Diff: []bool{true, true, true, false}, Grad: k.grad,
	}, x, gain, bias, stats)
	return y, mean, variance, err
}

func (k batchNorm) grad(in G.Nodes, _, dy *G.Node) (G.Nodes, error) {
	packed, err := body{batchNormGrad[float32](k), batchNormGrad[float64](k)}.apply(exec.Op{ // [dx | dgain | dbias]
		Name: fmt.Sprintf("batch norm grad(%v,%g)", k.shape, k.eps), Shape: tensor.Shape{k.n*k.d + 2*k.d},
	}, in[0], in[1], in[3], dy)
	if err != nil {
		return nil, err
	}
	grads, err := norm{n: k.n, d: k.d, shape: k.shape}.split(packed, 2)
	return append(grads, nil), err
}

func batchStats[T kernel.Float](k batchNorm) func(*exec.Frame) error {
	return func(f *exec.Frame) error {
		out, running := result[T](f), [2][]T{arg[T](f, 1), arg[T](f, 2)}
		mean, variance, next := out[:k.d], out[k.d:2*k.d], [2][]T{out[2*k.d : 3*k.d], out[3*k.d:]}
		if !f.Train || k.n == 0 {
			for i := range 2 {
				copy(out[i*k.d:], running[i])
				copy(next[i], running[i])
			}
			return nil
		}
		kernel.BatchStats(mean, variance, arg[T](f, 0), k.n, k.d)
		unbiased := float64(k.n) / float64(max(1, k.n-1))
		for j := range k.d {
			next[0][j] = T((1-k.momentum)*float64(running[0][j]) + k.momentum*float64(mean[j]))
			next[1][j] = T((1-k.momentum)*float64(running[1][j]) + k.momentum*unbiased*float64(variance[j]))
		}
		return nil
	}
}

func batchNormal[T kernel.Float](k batchNorm) func(*exec.Frame) error {
	return func(f *exec.Frame) error {
		stats := arg[T](f, 3)
		kernel.BatchNorm(result[T](f), arg[T](f, 0), arg[T](f, 1), arg[T](f, 2), stats[:k.d], stats[k.d:2*k.d], k.n, k.d, k.eps)
		return nil
	}
}

func batchNormGrad[T kernel.Float](k batchNorm) func(*exec.Frame) error {
	return func(f *exec.Frame) error {
		out, stats, nd := result[T](f), arg[T](f, 2), k.n*k.d
		kernel.BatchNormGrad(out[:nd], out[nd:nd+k.d], out[nd+k.d:], arg[T](f, 0), arg[T](f, 1), stats[:k.d], stats[k.d:2*k.d], arg[T](f, 3), k.n, k.d, k.eps)
		return nil
	}
}
