package monitor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// keeper is a writer that keeps rows, and fails at a step.
type keeper struct {
	opened, closed int
	rows           []map[string]float64
	steps          []int
	failAt         int
}

var errDisk = errors.New("no space left on device")

func (k *keeper) Open(step int) error { k.opened++; return nil }
func (k *keeper) Close() error        { k.closed++; return nil }
func (k *keeper) Write(r *Row) error {
	if r.Step == k.failAt {
		return errDisk
	}
	row := make(map[string]float64)
	for _, v := range r.Values {
		row[v.Name] = v.Value
	}
	k.rows, k.steps = append(k.rows, row), append(k.steps, r.Step)
	return nil
}

// onRanks runs f on n ranks, with a monitor of each over its config.
func onRanks(t *testing.T, n int, cfg Config, f func(ctx context.Context, mon *Monitor, rank int) error) error {
	t.Helper()
	return comm.Run(t.Context(), n, func(ctx context.Context, g comm.Group) error {
		cfg := cfg
		cfg.Group = g
		mon, err := New(cfg)
		if err != nil {
			return err
		}
		return errors.Join(f(ctx, mon, g.Rank()), mon.Close())
	})
}

// TestStep: rank 1 has no batch in the second step, so its loss counts for nothing.
func TestStep(t *testing.T) {
	var k keeper
	var shown bytes.Buffer
	var mu sync.Mutex
	var states []State
	cfg := Config{Steps: 2, FLOPs: 10, Writers: []Writer{&k}, Out: &shown}
	require.NoError(t, onRanks(t, 3, cfg, func(ctx context.Context, mon *Monitor, rank int) error {
		require.Equal(t, 0.0, mon.Done())
		require.NoError(t, mon.Step(ctx, 10*(rank+1), Values{"loss": float64(rank + 1), "lr": 0.1}))
		last, ok := mon.Last("loss")
		require.True(t, ok)
		require.InDelta(t, (1*10+2*20+3*30)/60., last, 1e-15)
		require.Equal(t, 0.5, mon.Done())
		require.NoError(t, mon.Eval(ctx, 1, Values{"loss": 7, "accuracy": float64(rank)}))
		units := 10
		loss := 2.5
		if rank == 1 {
			units, loss = 0, math.NaN()
		}
		require.NoError(t, mon.Step(ctx, units, Values{"loss": loss, "lr": 0.1}))
		require.Equal(t, 1.0, mon.Done())
		mu.Lock()
		defer mu.Unlock()
		states = append(states, mon.State())
		return nil
	}))
	require.Equal(t, 1, k.opened, "rank 0's alone")
	require.Equal(t, 1, k.closed)
	require.Equal(t, []int{1, 1, 2}, k.steps)
	for _, r := range k.rows {
		for _, name := range []string{"run/seconds", "run/units_per_second", "run/flops_per_second"} {
			delete(r, name)
		}
	}
	require.InDelta(t, 14./6, k.rows[0]["loss"], 1e-15)
	require.Equal(t, 0.1, k.rows[0]["lr"], "to the bit")
	require.Equal(t, map[string]float64{"validation/loss": 7, "validation/accuracy": 1}, k.rows[1])
	require.Equal(t, map[string]float64{"loss": 2.5, "lr": 0.1, "run/units": 80}, k.rows[2])
	require.Equal(t, states[0], states[1])
	require.Equal(t, states[0], states[2])
	require.Equal(t, 80, states[0].Units)
	require.Equal(t, []Point{{1, 7}}, states[0].Validation)
	for _, part := range []string{
		"step 1/2  loss 2.3333  left ", "tok/s", "FLOP/s", "lr 0.1\n", "step 1  validation loss 7.0000  accuracy 1\n", "step 2/2  loss 2.",
		"loss, logarithmic: ⠒⠒ train  ● validation\n", "result\n  2 steps over 80 tok in ",
	} {
		require.Contains(t, shown.String(), part)
	}
}

