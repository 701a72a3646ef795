package optim_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/optim/optimtest"
	"github.com/gofsdp/gofsdp/optim/vec"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// remote is a Vec whose elements nobody else can reach, as those of a device. Nothing is done
// before the next Read: until then calls wait in a queue.
type remote struct {
	elements optim.Host
	device   *device
}

// device is what the Vecs of one memory share.
type device struct {
	queue []func()
	lost  error // what every call returns
	read  int   // elements that were read
}

func (d *device) alloc(n int, f64 bool) *remote { return &remote{newTensor(n, f64).value, d} }

// issue queues an operation on elements.
func (d *device) issue(op func()) error {
	d.queue = append(d.queue, op)
	return d.lost
}

func (r *remote) Len() int      { return r.elements.Len() }
func (r *remote) Float64() bool { return r.elements.Float64() }

func (r *remote) Slice(from, to int) optim.Vec {
	return &remote{r.elements.Slice(from, to).(optim.Host), r.device}
}

func (r *remote) Zero() error { return r.device.issue(func() { _ = r.elements.Zero() }) }

func (r *remote) Write(from optim.Host) error {
	if from.Len() != r.Len() || r.Len() > 0 && from.Float64() != r.Float64() {
		return errors.New("another length or type")
	}
	staged := clone(from)
	return r.device.issue(func() { copyVec(r.elements, staged) })
}

func (r *remote) Read(to optim.Host) error {
	for _, op := range r.device.queue {
		op()
	}
	r.device.queue = nil
	r.device.read += r.Len()
	if r.device.lost != nil {
		return r.device.lost
	}
	return r.elements.Read(to)
}

// trained is a remote with updates.
type trained struct{ *remote }

func (r trained) Slice(from, to int) optim.Vec { return trained{r.remote.Slice(from, to).(*remote)} }

func (r trained) Adam(g, m, v optim.Vec, s vec.AdamStep) error {
	return r.device.issue(func() {
		_ = r.elements.Adam(g.(trained).elements, m.(trained).elements, v.(trained).elements, s)
	})
}

func (r trained) Adam8(g, m, v optim.Vec, offset int, s vec.AdamStep) error {
	return r.device.issue(func() {
		_ = r.elements.Adam8(g.(trained).elements, m.(trained).elements, v.(trained).elements, offset, s)
	})
}

func (r trained) SGD(g, b optim.Vec, s vec.SGDStep) error {
	return r.device.issue(func() {
		if b == nil {
			_ = r.elements.SGD(g.(trained).elements, nil, s)
		} else {
			_ = r.elements.SGD(g.(trained).elements, b.(trained).elements, s)
		}
	})
}

func (r trained) Adam16(g, m, v optim.Vec, rounding vec.Rounding, s vec.AdamStep) error {
	return r.device.issue(func() {
		_ = r.elements.Adam16(g.(trained).elements, m.(trained).elements, v.(trained).elements, rounding, s)
	})
}

func (r trained) SGD16(g, b optim.Vec, rounding vec.Rounding, s vec.SGDStep) error {
	return r.device.issue(func() {
		_ = r.elements.SGD16(g.(trained).elements, b.(trained).elements, rounding, s)
	})
}

func TestVecContract(t *testing.T) {
	d := new(device)
	for name, alloc := range map[string]func(n int, f64 bool) optim.Vec{
		"host":            func(n int, f64 bool) optim.Vec { return newTensor(n, f64).value },
		"out of reach":    func(n int, f64 bool) optim.Vec { return trained{d.alloc(n, f64)} },
		"without updates": func(n int, f64 bool) optim.Vec { return d.alloc(n, f64) },
	} {
		t.Run(name, func(t *testing.T) { optimtest.TestVec(t, alloc) })
	}
}

// moved returns p with its value, gradient and state on d.
func (d *device) moved(t require.TestingT, p optim.Param) optim.Param {
	move := func(v optim.Vec) optim.Vec {
		r := trained{d.alloc(v.Len(), v.Float64())}
		require.NoError(t, r.Write(v.(optim.Host)))
		return r
	}
	p.Value, p.Grad = move(p.Value), move(p.Grad)
	f64 := p.Value.Float64()
	p.Alloc = func(n int) (optim.Vec, error) { return trained{d.alloc(n, f64)}, nil }
	return p
}

// onHost returns what a Vec holds.
func onHost(t require.TestingT, v optim.Vec) optim.Host {
	h := newTensor(v.Len(), v.Float64()).value
	require.NoError(t, v.Read(h))
	return h
}

// twins are an optimizer on the host and its like on a device, of parameters w and u at one cut.
type twins struct {
	host, remote             optim.Optimizer
	hostParams, remoteParams []optim.Param
}

