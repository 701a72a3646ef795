package ops

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"unsafe"

	G "gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel"
)

// Attention is the attribute of all kinds of attention and of their gradients.
type Attention struct {
	Heads   int     // of queries
	KVHeads int     // of keys and values, a divisor of Heads: head h reads head h/(Heads/KVHeads); 0 means Heads
	Causal  bool    // hide from query i the keys j > i + Tk - Tq
	Window  int     // hide the keys that are Window or more positions from i + Tk - Tq; 0 hides none
	Scale   float64 // of the scores; 0 means 1/√Dh
	Packed  bool    // the last argument has positions; set for calls with positions
}

// SelfAttention is [SDPA] for q, k and v packed in qkv [B, T, (Heads+2*KVHeads)*Dh]: the last
// dimension has the heads of q, then of k, then of v. The result is [B, T, Heads*Dh].
func SelfAttention(qkv, mask, positions, bias *G.Node, a Attention) (*G.Node, error) {
	return a.apply(attention, attentionBias, mask, positions, bias, qkv)
}

// SDPA returns softmax(Scale·q·kᵀ + bias)·v of each head, for q [B, Tq, Heads*Dh] and k and v [B,
// Tk, KVHeads*Dh]: [B, Tq, Heads*Dh]. mask, nil or ints [B, Tk], hides the keys where it is zero. A
// query that sees no key gives zeros. positions, nil or ints [B, Tk], make documents: see
// [kernel.Attention]. bias is nil or [Heads, Tq, Tk], the same for the whole batch.
func SDPA(q, k, v, mask, positions, bias *G.Node, a Attention) (*G.Node, error) {
	return a.apply(sdpa, sdpaBias, mask, positions, bias, q, k, v)
}

// apply applies the row for the arguments: row without a bias, or biased.
func (a Attention) apply(row, biased *exec.Row, mask, positions, bias *G.Node, in ...*G.Node) (*G.Node, error) {
	for _, x := range in { // without a mask, positions have its place in Row.Shapes
		if s := x.Shape(); positions != nil && len(s) == 3 && !positions.Shape().Eq(s[:2]) {
			return nil, fmt.Errorf("%s: positions are %v, want %v", row.Kind, positions.Shape(), s[:2])
		}
	}
	if bias != nil {
		row, in = biased, append(in, bias)
	}
	if mask != nil {
		in = append(in, mask)
	}
	if a.Packed = positions != nil; a.Packed {
		in = append(in, positions)
	}
	a.KVHeads = cmp.Or(a.KVHeads, a.Heads)
	return first(row.Apply(a, in...))
}

// These are the kinds of attention over packed operands with a bias.
const (
	KindAttentionBias     exec.Kind = "attention bias"
	KindAttentionBiasGrad exec.Kind = "attention bias grad"
)

var (
	attention         = form{joined: true}.row(KindAttention, attentionGrad)
	attentionGrad     = form{joined: true}.grad(KindAttentionGrad)
	attentionBias     = form{joined: true, biased: true}.row(KindAttentionBias, attentionBiasGrad)
	attentionBiasGrad = form{joined: true, biased: true}.grad(KindAttentionBiasGrad)
	sdpa              = form{}.row(KindSDPA, sdpaGrad)
	sdpaGrad          = form{}.grad(KindSDPAGrad)
	sdpaBias          = form{biased: true}.row(KindSDPABias, sdpaBiasGrad)
	sdpaBiasGrad      = form{biased: true}.grad(KindSDPABiasGrad)
)

// form describes the arguments of an attention: q, k and v packed or separate, with or without a
// bias.
type form struct{ joined, biased bool }

// args returns the number of arguments that have gradients.
func (p form) args() (n int) {
	n = 3
	if p.joined {
		n = 1
	}
	if p.biased {
		n++
	}
	return n
}

// rule returns the shapes for p, composed from the shapes of separate or packed q, k and v, and of
// a bias.
func (p form) rule(apart, joined, bias, rest string) string {
	if !p.biased {
		bias = ""
	}
	if !p.joined {
		return apart + bias + rest
	}
	return strings.NewReplacer("Tq", "T", "Tk", "T").Replace(joined + bias + rest)
}

