package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/hashes"
)

// record writes the record of one rank, of three steps, each of which has one gradient for each
// sum.
func record(t *testing.T, sums func(step int) []uint32) string {
	dir := t.TempDir()
	file, err := os.Create(filepath.Join(dir, "rank-0.hashes"))
	require.NoError(t, err)
	w := hashes.NewWriter(file, 0, 1)
	for step := range 3 {
		w.Pass(hashes.Head{Number: step + 1, Step: step})
		for i, sum := range sums(step) {
			w.Entry(hashes.Entry{Kind: hashes.Grad, Name: fmt.Sprintf("w%02d", i), To: 8, Bytes: 32, Sum: sum})
		}
		require.NoError(t, w.End())
	}
	require.NoError(t, file.Close())
	return dir
}

// TestEnds compares a run with one that has fewer steps, and with ones whose record has lost its
// end, at any byte: fsdpdiff says that the rest is the same and where the record ends.
func TestEnds(t *testing.T) {
	a := record(t, func(int) []uint32 { return make([]uint32, 3) })
	text, err := os.ReadFile(filepath.Join(a, "rank-0.hashes"))
	require.NoError(t, err)
	passes := bytes.Count(text, []byte("pass "))
	require.Equal(t, 3, passes)
	second := bytes.Index(text, []byte("pass 2 "))
	third := bytes.Index(text, []byte("pass 3 "))
	for n := second; n < len(text); n++ {
		b := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(b, "rank-0.hashes"), text[:n], 0o600))
		var out, errs bytes.Buffer
		got := run([]string{a, b}, &out, &errs)
		require.Empty(t, errs.String(), "%d bytes", n)
		if n == len(text)-1 { // only the end of the last line is missing
			require.Equal(t, same, got)
			continue
		}
		require.Equal(t, shorter, got, "%d of %d bytes: %s", n, len(text), out.String())
		want := fmt.Sprintf("then one ends: %s ends with step 2, %s ends ", a, b)
		require.Contains(t, out.String(), want)
		switch {
		case n == second:
			require.Contains(t, out.String(), want+"with step 0\n")
		case n == third:
			require.Contains(t, out.String(), want+"with step 1\n")
		case n > third+len("pass 3 2 -1\n"):
			require.Contains(t, out.String(), want+"after step 1, rank 0 in the middle of a pass\n")
		}
	}
}

// TestAdvice: if parameters differ first, a line lists possible causes.
func TestAdvice(t *testing.T) {
	const advice = "  Nothing before these parameters differs, so they were updated in different ways:\n  by the optimizer, its learning rate, or clipping.\n"
	report := &hashes.Report{Steps: 1, Differences: []hashes.Difference{{Step: 1, Kind: hashes.Param, Name: "w"}, {Step: 1, Kind: hashes.Param, Name: "v"}}}
	var out bytes.Buffer
	require.NoError(t, print(&out, report, "a", "b"))
	require.Contains(t, out.String(), "step 1 differs:\n"+advice)
	require.Equal(t, 1, bytes.Count(out.Bytes(), []byte(advice)))

	out.Reset()
	report.Differences[0].Kind = hashes.Grad
	require.NoError(t, print(&out, report, "a", "b"))
	require.NotContains(t, out.String(), advice)
	report.Differences[0].Kind, report.Steps = hashes.Param, 0 // they begin with different values
	require.NoError(t, print(&out, report, "a", "b"))
	require.NotContains(t, out.String(), advice)
}

func TestRun(t *testing.T) {
	a := record(t, func(int) []uint32 { return make([]uint32, 30) })
	b := record(t, func(step int) []uint32 {
		sums := make([]uint32, 30)
		for i := range sums {
			sums[i] = uint32(step / 2 * (i % 25))
		}
		return sums
	})
	var out, errs bytes.Buffer
	require.Equal(t, same, run([]string{a, a}, &out, &errs))
	require.Equal(t, "the same: steps 0 to 2, 90 hashes\n", out.String())

	out.Reset()
	require.Equal(t, different, run([]string{a, b}, &out, &errs))
	require.Contains(t, out.String(), fmt.Sprintf(`the same: steps 0 to 1, 62 hashes
step 2 differs:
  gradient of w01, summed over the ranks
    %s: rank 0 has 00000000 of [0:8]
    %s: rank 0 has 00000001 of [0:8]
  gradient of w02, summed over the ranks
`, a, b))
	require.Contains(t, out.String(), "\n  … and 8 others\n")

	require.Empty(t, errs.String())
	require.Equal(t, failed, run([]string{a, t.TempDir()}, &out, &errs))
	require.Contains(t, errs.String(), "has no records of hashes")
	require.Equal(t, failed, run([]string{a}, &out, &errs))
	errs.Reset()
	require.Equal(t, failed, run([]string{a, "nowhere"}, &out, &errs))
	require.Equal(t, "fsdpdiff: stat nowhere: no such file or directory\n", errs.String())

	again := t.TempDir() // whose job has started twice
	require.NoError(t, os.CopyFS(again, os.DirFS(a)))
	require.NoError(t, os.CopyFS(filepath.Join(again, "start-2"), os.DirFS(a)))
	for _, args := range [][]string{{a, again}, {again, a}} {
		errs.Reset()
		require.Equal(t, failed, run(args, &out, &errs))
		require.Contains(t, errs.String(), filepath.Join(a, "start-2"), "is missing")
	}
}
