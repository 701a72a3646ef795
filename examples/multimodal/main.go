// Multimodal shows optional parts of a model: it trains a GPT with a vision tower on ranks of which
// some have images and some have only text. The model calls the tower if a batch has images
// ([fsdp.Tape.Optional]). On ranks without images the tower's units are gathered and reduced as
// usual, but nothing is computed for them. No rank needs dummy images.
//
// Each of four ranks has only text in every other epoch, and in each fourth epoch all ranks have
// only text. One rank then trains on the same batches. It takes some seconds on two cores, and
// prints the losses of both trainings, which are equal except for rounding:
//
//	$ go run ./examples/multimodal
//	epoch  parts with images  loss on 4 ranks  on one
//	    1                0 2         3.712420  3.712420
//	    2                1 3         2.729835  2.729835
//	    3                0 2         1.892194  1.892195
//	    4               none         1.240030  1.240029
//	    5                0 2         0.976742  0.976743
//	    6                1 3         0.721184  0.721186
//	    7                0 2         0.501782  0.501778
//	    8               none         0.296539  0.296542
//	    9                0 2         0.313501  0.313503
//	   10                1 3         0.244327  0.244328
//	   11                0 2         0.202529  0.202531
//	   12               none         0.149484  0.149483
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/op"
	"github.com/gofsdp/gofsdp/optim"
)

const (
	parts      = 4 // of the data
	samples    = 6 // of a part in a step, at least
	epochSteps = 10
	vocab      = 128 // tokens are letters
	length     = 32  // places of a text and its image
	side       = 8   // pixels of an image
	patch      = 4
	slots      = 1 + (side/patch)*(side/patch) // places that an image takes
)

