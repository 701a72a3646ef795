package nn

import (
	"cmp"
	"fmt"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/op"
)

// Patches maps images [B, Channels, Height, Width] to a sequence [B, 1+N, Dim]: a class token, and
// then a projection of each of the N squares of Size·Size pixels, row by row, all with learned
// positions. Parameters: weight [Dim, Channels, Size, Size], bias [Dim], class [1, 1, Dim] and
// positions [1, 1+N, Dim].
type Patches struct {
	Channels, Height, Width int // of images
	Size, Dim               int
	Std                     float64 // of the initial weights; 0 means 0.02
}

func (m *Patches) count() int { return m.Height / m.Size * (m.Width / m.Size) }

// Params implements fsdp.Module.
func (m *Patches) Params() []fsdp.Param {
	return []fsdp.Param{
		{Name: "weight", Shape: []int{m.Dim, m.Channels, m.Size, m.Size}, Init: weights(m.Std)}, {Name: "bias", Shape: []int{m.Dim}},
		{Name: "class", Shape: []int{1, 1, m.Dim}, Init: weights(m.Std)}, {Name: "positions", Shape: []int{1, 1 + m.count(), m.Dim}, Init: weights(m.Std)},
	}
}

// Build implements fsdp.Module.
func (m *Patches) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	p, err := operands(b, in, 1, "weight", "bias", "class", "positions")
	if err != nil {
		return nil, err
	}
	s := in[0].Shape()
	if len(s) != 4 || s[1] != m.Channels || s[2] != m.Height || s[3] != m.Width {
		return nil, fmt.Errorf("images are %v, want [B %d %d %d]", s, m.Channels, m.Height, m.Width)
	}
	pixels, rows, columns := m.Channels*m.Size*m.Size, m.Height/m.Size, m.Width/m.Size
	weight, err := gorgonia.Reshape(p[0], tensor.Shape{m.Dim, pixels})
	if err != nil {
		return nil, err
	}
	table, err := gorgonia.Reshape(p[3], tensor.Shape{1 + m.count(), m.Dim})
	if err != nil {
		return nil, err
	}
	class, err := m.repeated(b, p[2], s[0])
	if err != nil {
		return nil, err
	}
	return one(chain(in[0],
		reshape(s[0], m.Channels, rows, m.Size, columns, m.Size),
		func(x *gorgonia.Node) (*gorgonia.Node, error) { return gorgonia.Transpose(x, 0, 2, 4, 1, 3, 5) },
		reshape(s[0], rows*columns, pixels),
		func(x *gorgonia.Node) (*gorgonia.Node, error) { return op.Linear(x, weight, p[1]) },
		func(x *gorgonia.Node) (*gorgonia.Node, error) { return gorgonia.Concat(1, class, x) },
		func(x *gorgonia.Node) (*gorgonia.Node, error) { return op.AddPositions(x, table) }))
}

// repeated returns class for each image, [B, 1, Dim].
func (m *Patches) repeated(b *fsdp.Builder, class *gorgonia.Node, images int) (*gorgonia.Node, error) {
	zeros, err := b.ConstTensor(tensor.New(tensor.WithShape(images, 1, m.Dim), tensor.Of(b.DType())))
	if err != nil {
		return nil, err
	}
	return gorgonia.BroadcastAdd(zeros, class, nil, []byte{0})
}

// First maps x [B, T, Dim] to its first row, [B, Dim]. It has no parameters.
type First struct{}

// Params implements fsdp.Module.
func (*First) Params() []fsdp.Param { return nil }

// Build implements fsdp.Module.
func (*First) Build(_ *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	if err := arguments(in, 1); err != nil {
		return nil, err
	}
	if in[0].Dims() != 3 {
		return nil, fmt.Errorf("x is %v, want [B T C]", in[0].Shape())
	}
	return one(gorgonia.Slice(in[0], nil, gorgonia.S(0)))
}

