package nn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// InfoNCE trains an encoder with EmbedSequences to find texts by their meaning (van den Oord et
// al., 2018, arXiv:1807.03748). It is MultipleNegativesRankingLoss of sentence-transformers. A row
// of the data is several texts, which are sequences one after the other in a batch: an anchor, such
// as a question, its positive, such as the answer, and any number of negatives. The candidates of
// an anchor are the positives and negatives of all rows of the step, on all ranks. The loss of a
// row is
//
//	-log softmax(Scale · cosines of the anchor and all candidates)[the positive]
//
// and the loss of a step is the mean over its rows. ForwardBackward is in the place of Forward and
// Backward in a training, and its arguments are all batches that this rank has in the step, without
// targets:
//
//	for batch, err := range m.Join(ctx, loader.Batches(ctx)) {
//		loss, err := nn.InfoNCE{}.ForwardBackward(ctx, m, batch)
//		err = opt.Step(lr)
//		m.ZeroGrad()
//	}
//
// The division of the rows into ranks and batches does not change the loss and the gradients, up to
// rounding, and with Config.VirtualRanks not one bit. So large steps fit into memory as small
// batches. Each batch is computed twice (GradCache, Gao et al., 2021, arXiv:2101.06983). First an
// Eval makes its vectors, and all ranks exchange them. Each rank computes the loss, and the
// gradients of its own vectors. Then a Forward and a Backward have these gradients as targets.
// Ranks may have different numbers of rows and batches, or none: nil batches do not count.
//
// A model of yours works, too, if it has [EmbedProgram] and the loss of EmbedSequences, and draws
// no random numbers.
type InfoNCE struct {
	Texts     int     // of a row; 0 means 2: an anchor and its positive
	Scale     float64 // of the cosines, the inverse of the temperature; 0 means 20
	Symmetric bool    // the mean with the loss of finding the anchor of each positive among all anchors
}

// ForwardBackward returns the loss of the rows of all ranks, on every rank, and adds its gradients
// as [fsdp.Sharded.Backward] does. It is collective.
func (l InfoNCE) ForwardBackward(ctx context.Context, m *fsdp.Sharded, batches ...[]fsdp.Tensor) (loss float64, err error) {
	batches = present(batches)
	c, err := l.compute(ctx, m, batches)
	if err != nil {
		return 0, err
	}
	var step [][]fsdp.Tensor
	for i, batch := range batches {
		step = append(step, append(slices.Clip(batch), c.targets(i)))
	}
	for batch, err := range m.Join(ctx, fsdp.Batches(step...)) {
		if err != nil {
			return 0, err
		}
		if _, err := m.Forward(ctx, batch...); err != nil {
			return 0, err
		}
		if err := m.Backward(ctx, fsdp.Share(step...)); err != nil {
			return 0, err
		}
	}
	return c.loss, nil
}

// Eval returns the loss without gradients. It is collective.
func (l InfoNCE) Eval(ctx context.Context, m *fsdp.Sharded, batches ...[]fsdp.Tensor) (loss float64, err error) {
	c, err := l.compute(ctx, m, present(batches))
	if err != nil {
		return 0, err
	}
	return c.loss, nil
}

// present returns the batches that are not nil.
func present(batches [][]fsdp.Tensor) [][]fsdp.Tensor {
	return slices.DeleteFunc(slices.Clone(batches), func(b []fsdp.Tensor) bool { return b == nil })
}

// compute makes the vectors of all batches, exchanges them, and computes the loss and the
// gradients. It works in float64 and in the order of the rows, so that the bits depend on the
// vectors alone.
func (l InfoNCE) compute(ctx context.Context, m *fsdp.Sharded, batches [][]fsdp.Tensor) (*contrast, error) {
	l.Texts, l.Scale = cmp.Or(l.Texts, 2), cmp.Or(l.Scale, 20)
	g := m.Group()
	c := &contrast{InfoNCE: l, rank: g.Rank()}
	for batch, err := range m.Join(ctx, fsdp.Batches(batches...)) {
		if err != nil {
			return nil, err
		}
		out, err := m.EvalProgram(ctx, EmbedProgram, batch...)
		if err != nil {
			return nil, fmt.Errorf("nn: InfoNCE: vectors of Task EmbedSequences: %w", err)
		}
		if batch != nil {
			c.vectors = append(c.vectors, out[0])
		}
	}
	err := c.exchange(ctx, g)
	if err == nil {
		err = c.run(ctx, g)
	}
	if err != nil {
		return nil, fmt.Errorf("nn: InfoNCE: %w", err)
	}
	return c, nil
}

// contrast is the computation of one step. The rows of the first batches of all ranks come first,
// then those of the second batches, and so on: the order of virtual ranks.
type contrast struct {
	InfoNCE
	rank    int
	vectors []fsdp.Tensor // of this rank's batches, [B, Dim]
	dim     int
	counts  []int     // by rank: its rows
	order   []int     // the numbers of the rows of all ranks, rank by rank
	own     []int     // the part of this rank
	unit    []float64 // the vectors of all texts, divided by their lengths: [rows, Texts, dim]
	grad    []float64 // the gradients of unit on this rank: [own rows, Texts, dim]
	loss    float64
}

