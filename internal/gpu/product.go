package gpu

import (
	"errors"
	"slices"

	"github.com/gofsdp/gofsdp/internal/blaslt"
	"github.com/gofsdp/gofsdp/internal/device"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/kernel"
)

// products is the common state of the products of an engine. cuBLASLt computes them in the memory
// of the workspace: an engine's programs run on one stream at a time.
type products struct {
	handle    *blaslt.Handle
	plans     map[blaslt.Product]*blaslt.Plan // nil for sums and slopes that cuBLASLt does not compute
	workspace *device.Memory
}

// workspaceBytes is NVIDIA's recommendation for Hopper.
const workspaceBytes = 32 << 20

// plan returns the plan of a product. It makes a new plan for the first product of its kind, and
// returns nil without a device.
func (e *Engine) plan(x blaslt.Product) (_ *blaslt.Plan, err error) {
	if e.dev == nil {
		return nil, nil
	}
	c := &e.products
	x.Workspace, x.Multiprocessors = workspaceBytes, e.Multiprocessors
	if p, known := c.plans[x]; p != nil {
		return p, nil
	} else if known {
		return nil, errors.ErrUnsupported
	}
	if c.handle == nil {
		if c.handle, err = blaslt.New(e.dev); err != nil {
			return nil, err
		}
		c.plans = make(map[blaslt.Product]*blaslt.Plan)
	}
	if c.workspace == nil {
		if c.workspace, err = e.dev.Alloc(workspaceBytes); err != nil {
			return nil, err
		}
	}
	p, err := c.handle.Plan(x)
	if err == nil || hasJoint(x) && errors.Is(err, errors.ErrUnsupported) {
		c.plans[x] = p
	}
	return p, err
}

// hasJoint reports whether a product computes something that kernels compute if cuBLASLt cannot.
func hasJoint(x blaslt.Product) bool { return x.Sums || x.GELUGrad }

// A Product is D = op(A)·op(B), of matrices without gaps: see blaslt.Product.
type Product struct {
	Float64           bool
	Rows, Cols, Depth int
	TransA, TransB    bool
	A, B, D           uintptr
}

// Multiply makes the stream of the engine's programs compute a product.
func (e *Engine) Multiply(s *device.Stream, x Product) error {
	shape := blaslt.Product{Rows: x.Rows, Cols: x.Cols, Depth: x.Depth, TransA: x.TransA, TransB: x.TransB, Align: alignment(int(x.A | x.B | x.D))}
	if x.Float64 {
		shape.In, shape.Out = blaslt.F64, blaslt.F64
	}
	p, err := e.plan(shape)
	if err != nil {
		return err
	}
	return p.Run(s, blaslt.Operands{A: x.A, B: x.B, D: x.D, Workspace: e.products.workspace.Addr()})
}

// close closes everything, and keeps the objects that it cannot close.
func (c *products) close() error {
	var errs []error
	for x, p := range c.plans {
		if p == nil {
			delete(c.plans, x)
		} else if err := p.Close(); err != nil {
			errs = append(errs, err)
		} else {
			delete(c.plans, x)
		}
	}
	if c.workspace != nil {
		if err := c.workspace.Free(); err != nil {
			errs = append(errs, err)
		} else {
			c.workspace = nil
		}
	}
	if c.handle != nil && len(c.plans) == 0 {
		if err := c.handle.Close(); err != nil {
			errs = append(errs, err)
		} else {
			c.handle = nil
		}
	}
	return errors.Join(errs...)
}

// A product is D = op(A)·op(B), or D = C + op(A)·op(B), where C may be D. It is an error that is
// [errors.ErrUnsupported], and nothing happens, if its sums or slopes are not computed.
type product struct {
	engine  *Engine
	shape   blaslt.Product // Align is the alignment that the offsets allow
	plan    *blaslt.Plan
	d, a, b address
	c       *address // or nil
	bias    address
	spare   address // for a bias that is not aligned
	sums    address // aligned
	gelu    address // of the argument
}

func (p *product) issue(s *device.Stream, r *run) error {
	at := blaslt.Operands{A: r.resolve(p.a), B: r.resolve(p.b), D: r.resolve(p.d), Workspace: p.engine.products.workspace.Addr()}
	if p.c != nil {
		at.C = r.resolve(*p.c)
	}
	plan, err := p.plan, error(nil)
	if n := alignment(int(at.A | at.B | at.C | at.D)); n < p.shape.Align { // kernels for larger alignments do not accept it
		x := p.shape
		x.Align = n
		if plan, err = p.engine.plan(x); err != nil {
			return err
		}
	}
	if plan == nil {
		return errors.ErrUnsupported
	}
	if p.shape.Bias {
		if at.Bias = r.resolve(p.bias); at.Bias%blaslt.BiasAlign != 0 {
			from := at.Bias
			at.Bias = r.resolve(p.spare)
			if err := s.CopyDevice(at.Bias, from, p.shape.Cols*p.shape.Out.Size()); err != nil {
				return err
			}
		}
	}
	if p.shape.Sums {
		at.Sums = r.resolve(p.sums)
	}
	if p.shape.GELUGrad {
		at.X = r.resolve(p.gelu)
	}
	if (at.Sums|at.X)%blaslt.BiasAlign != 0 {
		return errors.ErrUnsupported
	}
	return plan.Run(s, at)
}

// alignment returns the largest power of 2 that divides n, up to the largest that kernels use.
func alignment(n int) int {
	n |= productAlign
	return n & -n
}

// productAlign is the alignment beyond which no kernel is faster: the size of an access.
const productAlign = 16

