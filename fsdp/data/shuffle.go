package data

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/gofsdp/gofsdp/internal/rng"
)

// Repeat returns the samples of src a number of times, which may be Endless.
func Repeat[T any](src Source[T], epochs int) Source[T] {
	return repeated(src, epochs, fmt.Sprintf("Repeat(%s, %s)", describe(src), times(epochs)),
		func(_, i int) int { return i })
}

// Shuffle returns the samples of src a number of times, which may be Endless, each time in another
// order. The order is a function of the seed and the number of the epoch. It takes no memory, as it
// is computed for each sample separately.
func Shuffle[T any](src Source[T], seed uint64, epochs int) Source[T] {
	n, keys := 0, rng.New(seed, "data.Shuffle")
	if src != nil {
		n = src.Len()
	}
	return repeated(src, epochs, fmt.Sprintf("Shuffle(%s, seed %d, %s)", describe(src), seed, times(epochs)),
		func(epoch, i int) int { return permute(i, n, keys.Uint64(uint64(epoch))) })
}

// Split divides src at random into samples to train on and held samples to test on. The choice is a
// function of the seed. Both parts are shuffled. If neighbors belong together, such as windows of
// one text, use [Range].
func Split[T any](src Source[T], held int, seed uint64) (train, test Source[T]) {
	all := Shuffle(src, seed, 1)
	cut := all.Len() - held
	return Range(all, 0, cut), Range(all, cut, all.Len())
}

// repeated returns the samples of src a number of times, each epoch in the order of number.
func repeated[T any](src Source[T], epochs int, name string, number func(epoch, i int) int) Source[T] {
	if bad, ok := refusal[T](src); ok {
		return bad
	}
	n, err := 0, error(nil)
	switch {
	case src == nil:
		err = errNil
	case epochs < 1:
		err = fmt.Errorf("%d epochs: want 1 or more, or Endless", epochs)
	case src.Len() == Endless:
		err = errors.New("the source is endless, so it cannot be repeated")
	case src.Len() == 0 && epochs == Endless:
		err = errors.New("the source is empty, so it cannot be repeated endlessly")
	case epochs != Endless && src.Len() > (Endless-1)/epochs:
		err = fmt.Errorf("%s repeated %d times overflows int", count(src.Len()), epochs)
	case epochs == Endless:
		n = Endless
	default:
		n = src.Len() * epochs
	}
	return reorder(name, n, err, []Source[T]{src}, func(i int) (s, k int, err error) {
		return 0, number(i/src.Len(), i%src.Len()), nil
	})
}

// times writes a number of epochs.
func times(epochs int) string {
	if epochs == Endless {
		return "endless"
	}
	return fmt.Sprintf("%d epochs", epochs)
}

// permute returns the place of i in the permutation of 0 to n-1 that a key chooses. It is a Feistel
// network over the least power of two that is not below n, repeated until it returns a number below
// n, which takes two steps on average at most (Black and Rogaway, "Ciphers with arbitrary finite
// domains", CT-RSA 2002). It never changes: positions of interrupted runs rely on it.
func permute(i, n int, key uint64) int {
	width := bits.Len64(uint64(n - 1))
	low := width / 2
	high := width - low
	lowMask, highMask := uint64(1)<<low-1, uint64(1)<<high-1
	for x := uint64(i); ; {
		l, h, k := x&lowMask, x>>low, key
		for range 6 {
			h ^= scramble(l+k) & highMask
			k += golden
			l ^= scramble(h+k) & lowMask
			k += golden
		}
		if x = h<<low | l; x < uint64(n) {
			return int(x)
		}
	}
}

// golden is 2⁶⁴ divided by the golden ratio, to the nearest odd number.
const golden = 0x9E3779B97F4A7C15

// scramble is the finalizer of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom
// number generators", OOPSLA 2014).
func scramble(x uint64) uint64 {
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}
