package data

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/phase"
)

// upTo returns 0 to n-1.
func upTo(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

// TestPermute checks that permute is a bijection for every length and key, and what it was when it
// came into use: positions of interrupted runs rely on it.
func TestPermute(t *testing.T) {
	permuted := func(n int, key uint64) []int {
		list := make([]int, n)
		for i := range list {
			list[i] = permute(i, n, key)
		}
		return list
	}
	for n := range 200 {
		list := permuted(n, uint64(n)*golden)
		slices.Sort(list)
		require.Equal(t, upTo(n), list)
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5000).Draw(t, "n")
		list := permuted(n, rapid.Uint64().Draw(t, "key"))
		slices.Sort(list)
		require.Equal(t, upTo(n), list)
	})
	require.Equal(t, []int{9, 5, 0, 3, 8, 6, 2, 7, 4, 1}, permuted(10, 7))
	require.Equal(t, 1493607001, permute(1e9, 3e9, 8))
	require.Equal(t, 8348606904961219614, permute(1, Endless, 9))
}

// TestPermuteIsEven checks that each place gets each sample equally often over the keys, and that
// pairs of neighbours do, too: by χ² against its 99.99th percentile.
func TestPermuteIsEven(t *testing.T) {
	for _, n := range []int{2, 3, 4, 5, 7, 8, 16, 23} {
		const draws = 20000
		single, pairs := make([]int, n*n), make([]int, n*n)
		for key := range uint64(draws) {
			for i := range n {
				p := permute(i, n, key*key+3)
				single[i*n+p]++
				if i+1 < n {
					pairs[p*n+permute(i+1, n, key*key+3)]++
				}
			}
		}
		for p := range n { // no sample is its own neighbour
			require.Zero(t, pairs[p*n+p])
			pairs[p*n+p] = draws * (n - 1) / (n * max(1, n-1))
		}
		for _, counts := range [][]int{single, pairs} {
			want, chi := 0.0, 0.0
			for _, c := range counts {
				want += float64(c) / float64(len(counts))
			}
			for _, c := range counts {
				chi += (float64(c) - want) * (float64(c) - want) / want
			}
			k := float64(len(counts))
			require.Less(t, chi, k+3.72*math.Sqrt(2*k)+10, "n %d", n)
		}
	}
}

// TestShuffle checks that each epoch has each sample once, in an order of its own that the seed
// decides.
func TestShuffle(t *testing.T) {
	orders := make(map[string]bool)
	for seed := range uint64(3) {
		src := Shuffle(numbers(50), seed, 4)
		require.Equal(t, 200, src.Len())
		for epoch := range 4 {
			list := all(t, Range(src, epoch*50, (epoch+1)*50))
			orders[fmt.Sprint(list)] = true
			slices.Sort(list)
			require.Equal(t, upTo(50), list)
		}
		require.Equal(t, all(t, src), all(t, Range(Shuffle(numbers(50), seed, Endless), 0, 200)))
	}
	require.Len(t, orders, 12)
	require.Equal(t, []int{0, 1, 2, 0, 1, 2}, all(t, Repeat(numbers(3), 2)))
	require.Empty(t, all(t, Shuffle(numbers(0), 1, 3)))
	require.Equal(t, "Shuffle(Func(50 samples), seed 7, endless)", describe(Shuffle(numbers(50), 7, Endless)))
	require.Equal(t, "Repeat(Func(50 samples), 3 epochs)", describe(Repeat(numbers(50), 3)))
}

// TestSplit checks that each sample is on one side.
func TestSplit(t *testing.T) {
	train, test := Split(numbers(100), 30, 5)
	require.Equal(t, 70, train.Len())
	require.Equal(t, 30, test.Len())
	both := append(all(t, train), all(t, test)...)
	require.False(t, slices.IsSorted(both))
	slices.Sort(both)
	require.Equal(t, upTo(100), both)
	train, test = Split(numbers(100), 101, 5)
	require.Contains(t, firstError(t, train), "from 0 to -1 of 100 samples")
	require.Contains(t, firstError(t, test), "from -1 to 100 of 100 samples")
}

