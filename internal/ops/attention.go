package ops

import (
	"fmt"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/kernel"
)

// SelfAttention returns multi-head scaled dot-product attention over qkv [B, T, 3*D], whose last dimension is q, k and v
// one after the other, each of heads heads of D/heads columns: [B, T, D]. Causal hides later positions. mask, nil or
// ints [B, T], hides the keys where it is zero; a query that sees no key gives zeros.
func SelfAttention(qkv, mask *G.Node, heads int, causal bool) (*G.Node, error) {
	s := qkv.Shape()
	if len(s) != 3 || heads < 1 || s[2]%(3*heads) != 0 {
		return nil, fmt.Errorf("attention: qkv is %v, want [B T 3*D] with D a multiple of %d heads", s, heads)
	}
	b, t, d := s[0], s[1], s[2]/3
	a := attention{d: d, masked: mask != nil, Attention: kernel.Attention{
		Batch: b, QLen: t, KLen: t, Heads: heads, HeadDim: d / heads, Causal: causal,
		QStride: 3 * d, KStride: 3 * d, VStride: 3 * d, OutStride: d,
	}}
	args, diff := G.Nodes{qkv}, []bool{true}
	if a.masked {
		if err := wantInts("attention", "mask", mask); err != nil {
			return nil, err
		}
		if err := wantShape("attention", "mask", mask, b, t); err != nil {
			return nil, err
		}
		args, diff = append(args, mask), append(diff, false)
	}
	packed, err := body{attentionRun[float32](a), attentionRun[float64](a)}.apply(exec.Op{ // [y | log-sum-exp per row]
		Name: fmt.Sprintf("attention(%d,%d,%d,%v,%v)", b, t, heads, causal, a.masked), Shape: tensor.Shape{a.out() + b*heads*t},
		Scratch: kernel.AttentionScratch(a.Attention), Diff: diff, Ints: []bool{false, a.masked}, Grad: a.grad,
	}, args...)
	if err != nil {
		return nil, err
	}
	return part(packed, 0, tensor.Shape{b, t, d}, true)
}

type attention struct {
	kernel.Attention
	d      int // columns of q, k, v and the result
	masked bool
}

// out returns the number of elements of the result.
func (a attention) out() int { return a.Batch * a.QLen * a.d }

func (a attention) grad(in G.Nodes, packed, dy *G.Node) (G.Nodes, error) {
	args := G.Nodes{in[0], packed, dy}
	if a.masked {
		args = append(args, in[1])
	}
	dx, err := body{attentionGrad[float32](a), attentionGrad[float64](a)}.apply(exec.Op{
		Name:  fmt.Sprintf("attention grad(%d,%v,%v)", a.Heads, a.Causal, a.masked),
		Shape: in[0].Shape().Clone(), Ints: []bool{false, false, false, a.masked},
		Scratch: kernel.AttentionScratch(a.Attention),
	}, args...)
	return append(G.Nodes{dx}, make(G.Nodes, len(in)-1)...), err
}

func attentionRun[T kernel.Float](a attention) func(*exec.Frame) error {
	return func(f *exec.Frame) error {
		out, x := result[T](f), arg[T](f, 0)
		kernel.AttentionForward(f.Kernel, a.Attention, out[:a.out()], out[a.out():],
			x, x[a.d:], x[2*a.d:], a.mask(f, 1), nil, exec.Data[T](f.Scratch))
		return nil
	}
}

func attentionGrad[T kernel.Float](a attention) func(*exec.Frame) error {
	return func(f *exec.Frame) error {
		dx, x, packed := result[T](f), arg[T](f, 0), arg[T](f, 1)
		kernel.AttentionBackward(f.Kernel, a.Attention, dx, dx[a.d:], dx[2*a.d:], nil,
			x, x[a.d:], x[2*a.d:], packed[:a.out()], packed[a.out():], arg[T](f, 2), a.mask(f, 3), nil, exec.Data[T](f.Scratch))
		return nil
	}
}

// mask returns argument i, or nil if there is no mask.
func (a attention) mask(f *exec.Frame, i int) []int {
	if !a.masked {
		return nil
	}
	return ints(f, i)
}