// at returns the unit vector of a text of a row.
func (c *contrast) at(row, text int) []float64 { return c.unit[(row*c.Texts+text)*c.dim:][:c.dim] }

// gradAt returns the gradient of the unit vector of a text of an own row.
func (c *contrast) gradAt(i, text int) []float64 { return c.grad[(i*c.Texts+text)*c.dim:][:c.dim] }

// local returns the unit vectors of this rank, or an error in the settings or in its vectors.
func (c *contrast) local() (unit []float64, err error) {
	switch {
	case c.Texts < 2:
		return nil, fmt.Errorf("field Texts is %d, want at least 2: an anchor and its positive", c.Texts)
	case !(c.Scale > 0) || math.IsInf(c.Scale, 0):
		return nil, fmt.Errorf("field Scale is %v, want a positive number", c.Scale)
	}
	for i, v := range c.vectors {
		shape := v.Shape()
		if len(shape) != 2 || i > 0 && shape[1] != c.dim {
			return nil, fmt.Errorf("the vectors of batch %d are %v, want [texts %d]", i, shape, c.dim)
		}
		if c.dim = shape[1]; shape[0]%c.Texts != 0 {
			return nil, fmt.Errorf("batch %d has %d texts, want a multiple of %d: the texts of a row follow each other in a batch", i, shape[0], c.Texts)
		}
		all := float64s(v)
		for j := range shape[0] {
			x := all[j*c.dim:][:c.dim]
			length := math.Sqrt(vec.Dot(x, x))
			if !(length > 0) || math.IsInf(length, 0) {
				return nil, fmt.Errorf("the vector of text %d of batch %d has length %v, want a positive number: the text has no tokens, or the training diverges", j, i, length)
			}
			for _, value := range x {
				unit = append(unit, value/length)
			}
		}
	}
	return unit, nil
}

// exchange gathers the unit vectors of all ranks. If a rank has an error, all ranks return it.
func (c *contrast) exchange(ctx context.Context, g comm.Group) error {
	unit, err := c.local()
	text := ""
	if err != nil {
		text = fmt.Sprintf("rank %d: %v", c.rank, err)
	}
	mine := []int64{int64(len(text)), int64(len(c.vectors)), int64(c.dim), int64(c.Texts), int64(math.Float64bits(c.Scale)), 0}
	if c.Symmetric {
		mine[5] = 1
	}
	all, err := gather(ctx, g, mine, slices.Repeat([]int{len(mine)}, g.Size()))
	if err != nil {
		return err
	}
	lengths, batches := make([]int, g.Size()), make([]int, g.Size())
	for r := range g.Size() {
		words := all[r*len(mine):][:len(mine)]
		if lengths[r], batches[r] = int(words[0]), int(words[1]); batches[r] > 0 {
			c.dim = int(words[2])
		}
	}
	if slices.Max(lengths) > 0 {
		texts, err := gather(ctx, g, []byte(text), lengths)
		if err != nil {
			return err
		}
		from := slices.IndexFunc(lengths, func(n int) bool { return n > 0 })
		return errors.New(string(texts[:lengths[from]]))
	}
	for r := range g.Size() {
		if words := all[r*len(mine):][:len(mine)]; !slices.Equal(words[3:], all[3:len(mine)]) {
			return fmt.Errorf("rank %d has Texts %d, Scale %v and Symmetric %v, but rank 0 has %d, %v and %v: all ranks need the same settings",
				r, words[3], math.Float64frombits(uint64(words[4])), words[5] == 1, all[3], math.Float64frombits(uint64(all[4])), all[5] == 1)
		}
	}
	if err := c.number(ctx, g, batches); err != nil {
		return err
	}
	c.unit, err = c.gatherRows(ctx, g, unit, c.Texts*c.dim)
	return err
}

// number decides the order of the rows of all ranks, which have some numbers of batches.
func (c *contrast) number(ctx context.Context, g comm.Group, batches []int) error {
	if slices.Max(batches) == 0 {
		return errors.New("no rank has a text")
	}
	var mine []int64
	for _, v := range c.vectors {
		mine = append(mine, int64(v.Shape()[0]/c.Texts))
	}
	sizes, err := gather(ctx, g, mine, batches)
	if err != nil {
		return err
	}
	first, rows := make([]int, len(sizes)), 0 // by rank and batch
	for batch := range slices.Max(batches) {
		i := batch
		for _, n := range batches {
			if batch < n {
				first[i] = rows
				rows += int(sizes[i])
			}
			i += n
		}
	}
	i := 0
	for r, n := range batches {
		before := len(c.order)
		for ; n > 0; n-- {
			for row := range int(sizes[i]) {
				c.order = append(c.order, first[i]+row)
			}
			i++
		}
		if c.counts = append(c.counts, len(c.order)-before); r == c.rank {
			c.own = c.order[before:]
		}
	}
	return nil
}

