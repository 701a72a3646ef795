package vec

// Sub sets dst = a - b.
func Sub[T Float](dst, a, b []T) { each3("Sub", table[T]().sub, dst, a, b) }

// Mul sets dst = a · b, element by element.
func Mul[T Float](dst, a, b []T) { each3("Mul", table[T]().mul, dst, a, b) }

// Div sets dst = a / b.
func Div[T Float](dst, a, b []T) { each3("Div", table[T]().div, dst, a, b) }

// Lesser sets dst = min(a, b) as in Go: NaN if either is NaN, and -0 is below 0.
func Lesser[T Float](dst, a, b []T) { each3("Lesser", table[T]().lesser, dst, a, b) }

// Greater sets dst = max(a, b) as in Go: NaN if either is NaN, and 0 is above -0.
func Greater[T Float](dst, a, b []T) { each3("Greater", table[T]().greater, dst, a, b) }

// Less sets dst to 1 where a < b, and to 0 elsewhere.
func Less[T Float](dst, a, b []T) { each3("Less", table[T]().less, dst, a, b) }

// LessOrEqual sets dst to 1 where a <= b, and to 0 elsewhere.
func LessOrEqual[T Float](dst, a, b []T) { each3("LessOrEqual", table[T]().lessOrEqual, dst, a, b) }

// Equal sets dst to 1 where a == b, and to 0 elsewhere.
func Equal[T Float](dst, a, b []T) { each3("Equal", table[T]().equal, dst, a, b) }

// NotEqual sets dst to 1 where a != b, and to 0 elsewhere. A NaN differs from everything.
func NotEqual[T Float](dst, a, b []T) { each3("NotEqual", table[T]().notEqual, dst, a, b) }

// Abs sets y = |x|.
func Abs[T Float](y, x []T) { each2("Abs", table[T]().abs, y, x) }

// Sqrt sets y = √x, correctly rounded.
func Sqrt[T Float](y, x []T) { each2("Sqrt", table[T]().sqrt, y, x) }

// Square sets y = x².
func Square[T Float](y, x []T) { each2("Square", table[T]().square, y, x) }

// Cube sets y = (x·x)·x, both products rounded.
func Cube[T Float](y, x []T) { each2("Cube", table[T]().cube, y, x) }

// Inverse sets y = 1/x.
func Inverse[T Float](y, x []T) { each2("Inverse", table[T]().inverse, y, x) }

// Exp sets y = eˣ. In float32 its error is at most 1.2 units in the last place; results below the
// normal numbers are denormal or 0.
func Exp[T Float](y, x []T) { each2("Exp", table[T]().exp, y, x) }

// Log sets y = ln x: -Inf for 0 and NaN for negative numbers. In float32 its error is at most 1.2
// units in the last place.
func Log[T Float](y, x []T) { each2("Log", table[T]().log, y, x) }

// Tanh sets y = tanh x. In float32 its error is at most 2.5 units in the last place.
func Tanh[T Float](y, x []T) { each2("Tanh", table[T]().tanh, y, x) }

// Sigmoid sets y = 1/(1 + e⁻ˣ). In float32 its error is at most 2.5 units in the last place, and
// results below the normal numbers may be 0.
func Sigmoid[T Float](y, x []T) { each2("Sigmoid", table[T]().sigmoid, y, x) }
