package exec_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/exec/exectest"
)

// scaling is a module for the cache: x times Factor. Builds counts how often it was traced.
type scaling struct {
	Factor float64
	Names  []string
	Inner  *scaling
	Hook   func()
}

var builds atomic.Int64

func (m *scaling) spec() *exec.Spec {
	return &exec.Spec{Build: returning(func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
		builds.Add(1)
		return G.HadamardProd(x[0], b.Const(m.Factor))
	})}
}

func (m *scaling) unit(t *testing.T, c *exec.Cache, dt tensor.Dtype) *exec.Unit {
	u, err := c.Unit(m, m.spec(), exectest.Signature(dt, []int{2}))
	require.NoError(t, err)
	return u
}

// TestCache shares units of equal modules and no others.
func TestCache(t *testing.T) {
	var c exec.Cache
	m := &scaling{Factor: 2, Names: []string{"a"}}
	u := m.unit(t, &c, tensor.Float64)
	require.Same(t, u, m.unit(t, &c, tensor.Float64))
	require.Same(t, u, (&scaling{Factor: 2, Names: []string{"a"}}).unit(t, &c, tensor.Float64))
	require.NotSame(t, u, (&scaling{Factor: 2, Names: []string{"b"}}).unit(t, &c, tensor.Float64))
	require.NotSame(t, u, (&scaling{Factor: 3, Names: []string{"a"}}).unit(t, &c, tensor.Float64))
	require.NotSame(t, u, m.unit(t, &c, tensor.Float32))

	other := struct{ scaling }{*m} // prints differently, computes something else
	v, err := c.Unit(other, (&scaling{Factor: 5}).spec(), exectest.Signature(tensor.Float64, []int{2}))
	require.NoError(t, err)
	require.NotSame(t, u, v)
}

// TestCacheOfModulesThatChange compiles a changed module again, and not what it was before.
func TestCacheOfModulesThatChange(t *testing.T) {
	var c exec.Cache
	m := &scaling{Factor: 2}
	two := m.unit(t, &c, tensor.Float64)
	m.Factor = 3
	require.NotSame(t, two, m.unit(t, &c, tensor.Float64))
	require.Same(t, two, (&scaling{Factor: 2}).unit(t, &c, tensor.Float64), "what it was is known by what it was then")
}

// TestCacheOfUnprintableModules shares modules that hold functions or pointers with themselves
// only.
func TestCacheOfUnprintableModules(t *testing.T) {
	var c exec.Cache
	for _, fresh := range []func() *scaling{
		func() *scaling { return &scaling{Factor: 2, Hook: func() {}} },
		func() *scaling { return &scaling{Factor: 2, Inner: &scaling{}} },
	} {
		m := fresh()
		require.Same(t, m.unit(t, &c, tensor.Float64), m.unit(t, &c, tensor.Float64))
		require.NotSame(t, m.unit(t, &c, tensor.Float64), fresh().unit(t, &c, tensor.Float64))
	}
}

// TestCacheSignatures compiles a unit for every signature that differs in anything.
func TestCacheSignatures(t *testing.T) {
	var c exec.Cache
	m := &scaling{Factor: 2}
	seen := make(map[*exec.Unit]bool)
	for _, change := range []func(*exec.Signature){
		func(*exec.Signature) {},
		func(s *exec.Signature) { s.Save = exec.SaveAll },
		func(s *exec.Signature) { s.GradOut = nil },
		func(s *exec.Signature) { s.GradOut = []bool{false} },
		func(s *exec.Signature) { s.AccParam = []bool{false} },
		func(s *exec.Signature) { s.FrozenParam = []bool{true} },
		func(s *exec.Signature) { s.Inputs[0].Shape = []int{1, 2} },
		func(s *exec.Signature) { s.Inputs[0].Grad = false },
		func(s *exec.Signature) { s.Inputs[0].Acc = true },
		func(s *exec.Signature) {
			s.Inputs = append(s.Inputs, exec.Input{Shape: []int{2}, DType: tensor.Float64})
		},
		func(s *exec.Signature) {
			s.Inputs = append(s.Inputs, exec.Input{Shape: []int{2}, DType: tensor.Float64, Same: 1})
		},
	} {
		sig := exectest.Signature(tensor.Float64, []int{2})
		change(sig)
		u, err := c.Unit(m, m.spec(), sig)
		require.NoError(t, err)
		require.False(t, seen[u])
		seen[u] = true
	}
}

