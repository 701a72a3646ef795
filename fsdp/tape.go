package fsdp

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/internal/caught"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/program"
	"github.com/gofsdp/gofsdp/shard"
)

// A Model is plain Go code that calls modules. Wrap runs Forward once, without data and without
// shapes: it must make the same calls for every batch. When training, the first result is the loss,
// of one element.
//
// in are the tensors of a batch. A model that also has the method Inputs() []string gets exactly
// these inputs, and errors name them. Other models get 16 references and use the first ones.
type Model interface {
	Forward(t *Tape, in ...Ref) ([]Ref, error)
}

// maxInputs is the number of batch tensors offered to a model that does not name its inputs, and
// maxProgramInputs to its other programs: a decoder takes its cache of each layer.
const (
	maxInputs        = 16
	maxProgramInputs = 4096
)

// A Program is another path through a model than its Forward, such as the encoder alone, or one
// step of a decoder. It gets 4,096 references as in, and uses the first ones.
type Program func(t *Tape, in ...Ref) ([]Ref, error)

// programmer is implemented by models that have more paths than Forward, which
// [Sharded.EvalProgram] runs by name. Their calls are calls of Forward, by name and with equal
// modules, on other values.
type programmer interface{ Programs() map[string]Program }

// inputNamer is implemented by models that name their inputs.
type inputNamer interface{ Inputs() []string }

// A Ref stands for a value of the model: an input, or an output of a call.
type Ref struct {
	tape *Tape
	ref  program.Ref
}

// At returns output i of the call that r came from; the Ref that Call returns is output 0.
func (r Ref) At(i int) Ref {
	if r.tape != nil {
		if r.ref.Call < 0 || i < 0 {
			r.tape.fail(fmt.Errorf("At(%d): the value is not the output of a call", i))
		}
		r.ref.Out = i
	}
	return r
}

// Or returns r, and other in passes where r is absent: see [Tape.Optional].
func (r Ref) Or(other Ref) Ref {
	if r.tape == nil {
		return r
	}
	r.tape.use("Or", r, other)
	return r.tape.choose(layout.Choice{Of: r.ref, When: -1, Or: other.ref})
}

// A Tape records the calls that a model makes.
type Tape struct {
	calls  []tapeCall
	params []tapeParam
	byName map[string]int // parameter by full name
	byCall map[string]int // call by name
	again  map[string]int // how often it was called again
	main   *Tape          // of Forward, if this one is of another program: all calls must be there
	inputs int            // number of inputs used
	err    error          // first

	optional []int // inputs that a batch may lack
	choices  []layout.Choice
	when     []func(batch []Tensor) bool // conditions of choices
}

// tapeCall is a recorded call.
type tapeCall struct {
	name   string
	module Module
	local  []Param // of the module
	params []int   // the same, as indices into Tape.params
	owned  []int   // the parameters that are not tied to another call's
	in     []program.Ref
	from   int // index of the call in Forward that has brought the module
}

// tapeParam is a parameter of the model.
type tapeParam struct {
	Param     // Name is the full name
	call  int // that owns it
}

// Call records a call of m with the given name, which prefixes the names of its parameters and must
// be new, and returns its first output. A mistake is reported by Wrap.
func (t *Tape) Call(name string, m Module, in ...Ref) Ref {
	c := tapeCall{name: name, module: m}
	if err := t.declare(&c); err != nil {
		t.fail(fmt.Errorf("call %q: %w", name, err))
		return Ref{tape: t}
	}
	if t.byCall[name] = len(t.calls); t.main == nil {
		c.from = len(t.calls)
	}
	return t.record(c, in)
}

// Again records another call of the module that was called by that name, with the same parameters.
// The second call of "cell" is known as "cell#2" in plans, events and errors, and to policies.
func (t *Tape) Again(name string, in ...Ref) Ref {
	i, ok := t.byCall[name]
	if !ok {
		t.fail(fmt.Errorf("Again(%q): no earlier call has this name", name))
		return Ref{tape: t}
	}
	c := t.calls[i]
	t.again[name]++
	c.name, c.owned = fmt.Sprintf("%s#%d", name, t.again[name]+1), nil
	return t.record(c, in)
}