// gather returns the elements of all ranks, of which rank r has counts[r].
func gather[T comm.Elem](ctx context.Context, g comm.Group, mine []T, counts []int) (all []T, err error) {
	n := slices.Max(counts)
	padded, from := make([]T, n*g.Size()), make([]T, n)
	copy(from, mine)
	if err := g.AllGather(comm.Of(padded).Named("nn.InfoNCE"), comm.Of(from).Named("nn.InfoNCE")).Wait(ctx); err != nil {
		return nil, fmt.Errorf("rank %d: %w", g.Rank(), err)
	}
	for r, count := range counts {
		all = append(all, padded[r*n:][:count]...)
	}
	return all, nil
}

// gatherRows returns the elements of the rows of all ranks in order, n of each row.
func (c *contrast) gatherRows(ctx context.Context, g comm.Group, mine []float64, n int) ([]float64, error) {
	counts := slices.Clone(c.counts)
	for r := range counts {
		counts[r] *= n
	}
	all, err := gather(ctx, g, mine, counts)
	sorted := make([]float64, len(all))
	for i := range len(all) / n {
		copy(sorted[c.order[i]*n:][:n], all[i*n:])
	}
	return sorted, err
}

// A search is a part of the loss: the query of each row looks for its target among the keys of all
// rows. Its numbers count the texts of a row.
type search struct{ query, target, firstKey, endKey int }

// run computes the loss and the gradients of this rank's unit vectors.
func (c *contrast) run(ctx context.Context, g comm.Group) error {
	searches := []search{{query: 0, target: 1, firstKey: 1, endKey: c.Texts}}
	if c.Symmetric {
		searches = append(searches, search{query: 1, target: 0, firstKey: 0, endKey: 1})
	}
	c.grad = make([]float64, len(c.own)*c.Texts*c.dim)
	weight := 1 / float64(len(c.order)*len(searches))
	for _, s := range searches {
		rows, err := c.gatherRows(ctx, g, c.queries(s, weight), 2)
		if err != nil {
			return err
		}
		for i := 1; i < len(rows); i += 2 {
			c.loss += weight * rows[i]
		}
		c.keys(s, weight, rows)
	}
	return nil
}

// queries adds the gradients of the queries of this rank, times weight. It returns the log-sum-exp
// and the loss of each of its rows.
func (c *contrast) queries(s search, weight float64) (rows []float64) {
	keys := s.endKey - s.firstKey
	key := func(i int) []float64 { return c.at(i/keys, s.firstKey+i%keys) }
	scores := make([]float64, len(c.order)*keys)
	for own, row := range c.own {
		query := c.at(row, s.query)
		for i := range scores {
			scores[i] = vec.Dot(query, key(i))
		}
		target := row*keys + s.target - s.firstKey
		found := c.Scale * scores[target]
		lse := vec.SoftmaxRow(scores, scores, c.Scale)
		rows = append(rows, lse, lse-found)
		scores[target]--
		for i, p := range scores {
			vec.AddScaled(c.gradAt(own, s.query), key(i), weight*c.Scale*p)
		}
	}
	return rows
}

// keys adds the gradients of the keys of this rank, times weight. rows has the log-sum-exp of each
// row of all ranks, before its loss.
func (c *contrast) keys(s search, weight float64, rows []float64) {
	for own, row := range c.own {
		for text := s.firstKey; text < s.endKey; text++ {
			key := c.at(row, text)
			for other := range len(c.order) {
				query := c.at(other, s.query)
				p := math.Exp(c.Scale*vec.Dot(query, key) - rows[2*other])
				if other == row && text == s.target {
					p--
				}
				vec.AddScaled(c.gradAt(own, text), query, weight*c.Scale*p)
			}
		}
	}
}

// targets returns the targets of a batch of this rank: the gradients of its vectors, times the
// number of all texts, since the loss of the model is a mean over texts.
func (c *contrast) targets(batch int) fsdp.Tensor {
	first := 0
	for _, v := range c.vectors[:batch] {
		first += v.Shape().TotalSize()
	}
	v := c.vectors[batch]
	x := float64s(v)
	targets := make([]float64, len(x))
	for i := 0; i < len(x); i += c.dim {
		unitGrad(targets[i:][:c.dim], x[i:][:c.dim], c.grad[first+i:][:c.dim])
	}
	vec.Scale(targets, float64(len(c.order)*c.Texts))
	shape := tensor.WithShape(v.Shape()...)
	if v.Dtype() == tensor.Float64 {
		return tensor.New(shape, tensor.WithBacking(targets))
	}
	narrow := make([]float32, len(targets))
	for i, value := range targets {
		narrow[i] = float32(value)
	}
	return tensor.New(shape, tensor.WithBacking(narrow))
}

// float64s returns the elements of a tensor of floats.
func float64s(t fsdp.Tensor) []float64 {
	if x, ok := t.Data().([]float64); ok {
		return x
	}
	narrow := t.Data().([]float32)
	x := make([]float64, len(narrow))
	for i, v := range narrow {
		x[i] = float64(v)
	}
	return x
}
