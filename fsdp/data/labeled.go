package data

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/gofsdp/gofsdp/internal/phase"
)

// Labeled is a sequence of tokens of which only some are targets, such as a conversation of which
// the answers are to be learnt: see EncodeChat of package tokenizer.
type Labeled struct {
	Tokens []int
	Target []bool // of each token: whether the model learns to write it
}

// check returns an error if tokens and targets do not fit.
func (l *Labeled) check() error {
	if len(l.Tokens) != len(l.Target) {
		return fmt.Errorf("there are %d tokens, and Target has %d elements", len(l.Tokens), len(l.Target))
	}
	return nil
}

// targets returns the number of targets among the first length tokens. The first token is never
// one, as nothing comes before it.
func (l *Labeled) targets(length int) (n int) {
	for i := 1; i < min(length, len(l.Target)); i++ {
		if l.Target[i] {
			n++
		}
	}
	return n
}

// Truncated is a source of samples that have at most so many tokens: see [Truncate].
type Truncated struct {
	*source[Labeled]
	Cut     []int // samples of the other source that have lost tokens at their end
	Dropped []int // samples of the other source that are left out: they would have no target
	Targets int   // in all samples
}

// Truncate cuts the samples of a source after length tokens. It leaves out samples without a target
// in the rest, which would only cost time, and logs how many there are. It reads all samples once,
// and logs its progress if that takes longer than a second. It keeps 8 bytes for each sample. It is
// an error if no sample is left.
func Truncate(src Source[Labeled], length int) *Truncated {
	t := &Truncated{}
	kept, err := t.read(src, length)
	name := fmt.Sprintf("Truncate(%s, length %d) with %d targets", describe(src), length, t.Targets)
	t.source = newSource(name, len(kept), err, func(i int) (Labeled, error) {
		l, err := src.At(kept[i])
		n := min(length, len(l.Tokens))
		return Labeled{l.Tokens[:n:n], l.Target[:n:n]}, err
	})
	if len(t.Dropped) > 0 && err == nil {
		slog.Warn("data: samples without a target are left out: raise the length if they were cut", "length", length,
			"samples", src.Len(), "cut", len(t.Cut), "left out", len(t.Dropped), "the first", t.Dropped[:min(3, len(t.Dropped))])
	}
	return t
}

// read finds the samples that are kept.
func (t *Truncated) read(src Source[Labeled], length int) (kept []int, err error) {
	switch s, _ := src.(interface{ refused() error }); {
	case src == nil:
		return nil, errNil
	case s != nil && s.refused() != nil:
		return nil, s.refused()
	case src.Len() == Endless:
		return nil, errors.New("the samples have no end")
	case length < 2:
		return nil, fmt.Errorf("the length is %d, want at least 2: a token and its target", length)
	}
	progress := phase.Begin("data: reading samples to truncate", src.Len())
	defer progress.End()
	for i := range src.Len() {
		l, err := src.At(i)
		progress.Add(1)
		if err == nil {
			err = l.check()
		}
		if err != nil {
			return nil, fmt.Errorf("sample %d: %w", i, err)
		}
		if len(l.Tokens) > length {
			t.Cut = append(t.Cut, i)
		}
		n := l.targets(length)
		if n == 0 {
			t.Dropped = append(t.Dropped, i)
			continue
		}
		t.Targets += n
		kept = append(kept, i)
	}
	if len(kept) == 0 {
		return nil, fmt.Errorf("none of %d samples has a target among its first %d tokens: raise the length, or check the answers", src.Len(), length)
	}
	return kept, nil
}

// PackLabeled is [PackWhole] for samples of which only some tokens are targets.
// [TokensAndPositions] makes their batches, for a model that is Packed. Losses and gradients are
// the same, up to rounding, as with [TokensAndLabels] and one sample a row.
func PackLabeled(src Source[Labeled], lengths Source[int], length int) *Packing[int] {
	type labeledToken struct {
		token  int
		target bool
	}
	tokens := Map(src, func(l Labeled) ([]labeledToken, error) {
		if err := l.check(); err != nil {
			return nil, err
		}
		list := make([]labeledToken, len(l.Tokens))
		for i, token := range l.Tokens {
			list[i] = labeledToken{token, l.Target[i]}
		}
		return list, nil
	})
	p := packWhole(fmt.Sprintf("PackLabeled(%s, length %d)", describe(src), length), tokens, lengths, length)
	return &Packing[int]{Padding: p.Padding, source: &source[Packed[int]]{n: p.n, name: p.name, err: p.err, at: func(i int) (Packed[int], error) {
		from, err := p.at(i)
		row := Packed[int]{make([]int, len(from.Elements)), from.Starts, make([]bool, len(from.Elements))}
		for k, e := range from.Elements {
			row.Elements[k], row.Target[k] = e.token, e.target
		}
		return row, err
	}}}
}

// TokensAndLabels returns the Collate function of language models that learn only some tokens. It
// makes tokens, ints [len(samples), width], and targets of the same shape, the tokens that follow
// them. Targets that are not to be learnt do not count, nor does the padding after shorter samples.
// If width is nil, the longest sample decides.
//
// The batch has the number of its targets, so [Loader.Share] weighs it right: the gradients of a
// step are those of the mean over all its targets, on any number of ranks and micro batches.
func TokensAndLabels(width Width) Collate[Labeled] {
	return func(b *Batch, samples []Labeled) error {
		inputs := func(l Labeled) []int { return l.Tokens[:max(0, len(l.Tokens)-1)] }
		for i, l := range samples {
			if len(l.Tokens) < 2 || len(l.Tokens) != len(l.Target) {
				return &rowError{i, fmt.Errorf("there are %d tokens, and Target has %d elements: want at least 2 of each", len(l.Tokens), len(l.Target))}
			}
		}
		columns, err := Pad(b, samples, inputs, width, 0)
		if err != nil {
			return err
		}
		targets := Tensor[int](b, len(samples), columns)
		for i, l := range samples {
			row := targets[i*columns : (i+1)*columns]
			for k := range row {
				if row[k] = ignoreTarget; k+1 < len(l.Tokens) && l.Target[k+1] {
					row[k] = l.Tokens[k+1]
				}
			}
		}
		return nil
	}
}
