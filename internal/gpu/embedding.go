package gpu

import (
	"fmt"
	"math/bits"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// embeddingKinds read rows of tables by index.
var embeddingKinds = map[exec.Kind]lowering{
	ops.KindEmbedding:     embedding,
	ops.KindEmbeddingGrad: embeddingGrad,
	ops.KindPositions:     positions,
	ops.KindPositionsGrad: positionsGrad,
	exec.KindLookup:       lookup,
	exec.KindLookupGrad:   lookupGrad,
}

// A table is rows of d elements. There may be several such tables: outer.
type table struct{ outer, rows, d int }

func tableOf(o *exec.Op) table { return table{1, o.Dim("rows"), o.Dim("d")} }

// tableAlong returns a value of n elements as tables whose rows run along the axis of a lookup. The
// shape of another value of the lookup determines the axis.
func tableAlong(o *exec.Op, n int) table {
	axis := int(o.Attrs.(exec.Axis))
	outer, d := exec.Numel(o.Shape[:axis]), exec.Numel(o.Shape[axis+1:])
	return table{outer, n / outer / d, d}
}

func embedding(b *builder, in *exec.Instr) error { return b.lookup(in, tableOf(in.Op)) }

func lookup(b *builder, in *exec.Instr) error {
	return b.lookup(in, tableAlong(in.Op, exec.Numel(in.In[0].Shape)))
}

// lookup copies the rows of argument 0 that argument 1 names, in the largest possible words.
func (b *builder) lookup(in *exec.Instr, t table) error {
	n, size := exec.Numel(in.In[1].Shape), elementSize(in.Out)
	word := wordOf(t.d*size, in.Out, in.In[0])
	d := t.d * size / word
	return b.rows(fmt.Sprintf("embedding_rows_b%d", 8*word), t.outer*n, d, in.Out, in.In[0], in.In[1], uint32(n), uint64(t.rows), uint64(d))
}

func embeddingGrad(b *builder, in *exec.Instr) error { return b.lookupGrad(in, tableOf(in.Op)) }

func lookupGrad(b *builder, in *exec.Instr) error {
	return b.lookupGrad(in, tableAlong(in.Op, exec.Numel(in.Out.Shape)))
}

// lookupGrad sorts the tokens by row, 8 bits at a time. So each row has one block that adds its
// gradients in order.
func (b *builder) lookupGrad(in *exec.Instr, t table) error {
	if !in.Acc {
		b.zero(operandAddress(in.Out), in.Out.Bytes)
	}
	const digits, tile = 256, 512 // as in embedding.cu
	dy, index := in.In[0], in.In[1]
	n := exec.Numel(index.Shape)
	tiles := (n + tile - 1) / tile
	counts, order, next := b.temp(4*tiles*digits), any(null), []address{b.temp(4 * n), b.temp(4 * n)}
	for shift := 0; shift == 0 || shift < bits.Len(uint(t.rows-1)); shift += 8 {
		one, to := [3]int{1, 1, 1}, next[shift/8%2]
		if err := b.launch("embedding_count", [3]int{tiles, 1, 1}, [3]int{32, 1, 1}, 0, counts, order, index, uint32(n), uint32(shift)); err != nil {
			return err
		}
		if err := b.launch("embedding_scan", one, [3]int{digits, 1, 1}, 0, counts, uint32(tiles)); err != nil {
			return err
		}
		if err := b.launch("embedding_move", [3]int{tiles, 1, 1}, [3]int{32, 1, 1}, 0, to, order, index, counts, uint32(n), uint32(shift)); err != nil {
			return err
		}
		order = to
	}
	return b.rows("embedding_sums_"+b.kind, t.outer*n, t.d, in.Out, dy, order, index, uint32(n), uint64(t.rows), uint64(t.d), in.Acc)
}

func positions(b *builder, in *exec.Instr) error {
	d := in.Op.Dim("d")
	return b.rows("embedding_positions_"+b.kind, exec.Numel(in.Out.Shape)/d, d, in.Out, in.In[0], in.In[1], uint32(in.Op.Dim("T")), uint64(d))
}

func positionsGrad(b *builder, in *exec.Instr) error {
	n := in.Op.Dim("T") * in.Op.Dim("d")
	if rest := exec.Numel(in.Out.Shape) - n; !in.Acc && rest > 0 {
		b.zero(tail(in.Out, rest), rest*elementSize(in.Out))
	}
	return b.columns(b.kind, operandAddress(in.Out), operandAddress(in.In[0]), in.Op.Dim("B"), n, n, in.Acc)
}

// rows launches a kernel with one block for each row, in x, and for each 256 elements of a row, in
// y.
func (b *builder) rows(kernel string, rows, n int, args ...any) error {
	threads := min(256, (n+31)/32*32)
	return b.launch(kernel, [3]int{rows, (n + threads - 1) / threads, 1}, [3]int{threads, 1, 1}, 0, args...)
}

// elementSize returns the bytes of an element of a value with one type.
func elementSize(o exec.Operand) int { return o.Bytes / exec.Numel(o.Shape) }

// wordOf returns the size in bytes of the largest words, at most 16, that divide rows of n bytes
// and the addresses of the operands.
func wordOf(n int, operands ...exec.Operand) int {
	all := n | 16
	for _, o := range operands {
		all |= o.Offset
	}
	return all & -all
}
