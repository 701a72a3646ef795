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

// TestSchedules compiles the models in testdata/schedules.txt and compares the programs with those
// below them, broken into lines after each computation. A model is a list of calls, "name(inputs)
// group/parameter…", after its options; its result is the last call unless it says otherwise. A
// backward does not read the parameters after a "~". The lines before are
//
//	prefetch 1, inflight 100, eval, nosync, pending    options of the schedule
//	group name keep|always|frozen|unit=u|bytes=100|shards=4|replicas=2…
//	result name
//
// where a group that has no line of its own is cut over two ranks and freed when it is not in use.
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
	m = &Model{Inputs: 1}
	number := func(text string) (n int) {
		_, err := fmt.Sscan(text, &n)
		require.NoError(t, err)
		return n
	}
	for _, line := range strings.Split(strings.TrimSpace(source), "\n") {
		fields := strings.Fields(line)
		switch fields[0] {
		case "#":
		case "eval":
			o.Eval = true
		case "nosync":
			o.NoSync = true
		case "pending":
			o.Pending = true
		case "prefetch":
			o.Prefetch = number(fields[1])
		case "inflight":
			o.InFlight = number(fields[1])
		case "group":
			parseGroup(t, &m.Groups[group(m, fields[1])], fields[2:], number)
		case "result":
			m.Results = append(m.Results, reference(t, m, fields[1]))
		default:
			o.Reads = append(o.Reads, parseCall(t, m, fields))
		}
	}
	if m.Results == nil {
		m.Results = []Ref{{len(m.Calls) - 1, 0}}
	}
	return m, o
}

// group returns the index of a group, which may be new.
func group(m *Model, name string) int {
	g := slices.IndexFunc(m.Groups, func(q Group) bool { return q.Name == name })
	if g < 0 {
		g = len(m.Groups)
		m.Groups = append(m.Groups, Group{Name: name, Bytes: 10, Shards: 2, Replicas: 1})
	}
	return g
}

func parseGroup(t *testing.T, g *Group, fields []string, number func(string) int) {
	for _, field := range fields {
		switch key, value, _ := strings.Cut(field, "="); key {
		case "keep":
			g.Hold = Keep
		case "always":
			g.Hold = Always
		case "frozen":
			g.Frozen = true
		case "unit":
			g.Unit = value
		case "bytes":
			g.Bytes = number(value)
		case "shards":
			g.Shards = number(value)
		case "replicas":
			g.Replicas = number(value)
		default:
			require.Fail(t, "unknown word", field)
		}
	}
}

// parseCall adds a call to the model and returns which of its parameters backward reads.
func parseCall(t *testing.T, m *Model, fields []string) []bool {
	name, in, _ := strings.Cut(strings.TrimSuffix(fields[0], ")"), "(")
	c := Call{Name: name}
	for _, from := range strings.Split(in, ",") {
		c.In = append(c.In, reference(t, m, from))
	}
	reads := []bool{}
	for _, field := range fields[1:] {
		param, unread := strings.CutPrefix(field, "~")
		owner, _, _ := strings.Cut(param, "/")
		q := Param{param, group(m, owner)}
		p := slices.Index(m.Params, q)
		if p < 0 {
			p = len(m.Params)
			m.Params = append(m.Params, q)
		}
		c.Params, reads = append(c.Params, p), append(reads, !unread)
	}
	m.Calls = append(m.Calls, c)
	return reads
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
