package exec_test

import (
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

// TestCacheOfModulesThatChange compiles a changed module again, and again what it was before.
func TestCacheOfModulesThatChange(t *testing.T) {
	var c exec.Cache
	m := &scaling{Factor: 2}
	two := m.unit(t, &c, tensor.Float64)
	m.Factor = 3
	require.NotSame(t, two, m.unit(t, &c, tensor.Float64))
	require.NotSame(t, two, (&scaling{Factor: 2}).unit(t, &c, tensor.Float64), "the entry's module is now another")
}

// TestCacheOfUnprintableModules shares modules that hold functions or pointers with themselves only.
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
