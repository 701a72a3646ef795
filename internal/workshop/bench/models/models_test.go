package models

import (
	"context"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/exec"
)

// TestMain is a process of a contest where this program has started itself as one, and where it is
// taken for Python, which is given a script: it runs one of our ways then.
func TestMain(m *testing.M) {
	args := os.Args[1:]
	switch {
	case len(args) == 2 && args[0] == RankCommand:
		serve(args[1])
	case len(args) == 4 && args[2] == "-c":
		fmt.Println("0.0")
	case len(args) == 4 && args[0] == "-W":
		serve(args[3])
	default:
		os.Exit(m.Run())
	}
}

func serve(text string) {
	if err := Serve(context.Background(), os.Stdin, os.Stdout, text); err != nil {
		panic(err)
	}
}

// TestModels runs a few turns of two contests; PyTorch is played by this program.
func TestModels(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	var out strings.Builder
	require.NoError(t, Run(t.Context(), &out, []string{"-run", "^mlp$|/MSE", "-seconds", "0", "-bfloat16", "-torch", self}))
	const times, number = ` +[\d.]+ \([\d.]+\.\.[\d.]+, 3\)`, ` +[\d.]+`
	var want strings.Builder
	want.WriteString(`^\d+ cores, load [\d.]+\nPyTorch 0\.0: [^\n]*\n`)
	for _, ours := range []string{"nn", "op"} {
		want.WriteString(`\n\w[^\n]*: [^\n]*\n[^\n]*\n`)
		for _, name := range []string{ours, "PyTorch", ours + ", bfloat16", "PyTorch, bfloat16"} {
			want.WriteString(`  ` + name + times + ` +[\d.-]+ +[\d.]+x +([\d.]+x)?\n`)
		}
	}
	want.WriteString(`\n[^\n]*\n[^\n]*\n`)
	for _, row := range []string{"mlp", `MSE \[2048 512\]`} {
		want.WriteString(row + strings.Repeat(number, 7) + `\n`)
	}
	want.WriteString(`\n(\d+m)?\d+s in all, load [\d.]+\n$`)
	require.Regexp(t, want.String(), out.String())
}

// TestScripts requires a script for each contest, and a name of its own, which stands in the script
// if that is of many.
func TestScripts(t *testing.T) {
	seen := make(map[string]bool)
	for _, c := range contests {
		text, err := scripts.ReadFile("peers/" + c.script)
		require.NoError(t, err)
		require.False(t, seen[c.name])
		seen[c.name] = true
		if name, ok := strings.CutPrefix(c.name, opPrefix); ok {
			require.Contains(t, string(text), fmt.Sprintf("    %q: ", name))
		}
	}
}

// TestOperations compiles all operations, none of which may be one of Gorgonia's.
func TestOperations(t *testing.T) {
	for _, c := range operations {
		for _, low := range []bool{false, true} {
			u, err := c.op.compile(low)
			require.NoError(t, err, c.name)
			for _, p := range []*exec.Program{u.Forward, u.Backward} {
				for in := range p.All() {
					_, stock := in.Op.Attrs.(exec.Stock)
					require.False(t, stock, "%s: %v", c.name, in.Op)
				}
			}
		}
	}
}

// TestWaysAreOne requires the ways of each contest to be one function.
func TestWaysAreOne(t *testing.T) {
	a := &candidate{name: "a", loss: 2, norm: 1}
	require.NoError(t, (&candidate{tolerance: 1e-4, loss: 2.0001, norm: 1.0001}).compare(a))
	require.EqualError(t, (&candidate{name: "b", tolerance: 1e-4, loss: 2.1, norm: 1}).compare(a),
		"a and b are different models: their losses are 2 and 2.1, and the norms of their gradients 1 and 1")
	require.Error(t, (&candidate{name: "b", tolerance: 1e-4, loss: 2, norm: 1.1}).compare(a))
	require.Error(t, (&candidate{name: "b", tolerance: 1e-4, loss: math.NaN(), norm: 1}).compare(a))
	require.NoError(t, (&candidate{half: true, loss: 2.01, norm: 1.005}).compare(a))
	require.Error(t, (&candidate{half: true, loss: 2.01, norm: 1.02}).compare(a))
}

func TestRunRefuses(t *testing.T) {
	for _, c := range []struct {
		want string
		args []string
	}{
		{"missing closing", []string{"-run", "("}},
		{`unexpected argument "x"`, []string{"x"}},
		{"has no PyTorch", []string{"-torch", "/dev/null"}},
	} {
		require.ErrorContains(t, Run(t.Context(), new(strings.Builder), c.args), c.want)
	}
	require.ErrorContains(t, Serve(t.Context(), nil, nil, `{"Contest":"none"}`), `unknown contest "none"`)
}
