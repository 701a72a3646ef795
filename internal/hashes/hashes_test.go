package hashes_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/checksum"
	"github.com/gofsdp/gofsdp/internal/hashes"
)

func TestWhatIsWrittenIsRead(t *testing.T) {
	entry := rapid.Custom(func(t *rapid.T) hashes.Entry {
		return hashes.Entry{
			Kind: hashes.Kind(rapid.IntRange(int(hashes.Param), int(hashes.Grad)).Draw(t, "kind")), Name: rapid.String().Draw(t, "name"),
			From: rapid.IntRange(0, 1<<40).Draw(t, "from"), To: rapid.IntRange(0, 9).Draw(t, "to"), Bytes: rapid.IntRange(0, 99).Draw(t, "bytes"),
			Sum: rapid.Uint32().Draw(t, "sum"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		entries := rapid.SliceOf(entry).Draw(t, "entries")
		cut := rapid.IntRange(0, len(entries)).Draw(t, "cut")
		var b bytes.Buffer
		w := hashes.NewWriter(&b, 1, 3)
		first, second := hashes.Head{Number: 7, Step: 2}, hashes.Head{Number: 8, Step: 2}
		w.Pass(first) // whose backward comes after the second pass
		for _, e := range entries[:cut] {
			w.Entry(e)
		}
		w.Pass(second)
		require.NoError(t, w.End())
		w.Pass(first)
		for _, e := range entries[cut:] {
			w.Entry(e)
		}
		require.NoError(t, w.End())
		lost := rapid.IntRange(0, 4).Draw(t, "bytes lost at the end")
		r, err := hashes.NewReader(bytes.NewReader(b.Bytes()[:b.Len()-lost]))
		require.NoError(t, err)
		require.Equal(t, [2]int{1, 3}, [2]int{r.Rank, r.Ranks})
		p, err := r.Next()
		require.NoError(t, err)
		require.Equal(t, &hashes.Pass{Head: second}, p)
		p, err = r.Next()
		if lost < 2 { // the last line may lack its end
			require.NoError(t, err)
			require.Equal(t, first, p.Head)
			require.Equal(t, append([]hashes.Entry(nil), entries...), append([]hashes.Entry(nil), p.Entries...))
			_, err = r.Next()
		}
		require.ErrorIs(t, err, io.EOF)
	})
}

func TestWhatIsNoRecordIsAnError(t *testing.T) {
	const title = "gofsdp hashes 1 rank 0 of 1\n"
	for text, want := range map[string]string{
		"":                              "no record",
		"gofsdp hashes 2 rank 0 of 1\n": `it begins with "gofsdp hashes 2`,
		"gofsdp hashes 1 rank 1 of 1\n": "no record",
		title + "end\nend\n":            `line 2: "end": outside of a pass`,
		title + "pass 1 step x\nend\n":  "line 2:",
		title + "pass 1 step 0 virtual -1\nq\nend\n":                                                  `line 3: "q": 1 fields, want 6`,
		title + "pass 1 step 0 virtual -1\nq 0 0 0 0 \"\"\nend\n":                                     `no kind "q"`,
		title + "pass 1 step 0 virtual -1\ngrad 0 -1 0 0 \"\"\nend\n":                                 "-1 is negative",
		title + "pass 1 step 0 virtual -1\ngrad 0 1 0 x \"\"\nend\n":                                  `"x": invalid syntax`,
		title + "pass 1 step 0 virtual -1\npass 2 step 0 virtual -1\npass 1 step 1 virtual -1\nend\n": "two lines of pass 1 contradict each other: the earlier line has step 0 and virtual rank -1",
		title + "pass 1 step 0 virtual -1\ngrad 0 1 0 0 " + string(make([]byte, 2<<20)):               "too long",
	} {
		r, err := hashes.NewReader(bytes.NewReader([]byte(text)))
		if err == nil {
			_, err = r.Next()
		}
		require.ErrorContains(t, err, want)
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte("gofsdp hashes 1 rank 0 of 1\npass 1 step 0 virtual -1\ngrad 0 1 4 0badcafe \"w\"\nend\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := hashes.NewReader(bytes.NewReader(b))
		for err == nil {
			var p *hashes.Pass
			if p, err = r.Next(); err == nil {
				require.NotNil(t, p)
			}
		}
	})
}

// A run is made of numbers, of which ranks hash their parts.
type run struct {
	ranks, micros, steps, from int
	dealt                      bool                                                        // micro-batches are those of virtual ranks, dealt in turns
	change                     func(step int, k hashes.Kind, name string, i int, b []byte) // of what is hashed
}

// virtual returns the virtual rank of a pass of a rank.
func (r run) virtual(rank, i int) int {
	if r.dealt {
		return i*r.ranks + rank
	}
	return -1
}

const elements = 24

// write writes the records of a run. Of micro-batch m of a step, whoever computes it, the numbers
// are the same.
func (r run) write(t *testing.T) string {
	dir := t.TempDir()
	numbers := func(step int, k hashes.Kind, name string, i int) []byte {
		b := []byte(fmt.Sprintf("%024d", step*1000+i*10+int(k)))
		if r.change != nil {
			r.change(step, k, name, i, b)
		}
		return b
	}
	for rank := range r.ranks {
		file, err := os.Create(filepath.Join(dir, fmt.Sprintf("rank-%d%s", rank, hashes.Suffix)))
		require.NoError(t, err)
		w := hashes.NewWriter(file, rank, r.ranks)
		entry := func(k hashes.Kind, name string, from, to int, b []byte) {
			w.Entry(hashes.Entry{Kind: k, Name: name, From: from, To: to, Bytes: len(b), Sum: checksum.Update(0, b)})
		}
		piece := func(step int, k hashes.Kind) {
			n := elements / r.ranks
			entry(k, "w", rank*n, rank*n+n, numbers(step, k, "w", 0)[rank*n:rank*n+n])
			entry(k, "copied", 0, elements, numbers(step, k, "copied", 1))
		}
		number := 0
		for step := r.from; step < r.from+r.steps; step++ {
			for i := range r.micros / r.ranks {
				number++
				w.Pass(hashes.Head{Number: number, Step: step, Virtual: r.virtual(rank, i)})
				if i == 0 {
					piece(step, hashes.Param)
				}
				m := rank*(r.micros/r.ranks) + i
				if v := r.virtual(rank, i); v >= 0 {
					m = v
				}
				entry(hashes.Batch, "", 0, 0, numbers(step, hashes.Batch, "", m))
				for _, call := range []string{"a", "b"} {
					entry(hashes.Forward, call, 0, 0, numbers(step, hashes.Forward, call, m))
				}
				entry(hashes.Backward, "b", 0, 0, numbers(step, hashes.Backward, "b", m))
				if i == r.micros/r.ranks-1 {
					piece(step, hashes.Grad)
				}
				require.NoError(t, w.End())
			}
		}
		require.NoError(t, file.Close())
	}
	return dir
}

func compare(t *testing.T, a, b string) (*hashes.Report, error) {
	x, err := hashes.Open(a)
	require.NoError(t, err)
	defer x.Close()
	y, err := hashes.Open(b)
	require.NoError(t, err)
	defer y.Close()
	x.Name, y.Name = "a", "b"
	return hashes.Compare(x, y)
}

func TestRunsOnOtherNumbersOfRanksAreTheSame(t *testing.T) {
	a := run{ranks: 4, micros: 8, steps: 5}.write(t)
	for _, ranks := range []int{1, 2, 4, 8} {
		r, err := compare(t, a, run{ranks: ranks, micros: 8, steps: 3, from: 2}.write(t))
		require.NoError(t, err)
		require.Equal(t, &hashes.Report{Steps: 3, First: 2, Same: 3 * (4 + 8*4)}, r, "%d ranks", ranks)
		r, err = compare(t, run{ranks: 2, micros: 8, steps: 5, dealt: true}.write(t), run{ranks: ranks, micros: 8, steps: 5, dealt: true}.write(t))
		require.NoError(t, err)
		require.Equal(t, 5, r.Steps, "%d ranks: %v", ranks, r.Differences)
	}
	r, err := compare(t, a, run{ranks: 2, micros: 4, steps: 1}.write(t))
	require.NoError(t, err)
	require.Equal(t, "step 0 has 8 micro-batches in a and 4 in b", r.Unlike)
	require.Empty(t, r.Differences)
	for _, micros := range []int{4, 16} { // other numbers of virtual ranks on as many ranks
		r, err = compare(t, run{ranks: 2, micros: 8, steps: 1, dealt: true}.write(t), run{ranks: 2, micros: micros, steps: 1, dealt: micros == 4}.write(t))
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("step 0 has 8 micro-batches in a and %d in b", micros), r.Unlike)
	}
}

func TestTheFirstDifferenceIsFound(t *testing.T) {
	a := run{ranks: 4, micros: 8, steps: 5}.write(t)
	for name, test := range map[string]struct {
		at   func(k hashes.Kind, name string, i int) bool
		want string
		in   [2]string
	}{
		"parameter": {
			func(k hashes.Kind, name string, _ int) bool { return k == hashes.Param && name == "w" },
			"parameter w before the step", [2]string{"rank 0 has 0dbd0a3d of [0:6]", "rank 0 has"},
		},
		"batch": {
			func(k hashes.Kind, _ string, i int) bool { return k >= hashes.Batch && i == 5 },
			"micro-batch 5: tensor 0 of the batch", [2]string{"rank 2 has", "rank 1 has"},
		},
		"forward": { // a call of a later micro-batch comes before another of an earlier one
			func(k hashes.Kind, name string, i int) bool {
				return k == hashes.Forward && (name == "b" && i == 1 || name == "a" && i == 6)
			},
			"micro-batch 6: forward of a, output 0", [2]string{"rank 3 has", "rank 1 has"},
		},
		"gradient": {
			func(k hashes.Kind, name string, _ int) bool { return k == hashes.Grad && name == "copied" },
			"gradient of copied, summed over the ranks", [2]string{"rank 0 has", "rank 0 has"},
		},
	} {
		b := run{ranks: 2, micros: 8, steps: 5, change: func(step int, k hashes.Kind, name string, i int, b []byte) {
			if step >= 3 && test.at(k, name, i) {
				b[0]++
			}
		}}.write(t)
		r, err := compare(t, a, b)
		require.NoError(t, err, name)
		require.Equal(t, 3, r.Steps, name)
		require.NotEmpty(t, r.Differences, name)
		d := &r.Differences[0]
		require.Equal(t, 3, d.Step, name)
		require.Equal(t, test.want, d.String(), name)
		require.Contains(t, d.A, test.in[0][:10], name)
		require.Contains(t, d.B, test.in[1], name)
	}
}

// A run that was killed in the middle of a step is compared as far as it has come.
func TestARunThatWasKilled(t *testing.T) {
	a, b := run{ranks: 2, micros: 4, steps: 3}.write(t), run{ranks: 2, micros: 4, steps: 3}.write(t)
	name := filepath.Join(b, "rank-1.hashes")
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(name, text[:bytes.LastIndex(text, []byte("pass "))], 0o666))
	r, err := compare(t, a, b)
	require.NoError(t, err)
	require.Empty(t, r.Differences)
	require.Equal(t, 2*(4+4*4)+2+3*4, r.Same, "but the last pass of rank 1, and the gradients after it")
}

func TestRunsThatCannotBeCompared(t *testing.T) {
	a := run{ranks: 2, micros: 2, steps: 2}.write(t)
	_, err := compare(t, a, run{ranks: 2, micros: 2, steps: 1, from: 9}.write(t))
	require.EqualError(t, err, "a and b have no step in common")
	_, err = compare(t, a, run{ranks: 2, micros: 4, steps: 2}.write(t))
	require.EqualError(t, err, "step 0: rank 0 runs 1 passes in a and 2 in b")

	_, err = hashes.Open(t.TempDir())
	require.ErrorContains(t, err, "has no records of hashes (files *.hashes)")
	require.NoError(t, os.Remove(filepath.Join(a, "rank-0.hashes")))
	r, err := hashes.Open(a)
	require.ErrorContains(t, err, "has 1 records, but the job has 2 ranks: want one record for each rank, of one model and one start")
	require.NoError(t, r.Close())
}
