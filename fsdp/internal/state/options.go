package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/launch"
	"github.com/gofsdp/gofsdp/optim"
)

// Everywhere as a root means all ranks.
const Everywhere = -1

// Options are the options of a method. A method ignores those that its own options do not have.
type Options struct {
	FS  checkpoint.FS
	Err error // why the call must fail on every rank, or nil

	Root                   int // rank that gets a result, or Everywhere
	Into                   *optim.FullState
	Rename                 func(name string) string
	Transpose              func(name string) bool // or nil for none
	Concat                 func(name string) []Part
	Exclude                func(name string) bool // or nil for none
	MaxFileSize            int64                  // bytes, or 0: never
	ExtraFiles             map[string][]byte
	AllowMissing           func(name string) bool // or nil
	AllowExtra             func(name string) bool // or nil
	AllowNotFinite         func(name string) bool // or nil
	DType                  comm.DType             // or 0 for the type of the masters
	Optimizer              optim.Optimizer
	Metadata               map[string]string
	Step                   int // or 0: the optimizer's
	KeepLast               int // or 0: all
	TrainedOnly            bool
	AllowOlder             *bool // or nil
	RestoreHyperparameters bool
	Extra, RankExtra       map[string]any
	Make                   map[string]Maker // by names of tensors that may be missing
	Split                  Splitter         // or nil
}

// A Splitter returns the parts of a parameter that Concat leaves whole, or none. Unlike Concat it
// gets the shape.
type Splitter func(name string, shape []int) ([]Part, error)

// A Maker makes the values of a tensor that a file lacks: elements first, first+1, … in row-major
// order. It is called for elements that this rank owns, and runs while the rank reads the file.
type Maker func(first int, dst []float64) error

// A Part is a tensor of a file that is a part of a parameter: some of its rows.
type Part struct {
	Name string // in the file
	Rows int    // of its first dimension
}

type contextKey int

const (
	keyFS contextKey = iota
	keyErr
	keyMake
	keySplit
)

// WithFS has the methods that get the context use another file system than the system's.
func WithFS(ctx context.Context, fsys checkpoint.FS) context.Context {
	return context.WithValue(ctx, keyFS, fsys)
}

// WithError has a method that gets the context fail on every rank, because this rank's caller could
// not prepare it. A nil error changes nothing.
func WithError(ctx context.Context, err error) context.Context {
	if err == nil {
		return ctx
	}
	return context.WithValue(ctx, keyErr, err)
}

// WithMake has an Import that gets the context make tensors that the file lacks and AllowMissing
// accepts. Without it they keep their values.
func WithMake(ctx context.Context, makers map[string]Maker) context.Context {
	return context.WithValue(ctx, keyMake, makers)
}

// WithSplit has an Import that gets the context ask split for parts.
func WithSplit(ctx context.Context, split Splitter) context.Context {
	return context.WithValue(ctx, keySplit, split)
}

// NewOptions checks options that do not depend on the model, and adds the settings of the context.
// The caller may have set Err.
func NewOptions(ctx context.Context, o Options) *Options {
	o.FS = checkpoint.OS()
	if fsys, ok := ctx.Value(keyFS).(checkpoint.FS); ok {
		o.FS = fsys
	}
	if err, ok := ctx.Value(keyErr).(error); ok {
		o.Err = err
	}
	o.Make, _ = ctx.Value(keyMake).(map[string]Maker)
	o.Split, _ = ctx.Value(keySplit).(Splitter)
	switch {
	case o.Err != nil:
	case o.Step < 0:
		o.Err = fmt.Errorf("option Step is %d: steps count from 0", o.Step)
	case o.KeepLast < 0:
		o.Err = fmt.Errorf("option KeepLast is %d: want a number of checkpoints, or 0 for all", o.KeepLast)
	case o.MaxFileSize < 0:
		o.Err = fmt.Errorf("option MaxFileSize is %d: want a number of bytes, or 0 for one file", o.MaxFileSize)
	case o.Optimizer != nil && (o.Concat != nil || o.Exclude != nil):
		o.Err = errors.New("options Concat and Exclude cannot be given with Optimizer: give the state of the optimizer a file of its own")
	}
	return &o
}

