package exec

import (
	"maps"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/half"
)

// A Form is the storage type of the floats of a value. The zero Form is the value's own type.
type Form struct {
	Half bool // bfloat16, for a value of type float32
	Tail int  // number of last elements that stay float32
}

// head returns how many of n elements are in bfloat16, and the byte offset of the others.
func (f Form) head(n int) (elements, end int) {
	switch {
	case !f.Half:
		return 0, 0
	case f.Tail == 0:
		return n, 2 * n
	default:
		return n - f.Tail, align(2 * (n - f.Tail))
	}
}

// bytes returns the bytes of n elements.
func (f Form) bytes(n int, dt tensor.Dtype) int {
	head, end := f.head(n)
	return end + (n-head)*int(dt.Size())
}

// Parts returns the elements of v in bfloat16, and the elements behind them in float32.
func (v Value) Parts() (head []half.BFloat16, tail []float32) {
	n, end := v.Form.head(v.Len())
	return Data[half.BFloat16](v.Bytes[:2*n]), Data[float32](v.Bytes[end:])
}

// A lowering is the choice of a kernel for an operation, with the forms of its operands.
type lowering struct {
	half bool   // by Row.BF16
	in   []Form // arguments
	raw  Form   // the result, as the kernel writes it
	out  Form   // the result, as it is stored
}

// lower decides how op, the operation of n on args, runs. A result stays float32 if it depends only
// on float32 floats, or if it is a single number with a float32 argument, such as a sum of losses.
// Other results are in bfloat16, except those marked in Row.Shapes, those in graph.wide, and single
// numbers of operations without a bfloat16 kernel.
func (g *graph) lower(n *G.Node, op *Op, args []*G.Node) lowering {
	l := lowering{in: make([]Form, len(args))}
	if !g.half || isHost(n) {
		return l
	}
	r, low, high, whole := parseRule(op.Shapes), false, false, true
	for i, a := range args {
		f, rule := g.forms[a], r.arg(i)
		low = low || f.Half && !rule.isWide
		high = high || !f.Half && !rule.isWide && a.Dtype() == tensor.Float32
		whole = whole && (!rule.isPacked() || f.Tail > 0)
	}
	out := op.halfResult(r)
	if low && g.wide[n] && op.Widens {
		out = Form{}
	}
	if !low || out.Half && (g.wide[n] || high && Numel(op.Shape) == 1) {
		return l
	}
	l.out = out
	if op.BF16 == nil || !whole {
		return l
	}
	l.half, l.raw = true, l.out
	for i, a := range args {
		switch rule := r.arg(i); {
		case rule.isPacked() || rule.isAny && g.forms[a].Tail == 0:
			l.in[i] = g.forms[a]
		case !rule.isWide && a.Dtype() == tensor.Float32:
			l.in[i] = Form{Half: true}
		}
	}
	return l
}

// halfResult returns the form of the result of an operation on values in bfloat16.
func (o *Op) halfResult(r rule) Form {
	n := Numel(o.Shape)
	f := Form{Half: o.BF16 != nil || n > 1}
	for i, result := range r.results {
		switch {
		case !result.isWide:
		case o.parts == nil:
			f.Tail = n
		default:
			f.Tail += Numel(o.parts[i].shape)
		}
	}
	if f.Tail == n {
		return Form{}
	}
	return f
}

// decideForms decides the storage of every value of the unit. It does not depend on the saved
// values: a value that is computed again is rounded again.
func (c *compiler) decideForms() {
	c.half = c.sig.Half
	c.forms = make(map[*G.Node]Form)
	for i, n := range c.in {
		c.forms[n] = Form{Half: c.sig.Inputs[i].Half}
	}
	for i, half := range c.sig.HalfParam {
		c.forms[c.params[i]] = Form{Half: half}
	}
	c.keepWide()
	c.addForms(c.forward)
	for i, o := range c.outs {
		c.unit.OutHalf[i] = c.forms[o].Half && Numel(o.Shape()) > 1
		if i < len(c.gradOut) && c.gradOut[i] != nil {
			c.forms[c.gradOut[i]] = Form{Half: c.unit.OutHalf[i]}
		}
	}
	c.addForms(c.backward)
}

