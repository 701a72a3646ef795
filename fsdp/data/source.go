package data

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/internal/rng"
)

// A Source is a sequence of numbered samples: a slice, a file, a function, or other sources.
//
// If a source implements fmt.Stringer, String describes it: how many samples of which kind, in
// which order. The description is part of a [Position], so it must be the same whenever the same
// samples come in the same order, also on another machine: no directories, no addresses.
type Source[T any] interface {
	// Len returns the number of samples. It never changes. It is Endless if there is always another
	// sample.
	Len() int
	// At returns sample i, counted from 0: always the same. Several goroutines may call it at the
	// same time. The caller must not modify the memory of the sample, unless the source allows it.
	At(i int) (T, error)
}

// An Into is a Source that can read samples into existing memory. The sources of files are Intos,
// and so are Range, Concat, Repeat, Shuffle, Split, Bucket and Mix of Intos. A [Loader] reads them
// without allocating.
type Into[T any] interface {
	Source[T]
	// Into does the same as At, but overwrites the slices of memory, if they are large enough.
	// memory is a sample of this source, or of another Into, that is no longer in use, or the zero
	// value.
	Into(i int, memory T) (T, error)
}

// intoOf returns the Into of a source, or nil if it has none.
func intoOf[T any](src Source[T]) func(i int, memory T) (T, error) {
	switch s := src.(type) {
	case *source[T]:
		return s.into
	case Into[T]:
		return s.Into
	}
	return nil
}

// Endless is the length of a source without an end.
const Endless = math.MaxInt

// source is the Source that the functions of this file return: n samples.
type source[T any] struct {
	n    int
	at   func(i int) (T, error)
	into func(i int, memory T) (T, error) // same as at, see Into; or nil
	name string
	err  error // error of the arguments: it is then the only sample
}

func (s *source[T]) Len() int { return s.n }

func (s *source[T]) At(i int) (sample T, err error) {
	switch {
	case s.err != nil:
		return sample, s.err
	case i < 0 || i >= s.n:
		return sample, fmt.Errorf("sample %d does not exist: %s has %s", i, s.name, count(s.n))
	}
	return s.at(i)
}

// String describes the source, on one line.
func (s *source[T]) String() string { return s.name }

// refused returns the error of the source's arguments.
func (s *source[T]) refused() error { return s.err }

// newSource returns the source of n samples at. If err is not nil, the source has only the error.
func newSource[T any](name string, n int, err error, at func(i int) (T, error)) *source[T] {
	if err == nil && n < 0 {
		err = fmt.Errorf("%d samples", n)
	}
	if err != nil {
		return &source[T]{n: 1, name: name, err: fmt.Errorf("data.%s: %w", name, err)}
	}
	return &source[T]{n: n, at: at, name: clip(name)}
}

// reorder returns a source of n samples of other sources: sample i is sample k of sources[s]. If
// all sources are Intos, the result is one.
func reorder[T any](name string, n int, err error, sources []Source[T], which func(i int) (s, k int, err error)) Source[T] {
	all := newSource(name, n, err, func(i int) (sample T, err error) {
		s, k, err := which(i)
		if err != nil {
			return sample, err
		}
		return sources[s].At(k)
	})
	if all.err != nil {
		return all
	}
	intos := make([]func(i int, memory T) (T, error), len(sources))
	for s, src := range sources {
		if intos[s] = intoOf(src); intos[s] == nil {
			return all
		}
	}
	all.into = func(i int, memory T) (T, error) {
		s, k, err := which(i)
		if err != nil {
			return memory, err
		}
		return intos[s](k, memory)
	}
	return all
}

// refusal returns a source that has only the error of src, if src has only an error.
func refusal[U, T any](src Source[T]) (Source[U], bool) {
	if s, ok := src.(interface{ refused() error }); ok && s.refused() != nil {
		return &source[U]{n: 1, name: describe(src), err: s.refused()}, true
	}
	return nil, false
}

// errNil is the error for a nil argument.
var errNil = errors.New("the source is nil")

// describe returns the description of a source, or its type and length.
func describe[T any](src Source[T]) string {
	switch s := src.(type) {
	case nil:
		return "nil"
	case fmt.Stringer:
		return s.String()
	}
	return fmt.Sprintf("%T(%s)", src, count(src.Len()))
}

// longest is the number of bytes that a description may have.
const longest = 1000

// clip shortens a description that is too long, and adds a hash that distinguishes it from others.
func clip(name string) string {
	if len(name) <= longest {
		return name
	}
	h := fnv.New64a()
	h.Write([]byte(name)) // never fails
	return fmt.Sprintf("%s… %016x", strings.ToValidUTF8(name[:longest/2], ""), h.Sum64())
}

// count writes a length.
func count(n int) string {
	if n == Endless {
		return "samples without end"
	}
	return fmt.Sprintf("%d samples", n)
}

