package state

import (
	"errors"
	"fmt"
	"os"
	"slices"
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

// Options are the values of a method's options.
type Options struct {
	Given []string // names of the options
	Err   error    // error of one of them
	FS    checkpoint.FS

	Root             int // of OnlyOn, or Everywhere
	Into             *optim.FullState
	Rename           func(name string) string
	Transpose        func(name string) bool // or nil for none
	Join             func(name string) []Part
	LeaveOut         func(name string) bool // or nil for none
	SplitAt          int64                  // bytes, or 0: never
	Beside           map[string][]byte
	AllowMissing     func(name string) bool // or nil
	AllowExtra       func(name string) bool // or nil
	AllowNotFinite   func(name string) bool // or nil
	As               comm.DType             // or 0 for the type of the computation
	Optimizer        optim.Optimizer
	Metadata         map[string]string
	Step             int   // of AtStep, or -1
	Keep             int   // of KeepLast, or 0: all
	Older            *bool // of AllowOlder, or nil
	TakeSettings     bool
	Extra, RankExtra map[string]any
}

// A Part is a tensor of a file that is a part of a parameter: some of its rows.
type Part struct {
	Name string
	Rows int
}

// NewOptions applies the options of a method, which takes some of them.
func NewOptions[F ~func(*Options)](opts []F, takes ...string) *Options {
	o := &Options{FS: checkpoint.OS(), Root: Everywhere, Step: -1}
	for _, opt := range opts {
		if opt != nil {
			opt(o)
		}
	}
	if o.given("OnlyOn") && o.given("OnEveryRank") {
		o.Err = errors.New("options OnlyOn and OnEveryRank contradict each other")
	}
	for _, name := range o.Given {
		if !slices.Contains(takes, name) {
			o.Err = fmt.Errorf("option %s is not for this method, which takes %v", name, takes)
			return o
		}
	}
	if o.given("WithOptimizer") && o.Optimizer == nil {
		o.Err = errors.New("WithOptimizer: the optimizer is nil")
	}
	if o.given("WithOptimizer") && (o.given("Join") || o.given("LeaveOut")) {
		o.Err = errors.New("options Join and LeaveOut cannot be given with WithOptimizer")
	}
	return o
}

// RootElse sets the root if no option names one.
func (o *Options) RootElse(root int) {
	if !o.given("OnlyOn") && !o.given("OnEveryRank") {
		o.Root = root
	}
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

func (o *Options) given(name string) bool { return slices.Contains(o.Given, name) }

// settleOlder reads the environment if AllowOlder is not given.
func (o *Options) settleOlder() error {
	text := os.Getenv(launch.AllowOlder)
	if o.Older != nil || text == "" {
		return nil
	}
	older, err := strconv.ParseBool(text)
	if err != nil {
		return fmt.Errorf("%s=%s is neither true nor false", launch.AllowOlder, text)
	}
	o.Older = &older
	return nil
}

// anyOlder reports whether an older checkpoint is allowed for any damage of the last one, and
// noOlder whether none is.
func (o *Options) anyOlder() bool { return o.Older != nil && *o.Older }
func (o *Options) noOlder() bool  { return o.Older != nil && !*o.Older }

// root returns an error unless OnlyOn names one of world ranks.
func (o *Options) root(world int) error {
	if o.Err == nil && o.given("OnlyOn") && (o.Root < 0 || o.Root >= world) {
		return fmt.Errorf("OnlyOn(%d): there are %d ranks", o.Root, world)
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

// naming asks Rename, Transpose, Join and LeaveOut. Names must be one-to-one, and only matrices may
// be transposed.
func (o *Options) naming(l *layout.Layout) (n *naming, err error) {
	if o.Err != nil {
		return nil, o.Err
	}
	n = &naming{}
	var b strings.Builder
	fmt.Fprintf(&b, "options %s\nAs %v\nSplitAt %d\n", slices.Sorted(slices.Values(o.Given)), o.As, o.SplitAt)
	if o.Older != nil {
		fmt.Fprintf(&b, "AllowOlder(%t)\n", *o.Older)
	}
	err = ranks.Guarded("option Rename, Transpose, Join or LeaveOut", func() error {
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
	a.leftOut = o.LeaveOut != nil && o.LeaveOut(name)
	a.transposed = o.Transpose != nil && o.Transpose(name)
	if a.transposed && len(shape) != 2 {
		return a, fmt.Errorf("option Transpose selects %s %v, which has not two dimensions", name, shape)
	}
	if o.Join == nil {
		return a, nil
	}
	if a.parts = o.Join(name); len(a.parts) == 0 {
		return a, nil
	}
	rows := 0
	for _, p := range a.parts {
		if p.Rows < 0 {
			return a, fmt.Errorf("option Join gives %s a part of %d rows", name, p.Rows)
		}
		rows += p.Rows
	}
	if len(shape) == 0 || rows != shape[0] {
		return a, fmt.Errorf("option Join makes %s %v of %d rows: %v", name, shape, rows, a.parts)
	}
	return a, nil
}

// names lists the names of the parameter's tensors there.
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

// option returns the option that has named it.
func (a *appearance) option() string {
	if a.parts != nil {
		return "Join"
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

// pieces returns this rank's pieces of those tensors.
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

// key returns the name of a tensor there.
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

// param returns the name there of the parameter that a tensor is about.
func (n *naming) param(t *Tensor) string {
	return checkpoint.Key{Param: n.as[t.Index].name, Owner: t.Owner}.Name()
}

// shape returns the shape of a tensor there.
func (n *naming) shape(t *Tensor) []int {
	if !n.as[t.Index].transposed {
		return t.Shape
	}
	return []int{t.Shape[1], t.Shape[0]}
}

// cols returns the columns of a matrix of the model that is transposed there, or 0.
func (n *naming) cols(t *Tensor) int {
	if !n.as[t.Index].transposed {
		return 0
	}
	return t.Shape[1]
}
