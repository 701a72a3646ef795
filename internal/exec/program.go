package exec

import (
	"fmt"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// space is one of the memories that a program's operands lie in; the package comment lists them.
type space uint8

const (
	spaceWork space = iota
	spaceSaved
	spaceParam
	spaceIn
	spaceOut
	spaceGradOut
	spaceGradIn
	spaceGradParam
	spaceUpdate
	spaceConst
	spaceHost // Go values outside the plan: index into the run's list
	spaces
)

// operand is the address, shape and type of a value.
type operand struct {
	space  space
	index  int
	offset int // bytes
	bytes  int
	shape  tensor.Shape
	dtype  tensor.Dtype
}

// at returns the operand for a view of n elements' shape at byte offset off of o.
func (o operand) at(off int, shape tensor.Shape) operand {
	o.offset += off
	o.shape = shape
	o.bytes = Numel(shape) * int(o.dtype.Size())
	return o
}

// instr runs one operation: op if it is native, else stock.
type instr struct {
	op      *Op
	stock   G.Op
	name    string
	out     operand
	in      []operand
	scratch operand
	acc     bool
	update  bool // serves nothing but updates of buffers: left out in evaluation
}

// Program is a straight line of instructions.
type Program struct {
	instrs []instr
	hosts  int     // values outside the plan
	consts []Value // the memory behind spaceConst
	// Work is the size in bytes of the scratch memory that a run needs.
	Work int
}

// assembler builds a Program from nodes in execution order.
type assembler struct {
	*graph
	code Program
	loc  map[*G.Node]operand // where each value is, once it is known
	dest map[*G.Node]operand // where a value must be written
	acc  map[*G.Node]bool    // whether it is added there
	tail map[*G.Node][]copyTo
	// updating are the values that nothing but updates of buffers needs
	updating map[*G.Node]bool
	last     map[*G.Node]int      // by base: index in nodes of the last use
	work     map[*G.Node]*storage // by base: values in work memory
	// storages in order of creation; patch lists the operands to set once they have offsets
	storages []*storage
	patch    []func()
}

// copyTo is a place that wants a copy of a value as well, or its sum with what is there.
type copyTo struct {
	to  operand
	acc bool
}

func newAssembler(g *graph) *assembler {
	return &assembler{
		graph: g, loc: make(map[*G.Node]operand), dest: make(map[*G.Node]operand), acc: make(map[*G.Node]bool),
		tail: make(map[*G.Node][]copyTo), last: make(map[*G.Node]int), work: make(map[*G.Node]*storage),
	}
}

// base returns the node whose memory n's value lies in.
func (a *assembler) base(n *G.Node) *G.Node {
	for n.Op() != nil && isView(n) {
		n = children(a.g, n)[0]
	}
	return n
}

// assemble emits the instructions that compute nodes. Values already in a.loc are given; those in a.dest go there, all
// others into work memory.
func (a *assembler) assemble(nodes G.Nodes) (*Program, error) {
	given := make(map[*G.Node]bool, len(a.loc))
	for n := range a.loc {
		given[n] = true
	}
	for i, n := range nodes {
		if n.Op() == nil || given[n] {
			continue
		}
		for _, c := range children(a.g, n) {
			a.last[a.base(c)] = i
		}
	}
	for i, n := range nodes {
		if !given[n] {
			if err := a.emit(i, n); err != nil {
				return nil, err
			}
		}
		for _, t := range a.tail[n] {
			a.copy(n, t)
		}
	}
	a.code.Work = pack(a.storages)
	for _, set := range a.patch {
		set()
	}
	return &a.code, nil
}

// emit adds the instruction that computes n, if it takes one.
func (a *assembler) emit(i int, n *G.Node) error {
	shape, dt := n.Shape(), n.Dtype()
	full := operand{shape: shape, dtype: dt, bytes: Numel(shape) * int(dt.Size())}
	switch {
	case isConst(n) || a.consts[n] != "":
		return a.constant(n, full)
	case n.Op() == nil:
		return fmt.Errorf("value %q is not an input of the module", n.Name())
	case isView(n):
		kid := children(a.g, n)[0]
		off := 0
		if op, ok := n.Op().(*Op); ok {
			off = op.Offset * int(dt.Size())
		}
		a.loc[n] = a.loc[kid].at(off, shape)
		return nil
	}
	in := instr{op: native(a.g, n), stock: n.Op(), name: n.Op().String(), update: a.updating[n]}
	kids := children(a.g, n)
	for _, c := range kids {
		in.in = append(in.in, a.loc[c])
	}
	a.code.instrs = append(a.code.instrs, in)
	k := len(a.code.instrs) - 1
	for j, c := range kids {
		if s := a.work[a.base(c)]; s != nil {
			a.patch = append(a.patch, func() { a.code.instrs[k].in[j].offset += s.offset })
		}
	}
	if in.op != nil && in.op.Scratch > 0 {
		s := a.storage(in.op.Scratch*int(dt.Size()), i, i)
		a.code.instrs[k].scratch = operand{space: spaceWork, bytes: s.bytes}
		a.patch = append(a.patch, func() { a.code.instrs[k].scratch.offset = s.offset })
	}
	out, s := a.result(i, n, in.op, kids, full)
	a.code.instrs[k].out, a.code.instrs[k].acc = out, a.acc[n]
	if s != nil {
		a.patch = append(a.patch, func() { a.code.instrs[k].out.offset += s.offset })
	}
	a.loc[n], a.work[n] = out, s
	return nil
}

// result decides where n's value goes.
func (a *assembler) result(i int, n *G.Node, op *Op, kids []*G.Node, full operand) (operand, *storage) {
	if to, ok := a.dest[n]; ok {
		return to.at(0, full.shape), nil
	}
	if isHost(n) {
		full.space, full.index = spaceHost, a.code.hosts
		a.code.hosts++
		return full, nil
	}
	full.space = spaceWork
	if op != nil && op.InPlace {
		if s := a.work[a.base(kids[0])]; s != nil && s.last == i && s.bytes == full.bytes && a.onlyFirst(kids) {
			s.last = max(i, a.last[n])
			return full, s
		}
	}
	return full, a.storage(full.bytes, i, max(i, a.last[n]))
}

// onlyFirst tells whether no other argument reads the memory of the first, except the very same elements.
func (a *assembler) onlyFirst(kids []*G.Node) bool {
	first := a.loc[kids[0]]
	for _, c := range kids[1:] {
		if at := a.loc[c]; a.base(c) == a.base(kids[0]) && (at.offset != first.offset || at.bytes != first.bytes) {
			return false
		}
	}
	return true
}

func (a *assembler) storage(bytes, first, last int) *storage {
	s := &storage{bytes: bytes, first: first, last: last}
	a.storages = append(a.storages, s)
	return s
}

// constant places n, a constant, in the memory of the program.
func (a *assembler) constant(n *G.Node, full operand) error {
	v, isTensor := a.tensors[n]
	if !isTensor {
		v = Value{Shape: full.shape, DType: full.dtype, Bytes: make([]byte, full.bytes)}
		if i, isInt := constValue(n).(*G.I); isInt {
			Data[int](v.Bytes)[0] = int(*i)
		} else if err := store(v, constValue(n)); err != nil {
			return fmt.Errorf("constant: %w", err)
		}
	}
	full.space, full.index = spaceConst, len(a.code.consts)
	a.code.consts = append(a.code.consts, v)
	a.loc[n] = full
	return nil
}

// copy emits a copy of n's value to t.to, or an addition.
func (a *assembler) copy(n *G.Node, t copyTo) {
	op := copyValue
	if t.acc {
		op = addValue
	}
	a.code.instrs = append(a.code.instrs, instr{
		op: op, name: op.Name, out: t.to.at(0, n.Shape()), in: []operand{a.loc[n]}, update: t.to.space == spaceUpdate,
	})
	k := len(a.code.instrs) - 1
	if s := a.work[a.base(n)]; s != nil {
		a.patch = append(a.patch, func() { a.code.instrs[k].in[0].offset += s.offset })
	}
}

var copyValue = &Op{Name: "copy",
	Run32: func(f *Frame) error { copy(f.Out.Bytes, f.In[0].Bytes); return nil },
	Run64: func(f *Frame) error { copy(f.Out.Bytes, f.In[0].Bytes); return nil }}

var addValue = &Op{Name: "accumulate", Run32: accumulate[float32], Run64: accumulate[float64]}

func accumulate[T vec.Float](f *Frame) error {
	vec.Accumulate(Data[T](f.Out.Bytes), Data[T](f.In[0].Bytes))
	return nil
}
