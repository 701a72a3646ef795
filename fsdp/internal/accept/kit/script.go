package kit

import (
	"errors"
	"strings"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/optim"
)

// ErrOops is the error that is injected.
var ErrOops = errors.New("the disk is full")

// UnevenBatch is a batch of a rank for a seed. The number of rows differs between ranks.
func UnevenBatch(seed, rank int) []fsdp.Tensor {
	rows := 2 + (seed+rank)%3
	return []fsdp.Tensor{Floats(100*seed+2*rank, rows, ShapeDim), Floats(100*seed+2*rank+1, rows, ShapeDim)}
}

// A Setting is knobs and other settings.
type Setting struct {
	Knobs
	InFlight int
	Ignored  bool
	Strict   bool
}

// ScriptRate and the other constants define the trainings of scripts.
const (
	ScriptRate, ScriptMomentum, ScriptDecay = 0.05, 0.9, 0.01
	ScriptLimit                             = 0.2 // of the gradient norm

	ScriptLength = 24 // deeds
)

// Freezable are choices of frozen parameters.
var Freezable = []func(name string) bool{
	func(string) bool { return false },
	func(name string) bool {
		return strings.HasPrefix(name, "l1") || name == "cell.v" || name == "c.own" || name == "b.w"
	},
	func(name string) bool { return strings.HasSuffix(name, "bias") || name == "l0.w" || name == "a.w" },
}

// ScriptModel returns one of Shapes, or Statistics.
func ScriptModel(name string) fsdp.Model {
	if name == "statistics" {
		return Statistics
	}
	return Shapes[name]
}

// ScriptOptimizer makes the optimizer of scripts.
var ScriptOptimizer = optim.SGD{Momentum: ScriptMomentum, WeightDecay: ScriptDecay}.New
