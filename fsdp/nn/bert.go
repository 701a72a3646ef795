package nn

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/op"
)

// A Task is the head of a BERT and its loss.
type Task uint8

// The tasks. The zero value is the task of BERT's first training.
const (
	MaskedTokens      Task = iota // predict masked tokens: targets are ints [B, T]
	Encode                        // no head and no loss
	ClassifySequences             // targets are ints [B], unless Targets says otherwise
	ClassifyTokens                // targets are ints [B, T]
	EmbedSequences                // a vector for each sequence: targets are floats [B, Dim], see InfoNCE
)

// Targets are the targets of ClassifySequences.
type Targets uint8

// The kinds of targets. The zero value is one class for each sequence.
const (
	OneClass    Targets = iota // ints [B]; the loss is the cross-entropy
	ManyClasses                // floats [B, Classes], 0 or 1; the loss is the binary cross-entropy
	Numbers                    // floats [B, Classes], or [B] if Classes is 1; the loss is the mean squared error
)

// BERT is an encoder (Devlin et al., 2018, arXiv:1810.04805) with the head of a Task. With other
// settings it is RoBERTa (Liu et al., 2019, arXiv:1907.11692) or DistilBERT (Sanh et al., 2019,
// arXiv:1910.01108). Its batch is ints [B, T]: tokens, their kinds (which of two texts they belong
// to) unless Kinds is negative, a mask, which is zero where there is no token, and the targets of
// the task. A target of IgnoreTarget does not count. With Packed there are positions at the end,
// which FirstPosition is added to. Tasks on the first token of a row cannot be Packed.
//
// Its results are the loss and the logits: [B, T, Vocab], [B, Classes] or [B, T, Classes]. With
// Encode there are no targets, and the results are the last layer, [B, T, Dim], and, unless
// NoPooler, the pooler's result, [B, Dim].
//
// With EmbedSequences the results are the loss and the vectors, [B, Dim]. The loss is the mean over
// sequences of the inner product of the vector and its target. [InfoNCE] makes the targets of a
// training, and [EmbedProgram] makes vectors without targets. Dropout must be 0. Pooling by the
// mean, Normalize and the loss have no kernels for a GPU.
//
// Parameters: embed.weight [Vocab, Dim], kinds.weight [Kinds, Dim], positions.weight
// [FirstPosition+Context, Dim], embed_norm.*, layers.i.* as Layer names them, and the parameters of
// the head. MaskedTokens has transform.fc.* and transform.norm.*, of a layer before the head, and
// head.bias [Vocab]: the head shares the weight of the embedding. ClassifySequences and Encode have
// pool.* of the pooler, a linear layer on the first token with tanh. ClassifySequences and
// ClassifyTokens have head.weight [Classes, Dim] and head.bias.
type BERT struct {
	Vocab, Context             int
	Kinds                      int // 0 means 2; -1 means that tokens have no kinds, as in DistilBERT
	FirstPosition              int // position of the first token if padding has the one before, as in RoBERTa; 0 counts padding, too
	Layers, Dim, Heads, Hidden int
	Act                        Activation
	Packed                     bool // rows have several documents: see Packed rows in the package comment
	Dropout                    float64
	Eps                        float64 // of the norms; 0 means 1e-12
	LoRA                       LoRA    // of the layers' linear layers

	Task     Task
	Targets  Targets // of ClassifySequences
	Classes  int     // of ClassifySequences and ClassifyTokens
	PoolReLU bool    // the pooler has ReLU in place of tanh, as in DistilBERT
	NoPooler bool    // of Encode

	MeanPool  bool // EmbedSequences has the mean of all tokens, not the first token
	Normalize bool // vectors of EmbedSequences have length 1
}

// Inputs names the tensors of a batch.
func (m *BERT) Inputs() []string {
	names := []string{"tokens", "kinds", "mask", "targets"}
	if m.Kinds < 0 {
		names = slices.Delete(names, 1, 2)
	}
	if m.Task == Encode {
		names = names[:len(names)-1]
	}
	return inputs(m.Packed, names...)
}

