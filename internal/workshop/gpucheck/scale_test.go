//go:build gpu && linux && cgo

package gpucheck

import (
	"flag"
	"fmt"
	"time"
)

var scaleName = flag.String("scale", "full", "how large models and kernels are that are measured: full, or tiny to see that all of it runs")

// A size is that of a model and its batch.
type size struct{ Batch, Context, Layers, Dim, Heads, Vocab int }

// sizing is what a scale means.
type sizing struct {
	rates, curve, training size
	attention              [][]int // PyTorch's: batch, heads, tokens, channels of a head
	paritySteps            int
	curveSteps             int
	trainingSteps          int           // of a turn
	turns                  int           // of each contestant
	patience               time.Duration // with a kernel
}

var scales = map[string]sizing{
	"full": {
		rates:       size{Batch: 16, Context: 1024, Dim: 1600, Heads: 25, Vocab: 50304},
		curve:       size{Batch: 8, Context: 1024, Layers: 12, Dim: 768, Heads: 12, Vocab: 50304},
		training:    size{Batch: 16, Context: 1024, Layers: 48, Dim: 1600, Heads: 25, Vocab: 50304},
		attention:   [][]int{{16, 25, 1024, 64}, {2, 32, 8192, 128}},
		paritySteps: 5, curveSteps: 200, trainingSteps: 10, turns: 3, patience: 20 * time.Millisecond,
	},
	"tiny": {
		rates:       size{Batch: 1, Context: 16, Dim: 32, Heads: 2, Vocab: 48},
		curve:       size{Batch: 1, Context: 16, Layers: 1, Dim: 32, Heads: 2, Vocab: 520},
		training:    size{Batch: 1, Context: 16, Layers: 1, Dim: 32, Heads: 2, Vocab: 520},
		attention:   [][]int{{1, 2, 16, 16}},
		paritySteps: 2, curveSteps: 3, trainingSteps: 2, turns: 2,
	},
}

func scale() sizing { return scales[*scaleName] }

// report prints a figure. The script collects lines that begin so into a table.
func report(part, format string, args ...any) {
	fmt.Printf("  | %-9s "+format+"\n", append([]any{part}, args...)...)
}