// values returns the values that a tensor of this name may have. Masks in buffers are often
// infinite.
func (o *Options) values(name string, buffer bool) checkpoint.Values {
	switch {
	case allows(o.AllowNotFinite, name):
		return checkpoint.Any
	case buffer:
		return checkpoint.Infinite
	}
	return checkpoint.Finite
}

// given lists the options that naming compares between ranks.
func (o *Options) given() (names []string) {
	for _, option := range []struct {
		name string
		set  bool
	}{
		{"AllowExtra", o.AllowExtra != nil}, {"AllowMissing", o.AllowMissing != nil}, {"AllowNotFinite", o.AllowNotFinite != nil},
		{"Concat", o.Concat != nil}, {"Exclude", o.Exclude != nil}, {"Optimizer", o.Optimizer != nil}, {"Rename", o.Rename != nil},
		{"RestoreHyperparameters", o.RestoreHyperparameters}, {"Transpose", o.Transpose != nil},
	} {
		if option.set {
			names = append(names, option.name)
		}
	}
	return names
}

// settleOlder reads the environment if AllowOlder is not given.
func (o *Options) settleOlder() error {
	text := os.Getenv(launch.AllowOlder)
	if o.AllowOlder != nil || text == "" {
		return nil
	}
	older, err := strconv.ParseBool(text)
	if err != nil {
		return fmt.Errorf("%s=%s is neither true nor false: set it to one of them", launch.AllowOlder, text)
	}
	o.AllowOlder = &older
	return nil
}

// policy returns whether an older checkpoint may be loaded, as AllowOlder says.
func (o *Options) policy() checkpoint.Policy {
	switch {
	case o.AllowOlder == nil:
		return checkpoint.SkipIncomplete
	case *o.AllowOlder:
		return checkpoint.SkipDamaged
	}
	return checkpoint.SkipNone
}

// root returns an error unless the result is for one of world ranks, or for all.
func (o *Options) root(world int) error {
	if o.Err == nil && o.Root != Everywhere && (o.Root < 0 || o.Root >= world) {
		return fmt.Errorf("option Rank is %d: there are %d ranks, counted from 0", o.Root, world)
	}
	return o.Err
}

// A naming maps parameters of the model to their appearance in a file or state.
type naming struct {
	as   []appearance // by parameter of the model
	text string       // all of it, for comparison with the other ranks
}

// An appearance is how one parameter appears.
type appearance struct {
	name       string
	parts      []Part // of a parameter that is several tensors there, with separate names
	transposed bool
	buffer     bool
	leftOut    bool
}

// naming asks Rename, Transpose, Concat and Exclude. Names must be one-to-one, and only matrices
// may be transposed.
func (o *Options) naming(l *layout.Layout) (n *naming, err error) {
	if o.Err != nil {
		return nil, o.Err
	}
	n = &naming{}
	var b strings.Builder
	fmt.Fprintf(&b, "options %s\nDType %v\nMaxFileSize %d\n", o.given(), o.DType, o.MaxFileSize)
	if o.AllowOlder != nil {
		fmt.Fprintf(&b, "AllowOlder %t\n", *o.AllowOlder)
	}
	err = ranks.Guarded("option Rename, Transpose, Concat or Exclude", func() error {
		model := make(map[string]string) // names in the model by names there
		for i := range l.Model.Params {
			p := &l.Model.Params[i]
			a, err := o.appearance(p.Name, p.Shape)
			if err != nil {
				return err
			}
			a.buffer = p.Buffer
			for _, name := range a.names() {
				if other, ok := model[name]; ok {
					return fmt.Errorf("option %s gives both %s and %s the name %q", a.option(), other, p.Name, name)
				}
				model[name] = p.Name
			}
			n.as = append(n.as, a)
			fmt.Fprintf(&b, "parameter %s is %q %v, transposed %t, left out %t\n", p.Name, a.name, a.parts, a.transposed, a.leftOut)
		}
		return nil
	})
	n.text = b.String()
	return n, err
}

