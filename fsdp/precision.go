package fsdp

import (
	"errors"
	"fmt"
	"strings"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/internal/kernel"
)

// Precision says in which types a model computes and communicates. [BF16] suits most training in 16
// bits. The rank that owns a parameter keeps it, its gradient and the state of its optimizer
// in the master type: Float64 if Compute is Float64, else Float32. The optimizer updates these
// masters, and StateDict and checkpoints hold them, so a checkpoint loads under any precision.
// Batches, results and losses are of the master type, too. Master makes parameters and gradients
// smaller.
//
// Parameters that travel in fewer bits than Compute has are widened when they arrive. That saves
// traffic, but neither speeds up the computation nor saves memory. Gradients that travel in
// BFloat16 save memory, too: see Reduce.
type Precision struct {
	// Compute is the type of computation: Float32, BFloat16, Float16 on GPUs, or Float64 for tests.
	//
	// In BFloat16, gathered parameters, activations, data kept for backward and gradients of
	// activations are stored in 16 bits, rounded to nearest even. Sums, the statistics of norms and
	// softmax, losses, and gradients of parameters are in Float32. A processor with AMX, or one from
	// AMD with AVX512_BF16, multiplies such operands faster than Float32. Other processors widen them,
	// which saves memory and costs time: see Plan.Kernels. Stock operations of Gorgonia widen and
	// round, too.
	//
	// Float16 needs Config.Device. It stores the same values, with 3 more bits of mantissa and a
	// smaller range: what is beyond 65504 becomes infinite, and what is below 2⁻²⁵ becomes 0. So
	// scale losses by an [optim.LossScaler], see [Sharded.Unscale], or gradients of activations
	// vanish. Reduce may be Float16 too, and Wide keeps calls in Float32.
	Compute DType
	// Gather is the type in which parameters travel to the ranks that need them: BFloat16, Float16,
	// [Int8], or Compute. The zero value means Compute. 16 bits other than Compute need Compute to
	// be Float32, and Int8 needs Float32 or BFloat16, on processors.
	Gather DType
	// Reduce is the type in which gradients travel, with the same choices. The zero value means the
	// master type. Int8 sums are taken in Float32 and not rounded, see [Int8]. BFloat16 and Float16
	// sums are taken in Float32 and rounded once, under HybridShard twice. With Float16, gradients
	// are divided by a part of the divisor before the sum and by the rest after it, against
	// overflow. A gradient that still overflows becomes infinite, which [Sharded.Unscale] and
	// ClipGradNorm notice.
	//
	// With BFloat16, Backward writes the whole gradients of a unit rounded, in half the memory. The
	// bits are the same as if they were rounded when they are sent. Whole gradients stay in Float32
	// where they are sums of several passes (inside NoSync and after it, and with
	// Config.VirtualRanks) or of several calls, such as of tied embeddings, and where an optional
	// call may be absent. They also stay in Float32 in a unit in which the gradient of an embedding,
	// a convolution or a fused loss has at least half of the elements. [Plan] counts the memory.
	Reduce DType
	// Master is the type in which ranks keep their parts of parameters that are not Full, and of
	// their gradients: BFloat16, or the master type, which the zero value means. BFloat16 needs
	// Compute to be BFloat16, halves this memory, and gathers parameters without rounding them.
	//
	// An update computes in Float32 and rounds the new value at random: to one of the two values of
	// BFloat16 next to it, with the probability that makes the expected value exact. The random
	// numbers are a function of the parameter's name, the element and the optimizer's steps, so
	// results have the same bits on any number of ranks and threads, under every strategy and over
	// every transport. SGD, Adam and AdamW update such parameters, with a state of 32 or 16 bits.
	// Other optimizers, and a state of 8 bits, are an error of New. Averages ([optim.EMA]) are
	// Float32; [optim.Swap] and [optim.UpdateEMA] would round them, and refuse.
	//
	// Everything else rounds to the nearest: initial values, Load and the other methods that set
	// parameters, Backward when it adds to gradients that are there, and ClipGradNorm. So if a step
	// has many Backwards, reduce once, inside NoSync or with Config.VirtualRanks: these sums are in
	// Float32. StateDict, checkpoints and files hold Float32 as before. Parameters that come from a
	// training with this type load into it again with the same bits. Not with Gather Int8.
	Master DType
	// TypesOf, if set, decides for each parameter that is not Full: it returns replacements for
	// Gather and Reduce, with the same choices and zero values. So embeddings may travel in the
	// type of computation, and all else as Int8. Parameters of a unit that travel in types other
	// than the rest are a separate [GroupPlan], gathered and reduced by separate collectives. If
	// all parameters of a unit travel alike, there are no more collectives than without TypesOf. It
	// must be a pure function. Every rank applies it, and Wrap compares the results. Checkpoints do
	// not depend on it.
	TypesOf func(c CallInfo, p Param) (gather, reduce DType)
	// Full selects parameters that travel, and are read by calls, in the master type regardless.
	// Nil selects parameters whose Param.Full is set, such as the norms of package nn. If Gather or
	// Reduce is Int8, nil also selects parameters of fewer than two dimensions, such as biases.
	Full func(c CallInfo, p Param) bool
	// Wide selects calls that compute in Float32 if Compute is BFloat16 or Float16, together with all
	// calls of the same module by Tape.Again. The parameters that they own are Full. Nil selects none.
	Wide Policy
}