func (p form) row(kind exec.Kind, grad *exec.Row) *exec.Row {
	doc := "softmax(scale·q·kᵀ)·v of each head, and the logarithm of the sum in each softmax"
	if p.biased {
		doc = strings.Replace(doc, "ᵀ", "ᵀ + bias", 1)
	}
	n := p.args()
	return p.fill(exec.Row{
		Kind: kind, Doc: doc, Fit: p.fit, Diff: n,
		Shapes: p.rule("q [B Tq H*Dh], k [B Tk KV*Dh], v [B Tk KV*Dh]", "qkv [B T (H+2*KV)*Dh]", ", bias f32 [heads Tq Tk]",
			", mask? int [B Tk], positions? int [B Tk] -> y [B Tq H*Dh] | lse f32 [B heads Tq]"),
		Kernels: kernels(runAttention(p, kernel.AttentionForward[float32, float32]),
			runAttention(p, kernel.AttentionForward[float64, float64]), runAttention(p, kernel.NaiveAttentionForward)),
		BF16: runAttention(p, kernel.AttentionForward[half.BFloat16, float32]),
		Grad: func(o *exec.Op, in G.Nodes, packed, dy *G.Node) (G.Nodes, error) {
			return o.Gradient(grad, append(append(append(G.Nodes{}, in[:n]...), packed, dy), in[n:]...)...)
		},
	}, 4)
}

func (p form) grad(kind exec.Kind) *exec.Row {
	return p.fill(exec.Row{
		Kind: kind, Doc: "the gradients, from the scores computed again",
		Shapes: p.rule("q, k, v", "qkv", ", bias f32", ", packed, dy, mask? int, positions? int -> ") +
			p.rule("dq [B Tq H*Dh] | dk [B Tk KV*Dh] | dv [B Tk KV*Dh]", "dqkv [B T (H+2*KV)*Dh]", " | dbias f32 [heads Tq Tk]", ""),
		Kernels: kernels(runAttentionGrad(p, kernel.AttentionBackward[float32, float32]),
			runAttentionGrad(p, kernel.AttentionBackward[float64, float64]), runAttentionGrad(p, kernel.NaiveAttentionBackward)),
		BF16: runAttentionGrad(p, kernel.AttentionBackward[half.BFloat16, float32]),
	}, 10)
}

// fill sets the fields that forward and backward have in common. flops is the number of FLOPs for
// each column of all heads and each visible pair of a query and a key. Keys hidden by a mask count,
// as the mask is unknown when an op is made.
func (p form) fill(r exec.Row, flops int) *exec.Row {
	r.Attr, r.Split, r.Check = Attention{}, exec.ByKernel, p.check
	r.Scratch = func(o *exec.Op) int { return kernel.AttentionScratch(p.geometry(o)) }
	r.BF16Scratch = func(o *exec.Op) int { return kernel.AttentionBFloat16Scratch(p.geometry(o)) }
	r.Attention = func(o *exec.Op) (headDim, scores, products int) {
		a := p.geometry(o)
		return a.HeadDim, a.Batch * a.Heads * a.QLen * a.KLen, flops / 2
	}
	r.FLOPs = func(o *exec.Op) int {
		a := p.geometry(o)
		return flops * a.Batch * a.Pairs() * a.Heads * a.HeadDim
	}
	return &r
}

// fit checks that widths divide into heads, and sets the widths of the results.
func (p form) fit(o *exec.Op) error {
	a := o.Attrs.(Attention)
	switch {
	case min(a.Heads, a.KVHeads) < 1 || a.Heads%a.KVHeads != 0:
		return fmt.Errorf("%d query heads are not a positive multiple of %d key heads", a.Heads, a.KVHeads)
	case a.Window < 0:
		return fmt.Errorf("window %d: want a positive one, or 0", a.Window)
	case math.IsNaN(a.Scale) || math.IsInf(a.Scale, 0):
		return fmt.Errorf("scale is %v, want a finite number", a.Scale)
	}
	if p.joined {
		width, all := o.Dim("(H+2*KV)*Dh"), a.Heads+2*a.KVHeads
		if width%all != 0 {
			return fmt.Errorf("qkv is %v, want a multiple of %d columns, the number of its heads", o.In[0], all)
		}
		o.SetDim("H*Dh", width/all*a.Heads)
	} else if q, k := o.Dim("H*Dh"), o.Dim("KV*Dh"); q%a.Heads != 0 || q/a.Heads*a.KVHeads != k {
		return fmt.Errorf("q is %v and k is %v, want %d and %d heads of equal width", o.In[0], o.In[1], a.Heads, a.KVHeads)
	}
	o.SetDim("heads", a.Heads)
	if heads := o.Dim("heads"); heads != a.Heads { // the number of heads in bias
		return fmt.Errorf("bias is %v, want %d heads", o.In[p.args()-1], a.Heads)
	}
	return nil
}

// check checks positions. A mask may have any values.
func (p form) check(o *exec.Op, arg int, v []int) error {
	if a := o.Attrs.(Attention); !a.Packed || arg != len(o.In)-1 {
		return nil
	}
	return kernel.CheckPositions(v, p.geometry(o).KLen)
}

