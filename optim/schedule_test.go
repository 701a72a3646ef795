package optim_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/optim"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestScheduleCorners(t *testing.T) {
	cosine, linear := optim.WarmupCosine(1, 0.25, 3, 11), optim.WarmupLinear(1, 0.25, 3, 11)
	for _, c := range []struct {
		step           int
		cosine, linear float64
	}{
		{0, 0.25, 0.25}, {1, 0.5, 0.5}, {2, 0.75, 0.75}, // warmup
		{3, 1, 1}, // peak
		{5, 0.25 + 0.375*(1+math.Sqrt2/2), 0.8125},
		{7, 0.625, 0.625}, // half way
		{11, 0.25, 0.25}, {12, 0.25, 0.25}, {math.MaxInt, 0.25, 0.25},
	} {
		require.InDelta(t, c.cosine, cosine(c.step), 1e-15, "cosine, step %d", c.step)
		require.InDelta(t, c.linear, linear(c.step), 1e-15, "linear, step %d", c.step)
	}
	require.Equal(t, 0.3, optim.Constant(0.3)(0))
	require.Equal(t, 0.3, optim.Constant(0.3)(math.MaxInt))

	require.Equal(t, 1.0, optim.WarmupCosine(1, 0, 0, 4)(0), "no warmup begins at the peak")
	late := optim.WarmupLinear(1, 0, 4, 4)
	require.InDelta(t, 0.8, late(3), 1e-15)
	require.Zero(t, late(4), "no decay left")
	require.Zero(t, optim.WarmupCosine(1, 0, 0, 0)(0))
}

// TestScheduleWithoutDecay makes schedules whose phases take more steps than there are: each is a warning.
func TestScheduleWithoutDecay(t *testing.T) {
	log, before := new(bytes.Buffer), slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(log, nil)))
	defer slog.SetDefault(before)
	optim.WarmupCosine(3e-4, 3e-5, 99, 100)
	optim.WSD(3e-4, 3e-5, 40, 60, 100)
	require.Empty(t, log.String())
	optim.WarmupCosine(3e-4, 3e-5, 1000, 100)
	optim.WarmupLinear(3e-4, 3e-5, 100, 100)
	optim.WarmupPolynomial(3e-4, 3e-5, 1000, 100, 2)
	require.Equal(t, 3, strings.Count(log.String(), "the order of the arguments is warmup, total"), log.String())
	require.Contains(t, log.String(), "warmup=1000 total=100")
	optim.WSD(3e-4, 3e-5, 40, 61, 100)
	require.Contains(t, log.String(), "warmup=40 decay=61 total=100")
}

func TestScheduleRisesThenFalls(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		peak := rapid.Float64Range(1e-6, 10).Draw(t, "peak")
		floor := rapid.Float64Range(0, 1).Draw(t, "floor") * peak
		warmup := rapid.IntRange(0, 20).Draw(t, "warmup")
		total := warmup + rapid.IntRange(1, 30).Draw(t, "decay")
		for _, s := range []optim.Schedule{optim.WarmupCosine(peak, floor, warmup, total), optim.WarmupLinear(peak, floor, warmup, total)} {
			require.InEpsilon(t, peak, s(warmup), 1e-15)
			require.Equal(t, floor, s(total))
			for step := range total + 2 {
				require.GreaterOrEqual(t, s(step), min(floor, s(0)))
				if step < warmup {
					require.Less(t, s(step), s(step+1))
				} else {
					require.GreaterOrEqual(t, s(step), s(step+1))
				}
			}
		}
	})
}

// TestSchedulesByFormula compares with the formulas of the documentation.
func TestSchedulesByFormula(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		peak := rapid.Float64Range(1e-6, 10).Draw(t, "peak")
		floor := rapid.Float64Range(0, 1).Draw(t, "floor") * peak
		warmup, decay := rapid.IntRange(0, 20).Draw(t, "warmup"), rapid.IntRange(0, 20).Draw(t, "decay")
		total := warmup + decay + rapid.IntRange(0, 20).Draw(t, "stable")
		power := rapid.Float64Range(0.5, 3).Draw(t, "power")
		at := rapid.SliceOfN(rapid.IntRange(0, 60), 0, 4).Draw(t, "at")
		drawn := slices.Clone(at)
		wsd, polynomial := optim.WSD(peak, floor, warmup, decay, total), optim.WarmupPolynomial(peak, floor, warmup, total, power)
		root, steps := optim.WarmupInverseSqrt(peak, warmup), optim.StepDecay(peak, 0.5, at...)
		for step := range total + 5 {
			rise := min(1, float64(step+1)/float64(warmup+1))
			want := map[string]float64{"wsd": rise * peak, "polynomial": rise * peak, "root": rise * peak, "steps": peak}
			switch {
			case step >= total:
				want["wsd"], want["polynomial"] = floor, floor
			case step > total-decay:
				want["wsd"] = floor + (peak-floor)*float64(total-step)/float64(decay)
			}
			if step >= warmup {
				if step < total {
					want["polynomial"] = floor + (peak-floor)*math.Pow(1-float64(step-warmup)/float64(total-warmup), power)
				}
				want["root"] = peak * math.Sqrt(float64(warmup+1)) / math.Sqrt(float64(step+1))
			}
			for _, a := range at {
				if a <= step {
					want["steps"] /= 2
				}
			}
			for name, s := range map[string]optim.Schedule{"wsd": wsd, "polynomial": polynomial, "root": root, "steps": steps} {
				require.InDelta(t, want[name], s(step), 1e-12*peak, "%s, step %d", name, step)
			}
			require.InDelta(t, want["steps"]*rise, optim.Warmup(warmup, steps)(step), 1e-12*peak)
		}
		require.Equal(t, drawn, at, "the caller's")
		require.Positive(t, root(math.MaxInt-1))
		require.Equal(t, floor, wsd(math.MaxInt))
	})
}