// check returns an error if a setting is out of range.
func (m *BERT) check() error {
	if err := checkModel("BERT", &m.layer().Attn, size{"Vocab", m.Vocab, 1}, size{"Context", m.Context, 1}, size{"Kinds", m.Kinds, -1},
		size{"FirstPosition", m.FirstPosition, 0}, size{"Layers", m.Layers, 0}, size{"Dim", m.Dim, 1}, size{"Heads", m.Heads, 1},
		size{"Hidden", m.Hidden, 1}); err != nil {
		return err
	}
	if m.Packed && (m.Task == ClassifySequences || m.Task == EmbedSequences || m.Task == Encode && !m.NoPooler) {
		return errors.New("nn: BERT: with Packed a row has several documents, but the task makes one result of a row: use ClassifyTokens, or Encode with NoPooler")
	}
	if m.Task == EmbedSequences && m.Dropout != 0 {
		return fmt.Errorf("nn: BERT: Dropout is %v, but EmbedSequences needs 0: InfoNCE computes the loss in a pass without dropout, and the gradients in another pass", m.Dropout)
	}
	return checkTask("BERT", m.Task, m.Targets, m.Classes)
}

// checkTask returns an error if an encoder has no such head.
func checkTask(model string, task Task, targets Targets, classes int) error {
	switch {
	case task > EmbedSequences || targets > Numbers:
		return fmt.Errorf("nn: %s has task %d and targets %d, which do not exist", model, task, targets)
	case (task == ClassifySequences || task == ClassifyTokens) && classes < 1:
		return fmt.Errorf("nn: %s has %d classes, want a positive number", model, classes)
	case targets != OneClass && task != ClassifySequences:
		return fmt.Errorf("nn: %s has targets %d with task %d: only ClassifySequences has other targets than OneClass", model, targets, task)
	}
	return nil
}

// Forward implements fsdp.Model.
func (m *BERT) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	if want := len(m.Inputs()); len(in) != want {
		return nil, fmt.Errorf("nn: BERT: the batch has %d tensors, want %d: %v", len(in), want, m.Inputs())
	}
	x, mask := m.encode(t, in)
	return m.results(t, x, mask, in[slices.Index(m.Inputs(), "mask")+1:]), nil
}

// Programs returns [EmbedProgram] for [fsdp.Sharded.EvalProgram], with EmbedSequences.
func (m *BERT) Programs() map[string]fsdp.Program {
	return embedPrograms(m.Task, func(t *fsdp.Tape, in []fsdp.Ref) fsdp.Ref {
		x, mask := m.encode(t, in)
		return vectors(t, m.MeanPool, m.Normalize, x, mask)
	})
}

// encode returns the last layer, and the mask among the inputs.
func (m *BERT) encode(t *fsdp.Tape, in []fsdp.Ref) (x, mask fsdp.Ref) {
	at := positions(m.Packed, in, m.Inputs())
	x = t.Call("embed", m.embedding(m.Vocab), in[0])
	if m.Kinds >= 0 {
		x = t.Call("add_kinds", &Add{}, x, t.Call("kinds", m.kinds(), in[1]))
		in = in[1:]
	}
	mask = in[1]
	if m.FirstPosition > 0 {
		x = t.Call("positions", &paddedPositions{*m.positions(), m.FirstPosition}, append([]fsdp.Ref{x, mask}, at...)...)
	} else {
		x = t.Call("positions", m.positions(), append([]fsdp.Ref{x}, at...)...)
	}
	x = t.Call("embed_norm", m.norm(), x)
	x = m.drop(t, "embed_dropout", x)
	return layers(t, "", m.Layers, always(m.layer()), x, append([]fsdp.Ref{mask}, at...)...), mask
}

// results calls the head of the task.
func (m *BERT) results(t *fsdp.Tape, x, mask fsdp.Ref, targets []fsdp.Ref) []fsdp.Ref {
	var head fsdp.Module = m.head()
	switch m.Task {
	case MaskedTokens:
		x = t.Call("transform", m.transform(), x)
	case Encode:
		if m.NoPooler {
			return []fsdp.Ref{x}
		}
		return []fsdp.Ref{x, m.pooled(t, x)}
	case ClassifySequences:
		x = m.drop(t, "head_dropout", m.pooled(t, x))
		if m.Targets != OneClass {
			head = &scores{Linear{In: m.Dim, Out: m.Classes}, m.Targets}
		}
	case ClassifyTokens:
		x = m.drop(t, "head_dropout", x)
	case EmbedSequences:
		x = vectors(t, m.MeanPool, m.Normalize, x, mask)
		return []fsdp.Ref{t.Call("loss", &innerProduct{}, x, targets[0]), x}
	}
	loss := t.Call("head", head, x, targets[0])
	return []fsdp.Ref{loss, loss.At(1)}
}

