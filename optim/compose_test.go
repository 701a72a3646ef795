package optim_test

import (
	"errors"
	"math"
	"testing"

	"github.com/gofsdp/gofsdp/optim"
	"github.com/stretchr/testify/require"
)

// pair is AdamW over "a" and momentum over "b", of four elements each, composed.
type pair struct {
	a, b  tensorData
	ready map[string]error
	asked map[string]int
	opt   optim.Optimizer
}

func newPair(t *testing.T) *pair {
	p := &pair{a: newTensor(4, false), b: newTensor(4, false), ready: make(map[string]error), asked: make(map[string]int)}
	params := append(whole("a", p.a), whole("b", p.b)...)
	for i, q := range params {
		copy(q.Value.(optim.Host).F32, []float32{1, 2, 3, 4})
		copy(q.Grad.(optim.Host).F32, []float32{1, 1, -1, 2})
		params[i].Ready = func() error { p.asked["ready "+q.Name]++; return p.ready[q.Name] }
		params[i].Absent = func() bool { p.asked["absent "+q.Name]++; return false }
	}
	p.opt = compose(t, newOptimizer(t, optim.AdamW{}, params[:1]), newOptimizer(t, optim.SGD{Momentum: 0.5}, params[1:]))
	return p
}

func newOptimizer(t *testing.T, c config, params []optim.Param) optim.Optimizer {
	opt, err := c.New(params)
	require.NoError(t, err)
	return opt
}

func compose(t *testing.T, opts ...optim.Optimizer) optim.Optimizer {
	opt, err := optim.Compose(opts...)
	require.NoError(t, err)
	return opt
}

// snapshot is all that an update or a Restore may change.
func (p *pair) snapshot() []any {
	list := []any{p.opt.Steps(), clone(p.a.value), clone(p.b.value)}
	for _, e := range p.opt.State() {
		e.Data = clone(e.Data.(optim.Host))
		list = append(list, e)
	}
	return list
}

func TestComposeStepsAllOrNone(t *testing.T) {
	p := newPair(t)
	require.NoError(t, p.opt.Step(0.1))
	before := p.snapshot()
	for _, lr := range []float64{-1, math.NaN(), math.Inf(1)} {
		require.ErrorContains(t, p.opt.Step(lr), "optim: step 1: learning rate is")
	}
	for _, name := range []string{"a", "b"} {
		broken := errors.New(name + " is elsewhere")
		p.ready[name] = broken
		require.ErrorIs(t, p.opt.Step(0.1), broken)
		delete(p.ready, name)
	}
	require.Equal(t, before, p.snapshot(), "an error changes nothing")
	clear(p.asked)
	require.NoError(t, p.opt.Step(0.1))
	require.Equal(t, map[string]int{"ready a": 1, "ready b": 1, "absent a": 1, "absent b": 1}, p.asked, "once a step")
	require.Equal(t, 2, p.opt.Steps())
}

func TestComposeStepAllocatesNothing(t *testing.T) {
	opt := compose(t,
		newOptimizer(t, optim.AdamW{}, whole("a", newTensor(4, false))),
		newOptimizer(t, optim.SGD{Momentum: 0.5}, whole("b", newTensor(4, true))))
	require.Zero(t, testing.AllocsPerRun(10, func() { _ = opt.Step(0.1) }))
}

func TestComposeState(t *testing.T) {
	p := newPair(t)
	require.NoError(t, p.opt.Step(0.1))
	var names []string
	for _, e := range p.opt.State() {
		require.Equal(t, 1, e.Steps)
		names = append(names, e.Param+" "+e.Name)
	}
	require.Equal(t, []string{"a exp_avg", "a exp_avg_sq", "b momentum_buffer"}, names)
	p.opt.State()[2].Data.(optim.Host).F32[0] = 9
	require.Equal(t, float32(9), p.opt.State()[2].Data.(optim.Host).F32[0], "the optimizer's own memory")
}

func TestComposeRestoreAllOrNone(t *testing.T) {
	p := newPair(t)
	require.NoError(t, p.opt.Step(0.1))
	before := p.snapshot()
	entry := func(param, name string, n int) optim.Entry {
		return optim.Entry{Param: param, Name: name, Shape: []int{4}, Steps: 7, Data: ramp(n)}
	}
	m, v, b := entry("a", "exp_avg", 4), entry("a", "exp_avg_sq", 4), entry("b", "momentum_buffer", 4)
	for _, c := range []struct {
		steps   int
		entries []optim.Entry
		want    string
	}{
		{-1, []optim.Entry{m, v, b}, "the number of steps is -1: must not be negative"},
		{7, []optim.Entry{m, v, entry("b", "momentum_buffer", 3)}, `momentum_buffer of parameter "b": element 3 is missing`},
		{7, []optim.Entry{entry("a", "exp_avg", 2), v, b}, `exp_avg of parameter "a": element 2 is missing`},
		{7, []optim.Entry{m, v, entry("b", "exp_avg", 4)}, `parameter "b" has state "exp_avg", this optimizer keeps ["momentum_buffer"]`},
		{7, []optim.Entry{m, v, b, entry("a", "momentum_buffer", 4)}, `parameter "a" has state "momentum_buffer"`},
		{7, []optim.Entry{m, v, b, entry("c", "max_exp_avg_sq", 4)}, `parameter "c" has state "max_exp_avg_sq", which none of these optimizers keeps`},
		{7, []optim.Entry{m, v, b, entry("c", "exp_avg", 4), entry("c", "exp_avg", 1)}, `exp_avg of parameter "c": element 0 occurs twice`},
	} {
		require.ErrorContains(t, p.opt.Restore(c.steps, c.entries), c.want)
		require.ErrorContains(t, p.opt.Adopt(c.steps, c.entries), c.want)
		require.Equal(t, before, p.snapshot(), "an error changes nothing")
	}
	require.ErrorContains(t, p.opt.Restore(7, []optim.Entry{m, v}), `momentum_buffer of parameter "b": element 0 is missing`)
	require.Equal(t, before, p.snapshot())

	others := []optim.Entry{entry("c", "exp_avg", 4), entry("c", "momentum_buffer", 2), entry("d", "exp_avg_sq", 1)}
	require.NoError(t, p.opt.Adopt(7, append(others, b)), "of a nothing is said")
	require.Equal(t, 7, p.opt.Steps())
	require.Equal(t, before[3:5], p.snapshot()[3:5])
	require.Equal(t, ramp(4), p.opt.State()[2].Data)
	require.NoError(t, p.opt.Restore(8, append(others, v, b, m)))
	require.Equal(t, 8, p.opt.Steps())
	for _, e := range p.opt.State() {
		require.Equal(t, ramp(4), e.Data)
		require.Equal(t, 7, e.Steps)
	}
}

