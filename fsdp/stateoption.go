package fsdp

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/optim"
)

// A StateOption changes one of the methods that move the state of a training in or out: FullState, FullOptimState,
// SetFullOptim, Export, Import, Save, SaveAsync, Load. Each names the options it takes; any other is an error on every rank.
// Unless an option says otherwise, all ranks give the same ones.
type StateOption func(*stateOptions)

// stateOptions is what the options say.
type stateOptions struct {
	given []string // names of the options
	fs    checkpoint.FS

	root                int // of OnlyOn, or -1: all ranks
	rename              func(name string) string
	transposed          func(name string) bool
	mayMiss, mayBeExtra func(name string) bool
	dtype               DType
	opt                 optim.Optimizer
	metadata            map[string]string
	step                int // of AtStep, or -1
	keep                int // of KeepLast, or 0: all
	extra, rankExtra    map[string]any
}

// OnlyOn gives the result to one rank; the others get nil, and need no memory for it.
func OnlyOn(rank int) StateOption {
	return stateOption("OnlyOn", func(o *stateOptions) { o.root = rank })
}

// Rename gives the name that a parameter of the model has in the file or state, such as "transformer.wte.weight" for
// "wte.weight". It must be one-to-one.
func Rename(f func(name string) string) StateOption {
	return stateOption("Rename", func(o *stateOptions) { o.rename = f })
}

// Transpose selects parameters, by their name in the model, that lie transposed in the file: a matrix [out, in] of the model as
// [in, out], as GPT-2's do. They must have two dimensions.
func Transpose(match func(name string) bool) StateOption {
	return stateOption("Transpose", func(o *stateOptions) { o.transposed = match })
}

// AllowMissing selects tensors, by their name in the file or state, that need not be there: they keep the value that they have.
// Without it, anything missing is an error.
func AllowMissing(match func(name string) bool) StateOption {
	return stateOption("AllowMissing", func(o *stateOptions) { o.mayMiss = match })
}

// AllowExtra selects tensors of the file or state, by their name there, that the model may lack: they are passed over.
// Without it, anything that the model has no use for is an error.
func AllowExtra(match func(name string) bool) StateOption {
	return stateOption("AllowExtra", func(o *stateOptions) { o.mayBeExtra = match })
}

// As gives the type in which parameters are written, Float32, Float64, BFloat16 or Float16. Without it, it is the type of the
// computation.
func As(t DType) StateOption {
	return stateOption("As", func(o *stateOptions) { o.dtype = t })
}

// WithOptimizer has the state of an optimizer written or read too, in the type of the computation.
func WithOptimizer(opt optim.Optimizer) StateOption {
	return stateOption("WithOptimizer", func(o *stateOptions) { o.opt = opt })
}

// Metadata adds text to the header of a file: what rank 0 gives is written.
func Metadata(text map[string]string) StateOption {
	return stateOption("Metadata", func(o *stateOptions) { o.metadata = text })
}

// AtStep gives the number of the step that is saved, in place of the optimizer's.
func AtStep(step int) StateOption {
	return stateOption("AtStep", func(o *stateOptions) { o.step = step })
}

// KeepLast removes older checkpoints once this one is complete, so that k are left, it included.
func KeepLast(k int) StateOption {
	return stateOption("KeepLast", func(o *stateOptions) { o.keep = k })
}

// Extra saves v beside the model under a name of the user's choice: the state of a loss scaler, where the data stands, a
// configuration. It is encoded as JSON; what rank 0 gives is saved.
func Extra(name string, v any) StateOption {
	return stateOption("Extra", func(o *stateOptions) { set(&o.extra, name, v) })
}

// RankExtra is Extra for what differs from rank to rank: every rank's v is saved.
func RankExtra(name string, v any) StateOption {
	return stateOption("RankExtra", func(o *stateOptions) { set(&o.rankExtra, name, v) })
}

func stateOption(name string, apply func(*stateOptions)) StateOption {
	return func(o *stateOptions) {
		o.given = append(o.given, name)
		apply(o)
	}
}

func set[V any](m *map[string]V, key string, v V) {
	if *m == nil {
		*m = make(map[string]V)
	}
	(*m)[key] = v
}

// stateOptions applies opts, of which a method takes some.
func (s *Sharded) stateOptions(opts []StateOption, takes ...string) (stateOptions, error) {
	o := stateOptions{
		fs: checkpoint.OS(), root: -1, step: -1, dtype: s.cfg.Precision.Compute,
		rename:     func(name string) string { return name },
		transposed: func(string) bool { return false },
		mayMiss:    func(string) bool { return false },
		mayBeExtra: func(string) bool { return false },
	}
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	for _, name := range o.given {
		if !slices.Contains(takes, name) {
			return o, fmt.Errorf("option %s is not for this method, which takes %v", name, takes)
		}
	}
	if slices.Contains(o.given, "OnlyOn") && (o.root < 0 || o.root >= s.cfg.Group.Size()) {
		return o, fmt.Errorf("OnlyOn(%d): there are %d ranks", o.root, s.cfg.Group.Size())
	}
	if slices.Contains(o.given, "WithOptimizer") && o.opt == nil {
		return o, errors.New("WithOptimizer: the optimizer is nil")
	}
	return o, nil
}
