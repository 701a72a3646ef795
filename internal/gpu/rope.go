package gpu

import (
	"cmp"
	"math"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// ropeKinds rotate pairs of columns.
var ropeKinds = map[exec.Kind]lowering{ops.KindRope: rope(1), ops.KindRopeGrad: rope(-1)}

// rope rotates pairs of columns by sign times the angles of their positions.
func rope(sign float64) lowering {
	return func(b *builder, in *exec.Instr) error {
		r, d, n := in.Op.Attrs.(kernel.Rotary), in.Op.Dim("d"), exec.Numel(in.Out.Shape)
		var positions any = null
		if len(in.In) > 2 {
			positions = in.In[2]
		}
		args := []any{in.Out, in.In[0], in.In[1], positions, int32(d), int32(in.Op.Dim("T")),
			int32(cmp.Or(r.Heads, d/r.HeadDim)), int32(r.HeadDim), int32(r.Dims), r.Interleaved, sign}
		unit := 16 // columns that are rotated together: 8 pairs, half a head apart
		if r.Interleaved {
			unit = 8
		}
		if in.Half && d%8 == 0 && r.HeadDim%8 == 0 && r.Dims%unit == 0 && n < math.MaxInt32 && aligned(in.Out, in.In[0], in.In[1]) {
			return b.each("rope_turn8", n/8, append(args, uint32(n/8))...)
		}
		return b.each("rope_turn", n, append(args, uint64(n))...)
	}
}
