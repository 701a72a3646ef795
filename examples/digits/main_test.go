//go:build unix

package main

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// TestMain is the program in the processes that TestResume starts.
func TestMain(m *testing.M) {
	if os.Getenv("DIGITS") != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// steps returns the numbers of the steps that the program shows.
func steps(t *testing.T, out string) (list []int) {
	for _, match := range regexp.MustCompile(`(?m)^step +(\d+)/450 `).FindAllStringSubmatch(out, -1) {
		n, err := strconv.Atoi(match[1])
		require.NoError(t, err)
		list = append(list, n)
	}
	return list
}

// TestResume trains on two ranks until Ctrl-C, goes on on three, and goes on from the end on one.
func TestResume(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(dir, "examples/digits/testdata"), os.DirFS("testdata")))
	run := func(ranks string, watch func(p *os.Process, line string)) string {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-ranks", ranks)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "DIGITS=1")
		var problem bytes.Buffer
		cmd.Stderr = &problem
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		var text strings.Builder
		for lines := bufio.NewScanner(out); lines.Scan(); {
			text.WriteString(lines.Text() + "\n")
			watch(cmd.Process, lines.Text())
		}
		require.NoError(t, cmd.Wait(), problem.String())
		return text.String()
	}
	first := run("2", func(p *os.Process, line string) {
		if strings.HasPrefix(line, "step  45/") {
			require.NoError(t, p.Signal(os.Interrupt))
		}
	})
	begun := steps(t, first)
	require.Equal(t, 1, begun[0])
	require.Less(t, begun[len(begun)-1], 450)

	watch := func(*os.Process, string) {}
	rest := run("3", watch)
	went := steps(t, rest)
	require.Greater(t, went[0], begun[len(begun)-1])
	require.Equal(t, 450, went[len(went)-1])
	require.Contains(t, rest, "450 steps over 28 740 img") // each once

	over := run("1", watch)
	require.Empty(t, steps(t, over))
	for _, out := range []string{rest, over} {
		match := regexp.MustCompile(`accuracy (0\.\d+|1)`).FindStringSubmatch(out)
		require.NotNil(t, match, out)
		accuracy, err := strconv.ParseFloat(match[1], 64)
		require.NoError(t, err)
		require.Greater(t, accuracy, 0.95)
	}
}

// TestLines counts the lines of code behind the imports.
func TestLines(t *testing.T) {
	text, err := os.ReadFile("main.go")
	require.NoError(t, err)
	_, code, found := strings.Cut(string(text), "\n)\n")
	require.True(t, found)
	lines := regexp.MustCompile(`(?m)^\s*[^/\s].*$`).FindAllString(code, -1)
	require.LessOrEqual(t, len(lines), 60)
}
