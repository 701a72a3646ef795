package gpu

import (
	"errors"
	"iter"
	"slices"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/blaslt"
	"github.com/gofsdp/gofsdp/internal/device"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// linearKinds are the products of matrices, and linear layers with their losses.
var linearKinds = map[exec.Kind]lowering{
	exec.KindProduct:        multiply,
	ops.KindLinear:          linear,
	ops.KindAddLinear:       addLinear,
	ops.KindLinearGradX:     linearGradX,
	ops.KindAddLinearGradX:  addLinearGradX,
	ops.KindGELULinearGradX: geluLinearGradX,
	ops.KindLinearGradW:     linearGradW,
	ops.KindLinearGradB:     linearGradB,
	ops.KindLinearLoss:      linearLoss,
	ops.KindLinearLossGradX: linearLossGradX,
	ops.KindEarlyLoss:       earlyLoss,
	ops.KindEarlyLossB:      earlyLoss,
	ops.KindEarlyLossDW:     earlyLossDW,
	ops.KindEarlyLossDWDB:   earlyLossDW,
}

// linearDims returns the number of rows of x, and the lengths of the rows of x and y.
func linearDims(o *exec.Op) (n, in, out int) { return o.Dim("..."), o.Dim("in"), o.Dim("out") }

// optional returns the address of argument i, or nil if it was omitted.
func optional(in *exec.Instr, i int) *address {
	if i >= len(in.In) {
		return nil
	}
	a := operandAddress(in.In[i])
	return &a
}

func linear(b *builder, in *exec.Instr) error {
	n, depth, out := linearDims(in.Op)
	return b.product(blaslt.Product{Out: b.element(), Rows: n, Cols: out, Depth: depth, TransB: true},
		factors{d: operandAddress(in.Out), a: operandAddress(in.In[0]), b: operandAddress(in.In[1]), bias: optional(in, 2)})
}

func addLinear(b *builder, in *exec.Instr) error {
	n, depth, out := linearDims(in.Op)
	return b.product(blaslt.Product{Out: b.element(), Rows: n, Cols: out, Depth: depth, TransB: true},
		factors{d: operandAddress(in.Out), a: operandAddress(in.In[1]), b: operandAddress(in.In[2]), c: optional(in, 0), bias: optional(in, 3)})
}

func linearGradX(b *builder, in *exec.Instr) error {
	n, cols, out := linearDims(in.Op)
	return b.product(blaslt.Product{Out: b.element(), Rows: n, Cols: cols, Depth: out}, factors{d: operandAddress(in.Out), a: operandAddress(in.In[0]), b: operandAddress(in.In[1])})
}

func addLinearGradX(b *builder, in *exec.Instr) error {
	n, cols, out := linearDims(in.Op)
	return b.product(blaslt.Product{Out: b.element(), Rows: n, Cols: cols, Depth: out},
		factors{d: operandAddress(in.Out), a: operandAddress(in.In[1]), b: operandAddress(in.In[2]), c: optional(in, 0)})
}

// geluLinearGradX multiplies a product by the slope of GELU: in the product, or in place.
func geluLinearGradX(b *builder, in *exec.Instr) (err error) {
	n, cols, out := linearDims(in.Op)
	x, d := operandAddress(in.In[0]), operandAddress(in.Out)
	shape := blaslt.Product{Out: b.element(), Rows: n, Cols: cols, Depth: out}
	f := factors{d: d, a: operandAddress(in.In[1]), b: operandAddress(in.In[2])}
	j := new(joint)
	j.apart, err = b.collect(func() error {
		if err := b.product(shape, f); err != nil {
			return err
		}
		return b.each("activation_backward", b.lots(n*cols), d, x, d, uint64(n*cols), actGELUTanh)
	})
	if err == nil && b.engine.SlopesInProducts && b.size() == 2 && cols%8 == 0 {
		f.gelu = &x
		j.together, err = b.collect(func() error { return b.product(shape, f) })
	}
	switch {
	case err != nil:
		return err
	case j.together == nil:
		b.steps = append(b.steps, j.apart...)
	default:
		b.step(j)
	}
	return nil
}

func linearGradW(b *builder, in *exec.Instr) error {
	if b.bias != nil {
		return b.gradientPair(in, b.bias)
	}
	return b.gradientW(in, nil)
}

// gradientW adds the gradient of a weight. The sums of the columns of dy are written to sums,
// unless it is nil.
func (b *builder) gradientW(in *exec.Instr, sums *address) error {
	n, cols, out := linearDims(in.Op)
	return b.product(blaslt.Product{Out: b.result(in), Rows: out, Cols: cols, Depth: n, TransA: true},
		factors{d: operandAddress(in.Out), a: operandAddress(in.In[0]), b: operandAddress(in.In[1]), add: in.Acc, sums: sums})
}

func linearGradB(b *builder, in *exec.Instr) error {
	n, _, out := linearDims(in.Op)
	return b.columns(b.kind, operandAddress(in.Out), operandAddress(in.In[0]), n, out, out, in.Acc)
}

// A joint is a product that computes something else, too, where cuBLASLt can do so, or kernels that
// compute both.
type joint struct {
	together, apart []step
}

func (j *joint) issue(s *device.Stream, r *run) error {
	err := issue(j.together, s, r)
	if errors.Is(err, errors.ErrUnsupported) {
		return issue(j.apart, s, r)
	}
	return err
}

// issue issues steps until one fails.
func issue(steps []step, s *device.Stream, r *run) error {
	for i := range steps {
		if err := steps[i].issue(s, r); err != nil {
			return err
		}
	}
	return nil
}

// gradientPair adds the gradient of a weight together with db, the gradient of the bias. The
// product only writes sums: they are in scratch memory first if db is added to or not aligned.
func (b *builder) gradientPair(in, db *exec.Instr) (err error) {
	g := new(joint)
	g.apart, err = b.collect(func() error {
		if err := b.gradientW(in, nil); err != nil {
			return err
		}
		return linearGradB(b, db)
	})
	if err != nil {
		return err
	}
	bias, scratch := operandAddress(db.Out), b.temp(db.Out.Bytes)
	g.together, err = b.collect(func() error {
		if !db.Acc && bias.offset%blaslt.BiasAlign == 0 {
			return b.gradientW(in, &bias)
		}
		if err := b.gradientW(in, &scratch); err != nil {
			return err
		}
		if db.Acc {
			n := exec.Numel(db.Out.Shape)
			return b.threads("elements_accumulate_"+b.wideKind(), n, bias, scratch, uint64(n))
		}
		b.move(bias, scratch, db.Out.Bytes)
		return nil
	})
	if err == nil {
		b.step(g)
	}
	return err
}

// Runs returns the instructions of a program for which there is a launch. If cuBLASLt can do so, a
// product computes the others.
func Runs(p *exec.Program) iter.Seq[exec.Instr] {
	return func(yield func(exec.Instr) bool) {
		list := slices.Collect(p.All())
		_, merged := pairs(list)
		for i := range list {
			if !merged[&list[i]] && !yield(list[i]) {
				return
			}
		}
	}
}

// pairs returns the instructions for the gradients of biases that are computed with the gradient of
// a weight, by the instruction for that one, and as a set. Both read the same dy. The gradient of
// the bias is a gradient of a parameter, which may be written at the place of the other
// instruction.
func pairs(list []exec.Instr) (biases map[*exec.Instr]*exec.Instr, merged map[*exec.Instr]bool) {
	biases, merged = make(map[*exec.Instr]*exec.Instr), make(map[*exec.Instr]bool)
	for j := range list {
		db := &list[j]
		if db.Op.Kind != ops.KindLinearGradB || db.Out.Space != exec.SpaceGradParam {
			continue
		}
		for i := range list {
			dw := &list[i]
			if dw.Op.Kind == ops.KindLinearGradW && biases[dw] == nil && sameGradient(dw, db) && unchanged(list[min(i, j):max(i, j)], db.In[0]) {
				biases[dw], merged[db] = db, true
				break
			}
		}
	}
	return biases, merged
}

// sameGradient reports whether two instructions read the same dy, and write the same type, in which
// cuBLASLt has sums.
func sameGradient(dw, db *exec.Instr) bool {
	x, y := dw.In[0], db.In[0]
	return x.Space == y.Space && x.Index == y.Index && x.Offset == y.Offset && x.Form == y.Form && dw.Half == db.Half &&
		dw.Out.Form == db.Out.Form && dw.Out.DType == db.Out.DType && dw.Out.DType != tensor.Float64
}

// unchanged reports whether instructions do not write to an operand.
func unchanged(list []exec.Instr, o exec.Operand) bool {
	for i := range list {
		to := &list[i].Out
		if to.Space == o.Space && to.Index == o.Index && to.Offset < o.Offset+o.Bytes && o.Offset < to.Offset+to.Bytes {
			return false
		}
	}
	return true
}

// columns writes or adds the column sums of a matrix, whose rows are ld elements apart. The sums of
// many rows are computed in two stages.
func (b *builder) columns(kind string, to, from address, rows, cols, ld int, add bool) error {
	kernel, each := "linear_columns_", 1
	if kind != "f64" && cols%8 == 0 && ld%8 == 0 && from.offset%16 == 0 {
		kernel, each = "linear_columns8_", 8
	}
	sum := func(kind string, to, from address, rows, ld, chunks int, add bool) error {
		return b.launch(kernel+kind, [3]int{parts(cols, 32*each), chunks, 1}, [3]int{32, 8, 1}, 0,
			to, from, uint64(rows), uint64(cols), uint64(ld), uint64(parts(rows, chunks)), add)
	}
	const chunkRows, mostChunks = 512, 64
	chunks := min(parts(rows, chunkRows), mostChunks)
	if chunks == 1 {
		return sum(kind, to, from, rows, ld, 1, add)
	}
	sums := b.temp(chunks * cols * b.wide().Size())
	if err := sum(kind, sums, from, rows, ld, chunks, false); err != nil {
		return err
	}
	return sum(b.wideKind(), to, sums, chunks, cols, 1, add)
}

// head is a linear layer with a loss: x [n, d] times weight [classes, d], plus a bias. It computes
// the logits of some rows at a time, and then replaces these logits by their gradients.
type head struct {
	*builder
	kernel.Loss
	n, d, classes      int
	x, weight, targets address
	bias               *address
	logits             address // of the first row
	stride             int     // from one row to the next, in wide elements
	rows               int     // at once
	element, wideSize  int     // bytes
	first, count       int     // the rows that are computed now
}

func newHead(b *builder, in *exec.Instr, bias int) *head {
	o := in.Op
	h := &head{
		builder: b, Loss: o.Attrs.(kernel.Loss), n: o.Dim("...") * o.Dim("n"), d: o.Dim("d"), classes: o.Dim("classes"),
		x: operandAddress(in.In[0]), weight: operandAddress(in.In[1]), targets: operandAddress(in.In[2]), bias: optional(in, bias),
		element: b.size(), wideSize: b.wide().Size(),
	}
	const tile = 128
	h.stride = (h.classes + 7) / 8 * 8 // aligns every row
	h.rows = max(1, b.engine.LossScratch/(h.stride*h.wideSize))
	if h.rows > tile {
		h.rows -= h.rows % tile
	}
	h.rows = min(h.rows, h.n)
	h.logits = b.temp(h.rows * h.stride * h.wideSize)
	return h
}

// each computes the logits of some rows at a time, and calls do for each part.
func (h *head) each(do func() error) error {
	for h.first = 0; h.first < h.n; h.first += h.count {
		h.count = min(h.rows, h.n-h.first)
		mark := h.scratch
		err := h.product(blaslt.Product{Out: h.wide(), Rows: h.count, Cols: h.classes, Depth: h.d, TransB: true, LDD: h.stride},
			factors{d: h.logits, a: h.row(h.x, h.d*h.element), b: h.weight, bias: h.bias})
		if err == nil {
			err = do()
		}
		if err != nil {
			return err
		}
		h.scratch = mark
	}
	return nil
}

// row returns the address of the current rows in a matrix. bytes is the size of a row.
func (h *head) row(of address, bytes int) address { return of.plus(h.first * bytes) }

// launch adds a kernel with one block for each of the rows.
func (h *head) launch(kernel string, args ...any) error {
	return h.builder.launch(kernel+"_"+h.kind, [3]int{h.count, 1, 1}, [3]int{256, 1, 1}, 0, args...)
}

// gradientStride is the stride of the rows of gradients, in elements.
func (h *head) gradientStride() int { return h.stride * h.wideSize / h.element }

func linearLoss(b *builder, in *exec.Instr) error {
	h := newHead(b, in, 3)
	return h.losses(in, 0, func() error { return nil })
}

// losses writes dx, the losses and their lse. behind elements follow them, which backward computes
// in training. It computes products with the gradients of the logits.
func (h *head) losses(in *exec.Instr, behind int, backward func() error) error {
	losses, lse := tail(in.Out, 2*h.n+behind), tail(in.Out, h.n+behind)
	h.step(&zeroing{operandAddress(in.Out), h.n * h.d * h.element, true})
	if behind > 0 {
		h.step(&zeroing{tail(in.Out, behind), behind * h.wideSize, true})
	}
	return h.each(func() error {
		err := h.launch("linear_loss", h.logits, h.row(losses, h.wideSize), h.row(lse, h.wideSize), h.row(h.targets, 8),
			uint32(h.classes), uint64(h.stride), h.Smoothing, h.Z, int64(h.Ignore), train{})
		if err != nil {
			return err
		}
		defer func(update bool) { h.update = update }(h.update)
		h.update = true
		err = h.product(blaslt.Product{Out: h.builder.element(), Rows: h.count, Cols: h.d, Depth: h.classes, LDA: h.gradientStride()},
			factors{d: h.row(operandAddress(in.Out), h.d*h.element), a: h.logits, b: h.weight})
		if err != nil {
			return err
		}
		return backward()
	})
}

// earlyLoss adds the gradients of the weight and of the bias, which follow the losses.
func earlyLoss(b *builder, in *exec.Instr) error {
	h := newHead(b, in, 3)
	behind := h.classes * h.d
	if h.bias != nil {
		behind += h.classes
	}
	return h.losses(in, behind, func() error {
		err := b.product(blaslt.Product{Out: b.wide(), Rows: h.classes, Cols: h.d, Depth: h.count, TransA: true, LDA: h.gradientStride()},
			factors{d: tail(in.Out, behind), a: h.logits, b: h.row(h.x, h.d*h.element), add: h.first > 0})
		if err != nil || h.bias == nil {
			return err
		}
		return b.columns(b.kind, tail(in.Out, h.classes), h.logits, h.count, h.classes, h.gradientStride(), h.first > 0)
	})
}

// earlyLossDW multiplies the end of the packed results by the gradient of the losses.
func earlyLossDW(b *builder, in *exec.Instr) error {
	n, factor := exec.Numel(in.Out.Shape), b.temp(8)
	if err := b.launch("linear_factor_"+b.wideKind(), [3]int{1, 1, 1}, [3]int{256, 1, 1}, 0,
		factor, in.In[1], uint64(exec.Numel(in.In[1].Shape))); err != nil {
		return err
	}
	return b.threads("linear_times_"+b.wideKind(), n, in.Out, tail(in.In[0], n), factor, uint64(n), in.Acc)
}

func linearLossGradX(b *builder, in *exec.Instr) error {
	d := in.Op.Dim("d")
	return b.launch("linear_scale_"+b.kind, [3]int{exec.Numel(in.Out.Shape) / d, 1, 1}, [3]int{256, 1, 1}, 0, in.Out, in.In[0], in.In[1], uint64(d))
}
