package ops

import (
	"cmp"
	"fmt"
	"math"
	"unsafe"

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
	return first(attention.Apply(Attention{heads, causal}, with(mask, qkv)...))
}

// with returns the arguments in and, unless it is left out, the optional one behind them.
func with(optional *G.Node, in ...*G.Node) G.Nodes {
	if optional == nil {
		return in
	}
	return append(in, optional)
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
	Kernels: attend, BF16: attendHalf, BF16Scratch: attentionHalfScratch,
	FLOPs: attentionFLOPs(4), Scratch: attentionScratch, Split: exec.ByKernel, Diff: 1,
	Grad: attentionGradOf(attentionGrad, 1),
}

var attentionGrad = &exec.Row{
	Kind: KindAttentionGrad, Attr: Attention{}, Doc: "the gradient of attention, from the scores computed again",
	Shapes:  "qkv, packed, dy, mask? int -> dqkv [B T 3*D]",
	Kernels: attendGrad, BF16: attendGradHalf, BF16Scratch: attentionHalfScratch,
	FLOPs: attentionFLOPs(10), Scratch: attentionScratch, Split: exec.ByKernel,
}

// SDPA is the attribute of the kinds of attention over queries, keys and values that lie apart.
type SDPA struct {
	Heads   int     // of queries
	KVHeads int     // of keys and values, a divisor of Heads: head h reads head h/(Heads/KVHeads); 0 means Heads
	Causal  bool    // hide from query i the keys j > i + Tk - Tq
	Window  int     // hide from it those j <= i + Tk - Tq - Window too; 0 hides none
	Scale   float64 // of the scores; 0 means 1/√Dh
}

// ScaledDotProduct returns softmax(Scale·q·kᵀ + bias)·v of each head, for q [B, Tq, Heads*Dh] and k
// and v [B, Tk, KVHeads*Dh]: [B, Tq, Heads*Dh]. mask, nil or ints [B, Tk], hides the keys where it is
// zero; a query that sees no key gives zeros. bias is nil or [Heads, Tq, Tk], for all of the batch.
func ScaledDotProduct(q, k, v, mask, bias *G.Node, a SDPA) (*G.Node, error) {
	a.KVHeads = cmp.Or(a.KVHeads, a.Heads)
	if bias == nil {
		return first(sdpa.Apply(a, with(mask, q, k, v)...))
	}
	return first(sdpaBias.Apply(a, with(mask, q, k, v, bias)...))
}

var (
	sdpa         = newSDPA(KindSDPA, "", "", sdpaGrad, 3)
	sdpaGrad     = newSDPAGrad(KindSDPAGrad, "", "")
	sdpaBias     = newSDPA(KindSDPABias, " + bias", "bias f32 [heads Tq Tk], ", sdpaBiasGrad, 4)
	sdpaBiasGrad = newSDPAGrad(KindSDPABiasGrad, "bias f32, ", " | dbias f32 [heads Tq Tk]")
)

func newSDPA(kind exec.Kind, plus, bias string, grad *exec.Row, diff int) *exec.Row {
	return &exec.Row{
		Kind: kind, Attr: SDPA{}, Doc: "softmax(scale·q·kᵀ" + plus + ")·v of each head, and the logarithm of the sum in each softmax",
		Shapes: "q [B Tq H*Dh], k [B Tk KV*Dh], v [B Tk KV*Dh], " + bias + "mask? int [B Tk] -> y [B Tq H*Dh] | lse f32 [B heads Tq]",
		Fit:    fitSDPA, Kernels: attend, BF16: attendHalf, BF16Scratch: attentionHalfScratch,
		FLOPs: attentionFLOPs(4), Scratch: attentionScratch, Split: exec.ByKernel,
		Diff: diff, Grad: attentionGradOf(grad, diff),
	}
}