// newTwins makes the twins. w is AdamW's or another's, u is SGD's; both are composed.
func newTwins(t *rapid.T, c config, w, u tensorData, d *device) *twins {
	first, second := cut(t, "w", w), cut(t, "u", u)
	tw := &twins{hostParams: append(first, second...)}
	for _, p := range tw.hostParams {
		tw.remoteParams = append(tw.remoteParams, d.moved(t, p))
	}
	make := func(params []optim.Param) optim.Optimizer {
		a, err := c.New(params[:len(first)])
		require.NoError(t, err)
		b, err := optim.SGD{Momentum: 0.9}.New(params[len(first):])
		require.NoError(t, err)
		both, err := optim.Compose(a, b)
		require.NoError(t, err)
		return both
	}
	tw.host, tw.remote = make(tw.hostParams), make(tw.remoteParams)
	return tw
}

func (tw *twins) step(t *rapid.T, rng *rand.Rand) {
	for i, p := range tw.hostParams {
		fill(p.Grad.(optim.Host), rng)
		require.NoError(t, tw.remoteParams[i].Grad.Write(p.Grad.(optim.Host)))
	}
	require.NoError(t, tw.host.Step(0.1))
	require.NoError(t, tw.remote.Step(0.1))
}

// check compares values and state, and returns the state in full.
func (tw *twins) check(t *rapid.T) *optim.FullState {
	require.Equal(t, tw.host.Steps(), tw.remote.Steps())
	for i, p := range tw.hostParams {
		require.Equal(t, onHost(t, p.Value), onHost(t, tw.remoteParams[i].Value))
	}
	got := joined(t, tw.remote.Steps(), tw.remote.State())
	require.Equal(t, joined(t, tw.host.Steps(), tw.host.State()), got)
	return got
}

// Where the memory is changes no bit: of updates, of a full state, and of what is loaded from the
// host or from another device, cut alike or not.
func TestOutOfReachChangesNoBit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, f64, d := drawConfig(t), rapid.Bool().Draw(t, "f64"), new(device)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		w, u := newTensor(rapid.IntRange(0, 60).Draw(t, "w"), f64), newTensor(rapid.IntRange(0, 60).Draw(t, "u"), f64)
		fill(w.value, rng)
		fill(u.value, rng)
		tw := newTwins(t, c, w, u, d)
		for range rapid.IntRange(0, 3).Draw(t, "steps") {
			tw.step(t, rng)
		}
		full := tw.check(t)
		for _, load := range []func(o optim.Optimizer) error{
			func(o optim.Optimizer) error { return o.Restore(tw.remote.Steps(), tw.remote.State()) },
			func(o optim.Optimizer) error { return o.Adopt(tw.host.Steps(), tw.host.State()) },
			func(o optim.Optimizer) error { return o.Restore(full.Steps, full.Entries()) },
		} {
			next := newTwins(t, c, w, u, d)
			require.NoError(t, load(next.host))
			require.NoError(t, load(next.remote))
			require.Equal(t, full, next.check(t))
			next.step(t, rng)
			next.check(t)
		}
	})
}

// State that was written to where it belongs is adopted by its counts: nothing is read or written.
func TestAdoptOwnState(t *testing.T) {
	d := new(device)
	params := []optim.Param{d.moved(t, whole("w", newTensor(4, false))[0])}
	opt := newOptimizer(t, optim.AdamW{}, params)
	entries := opt.State()
	for i := range entries {
		require.NoError(t, entries[i].Data.Write(ramp(4)))
		entries[i].Steps = 7
	}
	d.read = 0
	queued := len(d.queue)
	require.NoError(t, opt.Adopt(9, entries))
	require.Zero(t, d.read)
	require.Len(t, d.queue, queued)
	require.Equal(t, 9, opt.Steps())
	for _, e := range opt.State() {
		require.Equal(t, 7, e.Steps)
		require.Equal(t, ramp(4), onHost(t, e.Data))
	}
	entries[0].Steps, entries[1].Steps = 0, 0
	require.ErrorContains(t, opt.Adopt(9, entries), "have made no step but are not zero")
}

func TestUpdateOutOfReachIsMissing(t *testing.T) {
	d := new(device)
	p := whole("w", newTensor(4, false))[0]
	p.Value, p.Grad = d.alloc(4, false), d.alloc(4, false)
	for kind, c := range map[string]config{"sgd": optim.SGD{}, "adam": optim.Adam{}, "adamw": optim.AdamW{}} {
		_, err := c.New([]optim.Param{whole("v", newTensor(2, false))[0], p})
		require.ErrorContains(t, err, fmt.Sprintf(`optim: %s: parameter "w": a value of type *optim_test.remote cannot be updated, because it does not implement vec.`, kind))
	}
}

