package data

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/fsdp"
)

// rankOf is a rank of a group.
type rankOf struct{ rank, size int }

func (r rankOf) Rank() int { return r.rank }
func (r rankOf) Size() int { return r.size }

// column collates numbers.
func column(b *Batch, samples []int) error {
	Column(b, samples, func(i int) int { return i })
	return nil
}

// values returns the elements of the first tensor of a batch, or none.
func values(batch []fsdp.Tensor) []int {
	if batch == nil {
		return nil
	}
	return batch[0].Data().([]int)
}

// job is the ranks of a training in lock step.
type job struct {
	loaders []*Loader[int]
	next    []func() ([]fsdp.Tensor, error, bool)
	stop    []func()
}

// begin starts a job. Position and configuration go through JSON, as in a checkpoint.
func begin(t require.TestingT, src Source[int], size int, c Config, from *Position) *job {
	j := new(job)
	for rank := range size {
		c.Group = rankOf{rank, size}
		l, err := NewLoader(src, column, c)
		require.NoError(t, err)
		if from != nil {
			text, err := json.Marshal(from)
			require.NoError(t, err)
			var p Position
			require.NoError(t, json.Unmarshal(text, &p))
			require.NoError(t, l.Resume(p))
		}
		next, stop := iter.Pull2(l.Batches(context.Background()))
		j.loaders, j.next, j.stop = append(j.loaders, l), append(j.next, next), append(j.stop, stop)
	}
	return j
}

// step lets all ranks make a step and returns its samples in the order of the ranks, and how many
// iterations there were. All ranks must agree in everything.
func (j *job) step(t require.TestingT) (samples []int, iterations int) {
	mine, steps := make([][]int, len(j.loaders)), make([][][]fsdp.Tensor, len(j.loaders))
	for ends := false; !ends; {
		before := j.loaders[0].Position()
		some, over := false, 0
		for rank, next := range j.next {
			batch, err, more := next()
			require.NoError(t, err)
			if !more {
				over++
			}
			some = some || batch != nil
			mine[rank] = append(mine[rank], values(batch)...)
			if batch != nil {
				steps[rank] = append(steps[rank], batch)
			}
		}
		if over > 0 {
			require.Equal(t, len(j.loaders), over, "ranks make the same number of iterations")
			return nil, 0
		}
		require.True(t, some, "some rank has a batch")
		iterations++
		ends = j.loaders[0].StepEnds()
		for _, l := range j.loaders {
			require.Equal(t, ends, l.StepEnds())
			require.Equal(t, j.loaders[0].Position(), l.Position())
		}
		if !ends {
			require.Equal(t, before, j.loaders[0].Position())
		}
	}
	for rank, l := range j.loaders {
		require.Equal(t, steps[rank], l.step, "the batches of the step")
	}
	return slices.Concat(mine...), iterations
}

func (j *job) kill() {
	for _, stop := range j.stop {
		stop()
	}
}

// TestShares checks that ranks and micro batches share steps out in order, evenly, and within
// Micro.
func TestShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, batch := rapid.IntRange(1, 60).Draw(t, "samples"), rapid.IntRange(1, 20).Draw(t, "batch")
		size, micro := rapid.IntRange(1, 6).Draw(t, "ranks"), rapid.IntRange(0, 5).Draw(t, "micro")
		drop := rapid.Bool().Draw(t, "drop")
		c := Config{Batch: batch, Micro: micro, DropPartial: drop, Workers: rapid.IntRange(0, 3).Draw(t, "workers")}
		if drop && n < batch {
			_, err := NewLoader(numbers(n), column, c)
			require.ErrorContains(t, err, fmt.Sprintf("DropPartial drops all of Func(%d samples)", n))
			return
		}
		j := begin(t, numbers(n), size, c, nil)
		defer j.kill()
		at, steps := 0, 0
		for {
			samples, iterations := j.step(t)
			if iterations == 0 {
				break
			}
			require.Equal(t, upTo(n)[at:min(at+batch, n)], samples)
			if len(samples) == batch {
				require.Equal(t, j.loaders[0].MicroBatches(), iterations)
			}
			at += len(samples)
			steps++
			require.Equal(t, at, j.loaders[size-1].Position().Samples)
		}
		if drop {
			n = n / batch * batch
		}
		require.Equal(t, n, at)
		require.Equal(t, j.loaders[0].Steps(), steps)
		for k := range size * j.loaders[0].micros {
			rows := part(batch, k+1, size*j.loaders[0].micros) - part(batch, k, size*j.loaders[0].micros)
			require.InDelta(t, float64(batch)/float64(size*j.loaders[0].micros), rows, 1)
			if micro > 0 {
				require.LessOrEqual(t, rows, micro)
			}
		}
	})
}

