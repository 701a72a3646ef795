package exec

import (
	"slices"

	"github.com/gofsdp/gofsdp/internal/arena"
)

// Fusion: successive element-wise instructions on equally many elements run together. The elements
// are cut into blocks, and all instructions run on one block before the next begins. So a block's
// intermediate values stay in the level-one cache, and the memory of arguments and results is
// traversed once. A value that no other instruction reads has no planned memory: its block is in
// scratch memory, see SpaceBlock. Each element has the same bits as without fusion. Program.All
// shows single instructions.

// fusedBlock is the number of elements in a block. Fewer than fusedLeast elements are in the cache
// anyway, so running them together saves no time, and blocks are no smaller than values.
const (
	fusedBlock = 2048
	fusedLeast = 16 * fusedBlock
)

// fuse joins instructions where that is possible.
func (a *assembler) fuse() {
	uses := a.uses()
	all := a.code.instrs
	a.code.instrs = nil
	for len(all) > 0 {
		n := 1
		for n < len(all) && follows(all[:n], &all[n]) {
			n++
		}
		for n > 1 && !worthwhile(all[:n], uses) {
			n--
		}
		if n == 1 {
			a.code.instrs = append(a.code.instrs, all[0])
		} else {
			a.code.instrs = append(a.code.instrs, a.join(slices.Clone(all[:n]), uses))
		}
		all = all[n:]
	}
	a.storages = slices.DeleteFunc(a.storages, func(s *arena.Place) bool { return s.Bytes == 0 })
}

// worthwhile reports whether parts that run together need no more memory than they save: their
// operands live until the last part.
func worthwhile(parts []Instr, uses map[*arena.Place]int) bool {
	inside := make(map[*arena.Place]int)
	for k := range parts {
		for o := range parts[k].operands {
			inside[o.work]++
		}
	}
	delete(inside, nil)
	saved, first, end := 0, parts[0].at, parts[len(parts)-1].at
	for s, n := range inside {
		if n == uses[s] {
			saved += s.Bytes
		} else if s.First > first || s.Last < end {
			saved -= s.Bytes
		}
	}
	return saved >= 0
}

// uses counts the operands in each piece of work memory.
func (a *assembler) uses() map[*arena.Place]int {
	uses := make(map[*arena.Place]int)
	for i := range a.code.instrs {
		for o := range a.code.instrs[i].operands {
			uses[o.work]++
		}
	}
	return uses
}

// operands calls yield with the result and the arguments.
func (in *Instr) operands(yield func(o *Operand) bool) {
	for j := -1; j < len(in.In); j++ {
		o := &in.Out
		if j >= 0 {
			o = &in.In[j]
		}
		if !yield(o) {
			return
		}
	}
}

// elementwise reports whether the instruction may run on any range of the elements.
func (in *Instr) elementwise() bool {
	for o := range in.operands {
		if o.Form.Tail > 0 {
			return false
		}
	}
	return in.Op.Split == ByElement
}

// follows reports whether next can run together with the instructions before it. If one of two
// instructions writes memory that the other uses, both must use the same elements of it.
func follows(before []Instr, next *Instr) bool {
	n := Numel(next.Out.Shape)
	if n < fusedLeast || !before[0].elementwise() || !next.elementwise() || before[0].Update != next.Update || n != Numel(before[0].Out.Shape) {
		return false
	}
	for i := range before {
		for o := range before[i].operands {
			for p := range next.operands {
				same := o.Offset == p.Offset && o.Bytes == p.Bytes && o.Form == p.Form && Numel(o.Shape) == n
				if written := o == &before[i].Out || p == &next.Out; written && !same && o.overlaps(p) {
					return false
				}
			}
		}
	}
	return true
}

// overlaps reports whether two operands share memory, while the program is assembled.
func (o *Operand) overlaps(p *Operand) bool {
	return o.Space == p.Space && o.Index == p.Index && o.work == p.work && o.Offset < p.Offset+p.Bytes && p.Offset < o.Offset+o.Bytes
}

