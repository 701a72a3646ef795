package data

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gofsdp/gofsdp/internal/phase"
)

// Windows returns the windows of length elements that begin at every step-th element of a slice,
// such as the tokens of a text. They refer to the slice. Windows of context+1 tokens with a step of
// context have every token once as a target, see [TokensAndTargets]. Elements that fill no window
// at the end are left out. If there is no window at all, that is an error.
func Windows[E any](elements []E, length, step int) Source[[]E] {
	n, err := windows(len(elements), length, step)
	var zero E
	return newSource(fmt.Sprintf("Windows(%d × %T, length %d, step %d)", len(elements), zero, length, step), n, err,
		func(i int) ([]E, error) { return elements[i*step : i*step+length : i*step+length], nil })
}

// windows returns the number of windows in some elements, at least one.
func windows(elements, length, step int) (n int, err error) {
	switch {
	case length < 1 || step < 1:
		return 0, fmt.Errorf("window length %d and step %d must be positive", length, step)
	case elements < length:
		return 0, fmt.Errorf("a window has %d elements, but there are only %d in all", length, elements)
	}
	return (elements-length)/step + 1, nil
}

// Packed has elements of documents, one document after the other. Do not modify it.
type Packed[E any] struct {
	Elements []E
	Starts   []int // beginnings of documents in Elements: not 0 if the first document continues from another sample
	// Target says of each element whether the model learns to write it. It is nil if there is no
	// choice: only [PackLabeled] makes one.
	Target []bool
}

// Positions returns the position of each element in its document. A document that continues from
// another sample counts from the beginning of this one.
func (p Packed[E]) Positions() []int {
	positions, starts, begin := make([]int, len(p.Elements)), p.Starts, 0
	for i := range positions {
		if len(starts) > 0 && starts[0] == i {
			starts, begin = starts[1:], i
		}
		positions[i] = i - begin
	}
	return positions
}

// A Packing is documents packed into samples of one length: see [Pack], [PackWhole] and
// [PackLabeled].
type Packing[E any] struct {
	*source[Packed[E]]
	// Rest is the number of elements in no sample: at the end if they do not fill one, and between
	// windows if the step is longer than a window.
	Rest int
	// Padding is the number of elements that are missing in all samples together.
	Padding int
}

// Pack puts documents end to end, in their order, and takes windows of length elements from them,
// which begin at every step-th element: see [Windows]. The end of a window cuts its document.
// lengths[i] is the length of document i, see [Measure]; the lengths take 8 bytes a document. A
// window within a document refers to the document. Every window reads its documents whole. If
// documents are much longer than windows, [Tokens.Windows] reads less.
//
// [TokensAndPositions] makes batches for a model of package nn that is Packed: it computes each
// document as if it had a row to itself. Without positions a model attends from one document to the
// documents before it in the row, which is a mistake if they are unrelated.
func Pack[E any](documents Source[[]E], lengths Source[int], length, step int) *Packing[E] {
	name := fmt.Sprintf("Pack(%s, length %d, step %d)", describe(documents), length, step)
	d, err := newDocuments(documents, lengths)
	n := 0
	if err == nil {
		n, err = windows(d.len(), length, step)
	}
	p := &Packing[E]{source: newSource(name, n, err, func(i int) (Packed[E], error) { return d.read(i*step, i*step+length) })}
	if p.err == nil {
		p.name += fmt.Sprintf(" of %d elements", d.len())
		p.Rest = d.len() - (n-1)*min(step, length) - length
	}
	return p
}

// PackWhole packs documents into samples of at most length elements without cutting them: each
// document goes into the first sample with room for it (first fit), so that there is little
// padding. Empty documents are left out. A document longer than length is an error. PackWhole takes
// 16 bytes a document.
//
// Only batches with positions keep the documents apart, see [TokensAndPositions]. A model that is
// not Packed refuses them, as they have one tensor more than it takes. Nothing warns of a Collate
// function that leaves the positions out, because some trainings attend across documents on
// purpose.
func PackWhole[E any](documents Source[[]E], lengths Source[int], length int) *Packing[E] {
	return packWhole(fmt.Sprintf("PackWhole(%s, length %d)", describe(documents), length), documents, lengths, length)
}

func packWhole[E any](name string, documents Source[[]E], lengths Source[int], length int) *Packing[E] {
	d, err := newDocuments(documents, lengths)
	var order, first []int // documents by sample, and the first one of each sample
	if err == nil {
		order, first, err = d.fit(length)
	}
	n := max(0, len(first)-1)
	p := &Packing[E]{source: newSource(name, n, err, func(i int) (Packed[E], error) {
		return d.join(order[first[i]:first[i+1]])
	})}
	if p.err == nil {
		p.name += fmt.Sprintf(" of %d elements", d.len())
		p.Padding = n*length - d.len()
	}
	return p
}

