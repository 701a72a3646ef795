// Package ops is the table of operations of transformer training, as differentiable operations on
// Gorgonia nodes.
//
// Table has a row for every operation and for every gradient (see exec.Row): shapes, host kernels,
// a naive reference, cost, gradient. The functions of this package add an operation to the graph of
// its arguments and return its result. Package fsdp/op exports and documents them.
//
// To add an operation, declare its Row and the Rows of its gradients, and list them in Table: the
// tests of this package then compare its kernels with its reference, and refuse an incomplete row.
package ops

import (
	"slices"

	G "gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel"
)

// These are the kinds of operations.
const (
	KindLinear           exec.Kind = "linear"
	KindAddLinear        exec.Kind = "add linear"
	KindLinearGradX      exec.Kind = "linear dx"
	KindAddLinearGradX   exec.Kind = "add linear dx"
	KindGELULinearGradX  exec.Kind = "gelu linear dx"
	KindLinearGradW      exec.Kind = "linear dw"
	KindLinearGradB      exec.Kind = "linear db"
	KindAttention        exec.Kind = "attention"
	KindAttentionGrad    exec.Kind = "attention grad"
	KindSDPA             exec.Kind = "sdpa"
	KindSDPAGrad         exec.Kind = "sdpa grad"
	KindSDPABias         exec.Kind = "sdpa bias"
	KindSDPABiasGrad     exec.Kind = "sdpa bias grad"
	KindRelative         exec.Kind = "relative bias"
	KindRelativeGrad     exec.Kind = "relative bias grad"
	KindLayerNorm        exec.Kind = "layer norm"
	KindLayerNormGrad    exec.Kind = "layer norm grad"
	KindRMSNorm          exec.Kind = "rms norm"
	KindRMSNormGrad      exec.Kind = "rms norm grad"
	KindAddLayerNormGrad exec.Kind = "add layer norm grad"
	KindAddRMSNormGrad   exec.Kind = "add rms norm grad"
	KindBatchStats       exec.Kind = "batch norm statistics"
	KindBatchNorm        exec.Kind = "batch norm"
	KindBatchNormGrad    exec.Kind = "batch norm grad"
	KindGroupNorm        exec.Kind = "group norm"
	KindGroupNormGrad    exec.Kind = "group norm grad"
	KindGELU             exec.Kind = "gelu"
	KindGELUGrad         exec.Kind = "gelu grad"
	KindGELUTanh         exec.Kind = "gelu tanh"
	KindGELUTanhGrad     exec.Kind = "gelu tanh grad"
	KindSiLU             exec.Kind = "silu"
	KindSiLUGrad         exec.Kind = "silu grad"
	KindTanh             exec.Kind = "tanh"
	KindTanhGrad         exec.Kind = "tanh grad"
	KindSigmoid          exec.Kind = "sigmoid"
	KindSigmoidGrad      exec.Kind = "sigmoid grad"
	KindReLU             exec.Kind = "relu"
	KindReLUGrad         exec.Kind = "relu grad"
	KindGLU              exec.Kind = "glu"
	KindGLUGrad          exec.Kind = "glu grad"
	KindPackedGLU        exec.Kind = "packed glu"
	KindPackedGLUGrad    exec.Kind = "packed glu grad"
	KindAngles           exec.Kind = "angles"
	KindRope             exec.Kind = "rope"
	KindRopeGrad         exec.Kind = "rope grad"
	KindScale            exec.Kind = "scale"
	KindEmbedding        exec.Kind = "embedding"
	KindEmbeddingGrad    exec.Kind = "embedding grad"
	KindPositions        exec.Kind = "positions"
	KindPositionsGrad    exec.Kind = "positions grad"
	KindCrossEntropy     exec.Kind = "cross-entropy"
	KindCrossEntropyGrad exec.Kind = "cross-entropy grad"
	KindLinearLoss       exec.Kind = "linear loss"
	KindLinearLossGradX  exec.Kind = "linear loss dx"
	KindLinearLossGradW  exec.Kind = "linear loss dw"
	KindLinearLossGradWB exec.Kind = "linear loss dw db"
	KindRowLosses        exec.Kind = "row losses"

	KindEarlyLoss     exec.Kind = "early linear loss"
	KindEarlyLossB    exec.Kind = "early linear loss with bias"
	KindEarlyLossDW   exec.Kind = "early linear loss dw"
	KindEarlyLossDWDB exec.Kind = "early linear loss dw db"

	KindRowLossesGrad exec.Kind = "row losses grad"
	KindMeanLoss      exec.Kind = "mean loss"
	KindMeanLossGrad  exec.Kind = "mean loss grad"
	KindMSE           exec.Kind = "mean squared error"
	KindMSEGrad       exec.Kind = "mean squared error grad"
	KindBCE           exec.Kind = "binary cross-entropy"
	KindBCEGrad       exec.Kind = "binary cross-entropy grad"
)

