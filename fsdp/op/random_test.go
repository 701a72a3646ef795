package op_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/fsdp/op"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/exec/exectest"
)

// xShape is the shape of what operations are composed on: sequences, tokens and channels.
var xShape = []int{2, 3, 4}

// every applies each operation of this package to x, of shape xShape. A new function needs a line
// here, and in the list of the package comment: the tests below then compare its gradients with
// central differences in float64, alone and between others. b makes the other arguments. Numbers
// that a norm divides by are far from 0, where differences say nothing.
var every = map[string]func(b *builder, x *gorgonia.Node) (*gorgonia.Node, error){
	"Linear": func(b *builder, x *gorgonia.Node) (*gorgonia.Node, error) {
		return op.Linear(x, b.floats(4, 4), b.floats(4))
	},
	"AddLinear": func(b *builder, x *gorgonia.Node) (*gorgonia.Node, error) {
		return op.AddLinear(b.floats(2, 3, 4), x, b.floats(4, 4))
	},
	"LayerNorm": func(b *builder, x *gorgonia.Node) (*gorgonia.Node, error) {
		return op.LayerNorm(x, b.floats(4), b.floats(4), 0.1)
	},
	"RMSNorm": func(b *builder, x *gorgonia.Node) (*gorgonia.Node, error) { return op.RMSNorm(x, b.floats(4), 0.1) },
	"BatchNorm": func(b *builder, x *gorgonia.Node) (*gorgonia.Node, error) {
		y, _, _, err := op.BatchNorm(x, b.floats(3), b.floats(3), b.fixed(3), b.fixed(3), 0.1, 0.1)
		return y, err
	},
	"GroupNorm": func(b *builder, x *gorgonia.Node) (*gorgonia.Node, error) {
		return op.GroupNorm(x, b.floats(3), b.floats(3), 3, 0.1)
	},
	"Conv2D": func(b *builder, x *gorgonia.Node) (*gorgonia.Node, error) {
		return ofImages(x, func(x *gorgonia.Node) (*gorgonia.Node, error) {
			return op.Conv2D(x, b.floats(3, 3, 3, 1), b.floats(3), op.Conv{Pad: [2]int{1, 0}})
		})
	},
	"MaxPool2D": func(_ *builder, x *gorgonia.Node) (*gorgonia.Node, error) {
		return ofImages(x, func(x *gorgonia.Node) (*gorgonia.Node, error) { return op.MaxPool2D(x, op.Pool{Kernel: [2]int{2, 1}}) })
	},
	"AvgPool2D": func(_ *builder, x *gorgonia.Node) (*gorgonia.Node, error) {
		return ofImages(x, func(x *gorgonia.Node) (*gorgonia.Node, error) {
			return op.AvgPool2D(x, op.Pool{Kernel: [2]int{3, 1}, Stride: [2]int{1, 1}, Pad: [2]int{1, 0}})
		})
	},
	"Embedding": func(b *builder, x *gorgonia.Node) (*gorgonia.Node, error) {
		rows, err := op.Embedding(b.floats(5, 4), b.ints(5, 2, 3))
		if err != nil {
			return nil, err
		}
		return gorgonia.HadamardProd(x, rows)
	},
	"Columns": func(b *builder, x *gorgonia.Node) (*gorgonia.Node, error) {
		y, err := op.Columns(x, 1, 3)
		if err != nil {
			return nil, err
		}
		return op.Linear(y, b.floats(4, 2), nil)
	},
	"AddPositions": func(b *builder, x *gorgonia.Node) (*gorgonia.Node, error) { return op.AddPositions(x, b.floats(5, 4)) },
	"GELU":         func(_ *builder, x *gorgonia.Node) (*gorgonia.Node, error) { return op.GELU(x) },
	"GELUTanh":     func(_ *builder, x *gorgonia.Node) (*gorgonia.Node, error) { return op.GELUTanh(x) },
	"SiLU":         func(_ *builder, x *gorgonia.Node) (*gorgonia.Node, error) { return op.SiLU(x) },
	"Tanh":         func(_ *builder, x *gorgonia.Node) (*gorgonia.Node, error) { return op.Tanh(x) },
	"Sigmoid":      func(_ *builder, x *gorgonia.Node) (*gorgonia.Node, error) { return op.Sigmoid(x) },
	"ReLU":         func(_ *builder, x *gorgonia.Node) (*gorgonia.Node, error) { return op.ReLU(x) },
	"SwiGLU":       func(b *builder, x *gorgonia.Node) (*gorgonia.Node, error) { return op.SwiGLU(x, b.floats(2, 3, 4)) },
	"GEGLU":        func(b *builder, x *gorgonia.Node) (*gorgonia.Node, error) { return op.GEGLU(b.floats(2, 3, 4), x) },
	"GEGLUTanh":    func(b *builder, x *gorgonia.Node) (*gorgonia.Node, error) { return op.GEGLUTanh(x, b.floats(2, 3, 4)) },
	"ReGLU":        func(b *builder, x *gorgonia.Node) (*gorgonia.Node, error) { return op.ReGLU(x, b.floats(2, 3, 4)) },
	"GLU":          func(b *builder, x *gorgonia.Node) (*gorgonia.Node, error) { return op.GLU(x, b.floats(2, 3, 4)) },
	"Scale":        func(_ *builder, x *gorgonia.Node) (*gorgonia.Node, error) { return op.Scale(x, -0.7) },
	"Dropout":      func(_ *builder, x *gorgonia.Node) (*gorgonia.Node, error) { return op.Dropout(x, 0.3, 1) },
	"CrossEntropy": func(b *builder, x *gorgonia.Node) (*gorgonia.Node, error) {
		return op.CrossEntropy(x, b.ints(4, 2, 3), 1)
	},
	"SmoothCrossEntropy": func(b *builder, x *gorgonia.Node) (*gorgonia.Node, error) {
		return op.SmoothCrossEntropy(x, b.ints(4, 2, 3), op.Loss{Ignore: 1, Smoothing: 0.2, Z: 0.1})
	},
	"LinearCrossEntropy": func(b *builder, x *gorgonia.Node) (*gorgonia.Node, error) {
		return op.LinearCrossEntropy(x, b.floats(5, 4), b.floats(5), b.ints(5, 2, 3), op.Loss{Ignore: 1, Smoothing: 0.2, Z: 0.1})
	},
	"MSE": func(b *builder, x *gorgonia.Node) (*gorgonia.Node, error) { return op.MSE(x, b.fixed(2, 3, 4)) },
	"BCE": func(b *builder, x *gorgonia.Node) (*gorgonia.Node, error) { return op.BCE(x, b.fixed(2, 3, 4)) },
	"WeightedMSE": func(b *builder, x *gorgonia.Node) (*gorgonia.Node, error) {
		return op.WeightedMSE(x, b.fixed(2, 3, 4), b.fixed(2, 3, 4))
	},
	"WeightedBCE": func(b *builder, x *gorgonia.Node) (*gorgonia.Node, error) {
		return op.WeightedBCE(x, b.fixed(2, 3, 4), b.fixed(2, 3, 4))
	},
	"Softmax":    func(_ *builder, x *gorgonia.Node) (*gorgonia.Node, error) { return op.Softmax(x) },
	"LogSoftmax": func(_ *builder, x *gorgonia.Node) (*gorgonia.Node, error) { return op.LogSoftmax(x) },
	"SelfAttention": func(b *builder, x *gorgonia.Node) (*gorgonia.Node, error) {
		qkv, err := op.Linear(x, b.floats(12, 4), nil)
		if err != nil {
			return nil, err
		}
		return op.SelfAttention(qkv, op.Attention{Heads: 2, Causal: true, Mask: b.ints(2, 2, 3)})
	},
	"SDPA": func(b *builder, x *gorgonia.Node) (*gorgonia.Node, error) {
		return op.SDPA(x, b.floats(2, 5, 2), b.floats(2, 5, 2), op.Attention{Heads: 2, KVHeads: 1, Causal: true, Bias: b.floats(2, 3, 5)})
	},
	"RelativeBias": func(b *builder, x *gorgonia.Node) (*gorgonia.Node, error) {
		bias, err := op.RelativeBias(b.floats(4, 1), op.Relative{Queries: 3, Keys: 3, MaxDistance: 8})
		if err != nil {
			return nil, err
		}
		return op.SDPA(x, x, b.floats(2, 3, 4), op.Attention{Heads: 1, Bias: bias})
	},
	"Rope": func(b *builder, x *gorgonia.Node) (*gorgonia.Node, error) {
		return op.Rope(x, b.ints(7, 2, 3), op.Rotary{HeadDim: 4, Heads: 1, Context: 8})
	},
	"Custom": func(_ *builder, x *gorgonia.Node) (*gorgonia.Node, error) { return square.Apply(x) },
}