func newSDPAGrad(kind exec.Kind, bias, dbias string) *exec.Row {
	return &exec.Row{
		Kind: kind, Attr: SDPA{}, Doc: "the gradients of sdpa, from the scores computed again",
		Shapes:  "q, k, v, " + bias + "packed, dy, mask? int -> dq [B Tq H*Dh] | dk [B Tk KV*Dh] | dv [B Tk KV*Dh]" + dbias,
		Kernels: attendGrad, BF16: attendGradHalf, BF16Scratch: attentionHalfScratch,
		FLOPs: attentionFLOPs(10), Scratch: attentionScratch, Split: exec.ByKernel,
	}
}

// attentionGradOf adds row, the gradient of an attention whose first n arguments are differentiable.
func attentionGradOf(row *exec.Row, n int) func(*exec.Op, G.Nodes, *G.Node, *G.Node) (G.Nodes, error) {
	return func(o *exec.Op, in G.Nodes, packed, dy *G.Node) (G.Nodes, error) {
		return o.Gradient(row, append(append(append(G.Nodes{}, in[:n]...), packed, dy), in[n:]...)...)
	}
}

func fitSDPA(o *exec.Op) error {
	a, width, kvWidth := o.Attrs.(SDPA), o.Dim("H*Dh"), o.Dim("KV*Dh")
	switch {
	case min(a.Heads, a.KVHeads) < 1 || a.Heads%a.KVHeads != 0:
		return fmt.Errorf("%d heads of queries do not divide into %d heads of keys", a.Heads, a.KVHeads)
	case width%a.Heads != 0:
		return fmt.Errorf("q is %v, want [B Tq H*Dh] with a multiple of %d heads", o.In[0], a.Heads)
	case width/a.Heads*a.KVHeads != kvWidth:
		return fmt.Errorf("k is %v, want %d heads of %d columns for q %v of %d heads", o.In[1], a.KVHeads, width/a.Heads, o.In[0], a.Heads)
	case a.Window < 0 || a.Window > 0 && !a.Causal:
		return fmt.Errorf("window %d: want a positive one with Causal, or 0", a.Window)
	case math.IsNaN(a.Scale) || math.IsInf(a.Scale, 0):
		return fmt.Errorf("scale is %v", a.Scale)
	}
	o.SetDim("heads", a.Heads)
	if heads := o.Dim("heads"); heads != a.Heads { // of bias
		return fmt.Errorf("bias is %v, want %d heads", o.In[3], a.Heads)
	}
	return nil
}

// geometry returns that of the kernels. Of packed operands, q, k and v lie in rows of 3·D.
func geometry(o *exec.Op) kernel.Attention {
	a, packed := o.Attrs.(Attention)
	if packed {
		t, d := o.Dim("T"), o.Dim("D")
		return kernel.Attention{
			Batch: o.Dim("B"), QLen: t, KLen: t, Heads: a.Heads, HeadDim: d / a.Heads, Causal: a.Causal,
			QStride: 3 * d, KStride: 3 * d, VStride: 3 * d, OutStride: d,
		}
	}
	s, width, kvWidth := o.Attrs.(SDPA), o.Dim("H*Dh"), o.Dim("KV*Dh")
	return kernel.Attention{
		Batch: o.Dim("B"), QLen: o.Dim("Tq"), KLen: o.Dim("Tk"), Heads: s.Heads, KVHeads: s.KVHeads, HeadDim: width / s.Heads,
		Causal: s.Causal, Window: s.Window, Scale: s.Scale,
		QStride: width, KStride: kvWidth, VStride: kvWidth, OutStride: width,
	}
}

func attentionScratch(o *exec.Op) int { return kernel.AttentionScratch(geometry(o)) }

func attentionHalfScratch(o *exec.Op) int { return kernel.AttentionBFloat16Scratch(geometry(o)) }

// attentionFLOPs counts n for each column of all heads of a pair of a query and a key that it sees.
// What a mask hides is not known when an op is made.
func attentionFLOPs(n int) func(o *exec.Op) int {
	return func(o *exec.Op) int {
		a := geometry(o)
		return n * a.Batch * a.Pairs() * a.Heads * a.HeadDim
	}
}

