package nn

import (
	"cmp"
	"math"

	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/op"
)

// Images are [B, C, H, W]: B images of C channels of H rows of W pixels (NCHW), for Conv2d,
// pooling, GroupNorm and BatchNorm. This is the layout of weights and images in PyTorch and
// Gorgonia.

// Conv2d convolves images x [B, In, H, W] with a filter for each output channel: [B, Out, P, Q].
// See [op.Conv2D] for the shape. Pairs are of rows and columns. Parameters: weight [Out, In/Groups,
// Kernel, Kernel] and, unless NoBias, bias [Out].
type Conv2d struct {
	In, Out int
	Kernel  [2]int
	op.Conv
	NoBias bool
	Std    float64 // of the initial weights; 0 means sqrt(2/fan-in) (He et al., 2015, arXiv:1502.01852)
}

// Params implements fsdp.Module.
func (m *Conv2d) Params() []fsdp.Param {
	shape := []int{m.Out, m.In / max(1, m.Groups), m.Kernel[0], m.Kernel[1]}
	std := cmp.Or(m.Std, math.Sqrt(2/float64(max(1, shape[1]*shape[2]*shape[3]))))
	params := []fsdp.Param{{Name: "weight", Shape: shape, Init: fsdp.Normal(std)}}
	if !m.NoBias {
		params = append(params, fsdp.Param{Name: "bias", Shape: []int{m.Out}})
	}
	return params
}

// Build implements fsdp.Module.
func (m *Conv2d) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	p, err := operands(b, in, 1, "weight")
	if err != nil {
		return nil, err
	}
	var bias *gorgonia.Node
	if !m.NoBias {
		if bias, err = b.Param("bias"); err != nil {
			return nil, err
		}
	}
	return one(op.Conv2D(in[0], p[0], bias, m.Conv))
}

// MaxPool2d takes the largest element of each window of images [B, C, H, W]: see [op.MaxPool2D]. It
// has no parameters.
type MaxPool2d struct{ op.Pool }

// Params implements [fsdp.Module]: there are none.
func (*MaxPool2d) Params() []fsdp.Param { return nil }

// Build implements [fsdp.Module].
func (m *MaxPool2d) Build(_ *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	return pooled(in, m.Pool, op.MaxPool2D)
}

// AvgPool2d takes the mean of each window of images [B, C, H, W]: see [op.AvgPool2D]. It has no
// parameters.
type AvgPool2d struct{ op.Pool }

// Params implements [fsdp.Module]: there are none.
func (*AvgPool2d) Params() []fsdp.Param { return nil }

// Build implements [fsdp.Module].
func (m *AvgPool2d) Build(_ *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	return pooled(in, m.Pool, op.AvgPool2D)
}

func pooled(in []*gorgonia.Node, p op.Pool, f func(*gorgonia.Node, op.Pool) (*gorgonia.Node, error)) (gorgonia.Nodes, error) {
	if err := arguments(in, 1); err != nil {
		return nil, err
	}
	return one(f(in[0], p))
}

// GroupNorm normalises each of Groups groups of channels of each example of x [B, Dim, ...] to mean
// 0 and variance 1, then scales and shifts channels (Wu and He, 2018, arXiv:1803.08494).
// Parameters: weight [Dim] and bias [Dim].
type GroupNorm struct {
	Dim, Groups int
	Eps         float64 // added to the variance; 0 means 1e-5
}

// Params implements fsdp.Module.
func (m *GroupNorm) Params() []fsdp.Param {
	return []fsdp.Param{gain(m.Dim), {Name: "bias", Shape: []int{m.Dim}, Full: true}}
}

// Build implements fsdp.Module.
func (m *GroupNorm) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	p, err := operands(b, in, 1, "weight", "bias")
	if err != nil {
		return nil, err
	}
	return one(op.GroupNorm(in[0], p[0], p[1], m.Groups, cmp.Or(m.Eps, 1e-5)))
}

// Flatten makes rows of images: [B, ...] becomes [B, n], at no cost. It has no parameters.
type Flatten struct{}

// Params implements [fsdp.Module]: there are none.
func (*Flatten) Params() []fsdp.Param { return nil }

// Build implements [fsdp.Module].
func (*Flatten) Build(_ *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	if err := arguments(in, 1); err != nil {
		return nil, err
	}
	s := in[0].Shape()
	return one(gorgonia.Reshape(in[0], []int{s[0], s.TotalSize() / max(1, s[0])}))
}
