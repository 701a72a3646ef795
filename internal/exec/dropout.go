package exec

import (
	"fmt"

	G "gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/kernel/bf16"
)

// Mask is the attribute of KindDropout.
type Mask struct {
	Rate   float64
	Stream uint32
}

// Dropout zeroes each element of x with probability rate and divides the others by 1-rate while
// training; in evaluation it is the identity. The mask is a function of the call's seed, the stream
// and the element's index, so backward draws the same mask again and nothing is saved.
func Dropout(x *G.Node, rate float64, stream uint32) (*G.Node, error) {
	if !(rate >= 0 && rate < 1) {
		return nil, fmt.Errorf("dropout: rate %v is not in [0, 1)", rate)
	}
	return dropoutRow.Apply(Mask{rate, unused(x, stream)}, x)
}

// unused returns the first stream ≥ s that no random operation in the graph of x uses.
func unused(x *G.Node, s uint32) uint32 {
	if x == nil || x.Graph() == nil {
		return s
	}
	taken := make(map[uint32]bool)
	for _, n := range x.Graph().AllNodes() {
		if o, ok := n.Op().(*Op); ok {
			switch a := o.Attrs.(type) {
			case Mask:
				taken[a.Stream] = true
			case Random:
				taken[a.Stream] = true
			}
		}
	}
	for taken[s] {
		s++
	}
	return s
}

// dropoutRow is the rule of dropout. The gradient of dropout is dropout with the same mask.
var dropoutRow = &Row{
	Kind: KindDropout, Attr: Mask{}, Doc: "x/(1 - rate) or 0, by seed and stream; x in evaluation", Shapes: "x [...] -> y [...]",
	Kernels: Kernels{runDropout(kernel.Dropout[float32]), runDropout(kernel.Dropout[float64]), runDropout(kernel.NaiveDropout)},
	BF16:    dropoutHalf, BF16Scratch: ElementScratch,
	FLOPs: Each(12), Cheap: true, InPlace: true, Split: ByElement, Diff: 1,
	Grad: func(o *Op, _ G.Nodes, _, dy *G.Node) (G.Nodes, error) { return o.Gradient(o.Row, dy) },
}

func dropoutHalf(f *Frame) error {
	return runDropout(func(y, x []half.BFloat16, seed, base uint64, rate float64) {
		bf16.Dropout(y, x, seed, base, rate, Data[float32](f.Scratch))
	})(f)
}

func runDropout[T kernel.Element](run func(y, x []T, seed, base uint64, rate float64)) Kernel {
	return func(f *Frame) error {
		if !f.Train {
			copy(f.Out.Bytes, f.In[0].Bytes)
			return nil
		}
		a := f.Op.Attrs.(Mask)
		run(Data[T](f.Out.Bytes), Data[T](f.In[0].Bytes), f.Seed, uint64(a.Stream)<<32+uint64(f.First), a.Rate)
		return nil
	}
}
