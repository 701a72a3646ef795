package gpu

import (
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// relativeKinds are the bias that depends on the distance of a query and a key.
var relativeKinds = map[exec.Kind]lowering{ops.KindRelative: relative, ops.KindRelativeGrad: relativeGrad}

// buckets returns a constant with the row of the table for each distance, beginning with the
// distance of the last query and the first key. It also returns the numbers of heads, queries and
// keys.
func (b *builder) buckets(in *exec.Instr) (list address, heads, queries, keys int, err error) {
	a := in.Op.Attrs.(ops.Relative)
	r := kernel.Relative{Buckets: in.Op.Dim("buckets"), MaxDistance: a.MaxDistance, Causal: a.Causal}
	rows := make([]int, a.Queries+a.Keys-1)
	for i := range rows {
		rows[i] = r.Bucket(i + 1 - a.Keys)
	}
	m, err := b.engine.constant(exec.Bytes(rows))
	if err == nil {
		b.consts = append(b.consts, m)
	}
	return address{space: exec.SpaceConst, index: len(b.consts) - 1}, in.Op.Dim("heads"), a.Queries, a.Keys, err
}

func relative(b *builder, in *exec.Instr) error {
	buckets, heads, tq, tk, err := b.buckets(in)
	if err != nil {
		return err
	}
	n := heads * tq * tk
	return b.each("relative_bias", n, in.Out, in.In[0], buckets, int32(heads), int32(tq), int32(tk), uint64(n))
}

func relativeGrad(b *builder, in *exec.Instr) error {
	buckets, heads, tq, tk, err := b.buckets(in)
	if err != nil {
		return err
	}
	all := tq + tk - 1
	sums := b.temp(heads * all * b.size())
	if err := b.each("relative_diagonals", heads*all, sums, in.In[0], int32(tq), int32(tk), uint64(heads*all)); err != nil {
		return err
	}
	n := exec.Numel(in.Out.Shape)
	return b.each("relative_grad", n, in.Out, sums, buckets, int32(heads), int32(all), in.Acc, uint64(n))
}