// TestRankWithoutSamples checks that a rank whose part of every step is empty does not look for
// samples to the end of the source.
func TestRankWithoutSamples(t *testing.T) {
	l, err := NewLoader(numbers(Endless), column, Config{Group: rankOf{1, 2}, Batch: 1})
	require.NoError(t, err)
	n, err := drive(l, t.Context(), func(n int) bool { return n == 200 })
	require.NoError(t, err)
	require.Equal(t, 200, n)
	require.Equal(t, 200, l.Position().Samples)
	require.Zero(t, l.Stats().Batches)
}

// TestLargest checks that no size overflows.
func TestLargest(t *testing.T) {
	c := Config{Group: rankOf{0, 2}, Batch: math.MaxInt32, Micro: math.MaxInt, Workers: math.MaxInt, Prefetch: math.MaxInt}
	l, err := NewLoader(numbers(10), column, c)
	require.NoError(t, err)
	require.Equal(t, 1, l.MicroBatches())
	n, err := drive(l, t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, 10, l.Position().Samples)
	l, err = NewLoader(numbers(Endless-2), column, c)
	require.NoError(t, err)
	require.Equal(t, (Endless-2)/math.MaxInt32+1, l.Steps())
}

// kills is the number of times that each kind of source is interrupted in TestExactlyOnce.
const kills = 200

// TestExactlyOnce interrupts trainings 1000 times at random, and lets them go on from their last
// save with other numbers of ranks, micro batches, workers, and sometimes another batch. All
// samples must come once, in the order of the source.
func TestExactlyOnce(t *testing.T) {
	lengths := Map(numbers(311), func(i int) (int, error) { return 1 + i*i%17, nil })
	documents := Map(numbers(311), func(i int) ([]int, error) { return upTo(1 + i*i%17), nil })
	packed := Pack(Shuffle(documents, 5, 3), Shuffle(lengths, 5, 3), 4, 4)
	sources := map[string]Source[int]{
		"finite":   numbers(2003),
		"shuffled": Shuffle(numbers(701), 1, 3),
		"mixed":    Range(Mix(2, Part[int]{numbers(100), 1}, Part[int]{Map(numbers(33), func(i int) (int, error) { return 1000 + i, nil }), 0.3}), 0, 2000),
		"bucketed": Bucket(Shuffle(numbers(311), 3, 6), Shuffle(lengths, 3, 6), 8, 64, 4),
		"packed":   Map(packed, func(w Packed[int]) (int, error) { return w.Elements[0] + 100*w.Elements[1] + 10000*w.Elements[3], nil }),
	}
	for name, src := range sources {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := all(t, src)
			rnd := rand.New(rand.NewPCG(7, uint64(len(name))))
			for killed := 0; killed < kills; {
				killed += train(t, src, want, rnd)
			}
		})
	}
}

