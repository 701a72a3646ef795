//go:build linux && cgo

package gpu_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/gpu"
	"github.com/gofsdp/gofsdp/internal/gpu/gputest"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// attention is a call of ops.SelfAttention or ops.SDPA.
type attention struct {
	ops.Attention
	batch, d, tq, tk       int
	joined, biased, masked bool
	extra                  float64 // of the bias, for a quarter of its elements
}

// drawAttention draws heads of d columns, with lengths around those in at.
func drawAttention(rt *rapid.T, d int, at ...int) attention {
	a := attention{d: d, batch: rapid.IntRange(1, 2).Draw(rt, "batch")}
	flag := func(name string) bool { return rapid.Bool().Draw(rt, name) }
	a.KVHeads = rapid.IntRange(1, 2).Draw(rt, "heads of keys")
	a.Heads = a.KVHeads * rapid.IntRange(1, 2).Draw(rt, "group")
	a.tq = extent(rt, "queries", at...)
	a.joined, a.biased, a.masked, a.Causal = flag("joined"), flag("biased"), flag("masked"), flag("causal")
	if a.tk = a.tq; !a.joined {
		a.tk = extent(rt, "keys", at...)
	}
	if a.Causal {
		a.Window = rapid.SampledFrom([]int{0, 0, 1, 7, 64, 100}).Draw(rt, "window")
	}
	a.Packed = a.tk == a.tq && flag("packed")
	a.Scale = rapid.SampledFrom([]float64{0, 0, 0.02}).Draw(rt, "scale")
	a.extra = rapid.SampledFrom([]float64{0, math.Inf(-1)}).Draw(rt, "extra")
	return a
}

// args returns the values of the arguments that take gradients, and of the mask and the positions.
func (a attention) args(u *use) (in, last []exec.Value) {
	q, kv := a.Heads*a.d, a.KVHeads*a.d
	if a.joined {
		in = []exec.Value{u.value(u.low(), a.batch, a.tq, q+2*kv)}
	} else {
		in = []exec.Value{u.value(u.low(), a.batch, a.tq, q), u.value(u.low(), a.batch, a.tk, kv), u.value(u.low(), a.batch, a.tk, kv)}
	}
	if a.biased {
		in = append(in, u.value(wide, a.Heads, a.tq, a.tk))
		bias := in[len(in)-1]
		for i := range exec.Numel(bias.Shape) {
			switch {
			case i%4 != 3 || a.extra == 0:
			case u.dtype == tensor.Float64:
				exec.Data[float64](bias.Bytes)[i] = a.extra
			default:
				exec.Data[float32](bias.Bytes)[i] = float32(a.extra)
			}
		}
	}
	if a.masked {
		m := u.index(a.batch*a.tk, 3)
		m.Shape = tensor.Shape{a.batch, a.tk}
		last = append(last, m)
	}
	if a.Packed {
		p := u.index(a.batch*a.tk, 3)
		p.Shape = tensor.Shape{a.batch, a.tk}
		for i, positions := 0, exec.Data[int](p.Bytes); i < len(positions); i++ {
			if i%a.tk > 0 {
				positions[i] = 0
				if u.rand.IntN(50) > 0 {
					positions[i] = positions[i-1] + 1
				}
			}
		}
		last = append(last, p)
	}
	return in, last
}

// apply returns the node for arguments.
func (a attention) apply(u *use, in, last []exec.Value) (y *G.Node, nodes []*G.Node) {
	for _, v := range in {
		nodes = append(nodes, u.node(v.Shape...))
	}
	var m, positions, bias *G.Node
	if a.biased {
		bias = nodes[len(nodes)-1]
	}
	for _, v := range last {
		nodes = append(nodes, u.ints(v.Shape...))
	}
	if a.masked {
		m = nodes[len(in)]
	}
	if a.Packed {
		positions = nodes[len(nodes)-1]
	}
	var err error
	if a.joined {
		y, err = ops.SelfAttention(nodes[0], m, positions, bias, a.Attention)
	} else {
		y, err = ops.SDPA(nodes[0], nodes[1], nodes[2], m, positions, bias, a.Attention)
	}
	require.NoError(u, err)
	return packed(u, y), nodes
}

// A runner returns the result of a node's operation on values, in some form.
type runner = func(n *G.Node, out exec.Form, args ...exec.Value) exec.Value

