package exec

import (
	"fmt"
	"maps"
	"unsafe"
	"weak"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/arena"
)

// A Program is a straight line of instructions.
type Program struct {
	instrs []Instr
	hosts  int     // number of values outside the plan
	consts []Value // the memory behind SpaceConst
	// Work is the size in bytes of the scratch memory for a run.
	Work int
}

// assembler builds a Program from nodes in execution order.
type assembler struct {
	*graph
	code *Program
	loc  map[*G.Node]Operand // address of each value that is already known
	dest map[*G.Node]Operand // address at which a value must be written
	acc  map[*G.Node]bool    // whether the value is added at dest
	tail map[*G.Node][]copyTo
	// updating are the values that only updates of buffers need
	updating map[*G.Node]bool
	again    map[*G.Node]bool // values that forward has computed already
	last     map[*G.Node]int  // by base: index in nodes of the last use
	storages []*arena.Place   // work memory: each for one value, or for several that are computed in place one after the other
	at       int              // index of the node that instructions are emitted for
	update   bool             // that node is one of updating
	repeats  bool             // that node is one of again
	threads  int              // number of threads; each has its own scratch memory
	apart    bool             // no instructions run together
}

// copyTo is an address that also needs a copy of a value, or its sum with the present contents.
type copyTo struct {
	to  Operand
	acc bool
}

func newAssembler(g *graph, sig *Signature) *assembler {
	return &assembler{
		graph: g, threads: max(1, sig.Threads), apart: sig.Apart, code: new(Program), loc: make(map[*G.Node]Operand), dest: make(map[*G.Node]Operand), acc: make(map[*G.Node]bool),
		tail: make(map[*G.Node][]copyTo), last: make(map[*G.Node]int),
	}
}

// base returns the node that owns the memory of n's value.
func (a *assembler) base(n *G.Node) *G.Node {
	for n.Op() != nil && isView(n) {
		n = children(a.g, n)[0]
	}
	return n
}

// assemble emits the instructions that compute nodes. Values in a.loc exist already, values in
// a.dest are written there, and all others are in work memory.
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
		a.at, a.update, a.repeats = i, a.updating[n], a.again[n]
		if !given[n] {
			if err := a.emit(n); err != nil {
				return nil, err
			}
		}
		for _, t := range a.tail[n] {
			a.copy(n, t)
		}
	}
	if !a.apart {
		a.fuse()
	}
	a.code.Work = arena.Pack(a.storages, arena.Align)
	settle(a.code.instrs)
	return a.code, nil
}

// settle replaces places in storages by offsets.
func settle(list []Instr) {
	for i := range list {
		list[i].Scratch.settle()
		for o := range list[i].operands {
			o.settle()
		}
		settle(list[i].parts)
	}
}

// emit adds the instructions that compute n. It may need none.
func (a *assembler) emit(n *G.Node) error {
	switch {
	case isConst(n) || a.consts[n] != "":
		return a.constant(n, Operand{DType: n.Dtype()}.part(0, n.Shape()))
	case n.Op() == nil:
		return fmt.Errorf("value %q is not an input of the module", n.Name())
	case isView(n):
		a.loc[n] = a.loc[children(a.g, n)[0]].view(offset(n), n.Shape())
		return nil
	}
	kids := children(a.g, n)
	in := Instr{Acc: a.acc[n]}
	in.Op, in.stock = operation(a.g, n, kids)
	l := a.lower(n, in.Op, kids)
	for j, c := range kids {
		in.In = append(in.In, a.convert(a.loc[c], l.in[j]))
	}
	in.Half = l.half
	if l.raw == l.out {
		in.Out = a.result(n, in.Op, in.In, l.out)
		a.loc[n] = in.Out
		a.add(in)
		return nil
	}
	in.Out = a.work(in.Op, in.In, Operand{DType: n.Dtype(), Form: l.raw}.part(0, n.Shape()), a.at)
	a.add(in)
	a.loc[n] = a.result(n, convertRow.op(n), nil, l.out)
	a.add(Instr{Op: convertRow.op(n), Out: a.loc[n], In: []Operand{in.Out}})
	return nil
}

// operation returns the operation of n, and Gorgonia's operation if only Gorgonia can run it.
func operation(g *G.ExprGraph, n *G.Node, kids []*G.Node) (*Op, G.Op) {
	if op := native(g, n); op != nil {
		return op, nil
	}
	op := use(stockRow, n.Shape(), kids...)
	op.Attrs = Stock{n.Op().String()}
	return op, n.Op()
}

// offset returns the index in its argument of the first element of n, a view.
func offset(n *G.Node) int {
	if op, ok := n.Op().(*Op); ok {
		return op.Attrs.(View).Offset
	}
	return 0
}

// add adds an instruction for the current node, with its scratch memory.
func (a *assembler) add(in Instr) {
	size := int(in.Out.DType.Size())
	if in.Half {
		size = 4
	}
	if n := in.Op.scratch(in.Half); n > 0 {
		n *= size
		all := n
		if in.divisible() {
			all += (a.threads - 1) * align(n)
		}
		in.Scratch = Operand{Space: SpaceWork, Bytes: n, work: a.storage(all, a.at)}
	}
	in.Update, in.Again, in.at = in.Update || a.update, a.repeats, a.at
	a.code.instrs = append(a.code.instrs, in)
}

