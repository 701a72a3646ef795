package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBench runs a short round of everything on the smallest size.
func TestBench(t *testing.T) {
	var out strings.Builder
	require.NoError(t, run(&out, []string{"tiny"}, 1, 0, true))
	rows := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, rows, 5)
	for i, name := range []string{"1 rank(s)", "2 rank(s)", "Gorgonia TapeMachine"} {
		require.Regexp(t, `^  `+strings.NewReplacer("(", `\(`, ")", `\)`).Replace(name)+` +\d+ +[\d.]+ \([\d.]+\.\.[\d.]+, 1\) +\d+ +[\d.]+ +[\d.]+x$`, rows[2+i])
	}
}

func TestBenchRefusesUnknownSizes(t *testing.T) {
	require.ErrorContains(t, run(new(strings.Builder), []string{"huge"}, 1, 0, false), `unknown size "huge"`)
}
