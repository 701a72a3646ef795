package exec_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	fsdpexec "github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/exec/exectest"
)

// The sweep holds every operation that Gorgonia exports against its definition, in float64 and as
// it reads, over ranks, axes, broadcast patterns, and lengths of which some are 1 and some prime.
// Gradients are compared with central differences of the definition, not of the operation. An
// operation is right everywhere, or refused with advice.

// array is a tensor of a definition.
type array struct {
	shape []int
	v     []float64
}

// generate returns the array of f at every index. f must not keep the index.
func generate(shape []int, f func(at []int) float64) array {
	a, at := array{shape, make([]float64, fsdpexec.Numel(shape))}, make([]int, len(shape))
	for i := range a.v {
		rest := i
		for axis := len(shape) - 1; axis >= 0; axis-- {
			at[axis], rest = rest%shape[axis], rest/shape[axis]
		}
		a.v[i] = f(at)
	}
	return a
}

// at returns an element. Along an axis of length 1 it is the same one for every index.
func (a array) at(at ...int) float64 {
	i := 0
	for axis, n := range a.shape {
		i *= n
		if n > 1 {
			i += at[axis]
		}
	}
	return a.v[i]
}

// each returns f of every element.
func (a array) each(f func(float64) float64) array {
	return generate(a.shape, func(at []int) float64 { return f(a.at(at...)) })
}

// reshaped returns the elements of a under another shape.
func (a array) reshaped(shape ...int) array { return array{shape, a.v} }

// fold folds the elements along axes, in order. The axes are gone, or of length 1 if keep.
func (a array) fold(axes []int, keep bool, start float64, f func(sum, v float64) float64) array {
	kept := slices.Clone(a.shape)
	for _, axis := range axes {
		kept[axis] = 1
	}
	y := generate(kept, func([]int) float64 { return start })
	generate(a.shape, func(at []int) float64 {
		i := 0
		for axis, n := range kept {
			i = i*n + at[axis]%n
		}
		y.v[i] = f(y.v[i], a.at(at...))
		return 0
	})
	if !keep {
		y.shape = without(a.shape, axes)
	}
	return y
}

func (a array) sum(axes ...int) array {
	return a.fold(axes, false, 0, func(s, v float64) float64 { return s + v })
}

func (a array) max(axes ...int) array { return a.fold(axes, false, math.Inf(-1), math.Max) }

func without(shape, axes []int) []int {
	left := []int{}
	for axis, n := range shape {
		if !slices.Contains(axes, axis) {
			left = append(left, n)
		}
	}
	return left
}

// zip returns f of the elements of arrays of equal rank, each of whose axes have one length or 1.
func zip(x, y array, f func(x, y float64) float64) array {
	shape := slices.Clone(x.shape)
	for axis, n := range y.shape {
		shape[axis] = max(shape[axis], n)
	}
	return generate(shape, func(at []int) float64 { return f(x.at(at...), y.at(at...)) })
}

// sample is one use of an operation.
type sample struct {
	name   string
	in     [][]int
	ints   [][]int // inputs of integers after these: 0, 1, 2 and so on
	f      func(b *fsdpexec.Builder, x []*G.Node) (*G.Node, error)
	define func(x []array) array
	domain func(float64) float64 // what makes arguments of standard normal numbers; nil leaves them
	opaque bool                  // it has no gradient, and says so
}

// entry is an exported function of Gorgonia.
type entry struct {
	samples []sample
	refused []sample // with define nil, each by a text that has advice
	advice  string
	limits  []sample // beyond what Gorgonia's own function takes: an error, or right
	none    string   // why it is no operation that a module uses
}

// check compares one use with its definition, and tells whether an instruction of it runs as a stock
// operation.
func (s sample) check(t *testing.T) (stock bool) {
	tr := exectest.New(t, &fsdpexec.Spec{Build: returning(s.f)}, s.signature())
	x := s.arguments(tr)
	got, want := tr.Run(t), s.define(x)
	require.Equal(t, want.shape, append([]int{}, tr.Unit.OutShape[0]...), "shape")
	requireNear(t, want.v, got.Out[0], 1e-11, "value")
	for i := range s.in {
		if s.opaque {
			break
		}
		requireNear(t, s.slopes(x, i, tr.GradOut[0]), got.GradIn[i], 2e-6, fmt.Sprint("gradient of argument ", i))
	}
	exectest.RequireClose(t, got, tr.As(t, tensor.Float32).Run(t), 2e-4)
	return slices.ContainsFunc(instructions(tr.Unit), func(in fsdpexec.Instr) bool { return in.Op.Kind == fsdpexec.KindStock })
}

// instructions returns those of both programs of a unit.
func instructions(u *fsdpexec.Unit) []fsdpexec.Instr {
	list := slices.Collect(u.Forward.All())
	if u.Backward != nil {
		list = slices.AppendSeq(list, u.Backward.All())
	}
	return list
}

// arguments makes those of the operation of what the trial has drawn.
func (s sample) arguments(tr *exectest.Trial) (x []array) {
	for i, shape := range slices.Concat(s.in, s.ints) {
		for j, v := range tr.In[i] {
			switch {
			case i >= len(s.in):
				tr.In[i][j] = float64(j)
			case s.domain != nil:
				tr.In[i][j] = s.domain(v)
			}
		}
		x = append(x, array{shape, tr.In[i]})
	}
	return x
}

