package ops

import (
	"fmt"

	G "gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel"
)

// Attention is the attribute of KindAttention and KindAttentionGrad. There is a mask if there is an
// argument for it.
type Attention struct {
	Heads  int
	Causal bool
}

// SelfAttention is op.SelfAttention.
func SelfAttention(qkv, mask *G.Node, heads int, causal bool) (*G.Node, error) {
	if mask == nil {
		return first(attention.Apply(Attention{heads, causal}, qkv))
	}
	return first(attention.Apply(Attention{heads, causal}, qkv, mask))
}

var attention = &exec.Row{
	Kind: KindAttention, Attr: Attention{},
	Doc:    "softmax(q·kᵀ/√(D/heads))·v of each head, and the logarithm of the sum in each softmax",
	Shapes: "qkv [B T 3*D], mask? int [B T] -> y [B T D] | lse f32 [B heads T]",
	Fit: func(o *exec.Op) error {
		heads, width := o.Attrs.(Attention).Heads, o.Dim("3*D")
		if heads < 1 || width%(3*heads) != 0 {
			return fmt.Errorf("qkv is %v, want [B T 3*D] with D a multiple of %d heads", o.In[0], heads)
		}
		o.SetDim("D", width/3)
		o.SetDim("heads", heads)
		return nil
	},
	Kernels: kernels(runAttention(kernel.AttentionForward[float32]), runAttention(kernel.AttentionForward[float64]),
		runAttention(kernel.NaiveAttentionForward)),
	BF16: attentionHalf, BF16Scratch: attentionHalfScratch,
	FLOPs: func(o *exec.Op) int { return 4 * visible(o) }, Scratch: attentionScratch, Split: exec.ByKernel, Diff: 1,
	Grad: func(o *exec.Op, in G.Nodes, packed, dy *G.Node) (G.Nodes, error) {
		return o.Gradient(attentionGrad, append(G.Nodes{in[0], packed, dy}, in[1:]...)...)
	},
}

// geometry returns that of the kernels for q, k and v packed in rows of 3·D.
func geometry(o *exec.Op) kernel.Attention {
	a, t, d := o.Attrs.(Attention), o.Dim("T"), o.Dim("D")
	return kernel.Attention{
		Batch: o.Dim("B"), QLen: t, KLen: t, Heads: a.Heads, HeadDim: d / a.Heads, Causal: a.Causal,
		QStride: 3 * d, KStride: 3 * d, VStride: 3 * d, OutStride: d,
	}
}

func attentionScratch(o *exec.Op) int { return kernel.AttentionScratch(geometry(o)) }

func attentionHalfScratch(o *exec.Op) int { return kernel.AttentionBFloat16Scratch(geometry(o)) }

func attentionHalf(f *exec.Frame) error {
	a, x := geometry(f.Op), low(f, 0)
	out, lse := f.Out.Parts()
	d := a.OutStride
	kernel.AttentionForward(f.Kernel, a, out, lse, x, x[d:], x[2*d:], ints(f, 1), nil, wide(f))
	return nil
}

// visible counts the pairs of a query and a key that it sees, times the columns of all heads. What
// a mask hides is not known when an op is made.
func visible(o *exec.Op) int {
	t := o.Dim("T")
	pairs := t * t
	if o.Attrs.(Attention).Causal {
		pairs = t * (t + 1) / 2
	}
	return o.Dim("B") * pairs * o.Dim("D")
}

func runAttention[T kernel.Float](run func(c *kernel.Context, a kernel.Attention, out, lse, q, k, v []T, mask []int,
	bias, scratch []T)) exec.Kernel {
	return func(f *exec.Frame) error {
		a, out, x := geometry(f.Op), result[T](f), arg[T](f, 0)
		d, n := a.OutStride, a.Batch*a.QLen*a.OutStride
		run(f.Kernel, a, out[:n], out[n:], x, x[d:], x[2*d:], ints(f, 1), nil, exec.Data[T](f.Scratch))
		return nil
	}
}

var attentionGrad = &exec.Row{
	Kind: KindAttentionGrad, Attr: Attention{}, Doc: "the gradient of attention, from the scores computed again",
	Shapes: "qkv, packed, dy, mask? int -> dqkv [B T 3*D]",
	Kernels: kernels(runAttentionGrad(kernel.AttentionBackward[float32]), runAttentionGrad(kernel.AttentionBackward[float64]),
		runAttentionGrad(kernel.NaiveAttentionBackward)),
	BF16: attentionGradHalf, BF16Scratch: attentionHalfScratch,
	FLOPs: func(o *exec.Op) int { return 10 * visible(o) }, Scratch: attentionScratch, Split: exec.ByKernel,
}

func attentionGradHalf(f *exec.Frame) error {
	a, dx, x := geometry(f.Op), result[half.BFloat16](f), low(f, 0)
	out, lse := f.In[1].Parts()
	d := a.OutStride
	kernel.AttentionBackward(f.Kernel, a, dx, dx[d:], dx[2*d:], nil, x, x[d:], x[2*d:], out, lse, low(f, 2), ints(f, 3), nil, wide(f))
	return nil
}

func runAttentionGrad[T kernel.Float](run func(c *kernel.Context, a kernel.Attention, dq, dk, dv, dbias, q, k, v, out, lse,
	dout []T, mask []int, bias, scratch []T)) exec.Kernel {
	return func(f *exec.Frame) error {
		a, dx, x, packed := geometry(f.Op), result[T](f), arg[T](f, 0), arg[T](f, 1)
		d, n := a.OutStride, a.Batch*a.QLen*a.OutStride
		run(f.Kernel, a, dx, dx[d:], dx[2*d:], nil, x, x[d:], x[2*d:], packed[:n], packed[n:], arg[T](f, 2), ints(f, 3), nil,
			exec.Data[T](f.Scratch))
		return nil
	}
}