// TestEvery: one row and one exchange stand for several steps, of which none is lost where Steps
// says the end.
func TestEvery(t *testing.T) {
	var k keeper
	require.NoError(t, onRanks(t, 2, Config{Every: 4, Steps: 10, Writers: []Writer{&k}}, func(ctx context.Context, mon *Monitor, rank int) error {
		for step := range 10 {
			// Twice the weight on rank 1, and twice that in odd steps.
			if err := mon.Step(ctx, (rank+1)*(step%2+1), Values{"loss": float64(10*step + rank)}); err != nil {
				return err
			}
			if _, ok := mon.Last("loss"); ok != (step >= 3) {
				return fmt.Errorf("step %d: a row: %v", step, ok)
			}
			if step == 5 {
				if err := mon.Eval(ctx, 1, Values{"loss": 1}); err != nil {
					return err
				}
			}
		}
		return nil
	}))
	require.Equal(t, []int{4, 6, 8, 10}, k.steps)
	weighted := func(from, to int) float64 {
		sum, weight := 0., 0.
		for step := from; step < to; step++ {
			for rank := range 2 {
				w := float64((rank + 1) * (step%2 + 1))
				sum, weight = sum+w*float64(10*step+rank), weight+w
			}
		}
		return sum / weight
	}
	for i, rows := range map[int][2]int{0: {0, 4}, 2: {4, 8}, 3: {8, 10}} {
		require.InDelta(t, weighted(rows[0], rows[1]), k.rows[i]["loss"], 1e-12)
	}
	require.Equal(t, 45.0, k.rows[3]["run/units"])
}

// TestMeanIsExact: values that are equal everywhere stay as they are, and the mean of others is
// theirs.
func TestMeanIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.IntRange(0, 1000), 1, 20).Draw(t, "weights")
		x := rapid.Float64().Draw(t, "x")
		var same, other mean
		sum, weight := 0., 0.
		for i, w := range weights {
			same.add(x, float64(w))
			other.add(float64(i), float64(w))
			sum, weight = sum+float64(i*w), weight+float64(w)
		}
		got, ok := same.result()
		require.True(t, ok)
		require.Equal(t, x, got)
		if weight == 0 { // all count alike
			sum, weight = float64(len(weights)*(len(weights)-1))/2, float64(len(weights))
		}
		require.InDelta(t, sum/weight, other.value, 1e-9)
	})
	var none mean
	_, ok := none.result()
	require.False(t, ok)
}

// TestWriterFails: all ranks return the error from the same call, the one after the row that could
// not be written.
func TestWriterFails(t *testing.T) {
	var mu sync.Mutex
	failed := make(map[int]string)
	k := &keeper{failAt: 3}
	require.NoError(t, onRanks(t, 3, Config{Writers: []Writer{k}}, func(ctx context.Context, mon *Monitor, rank int) error {
		for step := 1; step <= 3; step++ {
			if err := mon.Step(ctx, 1, Values{"loss": 1}); err != nil {
				return err
			}
		}
		err := mon.Step(ctx, 1, Values{"loss": 1})
		mu.Lock()
		defer mu.Unlock()
		failed[rank] = fmt.Sprint(err)
		require.Equal(t, rank == 0, errors.Is(err, errDisk))
		return nil
	}))
	other := "monitor: step 4: a writer of rank 0 has failed: the error of rank 0 says why"
	require.Equal(t, map[int]string{0: "monitor: step 4: the row of step 3: no space left on device", 1: other, 2: other}, failed)

	for n, want := range map[int]string{ // of the last row
		1: "monitor: the row of step 3: no space left on device",
		2: "rank 0: monitor: the row of step 3: no space left on device",
	} {
		err := onRanks(t, n, Config{Writers: []Writer{&keeper{failAt: 3}}}, func(ctx context.Context, mon *Monitor, rank int) error {
			for range 2 {
				require.NoError(t, mon.Step(ctx, 1, nil))
			}
			return mon.Step(ctx, 1, nil)
		})
		require.ErrorIs(t, err, errDisk)
		require.ErrorContains(t, err, want)
	}
}

// TestRanksDisagree: names that differ are an error on every rank that says them.
func TestRanksDisagree(t *testing.T) {
	err := onRanks(t, 2, Config{}, func(ctx context.Context, mon *Monitor, rank int) error {
		return mon.Step(ctx, 1, Values{"loss": 1, []string{"lr", "norm"}[rank]: 1})
	})
	var mismatch *comm.MismatchError
	require.ErrorAs(t, err, &mismatch)
	require.ErrorContains(t, err, `"monitor: loss lr"`)
	require.ErrorContains(t, err, `"monitor: loss norm"`)
}