func (s sample) signature() *fsdpexec.Signature {
	sig := exectest.Signature(tensor.Float64, s.in...)
	for i := range sig.Inputs {
		sig.Inputs[i].Grad = !s.opaque
	}
	for _, shape := range s.ints {
		sig.Inputs = append(sig.Inputs, fsdpexec.Input{Shape: shape, DType: tensor.Int})
	}
	return sig
}

// err returns what the compiler says.
func (s sample) err() error {
	_, err := fsdpexec.Compile(&fsdpexec.Spec{Build: returning(s.f)}, s.signature())
	return err
}

// slopes returns the derivatives of the sum of the result times weight, by central differences.
func (s sample) slopes(x []array, i int, weight []float64) []float64 {
	const h = 1e-5
	slopes := make([]float64, len(x[i].v))
	for j, at := range x[i].v {
		for _, side := range []float64{1, -1} {
			x[i].v[j] = at + side*h
			for k, v := range s.define(x).v {
				slopes[j] += side * v * weight[k] / (2 * h)
			}
		}
		x[i].v[j] = at
	}
	return slopes
}

func requireNear(t *testing.T, want, got []float64, tol float64, what string) {
	require.Len(t, got, len(want), what)
	for i, w := range want {
		require.InDelta(t, w, got[i], tol*(1+math.Abs(w)), "%s, element %d", what, i)
	}
}

// stock are the functions of Gorgonia of which some use runs by Gorgonia's own Do.
var stock []string

// TestSweep checks all uses of every operation in the table.
func TestSweep(t *testing.T) {
	right, refused, limits := 0, 0, 0
	slow := make(map[string]bool)
	for name, e := range sweep {
		t.Run(name, func(t *testing.T) {
			check := func(t *testing.T, s sample) {
				t.Run(fmt.Sprint(s.name, s.in), func(t *testing.T) {
					if s.check(t) {
						slow[name] = true
					}
				})
			}
			for _, s := range e.samples {
				check(t, s)
			}
			for _, s := range e.refused {
				err := s.err()
				require.ErrorContains(t, err, e.advice, s.in)
				require.Regexp(t, "is refused: |^differentiation: ", err)
				require.NotContains(t, err.Error(), "\n")
			}
			for _, s := range e.limits {
				if err := s.err(); err == nil {
					check(t, s)
				} else {
					require.NotContains(t, err.Error(), "\n", s.in)
				}
			}
		})
		right, refused, limits = right+len(e.samples), refused+len(e.refused), limits+len(e.limits)
	}
	require.Equal(t, stock, slices.Sorted(maps.Keys(slow)), "what runs as a stock operation")
	t.Logf("%d uses are right, %d are refused here, %d are beyond Gorgonia's limits", right, refused, limits)
}

// TestSweepTogether puts all uses of an operation on arguments of equal shapes into one graph, where
// Gorgonia may take those that differ in an attribute for one.
func TestSweepTogether(t *testing.T) {
	for name, e := range sweep {
		groups := make(map[string][]sample)
		for _, s := range e.samples {
			key := fmt.Sprint(s.in, s.ints, s.opaque)
			groups[key] = append(groups[key], s)
		}
		for shapes, group := range groups {
			if len(group) > 1 {
				t.Run(name+shapes, func(t *testing.T) { checkTogether(t, group) })
			}
		}
	}
}

func checkTogether(t *testing.T, group []sample) {
	sig := group[0].signature()
	sig.GradOut = nil
	tr := exectest.New(t, &fsdpexec.Spec{Build: func(b *fsdpexec.Builder, x []*G.Node) (outs G.Nodes, err error) {
		for _, s := range group {
			y, err := s.f(b, x)
			if err != nil {
				return nil, err
			}
			outs = append(outs, y)
		}
		return outs, nil
	}}, sig)
	x := group[0].arguments(tr)
	got := tr.Run(t)
	for i, s := range group {
		requireNear(t, s.define(x).v, got.Out[i], 1e-11, s.name)
	}
}

// TestSweepIsComplete finds an exported function of Gorgonia that makes nodes and is not in the
// table, and a row of the table without a function.
func TestSweepIsComplete(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{.Dir}}{{range .GoFiles}} {{.}}{{end}}`, "gorgonia.org/gorgonia").Output()
	require.NoError(t, err)
	list := strings.Fields(string(out))
	found := make(map[string]bool)
	for _, file := range list[1:] {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(list[0], file), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.IsExported() && makesNodes(fn) {
				found[fn.Name.Name] = true
			}
		}
	}
	require.Greater(t, len(found), 100)
	for name := range found {
		_, known := sweep[name]
		require.True(t, known, "the sweep does not try %s", name)
	}
	for name, e := range sweep {
		require.True(t, found[name], "Gorgonia has no %s", name)
		require.True(t, e.none != "" || len(e.samples)+len(e.refused)+len(e.limits) > 0, "%s has no samples", name)
	}
}

// makesNodes tells whether a function returns nodes.
func makesNodes(fn *ast.FuncDecl) bool {
	if fn.Type.Results == nil {
		return false
	}
	return slices.ContainsFunc(fn.Type.Results.List, func(r *ast.Field) bool {
		star, pointer := r.Type.(*ast.StarExpr)
		if pointer {
			r = &ast.Field{Type: star.X}
		}
		id, ok := r.Type.(*ast.Ident)
		return ok && (pointer && id.Name == "Node" || id.Name == "Nodes")
	})
}