// convert returns o in another form, for the current node.
func (a *assembler) convert(o Operand, f Form) Operand {
	if o.Form == f {
		return o
	}
	to := Operand{DType: o.DType, Form: f}.part(0, o.Shape)
	to.Space, to.work = SpaceWork, a.storage(to.Bytes, a.at)
	a.add(Instr{Op: &Op{Row: convertRow, Shape: o.Shape, In: []tensor.Shape{o.Shape}}, Out: to, In: []Operand{o}})
	return to
}

// result decides the address of n's value, which op computes from in.
func (a *assembler) result(n *G.Node, op *Op, in []Operand, f Form) Operand {
	full := Operand{DType: n.Dtype(), Form: f}.part(0, n.Shape())
	if to, ok := a.dest[n]; ok {
		return to.part(0, full.Shape)
	}
	if isHost(n) {
		full.Space, full.Index = SpaceHost, a.code.hosts
		a.code.hosts++
		return full
	}
	return a.work(op, in, full, max(a.at, a.last[n]))
}

// work places a result in work memory until node last: over the first operand of in if possible.
func (a *assembler) work(op *Op, in []Operand, full Operand, last int) Operand {
	full.Space = SpaceWork
	if op.InPlace {
		if s := in[0].work; s != nil && s.Last == a.at && s.Bytes == full.Bytes && in[0].Bytes == full.Bytes && onlyFirst(op, in) {
			s.Last, full.work = last, s
			return full
		}
	}
	full.work = a.storage(full.Bytes, last)
	return full
}

// onlyFirst reports whether no other operand shares memory with the first one, except for the same
// elements in an element-wise operation.
func onlyFirst(op *Op, in []Operand) bool {
	for _, o := range in[1:] {
		if o.work == in[0].work && (op.Split != ByElement || o.Offset != in[0].Offset || o.Bytes != in[0].Bytes) {
			return false
		}
	}
	return true
}

// storage returns new work memory, in use from the current node to node last.
func (a *assembler) storage(bytes, last int) *arena.Place {
	s := &arena.Place{Bytes: bytes, First: a.at, Last: last}
	a.storages = append(a.storages, s)
	return s
}

// constant places the constant n in the memory of the program.
func (a *assembler) constant(n *G.Node, full Operand) error {
	v, isTensor := a.tensors[n]
	if !isTensor {
		v = Value{Shape: full.Shape, DType: full.DType, Bytes: make([]byte, full.Bytes)}
		if isTable(n) {
			if err := a.table(n.Op().(*Op), &v); err != nil {
				return err
			}
			a.tensors[n] = v
		} else if i, isInt := constValue(n).(*G.I); isInt {
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

// tables are the constant results of operations. Programs share them, and they live as long as one
// such program. The compiling goroutine holds tracing.
var tables = make(map[string]weak.Pointer[byte])

// table computes the constant result of op, or reuses the memory of an equal one.
func (a *assembler) table(op *Op, v *Value) error {
	for n, known := range a.tensors {
		if isTable(n) && n.Op().String() == op.String() && n.Shape().Eq(op.Shape) {
			*v = known
			return nil
		}
	}
	key := fmt.Sprint(op, op.Shape, v.DType, v.Form)
	if p := tables[key].Value(); p != nil {
		v.Bytes = unsafe.Slice(p, len(v.Bytes))
		a.shared += len(v.Bytes)
		return nil
	}
	if err := op.run(&Frame{Op: op, Out: *v}); err != nil {
		return fmt.Errorf("%v: %w", op, err)
	}
	maps.DeleteFunc(tables, func(_ string, p weak.Pointer[byte]) bool { return p.Value() == nil })
	if len(v.Bytes) > 0 {
		tables[key] = weak.Make(&v.Bytes[0])
	}
	return nil
}

// copy emits a copy of n's value to t.to, or an addition there.
func (a *assembler) copy(n *G.Node, t copyTo) {
	in := Instr{Out: t.to.part(0, n.Shape()), Acc: t.acc, Update: t.to.Space == SpaceUpdate}
	from, row := a.loc[n], copyRow
	switch {
	case t.acc:
		from, row, in.Half = a.convert(from, t.to.Form), accumulateRow, t.to.Form.Half
	case from.Form != t.to.Form:
		row = convertRow
	}
	in.Op, in.In = row.op(n), []Operand{from}
	a.add(in)
}

// op returns the operation of r on n, with a result of the same shape.
func (r *Row) op(n *G.Node) *Op { return use(r, n.Shape(), n) }

// use returns the operation of a row on arguments, with a result of the given shape.
func use(r *Row, shape tensor.Shape, args ...*G.Node) *Op {
	o := &Op{Row: r, Shape: shape.Clone()}
	for _, n := range args {
		o.In = append(o.In, n.Shape().Clone())
	}
	return o
}

// align rounds n up to a multiple of arena.Align.
func align(n int) int { return (n + arena.Align - 1) / arena.Align * arena.Align }
