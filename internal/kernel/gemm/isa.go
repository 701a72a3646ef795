package gemm

// isa is an instruction set: its name, and an engine for each element type.
type isa struct {
	name string
	f32  engine[float32]
	f64  engine[float64]
}

// active is what products run on: the best that this machine has. Only tests change it.
var active = supported()[0]

// engineOf returns the active engine for the element type T.
func engineOf[T Float]() *engine[T] {
	if e, ok := any(&active.f32).(*engine[T]); ok {
		return e
	}
	return any(&active.f64).(*engine[T])
}
