package models

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMain is a process of a contest where this program has started itself as one, and where it is
// taken for Python, which is given a script: it runs the first of our ways then.
func TestMain(m *testing.M) {
	args := os.Args[1:]
	switch {
	case len(args) == 2 && args[0] == RankCommand:
		serve(args[1])
	case len(args) == 4 && args[2] == "-c":
		fmt.Println("0.0")
	case len(args) == 4 && args[0] == "-W":
		var j job
		if err := json.Unmarshal([]byte(args[3]), &j); err != nil {
			panic(err)
		}
		for _, c := range contests {
			if c.script == filepath.Base(args[2]) {
				j.Contest = c.name
			}
		}
		text, err := json.Marshal(j)
		if err != nil {
			panic(err)
		}
		serve(string(text))
	default:
		os.Exit(m.Run())
	}
}

func serve(text string) {
	if err := Serve(context.Background(), os.Stdin, os.Stdout, text); err != nil {
		panic(err)
	}
}

// TestModels runs a few turns of a contest; PyTorch is played by this program.
func TestModels(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	var out strings.Builder
	require.NoError(t, Run(t.Context(), &out, []string{"-run", "^mlp$", "-seconds", "0", "-torch", self}))
	require.Regexp(t, `(?s)^\d+ cores, load [\d.]+\nPyTorch 0\.0: [^\n]*\n`+
		`\nmlp: [^\n]*\n[^\n]*\n  nn +[\d.]+ \([\d.]+\.\.[\d.]+, 3\) +[\d.]+ +1\.00x +\n  PyTorch +[\d.]+ \([\d.]+\.\.[\d.]+, 3\) +[\d.]+ +[\d.]+x +[\d.]+x\n`+
		`\n\d+s in all, load [\d.]+\n$`, out.String())
}

// TestScripts requires a script for each contest, and a name of its own.
func TestScripts(t *testing.T) {
	seen := make(map[string]bool)
	for _, c := range contests {
		_, err := scripts.ReadFile("peers/" + c.script)
		require.NoError(t, err)
		require.False(t, seen[c.name])
		seen[c.name] = true
	}
}

// TestWaysAreOne requires the ways of each contest to be one function.
func TestWaysAreOne(t *testing.T) {
	a := &candidate{name: "a", loss: 2, norm: 1}
	require.NoError(t, (&candidate{loss: 2.0001, norm: 1.0001}).compare(a))
	require.EqualError(t, (&candidate{name: "b", loss: 2.1, norm: 1}).compare(a),
		"a has loss 2 and gradients of norm 1, b 2.1 and 1: they are not the same model")
	require.Error(t, (&candidate{name: "b", loss: 2, norm: 1.1}).compare(a))
	require.Error(t, (&candidate{name: "b", loss: math.NaN(), norm: 1}).compare(a))
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
