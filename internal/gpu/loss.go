package gpu

import (
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// lossKinds are the losses that read logits, and the losses that read pairs of elements.
var lossKinds = map[exec.Kind]lowering{
	ops.KindCrossEntropy:     crossEntropy,
	ops.KindCrossEntropyGrad: crossEntropyGrad,
	ops.KindRowLosses:        rowLosses,
	ops.KindRowLossesGrad:    rowLossesGrad,
	ops.KindMeanLoss:         meanLoss,
	ops.KindMeanLossGrad:     meanLossGrad,
	ops.KindMSE:              pairLoss("loss_squares"),
	ops.KindMSEGrad:          pairLossGrad("loss_squares", 2),
	ops.KindBCE:              pairLoss("loss_binary"),
	ops.KindBCEGrad:          pairLossGrad("loss_binary", 1),
}

// rowLosses writes the losses of rows of logits, followed by their lse.
func rowLosses(b *builder, in *exec.Instr) error {
	n := exec.Numel(in.In[1].Shape)
	return b.rowLosses(tail(in.Out, 2*n), tail(in.Out, n), in, in.Op.Attrs.(kernel.Loss))
}

func (b *builder) rowLosses(losses, lse address, in *exec.Instr, l kernel.Loss) error {
	return b.launch("loss_rows_"+b.kind, [3]int{exec.Numel(in.In[1].Shape), 1, 1}, [3]int{256, 1, 1}, 0,
		losses, lse, in.In[0], in.In[1], uint32(in.Op.Dim("classes")), int64(l.Ignore), l.Smoothing, l.Z)
}

func rowLossesGrad(b *builder, in *exec.Instr) error {
	return b.slopes(in, in.In[3], 1, in.Op.Attrs.(kernel.Loss))
}

// slopes writes the gradients of logits. The gradients of the losses are step apart.
func (b *builder) slopes(in *exec.Instr, dlosses any, step uint32, l kernel.Loss) error {
	n := exec.Numel(in.In[1].Shape)
	return b.launch("loss_slopes_"+b.kind, [3]int{n, 1, 1}, [3]int{256, 1, 1}, 0,
		in.Out, in.In[0], in.In[1], tail(in.In[2], n), dlosses, step, uint32(in.Op.Dim("classes")), int64(l.Ignore), l.Smoothing, l.Z)
}

func ignored(o *exec.Op) kernel.Loss { return kernel.Loss{Ignore: o.Attrs.(ops.Ignore).Target} }

func crossEntropy(b *builder, in *exec.Instr) error {
	n, l := exec.Numel(in.In[1].Shape), ignored(in.Op)
	losses := b.temp(8 * n)
	if err := b.rowLosses(losses, tail(in.Out, n), in, l); err != nil {
		return err
	}
	return b.countedMean(operandAddress(in.Out), losses, in.In[1], l.Ignore, null)
}

func crossEntropyGrad(b *builder, in *exec.Instr) error {
	l, share := ignored(in.Op), b.temp(8)
	if err := b.countedMean(share, null, in.In[1], l.Ignore, in.In[3]); err != nil {
		return err
	}
	return b.slopes(in, share, 0, l)
}

func meanLoss(b *builder, in *exec.Instr) error {
	return b.countedMean(operandAddress(in.Out), in.In[0], in.In[1], ignored(in.Op).Ignore, null)
}

func meanLossGrad(b *builder, in *exec.Instr) error {
	ignore, share, n := ignored(in.Op).Ignore, b.temp(8), exec.Numel(in.In[0].Shape)
	if err := b.countedMean(share, null, in.In[0], ignore, in.In[1]); err != nil {
		return err
	}
	return b.each("loss_spread", n, in.Out, in.In[0], share, uint64(n), int64(ignore))
}

// countedMean writes the mean of the losses whose target counts. If losses is null, it writes the
// gradient of each loss, where d is the gradient of the mean.
func (b *builder) countedMean(to address, losses any, targets exec.Operand, ignore int, d any) error {
	n := exec.Numel(targets.Shape)
	parts, blocks := b.parts(n)
	if err := b.launch("loss_counted_"+b.wideKind(), [3]int{blocks, 1, 1}, [3]int{256, 1, 1}, 0, parts, losses, targets, uint64(n), int64(ignore)); err != nil {
		return err
	}
	return b.mean(to, parts, blocks, 0, d, 1)
}

// wideKind returns the storage type of the results that Row.Shapes marks f32.
func (b *builder) wideKind() string {
	if b.size() == 2 {
		return "f32"
	}
	return b.kind
}

// parts returns memory for the partial sums of blocks over n elements, and the number of blocks.
func (b *builder) parts(n int) (address, int) {
	blocks := min((n+1023)/1024, 512)
	return b.temp(16 * blocks), blocks
}

func (b *builder) mean(to, parts address, blocks, weight int, d any, factor float64) error {
	return b.launch("loss_mean_"+b.wideKind(), [3]int{1, 1, 1}, [3]int{256, 1, 1}, 0, to, parts, uint32(blocks), double(weight), d, double(factor))
}

// pairLoss returns the lowering of a weighted mean over pairs.
func pairLoss(name string) lowering {
	return func(b *builder, in *exec.Instr) error {
		return b.pairs(name, operandAddress(in.Out), in.In[0], in.In[1], orNull(in, 2), exec.Numel(in.In[0].Shape), null, 1)
	}
}

// pairLossGrad returns the lowering of its gradient. The derivatives lack the given factor.
func pairLossGrad(name string, factor float64) lowering {
	return func(b *builder, in *exec.Instr) error {
		share, n, w := b.temp(8), exec.Numel(in.In[0].Shape), orNull(in, 3)
		if err := b.pairs(name, share, null, null, w, n, in.In[2], factor); err != nil {
			return err
		}
		return b.each(name+"_slope", n, in.Out, in.In[0], in.In[1], w, share, uint64(n))
	}
}

// pairs writes the mean. If x is null, it writes the share of each pair in the mean, times
// d·factor.
func (b *builder) pairs(name string, to address, x, t, w any, n int, d any, factor float64) error {
	if x == any(null) && w == any(null) {
		return b.mean(to, to, 0, n, d, factor)
	}
	parts, blocks := b.parts(n)
	if err := b.launch(name+"_"+b.kind, [3]int{blocks, 1, 1}, [3]int{256, 1, 1}, 0, parts, x, t, w, uint64(n)); err != nil {
		return err
	}
	return b.mean(to, parts, blocks, 0, d, factor)
}

// orNull returns an argument, or null if it was omitted.
func orNull(in *exec.Instr, i int) any {
	if i < len(in.In) {
		return in.In[i]
	}
	return null
}
