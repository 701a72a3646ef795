package fsdp

import (
	"context"
	"errors"
	"fmt"

	"github.com/gofsdp/gofsdp/fsdp/internal/state"
	"github.com/gofsdp/gofsdp/optim"
)

// SaveOptions are options of [Sharded.Save] and [Sharded.SaveAsync]. All ranks give the same ones,
// except for Extra, of which rank 0's is saved, and RankExtra.
type SaveOptions struct {
	// Step is the number of the saved step. 0 means the number of the optimizer's steps.
	Step int
	// KeepLast, if positive, removes older checkpoints of this training once this one is complete, so that this many
	// are left, this one included. 0 keeps all.
	KeepLast int
	// TrainedOnly leaves out frozen parameters, such as a base model under adapters. The checkpoint has
	// the trained parameters, Ignored ones included, the optimizer's state, and all buffers. Before
	// Load, the program gives the frozen parameters their values, as it did before Save: by a seed or
	// from a file. Load compares them with checksums in the checkpoint. It returns an error if their
	// values differ, or if they are trained now, see LoadOptions.AllowMissing. KeepLast counts these
	// checkpoints together with whole ones. Frozen parameters that [optim.UpdateEMA] has changed are an
	// error: no program could give them these values again. So are frozen parameters that have changed
	// since the last save with this option, unless Load, Import or LoadStateDict has given them values.
	TrainedOnly bool
	// Extra has values to save with the model, under names of the user's choice: the state of a
	// loss scaler, the position in the data, a configuration. They are encoded as JSON. Rank 0's
	// values are saved. [Checkpoint.Extra] returns them.
	Extra map[string]any
	// RankExtra is Extra for values that differ from rank to rank: every rank's values are saved.
	RankExtra map[string]any
	// AllowNotFinite selects tensors whose values may be NaN or infinite. Without it, such values
	// are an error, since a training with them has diverged. Buffers may be infinite, as masks are,
	// but not NaN. A Save with KeepLast that writes such values also keeps the last checkpoint
	// before it that has none.
	AllowNotFinite func(name string) bool
}

func (o *SaveOptions) state(ctx context.Context) *state.Options {
	if o == nil {
		o = &SaveOptions{}
	}
	return state.NewOptions(ctx, state.Options{
		Step: o.Step, KeepLast: o.KeepLast, TrainedOnly: o.TrainedOnly, Extra: o.Extra, RankExtra: o.RankExtra, AllowNotFinite: o.AllowNotFinite,
	})
}

// LoadOptions are options of [Sharded.Load] and [Sharded.LoadOptimStateDict]. All ranks give the same
// ones.
type LoadOptions struct {
	// Rename returns the name that a parameter of the model has in the checkpoint or state, such as
	// "transformer.wte.weight" for "wte.weight". It must be one-to-one.
	Rename func(name string) string
	// AllowMissing selects tensors, by their name in the checkpoint or state, that may be missing
	// there: they keep their value. Without it, anything missing is an error. A frozen parameter that
	// Save has left out (SaveOptions.TrainedOnly) is missing unless it is frozen now, with the value
	// of that time, as float32. For a tensor in which ranks differ, such as "experts.up@2", it is also asked for the name without the rank.
	AllowMissing func(name string) bool
	// AllowExtra selects tensors of the checkpoint or state, by their name there, that the model
	// may lack: they are ignored. Without it, any unused tensor is an error, except an optimizer's
	// state if no optimizer is given. Like AllowMissing, it is asked for names with and without a
	// rank.
	AllowExtra func(name string) bool
	// AllowNotFinite selects tensors, by their name in the checkpoint, whose values may be NaN or
	// infinite. Without it, Load returns an error for such values. For Load only.
	AllowNotFinite func(name string) bool
	// AllowOlder decides whether Load may take an older checkpoint if the last one is damaged. With
	// nil, Load takes one if the damage shows in the manifest, or in the names and sizes of files,
	// and returns an error if it shows in the data. For Load only.
	//
	//	new(true)    takes the last checkpoint of which nothing is damaged that any rank needs.
	//	             All of that is read and checked before anything changes, so it is read twice
	//	new(false)   takes no other than the last: any damage is an error
	//
	// If the directory that Load is given is a checkpoint itself, there is no other. With nil, the
	// variable FSDP_ALLOW_OLDER, true or false, decides; fsdprun -older sets it.
	AllowOlder *bool
	// RestoreHyperparameters gives the optimizer the settings of the loaded state (betas, decay,
	// momentum and others of [optim.Settings]) in place of its own, parameter by parameter, except
	// Bits, which belong to its memory. Without it the optimizer keeps its own, and rank 0 warns if
	// they differ. The learning rate comes with every Step: the last one of the state is then in
	// [optim.Groups]. It is an error if the state has no settings, like the state of an earlier
	// version, or if the optimizer is not from package optim.
	RestoreHyperparameters bool
}

