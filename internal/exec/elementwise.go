package exec

import (
	"math"
	"slices"
	"strings"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/kernel/bf16"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// Unary is the attribute of KindUnary: Gorgonia's name of the function.
type Unary struct {
	Name string
	*function
}

// String returns the name in parentheses.
func (u Unary) String() string { return "(" + u.Name + ")" }

// A function is a function that KindUnary computes.
type function struct {
	f32    func(y, x []float32)
	f64    func(y, x []float64)
	define func(x float64) float64
	flops  int
}

// functions are Gorgonia's unary functions. In float32, exp, ln, tanh, sigmoid and the other
// functions of package vec are as exact as that package documents. All others are rounded from
// float64. The sign of 0 is 0.
var functions = map[string]*function{
	"abs":      {vec.Abs[float32], vec.Abs[float64], math.Abs, 1},
	"neg":      {negate[float32], negate[float64], func(x float64) float64 { return -x }, 1},
	"sqrt":     {vec.Sqrt[float32], vec.Sqrt[float64], math.Sqrt, 1},
	"square":   {vec.Square[float32], vec.Square[float64], func(x float64) float64 { return x * x }, 1},
	"cube":     {vec.Cube[float32], vec.Cube[float64], func(x float64) float64 { return x * x * x }, 2},
	"inv":      {vec.Inverse[float32], vec.Inverse[float64], func(x float64) float64 { return 1 / x }, 1},
	"invSqrt":  {inverseSqrt[float32], inverseSqrt[float64], func(x float64) float64 { return 1 / math.Sqrt(x) }, 2},
	"exp":      {vec.Exp[float32], vec.Exp[float64], math.Exp, 1},
	"ln":       {vec.Log[float32], vec.Log[float64], math.Log, 1},
	"tanh":     {vec.Tanh[float32], vec.Tanh[float64], math.Tanh, 1},
	"sigmoid":  {vec.Sigmoid[float32], vec.Sigmoid[float64], func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }, 4},
	"sign":     each(sign, 1),
	"ceil":     each(math.Ceil, 1),
	"floor":    each(math.Floor, 1),
	"sin":      each(math.Sin, 1),
	"cos":      each(math.Cos, 1),
	"log2":     each(math.Log2, 1),
	"log1p":    each(math.Log1p, 2),
	"expm1":    each(math.Expm1, 2),
	"softplus": each(func(x float64) float64 { return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }, 3),
}

// each returns a function that is computed in float64, element by element.
func each(f func(float64) float64, flops int) *function {
	return &function{eachOf[float32](f), eachOf[float64](f), f, flops}
}

func eachOf[T kernel.Float](f func(float64) float64) func(y, x []T) {
	return func(y, x []T) {
		for i, v := range x {
			y[i] = T(f(float64(v)))
		}
	}
}

func negate[T kernel.Float](y, x []T) { vec.ScaleTo(y, -1, x) }

func inverseSqrt[T kernel.Float](y, x []T) {
	vec.Sqrt(y, x)
	vec.Inverse(y, y)
}

func sign(x float64) float64 {
	switch {
	case x > 0:
		return 1
	case x < 0:
		return -1
	}
	return x
}

var unaryRow = &Row{
	Kind: KindUnary, Attr: Unary{}, Shapes: "x [...] -> y [...]",
	Doc: "a function of x: abs sign ceil floor neg inv square cube sqrt invSqrt exp expm1 ln log1p log2 sin cos tanh sigmoid softplus",
	Kernels: Kernels{
		func(f *Frame) error {
			f.function().f32(Data[float32](f.Out.Bytes), Data[float32](f.In[0].Bytes))
			return nil
		},
		func(f *Frame) error {
			f.function().f64(Data[float64](f.Out.Bytes), Data[float64](f.In[0].Bytes))
			return nil
		},
		naiveUnary,
	},
	BF16: func(f *Frame) error {
		bf16.Unary(nil, f.function().f32, Data[half.BFloat16](f.Out.Bytes), Data[half.BFloat16](f.In[0].Bytes), Data[float32](f.Scratch))
		return nil
	},
	BF16Scratch: ElementScratch,
	FLOPs:       func(o *Op) int { return o.Attrs.(Unary).flops * Numel(o.Shape) },
	InPlace:     true, Split: ByElement, Diff: 1, Grad: unaryGrad,
}

func (f *Frame) function() *function { return f.Op.Attrs.(Unary).function }

func nativeUnary(n *G.Node, kids []*G.Node) *Op {
	name := n.Op().String()
	return useWith(unaryRow, Unary{name, functions[name]}, n, kids)
}