// forward runs the operation.
func (a attention) forward(u *use, f runner, in, last []exec.Value) (n *G.Node, nodes []*G.Node, y exec.Value) {
	n, nodes = a.apply(u, in, last)
	return n, nodes, f(n, exec.Form{Half: u.half, Tail: a.batch * a.Heads * a.tq}, slices.Concat(in, last)...)
}

// run runs forward and backward on random values.
func (a attention) run(u *use, f runner) (y, grad exec.Value) {
	in, last := a.args(u)
	n, nodes, y := a.forward(u, f, in, last)
	tail := 0
	if a.biased {
		tail = a.Heads * a.tq * a.tk
	}
	dy := u.value(u.low(), a.batch, a.tq, a.Heads*a.d)
	dx := packed(u, gradient(u, n, 0, nodes...))
	return y, f(dx, exec.Form{Half: u.half, Tail: tail}, slices.Concat(in, []exec.Value{y, dy}, last)...)
}

// device runs operations on the device and checks them.
func device(u *use) runner {
	return func(n *G.Node, out exec.Form, args ...exec.Value) exec.Value { return u.check(n, nil, out, args...) }
}

// exact runs operations in float64.
func exact(u *use) runner {
	return func(n *G.Node, _ exec.Form, args ...exec.Value) exec.Value {
		op := n.Op().(*exec.Op)
		f := &exec.Frame{Op: op, In: args, Out: u.value(exec.Form{}, op.Shape...)}
		f.Out.Bytes = exec.Bytes(u.Reference(u, exec.Instr{Op: op}, f))
		return f.Out
	}
}

// TestAttention checks attention of any size, in all ways to store values.
func TestAttention(t *testing.T) {
	property(t, func(rt *rapid.T, u *use) {
		drawAttention(rt, rapid.SampledFrom([]int{1, 5, 31, 129}).Draw(rt, "d")).run(u, device(u))
	})
}

// TestAttentionOfExtremes has scores beyond what exp can take in float32, and NaN in a query, which
// must not reach other queries. Gradients and their errors are as large as the scale is.
func TestAttentionOfExtremes(t *testing.T) {
	property(t, func(rt *rapid.T, u *use) {
		a := drawAttention(rt, rapid.SampledFrom([]int{5, 8}).Draw(rt, "d"))
		a.Scale, u.tol = 20, min(2000*u.tol, 0.3)
		a.run(u, device(u))
		in, last := a.args(u)
		for i := range elementBytes(in[0]) {
			in[0].Bytes[i] = math.MaxUint8
		}
		a.forward(u, device(u), in, last)
	})
}

// elementBytes returns the bytes of an element.
func elementBytes(v exec.Value) int { return len(v.Bytes) / v.Len() }

// TestFlashAttention checks the kernels with tensor cores, of all GPUs and of compute capability
// 9.0: each on its own arguments, with twice the tolerance because weights and the gradients of
// scores are rounded too, and all together against float64.
func TestFlashAttention(t *testing.T) {
	m := gputest.New(t)
	draw := rapid.Custom(func(rt *rapid.T) attention {
		return drawAttention(rt, rapid.SampledFrom([]int{8, 32, 64, 80, 128}).Draw(rt, "d"), 64, 128, 160)
	})
	major, minor := m.Device.Capability()
	require.Equal(t, major == 9 && minor == 0, m.Engine.Hopper)
	type family struct {
		hopper, float16 bool
		rounding        float64 // relative to the rounding of bfloat16
	}
	families := []family{{rounding: 1}, {float16: true, rounding: 1. / 8}}
	if m.Engine.Hopper {
		families = append(families, family{hopper: true, rounding: 1}, family{hopper: true, float16: true, rounding: 1. / 8})
	}
	cases := []attention{ // both have more tiles than buffers
		{Attention: ops.Attention{Heads: 1, KVHeads: 1}, batch: 1, d: 128, tq: 33, tk: 300},
		{Attention: ops.Attention{Heads: 1, KVHeads: 1, Causal: true}, batch: 1, d: 64, tq: 260, tk: 260, joined: true},
	}
	for i := range 14 { // they take long
		cases = append(cases, draw.Example(i))
	}
	for i, a := range cases {
		of := func(m *gputest.Machine, dt tensor.Dtype) *use {
			return &use{t, m, dt, m != nil, 1.0 / 64, G.NewGraph(), rand.New(rand.NewPCG(uint64(i), 1))}
		}
		u := of(nil, tensor.Float64)
		exactY, exactGrad := a.run(u, exact(u))
		for _, f := range families {
			if i > 1 && f.float16 != (i%2 == 1) { // one type for the cases that are drawn
				continue
			}
			m.Engine.Hopper, m.Engine.Float16 = f.hopper, f.float16
			u = of(m, tensor.Float32)
			u.tol *= f.rounding
			y, grad := a.run(u, device(u))
			require.Less(t, u.distance(y, exactY), 3e-3*f.rounding, "%+v", a)
			require.Less(t, u.distance(grad, exactGrad), 4e-3*f.rounding, "%+v", a)
		}
	}
	if m.CUDA != nil {
		require.Positive(t, m.CUDA.Calls("cuFuncSetAttribute"), "they need more shared memory than others")
	}
}

