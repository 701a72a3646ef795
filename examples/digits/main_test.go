//go:build unix

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/fsdp/data"
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

// TestResume trains on two ranks until Ctrl-C, continues on three, and continues from the end on
// one. The directory has no data.
func TestResume(t *testing.T) {
	dir := t.TempDir()
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
	require.Contains(t, over, "The training is complete: digits.ckpt has step 450 of 450. Delete it to train again.\n")
	require.NotContains(t, rest, "complete")
	for _, out := range []string{rest, over} {
		match := regexp.MustCompile(`accuracy (0\.\d+|1)`).FindStringSubmatch(out)
		require.NotNil(t, match, out)
		accuracy, err := strconv.ParseFloat(match[1], 64)
		require.NoError(t, err)
		require.Greater(t, accuracy, 0.95)
	}
}

// TestSamples compares the samples with the files as data.OpenNpy reads them.
func TestSamples(t *testing.T) {
	type row struct {
		Pixels []float32 `data:"images"`
		Label  int       `data:"labels"`
	}
	files := must(data.OpenNpy[row]("testdata/images.npy", "testdata/labels.npy"))
	list := samples()
	require.Len(t, list, files.Len())
	for i, d := range list {
		require.Equal(t, must(files.At(i)), row(d))
	}
	require.NoError(t, files.Close())
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