// TestOneRankIsRefused gives one rank what is an error: the other does not wait for it.
func TestOneRankIsRefused(t *testing.T) {
	for text, call := range map[string]func(ctx context.Context, mon *Monitor) error{
		"monitor: Step: the number of units is -1: must not be negative": func(ctx context.Context, mon *Monitor) error { return mon.Step(ctx, -1, nil) },
		`monitor: Step: "" is not a valid name of a value`:               func(ctx context.Context, mon *Monitor) error { return mon.Step(ctx, 1, Values{"": 1}) },
		"monitor: Eval: the number of units is -1: must not be negative": func(ctx context.Context, mon *Monitor) error { return mon.Eval(ctx, -1, nil) },
		`monitor: Eval: "validation/a\nb" is not a valid n`:              func(ctx context.Context, mon *Monitor) error { return mon.Eval(ctx, 1, Values{"a\nb": 1}) },
	} {
		for refused := 1; refused <= 2; refused++ {
			want, errs := text, make([]error, 2)
			_ = onRanks(t, 2, Config{}, func(ctx context.Context, mon *Monitor, rank int) error {
				if rank < refused {
					errs[rank] = call(ctx, mon)
				} else {
					errs[rank] = mon.Step(ctx, 1, Values{"loss": 1})
				}
				return nil
			})
			require.ErrorContains(t, errs[0], want)
			require.NotErrorIs(t, errs[0], comm.ErrClosed)
			var mismatch *comm.MismatchError
			require.Equal(t, refused == 1, errors.As(errs[1], &mismatch))
			if refused == 1 { // it quotes
				want = strings.Trim(strconv.Quote(want), `"`)
			}
			require.ErrorContains(t, errs[1], want)
		}
	}
}

func TestBadCalls(t *testing.T) {
	for _, cfg := range []Config{{Every: -1}, {Steps: -1}, {Budget: -1}, {FLOPs: -1}, {Peak: -1}, {Peak: math.NaN()}} {
		_, err := New(cfg)
		require.ErrorContains(t, err, "must not be negative or NaN")
	}
	mon, err := New(Config{})
	require.NoError(t, err)
	ctx := t.Context()
	require.EqualError(t, mon.Step(ctx, -1, nil), "monitor: Step: the number of units is -1: must not be negative")
	require.EqualError(t, mon.Eval(ctx, -1, nil), "monitor: Eval: the number of units is -1: must not be negative")
	for _, name := range []string{"", "a\nb"} {
		require.ErrorContains(t, mon.Step(ctx, 1, Values{name: 1}), "is not a valid name of a value")
	}
	for _, name := range []string{"step", "time", "run/units"} {
		require.ErrorContains(t, mon.Step(ctx, 1, Values{name: 1}), "is reserved for a value of the monitor")
	}
	require.ErrorContains(t, mon.Add("run/", Values{"x": 1}), "monitor: Add: ")
	require.NoError(t, mon.Close())
	require.NoError(t, mon.Close())
	require.EqualError(t, mon.Step(ctx, 1, nil), "monitor: Step after Close")
	require.EqualError(t, mon.Eval(ctx, 1, nil), "monitor: Eval after Close")
}

// refuser is a writer that does not open.
type refuser struct{ keeper }

func (*refuser) Open(int) error { return errDisk }

func TestOpenFails(t *testing.T) {
	var k keeper
	_, err := New(Config{Writers: []Writer{&k, new(refuser)}})
	require.EqualError(t, err, "monitor: no space left on device")
	require.Equal(t, 1, k.closed, "what was opened is closed")
}