// replaceFunction replaces functions for which Gorgonia has a wrong derivative. unaryGrad has the
// right one.
func replaceFunction(n *G.Node, kids []*G.Node) (*G.Node, error) {
	if name := n.Op().String(); name != "invSqrt" && name != "log2" {
		return nil, nil
	}
	return G.ApplyOp(native(n.Graph(), n), kids...)
}

func unaryGrad(o *Op, in G.Nodes, y, dy *G.Node) (G.Nodes, error) {
	number := func(v float64) *G.Node {
		if dy.Dtype() == G.Float32 {
			return dy.Graph().AddNode(G.NewConstant(float32(v)))
		}
		return dy.Graph().AddNode(G.NewConstant(v))
	}
	divisor, factor := in[0], math.Ln2 // of log2, dy/(x·ln 2)
	if o.Attrs.(Unary).Name == "invSqrt" {
		root, err := G.Sqrt(in[0]) // dy/(-2·x·√x)
		if err != nil {
			return nil, err
		}
		if divisor, err = G.HadamardProd(in[0], root); err != nil {
			return nil, err
		}
		factor = -2
	}
	divisor, err := G.HadamardProd(divisor, number(factor))
	if err != nil {
		return nil, err
	}
	dx, err := G.HadamardDiv(dy, divisor)
	return G.Nodes{dx}, err
}

func naiveUnary(f *Frame) error {
	for i, x := range Data[float64](f.In[0].Bytes) {
		Data[float64](f.Out.Bytes)[i] = f.function().define(x)
	}
	return nil
}

var fromIntRow = &Row{
	Kind: KindFromInt, Doc: "x as floats", Shapes: "x int [...] -> y [...]",
	Kernels: Kernels{fromInt[float32], fromInt[float64], fromInt[float64]}, FLOPs: Each(1), Cheap: true, Split: ByElement,
}

// nativeFromInt converts integers in memory, except those that Gorgonia computes.
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

// Binary is the attribute of KindBinary: the sign of the operation, one of + - ⊙ ÷ ^ < > <= >= == != min max.
type Binary struct {
	Sign string
	*pairing
}

// String returns the sign in parentheses.
func (b Binary) String() string { return "(" + b.Sign + ")" }

func operator(sign string) Binary { return Binary{sign, pairings[sign]} }

// A pairing is a binary operation that KindBinary computes.
type pairing struct {
	f32    func(z, x, y []float32)
	f64    func(z, x, y []float64)
	define func(x, y float64) float64
}

var pairings = map[string]*pairing{
	"+":   {vec.Add[float32], vec.Add[float64], func(x, y float64) float64 { return x + y }},
	"-":   {vec.Sub[float32], vec.Sub[float64], func(x, y float64) float64 { return x - y }},
	"⊙":   {vec.Mul[float32], vec.Mul[float64], func(x, y float64) float64 { return x * y }},
	"÷":   {vec.Div[float32], vec.Div[float64], func(x, y float64) float64 { return x / y }},
	"^":   {power[float32], power[float64], math.Pow},
	"<":   {vec.Less[float32], vec.Less[float64], truth(func(x, y float64) bool { return x < y })},
	">":   {swapped(vec.Less[float32]), swapped(vec.Less[float64]), truth(func(x, y float64) bool { return x > y })},
	"<=":  {vec.LessOrEqual[float32], vec.LessOrEqual[float64], truth(func(x, y float64) bool { return x <= y })},
	">=":  {swapped(vec.LessOrEqual[float32]), swapped(vec.LessOrEqual[float64]), truth(func(x, y float64) bool { return x >= y })},
	"==":  {vec.Equal[float32], vec.Equal[float64], truth(func(x, y float64) bool { return x == y })},
	"!=":  {vec.NotEqual[float32], vec.NotEqual[float64], truth(func(x, y float64) bool { return x != y })},
	"min": {vec.Lesser[float32], vec.Lesser[float64], math.Min},
	"max": {vec.Greater[float32], vec.Greater[float64], math.Max},
}

func swapped[T kernel.Float](f func(z, x, y []T)) func(z, x, y []T) {
	return func(z, x, y []T) { f(z, y, x) }
}

func truth(f func(x, y float64) bool) func(x, y float64) float64 {
	return func(x, y float64) float64 {
		if f(x, y) {
			return 1
		}
		return 0
	}
}

// power is exact for the most common exponents, as in squares and their derivatives.
func power[T kernel.Float](z, x, y []T) {
	for i, exponent := range y {
		switch exponent {
		case 1:
			z[i] = x[i]
		case 2:
			z[i] = x[i] * x[i]
		default:
			z[i] = T(math.Pow(float64(x[i]), float64(exponent)))
		}
	}
}