// appearance asks for one parameter.
func (o *Options) appearance(name string, shape []int) (a appearance, err error) {
	a.name = name
	if o.Rename != nil {
		a.name = o.Rename(name)
	}
	a.leftOut = o.Exclude != nil && o.Exclude(name)
	a.transposed = o.Transpose != nil && o.Transpose(name)
	if a.transposed && len(shape) != 2 {
		return a, fmt.Errorf("option Transpose selects %s %v, which does not have two dimensions", name, shape)
	}
	if o.Concat != nil {
		a.parts = o.Concat(name)
	}
	if len(a.parts) == 0 && o.Split != nil && !a.transposed {
		a.parts, err = o.Split(name, shape)
	}
	if len(a.parts) == 0 || err != nil {
		return a, err
	}
	rows := 0
	for _, p := range a.parts {
		if p.Rows < 0 {
			return a, fmt.Errorf("option Concat gives %s a part with %d rows: want 0 or more", name, p.Rows)
		}
		rows += p.Rows
	}
	if len(shape) == 0 || rows != shape[0] {
		return a, fmt.Errorf("option Concat: the parts of %s %v have %d rows in total, and must have all its rows: %v", name, shape, rows, a.parts)
	}
	return a, nil
}

// names lists the names that the parameter's tensors have in the file or state.
func (a *appearance) names() (names []string) {
	if a.leftOut {
		return nil
	}
	for _, p := range a.parts {
		names = append(names, p.Name)
	}
	if names == nil {
		names = []string{a.name}
	}
	return names
}

// option returns the name of the option that has given a tensor its name.
func (a *appearance) option() string {
	if a.parts != nil {
		return "Concat"
	}
	return "Rename"
}

// there returns the tensors of the file or state for tensors of the model: without the left-out
// ones, and with the parts of joined ones.
func (n *naming) there(list []Tensor) []Tensor {
	all := make([]Tensor, 0, len(list))
	for _, t := range list {
		a := &n.as[t.Index]
		switch {
		case a.leftOut:
		case a.parts == nil:
			all = append(all, t)
		default:
			whole := t.Shape
			for i, p := range a.parts {
				t.Part, t.Shape = i, append([]int{p.Rows}, whole[1:]...)
				all = append(all, t)
			}
		}
	}
	return all
}

// pieces returns this rank's pieces of the tensors of the file or state.
func (n *naming) pieces(list []Piece) []Piece {
	all := make([]Piece, 0, len(list))
	for _, p := range list {
		if n.as[p.Index].parts == nil {
			all = append(all, p)
			continue
		}
		at := 0 // of the part, in the parameter
		for _, t := range n.there([]Tensor{p.Tensor}) {
			if from, to := max(at, p.Offset), min(at+t.Len(), p.Offset+p.Vec.Len()); from < to {
				all = append(all, Piece{Tensor: t, Offset: from - at, Vec: p.Vec.Slice(from-p.Offset, to-p.Offset)})
			}
			at += t.Len()
		}
	}
	return all
}

// key returns the name of a tensor in the file or state.
func (n *naming) key(t *Tensor) checkpoint.Key {
	a := &n.as[t.Index]
	name := a.name
	if a.parts != nil {
		name = a.parts[t.Part].Name
	}
	return checkpoint.Key{Param: name, Entry: t.Entry, Owner: t.Owner}
}

// of returns the name of a tensor there.
func (n *naming) of(t *Tensor) string { return n.key(t).Name() }

// fileKey is key for a state without ranks, such as a file. A buffer has its plain name there,
// which every rank reads.
func (n *naming) fileKey(t *Tensor) checkpoint.Key {
	k := n.key(t)
	if n.as[t.Index].buffer {
		k.Owner = checkpoint.Shared
	}
	return checkpoint.Key{Param: k.Name(), Owner: checkpoint.Shared}
}

// param returns the name that the tensor's parameter has in the file or state.
func (n *naming) param(t *Tensor) string {
	return checkpoint.Key{Param: n.as[t.Index].name, Owner: t.Owner}.Name()
}

// shape returns the shape that a tensor has in the file or state.
func (n *naming) shape(t *Tensor) []int {
	if !n.as[t.Index].transposed {
		return t.Shape
	}
	return []int{t.Shape[1], t.Shape[0]}
}

// cols returns the number of columns of a matrix of the model that is transposed in the file or
// state, or 0 for any other tensor.
func (n *naming) cols(t *Tensor) int {
	if !n.as[t.Index].transposed {
		return 0
	}
	return t.Shape[1]
}