// declare adds the parameters of a new call.
func (t *Tape) declare(c *tapeCall) error {
	if c.name == "" || strings.ContainsAny(c.name, " \t\n#") {
		return errors.New("the name is empty or has spaces or a #")
	}
	if _, dup := t.byCall[c.name]; dup {
		return errors.New("the name is taken by an earlier call: give each call its own, or share its parameters with Again")
	}
	if t.main != nil {
		return t.recall(c)
	}
	if c.module == nil || reflect.ValueOf(c.module).Kind() == reflect.Pointer && reflect.ValueOf(c.module).IsNil() {
		return errors.New("the module is nil")
	}
	var err error
	if c.local, err = moduleParams(c.module); err != nil {
		return err
	}
	for _, p := range c.local {
		i, err := t.parameter(c.name, p)
		if err != nil {
			return err
		}
		if slices.Contains(c.params, i) { // two gradients of one call would be written to the same place
			return fmt.Errorf("parameter %q is tied to %q, which this call already has: a call takes a parameter only once", p.Name, t.params[i].Name)
		}
		c.params = append(c.params, i)
		if p.Tied == "" {
			c.owned = append(c.owned, i)
		}
	}
	return nil
}

const ownPrograms = "; a model that embeds one with Programs, but has its own Forward, needs its own method Programs, which may return nil"

// recall makes c the call of that name in Forward.
func (t *Tape) recall(c *tapeCall) error {
	i, ok := t.main.byCall[c.name]
	if !ok {
		return errors.New("the model's Forward has no call of this name" + ownPrograms)
	}
	first := t.main.calls[i]
	if !reflect.DeepEqual(c.module, first.module) {
		return fmt.Errorf("the module differs from the module of Forward (make it once if it holds functions, which cannot be compared): %s, there %s%s",
			describe(c.module), describe(first.module), ownPrograms)
	}
	c.local, c.params, c.from = first.local, first.params, first.from
	return nil
}

// parameter returns the index of p in the model, adding it unless it is tied.
func (t *Tape) parameter(call string, p Param) (int, error) {
	if p.Tied != "" {
		i, ok := t.byName[p.Tied]
		if !ok {
			return 0, fmt.Errorf("parameter %q is tied to %q, but no earlier call has that parameter", p.Name, p.Tied)
		}
		if !reflect.DeepEqual(t.params[i].Shape, p.Shape) {
			return 0, fmt.Errorf("parameter %q has shape %v, but is tied to %q, which has shape %v", p.Name, p.Shape, p.Tied, t.params[i].Shape)
		}
		return i, nil
	}
	p.Name = call + "." + p.Name
	if _, dup := t.byName[p.Name]; dup {
		return 0, fmt.Errorf("the model already has a parameter %q", p.Name)
	}
	i := len(t.params)
	t.byName[p.Name] = i
	t.params = append(t.params, tapeParam{p, len(t.calls)})
	return i, nil
}

// record appends the call.
func (t *Tape) record(c tapeCall, in []Ref) Ref {
	if !t.use(fmt.Sprintf("call %q", c.name), in...) {
		return Ref{tape: t}
	}
	c.in = nil
	for _, r := range in {
		c.in = append(c.in, r.ref)
	}
	t.calls = append(t.calls, c)
	return Ref{t, program.Ref{Call: len(t.calls) - 1}}
}

// use notes that values are read, and reports one that is not of this model.
func (t *Tape) use(what string, in ...Ref) bool {
	for i, r := range in {
		if r.tape != t {
			t.fail(fmt.Errorf("%s: input %d is not a value of this model", what, i))
			return false
		}
		if r.ref.Call == program.Batch {
			t.inputs = max(t.inputs, r.ref.Out+1)
		}
	}
	return true
}

