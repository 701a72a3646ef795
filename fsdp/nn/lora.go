package nn

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/op"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// LoRA is a low-rank adapter of a linear layer (Hu et al., 2021, arXiv:2106.09685), which is
// trained instead of its weight:
//
//	y = x·weightᵀ + bias + Alpha/Rank · (x·lora_aᵀ)·lora_bᵀ
//
// Parameters: lora_a [Rank, In], which starts normal with standard deviation 1/sqrt(In), and lora_b
// [Out, Rank], which starts at zero, so an adapted layer starts as the layer itself. The names of
// the layer's own parameters do not change: a model with adapters loads the weights of a model
// without adapters by name, and Config.Frozen keeps them unchanged:
//
//	model := &nn.GPT{…, LoRA: nn.LoRA{Rank: 8, Alpha: 16}}
//	base := func(name string) bool { return !nn.IsAdapter(name) }
//	m, err := fsdp.Wrap(model, fsdp.Config{Frozen: base})
//	err = m.LoadStateDict(ctx, 0, pretrained)
//
// The zero value is no adapter.
type LoRA struct {
	Rank  int     // 0 means no adapter
	Alpha float64 // 0 means Rank
}

const loraA, loraB = "lora_a", "lora_b"

// IsAdapter reports whether the parameter with a full name belongs to an adapter.
func IsAdapter(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	return last == loraA || last == loraB
}

// scale returns the factor of the adapter's output.
func (l LoRA) scale() float64 { return cmp.Or(l.Alpha, float64(l.Rank)) / float64(l.Rank) }

// params returns the parameters of the adapter of a layer.
func (l LoRA) params(in, out int) []fsdp.Param {
	if l.Rank == 0 {
		return nil
	}
	return []fsdp.Param{
		{Name: loraA, Shape: []int{l.Rank, in}, Init: fsdp.Normal(1 / math.Sqrt(float64(in)))},
		{Name: loraB, Shape: []int{out, l.Rank}},
	}
}

// add returns y [..., out] plus the adapter's output for x [..., in].
func (l LoRA) add(b *fsdp.Builder, y, x *gorgonia.Node) (*gorgonia.Node, error) {
	if l.Rank == 0 {
		return y, nil
	}
	p, err := operands(b, nil, 0, loraA, loraB)
	if err != nil {
		return nil, err
	}
	low, err := op.Linear(x, p[0], nil) // [..., Rank]
	if err != nil {
		return nil, err
	}
	if low, err = op.Scale(low, l.scale()); err != nil {
		return nil, err
	}
	return op.AddLinear(y, low, p[1])
}

// Merge adds the adapters in params, the full state of a model whose layers are adapted by l, to
// the weights that they adapt, and removes them. The rest is the state of the model without
// adapters that computes the same, except for rounding. After an error params is unchanged.
func (l LoRA) Merge(params map[string]*tensor.Dense) error {
	layers := make(map[string]bool)
	for name := range params {
		if IsAdapter(name) {
			layers[name[:strings.LastIndexByte(name, '.')+1]] = true
		}
	}
	for _, layer := range slices.Sorted(maps.Keys(layers)) {
		if err := l.fits(params[layer+"weight"], params[layer+loraA], params[layer+loraB]); err != nil {
			return fmt.Errorf("nn: merging the adapter of %s: %w", strings.TrimSuffix(layer, "."), err)
		}
	}
	for layer := range layers {
		w, a, b := params[layer+"weight"], params[layer+loraA], params[layer+loraB]
		if w.Dtype() == tensor.Float64 {
			merge(w.Float64s(), a.Float64s(), b.Float64s(), l.Rank, l.scale())
		} else {
			merge(w.Float32s(), a.Float32s(), b.Float32s(), l.Rank, float32(l.scale()))
		}
		delete(params, layer+loraA)
		delete(params, layer+loraB)
	}
	return nil
}

// fits returns an error if a [Rank, in] and b [out, Rank] are not an adapter like l of w [out, in].
func (l LoRA) fits(w, a, b *tensor.Dense) error {
	if w == nil || a == nil || b == nil {
		return errors.New("its weight, lora_a or lora_b is missing")
	}
	for _, t := range []*tensor.Dense{w, a, b} {
		if dt := t.Dtype(); dt != w.Dtype() || dt != tensor.Float32 && dt != tensor.Float64 || t.Dims() != 2 {
			return fmt.Errorf("%v %v is no matrix of the same float type as the weight, %v", dt, t.Shape(), w.Dtype())
		}
		if t.RequiresIterator() || t.DataOrder().IsColMajor() {
			return fmt.Errorf("a tensor of shape %v is a view or column-major: clone it into row-major order first", t.Shape())
		}
	}
	s := w.Shape()
	if !a.Shape().Eq(tensor.Shape{l.Rank, s[1]}) || !b.Shape().Eq(tensor.Shape{s[0], l.Rank}) {
		return fmt.Errorf("%v and %v do not make an adapter of rank %d for %v", a.Shape(), b.Shape(), l.Rank, s)
	}
	return nil
}

// merge adds c·b·a to w [out, in], for a [rank, in] and b [out, rank].
func merge[T float32 | float64](w, a, b []T, rank int, c T) {
	in := len(a) / rank
	for i, v := range b {
		vec.AddScaled(w[i/rank*in:][:in], a[i%rank*in:][:in], c*v)
	}
}
