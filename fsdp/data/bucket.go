package data

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"runtime"
	"slices"
	"sync"

	"github.com/gofsdp/gofsdp/internal/caught"
	"github.com/gofsdp/gofsdp/internal/phase"
	"github.com/gofsdp/gofsdp/internal/rng"
)

// Measure reads all samples of src, on all cores, and returns the source of f(sample), in memory: 8
// bytes a sample. If this takes more than a second, rank 0 logs the progress to [slog.Default]. It
// measures lengths, which [Bucket] and [Pack] need beforehand. A function that reorders the samples
// reorders the lengths in the same way:
//
//	lengths := data.Measure(src, func(words []int) int { return len(words) })
//	src, lengths = data.Shuffle(src, 1, 10), data.Shuffle(lengths, 1, 10)
func Measure[T any](src Source[T], f func(T) int) Source[int] {
	if bad, ok := refusal[int](src); ok {
		return bad
	}
	var values []int
	var err error
	switch {
	case src == nil:
		err = errNil
	case f == nil:
		err = errors.New("the function is nil")
	case src.Len() == Endless:
		err = errors.New("the source has no end")
	default:
		values, err = measure(src, f)
	}
	name := "Measure(" + describe(src) + ")"
	if err == nil {
		name += fmt.Sprintf(" with hash %08x", hashOf(values))
	}
	return newSource(name, len(values), err, func(i int) (int, error) { return values[i], nil })
}

// hashOf returns a hash that depends on the order of the lengths.
func hashOf(lengths []int) uint32 {
	h := fnv.New32a()
	for _, n := range lengths {
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(n)))
	}
	return h.Sum32()
}

func measure[T any](src Source[T], f func(T) int) ([]int, error) {
	values := make([]int, src.Len())
	progress := phase.Begin("data: measuring samples", len(values))
	defer progress.End()
	workers := runtime.GOMAXPROCS(0)
	errs := make([]error, workers) // the first error of each part
	var group sync.WaitGroup
	for w := range workers {
		lo, hi := part(len(values), w, workers), part(len(values), w+1, workers)
		group.Go(func() {
			for i := lo; i < hi && errs[w] == nil; i++ {
				errs[w] = one(src, i, func(sample T) { values[i] = f(sample) })
				progress.Add(1)
			}
		})
	}
	group.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return values, nil
}

// one reads a sample and passes it on. The error, which may be a panic's, has the number of the
// sample.
func one[T any](src Source[T], i int, use func(T)) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("sample %d: %w", i, err)
		}
	}()
	defer caught.Panic(&err, "the source")
	sample, err := src.At(i)
	if err == nil {
		use(sample)
	}
	return err
}

// Bucket returns the samples of src in another order, in which the samples of a batch have similar
// lengths, so that [Pad] pads little. Each chunk of chunk samples is sorted by length and cut into
// batches, and the batches of a chunk are shuffled. A chunk should have many batches, and the
// chunks should not be sorted: shuffle src before. lengths[i] is the length of sample i of src, see
// [Measure]. Two chunks at a time are in memory, 16 bytes a sample. Bucket reads the lengths of the
// first chunk at once: with other lengths the source has another description, see [Position].
func Bucket[T any](src Source[T], lengths Source[int], batch, chunk int, seed uint64) Source[T] {
	if bad, ok := refusal[T](src); ok {
		return bad
	}
	if bad, ok := refusal[T](lengths); ok {
		return bad
	}
	n, err := 0, error(nil)
	name := fmt.Sprintf("Bucket(%s, lengths %s", describe(src), describe(lengths))
	switch {
	case src == nil || lengths == nil:
		err = errNil
	case src.Len() != lengths.Len():
		err = fmt.Errorf("there are %s, but %d lengths: give one length for each", count(src.Len()), lengths.Len())
	case batch < 1 || chunk < batch || chunk%batch != 0:
		err = fmt.Errorf("a chunk of %d samples is not a whole number of batches of %d", chunk, batch)
	default:
		n = src.Len()
		var first []int
		if first, err = measure(Range(lengths, 0, min(chunk, n)), func(length int) int { return length }); err != nil {
			err = fmt.Errorf("the lengths: %w", err)
			break
		}
		name += fmt.Sprintf(" from %08x on", hashOf(first))
	}
	b := &buckets{lengths: lengths, batch: batch, chunk: chunk, keys: rng.New(seed, "data.Bucket")}
	return reorder(name+fmt.Sprintf(", batch %d, chunk %d, seed %d)", batch, chunk, seed), n, err, []Source[T]{src},
		func(i int) (s, k int, err error) {
			k, err = b.number(i)
			return 0, k, err
		})
}

// buckets keeps the orders of two chunks, as samples are read almost in order.
type buckets struct {
	lengths      Source[int]
	batch, chunk int
	keys         rng.Stream

	mutex sync.Mutex
	known [2]order // the most recently used one is first
}

// order is a sorted chunk.
type order struct {
	chunk   int
	samples []measured // nil: no chunk
}

type measured struct{ length, number int }

// number returns the number in the source of sample i of the bucketed order.
func (b *buckets) number(i int) (int, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	chunk := i / b.chunk
	if b.known[0].chunk != chunk || b.known[0].samples == nil {
		b.known[0], b.known[1] = b.known[1], b.known[0]
	}
	o := &b.known[0]
	if o.chunk != chunk || o.samples == nil {
		if err := b.sort(o, chunk); err != nil {
			return 0, err
		}
	}
	group, row := i%b.chunk/b.batch, i%b.batch
	if full := len(o.samples) / b.batch; group < full {
		group = permute(group, full, b.keys.Uint64(uint64(chunk)))
	}
	return o.samples[group*b.batch+row].number, nil
}

// sort sets o to the order of a chunk.
func (b *buckets) sort(o *order, chunk int) error {
	begin := chunk * b.chunk
	samples := o.samples[:0]
	o.samples = nil
	for i := range min(b.chunk, b.lengths.Len()-begin) {
		length, err := b.lengths.At(begin + i)
		if err != nil {
			return fmt.Errorf("the length of sample %d: %w", begin+i, err)
		}
		samples = append(samples, measured{length, begin + i})
	}
	slices.SortFunc(samples, func(a, b measured) int {
		return cmp.Or(cmp.Compare(a.length, b.length), cmp.Compare(a.number, b.number))
	})
	o.chunk, o.samples = chunk, samples
	return nil
}