// Optional returns x as a value that may be absent from a pass on a rank. Without functions x is a
// tensor of the batch, and absent if the batch has nil in its place. With functions it is any
// value, and absent if one of them, which get this rank's batch, returns false. They must depend on
// the batch alone.
//
// If an input of a call is absent, so are the call and all values that depend on it, up to
// [Ref.Or]:
//
//	image := t.Optional(in[1])
//	seen := t.Call("vision", &tower{…}, image)
//	x := t.Call("splice", &splice{…}, text, seen).Or(text)
//
// A rank without an image does not compute "vision" and "splice", nor calls that only they need,
// and sends zeros for them. For their parameters it only needs memory for whole parameters and
// gradients, since it takes part in their collectives: the schedule is the same as on ranks with an
// image. So each rank's batch decides alone, in every pass anew. The loss must not be absent. Other
// results may be; Eval then returns nil for them. The result of [Tape.Zeros] may be added in place
// of an absent value, such as the loss of a task.
//
// Gradients are divided as Config.GradAverage says. A parameter that no rank has used, in all Backwards
// since ZeroGrad, has no gradient on any rank, and optimizers do not change it. A parameter that
// several calls share is used if any of them is present. Parameters of a separate group
// (Config.Unit) count in that group alone. In the exchange before a Backward, and in others,
// ranks send a word of 8 bytes for each parameter that may be absent, or for each of its groups. If
// ranks call two models of one group in different orders, a mismatch of sizes may then fail the
// group.
func (t *Tape) Optional(x Ref, when ...func(batch []Tensor) bool) Ref {
	if !t.use("Optional", x) {
		return x
	}
	switch input := x.ref.Out; {
	case len(when) > 0:
	case x.ref.Call == program.Batch && !slices.Contains(t.optional, input):
		t.optional = append(t.optional, input)
	case x.ref.Call != program.Batch:
		t.fail(errors.New("Optional: a value that is not a tensor of the batch needs a function that reports when it is present"))
	}
	for _, f := range when {
		if f == nil {
			t.fail(errors.New("Optional: a function is nil"))
		}
		t.when = append(t.when, f)
		x = t.choose(layout.Choice{Of: x.ref, When: len(t.when) - 1, Or: program.Ref{Call: program.None}})
	}
	return x
}

// Zeros returns zeros of that shape, as the output of a call of that name. Use it with Or.
func (t *Tape) Zeros(name string, shape ...int) Ref { return t.Call(name, &zeros{shape}) }

// choose records a choice.
func (t *Tape) choose(c layout.Choice) Ref {
	t.choices = append(t.choices, c)
	return Ref{t, layout.ChoiceRef(len(t.choices) - 1)}
}

// zeros is the module of Zeros.
type zeros struct{ Shape []int }

// Params implements Module.
func (*zeros) Params() []Param { return nil }

// Build implements Module.
func (z *zeros) Build(b *Builder, _ ...*gorgonia.Node) (gorgonia.Nodes, error) {
	n, err := b.ConstTensor(tensor.New(tensor.Of(b.DType()), tensor.WithShape(z.Shape...)))
	return gorgonia.Nodes{n}, err
}

// met is the value of a condition that the batch meets.
var met = exec.Value{Shape: tensor.Shape{1}, DType: tensor.Int}

// conditions appends the values of the conditions to the values of a batch.
func (t *Tape) conditions(values []exec.Value, batch []Tensor) (_ []exec.Value, err error) {
	defer caught.Panic(&err, "a function of the model's Optional")
	for _, is := range t.when {
		if is(batch) {
			values = append(values, met)
		} else {
			values = append(values, exec.Absent)
		}
	}
	return values, nil
}

func (t *Tape) fail(err error) {
	if t.err == nil {
		t.err = err
	}
}

// trace is a model's tape with its results and inputs.
type trace struct {
	*Tape
	results    []program.Ref
	programs   map[string]*trace // of Forward, which is "", and of the others
	inputNames []string          // nil if the model does not name its inputs

	// Decided by the configuration, by call of Forward.
	save  []exec.Policy // data that the call keeps for backward
	spill []bool        // whether in files
	wide  []bool        // whether its module computes in float32 regardless; false for a call by Again

	notes map[string][]string // by field of Config: warnings about its policy
}