// Of returns the source of the elements of a slice. It refers to the slice.
func Of[T any](values []T) Source[T] {
	var zero T
	return newSource(fmt.Sprintf("Of(%d × %T)", len(values), zero), len(values), nil, func(i int) (T, error) { return values[i], nil })
}

// Func returns the source of the n samples that at returns. at is called for 0 to n-1, by several
// goroutines at the same time.
func Func[T any](n int, at func(i int) (T, error)) Source[T] {
	var err error
	if at == nil {
		err = errors.New("the function is nil")
	}
	return newSource(fmt.Sprintf("Func(%s)", count(n)), n, err, at)
}

// Map returns the source of f(sample) for each sample of src. f is called each time a sample is
// read, by several goroutines at the same time. It must be a function of the sample alone. For
// random changes use [Augment].
func Map[T, U any](src Source[T], f func(T) (U, error)) Source[U] {
	return mapped("Map("+describe(src)+")", src, f == nil, func(_ int, sample T) (U, error) { return f(sample) })
}

// Augment returns the source of f(random, sample) for each sample of src, as Map does. The numbers
// of random are a function of the seed and of the number of the sample in src. They do not depend
// on the ranks and workers that read the sample, nor on earlier samples. After Shuffle, every epoch
// changes a sample in another way:
//
//	images = data.Shuffle(images, 1, epochs)
//	images = data.Augment(images, 2, func(random *rand.Rand, d digit) (digit, error) {
//		d.Pixels = shift(d.Pixels, random.IntN(3)-1, random.IntN(3)-1)
//		return d, nil
//	})
//
// Do not share a generator between samples, such as the functions of math/rand: the samples would
// depend on the order in which workers read them. A [Loader] warns of this.
func Augment[T, U any](src Source[T], seed uint64, f func(random *rand.Rand, sample T) (U, error)) Source[U] {
	keys := rng.New(seed, "data.Augment")
	return mapped(fmt.Sprintf("Augment(%s, seed %d)", describe(src), seed), src, f == nil, func(i int, sample T) (U, error) {
		return f(rand.New(rand.NewPCG(keys.Uint64(2*uint64(i)), keys.Uint64(2*uint64(i)+1))), sample)
	})
}

// mapped returns the source of f(number, sample) for each sample of src, or an error if there is no
// function.
func mapped[T, U any](name string, src Source[T], noFunction bool, f func(i int, sample T) (U, error)) Source[U] {
	if bad, ok := refusal[U](src); ok {
		return bad
	}
	n, err := 0, error(nil)
	switch {
	case src == nil:
		err = errNil
	case noFunction:
		err = errors.New("the function is nil")
	default:
		n = src.Len()
	}
	return newSource(name, n, err, func(i int) (u U, err error) {
		sample, err := src.At(i)
		if err != nil {
			return u, err
		}
		return f(i, sample)
	})
}

// Range returns the samples lo to hi-1 of src, renumbered from 0.
func Range[T any](src Source[T], lo, hi int) Source[T] {
	if bad, ok := refusal[T](src); ok {
		return bad
	}
	var err error
	if src == nil {
		err = errNil
	} else if lo < 0 || hi < lo || hi > src.Len() {
		err = fmt.Errorf("from %d to %d of %s", lo, hi, count(src.Len()))
	}
	n := hi - lo
	if hi == Endless {
		n = Endless
	}
	return reorder(fmt.Sprintf("Range(%s, %d, %d)", describe(src), lo, hi), n, err, []Source[T]{src},
		func(i int) (s, k int, err error) { return 0, lo + i, nil })
}

// Concat returns the samples of all sources, one source after another. Only the last may be
// endless.
func Concat[T any](sources ...Source[T]) Source[T] {
	sources = slices.Clone(sources)       // as the caller may change it
	starts := make([]int, len(sources)+1) // of each source, and the end
	names := make([]string, len(sources))
	var err error
	for i, src := range sources {
		if bad, ok := refusal[T](src); ok {
			return bad
		}
		names[i] = describe(src)
		switch begin := starts[i]; {
		case src == nil:
			err = errors.Join(err, fmt.Errorf("source %d is nil", i))
		case begin == Endless:
			err = errors.Join(err, fmt.Errorf("source %d comes after an endless one", i))
		case src.Len() == Endless:
			starts[i+1] = Endless
		case src.Len() > Endless-1-begin:
			err = errors.Join(err, errors.New("the number of samples overflows int"))
		default:
			starts[i+1] = begin + src.Len()
		}
	}
	return reorder("Concat("+strings.Join(names, ", ")+")", starts[len(sources)], err, sources, func(i int) (s, k int, err error) {
		s = segment(starts, i)
		return s, i - starts[s], nil
	})
}

// segment returns k with starts[k] <= i < starts[k+1], where i is below the last of starts.
func segment(starts []int, i int) int {
	lo, hi := 0, len(starts)-1
	for hi-lo > 1 {
		if mid := int(uint(lo+hi) / 2); starts[mid] <= i {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}
