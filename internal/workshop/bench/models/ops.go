package models

import (
	"fmt"

	G "gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/fsdp/op"
)

// operation is one operation of package op. The sizes fit a model of 512 channels on four sequences
// of 512 tokens, or a ResNet's images.
type operation struct {
	in    []input
	build func(in G.Nodes) (*G.Node, error)
}

// input is an argument of an operation.
type input struct {
	Shape []int
	Below int  // bound of integers
	Fixed bool // it has no gradient
	Full  bool // it stays float32 in bfloat16 passes
	param bool // it is a parameter of a module: the library always has its gradient in float32
}

func value(shape ...int) input            { return input{Shape: shape} }
func weight(shape ...int) input           { return input{Shape: shape, param: true} }
func full(shape ...int) input             { return input{Shape: shape, param: true, Full: true} }
func fixed(shape ...int) input            { return input{Shape: shape, Fixed: true} }
func state(shape ...int) input            { return input{Shape: shape, Fixed: true, Full: true} }
func whole(below int, shape ...int) input { return input{Shape: shape, Below: below, Fixed: true} }
func args(list ...input) []input          { return list }

// single is a contest of an operation.
func single(name string, in []input, build func(in G.Nodes) (*G.Node, error), variants ...string) contest {
	return contest{
		name: opPrefix + name, doc: fmt.Sprint(in[0].Shape), op: operation{in, build},
		ways: []way{{name: "op"}}, script: "ops.py", variants: append(variants, ""),
	}
}

// opPrefix begins the names of contests of operations.
const opPrefix = "op/"

// channels is the length of a row, and heads is the number of heads of an attention.
const channels, heads = 512, 8

