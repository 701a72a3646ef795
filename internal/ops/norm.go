package ops

import (
	"fmt"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/kernel"
)

// norm is the geometry of a row norm: n rows of d elements.
type norm struct {
	n, d  int
	shape tensor.Shape
	eps   float64
}

func newNorm(op string, x, gain *G.Node, eps float64) (norm, error) {
	if err := wantRank(op, "x", x, 1); err != nil {
		return norm{}, err
	}
	n, d := rows(x)
	return norm{n, d, x.Shape().Clone(), eps}, wantShape(op, "gain", gain, d)
}

// LayerNorm returns (x - mean) / sqrt(var + eps) * gain + bias over the last dimension of x [..., d], with the biased
// variance (Ba et al., 2016, arXiv:1607.06450).
func LayerNorm(x, gain, bias *G.Node, eps float64) (*G.Node, error) {
	k, err := newNorm("layer norm", x, gain, eps)
	if err != nil {
		return nil, err
	}
	if err := wantShape("layer norm", "bias", bias, k.d); err != nil {
		return nil, err
	}
	packed, err := body{layerNorm[float32](k), layerNorm[float64](k)}.apply(exec.Op{ // [y | mean, rstd per row]
		Name: fmt.Sprintf("layer norm(%v,%g)", k.shape, eps), Shape: tensor.Shape{k.n*k.d + 2*k.n}, Cheap: true,
		Diff: []bool{true, true, true}, Grad: k.layerNormGrad,
	}, x, gain, bias)
	if err != nil {
		return nil, err
	}
	return part(packed, 0, k.shape, true)
}

func (k norm) layerNormGrad(in G.Nodes, packed, dy *G.Node) (G.Nodes, error) {
	grads, err := body{layerNormGrad[float32](k), layerNormGrad[float64](k)}.apply(exec.Op{ // [dx | dgain | dbias]
		Name: "layer norm grad", Shape: tensor.Shape{k.n*k.d + 2*k.d},
	}, in[0], in[1], packed, dy)
	if err != nil {
		return nil, err
	}
	return k.split(grads, 2)
}

// split takes dx and the gradients of m parameters out of packed.
func (k norm) split(packed *G.Node, m int) (G.Nodes, error) {
	dx, err := part(packed, 0, k.shape, false)
	out := G.Nodes{dx}
	for i := range m {
		if err != nil {
			return nil, err
		}
		var p *G.Node
		p, err = part(packed, k.n*k.d+i*k.d, tensor.Shape{k.d}, false)
		out = append(out, p)
	}
	return out, err
}

func layerNorm[T kernel.Float](k norm) func(*exec.Frame) error {
	return func(f *exec.Frame) error {
		out := result[T](f)
		kernel.LayerNorm(out[:k.n*k.d], out[k.n*k.d:], arg[T](f, 0), arg[T](f, 1), arg[T](f, 2), k.n, k.d, k.eps)
		return nil
	}
}

func layerNormGrad[T kernel.Float](k norm) func(*exec.Frame) error {
	return func(f *exec.Frame) error {
		out, stats, nd := result[T](f), arg[T](f, 2)[k.n*k.d:], k.n*k.d
		kernel.LayerNormGrad(out[:nd], out[nd:nd+k.d], out[nd+k.d:], arg[T](f, 0), arg[T](f, 1), stats, arg[T](f, 3), k.n, k.d)
		return nil
	}
}

// RMSNorm returns x / sqrt(mean(x²) + eps) * gain over the last dimension of x [..., d] (Zhang and Sennrich, 2019,
// arXiv:1910.07467).
func RMSNorm(x, gain *G.Node, eps float64) (*G.Node, error) {
	k, err := newNorm("rms norm", x, gain, eps)
	if err != nil {
		return nil, err
	}
	packed, err := body{rmsNorm[float32](k), rmsNorm[float64](k)}.apply(exec.Op{ // [y | rstd per row]
		Name: fmt.Sprintf("rms norm(%v,%g)", k.shape, eps), Shape: tensor.Shape{k.n*k.d + k.n}, Cheap: true,
		Diff: []bool{true, true}, Grad: k.rmsNormGrad,
	}, x, gain)
	if err != nil {
		return nil, err
	}
	return part(packed, 0, k.shape, true)
}

func (k norm) rmsNormGrad(in G.Nodes, packed, dy *G.Node) (G.Nodes, error) {
	grads, err := body{rmsNormGrad[float32](k), rmsNormGrad[float64](k)}.apply(exec.Op{ // [dx | dgain]
		Name: "rms norm grad", Shape: tensor.Shape{k.n*k.d + k.d},
	}, in[0], in[1], packed, dy)
	if err != nil {
		return nil, err
	}
	return k.split(grads, 1)
}

func rmsNorm[T kernel.Float](k norm) func(*exec.Frame) error {
	return func(f *exec.Frame) error {
		out := result[T](f)
		kernel.RMSNorm(out[:k.n*k.d], out[k.n*k.d:], arg[T](f, 0), arg[T](f, 1), k.n, k.d, k.eps)
		return nil
	}
}

func rmsNormGrad[T kernel.Float](k norm) func(*exec.Frame) error {
	return func(f *exec.Frame) error {
		out, nd := result[T](f), k.n*k.d
		kernel.RMSNormGrad(out[:nd], out[nd:], arg[T](f, 0), arg[T](f, 1), arg[T](f, 2)[nd:], arg[T](f, 3), k.n, k.d)
		return nil
	}
}
