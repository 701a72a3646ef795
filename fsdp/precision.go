package fsdp

import (
	"fmt"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
)

// Precision says in which types a model computes and communicates. Whatever else is chosen, the
// rank that owns a parameter keeps it in Compute type: that is what the optimizer updates and what
// FullState and checkpoints hold.
//
// On CPU a model always computes in Compute type: parameters that travel in 16 bits are widened
// when they arrive. So BFloat16 halves the traffic and rounds the parameters that forward and
// backward see, as training in bfloat16 does. It does not make the computation faster, and a
// gathered unit takes as much memory as in Compute type.
type Precision struct {
	// Compute is the type of parameters, gradients and activations: Float32 or Float64.
	Compute DType
	// Gather is the type in which parameters travel to the ranks that need them: BFloat16, Float16,
	// or Compute, which the zero value stands for. 16 bits need Compute to be Float32.
	Gather DType
	// Reduce is the type in which gradients travel, with the same choices. Sums of BFloat16 and
	// Float16 are taken in Float32 and rounded once, under HybridShard twice. With Float16,
	// gradients are divided by a part of the divisor before the sum and by the rest after it,
	// against overflow. A gradient that overflows all the same becomes infinite, which
	// [Sharded.Unscale] and ClipGradNorm notice.
	Reduce DType
	// Full tells which parameters travel in Compute type regardless. Nil means those whose
	// Param.Full is set, as the norms of package nn do.
	Full func(c CallInfo, p Param) bool
}

// String returns the fields that are set.
func (p Precision) String() string { return setFields(p) }

// DType is an element type.
type DType uint8

// The element types. The zero value is Float32.
const (
	Float32 DType = iota
	Float64
	BFloat16
	Float16
)

// String returns the type's name in lower case.
func (d DType) String() string {
	names := [...]string{"float32", "float64", "bfloat16", "float16"}
	if int(d) < len(names) {
		return names[d]
	}
	return fmt.Sprintf("DType(%d)", uint8(d))
}

// comm returns the type for collectives.
func (d DType) comm() comm.DType {
	return [...]comm.DType{Float32: comm.Float32, Float64: comm.Float64, BFloat16: comm.BFloat16, Float16: comm.Float16}[d]
}

// tensor returns the type for Gorgonia, which has none of 16 bits.
func (d DType) tensor() tensor.Dtype {
	if d == Float64 {
		return tensor.Float64
	}
	return tensor.Float32
}

// withDefaults returns p with zero values replaced, or what is wrong with it.
func (p Precision) withDefaults() (Precision, error) {
	if p.Compute != Float32 && p.Compute != Float64 {
		return p, fmt.Errorf("Config.Precision.Compute is %v: want Float32 or Float64", p.Compute)
	}
	for _, f := range []struct {
		name string
		t    *DType
	}{{"Gather", &p.Gather}, {"Reduce", &p.Reduce}} {
		switch {
		case *f.t == Float32:
			*f.t = p.Compute
		case *f.t == p.Compute:
		case *f.t != BFloat16 && *f.t != Float16:
			return p, fmt.Errorf("Config.Precision.%s is %v: want BFloat16, Float16 or the type of Compute", f.name, *f.t)
		case p.Compute != Float32:
			return p, fmt.Errorf("Config.Precision.%s is %v, which needs Compute to be Float32, not %v", f.name, *f.t, p.Compute)
		}
	}
	if p.Full == nil {
		p.Full = func(_ CallInfo, q Param) bool { return q.Full }
	}
	return p, nil
}

// finite tells whether v is a finite number in Compute type.
func (p Precision) finite(v float64) bool {
	if p.Compute == Float32 {
		v = float64(float32(v))
	}
	return v-v == 0
}

// narrow tells whether any parameter or gradient may travel in fewer bits than it is computed in.
func (p Precision) narrow() bool { return p.Gather != p.Compute || p.Reduce != p.Compute }