// TestClock runs by time: every rank knows the same share, of rank 0's clock, and evaluations do
// not slow the steps down.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var k keeper
		var shown bytes.Buffer
		cfg := Config{Budget: 100 * time.Second, FLOPs: 6, Peak: 100, Out: &shown, Writers: []Writer{&k}}
		require.NoError(t, onRanks(t, 2, cfg, func(ctx context.Context, mon *Monitor, rank int) error {
			for mon.Done() < 1 {
				time.Sleep(5 * time.Second)
				require.NoError(t, mon.Step(ctx, 50, nil))
				if mon.State().Step == 1 {
					time.Sleep(10 * time.Second)
					require.NoError(t, mon.Eval(ctx, 1, nil))
				}
			}
			require.Equal(t, 18, mon.State().Step)
			require.Equal(t, 100*time.Second, mon.Elapsed())
			return nil
		}))
		require.Contains(t, shown.String(), "step  1/~20  left 1m35s  20 tok/s  MFU 60.0%\n")
		require.Contains(t, shown.String(), "result\n  18 steps over 1 800 tok in 1m40s: 18 tok/s\n")
		require.Equal(t, 0.6, k.rows[len(k.rows)-1]["run/mfu"])
	})
}

// TestResume: two parts of a run leave what one does.
func TestResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run := func(state State, to int) State {
			mon, err := New(Config{State: state})
			require.NoError(t, err)
			for step := state.Step + 1; step <= to; step++ {
				time.Sleep(time.Duration(step%7) * time.Second)
				require.NoError(t, mon.Step(t.Context(), step, Values{"loss": math.Exp(-float64(step) / 100)}))
				if step%10 == 0 {
					require.NoError(t, mon.Eval(t.Context(), 1, Values{"loss": float64(step)}))
				}
			}
			text, err := json.Marshal(mon.State())
			require.NoError(t, err)
			var saved State
			require.NoError(t, json.Unmarshal(text, &saved))
			require.NoError(t, mon.Close())
			return saved
		}
		whole := run(State{}, 100)
		require.Equal(t, whole, run(run(State{}, 37), 100))
		points := run(State{}, 5*curvePoints).Train
		require.LessOrEqual(t, len(points), curvePoints)
		require.Greater(t, len(points), curvePoints/2)
	})
}

// TestNaN: a loss that is none is shown, and spoils neither the curve nor what is saved.
func TestNaN(t *testing.T) {
	var shown bytes.Buffer
	var k keeper
	mon, err := New(Config{Out: &shown, Writers: []Writer{&k}})
	require.NoError(t, err)
	for _, loss := range []float64{math.NaN(), 2, math.Inf(1), 3} {
		require.NoError(t, mon.Step(t.Context(), 1, Values{"loss": loss}))
	}
	require.Equal(t, []Point{{2, 2}, {4, 3}}, mon.State().Train)
	_, err = json.Marshal(mon.State())
	require.NoError(t, err)
	require.NoError(t, mon.Close())
	require.Contains(t, shown.String(), "step 1  loss NaN")
	require.True(t, math.IsNaN(k.rows[0]["loss"]))
	require.Contains(t, shown.String(), "┤")
}

// TestAdd puts norms by name beside the values, of rank 0 and in the next row alone.
func TestAdd(t *testing.T) {
	var k keeper
	require.NoError(t, onRanks(t, 2, Config{Every: 2, Writers: []Writer{&k}}, func(ctx context.Context, mon *Monitor, rank int) error {
		for step := range 4 {
			if step == 0 {
				require.NoError(t, mon.Add("grad_norm/", Values{"head": 3, "body": 4}))
				require.NoError(t, mon.Add("norm/", Values{"head": 5}))
			}
			require.NoError(t, mon.Step(ctx, 1, Values{"loss": 1}))
		}
		return nil
	}))
	require.Equal(t, []float64{3, 4, 5}, []float64{k.rows[0]["grad_norm/head"], k.rows[0]["grad_norm/body"], k.rows[0]["norm/head"]})
	require.NotContains(t, k.rows[1], "grad_norm/head")
}

// TestLiveLine draws at most ten times a second, and the result takes the line away.
func TestLiveLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		mon, err := New(Config{Steps: 1000, Out: newScreen(&b, func() int { return 80 }, false)})
		require.NoError(t, err)
		for range 1000 {
			time.Sleep(time.Millisecond)
			require.NoError(t, mon.Step(t.Context(), 1, nil))
		}
		require.Equal(t, 10, strings.Count(b.String(), "\r"))
		require.NoError(t, mon.Close())
		require.Contains(t, b.String(), "\x1b[K\r\x1b[K\nresult\n  1 000 steps over 1 000 tok in 1s: 1.00k tok/s\n")
	})
}