// traceModel runs the model's Forward.
func traceModel(m Model) (tr *trace, err error) {
	if m == nil {
		return nil, errors.New("the model is nil")
	}
	defer caught.Panic(&err, "the model's Forward")
	tr = &trace{Tape: newTape(nil), notes: make(map[string][]string)}
	tr.programs = map[string]*trace{"": tr}
	if namer, ok := m.(inputNamer); ok {
		tr.inputNames = namer.Inputs()
	}
	if err := tr.run(m.Forward); err != nil {
		return nil, err
	}
	if len(tr.params) == 0 {
		return nil, errors.New("the model has no parameters: there is nothing to shard")
	}
	return tr, nil
}

// tracePrograms runs the other programs of the model whose Forward has been traced.
func tracePrograms(m Model, main *trace) (traces map[string]*trace, err error) {
	p, ok := m.(programmer)
	if !ok {
		return nil, nil
	}
	defer caught.Panic(&err, "the model's Programs, or one of them,")
	traces = make(map[string]*trace)
	programs := p.Programs()
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		if name == "" || programs[name] == nil {
			return nil, fmt.Errorf("program %q has no name or no function", name)
		}
		tr := &trace{Tape: newTape(main.Tape)}
		if err := tr.run(programs[name]); err != nil {
			return nil, fmt.Errorf("program %q: %w", name, err)
		}
		traces[name], main.programs[name] = tr, tr
	}
	return traces, nil
}

// callInfos describes the calls to the policies.
func (tr *trace) callInfos() []CallInfo {
	infos := make([]CallInfo, len(tr.calls))
	for i, c := range tr.calls {
		infos[i] = CallInfo{Name: c.name, Module: c.module}
		for _, p := range c.owned {
			infos[i].Params = append(infos[i].Params, tr.params[p].Param)
		}
	}
	return infos
}

// layoutModel returns the traced calls, as data: of Forward and of the other programs.
func layoutModel(forward *trace, programs map[string]*trace) *layout.Model {
	m := &layout.Model{Index: forward.byName, Paths: map[string]*layout.Path{"": forward.path()}}
	for _, p := range forward.params {
		m.Params = append(m.Params, layout.Param{Param: shard.Param{Name: p.Name, Shape: p.Shape}, Buffer: p.Buffer})
	}
	for name, tr := range programs {
		m.Paths[name] = tr.path()
	}
	return m
}

// path returns the calls of one program.
func (tr *trace) path() *layout.Path {
	p := &layout.Path{
		Inputs: tr.inputs, InputNames: tr.inputNames, Results: tr.results,
		Optional: tr.optional, Conditions: len(tr.when), Choices: tr.choices,
	}
	for _, c := range tr.calls {
		p.Calls = append(p.Calls, layout.Call{Name: c.name, Module: c.from, In: c.in, Params: c.params})
	}
	return p
}

// newTape returns an empty tape. For a program other than Forward, main is the tape of Forward.
func newTape(main *Tape) *Tape {
	t := &Tape{byName: make(map[string]int), byCall: make(map[string]int), again: make(map[string]int), main: main}
	if main != nil {
		t.params, t.byName = main.params, main.byName
	}
	return t
}

// run records the calls of f.
func (tr *trace) run(f Program) error {
	n := maxInputs
	switch {
	case tr.inputNames != nil:
		n = len(tr.inputNames)
	case tr.main != nil:
		n = maxProgramInputs
	}
	in := make([]Ref, n)
	for i := range in {
		in[i] = Ref{tr.Tape, program.Ref{Call: program.Batch, Out: i}}
	}
	out, err := f(tr.Tape, in...)
	if err == nil {
		err = tr.err
	}
	if err != nil {
		return err
	}
	if tr.inputNames != nil {
		tr.inputs = n
	}
	if len(out) == 0 {
		return errors.New("the model has no results")
	}
	p := tr.path()
	for i, r := range out {
		if r.tape != tr.Tape || slices.ContainsFunc(p.Alternatives(r.ref), func(r program.Ref) bool { return r.Call == program.Batch }) {
			return fmt.Errorf("result %d is not the output of a call of this model", i)
		}
		tr.results = append(tr.results, r.ref)
	}
	if tr.main == nil && tr.path().Absent()[0] {
		return errors.New("the loss may be absent, see Tape.Optional: give another value for that case by Or")
	}
	return nil
}