func (o *LoadOptions) state(ctx context.Context) *state.Options {
	if o == nil {
		o = &LoadOptions{}
	}
	return state.NewOptions(ctx, state.Options{
		Rename: o.Rename, AllowMissing: o.AllowMissing, AllowExtra: o.AllowExtra, AllowNotFinite: o.AllowNotFinite, AllowOlder: o.AllowOlder,
		RestoreHyperparameters: o.RestoreHyperparameters,
	})
}

// inMemory is state for a state that is in memory, of which there is no older one.
func (o *LoadOptions) inMemory(ctx context.Context) *state.Options {
	s := o.state(ctx)
	if s.AllowNotFinite != nil || s.AllowOlder != nil {
		s.Err = errors.New("LoadOptions.AllowNotFinite and AllowOlder are for Load: this method reads no checkpoint")
	}
	return s
}

// ExportOptions are options of [Sharded.Export]. All ranks give the same ones, except for
// ExtraFiles and Metadata, of which rank 0's are written.
type ExportOptions struct {
	// DType is the type in which parameters are written: Float32, Float64, BFloat16 or Float16, as
	// in new(fsdp.BFloat16). nil means the master type, see [Precision].
	DType *DType
	// Rename returns the name that a parameter of the model has in the file, such as
	// "transformer.wte.weight" for "wte.weight". It must be one-to-one.
	Rename func(name string) string
	// Transpose selects parameters, by their name in the model, that are transposed in the file: a
	// matrix [out, in] of the model is [in, out] there, as in GPT-2's files. They must have two
	// dimensions.
	Transpose func(name string) bool
	// Concat returns the tensors of the file that are joined to a parameter, one below the other.
	// For example, the tensors of queries, keys and values are joined to a parameter that has them
	// all. Their rows add up to the rows of the parameter. An empty list leaves the parameter one
	// tensor. Rename is not asked for a joined parameter, and Transpose selects all of its parts.
	// It cannot be given with Optimizer.
	Concat func(name string) []Part
	// Exclude selects parameters, by their name in the model, that are not written. It cannot be
	// given with Optimizer.
	Exclude func(name string) bool
	// MaxFileSize, if positive, writes several files of at most this number of bytes of tensors, if
	// there are more in all. Each has at least one parameter: "model-00001-of-00003.safetensors"
	// for "model.safetensors", and an index in the same directory, "model.safetensors.index.json",
	// for Import. Files that an earlier Export with MaxFileSize has left under such names, and that
	// this one does not replace, are removed.
	MaxFileSize int64
	// ExtraFiles are small files to write into the directory of the file, such as a configuration,
	// by name, such as "config.json" or "1_Pooling/config.json". Rank 0 makes the directories.
	ExtraFiles map[string][]byte
	// Optimizer, if set, is an optimizer whose state is written too, in the master type (see
	// [Precision]).
	Optimizer optim.Optimizer
	// Metadata is text for the header of the file.
	Metadata map[string]string
	// AllowNotFinite selects tensors, by their name in the file, whose values may be NaN or
	// infinite. Without it, such values are an error, since a training with them has diverged.
	// Buffers may be infinite, as masks are, but not NaN.
	AllowNotFinite func(name string) bool
}

