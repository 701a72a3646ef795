package exec

import (
	"math"
	"strings"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

var negRow = &Row{
	Kind: KindNeg, Doc: "-x", Shapes: "x [...] -> y [...]",
	Kernels: Kernels{neg[float32], neg[float64], naiveNeg}, FLOPs: Each(1), InPlace: true, Split: ByElement,
}

func nativeUnary(n *G.Node, kids []*G.Node) *Op {
	if n.Op().String() == "neg" {
		return use(negRow, n.Shape(), kids...)
	}
	return nil
}

func neg[T kernel.Float](f *Frame) error {
	vec.ScaleTo(Data[T](f.Out.Bytes), -1, Data[T](f.In[0].Bytes))
	return nil
}

func naiveNeg(f *Frame) error {
	for i, x := range Data[float64](f.In[0].Bytes) {
		Data[float64](f.Out.Bytes)[i] = -x
	}
	return nil
}

var fromIntRow = &Row{
	Kind: KindFromInt, Doc: "x as floats", Shapes: "x int [...] -> y [...]",
	Kernels: Kernels{fromInt[float32], fromInt[float64], fromInt[float64]}, FLOPs: Each(1), Cheap: true, Split: ByElement,
}

// nativeFromInt converts integers in memory, other than those that Gorgonia computes.
func nativeFromInt(n *G.Node, kids []*G.Node) *Op {
	if kids[0].Dtype() != tensor.Int || isHost(kids[0]) {
		return nil
	}
	return use(fromIntRow, n.Shape(), kids...)
}

func fromInt[T kernel.Float](f *Frame) error {
	y := Data[T](f.Out.Bytes)
	for i, x := range Data[int](f.In[0].Bytes) {
		y[i] = T(x)
	}
	return nil
}

// Binary is the attribute of KindBinary: the sign of the operation, one of + - ⊙ ÷ < > <= >= == != min max.
type Binary struct{ Sign string }

var signs = map[string]bool{"+": true, "-": true, "⊙": true, "÷": true, "<": true, ">": true, "<=": true, ">=": true, "==": true, "!=": true}

var binaryRow = &Row{
	Kind: KindBinary, Attr: Binary{}, Doc: "a and b, element by element; either may be a single number. A comparison is 1 or 0",
	Shapes:  "a, b -> y [*]",
	Kernels: Kernels{elementwise[float32], elementwise[float64], naiveElementwise},
	FLOPs:   func(o *Op) int { return Numel(o.Shape) }, InPlace: true, Split: ByElement,
}

func nativeBinary(n *G.Node, kids []*G.Node) *Op {
	switch sign, _, _ := strings.Cut(n.Op().String(), " "); {
	case sign == "+" && kids[0].Shape().Eq(kids[1].Shape()):
		return use(addRow, n.Shape(), kids...)
	case signs[sign]:
		return useWith(binaryRow, Binary{sign}, n, kids)
	}
	return nil
}

func elementwise[T kernel.Float](f *Frame) error {
	y, a, b := Data[T](f.Out.Bytes), Data[T](f.In[0].Bytes), Data[T](f.In[1].Bytes)
	sa, sb := stride(a, y), stride(b, y)
	sign := f.Op.Attrs.(Binary).Sign
	switch {
	case sign == "+":
		for i := range y {
			y[i] = a[i*sa] + b[i*sb]
		}
	case sign == "-":
		for i := range y {
			y[i] = a[i*sa] - b[i*sb]
		}
	case sign == "⊙" && sb == 0:
		vec.ScaleTo(y, b[0], a)
	case sign == "⊙":
		for i := range y {
			y[i] = a[i*sa] * b[i*sb]
		}
	case sign == "÷":
		for i := range y {
			y[i] = a[i*sa] / b[i*sb]
		}
	case sign == "min":
		for i := range y {
			y[i] = min(a[i*sa], b[i*sb])
		}
	case sign == "max":
		for i := range y {
			y[i] = max(a[i*sa], b[i*sb])
		}
	default:
		for i := range y {
			y[i] = compare(sign, a[i*sa], b[i*sb])
		}
	}
	return nil
}

// stride is 0 for a single number, which every element of y takes.
func stride[T kernel.Float](a, y []T) int {
	if len(a) < len(y) {
		return 0
	}
	return 1
}

func compare[T kernel.Float](sign string, a, b T) T {
	var is bool
	switch sign {
	case "<":
		is = a < b
	case ">":
		is = a > b
	case "<=":
		is = a <= b
	case ">=":
		is = a >= b
	case "==":
		is = a == b
	default:
		is = a != b
	}
	if is {
		return 1
	}
	return 0
}

func naiveElementwise(f *Frame) error {
	y, a, b := Data[float64](f.Out.Bytes), Data[float64](f.In[0].Bytes), Data[float64](f.In[1].Bytes)
	for i := range y {
		a, b := a[i%len(a)], b[i%len(b)]
		switch sign := f.Op.Attrs.(Binary).Sign; sign {
		case "+":
			y[i] = a + b
		case "-":
			y[i] = a - b
		case "⊙":
			y[i] = a * b
		case "÷":
			y[i] = a / b
		case "min":
			y[i] = math.Min(a, b)
		case "max":
			y[i] = math.Max(a, b)
		default:
			y[i] = compare(sign, a, b)
		}
	}
	return nil
}
