package vec

import kernel "github.com/gofsdp/gofsdp/internal/kernel/vec"

// AdamVec is a [Vec] with the update of optim.Adam and optim.AdamW.
type AdamVec interface {
	Vec
	// Adam updates the elements (the parameter p) and the moments m and v from gradient g by the
	// formulas of optim.Adam and optim.AdamW. g, m and v have the length, type and
	// implementation of p. The four share no memory. If there are no elements, Adam does
	// nothing.
	Adam(g, m, v Vec, s AdamStep) error
}

// AdamStep holds the numbers for update t of a parameter by an [AdamVec].
type AdamStep struct {
	LR, WeightDecay     float64
	Beta1, Beta2, Eps   float64
	BiasCorrection1     float64  // 1 - Beta1^t
	BiasCorrection2Sqrt float64  // √(1 - Beta2^t)
	Decoupled           bool     // AdamW
	Round               Rounding // of values that are bfloat16, see [Host16]
}

// Adam implements [AdamVec].
func (h Host) Adam(g, m, v Vec, s AdamStep) error {
	grad, factor := scaled(g)
	first, second := m.(Host), v.(Host)
	if h.F64 != nil {
		kernel.Adam(h.F64, grad.F64, first.F64, second.F64, s.hyper(factor))
	} else {
		kernel.Adam(h.F32, grad.F32, first.F32, second.F32, s.hyper(factor))
	}
	return nil
}

// scaled returns the memory of a gradient and its factor. See Scaled in the documentation of [Vec].
func scaled(g Vec) (Host, float64) {
	if g, ok := g.(interface{ Scaled() (Host, float64) }); ok {
		return g.Scaled()
	}
	return g.(Addressable).Elements(), 1
}

func (s *AdamStep) hyper(factor float64) kernel.AdamHyper {
	return kernel.AdamHyper{
		LR: s.LR, Beta1: s.Beta1, Beta2: s.Beta2, Eps: s.Eps, WeightDecay: s.WeightDecay,
		BiasCorrection1: s.BiasCorrection1, BiasCorrection2Sqrt: s.BiasCorrection2Sqrt,
		GradScale: factor, Decoupled: s.Decoupled,
	}
}

// Adam8Vec is an [AdamVec] with the update of optim.Adam and optim.AdamW for 8-bit moments.
type Adam8Vec interface {
	AdamVec
	// Adam8 is Adam with 8-bit moments m and v, in the format of optim.Blockwise, for the elements
	// from offset on of a parameter. m and v are vectors of float32. They contain 4 bytes for each
	// block that p overlaps, its largest magnitude, and then one byte for each element, its code,
	// padded to a multiple of 4 bytes. m has codes of numbers of both signs, v codes of non-negative
	// numbers.
	Adam8(g, m, v Vec, offset int, s AdamStep) error
}

// Adam8 implements [Adam8Vec].
func (h Host) Adam8(g, m, v Vec, offset int, s AdamStep) error {
	n := len(h.F32)
	first := kernel.NewBlocks8(m.(Host).F32, offset, n, false)
	second := kernel.NewBlocks8(v.(Host).F32, offset, n, true)
	grad, factor := scaled(g)
	kernel.Adam8(h.F32, grad.F32, first, second, s.hyper(factor))
	return nil
}

// BFloat16Vec is a [Vec] of float32 with the updates of optim.Adam, optim.AdamW and optim.SGD for
// state in bfloat16, in the format of optim.BFloat16. State is a vector of float32 with the length
// of p / 2, rounded up. It contains 2 bytes for each element. If their number is odd, 2 bytes
// follow that an update does not change.
type BFloat16Vec interface {
	AdamVec
	SGDVec
	// Adam16 is Adam with moments in bfloat16. It rounds m with the Key of r, and v with Key + 1.
	Adam16(g, m, v Vec, r Rounding, s AdamStep) error
	// SGD16 is SGD with momentum, which is in bfloat16.
	SGD16(g, b Vec, r Rounding, s SGDStep) error
}

