package main

import (
	"iter"
	"strconv"
	"strings"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

const (
	vocab  = 128             // bytes of ASCII
	length = 28              // of digits and of words: "three hundred seventy three" and an end
	end    = 0               // the token before the words, and after them
	limit  = 1000            // of the numbers
	ignore = nn.IgnoreTarget // the target after the end
)

var (
	small = strings.Fields("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen")
	tens  = strings.Fields("? ? twenty thirty forty fifty sixty seventy eighty ninety")
)

// spell returns a number below the limit in words.
func spell(n int) string {
	switch {
	case n < 20:
		return small[n]
	case n < 100 && n%10 == 0:
		return tens[n/10]
	case n < 100:
		return tens[n/10] + " " + small[n%10]
	case n%100 == 0:
		return small[n/100] + " hundred"
	default:
		return small[n/100] + " hundred " + spell(n%100)
	}
}

// row is text of fixed length, filled up.
func row(text string, fill int) []int {
	tokens := make([]int, length)
	for i := range tokens {
		if tokens[i] = fill; i < len(text) {
			tokens[i] = int(text[i])
		}
	}
	return tokens
}

// matrix is a batch of rows: ints [len(rows), length].
func matrix(rows ...[]int) fsdp.Tensor {
	backing := make([]int, 0, len(rows)*length)
	for _, r := range rows {
		backing = append(backing, r...)
	}
	return tensor.New(tensor.WithShape(len(rows), length), tensor.WithBacking(backing))
}

// digits are prompts for the encoder.
func digits(numbers ...int) fsdp.Tensor {
	var rows [][]int
	for _, n := range numbers {
		rows = append(rows, row(strconv.Itoa(n), end))
	}
	return matrix(rows...)
}

// pairs are batches of numbers and their words.
func pairs(numbers []int) iter.Seq2[[]fsdp.Tensor, error] {
	return func(yield func([]fsdp.Tensor, error) bool) {
		for len(numbers) > 0 {
			some := numbers[:min(rows, len(numbers))]
			numbers = numbers[len(some):]
			var soFar, words [][]int
			for _, n := range some {
				text := spell(n) + string(rune(end))
				soFar, words = append(soFar, row(string(rune(end))+text, end)), append(words, row(text, ignore))
			}
			if !yield([]fsdp.Tensor{digits(some...), matrix(soFar...), matrix(words...)}, nil) {
				return
			}
		}
	}
}

// letters returns how many letters of words a batch has, ends included.
func letters(batch []fsdp.Tensor) float64 {
	n := 0.0
	if len(batch) > 0 {
		for _, w := range batch[2].Data().([]int) {
			if w != ignore {
				n++
			}
		}
	}
	return n
}
