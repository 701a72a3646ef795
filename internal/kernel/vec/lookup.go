package vec

import (
	"sync"

	"github.com/gofsdp/gofsdp/internal/half"
)

// An activation of bfloat16 has 65,536 arguments. So its values and its slopes in float32 are in
// tables, with the bits of the float32 kernel. A lookup takes a third of the time of the
// computation. A table has 256 KiB; the arguments of a layer use a few KiB of it.
var lookups = [gates]tables{
	GateSiLU:     newTables(GateSiLU, SiLU[float32], SiLUGrad[float32]),
	GateGELUErf:  newTables(GateGELUErf, GELUErf[float32], GELUErfGrad[float32]),
	GateGELUTanh: newTables(GateGELUTanh, GELUTanh[float32], GELUTanhGrad[float32]),
	GateSigmoid:  newTables(GateSigmoid, Sigmoid[float32], SigmoidGrad[float32]),
}

// tables are the tables of an activation, which are made at their first use. The kernel of a
// gated linear unit rounds some of its slopes and values differently, so it has its own.
type tables struct {
	values, slopes func() []float32
	glu            func() (slopes, values []float32)
}

func newTables(gate Gate, value func(y, x []float32), grad func(dx, x, dy []float32)) tables {
	return tables{
		values: sync.OnceValue(func() []float32 {
			y := arguments()
			value(y, y)
			return y
		}),
		slopes: sync.OnceValue(func() []float32 {
			y := ones()
			grad(y, arguments(), y)
			return y
		}),
		glu: sync.OnceValues(func() (slopes, values []float32) {
			slopes, values = ones(), ones()
			GLUGrad(gate, slopes, values, arguments(), values, slopes)
			return slopes, values
		}),
	}
}

// arguments returns all bfloat16, in the order of their bits.
func arguments() []float32 {
	x := make([]float32, 1<<16)
	for i := range x {
		x[i] = half.BFloat16(i).Float32()
	}
	return x
}

func ones() []float32 {
	x := make([]float32, 1<<16)
	Fill(x, 1)
	return x
}

// lookup sets y to an activation of x.
func lookup(gate Gate, y, x []half.BFloat16) bool {
	k := active.low.lookup
	same("activation", len(y), len(x))
	if k == nil {
		return false
	}
	table := lookups[gate].values()
	for i := 0; i < len(y); i += piece {
		j := min(i+piece, len(y))
		k(y[i:j], x[i:j], table)
	}
	return true
}

// lookupGrad sets dx to dy times the slope of an activation at x.
func lookupGrad(gate Gate, dx, x, dy []half.BFloat16) bool {
	k := active.low.lookupTimes
	same("gradient of an activation", len(dx), len(x), len(dy))
	if k == nil {
		return false
	}
	table := lookups[gate].slopes()
	for i := 0; i < len(dx); i += piece {
		j := min(i+piece, len(dx))
		k(dx[i:j], x[i:j], dy[i:j], table)
	}
	return true
}
