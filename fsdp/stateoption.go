package fsdp

import (
	"fmt"

	"github.com/gofsdp/gofsdp/fsdp/internal/state"
	"github.com/gofsdp/gofsdp/optim"
)

// A StateOption changes one of the methods that move the state of a training in or out: FullState,
// FullOptimState, SetFullOptim, Export, Import, Save, SaveAsync, Load. Each names the options it
// takes; any other is an error on every rank. Unless an option says otherwise, all ranks give the
// same ones.
type StateOption func(*state.Options)

// OnlyOn gives the result to one rank. The other ranks get nil, and need no memory for it.
func OnlyOn(rank int) StateOption {
	return stateOption("OnlyOn", func(o *state.Options) { o.Root = rank })
}

// OnEveryRank gives the result to every rank, each of which needs the memory for it.
func OnEveryRank() StateOption {
	return stateOption("OnEveryRank", func(o *state.Options) { o.Root = state.Everywhere })
}

// Into gives FullOptimState the memory of an earlier result of this rank, which gets the new
// contents and is returned. Memory that has its pages is several times as fast as new memory. old
// may be nil, as at the first call, and on ranks that get no result. Tensors that old lacks get new
// memory. If old has other tensors, sizes or types, or shares memory with the optimizer, that is an
// error on every rank, and changes nothing. After any other error its contents are undefined.
//
//	full, err = m.FullOptimState(ctx, opt, fsdp.Into(full))
func Into(old *optim.FullState) StateOption {
	return stateOption("Into", func(o *state.Options) { o.Into = old })
}

// Rename gives the name that a parameter of the model has in the file or state, such as
// "transformer.wte.weight" for "wte.weight". It must be one-to-one.
func Rename(f func(name string) string) StateOption {
	return stateOption("Rename", func(o *state.Options) { o.Rename = f })
}

// Transpose selects parameters, by their name in the model, that are transposed in the file: a
// matrix [out, in] of the model is [in, out] there, as in GPT-2's files. They must have two
// dimensions.
func Transpose(match func(name string) bool) StateOption {
	return stateOption("Transpose", func(o *state.Options) { o.Transpose = match })
}

// A Part is one of the tensors in a file that are joined to a parameter: a number of its rows.
type Part struct {
	Name string // in the file
	Rows int    // of its first dimension
}

// Join gives the tensors in the file that are joined to a parameter, one below the other. For
// example, the tensors of queries, keys and values are joined to a parameter that has them all.
// Their rows add up to the rows of the parameter. An empty list leaves the parameter one tensor.
// Rename is not asked for a joined parameter, and Transpose selects all of its parts. It cannot be
// given with WithOptimizer.
func Join(parts func(name string) []Part) StateOption {
	return stateOption("Join", func(o *state.Options) {
		o.Join = func(name string) (list []state.Part) {
			for _, p := range parts(name) {
				list = append(list, state.Part(p))
			}
			return list
		}
	})
}

// LeaveOut selects parameters, by their name in the model, that Export does not write. It cannot be
// given with WithOptimizer.
func LeaveOut(match func(name string) bool) StateOption {
	return stateOption("LeaveOut", func(o *state.Options) { o.LeaveOut = match })
}

// SplitAt has Export write several files of at most this number of bytes of tensors, if there are
// more in all. Each has at least one parameter: "model-00001-of-00003.safetensors" for
// "model.safetensors", and an index in the same directory, "model.safetensors.index.json", for
// Import. Files that an earlier Export with SplitAt has left under such names, and that this one
// does not replace, are removed.
func SplitAt(bytes int64) StateOption {
	return stateOption("SplitAt", func(o *state.Options) {
		if o.SplitAt = bytes; bytes < 1 {
			o.Err = fmt.Errorf("SplitAt(%d): want a number of bytes", bytes)
		}
	})
}

// Beside has Export write small files into the directory of its file, such as a configuration, by
// name. Rank 0's files are written. Rank 0 makes the directory and its parents.
func Beside(files map[string][]byte) StateOption {
	return stateOption("Beside", func(o *state.Options) { o.Beside = files })
}

// AllowMissing selects tensors, by their name in the file or state, that may be missing there: they
// keep their value. Without it, anything missing is an error. For a tensor in which ranks differ,
// such as "experts.up@2", it is also asked for the name without the rank.
func AllowMissing(match func(name string) bool) StateOption {
	return stateOption("AllowMissing", func(o *state.Options) { o.AllowMissing = match })
}

// AllowExtra selects tensors of the file or state, by their name there, that the model may lack:
// they are ignored. Without it, any unused tensor is an error, except an optimizer's state if no
// optimizer is given. Like AllowMissing, it is asked for names with and without a rank.
func AllowExtra(match func(name string) bool) StateOption {
	return stateOption("AllowExtra", func(o *state.Options) { o.AllowExtra = match })
}

