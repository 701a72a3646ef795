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

// Everywhere as a root is all ranks.
const Everywhere = -1

// Options is what the options of a method say.
type Options struct {
	Given []string // names of the options
	Err   error    // what is wrong with one of them
	FS    checkpoint.FS

	Root             int // of OnlyOn, or Everywhere
	Into             *optim.FullState
	Rename           func(name string) string
	Transpose        func(name string) bool // or nil for none
	AllowMissing     func(name string) bool // or nil
	AllowExtra       func(name string) bool // or nil
	As               comm.DType             // or 0 for that of the computation
	Optimizer        optim.Optimizer
	Metadata         map[string]string
	Step             int   // of AtStep, or -1
	Keep             int   // of KeepLast, or 0: all
	Older            *bool // of AllowOlder, or nil
	TakeSettings     bool
	Extra, RankExtra map[string]any
}

// NewOptions applies the options of a method, which takes some of them.
func NewOptions[F ~func(*Options)](opts []F, takes ...string) *Options {
	o := &Options{FS: checkpoint.OS(), Root: Everywhere, Step: -1}
	for _, opt := range opts {
		if opt != nil {
			opt(o)
		}
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
	return o
}

// RootElse sets the root that is meant if no option names one.
func (o *Options) RootElse(root int) {
	if !o.given("OnlyOn") && !o.given("OnEveryRank") {
		o.Root = root
	}
}

func (o *Options) given(name string) bool { return slices.Contains(o.Given, name) }

// settleOlder has the environment decide where AllowOlder is not given.
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

// anyOlder tells whether an older checkpoint will do wherever the last one is damaged, and noOlder
// whether none will.
func (o *Options) anyOlder() bool { return o.Older != nil && *o.Older }
func (o *Options) noOlder() bool  { return o.Older != nil && !*o.Older }

// root returns an error unless OnlyOn names one of world ranks.
func (o *Options) root(world int) error {
	if o.Err == nil && o.given("OnlyOn") && (o.Root < 0 || o.Root >= world) {
		return fmt.Errorf("OnlyOn(%d): there are %d ranks", o.Root, world)
	}
	return o.Err
}

// A naming says how parameters of the model appear in a file or state.
type naming struct {
	names      []string // by parameter of the model
	transposed []bool
	buffers    []bool
	text       string // all of it, to be compared with the other ranks'
}

// naming asks Rename and Transpose. Names must be one-to-one, and what is transposed must be a
// matrix.
func (o *Options) naming(l *layout.Layout) (n *naming, err error) {
	if o.Err != nil {
		return nil, o.Err
	}
	n = &naming{}
	var b strings.Builder
	fmt.Fprintf(&b, "options %s\nAs %v\n", slices.Sorted(slices.Values(o.Given)), o.As)
	if o.Older != nil {
		fmt.Fprintf(&b, "AllowOlder(%t)\n", *o.Older)
	}
	err = ranks.Guarded("option Rename or Transpose", func() error {
		model := make(map[string]string) // names in the model by those there
		for i := range l.Model.Params {
			p := &l.Model.Params[i]
			name, transposed := p.Name, o.Transpose != nil && o.Transpose(p.Name)
			if o.Rename != nil {
				name = o.Rename(name)
			}
			if other, ok := model[name]; ok {
				return fmt.Errorf("option Rename gives both %s and %s the name %q", other, p.Name, name)
			}
			if transposed && len(p.Shape) != 2 {
				return fmt.Errorf("option Transpose selects %s %v, which has not two dimensions", p.Name, p.Shape)
			}
			model[name] = p.Name
			n.names, n.transposed, n.buffers = append(n.names, name), append(n.transposed, transposed), append(n.buffers, p.Buffer)
			fmt.Fprintf(&b, "parameter %s is %q, transposed %t\n", p.Name, name, transposed)
		}
		return nil
	})
	n.text = b.String()
	return n, err
}

// key returns what a tensor is called there.
func (n *naming) key(t *Tensor) checkpoint.Key {
	return checkpoint.Key{Param: n.names[t.Index], Entry: t.Entry, Owner: t.Owner}
}

// of returns the name of a tensor there.
func (n *naming) of(t *Tensor) string { return n.key(t).Name() }

// fileKey is key for what has no ranks, such as a file. A buffer has its plain name there, which
// every rank reads.
func (n *naming) fileKey(t *Tensor) checkpoint.Key {
	k := n.key(t)
	if n.buffers[t.Index] {
		k.Owner = checkpoint.Shared
	}
	return checkpoint.Key{Param: k.Name(), Owner: checkpoint.Shared}
}

// param returns the name there of the parameter that a tensor is about.
func (n *naming) param(t *Tensor) string {
	return checkpoint.Key{Param: n.names[t.Index], Owner: t.Owner}.Name()
}

// shape returns the shape of a tensor there.
func (n *naming) shape(t *Tensor) []int {
	if !n.transposed[t.Index] {
		return t.Shape
	}
	return []int{t.Shape[1], t.Shape[0]}
}

// cols returns the columns of a matrix of the model that lies transposed there, or 0.
func (n *naming) cols(t *Tensor) int {
	if !n.transposed[t.Index] {
		return 0
	}
	return t.Shape[1]
}