// TestWgmmaThatDisagrees checks that attention does not use wgmma on a device where its results
// differ from mma.sync, and that the reason is told.
func TestWgmmaThatDisagrees(t *testing.T) {
	m := gputest.New(t)
	m.Engine.Hopper = m.CUDA != nil || m.Engine.Hopper
	if !m.Engine.Hopper {
		return // another GPU
	}
	reason := func() string {
		u := &use{t, m, tensor.Float32, true, 1.0 / 64, G.NewGraph(), rand.New(rand.NewPCG(1, 2))}
		a := attention{Attention: ops.Attention{Heads: 1, KVHeads: 1}, batch: 1, d: 8, tq: 3, tk: 5}
		in, last := a.args(u)
		y, _, _ := a.forward(u, device(u), in, last)
		instr, _ := u.instr(y, nil, exec.Form{Half: true, Tail: a.tq}, in)
		return m.Engine.Slow(&instr)
	}
	require.Empty(t, reason())
	gpu.NothingAgrees(t)
	require.Empty(t, reason(), "compared once")
	m = gputest.New(t)
	require.Equal(t, "attention by mma.sync, because wgmma has other results on this GPU", reason())
	m.Engine.Float16 = true
	require.Equal(t, "attention by mma.sync, because wgmma has other results on this GPU", reason())
}

// TestAttentionElsewhere checks that other devices do not load kernels for compute capability 9.0.
func TestAttentionElsewhere(t *testing.T) {
	m := gputest.New(t)
	if m.CUDA == nil {
		return // a GPU has one capability
	}
	for _, major := range []int{8, 10} {
		m.CUDA.Capability(t, major, func() {
			m := gputest.New(t)
			u := &use{t, m, tensor.Float32, true, 1.0 / 64, G.NewGraph(), rand.New(rand.NewPCG(1, 2))}
			attention{Attention: ops.Attention{Heads: 1, KVHeads: 1}, batch: 1, d: 8, tq: 3, tk: 5}.run(u, device(u))
			m.Engine.Hopper = true
			_, err := m.Engine.Function("hopper64_forward")
			require.ErrorContains(t, err, ".target sm_90a needs compute capability 9.0")
		})
	}
}

// TestWindowOnBothSides: the kernels have windows of causal attention only, and no program is made
// of others.
func TestWindowOnBothSides(t *testing.T) {
	m := gputest.New(t)
	u := &use{T: t, Machine: m, dtype: tensor.Float32, rand: rand.New(rand.NewPCG(1, 2))}
	local := func(x []*G.Node) (*G.Node, error) {
		return ops.SelfAttention(x[0], nil, nil, nil, ops.Attention{Heads: 2, Window: 3})
	}
	in, f := u.compiled(ops.KindAttention, local, u.low(), u.value(u.low(), 1, 5, 12))
	_, err := m.Try(t, in, f, false)
	require.ErrorContains(t, err, "there are no kernels for a window of 3 without Causal: train the model on the CPU")
}

// distance returns the length of the difference of the elements of 16 bits of v, relative to what
// they should be.
func (u *use) distance(v, want exec.Value) float64 {
	low, _ := v.Parts()
	var d, all float64
	for i, x := range u.Floats(v)[:len(low)] {
		w := exec.Data[float64](want.Bytes)[i]
		d, all = d+(w-x)*(w-x), all+w*w
	}
	return math.Sqrt(d / max(all, 1e-6))
}