// Table returns the rows of all operations, including the compiler's. Operations made by users
// (op.Custom) have their own rows, without a reference for comparison.
func Table() []*exec.Row {
	return slices.Concat(exec.Rows(), []*exec.Row{
		linear, addLinear, linearGradX, addLinearGradX, geluLinearGradX, linearGradW, linearGradB, attention, attentionGrad,
		attentionBias, attentionBiasGrad, sdpa, sdpaGrad, sdpaBias, sdpaBiasGrad, relative, relativeGrad,
		layerNorm, layerNormGrad, addLayerNormGrad, rmsNorm, rmsNormGrad, addRMSNormGrad, batchStats, batchNorm, batchNormGrad, groupNorm, groupNormGrad,
		gelu, geluGrad, geluTanh, geluTanhGrad, silu, siluGrad, tanh, tanhGrad, sigmoid, sigmoidGrad, relu, reluGrad,
		glu, gluGrad, packedGLU, packedGLUGrad, angles, rope, ropeGrad, scale,
		embedding, embeddingGrad, positions, positionsGrad, crossEntropy, crossEntropyGrad,
		linearLoss, linearLossGradX, linearLossGradW, linearLossGradWB,
		earlyLoss, earlyLossB, earlyLossDW, earlyLossDWDB, rowLosses, rowLossesGrad, meanLoss, meanLossGrad,
		squares.loss, squares.grad, binary.loss, binary.grad,
	})
}

func kernels(f32, f64, naive exec.Kernel) exec.Kernels {
	return exec.Kernels{F32: f32, F64: f64, Naive: naive}
}

// arg returns argument i of f, which has one type.
func arg[T kernel.Element](f *exec.Frame, i int) []T { return exec.Data[T](f.In[i].Bytes) }

// optional returns argument i, or nil if it was omitted.
func optional[T kernel.Float](f *exec.Frame, i int) []T {
	if i >= len(f.In) {
		return nil
	}
	return arg[T](f, i)
}

// ints returns argument i of f, which holds integers, or nil if it was omitted.
func ints(f *exec.Frame, i int) []int {
	if i >= len(f.In) {
		return nil
	}
	return exec.Data[int](f.In[i].Bytes)
}

// result returns the memory of f's result, which has one type.
func result[T kernel.Element](f *exec.Frame) []T { return exec.Data[T](f.Out.Bytes) }

// wide returns the scratch memory of a kernel for bfloat16.
func wide(f *exec.Frame) []float32 { return exec.Data[float32](f.Scratch) }

// low returns argument i of f in bfloat16.
func low(f *exec.Frame, i int) []half.BFloat16 { return arg[half.BFloat16](f, i) }

// first returns the first result of an operation with several results.
func first(packed *G.Node, err error) (*G.Node, error) {
	if err != nil {
		return nil, err
	}
	return exec.Part(packed, 0)
}
