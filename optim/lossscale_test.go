package optim_test

import (
	"math"
	"testing"

	"github.com/gofsdp/gofsdp/optim"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A sequence has a letter per update, f for finite and x for not, and the scale after each.
func TestLossScaleSequences(t *testing.T) {
	for _, c := range []struct {
		name   string
		config optim.LossScale
		begin  float64
		seq    string
		want   []float64
	}{
		{"overflow halves at once", optim.LossScale{}, 65536, "xfx", []float64{32768, 32768, 16384}},
		{"growth after an interval, again after the next", optim.LossScale{Init: 8, Interval: 2}, 8, "fffff",
			[]float64{8, 16, 16, 32, 32}},
		{"overflow starts the interval anew", optim.LossScale{Init: 8, Interval: 2}, 8, "fxffff", []float64{8, 4, 4, 8, 8, 16}},
		{"every step", optim.LossScale{Init: 1, Interval: 1, Growth: 4, Backoff: 0.25}, 1, "ffxf", []float64{4, 16, 4, 16}},
		{"never below 1", optim.LossScale{Init: 2}, 2, "xxxx", []float64{1, 1, 1, 1}},
		{"never below Min", optim.LossScale{Init: 0.5, Min: 0.25}, 0.5, "xxx", []float64{0.25, 0.25, 0.25}},
		{"stops at Max and comes back", optim.LossScale{Init: 4, Max: 8, Interval: 1}, 4, "fffxf", []float64{8, 8, 8, 4, 8}},
		{"far factors stop at the bounds", optim.LossScale{Init: 4, Max: 8, Growth: 0x1p126, Backoff: 0x1p-1000, Interval: 1}, 4,
			"fx", []float64{8, 1}},
		{"static", optim.LossScale{Init: 128, Growth: 1, Interval: 1}, 128, "fxfxx", []float64{128, 128, 128, 128, 128}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := c.config.New()
			require.NoError(t, err)
			require.Equal(t, c.begin, s.Scale())
			for i, letter := range c.seq {
				s.Update(letter == 'f')
				require.Equal(t, c.want[i], s.Scale(), "after %q", c.seq[:i+1])
			}
		})
	}
}

func TestLossScaleDefaultInterval(t *testing.T) {
	s, err := optim.LossScale{}.New()
	require.NoError(t, err)
	for range 1999 {
		s.Update(true)
	}
	require.Equal(t, optim.LossScaleState{Scale: 65536, Streak: 1999}, s.State())
	s.Update(true)
	require.Equal(t, optim.LossScaleState{Scale: 131072}, s.State())
}

// Whatever happens, the scale stays within the bounds and has an inverse in float32; by default it
// is a power of two. A scaler restored on the way goes on as the first does.
func TestLossScaleStaysInBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		factors := rapid.Float64Range(1.01, 1e30)
		lo := math.Ldexp(1, rapid.IntRange(-126, 0).Draw(t, "min"))
		hi := math.Ldexp(1, rapid.IntRange(0, 126).Draw(t, "max"))
		c := optim.LossScale{
			Init: min(max(math.Ldexp(1, rapid.IntRange(-126, 126).Draw(t, "init")), lo), hi), Min: lo, Max: hi,
			Interval: rapid.IntRange(1, 3).Draw(t, "interval"),
		}
		binary := rapid.Bool().Draw(t, "binary")
		if !binary {
			c.Growth, c.Backoff = factors.Draw(t, "growth"), 1/factors.Draw(t, "1/backoff")
		}
		s, err := c.New()
		require.NoError(t, err)
		other, err := c.New()
		require.NoError(t, err)
		for _, finite := range rapid.SliceOfN(rapid.Bool(), 0, 300).Draw(t, "finite") {
			require.NoError(t, other.Restore(s.State()))
			before := s.Scale()
			s.Update(finite)
			other.Update(finite)
			require.Equal(t, s.State(), other.State())
			if finite {
				require.GreaterOrEqual(t, s.Scale(), before)
			} else {
				require.True(t, s.Scale() < before || before == lo)
			}
			require.True(t, s.Scale() >= lo && s.Scale() <= hi)
			for _, v := range []float32{float32(s.Scale()), 1 / float32(s.Scale())} {
				require.True(t, v >= 0x1p-126 && v <= 0x1p126)
			}
			if fraction, _ := math.Frexp(s.Scale()); binary {
				require.Equal(t, 0.5, fraction, "power of two")
			}
		}
	})
}

func TestLossScaleErrors(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		config optim.LossScale
		want   string
	}{
		{optim.LossScale{Init: -1}, "optim: loss scale: Init is -1: must be in [1, 8.50"},
		{optim.LossScale{Init: nan}, "Init is NaN"},
		{optim.LossScale{Init: inf}, "Init is +Inf"},
		{optim.LossScale{Init: 0.5}, "Init is 0.5: must be in [1, "},
		{optim.LossScale{Max: 1024}, "Init is 65536: must be in [1, 1024]"},
		{optim.LossScale{Growth: 0.5}, "Growth is 0.5: must be in [1, 2^126]"},
		{optim.LossScale{Growth: nan}, "Growth is NaN"},
		{optim.LossScale{Growth: inf}, "Growth is +Inf"},
		{optim.LossScale{Backoff: 1}, "Backoff is 1: must be in (0, 1)"},
		{optim.LossScale{Backoff: -1}, "Backoff is -1"},
		{optim.LossScale{Backoff: nan}, "Backoff is NaN"},
		{optim.LossScale{Interval: -1}, "Interval is -1: must not be negative"},
		{optim.LossScale{Min: -1}, "Min and Max are -1 and 8.50"},
		{optim.LossScale{Min: 2, Max: 1}, "Min and Max are 2 and 1: must ascend within"},
		{optim.LossScale{Min: nan}, "Min and Max are NaN"},
		{optim.LossScale{Max: inf}, "and +Inf: must ascend within [2^-126, 2^126]"},
		{optim.LossScale{Growth: 1, Init: 0.5}, "Init is 0.5"},
	} {
		_, err := c.config.New()
		require.ErrorContains(t, err, c.want)
	}
}

func TestLossScaleRestore(t *testing.T) {
	s, err := optim.LossScale{Init: 8, Min: 2, Max: 64, Interval: 3}.New()
	require.NoError(t, err)
	for _, c := range []struct {
		state optim.LossScaleState
		want  string
	}{
		{optim.LossScaleState{}, "optim: loss scale: restore: scale is 0: must be in [2, 64]"},
		{optim.LossScaleState{Scale: 128}, "scale is 128"},
		{optim.LossScaleState{Scale: math.NaN()}, "scale is NaN"},
		{optim.LossScaleState{Scale: 8, Streak: -1}, "streak is -1: must not be negative"},
	} {
		require.ErrorContains(t, s.Restore(c.state), c.want)
		require.Equal(t, optim.LossScaleState{Scale: 8}, s.State(), "an error changes nothing")
	}
	require.NoError(t, s.Restore(optim.LossScaleState{Scale: 16, Streak: 1000}), "written with a longer interval")
	s.Update(true)
	require.Equal(t, 32.0, s.Scale())

	static, err := optim.LossScale{Init: 8, Growth: 1}.New()
	require.NoError(t, err)
	require.ErrorContains(t, static.Restore(s.State()), "scale is 32: must be in [8, 8]")
	require.NoError(t, static.Restore(static.State()))
}