// train trains on all of src and returns how often it was killed.
func train(t require.TestingT, src Source[int], want []int, rnd *rand.Rand) (killed int) {
	batch := 1 + rnd.IntN(40)
	var saved Position
	var seen []int
	for from := (*Position)(nil); ; from = &saved {
		if rnd.IntN(4) == 0 {
			batch = 1 + rnd.IntN(40)
		}
		c := Config{Batch: batch, Micro: rnd.IntN(6), Workers: rnd.IntN(4), Prefetch: rnd.IntN(2000)}
		j := begin(t, src, 1+rnd.IntN(8), c, from)
		life, every := rnd.IntN(20), 1+rnd.IntN(4)
		for step := 0; ; step++ {
			samples, iterations := j.step(t)
			seen = append(seen, samples...)
			if iterations == 0 {
				require.Equal(t, want, seen)
				j.kill()
				return killed
			}
			if step%every == 0 {
				saved = j.loaders[rnd.IntN(len(j.loaders))].Position()
				require.Len(t, seen, saved.Samples)
			}
			if step == life {
				break
			}
		}
		j.kill()
		killed++
		seen = seen[:saved.Samples] // what came after the save is done again
		if saved.Source == "" {
			saved = j.loaders[0].Position()
		}
	}
}

// run drives a loader until it ends or stop says so.
func drive(l *Loader[int], ctx context.Context, stop func(batches int) bool) (batches int, err error) {
	for _, err := range l.Batches(ctx) {
		if err != nil {
			return batches, err
		}
		if batches++; stop != nil && stop(batches) {
			break
		}
	}
	return batches, nil
}

// failing returns numbers of which one calls f.
func failing(at int, f func() error) Source[int] {
	return Func(100, func(i int) (int, error) {
		if i == at {
			return 0, f()
		}
		return i, nil
	})
}

// TestErrors checks that errors and panics of sources and collate functions come where their batch
// would, with the rank and the sample, and that no goroutine is left.
func TestErrors(t *testing.T) {
	lost := errors.New("lost")
	for name, c := range map[string]struct {
		src     Source[int]
		collate Collate[int]
		want    string
	}{
		"error": {failing(37, func() error { return lost }), column, "^data: rank 1: sample 37: lost$"},
		"panic": {failing(37, func() error { panic("gone") }), column, "^data: rank 1: sample 37: the source panicked at .*loader_test.go:[0-9]+: gone$"},
		"goroutine": {failing(37, func() error { runtime.Goexit(); return nil }), column,
			"^data: rank 1: the source or the collate function ended its goroutine"},
		"collate": {numbers(100), func(b *Batch, s []int) error {
			if s[0] == 35 {
				return lost
			}
			return column(b, s)
		}, "^data: rank 1: samples 35 to 39: lost$"},
		"row": {numbers(100), func(b *Batch, s []int) error {
			return Stack(b, s, func(i int) []int { return make([]int, 2+i/37) }, 2)
		}, "^data: rank 1: sample 37: got 3 elements, want 2 for shape \\[2\\]$"},
		"none": {numbers(100), func(*Batch, []int) error { return nil }, "^data: rank 1: samples 5 to 9: the collate function returned no tensors: call Stack, .*$"},
		"shape": {numbers(100), func(b *Batch, s []int) error { Tensor[int](b, 1<<32, 1<<32); return nil },
			"^data: rank 1: samples 5 to 9: the collate function panicked at .*: invalid tensor shape \\[4294967296 4294967296\\]$"},
		"negative shape": {numbers(100), func(b *Batch, s []int) error { Tensor[int](b, -3, -1); return nil },
			"^data: rank 1: samples 5 to 9: the collate function panicked at .*: invalid tensor shape \\[-3 -1\\]$"},
		"collate's panic": {numbers(100), func(*Batch, []int) error { panic(lost) },
			"^data: rank 1: samples 5 to 9: the collate function panicked at .*loader_test.go:[0-9]+: lost$"},
	} {
		for _, workers := range []int{1, 3} {
			t.Run(fmt.Sprint(name, workers), func(t *testing.T) {
				defer goleak.VerifyNone(t)
				l, err := NewLoader(c.src, c.collate, Config{Group: rankOf{1, 2}, Batch: 10, Workers: workers})
				require.NoError(t, err)
				for range 2 { // it does not get better
					_, err = drive(l, t.Context(), nil)
					require.Error(t, err)
					require.Regexp(t, c.want, err.Error())
				}
				require.LessOrEqual(t, l.Position().Samples, 30)
			})
		}
	}
}