// BF16 returns the Precision of mixed training in bfloat16: parameters travel and compute in
// BFloat16, gradients are summed in Float32, norms and losses are computed in Float32, and masters,
// optimizer and checkpoints are in Float32. No loss scale is needed: bfloat16 has the range of
// float32.
func BF16() Precision { return Precision{Compute: BFloat16} }

// String returns the fields that are set.
func (p Precision) String() string { return setFields(p) }

// DType is an element type.
type DType uint8

// The element types. The zero value is Float32.
const (
	Float32 DType = iota
	Float64
	BFloat16
	Float16
	// Int8 is a type for travel only, over ranks that compute on processors. 256 consecutive
	// elements of a parameter, counted from its first, are a block: a signed byte for each element,
	// and one float32 of which the elements are multiples, 1/127 of the largest magnitude (ZeRO++,
	// https://arxiv.org/abs/2306.10209). Every block takes 260 bytes, including the last. An
	// element is rounded to the nearest multiple, ties to even, so its error is at most 1/254 of
	// the largest magnitude in its block. If an element is not finite, its whole block becomes NaN.
	// A block whose largest magnitude is below 2⁻¹⁰⁰ becomes zeros. Blocks and rounded values do
	// not depend on where parameters are cut: they are the same under every strategy, number of
	// ranks, transport and prefetch depth, and on every machine.
	//
	// Each rank sends blocks of gradients to their owners, which sum them in Float32, in the order
	// of other sums. The rounding errors of a rank's gradients are added to the gradients of its
	// next Backward that reduces, before those are rounded. For that every rank keeps 260 bytes for
	// each block of the whole model, [Plan].ErrorBytes: the errors, as blocks, which are themselves
	// off by at most 1/254² of the largest magnitude in the block of gradients. Checkpoints do not
	// contain them, because they would take that much for each rank. Save and SaveAsync drop them,
	// like Load, Import and Freeze. So a training that continues from a checkpoint has the bits of
	// the training that saved it, but a training that saves at other steps has other bits. A drop
	// loses the errors of one Backward. Between replicas (of the hybrid strategies, and under
	// NoShard, which so saves nothing) sums travel in Float32. If HybridShard has the bits of
	// FullShard in Float32, it has them with Int8.
	Int8
)

// String returns the type's name in lower case.
func (d DType) String() string {
	names := [...]string{"float32", "float64", "bfloat16", "float16", "int8"}
	if int(d) < len(names) {
		return names[d]
	}
	return fmt.Sprintf("DType(%d)", uint8(d))
}

// comm returns the type for collectives, in which blocks are bytes.
func (d DType) comm() comm.DType {
	return [...]comm.DType{Float32: comm.Float32, Float64: comm.Float64, BFloat16: comm.BFloat16, Float16: comm.Float16, Int8: comm.Uint8}[d]
}

// tensor returns the type for Gorgonia, which has none of 16 bits.
func (d DType) tensor() tensor.Dtype {
	if d == Float64 {
		return tensor.Float64
	}
	return tensor.Float32
}

// withDefaults returns p with zero values replaced, or an error for an invalid field.
func (p Precision) withDefaults() (Precision, error) {
	switch {
	case p.Compute > Float16:
		return p, fmt.Errorf("Config.Precision.Compute is %v: want Float32, BFloat16, Float16 or Float64", p.Compute)
	case p.Master != Float32 && p.Master != BFloat16 && p.Master != p.wide():
		return p, fmt.Errorf("Config.Precision.Master is %v: want BFloat16 or Float32", p.Master)
	case p.Master == BFloat16 && p.Compute != BFloat16:
		return p, fmt.Errorf("Config.Precision.Master is bfloat16, but Compute is %v: want BFloat16 for both", p.Compute)
	case p.Wide != nil && !p.low():
		return p, fmt.Errorf("Config.Precision.Wide selects calls that stay in Float32, but Compute is %v: want BFloat16 or Float16", p.Compute)
	}
	var err error
	if p.Gather, err = p.traveling("Config.Precision.Gather", p.Gather, p.Compute); err != nil {
		return p, err
	}
	if p.Reduce, err = p.traveling("Config.Precision.Reduce", p.Reduce, p.wide()); err != nil {
		return p, err
	}
	if p.Master == Float32 {
		p.Master = p.wide()
	}
	blocks := p.Gather == Int8 || p.Reduce == Int8
	if p.Full == nil {
		p.Full = func(_ CallInfo, q Param) bool { return q.Full || blocks && len(q.Shape) < 2 }
	}
	return p, nil
}

