package gpu

import (
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// planeKinds are the norms of images.
var planeKinds = map[exec.Kind]lowering{
	ops.KindBatchStats:    batchStats,
	ops.KindBatchNorm:     batchNorm,
	ops.KindBatchNormGrad: batchNormGrad,
	ops.KindGroupNorm:     groupNorm,
	ops.KindGroupNormGrad: groupNormGrad,
}

// imageDims returns the batch size, the number of channels, and the number of elements of a
// channel.
func imageDims(o *exec.Op) (n, channels, area uint64) {
	return uint64(o.Dim("B")), uint64(o.Dim("C")), uint64(o.Dim("..."))
}

// blocks launches a kernel with n blocks.
func (b *builder) blocks(kernel string, n uint64, args ...any) error {
	return b.launch(kernel+"_"+b.kind, [3]int{int(n), 1, 1}, [3]int{256, 1, 1}, 0, args...)
}

func batchStats(b *builder, in *exec.Instr) error {
	n, c, area := imageDims(in.Op)
	return b.blocks("planes_stats", c, in.Out, in.In[0], in.In[1], in.In[2], n, c, area, double(in.Op.Attrs.(ops.BatchStats).Momentum), train{})
}

func batchNorm(b *builder, in *exec.Instr) error {
	n, c, area := imageDims(in.Op)
	x, gain, bias, stats := in.In[0], in.In[1], in.In[2], in.In[3]
	return b.each("planes_apply", int(n*c*area), in.Out, x, gain, bias, stats, elementAddress(stats, int(c)), n*c*area, c, area,
		double(in.Op.Attrs.(ops.Norm).Eps))
}

func batchNormGrad(b *builder, in *exec.Instr) error {
	n, c, area := imageDims(in.Op)
	x, gain, stats, dy := in.In[0], in.In[1], in.In[2], in.In[3]
	return b.blocks("planes_gradient", c, in.Out, tail(in.Out, int(2*c)), tail(in.Out, int(c)), x, gain, stats, elementAddress(stats, int(c)), dy,
		n, c, area, double(in.Op.Attrs.(ops.Norm).Eps))
}

func groupNorm(b *builder, in *exec.Instr) error {
	n, c, area := imageDims(in.Op)
	a := in.Op.Attrs.(ops.Groups)
	groups := uint64(a.N)
	return b.blocks("planes_groups", n*groups, in.Out, tail(in.Out, int(2*n*groups)), in.In[0], in.In[1], in.In[2], c, area, groups,
		double(a.Eps))
}

func groupNormGrad(b *builder, in *exec.Instr) error {
	n, c, area := imageDims(in.Op)
	groups := uint64(in.Op.Attrs.(ops.Groups).N)
	x, gain, stats, dy := in.In[0], in.In[1], tail(in.In[2], int(2*n*groups)), in.In[3]
	if err := b.blocks("planes_groupsdx", n*groups, in.Out, x, gain, stats, dy, c, area, groups); err != nil {
		return err
	}
	return b.blocks("planes_groupsgain", c, tail(in.Out, int(2*c)), tail(in.Out, int(c)), x, stats, dy, n, c, area, groups)
}
