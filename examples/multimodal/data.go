package main

import (
	"fmt"
	"math/rand/v2"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

const (
	vocab  = 128 // tokens are letters
	length = 32  // of a text, with what stands for its image
	side   = 8   // pixels of an image
	patch  = 4
	slots  = 1 + (side/patch)*(side/patch) // that the tower makes of an image
)

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