// TestGoesOn checks that a loop that was left, or whose source could not be read, goes on after the
// step that was yielded last.
func TestGoesOn(t *testing.T) {
	defer goleak.VerifyNone(t)
	torn := true
	l, err := NewLoader(failing(55, func() error {
		if torn {
			return errors.New("torn")
		}
		return nil
	}), column, Config{Batch: 10})
	require.NoError(t, err)
	n, err := drive(l, t.Context(), func(n int) bool { return n == 2 })
	require.NoError(t, err)
	require.Equal(t, 2, n)
	n, err = drive(l, t.Context(), nil)
	require.EqualError(t, err, "data: rank 0: sample 55: torn")
	require.Equal(t, 3, n)
	torn = false
	n, err = drive(l, t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, 5, n)
	require.Equal(t, 100, l.Position().Samples)
	require.Equal(t, "Func(100 samples)", l.Position().Source)
	require.Equal(t, 10, l.Steps())
	log := logged(t)
	n, err = drive(l, t.Context(), nil)
	require.NoError(t, err)
	require.Zero(t, n)
	require.Equal(t, 1, strings.Count(log.String(), "call Rewind before each further loop"), log.String())
	log.Reset()
	require.NoError(t, l.Resume(l.Position())) // of a training that has ended
	n, err = drive(l, t.Context(), nil)
	require.NoError(t, err)
	require.Zero(t, n)
	require.Empty(t, log.String())
	require.NoError(t, l.Rewind())
	n, err = drive(l, t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, 10, n)
	require.Equal(t, 20, l.Stats().Batches)
	require.Equal(t, 200, l.Stats().Samples)
}

// TestCancel cancels the context in the loop body, and while the loop waits for a sample.
func TestCancel(t *testing.T) {
	cause := errors.New("interrupted")
	ctx, cancel := context.WithCancelCause(t.Context())
	l, err := NewLoader(numbers(Endless), column, Config{Batch: 4})
	require.NoError(t, err)
	n, err := drive(l, ctx, func(n int) bool { cancel(cause); return false })
	require.Equal(t, 1, n)
	require.ErrorIs(t, err, cause)
	require.EqualError(t, err, "data: rank 0: before sample 4: interrupted")
	require.Equal(t, 4, l.Position().Samples)

	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 15*time.Second, cause)
		defer cancel()
		slow := Func(Endless, func(i int) (int, error) { time.Sleep(10 * time.Second); return i, nil })
		l, err := NewLoader(slow, column, Config{Batch: 1})
		require.NoError(t, err)
		begin := time.Now()
		for _, err = range l.Batches(ctx) {
			if err != nil {
				require.Equal(t, 15*time.Second, time.Since(begin))
				break
			}
		}
		require.EqualError(t, err, "data: rank 0: waiting for samples 1 to 1: interrupted")
		require.Equal(t, 20*time.Second, time.Since(begin), "the loop ends when the source has come back")
	})
}

// TestAhead checks that batches are made while the loop body runs, within the bound, and that only
// the time is counted in which the loop waits.
func TestAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := Func(100, func(i int) (int, error) { time.Sleep(time.Second); return i, nil })
		tensors := func(b *Batch, s []int) error {
			Tensor[float32](b, 250*s[0]/s[0]) // 1000 bytes
			return nil
		}
		l, err := NewLoader(Map(slow, func(i int) (int, error) { return i + 1, nil }), tensors, Config{Batch: 2, Prefetch: 3500, Workers: 2})
		require.NoError(t, err)
		n := 0
		for _, err := range l.Batches(t.Context()) {
			require.NoError(t, err)
			time.Sleep(3 * time.Second)
			synctest.Wait()
			require.LessOrEqual(t, l.Stats().Bytes, 4000, "those ahead and that of the loop")
			if n++; n > 5 && n < 40 {
				require.Equal(t, 3, l.Stats().Ahead)
				require.Equal(t, 4000, l.Stats().Bytes)
			}
		}
		require.Equal(t, 50, n)
		require.Equal(t, 2*time.Second, l.Stats().Waited, "for the first")
		require.Zero(t, l.Stats().Ahead)

		// A source that is too slow is waited for.
		l, err = NewLoader(slow, column, Config{Batch: 10})
		require.NoError(t, err)
		for range l.Batches(t.Context()) {
			time.Sleep(4 * time.Second)
		}
		require.Equal(t, 10*time.Second+9*6*time.Second+8*time.Second, l.Stats().Waited, "8 samples are read twice")
	})
}

