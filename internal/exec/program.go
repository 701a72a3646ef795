package exec

import (
	"fmt"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// A Program is a straight line of instructions.
type Program struct {
	instrs []Instr
	hosts  int     // values outside the plan
	consts []Value // the memory behind SpaceConst
	// Work is the size in bytes of the scratch memory that a run needs.
	Work int
}

// assembler builds a Program from nodes in execution order.
type assembler struct {
	*graph
	code *Program
	loc  map[*G.Node]Operand // where each value is, once it is known
	dest map[*G.Node]Operand // where a value must be written
	acc  map[*G.Node]bool    // whether it is added there
	tail map[*G.Node][]copyTo
	// updating are the values that nothing but updates of buffers needs
	updating map[*G.Node]bool
	last     map[*G.Node]int // by base: index in nodes of the last use
	storages []*storage      // in order of creation
}

// copyTo is a place that wants a copy of a value as well, or its sum with what is there.
type copyTo struct {
	to  Operand
	acc bool
}

func newAssembler(g *graph) *assembler {
	return &assembler{
		graph: g, code: new(Program), loc: make(map[*G.Node]Operand), dest: make(map[*G.Node]Operand), acc: make(map[*G.Node]bool),
		tail: make(map[*G.Node][]copyTo), last: make(map[*G.Node]int),
	}
}

// base returns the node whose memory n's value lies in.
func (a *assembler) base(n *G.Node) *G.Node {
	for n.Op() != nil && isView(n) {
		n = children(a.g, n)[0]
	}
	return n
}

// assemble emits the instructions that compute nodes. Values in a.loc exist already, values in
// a.dest go there, all others go into work memory.
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
	for k := range a.code.instrs {
		in := &a.code.instrs[k]
		in.Out.settle()
		in.Scratch.settle()
		for j := range in.In {
			in.In[j].settle()
		}
	}
	return a.code, nil
}

// emit adds the instruction that computes n, if it takes one.
func (a *assembler) emit(i int, n *G.Node) error {
	shape, dt := n.Shape(), n.Dtype()
	full := Operand{DType: dt}.at(0, shape)
	switch {
	case isConst(n) || a.consts[n] != "":
		return a.constant(n, full)
	case n.Op() == nil:
		return fmt.Errorf("value %q is not an input of the module", n.Name())
	case isView(n):
		kid := children(a.g, n)[0]
		off := 0
		if op, ok := n.Op().(*Op); ok {
			off = op.Attrs.(View).Offset * int(dt.Size())
		}
		a.loc[n] = a.loc[kid].at(off, shape)
		return nil
	}
	kids := children(a.g, n)
	in := Instr{Op: native(a.g, n), Update: a.updating[n]}
	if in.Op == nil {
		in.Op, in.stock = use(stockRow, n.Shape(), kids...), n.Op()
		in.Op.Attrs = Stock{n.Op().String()}
	}
	for _, c := range kids {
		in.In = append(in.In, a.loc[c])
	}
	if n := in.Op.scratch(); n > 0 {
		s := a.storage(n*int(dt.Size()), i, i)
		in.Scratch = Operand{Space: SpaceWork, Bytes: s.bytes, work: s}
	}
	in.Out, in.Acc = a.result(i, n, in.Op, kids, full), a.acc[n]
	a.loc[n] = in.Out
	a.code.instrs = append(a.code.instrs, in)
	return nil
}

// result decides where n's value goes.
func (a *assembler) result(i int, n *G.Node, op *Op, kids []*G.Node, full Operand) Operand {
	if to, ok := a.dest[n]; ok {
		return to.at(0, full.Shape)
	}
	if isHost(n) {
		full.Space, full.Index = SpaceHost, a.code.hosts
		a.code.hosts++
		return full
	}
	full.Space = SpaceWork
	last := max(i, a.last[n])
	if op.InPlace {
		s := a.loc[kids[0]].work
		if s != nil && s.last == i && s.bytes == full.Bytes && a.onlyFirst(kids) {
			s.last, full.work = last, s
			return full
		}
	}
	full.work = a.storage(full.Bytes, i, last)
	return full
}

// onlyFirst tells whether no other argument reads memory of the first, except the same elements.
func (a *assembler) onlyFirst(kids []*G.Node) bool {
	first := a.loc[kids[0]]
	for _, c := range kids[1:] {
		at := a.loc[c]
		if at.work == first.work && (at.Offset != first.Offset || at.Bytes != first.Bytes) {
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
func (a *assembler) constant(n *G.Node, full Operand) error {
	v, isTensor := a.tensors[n]
	if !isTensor {
		v = Value{Shape: full.Shape, DType: full.DType, Bytes: make([]byte, full.Bytes)}
		if i, isInt := constValue(n).(*G.I); isInt {
			Data[int](v.Bytes)[0] = int(*i)
		} else if err := store(v, constValue(n)); err != nil {
			return fmt.Errorf("constant: %w", err)
		}
	}
	full.Space, full.Index = SpaceConst, len(a.code.consts)
	a.code.consts = append(a.code.consts, v)
	a.loc[n] = full
	return nil
}

// copy emits a copy of n's value to t.to, or an addition.
func (a *assembler) copy(n *G.Node, t copyTo) {
	row := copyRow
	if t.acc {
		row = accumulateRow
	}
	a.code.instrs = append(a.code.instrs, Instr{
		Op: use(row, n.Shape(), n), Out: t.to.at(0, n.Shape()), In: []Operand{a.loc[n]},
		Acc: t.acc, Update: t.to.Space == SpaceUpdate,
	})
}

// use returns the operation of a row on arguments for a result of some shape.
func use(r *Row, shape tensor.Shape, args ...*G.Node) *Op {
	o := &Op{Row: r, Shape: shape.Clone()}
	for _, n := range args {
		o.In = append(o.In, n.Shape().Clone())
	}
	return o
}
