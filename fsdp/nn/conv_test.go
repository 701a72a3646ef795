package nn_test

import (
	"context"
	"fmt"
	"log"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/op"
	"github.com/gofsdp/gofsdp/optim"
)

// images is a classifier of images [B, 2, 6, 6] in which every module for images has a part.
func images(t *fsdp.Tape, in []fsdp.Ref) fsdp.Ref {
	three, two := [2]int{3, 3}, [2]int{2, 2}
	x := t.Call("conv1", &nn.Conv2d{In: 2, Out: 4, Kernel: three, Conv: op.Conv{Pad: [2]int{1, 1}}}, in[0])
	x = t.Call("bn", &nn.BatchNorm{Dim: 4}, x)
	x = t.Call("act", &nn.Pointwise{}, x)
	x = t.Call("pool1", &nn.MaxPool2d{Pool: op.Pool{Kernel: two}}, x)
	x = t.Call("conv2", &nn.Conv2d{In: 4, Out: 4, Kernel: two, Conv: op.Conv{Groups: 2, Stride: [2]int{1, 2}}, NoBias: true}, x)
	x = t.Call("gn", &nn.GroupNorm{Dim: 4, Groups: 2}, x)
	x = t.Call("pool2", &nn.AvgPool2d{Pool: op.Pool{Kernel: [2]int{2, 1}}}, x)
	x = t.Call("rows", &nn.Flatten{}, x)
	return t.Call("head", &nn.Head{Dim: 4, Classes: 3}, x, in[1])
}

// TestImages checks the gradients of a model of all modules for images, in float64.
func TestImages(t *testing.T) {
	s := wrap(t, model(images))
	checkGradients(t, s, floats(2, 2, 6, 6), ints([]int{2}, 0, 2))
}

// TestImagesInBFloat16 trains it in bfloat16, on two threads.
func TestImagesInBFloat16(t *testing.T) {
	loss := func(cfg fsdp.Config) (first, last float64) {
		s, err := fsdp.Wrap(model(images), cfg)
		require.NoError(t, err)
		opt, err := optim.AdamW{}.New(s.Params())
		require.NoError(t, err)
		x := tensor.New(tensor.WithShape(2, 2, 6, 6), tensor.Of(tensor.Float32))
		for i, v := range floats(2, 2, 6, 6).Float64s() {
			x.Float32s()[i] = float32(v)
		}
		for i := range 60 {
			s.ZeroGrad()
			last, err = s.Forward(t.Context(), x, ints([]int{2}, 0, 2))
			require.NoError(t, err)
			require.NoError(t, s.Backward(t.Context()))
			require.NoError(t, opt.Step(0.02))
			if i == 0 {
				first = last
			}
		}
		require.NoError(t, s.Close())
		return first, last
	}
	first, last := loss(fsdp.Config{Seed: 1})
	require.Less(t, last, first/2)
	first16, last16 := loss(fsdp.Config{Seed: 1, Precision: fsdp.BF16(), Threads: 2})
	require.InDelta(t, first, first16, 0.05)
	require.Less(t, last16, first16/2)
}

// TestPoolErrors are mistakes in modules without parameters.
func TestPoolErrors(t *testing.T) {
	two := [2]int{2, 2}
	for _, c := range []struct {
		want   string
		module fsdp.Module
		inputs int
	}{
		{"max pool: kernel [2 2] and stride [2 2] must be positive, and pad [2 0] at most half of the kernel",
			&nn.MaxPool2d{Pool: op.Pool{Kernel: two, Pad: [2]int{2, 0}}}, 1},
		{"max pool: kernel [0 0] and stride [0 0] must be positive, and pad [0 0] at most half of the kernel", &nn.MaxPool2d{}, 1},
		{"avg pool: kernel [5 1] is larger than x (2, 3, 4, 4) with pad [0 0]", &nn.AvgPool2d{Pool: op.Pool{Kernel: [2]int{5, 1}}}, 1},
		{"2 inputs, want 1", &nn.MaxPool2d{}, 2}, {"2 inputs, want 1", &nn.AvgPool2d{}, 2}, {"2 inputs, want 1", &nn.Flatten{}, 2},
	} {
		s := wrap(t, model(func(t *fsdp.Tape, in []fsdp.Ref) fsdp.Ref {
			x := t.Call("conv", &nn.Conv2d{In: 3, Out: 3, Kernel: [2]int{1, 1}}, in[0])
			return t.Call("m", c.module, []fsdp.Ref{x, x}[:c.inputs]...)
		}))
		_, err := s.Eval(t.Context(), floats(2, 3, 4, 4))
		require.ErrorContains(t, err, c.want, "%T", c.module)
	}
}

// A small net for images of digits.
func Example_images() {
	net := model(func(t *fsdp.Tape, in []fsdp.Ref) fsdp.Ref {
		side := op.Conv{Pad: [2]int{1, 1}} // the image keeps its size
		half := op.Pool{Kernel: [2]int{2, 2}}
		x := t.Call("conv1", &nn.Conv2d{In: 1, Out: 8, Kernel: [2]int{3, 3}, Conv: side}, in[0])
		x = t.Call("norm", &nn.GroupNorm{Dim: 8, Groups: 2}, x)
		x = t.Call("relu1", &nn.Pointwise{Act: nn.ReLU}, x)
		x = t.Call("pool1", &nn.MaxPool2d{Pool: half}, x)
		x = t.Call("conv2", &nn.Conv2d{In: 8, Out: 16, Kernel: [2]int{3, 3}, Conv: side}, x)
		x = t.Call("relu2", &nn.Pointwise{Act: nn.ReLU}, x)
		x = t.Call("pool2", &nn.AvgPool2d{Pool: half}, x)
		x = t.Call("rows", &nn.Flatten{}, x)
		return t.Call("head", &nn.Head{Dim: 16 * 7 * 7, Classes: 10}, x, in[1])
	})
	m, err := fsdp.Wrap(net, fsdp.Config{})
	if err != nil {
		log.Fatal(err)
	}
	batch := tensor.New(tensor.WithShape(2, 1, 28, 28), tensor.Of(tensor.Float32))
	loss, err := m.Forward(context.Background(), batch, tensor.New(tensor.WithBacking([]int{3, 7})))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("loss %.4f\n", loss)
	// Output:
	// loss 2.3026
}
