package exec

import (
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// A Signature is everything apart from the module that determines a Unit.
type Signature struct {
	DType  tensor.Dtype // of parameters and activations: tensor.Float32 or tensor.Float64
	Inputs []Input
	// GradOut says which outputs have a gradient. Nil compiles only the forward.
	GradOut []bool
	// AccParam says for which parameters backward adds to the gradient, which another call of the
	// same pass has written before. For the others it writes the gradient. Nil means none.
	AccParam []bool
	// FrozenParam says which parameters are not trained. Their gradients are neither computed nor
	// written. Nil means none.
	FrozenParam []bool
	// Half makes the unit compute and store its values in bfloat16; DType is then tensor.Float32.
	// See "Storage" in the package comment. HalfParam says which parameters are passed in bfloat16,
	// with or without Half; nil means none. Their gradients still have type DType, except those of
	// the parameters in HalfGrad: they are computed in float32 and written in bfloat16, rounded once.
	Half      bool
	HalfParam []bool
	HalfGrad  []bool
	Save      Policy
	// Threads is the largest number of threads of a Runner of the unit. 0 means 1.
	Threads int
	// Apart makes every instruction run on its own, with planned memory for all values: SpaceBlock
	// is not used. Engines that do not run blocks set it. Sums are then parts of other operations
	// where possible (Row.Merged), and losses compute gradients in forward (Row.Early).
	Apart bool
}

// Input describes one input.
type Input struct {
	Shape []int
	DType tensor.Dtype
	Grad  bool // its gradient is needed
	Acc   bool // the gradient is added to the present contents
	Same  int  // if not 0, it is the same value as input Same-1, whose gradient is the sum for both
	Half  bool // it is stored in bfloat16, and its gradient too; DType is tensor.Float32
}

// A Unit is a compiled module. It is immutable and may be run by several goroutines at once.
type Unit struct {
	DType    tensor.Dtype
	OutShape []tensor.Shape
	OutHalf  []bool   // which outputs, and their gradients, are in bfloat16; the others are of type DType
	Updates  []Update // of buffers, in the order of Spec.Params
	Forward  *Program
	Backward *Program // nil if compiled for forward alone
	Saved    int      // bytes kept from forward to backward
	KeepIn   []bool   // which inputs backward reads
	KeepOut  []bool   // which outputs backward reads
	// ReadParam says which parameters backward reads, including for recomputation. They must have
	// the same contents as in forward: a buffer that is read gets its new value after backward.
	ReadParam []bool
	// HasGrad says for which parameters backward computes a gradient. The others are frozen, or
	// buffers, or no output with a gradient depends on them. In the last case the gradient is set
	// to zero, unless it is added to.
	HasGrad []bool
	// WideGrad says for which parameters in Signature.HalfGrad the gradient is in float32 in scratch
	// memory before it is rounded. The kernels of other gradients round them.
	WideGrad []bool
	Bytes    int // of memory that the unit takes, with the constants that it was the first to create

	checks []inputCheck
	cached atomic.Bool
}

// Cached reports whether the unit is in a cache, which counts its memory.
func (u *Unit) Cached() bool { return u.cached.Load() }

// An Update is a new value of a buffer that a forward in training computes.
type Update struct {
	Param int          // index in Spec.Params
	Shape tensor.Shape // shape of the parameter
}

// inputCheck is an operation's condition for some of an input's integers, which are its argument.
type inputCheck struct {
	of  Operand
	op  *Op
	arg int
}

// Check returns an error if integers of input i are invalid. The forward would also find this, in
// the middle of its run; a device that cannot report errors would compute nonsense.
func (u *Unit) Check(i int, v []int) error {
	for _, c := range u.checks {
		if c.of.Index != i {
			continue
		}
		if err := c.op.Check(c.op, c.arg, c.of.ints(Bytes(v))); err != nil {
			return fmt.Errorf("%v: %w", c.op, err)
		}
	}
	return nil
}

// ints returns the integers of o in its memory.
func (o *Operand) ints(memory []byte) []int { return Data[int](memory[o.Offset:][:o.Bytes]) }

// inputChecks lists the conditions that the forward's operations have for inputs of the module, or
// for views of them. Conditions for constants are checked at once. Computed integers are checked by
// the operation on the host.
func (u *Unit) inputChecks() error {
	for i := range u.Forward.instrs {
		in := &u.Forward.instrs[i]
		if in.Op.Check == nil {
			continue
		}
		for j, o := range in.In {
			switch {
			case !in.Op.ints[j]:
			case o.Space == SpaceIn:
				u.checks = append(u.checks, inputCheck{o, in.Op, j})
			case o.Space == SpaceConst:
				if err := in.Op.Check(in.Op, j, o.ints(u.Forward.consts[o.Index].Bytes)); err != nil {
					return fmt.Errorf("%v: constant: %w", in.Op, err)
				}
			}
		}
	}
	return nil
}

// tracing serialises the use of Gorgonia's graph functions: some write package-level constants.
var tracing sync.Mutex

// Compile traces and compiles a module. It does not panic. Gorgonia's functions panic when they are
// misused, and operations may, or a signature may not fit the module: the panic becomes an error
// with the stack.
func Compile(spec *Spec, sig *Signature) (u *Unit, err error) {
	defer func() {
		if r := recover(); r != nil {
			u, err = nil, fmt.Errorf("compilation panicked: %v\n%s", r, debug.Stack())
		}
	}()
	switch {
	case sig.DType != tensor.Float32 && sig.DType != tensor.Float64:
		return nil, fmt.Errorf("element type %v is not supported: want float32 or float64", sig.DType)
	case sig.DType != tensor.Float32 && (sig.anyHalf() || slices.Contains(sig.HalfGrad, true)):
		return nil, fmt.Errorf("a unit of %v cannot compute or store in bfloat16: want float32", sig.DType)
	}
	tracing.Lock()
	defer tracing.Unlock()
	tr, err := traceTwice(spec, sig)
	if err != nil {
		return nil, err
	}
	c := &compiler{partition: tr.partition(sig.Save, sig.GradOut != nil), sig: sig}
	if u, err = c.compile(); err != nil {
		return nil, err
	}
	u.Bytes = footprint(u) - c.shared
	return u, nil
}

type compiler struct {
	*partition
	sig  *Signature
	unit *Unit
	kept map[*G.Node]Operand // where backward finds forward values
}

func (c *compiler) compile() (*Unit, error) {
	c.unit = &Unit{
		DType: c.sig.DType, KeepIn: make([]bool, len(c.in)), KeepOut: make([]bool, len(c.outs)),
		ReadParam: make([]bool, len(c.params)), HasGrad: make([]bool, len(c.params)), WideGrad: make([]bool, len(c.params)),
	}
	for _, o := range c.outs {
		c.unit.OutShape = append(c.unit.OutShape, o.Shape().Clone())
	}
	c.unit.OutHalf = make([]bool, len(c.outs))
	if c.sig.anyHalf() {
		c.decideForms()
	}
	var err error
	if c.unit.Forward, err = c.compileForward(); err != nil {
		return nil, err
	}
	if err = c.unit.inputChecks(); err != nil {
		return nil, err
	}
	if c.sig.GradOut != nil {
		if c.unit.Backward, err = c.compileBackward(); err != nil {
			return nil, err
		}
	}
	return c.unit, nil
}

func (c *compiler) compileForward() (*Program, error) {
	a := newAssembler(c.graph, c.sig)
	c.bind(a, SpaceParam, c.params)
	c.bind(a, SpaceIn, c.in)
	for i, o := range c.outs {
		to := place(SpaceOut, i, 0, o, Form{Half: c.unit.OutHalf[i]})
		if c.direct(a, o, to) {
			a.dest[o] = to
		} else {
			a.tail[o] = append(a.tail[o], copyTo{to, false})
		}
	}
	c.kept = make(map[*G.Node]Operand)
	for _, n := range c.saved {
		if to, isOut := a.dest[n]; isOut {
			c.unit.KeepOut[to.Index] = true
			c.kept[n] = to
			continue
		}
		to := place(SpaceSaved, 0, c.unit.Saved, n, c.forms[n])
		a.dest[n], c.kept[n] = to, to
		c.unit.Saved = align(c.unit.Saved + to.Bytes)
	}
	c.update(a)
	return a.assemble(c.forward)
}

// update makes the new values of buffers end up in the memory for updates. A value that any other
// node needs is copied there: that memory does not exist in evaluation, and backward must not read
// it.
func (c *compiler) update(a *assembler) {
	a.updating = c.updating
	for i, n := range c.updates {
		if n == nil {
			continue
		}
		to := place(SpaceUpdate, len(c.unit.Updates), 0, n, Form{})
		c.unit.Updates = append(c.unit.Updates, Update{i, n.Shape().Clone()})
		if c.updating[n] && c.direct(a, n, to) {
			a.dest[n] = to
		} else {
			a.tail[n] = append(a.tail[n], copyTo{to, false})
		}
	}
}

func (c *compiler) compileBackward() (*Program, error) {
	a := newAssembler(c.graph, c.sig)
	c.bind(a, SpaceParam, c.params)
	c.bind(a, SpaceIn, c.in)
	c.bind(a, SpaceGradOut, c.gradOut)
	for n, at := range c.kept {
		a.loc[n] = at
	}
	a.again = make(map[*G.Node]bool)
	for _, n := range c.forward {
		a.again[n] = true
	}
	uses := make(map[*G.Node]int)
	for _, n := range c.backward {
		if _, kept := c.kept[n]; kept || n.Op() == nil {
			continue
		}
		for _, k := range children(c.g, n) {
			uses[k]++
		}
	}
	for _, n := range slices.Concat(c.gradIn, c.gradParam) {
		uses[n]++
	}
	for i, n := range c.in {
		c.unit.KeepIn[i] = uses[n] > 0
	}
	for i, n := range c.params {
		c.unit.ReadParam[i] = uses[n] > 0
	}
	var none []copyTo // gradients that are zero
	for i, n := range c.gradIn {
		in := c.sig.Inputs[i]
		if in.Grad {
			none = c.target(a, uses, n, place(SpaceGradIn, i, 0, c.in[i], Form{Half: in.Half}), in.Acc, none)
		}
	}
	for i, n := range c.gradParam {
		if !c.trained[i] {
			continue
		}
		c.unit.HasGrad[i] = n != nil
		acc := i < len(c.sig.AccParam) && c.sig.AccParam[i]
		to := place(SpaceGradParam, i, 0, c.params[i], Form{Half: i < len(c.sig.HalfGrad) && c.sig.HalfGrad[i]})
		none = c.target(a, uses, n, to, acc, none)
		c.unit.WideGrad[i] = to.Form.Half && n != nil && a.dest[n].Space != SpaceGradParam
	}
	for _, z := range none {
		a.code.instrs = append(a.code.instrs, Instr{Op: use(zeroRow, z.to.Shape), Out: z.to})
	}
	return a.assemble(c.backward)
}

// target makes the gradient n end up at to. It is computed there if possible, else copied. A value
// that is added to the contents of to, or rounded there, must have no other use, since no other
// node could read it.
func (c *compiler) target(a *assembler, uses map[*G.Node]int, n *G.Node, to Operand, acc bool, none []copyTo) []copyTo {
	if n == nil {
		if !acc {
			none = append(none, copyTo{to, false})
		}
		return none
	}
	direct := c.direct(a, n, to)
	if rounds := to.Form.Half && !c.forms[n].Half; direct && (acc || rounds) {
		kids := children(c.g, n)
		op, _ := operation(c.g, n, kids)
		l := c.lower(n, op, kids)
		able := acc && !rounds && op.Accumulate || rounds && !acc && op.Rounds && (l.half || !c.sig.Apart)
		direct = able && uses[n] == 1 && l.raw == l.out
	}
	if direct {
		a.dest[n], a.acc[n] = to, acc
	} else {
		a.tail[n] = append(a.tail[n], copyTo{to, acc})
	}
	return none
}

// direct reports whether n's value is computed by an instruction whose result has no place yet, in
// the form that to has. If n is a gradient of a parameter, to may be in bfloat16 instead.
func (c *compiler) direct(a *assembler, n *G.Node, to Operand) bool {
	_, given := a.loc[n]
	_, taken := a.dest[n]
	return !given && !taken && n.Op() != nil && !isConst(n) && !isView(n) &&
		(c.forms[n] == to.Form || to.Space == SpaceGradParam && c.forms[n] == Form{} && to.Form == Form{Half: true})
}

// bind gives the nodes addresses in a space of the caller.
func (c *compiler) bind(a *assembler, s Space, nodes G.Nodes) {
	for i, n := range nodes {
		if n != nil {
			a.loc[n] = place(s, i, 0, n, c.forms[n])
		}
	}
}

func place(s Space, index, offset int, n *G.Node, f Form) Operand {
	return Operand{Space: s, Index: index, DType: n.Dtype(), Form: f}.part(offset, n.Shape().Clone())
}