// drop applies dropout, if there is any.
func (m *BERT) drop(t *fsdp.Tape, name string, x fsdp.Ref) fsdp.Ref {
	if m.Dropout == 0 {
		return x
	}
	return t.Call(name, &Dropout{Rate: m.Dropout}, x)
}

// pooled returns the pooler's result.
func (m *BERT) pooled(t *fsdp.Tape, x fsdp.Ref) fsdp.Ref {
	act := Tanh
	if m.PoolReLU {
		act = ReLU
	}
	x = t.Call("first", &First{}, x)
	return t.Call("pool_act", &Pointwise{Act: act}, t.Call("pool", m.pool(), x))
}

func (m *BERT) eps() float64                  { return cmp.Or(m.Eps, 1e-12) }
func (m *BERT) embedding(rows int) *Embedding { return &Embedding{Rows: rows, Dim: m.Dim} }
func (m *BERT) kinds() *Embedding             { return m.embedding(cmp.Or(m.Kinds, 2)) }
func (m *BERT) positions() *Positions {
	return &Positions{Rows: m.FirstPosition + m.Context, Dim: m.Dim}
}
func (m *BERT) norm() *LayerNorm { return &LayerNorm{Dim: m.Dim, Eps: m.eps()} }
func (m *BERT) layer() *Layer {
	return &Layer{
		Attn:     Attention{Dim: m.Dim, Heads: m.Heads, Masked: true, Dropout: m.Dropout, LoRA: m.LoRA},
		MLP:      MLP{Dim: m.Dim, Hidden: m.Hidden, Act: m.Act, Dropout: m.Dropout, LoRA: m.LoRA},
		PostNorm: true, Eps: m.eps(),
	}
}
func (m *BERT) transform() *transform { return &transform{Dim: m.Dim, Act: m.Act, Eps: m.eps()} }
func (m *BERT) pool() *Linear         { return &Linear{In: m.Dim, Out: m.Dim} }
func (m *BERT) head() *Head {
	if m.Task != MaskedTokens {
		return &Head{Dim: m.Dim, Classes: m.Classes, Bias: true}
	}
	return &Head{Dim: m.Dim, Classes: m.Vocab, Tied: "embed.weight", Bias: true}
}

// top returns the modules after the layers.
func (m *BERT) top() []fsdp.Module {
	switch {
	case m.Task == MaskedTokens:
		return []fsdp.Module{m.transform(), m.head()}
	case m.Task == EmbedSequences, m.Task == Encode && m.NoPooler:
		return nil
	case m.Task == Encode:
		return []fsdp.Module{m.pool()}
	case m.Task == ClassifySequences:
		return []fsdp.Module{m.pool(), m.head()}
	}
	return []fsdp.Module{m.head()}
}

// transform is the layer before the head of an encoder: norm(act(fc(x))).
type transform struct {
	Dim    int
	Act    Activation
	Eps    float64
	NoBias bool
}

func (m *transform) fc() *Linear      { return &Linear{In: m.Dim, Out: m.Dim, NoBias: m.NoBias} }
func (m *transform) norm() *LayerNorm { return &LayerNorm{Dim: m.Dim, Eps: m.Eps, NoBias: m.NoBias} }

// Params implements fsdp.Module.
func (m *transform) Params() []fsdp.Param {
	return append(fsdp.Prefix("fc", m.fc()), fsdp.Prefix("norm", m.norm())...)
}

// Build implements fsdp.Module.
func (m *transform) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	if err := arguments(in, 1); err != nil {
		return nil, err
	}
	return one(chain(in[0], part(b, "fc", m.fc()), m.Act.apply, part(b, "norm", m.norm())))
}

// scores is a linear head whose targets are floats of the shape of its logits: it maps x [B, Dim]
// and targets to the loss and the logits.
type scores struct {
	Linear
	Targets Targets
}

// Build implements fsdp.Module.
func (m *scores) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	if err := arguments(in, 2); err != nil {
		return nil, err
	}
	out, err := m.Linear.Build(b, in[0])
	if err != nil {
		return nil, err
	}
	logits, targets := out[0], in[1]
	if m.Out == 1 && targets.Dims() == 1 {
		if targets, err = reshape(targets.Shape()[0], 1)(targets); err != nil {
			return nil, err
		}
	}
	if !targets.Shape().Eq(logits.Shape()) {
		return nil, fmt.Errorf("targets are %v, want floats %v: one for each class", in[1].Shape(), logits.Shape())
	}
	loss := op.BCE
	if m.Targets == Numbers {
		loss = op.MSE
	}
	y, err := loss(logits, targets)
	return gorgonia.Nodes{y, logits}, err
}