// TestMix checks that each block keeps the weights, and that each epoch of each part has each
// sample once.
func TestMix(t *testing.T) {
	type sample struct{ part, number int }
	of := func(part, n int) Source[sample] {
		return Func(n, func(i int) (sample, error) { return sample{part, i}, nil })
	}
	weights := []float64{3, 0.5, 1, 2}
	src := Mix(1, Part[sample]{of(0, 1000), 3}, Part[sample]{of(1, 10), 0.5}, Part[sample]{of(2, Endless), 1}, Part[sample]{of(3, 70000), 2})
	require.Equal(t, Endless, src.Len())
	seen := make([]map[int]int, 4)
	for k := range seen {
		seen[k] = make(map[int]int)
	}
	runs := 0 // of one part
	for block := range 3 {
		count, last := [4]float64{}, -1
		for i := range blockLen {
			s, err := src.At(block*blockLen + i)
			require.NoError(t, err)
			count[s.part]++
			seen[s.part][s.number]++
			if s.part != last {
				runs++
			}
			last = s.part
		}
		for k, w := range weights {
			require.InDelta(t, w/6.5*blockLen, count[k], 1)
		}
	}
	// Runs of one part are as long as in independent draws, to within five standard deviations.
	differ := 1.0
	for _, w := range weights {
		differ -= w / 6.5 * w / 6.5
	}
	require.InDelta(t, differ*3*blockLen, runs, 5*math.Sqrt(3*blockLen*differ))
	for k, n := range []int{1000, 10, 3 * int(math.Round(blockLen/6.5)), 70000} {
		times := make(map[int]bool)
		for i := range n {
			times[seen[k][i]] = true
		}
		require.LessOrEqual(t, len(times), 2, "part %d", k) // the last epoch may have begun
	}
	require.Equal(t, "Mix(seed 1, 2 of Func(3 samples), 1 of Func(samples without end))", describe(Mix(1, Part[int]{numbers(3), 2}, Part[int]{numbers(Endless), 1})))
}

// TestBucket checks that buckets reorder within chunks, and that batches have like lengths.
func TestBucket(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lengths := rapid.SliceOfN(rapid.IntRange(0, 100), 0, 300).Draw(t, "lengths")
		batch := rapid.IntRange(1, 10).Draw(t, "batch")
		chunk := batch * rapid.IntRange(1, 10).Draw(t, "batches")
		src := Bucket(numbers(len(lengths)), Of(lengths), batch, chunk, rapid.Uint64().Draw(t, "seed"))
		list := all(t, src)
		for i := 0; i < len(list); i += chunk {
			samples := list[i:min(i+chunk, len(list))]
			want := upTo(len(list))[i:min(i+chunk, len(list))]
			var spans [][2]int // of the batches' lengths
			for group := range slices.Chunk(samples, batch) {
				of := make([]int, len(group))
				for k, number := range group {
					of[k] = lengths[number]
				}
				require.True(t, slices.IsSorted(of))
				spans = append(spans, [2]int{of[0], of[len(of)-1]})
			}
			slices.SortFunc(spans, func(a, b [2]int) int { return slices.Compare(a[:], b[:]) })
			for k := range spans[1:] {
				require.LessOrEqual(t, spans[k][1], spans[k+1][0])
			}
			samples = slices.Clone(samples)
			slices.Sort(samples)
			require.Equal(t, want, samples)
		}
		if n := len(list); n > 0 { // any order of reading is as good
			i := rapid.IntRange(0, n-1).Draw(t, "i")
			again, err := src.At(i)
			require.NoError(t, err)
			require.Equal(t, list[i], again)
		}
	})
	endless := Bucket(numbers(Endless), numbers(Endless), 2, 10, 1)
	first := all(t, Range(endless, 0, 20))
	require.False(t, slices.IsSorted(first))
}

// TestBucketOfOtherLengths does not resume where a source with other lengths has come to: its order
// is another.
func TestBucketOfOtherLengths(t *testing.T) {
	src := numbers(100)
	sources := []Source[int]{
		Bucket(src, Of(slices.Repeat([]int{1, 2}, 50)), 2, 10, 1), Bucket(src, Of(slices.Repeat([]int{2, 1}, 50)), 2, 10, 1),
		Bucket(src, Measure(src, func(i int) int { return i / 10 }), 2, 10, 1), Bucket(src, Measure(src, func(i int) int { return i / 10 * i }), 2, 10, 1),
	}
	for i, from := range sources {
		l, err := NewLoader(from, column, Config{Batch: 2})
		require.NoError(t, err)
		position := l.Position()
		for k, to := range sources {
			l, err := NewLoader(to, column, Config{Batch: 2})
			require.NoError(t, err)
			if err := l.Resume(position); i == k {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, "Bucket(")
			}
		}
	}
}