// geometry returns the geometry for the kernels.
func (p form) geometry(o *exec.Op) kernel.Attention {
	a, width := o.Attrs.(Attention), o.Dim("H*Dh")
	g := kernel.Attention{
		Batch: o.Dim("B"), Heads: a.Heads, KVHeads: a.KVHeads, HeadDim: width / a.Heads,
		Causal: a.Causal, Window: a.Window, Scale: a.Scale, OutStride: width,
	}
	if p.joined {
		row := o.Dim("(H+2*KV)*Dh")
		g.QLen, g.KLen, g.QStride, g.KStride, g.VStride = o.Dim("T"), o.Dim("T"), row, row, row
		return g
	}
	row := o.Dim("KV*Dh")
	g.QLen, g.KLen, g.QStride, g.KStride, g.VStride = o.Dim("Tq"), o.Dim("Tk"), width, row, row
	return g
}

// split divides x, which has q, k and v or their gradients, into the three. If packed, they are
// columns of x.
func split[E kernel.Element](p form, a kernel.Attention, x []E) (q, k, v []E) {
	atK, atV := a.Heads*a.HeadDim, (a.Heads+a.KVHeads)*a.HeadDim
	if !p.joined {
		atK, atV = a.Batch*a.QLen*a.QStride, a.Batch*(a.QLen*a.QStride+a.KLen*a.KStride)
	}
	return x, x[atK:], x[atV:]
}

// operands returns q, k and v, the bias, and the arguments after them.
func operands[E kernel.Element, T kernel.Float](p form, a kernel.Attention, f *exec.Frame) (q, k, v []E, bias []T, rest []exec.Value) {
	n := p.args()
	rest = f.In[n:]
	if p.biased {
		bias = exec.Data[T](f.In[n-1].Bytes)
	}
	if !p.joined {
		return arg[E](f, 0), arg[E](f, 1), arg[E](f, 2), bias, rest
	}
	q, k, v = split(p, a, arg[E](f, 0))
	return q, k, v, bias, rest
}

// last returns the last n elements of a value, whose type may differ from the elements before.
func last[T kernel.Float](v exec.Value, n int) []T {
	return exec.Data[T](v.Bytes[len(v.Bytes)-n*int(unsafe.Sizeof(T(0))):])
}

// visible sets the positions of the geometry, and returns the mask. rest is the last arguments:
// none, either, or both.
func visible(a *kernel.Attention, packed bool, rest []exec.Value) (mask []int, err error) {
	if n := len(rest) - 1; packed {
		a.Positions, rest = exec.Data[int](rest[n].Bytes), rest[:n]
		err = kernel.CheckPositions(a.Positions, a.KLen)
	}
	if len(rest) > 0 {
		mask = exec.Data[int](rest[0].Bytes)
	}
	return mask, err
}

func runAttention[E kernel.Element, T kernel.Float](p form, run func(c *kernel.Context, a kernel.Attention, out []E, lse []T,
	q, k, v []E, mask []int, bias, scratch []T)) exec.Kernel {
	return func(f *exec.Frame) error {
		a := p.geometry(f.Op)
		q, k, v, bias, rest := operands[E, T](p, a, f)
		mask, err := visible(&a, f.Op.Attrs.(Attention).Packed, rest)
		if err != nil {
			return err
		}
		lse := last[T](f.Out, a.Batch*a.Heads*a.QLen)
		run(f.Kernel, a, result[E](f), lse, q, k, v, mask, bias, exec.Data[T](f.Scratch))
		return nil
	}
}

func runAttentionGrad[E kernel.Element, T kernel.Float](p form, run func(c *kernel.Context, a kernel.Attention, dq, dk, dv []E,
	dbias []T, q, k, v, out []E, lse []T, dout []E, mask []int, bias, scratch []T)) exec.Kernel {
	return func(f *exec.Frame) error {
		a := p.geometry(f.Op)
		q, k, v, bias, rest := operands[E, T](p, a, f)
		dq, dk, dv := split(p, a, result[E](f))
		var dbias []T
		if p.biased {
			dbias = last[T](f.Out, len(bias))
		}
		mask, err := visible(&a, f.Op.Attrs.(Attention).Packed, rest[2:])
		if err != nil {
			return err
		}
		out, lse, dout := exec.Data[E](rest[0].Bytes), last[T](rest[0], a.Batch*a.Heads*a.QLen), exec.Data[E](rest[1].Bytes)
		run(f.Kernel, a, dq, dk, dv, dbias, q, k, v, out, lse, dout, mask, bias, exec.Data[T](f.Scratch))
		return nil
	}
}
