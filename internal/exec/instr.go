package exec

import (
	"fmt"
	"iter"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/arena"
)

// A Space is one of the memories that operands lie in; the package comment says who fills each and
// how long it lives.
type Space uint8

// The spaces. Those of a Call have an index: which parameter, input and so on.
const (
	SpaceWork Space = iota
	SpaceSaved
	SpaceParam
	SpaceIn
	SpaceOut
	SpaceGradOut
	SpaceGradIn
	SpaceGradParam
	SpaceUpdate
	SpaceConst
	SpaceBlock // between instructions that run together; no memory is planned for the whole of such a value
	SpaceHost  // Go values outside the plan, of stock operations: index into the run's list
)

// An Operand is the address, shape and type of a value.
type Operand struct {
	Space  Space
	Index  int // of the memory in its space
	Offset int // bytes from where that memory begins
	Bytes  int
	Shape  tensor.Shape
	DType  tensor.Dtype
	Form   Form

	work *arena.Place // what Offset is relative to while the program is assembled
	// Of an instruction that runs block by block: the bytes of an element, if these are as many as the
	// results, and where in scratch memory the block is, in SpaceBlock.
	step, from int
}

// at returns the operand for a value of some shape, off bytes into o.
func (o Operand) at(off int, shape tensor.Shape) Operand {
	o.Offset += off
	o.Shape = shape
	o.Bytes = o.Form.bytes(Numel(shape), o.DType)
	return o
}

// view returns the elements of o from off on under another shape: all of them, or some that are
// stored in one type.
func (o Operand) view(off int, shape tensor.Shape) Operand {
	n, m := Numel(o.Shape), Numel(shape)
	head, end := o.Form.head(n)
	switch {
	case m == n:
		end = 0
	case off >= head:
		end += (off - head) * int(o.DType.Size())
		o.Form = Form{}
	case off+m <= head:
		end = 2 * off
		o.Form.Tail = 0
	default:
		panic(fmt.Sprintf("exec: elements %d to %d of %v, of which the last %d are in float32", off, off+m, o.Shape, o.Form.Tail))
	}
	return o.at(end, shape)
}

// Head returns how many elements of o are in bfloat16, those before all others, and how many bytes in
// the others begin.
func (o Operand) Head() (elements, end int) { return o.Form.head(Numel(o.Shape)) }

// settle makes Offset what it is now that storages have places.
func (o *Operand) settle() {
	if o.work != nil {
		o.Offset += o.work.Offset
		o.work = nil
	}
}

// An Instr is one instruction of a program: an operation, and where its operands lie. It is all
// that another engine needs to know. Whoever reads it changes nothing that it refers to.
type Instr struct {
	Op      *Op // of KindStock if only Gorgonia can run it
	Out     Operand
	In      []Operand
	Scratch Operand // in SpaceWork, that of one thread; Bytes is 0 if there is none
	Acc     bool    // adds to Out
	Update  bool    // serves nothing but updates of buffers: left out in evaluation
	Half    bool    // runs by Row.BF16
	Again   bool    // in backward: computes a value that forward has computed

	stock G.Op    // of KindStock
	parts []Instr // that run together, see "Fusion"; of the rest Out says how many elements, and Scratch where blocks lie
	at    int     // index of the node that it is for
}

// A Cost is the least that an instruction takes: arithmetic (see Row.FLOPs), and bytes between it
// and memory if every argument is read and the result written once, but for those in SpaceBlock.
type Cost struct{ FLOPs, Read, Written int }

// Cost returns what the instruction costs. Of a stock operation only the bytes are known: its FLOPs
// are one for each element of the result, which is too few for a product or a sum.
func (in *Instr) Cost() Cost {
	c := Cost{FLOPs: in.Op.FLOPs(in.Op)}
	if in.Out.Space != SpaceBlock {
		c.Written = in.Out.Bytes
	}
	for i, o := range in.In {
		if o.Space == SpaceBlock {
			continue
		}
		if in.Op.Reads != nil {
			o.Bytes = min(o.Bytes, o.Form.bytes(in.Op.Reads(in.Op, i), o.DType))
		}
		c.Read += o.Bytes
	}
	if in.Acc {
		c.Read += in.Out.Bytes
	}
	return c
}

// All returns the instructions in the order in which they run. Those that run together, block by
// block, are single ones here: each has everything that is between it and others in SpaceBlock.
func (p *Program) All() iter.Seq[Instr] {
	return func(yield func(Instr) bool) {
		for i := range p.instrs {
			for _, in := range p.singles(i) {
				if !yield(in) {
					return
				}
			}
		}
	}
}

// singles returns the instructions that run together as instruction i, or that one.
func (p *Program) singles(i int) []Instr {
	if parts := p.instrs[i].parts; parts != nil {
		return parts
	}
	return p.instrs[i : i+1]
}

// Consts returns the memory behind SpaceConst, which nobody may change.
func (p *Program) Consts() []Value { return slices.Clone(p.consts) }