// operands are those of an attention, and what its gradient has besides: values of type E, and sums
// of type T.
type operands[E kernel.Element, T kernel.Float] struct {
	kernel.Attention
	q, k, v, out, dout []E
	lse, bias, scratch []T
	mask               []int
}

// operandsOf finds the operands in a frame: q, k and v, packed in one argument or not, bias, the
// result of forward and its gradient, and the mask.
func operandsOf[E kernel.Element, T kernel.Float](f *exec.Frame) (x operands[E, T]) {
	x.Attention, x.scratch = geometry(f.Op), exec.Data[T](f.Scratch)
	in := f.In[1:]
	x.q = arg[E](f, 0)
	if _, packed := f.Op.Attrs.(Attention); packed {
		x.k, x.v = x.q[x.OutStride:], x.q[2*x.OutStride:]
	} else {
		x.k, x.v, in = arg[E](f, 1), arg[E](f, 2), in[2:]
	}
	if kind := f.Op.Kind; kind == KindSDPABias || kind == KindSDPABiasGrad {
		x.bias, in = exec.Data[T](in[0].Bytes), in[1:]
	}
	if f.Op.Grad == nil {
		x.out, x.lse = x.packed(in[0])
		x.dout, in = exec.Data[E](in[1].Bytes), in[2:]
	}
	if len(in) > 0 {
		x.mask = exec.Data[int](in[0].Bytes)
	}
	return x
}

// packed returns the two results of forward.
func (x *operands[E, T]) packed(v exec.Value) (out []E, lse []T) {
	return exec.Data[E](v.Bytes), last[T](v, x.Batch*x.Heads*x.QLen)
}

// last returns the last n elements of a value, which may be of another type than those before.
func last[T kernel.Float](v exec.Value, n int) []T {
	return exec.Data[T](v.Bytes[len(v.Bytes)-n*int(unsafe.Sizeof(T(0))):])
}

var (
	attend = kernels(runAttention(kernel.AttentionForward[float32, float32]), runAttention(kernel.AttentionForward[float64, float64]),
		runAttention(kernel.NaiveAttentionForward))
	attendHalf = runAttention(kernel.AttentionForward[half.BFloat16, float32])
	attendGrad = kernels(runAttentionGrad(kernel.AttentionBackward[float32, float32]),
		runAttentionGrad(kernel.AttentionBackward[float64, float64]), runAttentionGrad(kernel.NaiveAttentionBackward))
	attendGradHalf = runAttentionGrad(kernel.AttentionBackward[half.BFloat16, float32])
)

func runAttention[E kernel.Element, T kernel.Float](run func(c *kernel.Context, a kernel.Attention, out []E, lse []T, q, k, v []E,
	mask []int, bias, scratch []T)) exec.Kernel {
	return func(f *exec.Frame) error {
		x := operandsOf[E, T](f)
		out, lse := x.packed(f.Out)
		run(f.Kernel, x.Attention, out, lse, x.q, x.k, x.v, x.mask, x.bias, x.scratch)
		return nil
	}
}

func runAttentionGrad[E kernel.Element, T kernel.Float](run func(c *kernel.Context, a kernel.Attention, dq, dk, dv []E, dbias []T,
	q, k, v, out []E, lse []T, dout []E, mask []int, bias, scratch []T)) exec.Kernel {
	return func(f *exec.Frame) error {
		x, dq := operandsOf[E, T](f), result[E](f)
		dk, dv := dq[x.OutStride:], dq[2*x.OutStride:]
		if _, packed := f.Op.Attrs.(Attention); !packed {
			dk, dv = dq[len(x.q):], dq[len(x.q)+len(x.k):]
		}
		var dbias []T
		if x.bias != nil {
			dbias = last[T](f.Out, len(x.bias))
		}
		run(f.Kernel, x.Attention, dq, dk, dv, dbias, x.q, x.k, x.v, x.out, x.lse, x.dout, x.mask, x.bias, x.scratch)
		return nil
	}
}