// TestCacheErrors does not remember failures.
func TestCacheErrors(t *testing.T) {
	var c exec.Cache
	m := &scaling{Factor: 2}
	for range 2 {
		_, err := c.Unit(m, m.spec(), &exec.Signature{DType: tensor.Int})
		require.Error(t, err)
	}
	require.NotNil(t, m.unit(t, &c, tensor.Float64))
}

// TestCacheConcurrently asks for equal units from many goroutines; each is compiled once.
func TestCacheConcurrently(t *testing.T) {
	var c exec.Cache
	const ranks, modules = 8, 5
	units := make([][modules]*exec.Unit, ranks)
	builds.Store(0)
	var wait sync.WaitGroup
	for r := range ranks {
		wait.Go(func() {
			for i := range modules {
				units[r][i] = (&scaling{Factor: float64(i)}).unit(t, &c, tensor.Float64)
			}
		})
	}
	wait.Wait()
	for r := range ranks {
		require.Equal(t, units[0], units[r])
	}
	require.EqualValues(t, 2*modules, builds.Load(), "a compilation traces twice")
}

// quiet is a module that prints nothing of itself.
type quiet struct{ scaling }

func (*quiet) GoString() string { return "quiet" }

// TestCacheOfModulesThatPrintAlike tells modules apart whatever they say of themselves.
func TestCacheOfModulesThatPrintAlike(t *testing.T) {
	var c exec.Cache
	m := &quiet{scaling{Factor: 2}}
	unit := func() *exec.Unit {
		u, err := c.Unit(m, m.spec(), exectest.Signature(tensor.Float64, []int{2}))
		require.NoError(t, err)
		return u
	}
	two := unit()
	m.Factor = 3
	require.NotSame(t, two, unit())
}

// TestCacheOfFunctionsThatChange compiles a module again whose function was replaced by another of
// the same code.
func TestCacheOfFunctionsThatChange(t *testing.T) {
	var c exec.Cache
	var hooks []func()
	for i := range 2 {
		hooks = append(hooks, func() { builds.Add(int64(i)) })
	}
	m := &scaling{Hook: hooks[0]}
	u := m.unit(t, &c, tensor.Float64)
	m.Hook = hooks[1]
	require.NotSame(t, u, m.unit(t, &c, tensor.Float64))
}

// TestCacheOfFields tells modules apart by every kind of field, and shares those that are equal.
func TestCacheOfFields(t *testing.T) {
	type inner struct{ s string }
	type module struct {
		i        int8
		u        uint
		f        float32
		z        complex64
		b        bool
		s        string
		a        [2]inner
		l        []string
		m        map[string][]int
		p        *inner
		any      any
		c        chan int
		embedded inner
	}
	p, ch := new(inner), make(chan int)
	fresh := func() *module {
		return &module{1, 2, 3, 4, true, "s", [2]inner{{"a"}, {"b"}}, []string{"l"}, map[string][]int{"x": {1}, "y": nil}, p, 5, ch, inner{"e"}}
	}
	var c exec.Cache
	unit := func(m any) *exec.Unit {
		u, err := c.Unit(m, (&scaling{}).spec(), exectest.Signature(tensor.Float64, []int{2}))
		require.NoError(t, err)
		return u
	}
	first := unit(fresh())
	require.Same(t, first, unit(fresh()))
	require.NotSame(t, first, unit(*fresh()), "another type")
	require.Same(t, unit(*fresh()), unit(*fresh()))
	seen := map[*exec.Unit]bool{first: true}
	for i, change := range []func(*module){
		func(m *module) { m.i++ }, func(m *module) { m.u++ }, func(m *module) { m.f++ }, func(m *module) { m.z++ },
		func(m *module) { m.b = false }, func(m *module) { m.s = "t" }, func(m *module) { m.a[1].s = "c" },
		func(m *module) { m.l = nil }, func(m *module) { m.l = []string{} }, func(m *module) { m.l = []string{"l", ""} },
		func(m *module) { m.m = nil }, func(m *module) { m.m["x"][0]++ }, func(m *module) { m.m["z"] = nil },
		func(m *module) { m.p = new(inner) }, func(m *module) { m.any = int8(5) }, func(m *module) { m.any = nil },
		func(m *module) { m.any = inner{"5"} }, func(m *module) { m.c = nil }, func(m *module) { m.embedded.s = "" },
	} {
		m := fresh()
		change(m)
		u := unit(m)
		require.False(t, seen[u], i)
		require.Same(t, u, unit(m))
		seen[u] = true
	}
}