// keepWide lists the values that must be exact in float32, whatever operation computes them: new
// values of buffers, which would not change by small steps otherwise, and gradients of parameters.
func (c *compiler) keepWide() {
	c.wide = maps.Clone(c.updating)
	for _, n := range c.updates {
		if n != nil {
			c.wide[n] = true
		}
	}
	for _, n := range c.gradParam {
		c.keepSum(n)
	}
}

// keepSum adds n, the gradient of a parameter, to the list. It also adds the summands of n, and the
// values that n is a rearrangement of.
func (c *compiler) keepSum(n *G.Node) {
	if n == nil || n.Op() == nil || isConst(n) || c.wide[n] {
		return
	}
	kids := children(c.g, n)
	switch op, _ := operation(c.g, n, kids); {
	case !isView(n):
		c.wide[n] = true
		if op.Moves {
			for _, k := range kids {
				c.keepSum(k)
			}
		}
	case Numel(kids[0].Shape()) == Numel(n.Shape()):
		c.keepSum(kids[0])
	}
}

// addForms decides the storage of nodes, which are in execution order.
func (c *compiler) addForms(nodes G.Nodes) {
	for _, n := range nodes {
		if _, known := c.forms[n]; known || n.Op() == nil || isConst(n) || isHost(n) {
			continue
		}
		kids := children(c.g, n)
		if isView(n) {
			c.forms[n] = Operand{DType: n.Dtype(), Form: c.forms[kids[0]]}.part(0, kids[0].Shape()).view(offset(n), n.Shape()).Form
			continue
		}
		op, _ := operation(c.g, n, kids)
		c.forms[n] = c.lower(n, op, kids).out
	}
}

// Rounding returns the kernel that runs wide if the result is in float32, and rounded if it is in
// bfloat16.
func Rounding(wide, rounded Kernel) Kernel {
	return func(f *Frame) error {
		if f.Out.Form.Half {
			return rounded(f)
		}
		return wide(f)
	}
}

// convertRow changes the form of a value.
var convertRow = &Row{
	Kind: KindConvert, Doc: "x, rounded to bfloat16 or widened to float32", Shapes: "x [...] -> y [...]",
	Kernels: Kernels{convert, copyBytes, copyBytes}, FLOPs: Each(1), Split: ByElement,
}

func convert(f *Frame) error {
	x, y := f.In[0], f.Out
	switch low, wide := (Form{Half: true}), (Form{}); {
	case x.Form == low && y.Form == wide:
		half.Widen(Data[float32](y.Bytes), Data[half.BFloat16](x.Bytes))
		return nil
	case x.Form == wide && y.Form == low:
		half.Narrow(Data[half.BFloat16](y.Bytes), Data[float32](x.Bytes))
		return nil
	}
	n := x.Len()
	xn, _ := x.Form.head(n)
	yn, _ := y.Form.head(n)
	xLow, xWide := x.Parts()
	yLow, yWide := y.Parts()
	both := min(xn, yn)
	copy(yLow[:both], xLow)
	half.Widen(yWide, xLow[both:])
	half.Narrow(yLow[both:], xWide)
	copy(yWide[max(0, xn-yn):], xWide[max(0, yn-xn):])
	return nil
}

// arg returns the rule of argument i. Arguments without a rule are ordinary ones.
func (r rule) arg(i int) operandRule {
	if i < len(r.args) {
		return r.args[i]
	}
	return operandRule{}
}

// isPacked reports whether an argument is the result of an operation that leaves some parts in
// float32.
func (o operandRule) isPacked() bool { return o.name == "packed" && !o.isWide }

// anyHalf reports whether any value of the unit is in bfloat16.
func (s *Signature) anyHalf() bool {
	return s.Half || slices.Contains(s.HalfParam, true) || slices.ContainsFunc(s.Inputs, func(in Input) bool { return in.Half })
}
