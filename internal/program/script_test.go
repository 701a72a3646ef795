package program

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var rewrite = flag.Bool("rewrite", false, "write the schedules in testdata anew")

// TestSchedules compiles the models in testdata/schedules.txt and compares the programs with those below them, broken into
// lines after each computation. A model is a list of calls, "name(inputs) group/parameter…", after its options; its first
// group is root and its result the last call unless it says otherwise.
func TestSchedules(t *testing.T) {
	const file = "testdata/schedules.txt"
	script, err := os.ReadFile(file)
	require.NoError(t, err)
	var written []string
	for _, entry := range strings.Split(strings.TrimSpace(string(script)), "\n\n") {
		source, want, _ := strings.Cut(entry, "----")
		m, o := parse(t, source)
		p, err := Compile(m, o)
		require.NoError(t, err)
		require.NoError(t, Verify(p))
		got := lines(p)
		if !*rewrite {
			require.Equal(t, strings.TrimSpace(want), got, source)
		}
		written = append(written, source+"----\n"+got)
	}
	if *rewrite {
		require.NoError(t, os.WriteFile(file, []byte(strings.Join(written, "\n\n")+"\n"), 0o644))
	}
}

// lines writes a program with a line for each computation and what comes before it.
func lines(p *Program) string {
	var b strings.Builder
	for i, op := range p.Ops {
		b.WriteString(p.Text(op))
		switch {
		case i == len(p.Ops)-1:
		case op.Kind == Forward || op.Kind == Backward:
			b.WriteByte('\n')
		default:
			b.WriteString(" · ")
		}
	}
	return b.String()
}

// parse reads a model and its options.
func parse(t *testing.T, source string) (m *Model, o Options) {
	m = &Model{Inputs: 1, Groups: []Group{{"root"}}}
	for _, line := range strings.Split(strings.TrimSpace(source), "\n") {
		fields := strings.Fields(line)
		switch fields[0] {
		case "#":
		case "eval":
			o.Eval = true
		case "prefetch":
			_, err := fmt.Sscan(fields[1], &o.Prefetch)
			require.NoError(t, err)
		case "result":
			m.Results = append(m.Results, reference(t, m, fields[1]))
		default:
			parseCall(t, m, fields)
		}
	}
	if m.Results == nil {
		m.Results = []Ref{{len(m.Calls) - 1, 0}}
	}
	return m, o
}

func parseCall(t *testing.T, m *Model, fields []string) {
	name, in, _ := strings.Cut(strings.TrimSuffix(fields[0], ")"), "(")
	c := Call{Name: name}
	for _, from := range strings.Split(in, ",") {
		c.In = append(c.In, reference(t, m, from))
	}
	for _, field := range fields[1:] {
		group, _, _ := strings.Cut(field, "/")
		g := slices.Index(m.Groups, Group{group})
		if g < 0 {
			g = len(m.Groups)
			m.Groups = append(m.Groups, Group{group})
		}
		p := slices.Index(m.Params, Param{field, g})
		if p < 0 {
			p = len(m.Params)
			m.Params = append(m.Params, Param{field, g})
		}
		c.Params = append(c.Params, p)
	}
	m.Calls = append(m.Calls, c)
}

// reference finds the value that a name stands for.
func reference(t *testing.T, m *Model, name string) Ref {
	if name == "batch" {
		return Ref{Batch, 0}
	}
	c := slices.IndexFunc(m.Calls, func(c Call) bool { return c.Name == name })
	require.GreaterOrEqual(t, c, 0, "no call %q", name)
	return Ref{c, 0}
}