// ofImages applies f to x as images of three channels of 2 by 2 pixels.
func ofImages(x *gorgonia.Node, f func(x *gorgonia.Node) (*gorgonia.Node, error)) (*gorgonia.Node, error) {
	x, err := gorgonia.Reshape(x, tensor.Shape{2, 3, 2, 2})
	if err == nil {
		x, err = f(x)
	}
	if err != nil || x.Shape().TotalSize() != 2*3*4 {
		return x, err
	}
	return gorgonia.Reshape(x, xShape)
}

// An argument is one that an operation takes beside x.
type argument struct {
	shape []int
	fixed bool // floats without a gradient
	below int  // if not 0: integers, below it
}

// A builder makes arguments: first it notes which there are, then they are inputs of a module.
type builder struct {
	graph *gorgonia.ExprGraph
	list  []argument
	in    gorgonia.Nodes // those that are left, or nil at first
}

func (b *builder) floats(shape ...int) *gorgonia.Node { return b.take(argument{shape: shape}) }
func (b *builder) fixed(shape ...int) *gorgonia.Node {
	return b.take(argument{shape: shape, fixed: true})
}
func (b *builder) ints(below int, shape ...int) *gorgonia.Node {
	return b.take(argument{shape: shape, below: below})
}

func (b *builder) take(a argument) *gorgonia.Node {
	if b.in != nil {
		n := b.in[0]
		b.in = b.in[1:]
		return n
	}
	b.list = append(b.list, a)
	return gorgonia.NewTensor(b.graph, a.dtype(), len(a.shape), gorgonia.WithShape(a.shape...), gorgonia.WithName(fmt.Sprint("argument ", len(b.list))))
}