// factors are the operands of a product.
type factors struct {
	d, a, b address
	bias    *address // a row of the type of d, added to each row of d
	c       *address // a matrix in the layout of d that is added
	add     bool     // to d: c is d
	sums    *address // a vector of the type of d that the sums of the rows of op(a) are written to
	gelu    *address // a matrix in the layout of d: the product is multiplied by the slope of GELU there
}

// product adds a product with factors of the instruction's type.
func (b *builder) product(x blaslt.Product, f factors) (err error) {
	x.In = b.element()
	x.TF32 = b.engine.TF32 && x.In == blaslt.F32
	p := &product{engine: b.engine, d: f.d, a: f.a, b: f.b, c: f.c}
	if f.add {
		p.c = &f.d
	}
	switch {
	case f.bias != nil && x.In == blaslt.F64:
		n := x.Rows * x.Cols
		var c any = null
		if p.c != nil {
			c = *p.c
		}
		if err := b.each("linear_fill", n, f.d, c, *f.bias, uint64(x.Cols), uint64(max(x.Cols, x.LDD)), uint64(n)); err != nil {
			return err
		}
		p.c = &f.d
	case f.bias != nil:
		x.Bias = true
		p.bias, p.spare = *f.bias, b.temp(x.Cols*x.Out.Size())
	}
	if f.gelu != nil {
		x.GELUGrad, p.gelu = true, *f.gelu
	}
	if f.sums != nil {
		x.Sums, p.sums = true, *f.sums
	}
	x.Align = alignment(f.d.offset | f.a.offset | f.b.offset)
	if p.c != nil {
		x.Align = alignment(x.Align | p.c.offset)
	}
	if p.plan, err = b.engine.plan(x); err != nil && !(hasJoint(x) && errors.Is(err, errors.ErrUnsupported)) {
		return err
	}
	p.shape = x
	b.step(p)
	return nil
}

// elementTypes are the types by storage type.
var elementTypes = map[string]blaslt.Type{"f32": blaslt.F32, "f64": blaslt.F64, "bf16": blaslt.BF16, "f16": blaslt.F16}

// element returns the type of the instruction's values.
func (b *builder) element() blaslt.Type {
	return elementTypes[b.kind]
}

// wide returns the type of values that Row.Shapes marks f32.
func (b *builder) wide() blaslt.Type {
	if b.kind == "f64" {
		return blaslt.F64
	}
	return blaslt.F32
}

// result returns the type of the result of an operation that writes either.
func (b *builder) result(in *exec.Instr) blaslt.Type {
	if in.Out.Form.Half {
		return elementTypes[b.engine.half()]
	}
	return b.wide()
}

// lead is a leading axis of the factors of products: its length, and the strides between matrices.
type lead struct{ n, d, a, b int }

// multiply adds the products of exec.KindProduct: as one batch, or as several if no two strides
// describe the positions of all matrices.
func multiply(b *builder, in *exec.Instr) error {
	p := in.Op.Attrs.(exec.Product)
	layout := func(shape []int, o exec.Order) kernel.Layout { return kernel.Layout{Shape: shape, Order: o.Order} }
	yl, al, bl := layout(in.Op.Shape, p.Y), layout(in.Op.In[0], p.A), layout(in.Op.In[1], p.B)
	f := factors{d: operandAddress(in.Out), a: operandAddress(in.In[0]), b: operandAddress(in.In[1]), add: in.Acc}
	ym, am, bm := yl.Matrix(), al.Matrix(), bl.Matrix()
	if trans, _ := ym.Stored(); trans { // yᵀ = bᵀ·aᵀ
		f.a, f.b, al, bl = f.b, f.a, bl, al
		ym, am, bm = ym.Transposed(), bm.Transposed(), am.Transposed()
	}
	x := blaslt.Product{Rows: ym.Rows, Cols: ym.Columns, Depth: am.Columns, Out: b.result(in)}
	x.TransA, x.LDA = am.Stored()
	x.TransB, x.LDB = bm.Stored()
	_, x.LDD = ym.Stored()
	leads := leading(yl, al, bl)
	if len(leads) > 0 {
		l := leads[0]
		x.Batch, x.StrideD, x.StrideA, x.StrideB = l.n, l.d, l.a, l.b
		leads = leads[1:]
	}
	return b.spread(x, f, leads)
}

// leading returns the leading axes, the longest first. Axes that are one axis in all three operands
// are merged.
func leading(y, a, b kernel.Layout) (list []lead) {
	for i := range len(y.Shape) - 2 {
		n, d := y.Axis(i)
		_, as := a.Axis(i)
		_, bs := b.Axis(i)
		if last := len(list) - 1; last >= 0 && list[last].joins(n, d, as, bs) {
			list[last] = lead{list[last].n * n, d, as, bs}
		} else if n > 1 {
			list = append(list, lead{n, d, as, bs})
		}
	}
	slices.SortStableFunc(list, func(x, y lead) int { return y.n - x.n })
	return list
}

// joins reports whether l, and an axis of length n inside it, are one axis.
func (l lead) joins(n, d, a, b int) bool { return l.d == n*d && l.a == n*a && l.b == n*b }

// spread adds a product for each index of the leading axes.
func (b *builder) spread(x blaslt.Product, f factors, leads []lead) error {
	if len(leads) == 0 {
		return b.product(x, f)
	}
	l, size := leads[0], b.size()
	for i := range l.n {
		g := f
		g.d, g.a, g.b = f.d.plus(i*l.d*x.Out.Size()), f.a.plus(i*l.a*size), f.b.plus(i*l.b*size)
		if err := b.spread(x, g, leads[1:]); err != nil {
			return err
		}
	}
	return nil
}