func (o *ExportOptions) state(ctx context.Context) *state.Options {
	if o == nil {
		o = &ExportOptions{}
	}
	s := state.Options{
		Rename: o.Rename, Transpose: o.Transpose, Concat: o.Concat, Exclude: o.Exclude, MaxFileSize: o.MaxFileSize, ExtraFiles: o.ExtraFiles,
		Optimizer: o.Optimizer, Metadata: o.Metadata, AllowNotFinite: o.AllowNotFinite,
	}
	if t := o.DType; t != nil && *t > Float16 {
		s.Err = fmt.Errorf("ExportOptions.DType is %v: want Float32, Float64, BFloat16 or Float16, or nil for the type of the masters", *t)
	} else if t != nil {
		s.DType = t.comm()
	}
	return state.NewOptions(ctx, s)
}

// ImportOptions are options of [Sharded.Import]. All ranks give the same ones.
type ImportOptions struct {
	// Rename, Transpose and Concat say how the model's parameters appear in the file, as in
	// [ExportOptions].
	Rename    func(name string) string
	Transpose func(name string) bool
	Concat    func(name string) []Part
	// AllowMissing, AllowExtra and AllowNotFinite select tensors, by their name in the file, that
	// may be missing there, that the model may lack, and whose values may be NaN or infinite, as in
	// [LoadOptions].
	AllowMissing   func(name string) bool
	AllowExtra     func(name string) bool
	AllowNotFinite func(name string) bool
	// Optimizer, if set, is an optimizer whose state is read too.
	Optimizer optim.Optimizer
	// RestoreHyperparameters gives it the settings of the loaded state, as in [LoadOptions].
	RestoreHyperparameters bool
}

func (o *ImportOptions) state(ctx context.Context) *state.Options {
	if o == nil {
		o = &ImportOptions{}
	}
	return state.NewOptions(ctx, state.Options{
		Rename: o.Rename, Transpose: o.Transpose, Concat: o.Concat, AllowMissing: o.AllowMissing, AllowExtra: o.AllowExtra, AllowNotFinite: o.AllowNotFinite,
		Optimizer: o.Optimizer, RestoreHyperparameters: o.RestoreHyperparameters,
	})
}

// StateDictOptions are options of [Sharded.StateDict] and [Sharded.OptimStateDict]. All ranks give
// the same ones, except for Into.
type StateDictOptions struct {
	// Rank is the rank that gets the result. The other ranks get nil, and need no memory for it.
	Rank int
	// AllRanks gives the result to every rank, each of which needs the memory for it.
	AllRanks bool
	// Into, if set, gives OptimStateDict the memory of an earlier result of this rank, which gets
	// the new contents and is returned. Memory that has its pages is several times as fast as new
	// memory. It may be nil, as at the first call, and on ranks that get no result. Its Extra stays.
	// Tensors that it lacks get new memory. If it has other tensors, sizes or types, or shares memory with the
	// optimizer, that is an error on every rank, and changes nothing. After any other error its
	// contents are undefined.
	//
	//	full, err = m.OptimStateDict(ctx, opt, &fsdp.StateDictOptions{Into: full})
	Into *optim.FullState
}

func (o *StateDictOptions) state(ctx context.Context) *state.Options {
	if o == nil {
		o = &StateDictOptions{}
	}
	s := state.Options{Root: o.Rank, Into: o.Into}
	switch {
	case o.Rank < 0:
		s.Err = fmt.Errorf("StateDictOptions.Rank is %d: give a rank, or AllRanks", o.Rank)
	case o.AllRanks && o.Rank != 0:
		s.Err = fmt.Errorf("StateDictOptions.Rank is %d and AllRanks is set: give only one of them", o.Rank)
	}
	if o.AllRanks {
		s.Root = everywhere
	}
	return state.NewOptions(ctx, s)
}

// A Part is one of the tensors in a file that are joined to a parameter: its Name in the file, and
// the number of Rows of its first dimension.
type Part = state.Part

// A StateError says that a file or state does not fit the model or its optimizer. Nothing has been
// changed, on any rank. Its fields are lists of text, with names as in the file or state, in its
// order or the model's:
//
//	Where      the file, checkpoint or state
//	Missing    tensors of the model that the state lacks
//	Extra      tensors of the state that the model lacks
//	Reshaped   tensors of another shape, as "name [shape there] -> [shape here]"
//	Kinds      optimizers of another kind, as "AdamW -> SGD of w, b and 7 more"
//	Changed    frozen parameters with other values than at a Save with TrainedOnly
type StateError = state.Mismatch