var binaryRow = &Row{
	Kind: KindBinary, Attr: Binary{}, Doc: "a and b, element by element; either may be a single number. A comparison is 1 or 0",
	Shapes: "a any, b any -> y [*]",
	Kernels: Kernels{
		func(f *Frame) error { return runBinary(f, f.pairing().f32) },
		func(f *Frame) error { return runBinary(f, f.pairing().f64) },
		naiveBinary,
	},
	BF16: binaryHalf, BF16Scratch: ElementScratch,
	FLOPs:   func(o *Op) int { return Numel(o.Shape) },
	Scratch: func(o *Op) int { return min(Numel(o.Shape), numberBlock) },
	InPlace: true, Split: ByElement,
}

func (f *Frame) pairing() *pairing { return f.Op.Attrs.(Binary).pairing }

func nativeBinary(n *G.Node, kids []*G.Node) *Op {
	sign, _, _ := strings.Cut(n.Op().String(), " ")
	if sign == "+" && kids[0].Shape().Eq(kids[1].Shape()) {
		return use(addRow, n.Shape(), kids...)
	}
	return useWith(binaryRow, operator(sign), n, kids)
}

// arithmetic has the differentiable binary operations, by their signs.
var arithmetic = map[string]func(a, b *G.Node) (*G.Node, error){
	"+": G.Add, "-": G.Sub, "⊙": G.HadamardProd, "÷": G.HadamardDiv, "^": G.Pow,
}

// replaceBinary gives two arguments the same shape. Gorgonia treats a vector and a matrix of one
// row or column as equal, and then its gradients do not have the shapes of the arguments.
func replaceBinary(n *G.Node, kids []*G.Node) (*G.Node, error) {
	sign, _, _ := strings.Cut(n.Op().String(), " ")
	apply := arithmetic[sign]
	if apply == nil || kids[0].IsScalar() || kids[1].IsScalar() || slices.Equal(kids[0].Shape(), kids[1].Shape()) {
		return nil, nil
	}
	var like [2]*G.Node
	for i, x := range kids {
		var err error
		if like[i], err = shaped(x, n.Shape()); err != nil {
			return nil, err
		}
	}
	return apply(like[0], like[1])
}

// numberBlock is how many copies of a single number are written to scratch memory, to stand for an
// argument of that length.
const numberBlock = 1024

func runBinary[T kernel.Float](f *Frame, run func(z, x, y []T)) error {
	z, x, y := Data[T](f.Out.Bytes), Data[T](f.In[0].Bytes), Data[T](f.In[1].Bytes)
	if len(x) == len(z) && len(y) == len(z) {
		run(z, x, y)
		return nil
	}
	number := Data[T](f.Scratch)
	if len(x) < len(z) {
		vec.Fill(number, x[0])
	} else {
		vec.Fill(number, y[0])
	}
	for lo := 0; lo < len(z); lo += len(number) {
		hi := min(lo+len(number), len(z))
		if len(x) < len(z) {
			run(z[lo:hi], number[:hi-lo], y[lo:hi])
		} else {
			run(z[lo:hi], x[lo:hi], number[:hi-lo])
		}
	}
	return nil
}

// binaryHalf runs a binary operation on arguments in bfloat16 and float32.
func binaryHalf(f *Frame) error {
	z, scratch, run := Data[half.BFloat16](f.Out.Bytes), Data[float32](f.Scratch), f.pairing().f32
	block := len(scratch) / 2
	for lo := 0; lo < len(z); lo += block {
		hi := min(lo+block, len(z))
		wide := scratch[:hi-lo]
		run(wide, f.widened(0, wide, lo), f.widened(1, scratch[block:][:hi-lo], lo))
		half.Narrow(z[lo:hi], wide)
	}
	return nil
}

// widened returns the elements of argument i from lo on in float32, at most len(room) of them.
func (f *Frame) widened(i int, room []float32, lo int) []float32 {
	v := f.In[i]
	single := Numel(v.Shape) < Numel(f.Op.Shape)
	switch {
	case single && v.Form.Half:
		vec.Fill(room, Data[half.BFloat16](v.Bytes)[0].Float32())
	case single:
		vec.Fill(room, Data[float32](v.Bytes)[0])
	case v.Form.Half:
		half.Widen(room, Data[half.BFloat16](v.Bytes)[lo:])
	default:
		return Data[float32](v.Bytes)[lo:][:len(room)]
	}
	return room
}

func naiveBinary(f *Frame) error {
	z, x, y := Data[float64](f.Out.Bytes), Data[float64](f.In[0].Bytes), Data[float64](f.In[1].Bytes)
	for i := range z {
		z[i] = f.pairing().define(x[i%len(x)], y[i%len(y)])
	}
	return nil
}