// join returns the instruction that runs parts together. The memory of their operands is in use
// during all of it.
func (a *assembler) join(parts []Instr, uses map[*arena.Place]int) Instr {
	last, n := len(parts)-1, Numel(parts[0].Out.Shape)
	joined := Instr{Op: parts[last].Op, Out: parts[last].Out, Update: parts[last].Update, parts: parts}
	first, end := parts[0].at, parts[last].at
	inside, until := make(map[*arena.Place]int), make(map[*arena.Place]int) // operands in parts, and the last part with each
	for k := range parts {
		parts[k].In = slices.Clone(parts[k].In)
		for o := range parts[k].operands {
			inside[o.work]++
			until[o.work] = k
			if Numel(o.Shape) == n {
				o.step = o.Bytes / n
			}
		}
	}
	slot := fusedBlock * int(joined.Out.DType.Size())
	var busy []int // by slot: the last part that uses it
	at := make(map[*arena.Place]int)
	scratch := 0
	for k := range parts {
		if s := parts[k].Scratch.work; s != nil {
			scratch, s.Bytes, parts[k].Scratch.work = max(scratch, parts[k].Scratch.Bytes), 0, nil
		}
		for o := range parts[k].operands {
			switch s := o.work; {
			case s == nil:
			case inside[s] < uses[s]:
				s.First, s.Last = min(s.First, first), max(s.Last, end)
			default:
				if _, placed := at[s]; !placed {
					i := slices.IndexFunc(busy, func(until int) bool { return until < k })
					if i < 0 {
						i, busy = len(busy), append(busy, 0)
					}
					at[s], busy[i], s.Bytes = i, until[s], 0
				}
				o.Space, o.Index, o.from, o.Offset, o.work = SpaceBlock, at[s], at[s]*slot, 0, nil
			}
		}
	}
	for k := range parts {
		parts[k].Scratch.Offset = len(busy) * slot
	}
	if bytes := len(busy)*slot + scratch; bytes > 0 {
		s := &arena.Place{Bytes: bytes + (a.threads-1)*align(bytes), First: first, Last: end}
		a.storages = append(a.storages, s)
		joined.Scratch = Operand{Space: SpaceWork, Bytes: bytes, work: s}
	}
	joined.Out.work = nil // the part has its address
	return joined
}

// ready creates the frames for the parts of an instruction, whose operands are resolved. The
// settings of f for the run apply to all of them.
func (s *share) ready(in *Instr, f *Frame, operands []Value) {
	for len(s.frames) < len(in.parts) {
		s.frames = append(s.frames, Frame{})
	}
	for k := range in.parts {
		part, p := &in.parts[k], &s.frames[k]
		args := append(p.In[:0], operands[1:1+len(part.In)]...)
		*p = *f
		p.Op, p.Acc, p.Out, p.In = part.Op, part.Acc, operands[0], args
		p.Scratch = f.Scratch[part.Scratch.Offset:][:part.Scratch.Bytes]
		operands = operands[1+len(part.In):]
	}
}

// blocks runs elements lo to hi.
func (s *share) blocks(in *Instr, scratch []byte, operands []Value, lo, hi int) error {
	for ; lo < hi; lo += fusedBlock {
		end, rest := min(lo+fusedBlock, hi), operands
		for k := range in.parts {
			part, f := &in.parts[k], &s.frames[k]
			f.First = lo
			f.Out.Bytes = part.Out.block(rest[0].Bytes, scratch, lo, end)
			for j := range part.In {
				f.In[j].Bytes = part.In[j].block(rest[1+j].Bytes, scratch, lo, end)
			}
			rest = rest[1+len(part.In):]
			if err := part.run(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// block returns elements lo to hi of all. Operands shorter than the results are returned whole.
func (o *Operand) block(all, scratch []byte, lo, hi int) []byte {
	switch {
	case o.Space == SpaceBlock:
		return scratch[o.from:][:(hi-lo)*o.step]
	case o.step > 0:
		return all[lo*o.step : hi*o.step : hi*o.step]
	}
	return all
}
