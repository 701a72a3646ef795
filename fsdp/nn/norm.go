package nn

import (
	"cmp"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/op"
)

// gain is the parameter that scales the normalised values of a norm. It is small, and multiplies
// everything, so it travels in full precision.
func gain(dim int) fsdp.Param {
	return fsdp.Param{Name: "weight", Shape: []int{dim}, Init: fsdp.Constant(1), Full: true}
}

// LayerNorm normalises the last dimension of x [..., Dim] to mean 0 and variance 1, then scales and
// shifts. Parameters: weight [Dim] and, unless NoBias, bias [Dim].
type LayerNorm struct {
	Dim    int
	Eps    float64 // added to the variance; 0 means 1e-5
	NoBias bool
}

// Params implements fsdp.Module.
func (m *LayerNorm) Params() []fsdp.Param {
	if m.NoBias {
		return []fsdp.Param{gain(m.Dim)}
	}
	return []fsdp.Param{gain(m.Dim), {Name: "bias", Shape: []int{m.Dim}, Full: true}}
}

// Build implements fsdp.Module.
func (m *LayerNorm) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	p, err := operands(b, in, 1, "weight")
	if err != nil {
		return nil, err
	}
	var bias *gorgonia.Node
	if m.NoBias {
		bias, err = b.ConstTensor(tensor.New(tensor.WithShape(m.Dim), tensor.Of(b.DType())))
	} else {
		bias, err = b.Param("bias")
	}
	if err != nil {
		return nil, err
	}
	return one(op.LayerNorm(in[0], p[0], bias, cmp.Or(m.Eps, 1e-5)))
}

// RMSNorm divides x [..., Dim] by the root mean square of its last dimension, then scales.
// Parameter: weight [Dim].
type RMSNorm struct {
	Dim        int
	Eps        float64 // added to the mean square; 0 means 1e-6
	UnitOffset bool    // scale by 1 + weight, where weight starts at 0, as in Gemma
}

// Params implements fsdp.Module.
func (m *RMSNorm) Params() []fsdp.Param {
	p := gain(m.Dim)
	if m.UnitOffset {
		p.Init = nil
	}
	return []fsdp.Param{p}
}

// Build implements fsdp.Module.
func (m *RMSNorm) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	p, err := operands(b, in, 1, "weight")
	if err != nil {
		return nil, err
	}
	scale := p[0]
	if m.UnitOffset {
		ones, err := b.ConstTensor(tensor.Ones(b.DType(), m.Dim))
		if err != nil {
			return nil, err
		}
		if scale, err = gorgonia.Add(scale, ones); err != nil {
			return nil, err
		}
	}
	return one(op.RMSNorm(in[0], scale, cmp.Or(m.Eps, 1e-6)))
}

// BatchNorm normalises each channel of x [B, Dim, ...] over all other dimensions to mean 0 and
// variance 1, then scales and shifts (Ioffe and Szegedy, 2015, arXiv:1502.03167). Training
// normalises with the statistics of the rank's own batch, and moves the running statistics towards
// them. Evaluation normalises with the running statistics. Ranks see different batches, so their
// running statistics differ until [fsdp.Sharded.AverageBuffers] is called.
//
// Parameters: weight [Dim] and bias [Dim]. Buffers: running_mean [Dim] and running_var [Dim].
// running_var takes the unbiased variance, as in PyTorch; for a single element it is 0.
type BatchNorm struct {
	Dim      int
	Eps      float64 // added to the variance; 0 means 1e-5
	Momentum float64 // weight of a batch in the running statistics; 0 means 0.1
}

// Params implements fsdp.Module.
func (m *BatchNorm) Params() []fsdp.Param {
	shape := []int{m.Dim}
	return []fsdp.Param{
		gain(m.Dim), {Name: "bias", Shape: shape, Full: true},
		{Name: "running_mean", Shape: shape, Buffer: true}, {Name: "running_var", Shape: shape, Init: fsdp.Constant(1), Buffer: true},
	}
}

// Build implements fsdp.Module.
func (m *BatchNorm) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	p, err := operands(b, in, 1, "weight", "bias", "running_mean", "running_var")
	if err != nil {
		return nil, err
	}
	y, mean, variance, err := op.BatchNorm(in[0], p[0], p[1], p[2], p[3], cmp.Or(m.Eps, 1e-5), cmp.Or(m.Momentum, 0.1))
	if err != nil {
		return nil, err
	}
	if err := b.Update("running_mean", mean); err != nil {
		return nil, err
	}
	return gorgonia.Nodes{y}, b.Update("running_var", variance)
}