// TestPlateauAsTorch compares with torch.optim.lr_scheduler.ReduceLROnPlateau of PyTorch 2, eps 0.
func TestPlateauAsTorch(t *testing.T) {
	measures := []float64{1, .9, .95, .89999, .9, .91, .5, .6, .6, .6, .6, .6, .6, .6, .4, .4, .4, .4, .4, .4}
	var accuracies []float64 // backwards, in mode max
	for i := range measures {
		accuracies = append(accuracies, -measures[len(measures)-1-i])
	}
	for _, c := range []struct {
		config   optim.Plateau
		measures []float64
		want     []float64
	}{
		{optim.Plateau{Factor: 0.5, Patience: 2, Cooldown: 1, Min: 0.1}, measures,
			[]float64{1, 1, 1, 1, .5, .5, .5, .5, .5, .25, .25, .25, .25, .125, .125, .125, .125, .1, .1, .1}},
		{optim.Plateau{Factor: 0.5, Patience: -1, Threshold: optim.Zero, Min: 0.01}, measures,
			[]float64{1, 1, .5, .5, .25, .125, .125, .0625, .03125, .015625, .01, .01, .01, .01, .01, .01, .01, .01, .01, .01}},
		{optim.Plateau{Patience: 1, Threshold: 0.1}, accuracies,
			[]float64{1, 1, 0.1, 0.1, 0.01, 0.01, 0.01, 0.01, 1e-3, 1e-3, 1e-4, 1e-4, 1e-5, 1e-5, 1e-5, 1e-5, 1e-6, 1e-6, 1e-7, 1e-7}},
	} {
		p, err := c.config.New()
		require.NoError(t, err)
		for i, m := range c.measures {
			before := p.Scale()
			require.Equal(t, p.Update(m), p.Scale() < before)
			require.InDelta(t, c.want[i], p.Scale(), 1e-12, "measure %d", i)
			text, err := json.Marshal(p.State()) // as a checkpoint has it
			require.NoError(t, err)
			var state optim.PlateauState
			require.NoError(t, json.Unmarshal(text, &state))
			p, err = c.config.New()
			require.NoError(t, err)
			require.NoError(t, p.Restore(state))
		}
	}
}

// TestPlateauOfWhatIsNoNumber goes on, and what it keeps is JSON.
func TestPlateauOfWhatIsNoNumber(t *testing.T) {
	p, err := optim.Plateau{Patience: 1}.New()
	require.NoError(t, err)
	for _, c := range []struct {
		measure float64
		fell    bool
	}{{math.NaN(), false}, {math.Inf(1), false}, {math.NaN(), false}, {math.NaN(), true}, {3, false}, {math.Inf(-1), false}, {-1, false}, {-2, true}} {
		require.Equal(t, c.fell, p.Update(c.measure), "%v", c.measure)
		_, err := json.Marshal(p.State())
		require.NoError(t, err)
	}
}

func TestPlateauErrors(t *testing.T) {
	for want, c := range map[string]optim.Plateau{
		"Factor is 1: must be in (0, 1)": {Factor: 1}, "Patience is -2: must not be below -1": {Patience: -2},
		"Threshold is 1: must be in [0, 1)": {Threshold: 1}, "Cooldown is -1: must not be negative": {Cooldown: -1},
		"Min is 2: must be in [0, 1]": {Min: 2}, "Factor is NaN: must be in (0, 1)": {Factor: math.NaN()},
	} {
		_, err := c.New()
		require.EqualError(t, err, "optim: plateau: "+want)
	}
	p, err := optim.Plateau{}.New()
	require.NoError(t, err)
	for want, s := range map[string]optim.PlateauState{
		"scale is 2: must be in [0, 1]": {Scale: 2}, "counts are -1 and 0: must not be negative": {Bad: -1}, "the best is not a number": {Best: math.NaN()},
	} {
		require.EqualError(t, p.Restore(s), "optim: plateau: restore: "+want)
	}
	require.Equal(t, 1.0, p.Scale())
}
