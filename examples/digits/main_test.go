//go:build unix

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// interruptVariable makes the test binary the program, which gets a signal when it shows a line
// that begins so.
const interruptVariable = "DIGITS_INTERRUPT"

func TestMain(m *testing.M) {
	line, program := os.LookupEnv(interruptVariable)
	if !program {
		goleak.VerifyTestMain(m)
		return
	}
	shown, out, err := os.Pipe()
	check(err)
	real := os.Stdout
	os.Stdout = out
	var watch sync.WaitGroup
	watch.Go(func() {
		for lines := bufio.NewScanner(shown); lines.Scan(); {
			must(fmt.Fprintln(real, lines.Text()))
			if line != "" && strings.HasPrefix(lines.Text(), line) {
				check(syscall.Kill(os.Getpid(), syscall.SIGINT))
			}
		}
	})
	main()
	check(out.Close())
	watch.Wait()
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
	run := func(ranks, interrupt string) string {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-ranks", ranks)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), interruptVariable+"="+interrupt)
		var problem bytes.Buffer
		cmd.Stderr = &problem
		out, err := cmd.Output()
		require.NoError(t, err, problem.String())
		return string(out)
	}
	first := run("2", "step  45/")
	begun := steps(t, first)
	require.Equal(t, 1, begun[0])
	require.Less(t, begun[len(begun)-1], 450)

	rest := run("3", "")
	went := steps(t, rest)
	require.Greater(t, went[0], begun[len(begun)-1])
	require.Equal(t, 450, went[len(went)-1])
	require.Contains(t, rest, "450 steps over 28 740 img") // each once

	over := run("1", "")
	require.Empty(t, steps(t, over))
	require.Contains(t, over, "digits.ckpt is of a run that is over: nothing is trained.")
	require.NotContains(t, rest, "digits.ckpt is of a run that is over")
	for _, out := range []string{rest, over} {
		match := regexp.MustCompile(`accuracy (0\.\d+|1)`).FindStringSubmatch(out)
		require.NotNil(t, match, out)
		accuracy, err := strconv.ParseFloat(match[1], 64)
		require.NoError(t, err)
		require.Greater(t, accuracy, 0.95)
	}
}

// TestFile finds the data from the directory of the example, and from the root.
func TestFile(t *testing.T) {
	require.FileExists(t, file("images.npy"))
	t.Chdir("../..")
	require.FileExists(t, file("images.npy"))
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