// TestStepDoesNotAllocate: but for drawing, and the curve's growth.
func TestStepDoesNotAllocate(t *testing.T) {
	mon, err := New(Config{Writers: []Writer{new(nothing)}})
	require.NoError(t, err)
	ctx := t.Context()
	step := func() {
		if err := mon.Step(ctx, 1, Values{"loss": 1, "lr": 2, "grad_norm": 3}); err != nil {
			panic(err)
		}
	}
	for range 2 * curvePoints {
		step()
	}
	require.Zero(t, testing.AllocsPerRun(500, step))
}

// nothing is a writer of nothing.
type nothing struct{}

func (*nothing) Open(int) error   { return nil }
func (*nothing) Write(*Row) error { return nil }
func (*nothing) Close() error     { return nil }

func BenchmarkStep(b *testing.B) {
	for _, n := range []int{1, 2} {
		b.Run(fmt.Sprint("ranks=", n), func(b *testing.B) {
			b.ReportAllocs()
			if err := comm.Run(b.Context(), n, func(ctx context.Context, g comm.Group) error {
				mon, err := New(Config{Group: g, Writers: []Writer{new(nothing)}})
				if err != nil {
					return err
				}
				for range b.N {
					if err := mon.Step(ctx, 1, Values{"loss": 1, "lr": 2, "grad_norm": 3}); err != nil {
						return err
					}
				}
				return mon.Close()
			}); err != nil {
				b.Fatal(err)
			}
		})
	}
}

func TestAverage(t *testing.T) {
	var a Average
	a.add(3)
	require.InDelta(t, 3, a.value(), 1e-12, "the beginning is not pulled to zero")
	for range 200 {
		a.add(5)
	}
	require.InDelta(t, 5, a.value(), 1e-3)
}

func TestDone(t *testing.T) {
	for _, c := range []struct {
		steps  int
		budget time.Duration
		want   float64
	}{{100, 0, 0.25}, {100, 2 * time.Hour, 0.5}, {25, 2 * time.Hour, 1}, {0, 2 * time.Hour, 0.5}, {0, time.Minute, 1}, {0, 0, 0}} {
		mon, err := New(Config{Steps: c.steps, Budget: c.budget, State: State{Step: 25, Elapsed: time.Hour}})
		require.NoError(t, err)
		require.Equal(t, c.want, mon.Done(), "the limit that is nearer counts: %+v", c)
	}
}

// saving is a save that has come to half.
type saving chan struct{}

func (s saving) Done() <-chan struct{}    { return s }
func (s saving) Progress() (int64, int64) { return 6e6, 12e6 }

// TestSaving: the progress of a save is the most important number until it is complete.
func TestSaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var shown bytes.Buffer
		mon, err := New(Config{Steps: 3, Out: &shown})
		require.NoError(t, err)
		s := make(saving)
		mon.Saving(s)
		time.Sleep(time.Second)
		require.NoError(t, mon.Step(t.Context(), 1, nil))
		require.Contains(t, shown.String(), "step 1/3  left 2s  saving 6.00 MB of 12.0 MB  ")
		close(s)
		require.NoError(t, mon.Step(t.Context(), 1, nil))
		require.Equal(t, 1, strings.Count(shown.String(), "saving"))
	})
}

// TestManyEvals has more evaluations before the first step than a curve has points.
func TestManyEvals(t *testing.T) {
	mon, err := New(Config{})
	require.NoError(t, err)
	for range 3 * curvePoints {
		require.NoError(t, mon.Eval(t.Context(), 1, Values{"loss": 2}))
	}
	for _, p := range mon.State().Validation {
		require.Equal(t, Point{0, 2}, p)
	}
	require.NoError(t, mon.Close())
}

// TestInfinite has values that all ranks agree on.
func TestInfinite(t *testing.T) {
	err := onRanks(t, 2, Config{Every: 2}, func(ctx context.Context, mon *Monitor, rank int) error {
		for range 2 {
			if err := mon.Step(ctx, 3, Values{"up": math.Inf(1), "down": math.Inf(-1)}); err != nil {
				return err
			}
		}
		for name, want := range map[string]float64{"up": math.Inf(1), "down": math.Inf(-1)} {
			got, ok := mon.Last(name)
			require.True(t, ok)
			require.Equal(t, want, got, name)
		}
		return nil
	})
	require.NoError(t, err)
}