func TestComposeErrors(t *testing.T) {
	piece := func(name string, from, to int) []optim.Param {
		d := newTensor(to-from, false)
		return []optim.Param{{Name: name, Shape: []int{8}, Offset: from, Value: d.value, Grad: d.grad}}
	}
	adamw := func(params ...optim.Param) optim.Optimizer { return newOptimizer(t, optim.AdamW{}, params) }
	sgd := func(params ...optim.Param) optim.Optimizer { return newOptimizer(t, optim.SGD{}, params) }
	stepped := sgd()
	require.NoError(t, stepped.Step(0))
	empty := adamw()
	type wrapper struct{ optim.Optimizer }
	for _, c := range []struct {
		opts []optim.Optimizer
		want string
	}{
		{[]optim.Optimizer{adamw(piece("w", 0, 4)...), sgd(piece("w", 2, 6)...)}, `parameter "w": adamw has elements [0:4], and sgd has [2:6]`},
		{[]optim.Optimizer{adamw(append(piece("v", 0, 8), piece("w", 4, 8)...)...), sgd(), sgd(piece("w", 0, 4)...)},
			`parameter "w": adamw has elements [4:8], and sgd has [0:4]`}, // it could not be restored
		{[]optim.Optimizer{compose(t, adamw(piece("w", 0, 4)...)), compose(t, sgd(piece("w", 4, 4)...))}, `sgd has [4:4]`},
		{[]optim.Optimizer{adamw(), stepped}, "optim: compose: adamw has made 0 steps, sgd has made 1"},
		{[]optim.Optimizer{empty, sgd(), empty}, "optim: compose: adamw is given twice"},
		{[]optim.Optimizer{adamw(), nil}, "optim: compose: optimizer 1 is <nil>, which is not of this package"},
		{[]optim.Optimizer{wrapper{adamw()}}, "optimizer 0 is optim_test.wrapper"},
	} {
		opt, err := optim.Compose(c.opts...)
		require.ErrorContains(t, err, c.want)
		require.Nil(t, opt)
	}
	require.Equal(t, 1, compose(t, stepped).Steps())
}

// A rank may own nothing, of one kind or at all.
func TestComposeOfNothing(t *testing.T) {
	none := compose(t)
	require.NoError(t, none.Step(0.1))
	require.Error(t, none.Step(-1))
	require.Equal(t, 1, none.Steps())
	require.Empty(t, none.State())
	require.Error(t, none.Restore(-1, nil))
	require.NoError(t, none.Adopt(5, nil))
	require.Equal(t, 5, none.Steps())

	p := newPair(t)
	require.NoError(t, p.opt.Step(0.1))
	empty := compose(t, newOptimizer(t, optim.AdamW{}, nil), newOptimizer(t, optim.SGD{Momentum: 0.5}, nil))
	require.NoError(t, empty.Restore(p.opt.Steps(), p.opt.State()))
	require.Equal(t, 1, empty.Steps())
	require.ErrorContains(t, compose(t, newOptimizer(t, optim.SGD{Momentum: 0.5}, nil)).Restore(1, p.opt.State()), `has state "exp_avg"`)
}

// TestParams lists the pieces of optimizers, alone and composed.
func TestParams(t *testing.T) {
	pieces := func(name string) []optim.Param {
		return []optim.Param{{Name: name, Shape: []int{2}, Value: optim.Host{F32: make([]float32, 2)}, Grad: optim.Host{F32: make([]float32, 2)}}}
	}
	a, err := optim.AdamW{}.New(pieces("a"))
	require.NoError(t, err)
	b, err := optim.SGD{}.New(pieces("b"))
	require.NoError(t, err)
	both, err := optim.Compose(a, b)
	require.NoError(t, err)
	var names []string
	for _, p := range optim.Params(both) {
		names = append(names, p.Name)
	}
	require.Equal(t, []string{"a", "b"}, names)
	require.Equal(t, "b", optim.Params(b)[0].Name)
	require.Empty(t, optim.Params(struct{ optim.Optimizer }{a}), "it is of another package")
}