func main() {
	ranks := flag.Int("ranks", parts, "ranks, a divisor of 4")
	epochs := flag.Int("epochs", 12, "epochs of the training, of 10 steps")
	flag.Parse()
	if err := compare(context.Background(), *ranks, *epochs, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// compare trains on ranks and then on one, and prints the losses side by side.
func compare(ctx context.Context, ranks, epochs int, out io.Writer) error {
	many, err := train(ctx, ranks, epochs, fsdp.Precision{})
	if err != nil {
		return err
	}
	one, err := train(ctx, 1, epochs, fsdp.Precision{})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "epoch  parts with images  loss on %d ranks  on one\n", ranks)
	for epoch := range epochs {
		last := (epoch+1)*epochSteps - 1
		fmt.Fprintf(out, "%5d  %17s  %15.6f  %.6f\n", epoch+1, withImages(last), many[last], one[last])
	}
	return nil
}

// withImages names the parts that have images in a step.
func withImages(step int) string {
	text := ""
	for part := range parts {
		if b, _ := batch(draw(step, part), false); b[2] != nil {
			text += fmt.Sprint(" ", part)
		}
	}
	if text == "" {
		return "none"
	}
	return text[1:]
}

// train returns the mean loss of each step.
func train(ctx context.Context, ranks, epochs int, p fsdp.Precision) (losses []float64, err error) {
	if ranks < 1 || parts%ranks != 0 {
		return nil, fmt.Errorf("%d ranks do not divide %d parts of data", ranks, parts)
	}
	err = comm.Run(ctx, ranks, func(ctx context.Context, g comm.Group) error {
		list, err := run(ctx, g, epochs, p)
		if g.Rank() == 0 {
			losses = list
		}
		return err
	})
	return losses, err
}

// run trains one rank on its parts of the data.
func run(ctx context.Context, g comm.Group, epochs int, p fsdp.Precision) (losses []float64, err error) {
	m, err := fsdp.WrapContext(ctx, &captioner{layers: 2, dim: 32, heads: 4}, fsdp.Config{
		Group: g, WrapPolicy: fsdp.WrapTypes(&nn.Block{}, &nn.Layer{}), Precision: p, Seed: 1,
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	opt, err := optim.AdamW{WeightDecay: 0.1}.New(m.Params())
	if err != nil {
		return nil, err
	}
	for step := range epochs * epochSteps {
		var mine []sample
		for part := range parts / g.Size() {
			mine = append(mine, draw(step, g.Rank()*parts/g.Size()+part)...)
		}
		b, count := batch(mine, p.Compute == fsdp.Float64)
		loss, err := m.Forward(ctx, b...)
		if err != nil {
			return nil, err
		}
		if loss, err = m.Mean(ctx, loss, count); err != nil {
			return nil, err
		}
		losses = append(losses, loss)
		if err := m.Backward(ctx, fsdp.Share(b)); err != nil {
			return nil, err
		}
		if _, err := m.ClipGradNorm(ctx, 1); err != nil {
			return nil, err
		}
		if err := opt.Step(3e-3); err != nil {
			return nil, err
		}
		m.ZeroGrad()
	}
	return losses, nil
}

// captioner is a GPT that reads images: a tower turns an image into vectors, which take the place
// of tokens.
type captioner struct{ layers, dim, heads int }

// Inputs names the tensors of a batch. One of text alone has nil for images and where.
func (m *captioner) Inputs() []string { return []string{"tokens", "targets", "images", "where"} }

// Forward implements fsdp.Model.
func (m *captioner) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	text := t.Call("wte", &nn.Embedding{Rows: vocab, Dim: m.dim}, in[0])

	seen := t.Call("vision.patches", &nn.Patches{Channels: 1, Height: side, Width: side, Size: patch, Dim: m.dim}, t.Optional(in[2]))
	for i := range m.layers {
		seen = t.Call(fmt.Sprintf("vision.layers.%d", i), m.layer(), seen)
	}
	seen = t.Call("vision.norm", &nn.LayerNorm{Dim: m.dim}, seen)
	x := t.Call("splice", splice{}, text, seen, t.Optional(in[3])).Or(text)

	x = t.Call("wpe", &nn.Positions{Rows: length, Dim: m.dim}, x)
	for i := range m.layers {
		x = t.Call(fmt.Sprintf("blocks.%d", i), &nn.Block{Dim: m.dim, Heads: m.heads}, x)
	}
	x = t.Call("lnf", &nn.LayerNorm{Dim: m.dim}, x)
	return []fsdp.Ref{t.Call("head", &nn.Head{Dim: m.dim, Classes: vocab}, x, in[1])}, nil
}

// layer returns one of the tower.
func (m *captioner) layer() *nn.Layer {
	return &nn.Layer{Attn: nn.Attention{Dim: m.dim, Heads: m.heads}, MLP: nn.MLP{Dim: m.dim, Hidden: 4 * m.dim}}
}

// splice replaces rows of text [B, T, dim] by rows of seen [I, P, dim]. where, ints [B, T], names
// for each place a row of both, one after the other.
type splice struct{}

// Params implements fsdp.Module.
func (splice) Params() []fsdp.Param { return nil }

// Build implements fsdp.Module.
func (splice) Build(_ *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	var rows [2]*gorgonia.Node
	for i, x := range in[:2] {
		var err error
		s := x.Shape()
		if rows[i], err = gorgonia.Reshape(x, tensor.Shape{s[0] * s[1], s[2]}); err != nil {
			return nil, err
		}
	}
	all, err := gorgonia.Concat(0, rows[0], rows[1])
	if err != nil {
		return nil, err
	}
	y, err := op.Embedding(all, in[2])
	return gorgonia.Nodes{y}, err
}

var (
	numbers = []string{"zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"}
	rows    = []string{"top", "bottom"}
	columns = []string{"left", "right"}
	shapes  = []struct {
		name string
		has  func(x, y int) bool // of 4·4 pixels
	}{
		{"square", func(x, y int) bool { return true }},
		{"cross", func(x, y int) bool { return x == y || x+y == 3 }},
		{"frame", func(x, y int) bool { return x%3 == 0 || y%3 == 0 }},
		{"wedge", func(x, y int) bool { return x <= y }},
	}
)

// A sample is a text, and perhaps the image that it describes.
type sample struct {
	text  string
	image []float64 // [side, side], or nil
}

// read returns a sentence about numbers.
func read(r *rand.Rand) sample {
	i := r.IntN(len(numbers) - 1)
	return sample{text: fmt.Sprintf("%s comes after %s.", numbers[i+1], numbers[i])}
}

// look returns an image of a shape with its description.
func look(r *rand.Rand) sample {
	shape, row, column := shapes[r.IntN(len(shapes))], r.IntN(2), r.IntN(2)
	s := sample{fmt.Sprintf("a %s, %s %s.", shape.name, rows[row], columns[column]), make([]float64, side*side)}
	for y := range 4 {
		for x := range 4 {
			if shape.has(x, y) {
				s.image[(4*row+y)*side+4*column+x] = 1
			}
		}
	}
	for i := range s.image {
		s.image[i] += 0.1 * r.NormFloat64()
	}
	return s
}

// draw returns the samples of a part of the data in a step.
// Each part has only text in every other epoch, and all have in each fourth.
func draw(step, part int) (list []sample) {
	r := rand.New(rand.NewPCG(uint64(step), uint64(part)))
	epoch := step / epochSteps
	for i := range samples + part%2 {
		if i < 1+part && (epoch+part)%2 == 0 && epoch%4 < 3 {
			list = append(list, look(r))
		} else {
			list = append(list, read(r))
		}
	}
	return list
}

// batch returns tokens, targets, images and where, and how many targets count. Without an image the
// last two are nil. An image comes before its text.
func batch(list []sample, double bool) (b []fsdp.Tensor, count float64) {
	n := len(list) * length
	tokens, targets, where := make([]int, n), make([]int, n), make([]int, n)
	var pixels []float64
	for i := range tokens {
		targets[i], where[i] = nn.IgnoreTarget, i
	}
	for i, s := range list {
		at := i * length
		if s.image != nil {
			for k := range slots {
				where[at+k] = n + len(pixels)/(side*side)*slots + k
			}
			at, pixels = at+slots, append(pixels, s.image...)
		}
		last := 0
		for k, c := range []byte(s.text) {
			tokens[at+k], targets[at+k] = last, int(c)
			last = int(c)
		}
		count += float64(len(s.text))
	}
	shape := tensor.WithShape(len(list), length)
	b = []fsdp.Tensor{tensor.New(shape, tensor.WithBacking(tokens)), tensor.New(shape, tensor.WithBacking(targets)), nil, nil}
	if pixels != nil {
		b[2] = images(pixels, double)
		b[3] = tensor.New(shape, tensor.WithBacking(where))
	}
	return b, count
}

// images returns pixels as a tensor [I, 1, side, side] of float32 or, if double, float64.
func images(pixels []float64, double bool) fsdp.Tensor {
	shape := tensor.WithShape(len(pixels)/(side*side), 1, side, side)
	if double {
		return tensor.New(shape, tensor.WithBacking(pixels))
	}
	narrow := make([]float32, len(pixels))
	for i, x := range pixels {
		narrow[i] = float32(x)
	}
	return tensor.New(shape, tensor.WithBacking(narrow))
}