// ViT classifies images (Dosovitskiy et al., 2021, arXiv:2010.11929). Its batch is images [B,
// Channels, Height, Width], floats, and targets, ints [B]. Its results are the loss and the logits
// [B, Classes].
//
// Parameters: patches.* as Patches names them, layers.i.* as Layer names them, norm.weight and
// norm.bias [Dim], and head.weight [Classes, Dim] and head.bias.
type ViT struct {
	Height, Width, Patch       int // in pixels; patches are square
	Channels                   int // of an image; 0 means 3
	Classes                    int
	Layers, Dim, Heads, Hidden int
	Act                        Activation
	Dropout                    float64
	Eps                        float64 // of the norms; 0 means 1e-12
	LoRA                       LoRA    // of the layers' linear layers
}

// Inputs names the tensors of a batch.
func (m *ViT) Inputs() []string { return []string{"images", "targets"} }

// Forward implements fsdp.Model.
func (m *ViT) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	if err := checkModel("ViT", &m.layer().Attn, size{"Height", m.Height, 1}, size{"Width", m.Width, 1}, size{"Patch", m.Patch, 1},
		size{"Channels", m.Channels, 0}, size{"Classes", m.Classes, 1}, size{"Layers", m.Layers, 0}, size{"Dim", m.Dim, 1},
		size{"Heads", m.Heads, 1}, size{"Hidden", m.Hidden, 1}); err != nil {
		return nil, err
	}
	if m.Height%m.Patch != 0 || m.Width%m.Patch != 0 {
		return nil, fmt.Errorf("nn: images of %d·%d pixels do not divide into patches of %d·%d: change Patch, Height or Width", m.Height, m.Width, m.Patch, m.Patch)
	}
	x := t.Call("patches", m.patches(), in[0])
	if m.Dropout > 0 {
		x = t.Call("dropout", &Dropout{Rate: m.Dropout}, x)
	}
	x = layers(t, "", m.Layers, always(m.layer()), x)
	x = t.Call("first", &First{}, x)
	x = t.Call("norm", m.norm(), x)
	loss := t.Call("head", m.head(), x, in[1])
	return []fsdp.Ref{loss, loss.At(1)}, nil
}

func (m *ViT) eps() float64 { return cmp.Or(m.Eps, 1e-12) }
func (m *ViT) patches() *Patches {
	return &Patches{Channels: cmp.Or(m.Channels, 3), Height: m.Height, Width: m.Width, Size: m.Patch, Dim: m.Dim}
}
func (m *ViT) norm() *LayerNorm { return &LayerNorm{Dim: m.Dim, Eps: m.eps()} }
func (m *ViT) head() *Head      { return &Head{Dim: m.Dim, Classes: m.Classes, Bias: true} }
func (m *ViT) layer() *Layer {
	return &Layer{
		Attn: Attention{Dim: m.Dim, Heads: m.Heads, Dropout: m.Dropout, ProjStd: residStd(m.Layers), LoRA: m.LoRA},
		MLP:  MLP{Dim: m.Dim, Hidden: m.Hidden, Act: m.Act, Dropout: m.Dropout, OutStd: residStd(m.Layers), LoRA: m.LoRA},
		Eps:  m.eps(),
	}
}

// NumParams returns the number of elements of all parameters.
func (m *ViT) NumParams() int {
	return elements(m.patches(), m.norm(), m.head()) + m.Layers*elements(m.layer())
}

// FLOPs returns the floating-point operations of forward and backward for one image, counted as for
// a token of GPT.
func (m *ViT) FLOPs() int {
	patches := m.patches().count()
	weights := m.Layers*matrices(m.layer())*(1+patches) + m.Dim*(m.Classes+patches*m.Patch*m.Patch*cmp.Or(m.Channels, 3))
	return flops(weights, m.Layers*m.Dim*(1+patches)*(1+patches))
}