// TestBound checks that memory stays within the bound when batches get larger, and is given back.
func TestBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		grow := func(b *Batch, s []int) error {
			Tensor[float32](b, 10*(1+s[0]/20)) // 40 bytes more after each 20 batches
			return nil
		}
		l, err := NewLoader(numbers(200), grow, Config{Batch: 1, Prefetch: 800})
		require.NoError(t, err)
		n := 0
		for _, err := range l.Batches(t.Context()) {
			require.NoError(t, err)
			synctest.Wait()
			largest := 40 * (1 + min(n+800/40, 199)/20)
			require.LessOrEqual(t, l.Stats().Bytes, 800+2*largest)
			n++
		}
		require.Equal(t, 200, n)
		require.LessOrEqual(t, l.Stats().Bytes, 800+400)
	})
}

// TestLoaderRefuses checks the errors of NewLoader and Resume, and loops in loops.
func TestLoaderRefuses(t *testing.T) {
	group := rankOf{1, 2}
	for want, c := range map[string]Config{
		"Config.Batch is 0: want 1 to 2147483647, the samples of a step on all ranks together":          {},
		"Config.Batch is 2147483648: want 1 to 2147483647, the samples of a step on all ranks together": {Batch: math.MaxInt32 + 1},
		"of the fields Micro -1, Workers 0 and Prefetch 0 none may be negative":                         {Batch: 1, Micro: -1},
		"the group has 0 ranks": {Batch: 1, Group: rankOf{}},
	} {
		_, err := NewLoader(numbers(3), column, c)
		require.ErrorContains(t, err, "data: rank 0: NewLoader: "+want)
	}
	_, err := NewLoader(Of([]int{}), column, Config{Group: group, Batch: 2})
	require.EqualError(t, err, "data: rank 1: NewLoader: Of(0 × int) has no samples: check what the source reads")
	_, err = NewLoader(numbers(3), column, Config{Group: group, Batch: 4, DropPartial: true})
	require.EqualError(t, err, "data: rank 1: NewLoader: DropPartial drops all of Func(3 samples): it has 3 samples, and a step has 4: lower Config.Batch")
	_, err = NewLoader(nil, column, Config{Group: group})
	require.EqualError(t, err, "data: rank 1: NewLoader: the source is nil")
	_, err = NewLoader(numbers(3), nil, Config{Group: group})
	require.EqualError(t, err, "data: rank 1: NewLoader: the collate function is nil")
	_, err = NewLoader(Range(numbers(3), 1, 9), column, Config{Group: group, Batch: 2})
	require.EqualError(t, err, "data: rank 1: NewLoader: data.Range(Func(3 samples), 1, 9): from 1 to 9 of 3 samples")

	l, err := NewLoader(numbers(3), column, Config{Group: group, Batch: 2})
	require.NoError(t, err)
	require.EqualError(t, l.Resume(Position{Samples: 2, Source: "Func(4 samples)"}),
		"data: rank 1: Resume: the saved position belongs to Func(4 samples), but this loader reads Func(3 samples): use the source of the saved training, or begin without Resume")
	require.EqualError(t, l.Resume(Position{Samples: 4, Source: "Func(3 samples)"}), "data: rank 1: Resume: the saved position is after 4 samples, but the source has 3 samples: use the source of the saved training, or begin without Resume")
	for range l.Batches(t.Context()) {
		_, err := drive(l, t.Context(), nil)
		require.EqualError(t, err, "data: rank 1: Batches: another loop over Batches is running")
		require.EqualError(t, l.Rewind(), "data: rank 1: Resume: another loop over Batches is running")
	}
}