// operations are the contests of single operations. Operations on images have variants of PyTorch
// with channels last; "written out" does not use PyTorch's function for it.
var operations = func() []contest {
	const rows, hidden, vocab, batch, length, last = 2048, 2048, 8192, 4, 512, "channels last"
	tokens, images, wide := value(batch, length, channels), value(8, 64, 56, 56), value(rows, hidden)
	return []contest{
		single("Linear", args(value(rows, channels), weight(hidden, channels), weight(hidden)),
			func(in G.Nodes) (*G.Node, error) { return op.Linear(in[0], in[1], in[2]) }),
		single("AddLinear", args(value(rows, channels), value(rows, 16), weight(channels, 16)),
			func(in G.Nodes) (*G.Node, error) { return op.AddLinear(in[0], in[1], in[2]) }),
		single("Embedding", args(weight(vocab, channels), whole(vocab, batch, length)),
			func(in G.Nodes) (*G.Node, error) { return op.Embedding(in[0], in[1]) }),
		single("AddPositions", args(tokens, weight(length, channels)),
			func(in G.Nodes) (*G.Node, error) { return op.AddPositions(in[0], in[1]) }),
		single("Rope", args(tokens), rope(false)),
		single("Rope, interleaved", args(tokens), rope(true)),
		single("RelativeBias", args(full(32, heads)),
			func(in G.Nodes) (*G.Node, error) {
				return op.RelativeBias(in[0], op.Relative{Queries: length, Keys: length, MaxDistance: 128})
			}),
		single("SDPA", args(tokens, tokens, tokens), sdpa(op.Attention{})),
		single("SDPA, causal", args(tokens, tokens, tokens), sdpa(op.Attention{Causal: true})),
		single("SDPA, causal, 2 heads of keys", args(tokens, value(batch, length, channels/4), value(batch, length, channels/4)),
			sdpa(op.Attention{Causal: true, KVHeads: heads / 4})),
		single("SDPA, window of 128", args(tokens, tokens, tokens), sdpa(op.Attention{Causal: true, Window: 128})),
		single("SDPA, mask", args(tokens, tokens, tokens, whole(2, batch, length)), sdpa(op.Attention{})),
		single("SDPA, bias", args(tokens, tokens, tokens, full(heads, length, length)), sdpa(op.Attention{}), "written out"),
		single("SelfAttention, causal", args(value(batch, length, 3*channels)),
			func(in G.Nodes) (*G.Node, error) {
				return op.SelfAttention(in[0], op.Attention{Heads: heads, Causal: true})
			}),
		single("LayerNorm", args(value(rows, channels), full(channels), full(channels)),
			func(in G.Nodes) (*G.Node, error) { return op.LayerNorm(in[0], in[1], in[2], 1e-5) }),
		single("RMSNorm", args(value(rows, channels), full(channels)),
			func(in G.Nodes) (*G.Node, error) { return op.RMSNorm(in[0], in[1], 1e-5) }, "written out"),
		single("GroupNorm, 32 groups", args(images, full(64), full(64)),
			func(in G.Nodes) (*G.Node, error) { return op.GroupNorm(in[0], in[1], in[2], 32, 1e-5) }, last),
		single("BatchNorm", args(images, full(64), full(64), state(64), state(64)), batchNorm, last),
		single("BatchNorm of rows", args(value(rows, channels), full(channels), full(channels), state(channels), state(channels)), batchNorm),
		single("Conv2D 3x3 to 64", args(images, weight(64, 64, 3, 3), weight(64)), conv(op.Conv{Pad: [2]int{1, 1}}), last),
		single("Conv2D 3x3 to 256", args(value(8, 256, 14, 14), weight(256, 256, 3, 3), weight(256)), conv(op.Conv{Pad: [2]int{1, 1}}), last),
		single("Conv2D 1x1 to 256", args(images, weight(256, 64, 1, 1), weight(256)), conv(op.Conv{}), last),
		single("Conv2D 7x7 to 64, stride 2", args(fixed(8, 3, 112, 112), weight(64, 3, 7, 7), weight(64)),
			conv(op.Conv{Pad: [2]int{3, 3}, Stride: [2]int{2, 2}}), last),
		single("Conv2D 3x3, depthwise", args(images, weight(64, 1, 3, 3), weight(64)), conv(op.Conv{Pad: [2]int{1, 1}, Groups: 64}), last),
		single("MaxPool2D 3x3, stride 2", args(images),
			func(in G.Nodes) (*G.Node, error) {
				return op.MaxPool2D(in[0], op.Pool{Kernel: [2]int{3, 3}, Stride: [2]int{2, 2}, Pad: [2]int{1, 1}})
			}, last),
		single("MaxPool2D 2x2", args(images),
			func(in G.Nodes) (*G.Node, error) { return op.MaxPool2D(in[0], op.Pool{Kernel: [2]int{2, 2}}) }, last),
		single("AvgPool2D 2x2", args(images),
			func(in G.Nodes) (*G.Node, error) { return op.AvgPool2D(in[0], op.Pool{Kernel: [2]int{2, 2}}) }, last),
		single("AvgPool2D 7x7", args(value(8, channels, 7, 7)),
			func(in G.Nodes) (*G.Node, error) { return op.AvgPool2D(in[0], op.Pool{Kernel: [2]int{7, 7}}) }, last),
		single("ReLU", args(wide), unary(op.ReLU)),
		single("Tanh", args(wide), unary(op.Tanh)),
		single("Sigmoid", args(wide), unary(op.Sigmoid)),
		single("GELU", args(wide), unary(op.GELU)),
		single("GELUTanh", args(wide), unary(op.GELUTanh)),
		single("SiLU", args(wide), unary(op.SiLU)),
		single("GLU", args(wide, wide), binary(op.GLU)),
		single("SwiGLU", args(wide, wide), binary(op.SwiGLU)),
		single("SwiGLU, joined", args(value(rows, 2*hidden)), func(in G.Nodes) (*G.Node, error) { return op.SwiGLU(in[0], nil) }),
		single("GEGLU", args(wide, wide), binary(op.GEGLU)),
		single("GEGLUTanh", args(wide, wide), binary(op.GEGLUTanh)),
		single("ReGLU", args(wide, wide), binary(op.ReGLU)),
		single("Scale", args(wide), func(in G.Nodes) (*G.Node, error) { return op.Scale(in[0], 0.125) }),
		single("Columns", args(wide), func(in G.Nodes) (*G.Node, error) { return op.Columns(in[0], hidden/4, hidden/2) }),
		single("Dropout", args(wide), func(in G.Nodes) (*G.Node, error) { return op.Dropout(in[0], 0.1, 1) }),
		single("Softmax of 128", args(value(4096, 128)), unary(op.Softmax)),
		single("Softmax of 2048", args(wide), unary(op.Softmax)),
		single("LogSoftmax of 128", args(value(4096, 128)), unary(op.LogSoftmax)),
		single("LogSoftmax of 2048", args(wide), unary(op.LogSoftmax)),
		single("CrossEntropy", args(value(rows, vocab), whole(vocab, rows)),
			func(in G.Nodes) (*G.Node, error) { return op.CrossEntropy(in[0], in[1], -1) }),
		single("SmoothCrossEntropy", args(value(rows, vocab), whole(vocab, rows)),
			func(in G.Nodes) (*G.Node, error) {
				return op.SmoothCrossEntropy(in[0], in[1], op.Loss{Ignore: -1, Smoothing: 0.1})
			}),
		single("LinearCrossEntropy", args(value(rows, channels), weight(vocab, channels), whole(vocab, rows)),
			func(in G.Nodes) (*G.Node, error) {
				return op.LinearCrossEntropy(in[0], in[1], nil, in[2], op.Loss{Ignore: -1})
			}),
		single("MSE", args(value(rows, channels), fixed(rows, channels)), binary(op.MSE)),
		single("BCE", args(value(rows, channels), fixed(rows, channels)), binary(op.BCE)),
	}
}()

func unary(f func(x *G.Node) (*G.Node, error)) func(G.Nodes) (*G.Node, error) {
	return func(in G.Nodes) (*G.Node, error) { return f(in[0]) }
}

func binary(f func(x, y *G.Node) (*G.Node, error)) func(G.Nodes) (*G.Node, error) {
	return func(in G.Nodes) (*G.Node, error) { return f(in[0], in[1]) }
}

func rope(interleaved bool) func(G.Nodes) (*G.Node, error) {
	return unary(func(x *G.Node) (*G.Node, error) {
		return op.Rope(x, nil, op.Rotary{HeadDim: channels / heads, Interleaved: interleaved})
	})
}

// sdpa attends with queries, keys and values. A fourth argument is the mask if it has two
// dimensions, and the bias if it has more.
func sdpa(a op.Attention) func(G.Nodes) (*G.Node, error) {
	a.Heads = heads
	return func(in G.Nodes) (*G.Node, error) {
		a := a
		if len(in) > 3 && in[3].Dims() == 2 {
			a.Mask = in[3]
		} else if len(in) > 3 {
			a.Bias = in[3]
		}
		return op.SDPA(in[0], in[1], in[2], a)
	}
}

func batchNorm(in G.Nodes) (*G.Node, error) {
	y, _, _, err := op.BatchNorm(in[0], in[1], in[2], in[3], in[4], 1e-5, 0.1)
	return y, err
}

func conv(c op.Conv) func(G.Nodes) (*G.Node, error) {
	return func(in G.Nodes) (*G.Node, error) { return op.Conv2D(in[0], in[1], in[2], c) }
}