// TestMeasure measures, and names the sample that cannot be read.
func TestMeasure(t *testing.T) {
	square := func(i int) int { return i * i }
	require.Equal(t, []int{0, 1, 4, 9}, all(t, Measure(numbers(4), square)))
	bad := Map(numbers(100), func(i int) (int, error) {
		if i >= 70 {
			return 0, errors.New("torn")
		}
		return i, nil
	})
	require.Equal(t, "data.Measure(Map(Func(100 samples))): sample 70: torn", firstError(t, Measure(bad, square)))
	require.Regexp(t, "sample 0: the source panicked at .*order_test.go:[0-9]+: runtime error: integer divide by zero",
		firstError(t, Measure(numbers(2), func(i int) int { return 1 / i })))
}

// TestOrdersRefuse checks the errors of orders.
func TestOrdersRefuse(t *testing.T) {
	for want, src := range map[string]Source[int]{
		"0 epochs": Shuffle(numbers(3), 1, 0),
		"the source is endless, so it cannot be repeated":              Repeat(numbers(Endless), 2),
		"the source is empty, so it cannot be repeated endlessly":      Repeat(numbers(0), Endless),
		"3 samples repeated 4611686018427387904 times overflows int":   Repeat(numbers(3), 1<<62),
		"Shuffle(nil, seed 1, 1 epochs): the source is nil":            Shuffle[int](nil, 1, 1),
		"Mix(seed 1, ): no parts":                                      Mix[int](1),
		"part 0 is nil":                                                Mix(1, Part[int]{nil, 1}),
		"part 1 has no samples":                                        Mix(1, Part[int]{numbers(1), 1}, Part[int]{numbers(0), 1}),
		"part 0: weight NaN must be positive and finite":               Mix(1, Part[int]{numbers(1), math.NaN()}),
		"part 1: weight 1 is too small: it gets none of 65536 samples": Mix(1, Part[int]{numbers(1), 1e6}, Part[int]{numbers(1), 1}),
		"there are 3 samples, but 2 lengths: give one length for each": Bucket(numbers(3), numbers(2), 1, 2, 1),
		"a chunk of 5 samples is not a whole number of batches of 2":   Bucket(numbers(3), numbers(3), 2, 5, 1),
		"Bucket(Func(3 samples), lengths nil, batch 2, chunk 4, se":    Bucket(numbers(3), nil, 2, 4, 1),
		"data.Measure(nil): the source is nil":                         Measure[int](nil, nil),
		"the source has no end":                                        Measure(numbers(Endless), func(int) int { return 0 }),
		"data.Range(Func(3 samples), 2, 4): from 2 to 4":               Bucket(numbers(1), Shuffle(Range(numbers(3), 2, 4), 1, 1), 1, 1, 1),
		"data.Range(Func(3 samples), 2, 5): from 2 to 5":               Mix(1, Part[int]{Range(numbers(3), 2, 5), 1}),
	} {
		require.Contains(t, firstError(t, src), want)
	}
	bad := Map(numbers(9), func(int) (int, error) { return 0, errors.New("lost") })
	_, err := Bucket(numbers(9), bad, 1, 3, 1).At(4)
	require.EqualError(t, err, "data.Bucket(Func(9 samples), lengths Map(Func(9 samples)), batch 1, chunk 3, seed 1): the lengths: sample 0: lost")
	later := Map(numbers(9), func(i int) (int, error) {
		if i == 3 {
			return 0, errors.New("lost")
		}
		return i, nil
	})
	_, err = Bucket(numbers(9), later, 1, 3, 1).At(4)
	require.EqualError(t, err, "the length of sample 3: lost")
}

// readerAt is a file that is not there.
type readerAt func(b []byte, at int64) (int, error)

func (f readerAt) ReadAt(b []byte, at int64) (int, error) { return f(b, at) }

func (readerAt) Close() error { return nil }