func (a argument) dtype() tensor.Dtype {
	if a.below > 0 {
		return tensor.Int
	}
	return tensor.Float64
}

// compose applies operations one after the other, up to one whose result is of another shape.
func (b *builder) compose(names []string) (*gorgonia.Node, error) {
	x := b.floats(xShape...)
	for _, name := range names {
		var err error
		if x, err = every[name](b, x); err != nil || !slices.Equal(x.Shape(), xShape) {
			return x, err
		}
	}
	return x, nil
}

// checkComposition compares the gradients of a composition with central differences.
func checkComposition(t exectest.T, names []string) {
	t.Helper()
	first := &builder{graph: gorgonia.NewGraph()}
	_, err := first.compose(names)
	require.NoError(t, err, names)
	sig := exectest.Signature(tensor.Float64)
	for _, a := range first.list {
		sig.Inputs = append(sig.Inputs, exec.Input{Shape: a.shape, DType: a.dtype(), Grad: a.below == 0 && !a.fixed})
	}
	trial := exectest.New(t, &exec.Spec{Build: func(_ *exec.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
		y, err := (&builder{in: in}).compose(names)
		return gorgonia.Nodes{y}, err
	}}, sig)
	for i, a := range first.list {
		for j := range trial.In[i] {
			if a.below > 0 {
				trial.In[i][j] = float64((3*j + i) % a.below)
			}
		}
	}
	trial.CheckGradients(t)
}

// TestGradients checks each operation.
func TestGradients(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(every)) {
		t.Run(name, func(t *testing.T) { checkComposition(t, []string{name}) })
	}
}

// TestGradientsOfCompositions checks operations one after the other.
func TestGradientsOfCompositions(t *testing.T) {
	names := slices.Sorted(maps.Keys(every))
	rapid.Check(t, func(t *rapid.T) {
		checkComposition(t, rapid.SliceOfN(rapid.SampledFrom(names), 2, 4).Draw(t, "operations"))
	})
}

// TestEveryOperationIsChecked finds the exported functions of this package that make nodes.
func TestEveryOperationIsChecked(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	found := 1 // Custom is no function
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if ok && fn.Recv == nil && fn.Name.IsExported() && !strings.HasSuffix(name, "_test.go") {
				require.True(t, every[fn.Name.Name] != nil, "%s has no line in every", fn.Name.Name)
				require.Regexp(t, `(?m)^//\t.*\b`+fn.Name.Name+`\b`, string(doc), "the list of the package comment")
				found++
			}
		}
	}
	require.Equal(t, len(every), found)
}