// traveling returns the type that t stands for, or an error if it is invalid. name is the field or
// function that gives t.
func (p Precision) traveling(name string, t, unset DType) (DType, error) {
	switch {
	case t == Float32:
		return unset, nil
	case t == p.Compute, t == Int8 && p.wide() == Float32:
		return t, nil
	case t != BFloat16 && t != Float16:
		return t, fmt.Errorf("%s is %v: want BFloat16, Float16 or the type of Compute", name, t)
	case p.Compute != Float32:
		return t, fmt.Errorf("%s is %v, which needs Compute to be Float32, not %v", name, t, p.Compute)
	}
	return t, nil
}

// typesOf asks Precision.TypesOf about a parameter of kind k. If it returns the types of all
// parameters, k does not change.
func (c *Config) typesOf(k *layout.Kind, call CallInfo, param Param) error {
	p, master := c.Precision, c.Precision.wide()
	gather, reduce := p.TypesOf(call, param)
	gather, err := p.traveling("gather", gather, p.Compute)
	if err == nil {
		reduce, err = p.traveling("reduce", reduce, master)
	}
	if err == nil && k.Frozen { // nothing is reduced
		reduce = master
	}
	if err == nil {
		err = c.checkTypes(gather, reduce)
	}
	switch {
	case err != nil:
		return fmt.Errorf("Config.Precision.TypesOf returned %v and %v: %w", gather, reduce, err)
	case gather == master && reduce == master && p.Compute == master:
		k.Full = true
	case gather == p.Gather && (reduce == p.Reduce || k.Frozen):
	default:
		k.Gather, k.Reduce = gather.comm(), reduce.comm()
	}
	return nil
}

// checkTypes returns an error if parameters and gradients cannot travel in these types in this
// configuration.
func (c *Config) checkTypes(gather, reduce DType) error {
	switch {
	case c.Precision.Master == BFloat16 && gather == Int8:
		return errors.New("parameters that ranks keep in bfloat16 (Master) do not travel as int8: want Gather BFloat16, or no Master")
	case c.Device != nil && (gather == Int8 || reduce == Int8):
		return errors.New("Config.Device has no kernels of int8: want BFloat16, Float16 or the type of Compute")
	case c.VirtualRanks != 0 && reduce == Int8:
		return errors.New("Config.VirtualRanks: rounding gradients to int8 loses bits of a rank, not of a virtual rank: want another Config.Precision.Reduce")
	case c.VirtualRanks != 0 && c.GradAverage == ByWeights && reduce == Float16:
		return errors.New("Config.GradAverage is ByWeights: with Config.VirtualRanks gradients are divided after they have travelled, so as Float16 they may overflow: " +
			"want another Config.Precision.Reduce")
	}
	return nil
}

// wide returns the master type: of batches, results and checkpoints, and of shards unless Master is
// BFloat16.
func (p Precision) wide() DType {
	if p.Compute == Float64 {
		return Float64
	}
	return Float32
}

// low reports whether calls compute in 16 bits.
func (p Precision) low() bool { return p.Compute == BFloat16 || p.Compute == Float16 }

// nativeBFloat16 reports whether the processor multiplies bfloat16. Tests replace it.
var nativeBFloat16 = kernel.NativeBFloat16

// native reports whether the processor multiplies in Compute type.
func (p Precision) native() bool { return p.Compute != BFloat16 || nativeBFloat16() }

// kernels names the kernels that multiply in Compute type: see Plan.Kernels.
func (c *Config) kernels() string {
	switch p := c.Precision; {
	case c.Device != nil && p.Compute == Float32 && strings.Contains(c.Device.Settings(), "TF32 true"):
		return "GPU, in TF32"
	case c.Device != nil && !p.low():
		return "GPU, without tensor cores"
	case c.Device != nil:
		return "GPU"
	case p.native():
		return kernel.Products(p.Compute == BFloat16)
	default:
		return kernel.Products(true) + ", widened"
	}
}

// finite reports whether v is a finite number in the master type.
func (p Precision) finite(v float64) bool {
	if p.wide() == Float32 {
		v = float64(float32(v))
	}
	return v-v == 0
}

// narrow reports whether any parameter or gradient may travel in fewer bits than the master type
// has.
func (p Precision) narrow() bool {
	return p.Gather != p.wide() || p.Reduce != p.wide() || p.TypesOf != nil
}