func TestNewErrorsOutOfReach(t *testing.T) {
	lost := errors.New("the device is lost")
	for want, edit := range map[string]func(d *device, p *optim.Param){
		`parameter "w": value is a optim_test.trained, gradient a vec.Host`: func(_ *device, p *optim.Param) {
			p.Grad = newTensor(4, false).value
		},
		`parameter "w": a value of type optim_test.trained needs Alloc`: func(_ *device, p *optim.Param) { p.Alloc = nil },
		`parameter "w": Alloc returned a vec.Host, its value is a optim_test.trained`: func(_ *device, p *optim.Param) {
			p.Alloc = func(n int) (optim.Vec, error) { return newTensor(n, false).value, nil }
		},
		`parameter "w": Alloc returned a <nil>`: func(_ *device, p *optim.Param) {
			p.Alloc = func(int) (optim.Vec, error) { return nil, nil }
		},
		`parameter "w": the device is lost`: func(d *device, _ *optim.Param) { d.lost = lost },
	} {
		d := new(device)
		p := d.moved(t, whole("w", newTensor(4, false))[0])
		edit(d, &p)
		_, err := optim.AdamW{}.New([]optim.Param{p})
		require.ErrorContains(t, err, want)
	}
}

// A failure of the memory is the error of whatever meets it, and names the parameter.
func TestLostDevice(t *testing.T) {
	d := new(device)
	params := []optim.Param{d.moved(t, whole("w", newTensor(4, false))[0])}
	for _, c := range []config{optim.AdamW{}, optim.SGD{Momentum: 0.9}} {
		d.lost = nil
		alone := newOptimizer(t, c, params)
		both := compose(t, newOptimizer(t, c, params), newOptimizer(t, optim.SGD{}, nil))
		entries := alone.State()
		for i := range entries {
			entries[i].Data, entries[i].Steps = ramp(4), 2
		}
		d.lost = errors.New("the device is lost")
		for _, opt := range []optim.Optimizer{alone, both} {
			for _, err := range []error{opt.Step(0.1), opt.Restore(2, entries), opt.Adopt(2, entries)} {
				require.ErrorIs(t, err, d.lost)
				require.ErrorContains(t, err, `parameter "w"`)
			}
		}
		require.ErrorIs(t, newHostOptimizer(t, c).Restore(0, zeroSteps(alone.State())), d.lost, "it looks for zeros")
	}
}

// newHostOptimizer is over the parameter of TestLostDevice, on the host.
func newHostOptimizer(t *testing.T, c config) optim.Optimizer {
	return newOptimizer(t, c, whole("w", newTensor(4, false)))
}

// zeroSteps returns the entries as those of no update.
func zeroSteps(entries []optim.Entry) []optim.Entry {
	for i := range entries {
		entries[i].Steps = 0
	}
	return entries
}

func TestOutOfReachStepAllocatesNothing(t *testing.T) {
	p := whole("w", newTensor(100, false))[0]
	var c calls
	p.Value, p.Grad = counting{p.Value.(optim.Host), &c}, counting{p.Grad.(optim.Host), &c}
	p.Alloc = func(n int) (optim.Vec, error) { return counting{newTensor(n, false).value, &c}, nil }
	opt := newOptimizer(t, optim.AdamW{}, []optim.Param{p})
	require.Zero(t, testing.AllocsPerRun(10, func() { _ = opt.Step(0.1) }))
	require.Equal(t, 11, c.updates)
}

// counting is a Vec that counts calls.
type counting struct {
	optim.Host
	*calls
}

type calls struct{ lens, updates int }

func (c counting) Len() int {
	c.lens++
	return c.Host.Len()
}

// Adam does nothing else.
func (c counting) Adam(g, m, v optim.Vec, _ vec.AdamStep) error {
	c.updates++
	return nil
}

// What one Adopt costs depends on the parameters that it is about, not on those that there are:
// whoever loads one after the other has all in linear time.
func TestAdoptLooksAtItsParametersOnly(t *testing.T) {
	lensOf := func(n int, wrap func(optim.Optimizer) optim.Optimizer) int {
		var c calls
		params := make([]optim.Param, n)
		for i := range params {
			v := counting{newTensor(1, false).value, &c}
			params[i] = optim.Param{Name: fmt.Sprint(i), Shape: []int{1}, Value: v, Grad: v,
				Alloc: func(int) (optim.Vec, error) { return v, nil }}
		}
		opt := wrap(newOptimizer(t, optim.AdamW{}, params))
		c.lens = 0
		for i := range params {
			require.NoError(t, opt.Adopt(i, []optim.Entry{
				{Param: params[i].Name, Name: "exp_avg", Shape: []int{1}, Steps: i + 1, Data: ramp(1)},
				{Param: params[i].Name, Name: "exp_avg_sq", Shape: []int{1}, Steps: i + 1, Data: ramp(1)},
			}))
		}
		for i, e := range opt.State() {
			require.Equal(t, i/2+1, e.Steps)
		}
		return c.lens / n
	}
	for name, wrap := range map[string]func(optim.Optimizer) optim.Optimizer{
		"alone":    func(o optim.Optimizer) optim.Optimizer { return o },
		"composed": func(o optim.Optimizer) optim.Optimizer { return compose(t, o, newOptimizer(t, optim.SGD{}, nil)) },
	} {
		require.Equal(t, lensOf(10, wrap), lensOf(8000, wrap), "calls of Len by one Adopt, %s", name)
	}
}
