package exec

import (
	"fmt"
	"iter"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/arena"
)

// A Space is one of the memories of operands. The package comment says which code fills each Space,
// and how long its contents last.
type Space uint8

// The spaces. The spaces of a Call have an index: the number of the parameter, the input and so on.
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
	SpaceBlock // between instructions that run together; the value has no planned memory
	SpaceHost  // Go values outside the plan, of stock operations: index into the run's list
)

// An Operand is the address, shape and type of a value.
type Operand struct {
	Space  Space
	Index  int // of the memory in its space
	Offset int // bytes from the beginning of that memory
	Bytes  int
	Shape  tensor.Shape
	DType  tensor.Dtype
	Form   Form

	work *arena.Place // base of Offset while the program is assembled
	// These are set in instructions that run block by block. step is the bytes of an element, if
	// the operand has as many elements as the results. from is the offset of the block in scratch
	// memory, in SpaceBlock.
	step, from int
}

// part returns an operand of the given shape, off bytes into o.
func (o Operand) part(off int, shape tensor.Shape) Operand {
	o.Offset += off
	o.Shape = shape
	o.Bytes = o.Form.bytes(Numel(shape), o.DType)
	return o
}

// view returns the elements of o from off on under another shape: all elements, or some of one
// storage type.
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
		panic(fmt.Sprintf("exec: elements %d to %d of %v include some, but not all, of the last %d, which are in float32", off, off+m, o.Shape, o.Form.Tail))
	}
	return o.part(end, shape)
}

// Head returns how many elements of o are in bfloat16, and the byte offset of the others behind
// them.
func (o Operand) Head() (elements, end int) { return o.Form.head(Numel(o.Shape)) }

// settle computes the final Offset. Storages have their places now.
func (o *Operand) settle() {
	if o.work != nil {
		o.Offset += o.work.Offset
		o.work = nil
	}
}

// An Instr is one instruction of a program: an operation and the addresses of its operands. Another
// engine needs nothing else. Readers must not change anything that it refers to.
type Instr struct {
	Op      *Op // of KindStock if only Gorgonia can run it
	Out     Operand
	In      []Operand
	Scratch Operand // in SpaceWork, of one thread; Bytes is 0 if there is none
	Acc     bool    // adds to Out
	Update  bool    // serves only updates of buffers: skipped in evaluation
	Half    bool    // runs by Row.BF16
	Again   bool    // in backward: computes a value again that forward has computed

	stock G.Op    // of KindStock
	parts []Instr // instructions that run together, see "Fusion"; then Out has the number of elements, and Scratch the memory of blocks
	at    int     // index of the node that it is for
}

// A Cost is the lower bound for an instruction: its arithmetic (see Row.FLOPs), and the bytes it
// moves if every argument is read and the result is written once. Operands in SpaceBlock are not
// counted.
type Cost struct{ FLOPs, Read, Written int }

// Cost returns the cost of the instruction. For a stock operation only the bytes are known. Its
// FLOPs are counted as one for each element of the result, which is too few for a product or a sum.
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

// All returns the instructions in the order in which they run. Instructions that run together are
// listed one by one: values between them are in SpaceBlock.
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

// singles returns the instructions that run together as instruction i, or instruction i alone.
func (p *Program) singles(i int) []Instr {
	if parts := p.instrs[i].parts; parts != nil {
		return parts
	}
	return p.instrs[i : i+1]
}

// Consts returns the memory behind SpaceConst, which must not be changed.
func (p *Program) Consts() []Value { return slices.Clone(p.consts) }
