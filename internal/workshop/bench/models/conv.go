package models

import (
	"fmt"

	G "gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/op"
)

var (
	two   = [2]int{2, 2}
	three = [2]int{3, 3}
	side  = op.Conv{Pad: [2]int{1, 1}} // an image keeps its size
)

// digits is a net for images of digits [B, 1, 28, 28]: twice convolution, ReLU and pooling, and two
// dense layers. With stock the convolutions are Gorgonia's.
func digits(stock bool) model {
	return func(t *fsdp.Tape, in []fsdp.Ref) fsdp.Ref {
		x := in[0]
		for i, channels := range []int{1, 32, 64}[1:] {
			from := []int{1, 32}[i]
			name := fmt.Sprint("conv", i)
			if stock {
				x = t.Call(name, &stockConv{from, channels}, x)
			} else {
				x = t.Call(name, &nn.Conv2d{In: from, Out: channels, Kernel: three, Conv: side, NoBias: true}, x)
				x = t.Call(name+".relu", &nn.Pointwise{Act: nn.ReLU}, x)
				x = t.Call(name+".pool", &nn.MaxPool2d{Pool: op.Pool{Kernel: two}}, x)
			}
		}
		x = t.Call("rows", &nn.Flatten{}, x)
		x = t.Call("fc", &nn.Linear{In: 64 * 7 * 7, Out: 128}, x)
		x = t.Call("fc.relu", &nn.Pointwise{Act: nn.ReLU}, x)
		return t.Call("head", &nn.Head{Dim: 128, Classes: 10}, x, in[1])
	}
}

const digitsFLOPs = 2 * 32 * (2*9*32*28*28 + 3*9*32*64*14*14 + 3*64*49*128 + 3*128*10) // without the gradient of the images

// stockConv is a convolution with ReLU and pooling by Gorgonia's operations.
type stockConv struct{ in, out int }

// Params implements fsdp.Module.
func (m *stockConv) Params() []fsdp.Param {
	return (&nn.Conv2d{In: m.in, Out: m.out, Kernel: three, NoBias: true}).Params()
}

// Build implements fsdp.Module.
func (m *stockConv) Build(b *fsdp.Builder, in ...*G.Node) (G.Nodes, error) {
	w, err := b.Param("weight")
	if err != nil {
		return nil, err
	}
	one := []int{1, 1}
	y, err := G.Conv2d(in[0], w, three[:], one, one, one)
	if err != nil {
		return nil, err
	}
	if y, err = G.Rectify(y); err != nil {
		return nil, err
	}
	y, err = G.MaxPool2D(y, two[:], []int{0, 0}, two[:])
	return G.Nodes{y}, err
}

// residual is a block of a ResNet (He et al., 2015, arXiv:1512.03385) on images [B, 64, 32, 32],
// between a convolution of their three colours and a dense layer over their means.
func residual(t *fsdp.Tape, in []fsdp.Ref) fsdp.Ref {
	conv := func(name string, from int, x fsdp.Ref) fsdp.Ref {
		x = t.Call(name, &nn.Conv2d{In: from, Out: 64, Kernel: three, Conv: side, NoBias: true}, x)
		return t.Call(name+".norm", &nn.BatchNorm{Dim: 64}, x)
	}
	relu := func(name string, x fsdp.Ref) fsdp.Ref { return t.Call(name+".relu", &nn.Pointwise{Act: nn.ReLU}, x) }
	x := relu("stem", conv("stem", 3, in[0]))
	y := conv("second", 64, relu("first", conv("first", 64, x)))
	x = relu("block", t.Call("sum", &nn.Add{}, x, y))
	x = t.Call("mean", &nn.AvgPool2d{Pool: op.Pool{Kernel: [2]int{32, 32}}}, x)
	return t.Call("head", &nn.Head{Dim: 64, Classes: 10}, t.Call("rows", &nn.Flatten{}, x), in[1])
}

const residualFLOPs = 2 * 8 * 32 * 32 * 9 * 64 * (2*3 + 2*3*64)