// tokenFile writes a file of n tokens, and opens it.
func tokenFile(t testing.TB, n int) *Tokens {
	path := filepath.Join(t.TempDir(), "tokens.bin")
	w, err := CreateTokens(path, 16)
	require.NoError(t, err)
	tokens := make([]int, n)
	for i := range tokens {
		tokens[i] = i * i % 50000
	}
	w.Write(tokens)
	require.NoError(t, w.Close())
	file, err := OpenTokens(path, 16)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, file.Close()) })
	return file
}

// TestKeptBatches keeps some batches of a loop with many prefetched ones and drops others. The kept
// batches still have the samples with which they were yielded.
func TestKeptBatches(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Config{Batch: rapid.IntRange(1, 4).Draw(t, "batch"), Prefetch: rapid.IntRange(0, 64).Draw(t, "prefetch")}
		c.Workers = rapid.IntRange(1, 3).Draw(t, "workers")
		l, err := NewLoader(numbers(300), func(b *Batch, samples []int) error {
			Column(b, samples, func(i int) int { return i })
			return Stack(b, samples, func(i int) []float32 { return []float32{float32(i), 1} })
		}, c)
		require.NoError(t, err)
		var kept [][]fsdp.Tensor
		for range 2 {
			for batch, err := range l.Batches(t.Context()) {
				require.NoError(t, err)
				kept = append(kept, batch)
			}
			require.NoError(t, l.Rewind())
		}
		first := 0
		for _, batch := range kept {
			rows, pairs := values(batch), batch[1].Data().([]float32)
			for i, row := range rows {
				require.Equal(t, (first+i)%300, row)
				require.Equal(t, []float32{float32(row), 1}, pairs[2*i:2*i+2])
			}
			first += len(rows)
		}
		require.Equal(t, 600, first)
	})
}

// TestGarbage drops batches of 1 MiB. The loader has them collected although the garbage collector
// is off.
func TestGarbage(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	collate := func(b *Batch, _ []int) error { Tensor[float32](b, 1<<18); return nil }
	l, err := NewLoader(numbers(500), collate, Config{Batch: 1, Prefetch: 4 << 20})
	require.NoError(t, err)
	var now, most runtime.MemStats
	for _, err := range l.Batches(t.Context()) {
		require.NoError(t, err)
		if runtime.ReadMemStats(&now); now.HeapAlloc > most.HeapAlloc {
			most = now
		}
	}
	require.Less(t, most.HeapAlloc, uint64(3*mostGarbage), "500 MiB have been made")
}

// TestFewAllocations checks that batches cost their tensors and nothing else once the loop goes,
// neither in it nor in the workers: of windows of a file, shuffled, mixed and in buckets, and of a
// slice.
func TestFewAllocations(t *testing.T) {
	windows := tokenFile(t, 1<<16).Windows(129, 128)
	same := Func(Endless, func(int) (int, error) { return 129, nil })
	slice := Map(Windows(make([]uint16, 1<<16), 129, 128), func(w []uint16) ([]uint16, error) { return w[:100], nil })
	fewAllocations(t, Shuffle(windows, 1, Endless), TokensAndTargets[int](128), 2, 1)
	fewAllocations(t, Mix(2, Part[[]int]{windows, 1}, Part[[]int]{Range(windows, 0, 9), 2}), TokensAndTargets[int](128), 2, 3)
	fewAllocations(t, Bucket(Repeat(Concat(windows, windows), Endless), same, 16, 160, 3), TokensAndTargets[int](128), 2, 2)
	fewAllocations(t, Repeat(slice, Endless), TokensAndTargets[uint16](128), 2, 1)
	fewAllocations(t, Shuffle(numbers(1000), 1, Endless), func(b *Batch, samples []int) error {
		three := func(i int) []float32 { return table[i%7 : i%7+3] }
		if err := Stack(b, samples, three, 3, 1); err != nil {
			return err
		}
		width, err := Pad(b, samples, func(i int) []float32 { return table[:1+i%9] }, widths, -1)
		Mask[float32](b, samples, func(i int) int { return 1 + i%9 }, width)
		Column(b, samples, func(i int) int { return i })
		return err
	}, 4, 2)
}