// Rounding determines how the updates of a [BFloat16Vec] round a number between two values of
// bfloat16, so that the expected result is the number: they add 16 random bits to its lower 16
// bits, and clear these. A carry rounds away from zero. NaN does not change. The bits for element i
// are the upper half of the hash of a counter and two keys, with arithmetic modulo 2³² and 2⁶⁴:
//
//	j = Offset + i, as 64 bits
//	k = mix64(Key ^ mix64(j >> 32))              mix64: SplitMix64
//	h = low(j) + low(k)                          low and high: 32 bits each
//	h = (h ^ h>>16) · 0x7FEB352D ^ high(k)
//	h = (h ^ h>>15) · 0x846CA68B
//	h = h ^ h>>16
type Rounding struct {
	Key    uint64 // of the parameter and the number of the update
	Offset int    // of the first element in the parameter
}

// Adam16 implements [BFloat16Vec].
func (h Host) Adam16(g, m, v Vec, r Rounding, s AdamStep) error {
	n := len(h.F32)
	grad, factor := scaled(g)
	kernel.Adam16(h.numbers(), grad.numbers(), r.halves(m, n, 0), r.halves(v, n, 1), uint64(r.Offset), s.hyper(factor))
	return nil
}

// SGD16 implements [BFloat16Vec].
func (h Host) SGD16(g, b Vec, r Rounding, s SGDStep) error {
	grad, factor := scaled(g)
	kernel.SGD16(h.numbers(), grad.numbers(), r.halves(b, len(h.F32), 0), uint64(r.Offset), s.hyper(factor))
	return nil
}

func (h Host) numbers() kernel.Numbers { return kernel.Numbers{F32: h.F32} }

// halves returns the n numbers of bfloat16 in state, rounded with Key + more.
func (r Rounding) halves(state Vec, n int, more uint64) kernel.Numbers {
	return kernel.Numbers{F16: kernel.Halves(state.(Host).F32, n), Seed: r.Key + more}
}

// SGDVec is a [Vec] with the update of optim.SGD.
type SGDVec interface {
	Vec
	// SGD updates the elements (the parameter p) and the momentum b from gradient g by the formulas
	// of optim.SGD. b is nil if Momentum is zero. g and b have the length, type and implementation of
	// p. The three share no memory. If there are no elements, SGD does nothing. If g is the value of a
	// parameter in bfloat16, and p its average, p is of the implementation of state.
	SGD(g, b Vec, s SGDStep) error
}

// SGDStep holds the numbers of one update by an [SGDVec]. EMA of package optim uses negative LR and
// WeightDecay.
type SGDStep struct {
	LR, WeightDecay float64
	Momentum        float64
	Nesterov        bool
	First           bool     // the parameter's own first update: b = g, whatever b held
	Round           Rounding // of values that are bfloat16, see [Host16]
}

// SGD implements [SGDVec].
func (h Host) SGD(g, b Vec, s SGDStep) error {
	if g, ok := g.(Host16); ok { // an average follows values
		kernel.SGD16(h.numbers(), g.numbers(Rounding{}), kernel.Numbers{}, 0, s.hyper(1))
		return nil
	}
	grad, factor := scaled(g)
	buf, _ := b.(Host) // empty without momentum
	if h.F64 != nil {
		kernel.SGD(h.F64, grad.F64, buf.F64, s.hyper(factor))
	} else {
		kernel.SGD(h.F32, grad.F32, buf.F32, s.hyper(factor))
	}
	return nil
}

func (s *SGDStep) hyper(factor float64) kernel.SGDHyper {
	return kernel.SGDHyper{
		LR: s.LR, Momentum: s.Momentum, WeightDecay: s.WeightDecay, GradScale: factor,
		Nesterov: s.Nesterov, First: s.First,
	}
}