// AllowNotFinite selects tensors, by their name in the file or state, whose values may be NaN or
// infinite. Without it, Save, Export, Load and Import return an error for such values, since a training
// with them has diverged. Buffers may be infinite, as masks are, but not NaN. A Save with KeepLast that
// writes such values also keeps the last checkpoint before it that has none.
func AllowNotFinite(match func(name string) bool) StateOption {
	return stateOption("AllowNotFinite", func(o *state.Options) { o.AllowNotFinite = match })
}

// AllowOlder decides whether Load may take an older checkpoint if the last one is damaged. Without
// it, Load takes one if the damage shows in the manifest, or in the names and sizes of files, and
// returns an error if it shows in the data.
//
//	AllowOlder(true)    takes the last checkpoint of which nothing is damaged that any rank needs.
//	                    All of that is read and checked before anything changes, so it is read twice
//	AllowOlder(false)   takes no other than the last: any damage is an error
//
// If the directory that Load is given is a checkpoint itself, there is no other. Without the
// option, the variable FSDP_ALLOW_OLDER, true or false, decides; fsdprun -older sets it.
func AllowOlder(allow bool) StateOption {
	return stateOption("AllowOlder", func(o *state.Options) { o.Older = &allow })
}

// As gives the type in which parameters are written: Float32, Float64, BFloat16 or Float16. The
// default is the master type, see [Precision].
func As(t DType) StateOption {
	return stateOption("As", func(o *state.Options) {
		if t > Float16 {
			o.Err = fmt.Errorf("As(%v): want Float32, Float64, BFloat16 or Float16", t)
			return
		}
		o.As = t.comm()
	})
}

// WithOptimizer writes or reads the state of an optimizer too, in the master type (see [Precision]).
func WithOptimizer(opt optim.Optimizer) StateOption {
	return stateOption("WithOptimizer", func(o *state.Options) { o.Optimizer = opt })
}

// TakeSettings gives the optimizer the settings of the loaded state (betas, decay, momentum and
// others of [optim.Settings]) in place of its own, parameter by parameter, except Bits, which
// belong to its memory. Without it the optimizer keeps its own, and rank 0 warns if they differ.
// The learning rate comes with every Step: the last one of the state is then in [optim.Groups]. It
// is an error if the state has no settings, like the state of an earlier version, or if the
// optimizer is not from package optim.
func TakeSettings() StateOption {
	return stateOption("TakeSettings", func(o *state.Options) { o.TakeSettings = true })
}

// Metadata adds text to the header of a file. Rank 0's text is written.
func Metadata(text map[string]string) StateOption {
	return stateOption("Metadata", func(o *state.Options) { o.Metadata = text })
}

// AtStep gives the number of the saved step, in place of the optimizer's.
func AtStep(step int) StateOption {
	return stateOption("AtStep", func(o *state.Options) { o.Step = step })
}

// KeepLast removes older checkpoints of this training once this one is complete, so that k are left,
// this one included.
func KeepLast(k int) StateOption {
	return stateOption("KeepLast", func(o *state.Options) { o.Keep = k })
}

// Extra saves v with the model under a name of the user's choice: the state of a loss scaler, the
// position in the data, a configuration. It is encoded as JSON. Rank 0's value is saved. A name
// given twice is an error.
func Extra(name string, v any) StateOption {
	return stateOption("Extra", func(o *state.Options) { set(o, "Extra", &o.Extra, name, v) })
}

// RankExtra is Extra for values that differ from rank to rank: every rank's v is saved.
func RankExtra(name string, v any) StateOption {
	return stateOption("RankExtra", func(o *state.Options) { set(o, "RankExtra", &o.RankExtra, name, v) })
}

func stateOption(name string, apply func(*state.Options)) StateOption {
	return func(o *state.Options) {
		o.Given = append(o.Given, name)
		apply(o)
	}
}

// set puts the value of an option into m. A name given twice is an error, since one value would be
// lost.
func set(o *state.Options, option string, m *map[string]any, name string, v any) {
	if *m == nil {
		*m = make(map[string]any)
	}
	if _, twice := (*m)[name]; twice {
		o.Err = fmt.Errorf("%s(%q) is given twice", option, name)
	}
	(*m)[name] = v
}

// A StateError says that a file or state does not fit the model or its optimizer. Nothing has been
// changed, on any rank. Names are as in the file or state, in its order or the model's.
type StateError struct {
	Where    string   // the file, checkpoint or state
	Missing  []string // in the model, not in the state
	Extra    []string // in the state, not in the model
	Reshaped []string // with another shape, as "name [shape there] -> [shape here]"
	Kinds    []string // optimizers of another kind, as "AdamW -> SGD of w, b and 7 more"
}

// Error implements error. It lists a few names of each kind: a model has thousands, and one wrong
// prefix renames them all.
func (e *StateError) Error() string { return (*state.Mismatch)(e).Error() }