// TestProgress: slow work logs how much is done.
func TestProgress(t *testing.T) {
	slowInput := func(path, content string) *input {
		read := func(b []byte, at int64) (int, error) {
			time.Sleep(400 * time.Millisecond)
			return strings.NewReader(content).ReadAt(b, at)
		}
		return &input{readerAt(read), path, int64(len(content))}
	}
	slow := Func(4, func(i int) (Labeled, error) {
		time.Sleep(600 * time.Millisecond)
		return Labeled{[]int{i, i}, []bool{false, true}}, nil
	})
	for first, c := range map[string]struct {
		last string
		run  func(t *testing.T)
	}{
		`msg="data: measuring samples" done=0 of=1 for=1s`: {"done=1 of=1 took=1.5s", func(t *testing.T) {
			all(t, Measure(numbers(1), func(i int) int { time.Sleep(1500 * time.Millisecond); return i }))
		}},
		`msg="data: reading samples to truncate" done=1 of=4 for=1s`: {"done=4 of=4 took=2.4s", func(t *testing.T) {
			require.Len(t, Truncate(slow, 2).Dropped, 0)
		}},
		`msg="data: writing tokens to train.bin" done=5 for=1s`: {"done=5 took=1.2s", func(t *testing.T) {
			w, err := CreateTokens("train.bin", 16)
			require.NoError(t, err)
			for _, tokens := range [][]int{{1, 2, 3}, {4, 5}} {
				require.NoError(t, w.Write(tokens))
				time.Sleep(600 * time.Millisecond)
			}
			require.NoError(t, w.Close())
		}},
		`msg="data: reading train.txt, MiB" done=2 of=4 for=1s`: {"done=4 of=4 took=2s", func(t *testing.T) {
			starts, err := slowInput("train.txt", strings.Repeat("a line of text\n", 4<<20/15+1)).lines(false)
			require.NoError(t, err)
			require.Len(t, starts, 4<<20/15+2)
		}},
		`msg="data: reading digits.csv, MiB" done=2 of=4 for=1s`: {"done=4 of=4 took=1.6s", func(t *testing.T) {
			_, starts, err := slowInput("digits.csv", strings.Repeat("label,pixel0,pixel1\n", 4<<20/20+1)).records()
			require.NoError(t, err)
			require.Len(t, starts, 4<<20/20+1)
		}},
		`msg="data: finding the files below texts" done=1 for=1s`: {"done=1 took=1.5s", func(t *testing.T) {
			require.NoError(t, os.Mkdir("texts", 0o700))
			require.NoError(t, os.WriteFile("texts/a.txt", []byte("a"), 0o600))
			progress := phase.Begin("data: finding the files below texts", 0)
			_, err := find("texts", nil, progress)
			require.NoError(t, err)
			time.Sleep(1500 * time.Millisecond)
			progress.End()
		}},
		`msg="data: reading the lengths of documents" done=1 of=4 for=1s`: {"done=4 of=4 took=2.4s", func(t *testing.T) {
			documents := Map(slow, func(l Labeled) ([]int, error) { return l.Tokens, nil })
			lengths := Map(documents, func(d []int) (int, error) { return len(d), nil })
			require.Equal(t, 4, Pack(documents, lengths, 2, 2).Len())
		}},
		`msg="data: validation, steps" done=0 of=1 for=1s`: {"done=1 of=1 took=1.5s", func(t *testing.T) {
			l, err := NewLoader(numbers(6), func(b *Batch, samples []int) error {
				Column(b, samples, func(i int) int { return i })
				return nil
			}, Config{Batch: 2, Progress: "validation"})
			require.NoError(t, err)
			require.NoError(t, l.Resume(Position{Samples: 4, Source: "Func(6 samples)"}))
			for _, err := range l.Batches(t.Context()) {
				require.NoError(t, err)
				time.Sleep(1500 * time.Millisecond)
			}
		}},
	} {
		t.Run(first, func(t *testing.T) {
			t.Chdir(t.TempDir())
			var b bytes.Buffer
			before := slog.Default()
			slog.SetDefault(slog.New(slog.NewTextHandler(&b, nil)))
			defer slog.SetDefault(before)
			synctest.Test(t, c.run)
			require.Contains(t, b.String(), first)
			require.Contains(t, b.String(), c.last)
		})
	}
}