// TestCacheLimit drops the unit used longest ago, one at a time, when all take more than the limit.
func TestCacheLimit(t *testing.T) {
	unit := func(c *exec.Cache, factor int) bool {
		before := builds.Load()
		(&scaling{Factor: float64(factor)}).unit(t, c, tensor.Float64)
		return builds.Load() > before
	}
	size := func(limit int) (n int) { // how many of these units a cache of that limit holds
		c := exec.Cache{Limit: limit}
		for i := range 20 {
			unit(&c, i)
		}
		for i := 19; i >= 0 && !unit(&c, i); i-- {
			n++
		}
		return n
	}
	require.Equal(t, 1, size(1), "the last one stays whatever it takes")
	require.Equal(t, 20, size(0), "64 MiB")
	limit := 1
	for size(limit) < 3 {
		limit += 1 << 10
	}
	c := exec.Cache{Limit: limit}
	for i := range 3 {
		require.True(t, unit(&c, i))
	}
	require.False(t, unit(&c, 0))
	require.True(t, unit(&c, 3), "in place of 1")
	require.False(t, unit(&c, 0))
	require.False(t, unit(&c, 2))
	require.True(t, unit(&c, 1))
}

// TestCacheWhileCompiling asks for a unit that is there while another one is compiled.
func TestCacheWhileCompiling(t *testing.T) {
	var c exec.Cache
	m := &scaling{Factor: 2}
	want := m.unit(t, &c, tensor.Float64)
	var got *exec.Unit
	_, err := c.Unit(&quiet{}, &exec.Spec{Build: returning(func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
		got = m.unit(t, &c, tensor.Float64)
		return G.Tanh(x[0])
	})}, exectest.Signature(tensor.Float64, []int{2}))
	require.NoError(t, err)
	require.Same(t, want, got)
}

// TestCacheSurvivesGoexit compiles a module in a goroutine that ends in the middle, as a failing
// test does.
func TestCacheSurvivesGoexit(t *testing.T) {
	var c exec.Cache
	m, sig := &scaling{Factor: 2}, exectest.Signature(tensor.Float64, []int{2})
	var wait sync.WaitGroup
	wait.Go(func() {
		_, _ = c.Unit(m, &exec.Spec{Build: func(*exec.Builder, []*G.Node) (G.Nodes, error) { runtime.Goexit(); return nil, nil }}, sig)
	})
	wait.Wait()
	require.NotNil(t, m.unit(t, &c, tensor.Float64))
}

// TestCacheBytes holds the bytes counted for units against those that the Go heap has more: for
// units of a few instructions, and for one whose constant is most of it.
func TestCacheBytes(t *testing.T) {
	heap := func() int {
		var s runtime.MemStats
		for range 2 { // what sync.Pool has goes in the second
			runtime.GC()
		}
		runtime.ReadMemStats(&s)
		return int(s.HeapAlloc)
	}
	for _, elements := range []int{1, 100_000} {
		var c exec.Cache
		var before int
		for i := range 30 {
			if i == 10 { // what is made once has been made
				before = heap() - c.Bytes()
			}
			m := &scaling{Factor: float64(i)}
			spec := &exec.Spec{Build: returning(func(b *exec.Builder, x []*G.Node) (*G.Node, error) {
				k, err := b.ConstTensor(tensor.New(tensor.WithShape(elements), tensor.Of(tensor.Float64)))
				if err != nil {
					return nil, err
				}
				y, err := G.HadamardProd(x[0], k)
				if err != nil {
					return nil, err
				}
				return G.Sigmoid(y)
			})}
			_, err := c.Unit(m, spec, exectest.Signature(tensor.Float64, []int{elements}))
			require.NoError(t, err)
		}
		require.InDelta(t, 0, heap()-c.Bytes()-before, 0.2*float64(c.Bytes()), "%d elements of %d bytes", elements, c.Bytes())
		runtime.KeepAlive(&c)
	}
}
