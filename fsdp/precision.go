package fsdp

import (
	"errors"
	"fmt"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/internal/kernel"
)

// Precision says in which types a model computes and communicates. [BF16] is what most training in
// 16 bits wants. Whatever is chosen, the rank that owns a parameter keeps it, its gradient and the
// state of its optimizer in the master type: Float64 where Compute is, else Float32. That is what
// the optimizer updates and what FullState and checkpoints hold, so a checkpoint loads whatever the
// precision. Batches, results and losses are of that type, too.
//
// Parameters that travel in fewer bits than Compute has are widened when they arrive. That saves
// traffic, and neither makes the computation faster nor takes less memory.
type Precision struct {
	// Compute is the type of computation: Float32, BFloat16, or Float64 for tests.
	//
	// In BFloat16, gathered parameters, activations, what is kept for backward and gradients of
	// activations are stored in 16 bits, rounded to nearest even. Sums, the statistics of norms and
	// softmax, losses, and gradients of parameters are in Float32. A processor with AVX512_BF16
	// multiplies such operands at twice the rate of Float32; others widen them, which saves memory
	// and costs time: see Plan.Native. Operations of Gorgonia's own widen and round, too.
	Compute DType
	// Gather is the type in which parameters travel to the ranks that need them: BFloat16, Float16,
	// [Int8], or Compute, which the zero value stands for. 16 bits other than Compute need Compute
	// to be Float32, and Int8 needs Float32 or BFloat16.
	Gather DType
	// Reduce is the type in which gradients travel, with the same choices; the zero value stands
	// for the master type. Sums of Int8 are taken in Float32 and not rounded, see there. Sums of
	// BFloat16 and Float16 are taken in Float32 and rounded once, under HybridShard twice. With
	// Float16, gradients are divided by a part of the divisor before the sum and by the rest after
	// it, against overflow. A gradient that overflows all the same becomes infinite, which
	// [Sharded.Unscale] and ClipGradNorm notice.
	Reduce DType
	// TypesOf, if set, decides for each parameter that is not Full: it returns what stands in for
	// Gather and Reduce, with their choices and zero values. So embeddings may travel as they are
	// computed with, and all else as Int8. Parameters of a unit that travel in other types than the
	// rest of it are a [GroupPlan] of their own, gathered and reduced by collectives of their own;
	// where all of a unit travel alike there are no more. It must be a pure function. Every rank
	// applies it, and Wrap compares the results. Checkpoints do not depend on it.
	TypesOf func(c CallInfo, p Param) (gather, reduce DType)
	// Full tells which parameters travel, and are read by calls, in the master type regardless. Nil
	// means those whose Param.Full is set, as the norms of package nn do, and where Gather or
	// Reduce is Int8 also those of fewer than two dimensions, such as biases.
	Full func(c CallInfo, p Param) bool
	// Wide selects calls that compute in Float32 where Compute is BFloat16, with all calls of the
	// same module by Tape.Again. The parameters that they own are Full. Nil selects none.
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
	// Int8 is for what travels only, over ranks that compute on processors. 256 consecutive
	// elements of a parameter, counted from its first, are a block: a signed byte for each, and the
	// float32 that these are multiples of, 1/127 of the largest magnitude (ZeRO++,
	// https://arxiv.org/abs/2306.10209). That is 260 bytes, of a last block, too. An element is
	// rounded to the nearest multiple, ties to even, so it is off by at most 1/254 of the largest
	// in its block. Of a block with an element that is not finite all are NaN; one whose largest is
	// below 2⁻¹⁰⁰ is zeros. Blocks are the same wherever parameters are cut, and so is what they
	// are rounded to: under every strategy, number of ranks, transport and prefetch depth, and on
	// every machine.
	//
	// Each rank sends the owners of gradients their blocks, which these sum in Float32, in the
	// order of other sums. What a rank's gradients lose in rounding is added to those of its next
	// Backward that reduces, before they are rounded. For that every rank keeps 260 bytes for each
	// block of the whole model, [Plan].ErrorBytes: the losses, as blocks, which are so off by
	// 1/254² at most. They are in no checkpoint, which would be as much for each rank. Save and
	// SaveAsync drop them, like Load, Import and Freeze: so a training that goes on from a
	// checkpoint has the bits of the one that went on after saving it, but one that saves at other
	// steps has others. What is dropped is what one Backward has lost. Between replicas (of the
	// hybrid strategies, and under NoShard, which so saves nothing) sums travel in Float32. Where
	// HybridShard has the bits of FullShard in Float32, it has them with Int8.
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

// withDefaults returns p with zero values replaced, or what is wrong with it.
func (p Precision) withDefaults() (Precision, error) {
	switch {
	case p.Compute == Float16:
		return p, errors.New("Config.Precision.Compute is float16, in which activations and their gradients overflow at 65504: " +
			"want BFloat16, which has the range of Float32; Gather and Reduce may be Float16")
	case p.Compute > Float16:
		return p, fmt.Errorf("Config.Precision.Compute is %v: want Float32, BFloat16 or Float64", p.Compute)
	case p.Wide != nil && p.Compute != BFloat16:
		return p, fmt.Errorf("Config.Precision.Wide selects calls that stay in Float32, but Compute is %v: want BFloat16", p.Compute)
	}
	var err error
	if p.Gather, err = p.traveling("Config.Precision.Gather", p.Gather, p.Compute); err != nil {
		return p, err
	}
	if p.Reduce, err = p.traveling("Config.Precision.Reduce", p.Reduce, p.master()); err != nil {
		return p, err
	}
	if blocks := p.Gather == Int8 || p.Reduce == Int8; p.Full == nil {
		p.Full = func(_ CallInfo, q Param) bool { return q.Full || blocks && len(q.Shape) < 2 }
	}
	return p, nil
}

// traveling returns the type that t, which the field or function named so gives, stands for, or
// what is wrong with it.
func (p Precision) traveling(name string, t, unset DType) (DType, error) {
	switch {
	case t == Float32:
		return unset, nil
	case t == p.Compute, t == Int8 && p.master() == Float32:
		return t, nil
	case t != BFloat16 && t != Float16:
		return t, fmt.Errorf("%s is %v: want BFloat16, Float16 or the type of Compute", name, t)
	case p.Compute != Float32:
		return t, fmt.Errorf("%s is %v, which needs Compute to be Float32, not %v", name, t, p.Compute)
	}
	return t, nil
}

// typesOf asks Precision.TypesOf about a parameter of kind k. Types that are those of all leave k
// as it is.
func (c *Config) typesOf(k *layout.Kind, call CallInfo, param Param) error {
	p, master := c.Precision, c.Precision.master()
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

// checkTypes returns why parameters and gradients cannot travel so in this configuration, or nil.
func (c *Config) checkTypes(gather, reduce DType) error {
	switch {
	case c.Device != nil && (gather == Int8 || reduce == Int8):
		return errors.New("Config.Device has no kernels of int8: want BFloat16, Float16 or the type of Compute")
	case c.VirtualRanks != 0 && reduce == Int8:
		return errors.New("Config.VirtualRanks: what gradients lose as int8 is that of a rank, not of a virtual rank: want another Config.Precision.Reduce")
	case c.VirtualRanks != 0 && c.Divide == ByWeights && reduce == Float16:
		return errors.New("Config.Divide is ByWeights: with Config.VirtualRanks gradients are divided after they have travelled, so as Float16 they may overflow: " +
			"want another Config.Precision.Reduce")
	}
	return nil
}

// master returns the type of shards, of the state of optimizers, and of batches and results.
func (p Precision) master() DType {
	if p.Compute == Float64 {
		return Float64
	}
	return Float32
}

// nativeBFloat16 tells whether the processor multiplies bfloat16. Tests put another in its place.
var nativeBFloat16 = kernel.NativeBFloat16

// native tells whether the processor multiplies in Compute type.
func (p Precision) native() bool { return p.Compute != BFloat16 || nativeBFloat16() }

// finite tells whether v is a finite number in the master type.
func (p Precision) finite(v float64) bool {
	if p.master() == Float32 {
		v = float64(float32(v))
	}
	return v-v == 0
}

// narrow tells whether any parameter or gradient may travel in fewer bits than its master has.
func (p Precision) narrow() bool {
	return p.Gather != p.master() || p.Reduce != p.master() || p.TypesOf != nil
}