var (
	table  = make([]float32, 10)
	widths = Widths(9, 12)
)

func fewAllocations[T any](t *testing.T, src Source[T], collate Collate[T], tensors, workers int) {
	l, err := NewLoader(src, collate, Config{Group: rankOf{1, 2}, Batch: 16, Workers: workers})
	require.NoError(t, err)
	next, stop := iter.Pull2(l.Batches(t.Context()))
	defer stop()
	pull := func() {
		if batch, err, more := next(); err != nil || !more || batch == nil {
			panic(err)
		}
	}
	for range 300 {
		pull()
	}
	const each = 12 // of a tensor: its elements, shape and strides, and the headers of package tensor
	require.LessOrEqual(t, testing.AllocsPerRun(1000, pull), float64(each*tensors+3))
}

// TestReaders checks that samples read into memory of others are the same ones.
func TestReaders(t *testing.T) {
	windows := tokenFile(t, 1000).Windows(8, 7)
	lengths := Func(windows.Len(), func(i int) (int, error) { return i * i % 11, nil })
	for _, src := range []Source[[]int]{
		windows,
		Range(Mix(1, Part[[]int]{windows, 1}, Part[[]int]{Range(windows, 5, 9), 3}), 0, 300),
		Shuffle(Concat(windows, Range(windows, 100, 120)), 2, 3),
		Bucket(windows, lengths, 4, 20, 3),
	} {
		require.NotNil(t, intoOf(src))
		var got [][]int
		l, err := NewLoader(src, func(b *Batch, samples [][]int) error { return Stack(b, samples, func(w []int) []int { return w }) }, Config{Batch: 3})
		require.NoError(t, err)
		for batch, err := range l.Batches(t.Context()) {
			require.NoError(t, err)
			for row := range slices.Chunk(values(batch), 8) {
				got = append(got, slices.Clone(row))
			}
		}
		require.Equal(t, all(t, src), got)
	}
	require.Nil(t, intoOf(Concat(Source[[]int](windows), Of([][]int{{1}}))), "the slice's memory is not to be read into")
	require.Nil(t, intoOf(Map(Source[[]int](windows), func(w []int) ([]int, error) { return w, nil })))
}

// BenchmarkTokens measures how many tokens of a file workers make batches of: shuffled windows of
// 256.
func BenchmarkTokens(b *testing.B) {
	for _, workers := range []int{1, 2} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			const context, batch = 256, 8
			windows := tokenFile(b, 1<<22).Windows(context+1, context)
			l, err := NewLoader(Shuffle(windows, 1, Endless), TokensAndTargets[int](context), Config{Batch: batch, Workers: workers})
			require.NoError(b, err)
			next, stop := iter.Pull2(l.Batches(b.Context()))
			defer stop()
			b.ReportAllocs()
			for b.Loop() {
				if _, err, _ := next(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)*batch*context/b.Elapsed().Seconds()/1e6, "Mtokens/s")
		})
	}
}

// BenchmarkWait measures the share of the time that a loop waits for windows of a file if its body
// computes for a millisecond, for 2048 tokens: 700 times as fast as a small GPT trains on two
// cores.
func BenchmarkWait(b *testing.B) {
	windows := tokenFile(b, 1<<22).Windows(257, 256)
	l, err := NewLoader(Shuffle(windows, 1, Endless), TokensAndTargets[int](256), Config{Batch: 8})
	require.NoError(b, err)
	next, stop := iter.Pull2(l.Batches(b.Context()))
	defer stop()
	for b.Loop() {
		if _, err, _ := next(); err != nil {
			b.Fatal(err)
		}
		for begin := time.Now(); time.Since(begin) < time.Millisecond; {
			permute(1, 1000, 1)
		}
	}
	b.ReportMetric(100*l.Stats().Waited.Seconds()/b.Elapsed().Seconds(), "%waited")
}

