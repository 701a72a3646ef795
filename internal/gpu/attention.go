package gpu

import (
	"cmp"
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// attentionKinds are softmax(scale·q·kᵀ + bias)·v, with q, k and v packed or separate.
var attentionKinds = map[exec.Kind]lowering{
	ops.KindAttention:         attentionForward(true, false),
	ops.KindAttentionGrad:     attentionBackward(true, false),
	ops.KindAttentionBias:     attentionForward(true, true),
	ops.KindAttentionBiasGrad: attentionBackward(true, true),
	ops.KindSDPA:              attentionForward(false, false),
	ops.KindSDPAGrad:          attentionBackward(false, false),
	ops.KindSDPABias:          attentionForward(false, true),
	ops.KindSDPABiasGrad:      attentionBackward(false, true),
}

// attention is an instruction: its geometry and the addresses of its arguments.
type attention struct {
	ops.Attention
	joined           bool
	batch, d, tq, tk int
	qs, ks           int // elements between rows of q, and of k and v
	size             int // bytes of an element
	q, k, v          address
	bias, mask       any            // an address, or null
	documents        any            // see attention.h: an address, or null
	rest             []exec.Operand // arguments of a gradient: packed, dy
	columns          int            // of a head, for kernels with tensor cores; 0 for the kernels of any size
	hopper           bool           // these are by wgmma
}

func (b *builder) attention(in *exec.Instr, joined, biased bool, rest int) (a *attention, err error) {
	o := in.Op
	if attr := o.Attrs.(ops.Attention); attr.Window > 0 && !attr.Causal {
		return nil, fmt.Errorf("there are no kernels for a window of %d without Causal: train the model on the CPU", attr.Window)
	}
	a = &attention{Attention: o.Attrs.(ops.Attention), joined: joined, size: b.size(), batch: o.Dim("B"), bias: null, mask: null, documents: null}
	a.d = o.Dim("H*Dh") / a.Heads
	a.Scale = cmp.Or(a.Scale, 1/math.Sqrt(float64(a.d)))
	args := in.In
	if joined {
		a.tq, a.qs = o.Dim("T"), o.Dim("(H+2*KV)*Dh")
		a.tk, a.ks = a.tq, a.qs
		a.q, a.k, a.v = a.split(args[0])
		args = args[1:]
	} else {
		a.tq, a.qs, a.tk, a.ks = o.Dim("Tq"), o.Dim("H*Dh"), o.Dim("Tk"), o.Dim("KV*Dh")
		a.q, a.k, a.v = operandAddress(args[0]), operandAddress(args[1]), operandAddress(args[2])
		args = args[3:]
	}
	if a.Window = min(a.Window, a.tq+a.tk); a.Window == 0 {
		a.Window = a.tq + a.tk // no key is that far away
	}
	if biased {
		a.bias, args = operandAddress(args[0]), args[1:]
	}
	a.rest, args = args[:rest], args[rest:]
	if a.columns, b.slow = a.padded(b.kind); a.columns > 0 && b.engine.Hopper {
		if a.hopper, err = b.engine.wgmma(a.columns); err != nil {
			return nil, err
		}
		if !a.hopper {
			b.slow = "attention by mma.sync, because wgmma has other results on this GPU"
		}
	}
	if n := len(args) - 1; a.Packed {
		tokens, documents := a.batch*a.tk, b.temp(a.batch*a.tk*8)
		a.documents = documents
		err, args = b.threads("attention_documents", tokens, documents, args[n], int32(a.tk), uint64(tokens)), args[:n]
	}
	if len(args) > 0 {
		a.mask = operandAddress(args[0])
	}
	return a, err
}

// split returns the addresses of q, k and v, or of their gradients, in one operand: as columns, or
// one after the other.
func (a *attention) split(o exec.Operand) (q, k, v address) {
	atK, atV := a.Heads*a.d, (a.Heads+a.KVHeads)*a.d
	if !a.joined {
		atK, atV = a.batch*a.tq*a.qs, a.batch*(a.tq*a.qs+a.tk*a.ks)
	}
	return operandAddress(o), operandAddress(o).plus(atK * a.size), operandAddress(o).plus(atV * a.size)
}

// size returns the bytes of a value that the kernels read and write.
func (b *builder) size() int { return elementTypes[b.kind].Size() }

// padded returns the number of columns to which the kernels with tensor cores pad the heads. If
// they do not support the values, it returns 0 and the reason.
func (a *attention) padded(kind string) (columns int, why string) {
	offsets := a.q.offset | a.k.offset | a.v.offset
	for _, o := range a.rest {
		offsets |= o.Offset
	}
	switch {
	case kind == "f32", kind == "f64":
		return 0, "attention in float" + kind[1:] + ", without tensor cores"
	case a.d > 128:
		return 0, fmt.Sprintf("attention heads of %d columns, over 128", a.d)
	case a.d%8 != 0 || offsets%16 != 0: // the kernels copy 16 bytes at once
		return 0, fmt.Sprintf("attention heads of %d columns, not 8 × n", a.d)
	case a.Scale < 1e-30 || max(a.batch, a.Heads) > mostBlocks: // batch and heads are y and z of a grid
		return 0, fmt.Sprintf("attention with scale %g, batch %d, %d heads", a.Scale, a.batch, a.Heads)
	case a.d <= 64:
		return 64, ""
	}
	return 128, ""
}

// stats returns the number of rows of scores.
func (a *attention) stats() int { return a.batch * a.Heads * a.tq }

// shape returns the kernel arguments for the geometry.
func (a *attention) shape() []any {
	i := func(n int) int32 { return int32(n) }
	return []any{i(a.Heads), i(a.Heads / a.KVHeads), i(a.d), i(a.tq), i(a.tk), i(a.qs), i(a.ks), a.Causal, i(a.Window), a.Scale, a.documents}
}

// warps launches a kernel for any geometry, with one warp for each of n rows.
func (b *builder) warps(kernel string, n int, args ...any) error {
	return b.launch(kernel, [3]int{parts(n, 8), 1, 1}, [3]int{256, 1, 1}, 0, args...)
}

// block returns the family of the kernel with tensor cores for an operation, without the number of
// columns, and the bytes of a block's shared memory. See flash.h and hopper.h.
func block(operation string, columns int, hopper bool) (family string, shared int) {
	row := 2 * columns
	switch {
	case operation == "delta":
		return "flash", 0
	case operation == "dbias":
		return "flash", 2 * (128 + 64) * row
	case operation == "forward" && hopper:
		return "hopper", (128 + 4*columns) * row
	case operation == "forward":
		return "flash", (128 + 4*64) * row
	case hopper: // and two buffers of statistics
		return "hopper", (2*128+4*64)*row + 2*64*8
	}
	return "flash", 32 << 10
}

// flash launches a kernel with tensor cores. A block processes 128 rows of a head.
func (b *builder) flash(a *attention, operation string, grid [3]int, args ...any) error {
	family, shared := block(operation, a.columns, a.hopper)
	name := b.engine.flashName(family, operation, a.columns)
	if _, err := b.engine.attentionFunction(name, shared); err != nil {
		return err
	}
	args = append(append(args, 1/a.Scale), a.shape()...)
	return b.launch(name, grid, [3]int{256, 1, 1}, shared, args...)
}

// flashName returns the name of a kernel with tensor cores.
func (e *Engine) flashName(family, operation string, columns int) string {
	kind := ""
	if e.Float16 {
		kind = e.half()
	}
	return fmt.Sprintf("%s%d%s_%s", family, columns, kind, operation)
}

func attentionForward(joined, biased bool) lowering {
	return func(b *builder, in *exec.Instr) error {
		a, err := b.attention(in, joined, biased, 0)
		if err != nil {
			return err
		}
		n := a.stats()
		args := []any{in.Out, tail(in.Out, n), a.q, a.k, a.v, a.mask, a.bias}
		if a.columns > 0 {
			return b.flash(a, "forward", [3]int{parts(a.tq, 128), a.Heads, a.batch}, args...)
		}
		return b.warps("attention_forward_"+b.kind, n, append(append(args, uint64(n)), a.shape()...)...)
	}
}

func attentionBackward(joined, biased bool) lowering {
	return func(b *builder, in *exec.Instr) error {
		a, err := b.attention(in, joined, biased, 2)
		if err != nil {
			return err
		}
		n, delta := a.stats(), b.temp(a.stats()*max(4, a.size))
		g := gradients{
			read:  []any{a.q, a.k, a.v, a.rest[1], tail(a.rest[0], n), delta, a.mask, a.bias},
			delta: []any{delta, a.rest[0], a.rest[1], int32(a.Heads), int32(a.d), int32(a.tq), uint64(n)},
			bias:  tail(in.Out, a.Heads*a.tq*a.tk), biased: biased,
		}
		g.q, g.k, g.v = a.split(in.Out)
		if a.columns > 0 {
			return b.flashGrad(a, g)
		}
		return b.attentionGrad(a, g)
	}
}

// gradients are the operands of the kernels of a backward.
type gradients struct {
	q, k, v, bias address
	biased        bool
	delta, read   []any // arguments of the first kernel; and arguments of the others, after their results
}

// arguments returns the arguments of a kernel that writes the given gradients.
func (g gradients) arguments(of ...any) []any { return append(of, g.read...) }

// attentionGrad adds the kernels for any size.
func (b *builder) attentionGrad(a *attention, g gradients) error {
	n, rows, pairs := a.stats(), a.batch*a.KVHeads*a.tk, a.Heads*a.tq*a.tk
	err := cmp.Or(
		b.warps("attention_delta_"+b.kind, n, g.delta...),
		b.warps("attention_dq_"+b.kind, n, append(append(g.arguments(g.q), uint64(n)), a.shape()...)...),
		b.warps("attention_dkv_"+b.kind, rows, append(append(g.arguments(g.k, g.v), uint64(rows)), a.shape()...)...),
	)
	if err != nil || !g.biased {
		return err
	}
	return b.each("attention_dbias", pairs, append(append(g.arguments(g.bias), int32(a.batch), uint64(pairs)), a.shape()...)...)
}

// flashGrad adds the kernels with tensor cores.
func (b *builder) flashGrad(a *attention, g gradients) error {
	queries := parts(a.tq, 128)
	err := cmp.Or(
		b.warps(b.engine.flashName("flash", "delta", a.columns), a.stats(), g.delta...),
		b.flash(a, "dq", [3]int{queries, a.Heads, a.batch}, g.arguments(g.q)...),
		b.flash(a, "dkv", [3]int{parts(a.tk, 128), a.KVHeads, a.batch}, g.arguments(g.k, g.v)...),
	)
	if err != nil || !g.biased {
		return err
	}
	grid := [3]int{queries * parts(a.tk, 64), a.Heads, 1}
	return b.flash(a, "dbias", grid, append(g.arguments(g.bias), int32(a.batch))...)
}