// documents are documents and the offset of each in the text that they make together.
type documents[E any] struct {
	src    Source[[]E]
	starts []int // offset of each document, and the end
}

func newDocuments[E any](src Source[[]E], lengths Source[int]) (d documents[E], err error) {
	for _, s := range []any{src, lengths} {
		if s, ok := s.(interface{ refused() error }); ok && s.refused() != nil {
			return d, s.refused()
		}
	}
	switch {
	case src == nil || lengths == nil:
		return d, errNil
	case src.Len() != lengths.Len():
		return d, fmt.Errorf("there are %s, but %d lengths: give one length for each", count(src.Len()), lengths.Len())
	case src.Len() == Endless:
		return d, errors.New("the documents are endless")
	}
	d = documents[E]{src, make([]int, src.Len()+1)}
	progress := phase.Begin("data: reading the lengths of documents", src.Len())
	defer progress.End()
	for i := range src.Len() {
		n, err := lengths.At(i)
		if err == nil && (n < 0 || n > Endless-1-d.starts[i]) {
			err = fmt.Errorf("%d is negative, or too large for the sum of all lengths", n)
		}
		if err != nil {
			return d, fmt.Errorf("the length of document %d: %w", i, err)
		}
		d.starts[i+1] = d.starts[i] + n
		progress.Add(1)
	}
	return d, nil
}

// len returns the number of elements of all documents.
func (d *documents[E]) len() int { return d.starts[len(d.starts)-1] }

// document reads a document and checks its length.
func (d *documents[E]) document(k int) ([]E, error) {
	doc, err := d.src.At(k)
	if err != nil {
		return nil, fmt.Errorf("document %d: %w", k, err)
	}
	if want := d.starts[k+1] - d.starts[k]; len(doc) != want {
		return nil, fmt.Errorf("document %d has %d elements, but its given length is %d: give the lengths that Measure returns for the same source, or shuffle them with the same seed and epochs", k, len(doc), want)
	}
	return doc, nil
}

// read returns elements lo to hi-1 of all documents.
func (d *documents[E]) read(lo, hi int) (p Packed[E], err error) {
	for k := segment(d.starts, lo); lo < hi; k++ {
		doc, err := d.document(k)
		if err != nil {
			return p, err
		}
		from, to := lo-d.starts[k], min(hi-d.starts[k], len(doc))
		if from == 0 && to > 0 {
			p.Starts = append(p.Starts, len(p.Elements))
		}
		if p.Elements == nil && lo+to-from == hi {
			p.Elements = slices.Clip(doc[from:to])
			return p, nil
		}
		if p.Elements == nil {
			p.Elements = make([]E, 0, hi-lo)
		}
		p.Elements = append(p.Elements, doc[from:to]...)
		lo += to - from
	}
	return p, nil
}

// join returns whole documents, one after another.
func (d *documents[E]) join(list []int) (p Packed[E], err error) {
	for _, k := range list {
		doc, err := d.document(k)
		if err != nil {
			return p, err
		}
		p.Starts = append(p.Starts, len(p.Elements))
		p.Elements = append(p.Elements, doc...)
	}
	return p, nil
}

// fit distributes the documents over samples by first fit. It leaves out empty ones.
func (d *documents[E]) fit(length int) (order, first []int, err error) {
	if length < 1 {
		return nil, nil, fmt.Errorf("samples of %d elements", length)
	}
	n := len(d.starts) - 1
	samples, sizes := make([]int, n), []int(nil) // sample of each document, or -1; number of documents in each sample
	leaves := 1
	for leaves < n {
		leaves *= 2
	}
	room := make([]int, 2*leaves) // room[k] is the larger of room[2k] and room[2k+1]; the leaves have the room of the samples
	for k := range room {
		room[k] = length
	}
	for i := range n {
		size := d.starts[i+1] - d.starts[i]
		samples[i] = -1
		if size == 0 {
			continue
		}
		if size > length {
			return nil, nil, fmt.Errorf("document %d has %d elements, want at most %d", i, size, length)
		}
		k := 1
		for k < leaves {
			if k *= 2; room[k] < size {
				k++
			}
		}
		samples[i] = k - leaves
		if samples[i] == len(sizes) {
			sizes = append(sizes, 0)
		}
		sizes[samples[i]]++
		room[k] -= size
		for k /= 2; k > 0; k /= 2 {
			room[k] = max(room[2*k], room[2*k+1])
		}
	}
	first = make([]int, len(sizes)+1)
	for k, size := range sizes {
		first[k+1] = first[k] + size
	}
	order = make([]int, first[len(sizes)])
	next := slices.Clone(first)
	for i, sample := range samples {
		if sample >= 0 {
			order[next[sample]] = i
			next[sample]++
		}
	}
	return order, first, nil
}