// BenchmarkShuffle measures the number of a sample in a shuffled source.
func BenchmarkShuffle(b *testing.B) {
	for i, n := 0, 1_000_000_007; b.Loop(); i++ {
		permute(i, n, 1)
	}
}

// TestRows counts the samples of batches, whatever their tensors are like.
func TestRows(t *testing.T) {
	collate := func(b *Batch, samples []int) error {
		Tensor[float32](b, len(samples), 2, 3)
		return nil
	}
	loader, err := NewLoader(numbers(5), collate, Config{Batch: 3})
	require.NoError(t, err)
	rows := []int{Rows(nil)}
	for batch, err := range loader.Batches(t.Context()) {
		require.NoError(t, err)
		rows = append(rows, Rows(batch))
	}
	require.Equal(t, []int{0, 3, 2}, rows)
}

// TestVirtualRanks: the micro batches of virtual ranks are the same on any number of ranks, in the
// order that package fsdp runs them in, with as many in the last step as in any.
func TestVirtualRanks(t *testing.T) {
	const virtual, batch, samples = 6, 9, 22
	src := Func(samples, func(i int) (int, error) { return i, nil })
	for _, size := range []int{1, 2, 3, 4, 5, 6} {
		for _, noSync := range []bool{false, true}[:2-min(virtual%size, 1)] {
			passes := (virtual + size - 1) / size
			for rank := range size {
				l, err := NewLoader(src, column, Config{Group: rankOf{rank, size}, Batch: batch, VirtualRanks: virtual, NoSync: noSync})
				require.NoError(t, err)
				require.Equal(t, passes, l.MicroBatches())
				i := 0
				for b, err := range l.Batches(t.Context()) {
					require.NoError(t, err)
					step, k := i/passes, i%passes
					v := k*size + rank
					if noSync {
						v = rank*passes + k
					}
					var want []int
					for s := part(batch, v, virtual); v < virtual && s < part(batch, v+1, virtual) && step*batch+s < samples; s++ {
						want = append(want, step*batch+s)
					}
					require.Equal(t, want, values(b), "%d ranks, step %d, virtual rank %d", size, step, v)
					require.Equal(t, k == passes-1, l.StepEnds())
					i++
				}
				require.Equal(t, 3*passes, i)
				require.Equal(t, samples, l.Position().Samples)
			}
		}
	}
	for want, c := range map[string]Config{
		"VirtualRanks is 1: must be at least the 2 ranks":                                                 {VirtualRanks: 1},
		"VirtualRanks is 3, which is no multiple of the 2 ranks, so no micro batch may run inside NoSync": {VirtualRanks: 3, NoSync: true},
		"VirtualRanks is 4 and Micro is 1":                                                                {VirtualRanks: 4, Micro: 1},
		"NoSync is set without VirtualRanks":                                                              {NoSync: true},
	} {
		c.Group, c.Batch = rankOf{0, 2}, 1
		_, err := NewLoader(src, column, c)
		require.ErrorContains(t, err, want)
	}
}

// TestStepSmallerThanRanks warns once, on rank 0, where a step leaves ranks without samples.
func TestStepSmallerThanRanks(t *testing.T) {
	log := logged(t)
	for _, c := range []Config{{Batch: 4}, {Batch: 2}, {Batch: 2, Micro: 1}, {Batch: 7, VirtualRanks: 8}} {
		for rank := range 4 {
			c.Group = rankOf{rank, 4}
			_, err := NewLoader(numbers(20), column, c)
			require.NoError(t, err)
		}
	}
	const text = "data: a step has fewer samples than ranks, so some ranks never get a sample"
	require.Equal(t, 3, strings.Count(log.String(), text), log.String())
	require.Contains(t, log.String(), "batch=2 ranks=4")
	require.Contains(t, log.String(), "batch=7 ranks=8")
}