// paddedPositions adds positions to x [B, T, Dim] that count the tokens of a mask, ints [B, T],
// from First on. Where there is no token the position is First-1. A third input, ints [B, T], has
// the positions of tokens of packed rows, to which First is added.
type paddedPositions struct {
	Positions
	First int
}

// Build implements fsdp.Module.
func (m *paddedPositions) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	p, err := operandsOr(b, in, 2, "weight")
	if err != nil {
		return nil, err
	}
	packed := len(in) == 3
	if x := in[0]; !packed && x.Dims() == 3 && x.Shape()[1] > m.Rows-m.First {
		return nil, fmt.Errorf("the sequences of the batch have %d tokens, but the model has positions for only %d: cut the sequences, or raise Context", x.Shape()[1], m.Rows-m.First)
	}
	add := &op.Custom{
		Name:     "padded positions",
		Shapes:   "x [... t d], table [n d], mask int [... t] -> y [... t d]",
		Forward:  op.Kernel{F32: addPositions[float32](m.First, packed), F64: addPositions[float64](m.First, packed)},
		Backward: op.Kernel{F32: positionGrads[float32](m.First, packed), F64: positionGrads[float64](m.First, packed)},
		Reads:    []string{"mask"},
	}
	if packed {
		add.Shapes = "x [... t d], table [n d], mask int [... t], positions int [... t] -> y [... t d]"
		add.Reads = append(add.Reads, "positions")
	}
	return one(add.Apply(append(gorgonia.Nodes{in[0], p[0]}, in[1:]...)...))
}

// eachPosition calls f for each token of x with its position.
func eachPosition[T op.Float](a op.Args[T], first int, packed bool, f func(token, position int)) error {
	length, rows, mask := a.Dim("t"), a.Dim("n"), a.Ints(2)
	var given []int
	if packed {
		given = a.Ints(3)
	}
	next := first
	for i, is := range mask {
		if i%length == 0 {
			next = first
		}
		if is == 0 {
			f(i, first-1)
			continue
		}
		if given != nil {
			next = first + given[i]
		}
		if next < first || next >= rows {
			return fmt.Errorf("token %d of row %d has position %d, but the model has positions for only %d tokens: cut the document, or raise Context", i%length, i/length, next-first, rows-first)
		}
		f(i, next)
		next++
	}
	return nil
}

func addPositions[T op.Float](first int, packed bool) func(a op.Args[T]) error {
	return func(a op.Args[T]) error {
		d, x, table, y := a.Dim("d"), a.In(0), a.In(1), a.Out(0)
		return eachPosition(a, first, packed, func(token, position int) {
			for i, v := range table[position*d:][:d] {
				y[token*d+i] = x[token*d+i] + v
			}
		})
	}
}

func positionGrads[T op.Float](first int, packed bool) func(a op.Args[T]) error {
	return func(a op.Args[T]) error {
		d, dy, table := a.Dim("d"), a.DOut(), a.Grad(1)
		copy(a.Grad(0), dy)
		clear(table)
		return eachPosition(a, first, packed, func(token, position int) {
			for i, v := range dy[token*d:][:d] {
				table[position*d+i] += v
			}
		})
	}
}

// NumParams returns the number of elements of all parameters.
func (m *BERT) NumParams() int {
	modules := append(m.top(), m.embedding(m.Vocab), m.positions(), m.norm())
	if m.Kinds >= 0 {
		modules = append(modules, m.kinds())
	}
	return elements(modules...) + m.Layers*elements(m.layer())
}

// FLOPs returns the floating-point operations of forward and backward for one token of a sequence
// of that length, counted as for GPT. A head on the first token counts for no token.
func (m *BERT) FLOPs(length int) int {
	head := 0
	switch m.Task {
	case MaskedTokens:
		head = matrices(m.transform()) + m.Vocab*m.Dim
	case ClassifyTokens:
		head = m.Classes * m.Dim
	}
	return flops(m.Layers*matrices(m.layer())+head, m.Layers*m.Dim*length)
}
