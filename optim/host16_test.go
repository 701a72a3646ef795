package optim_test

import (
	"math/rand/v2"
	"testing"

	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/optim/vec"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// host16 returns a vector in 16 bits with the values of x, rounded to the nearest.
func host16(t require.TestingT, x optim.Host) vec.Host16 {
	h := vec.NewHost16(make([]half.BFloat16, x.Len()))
	require.NoError(t, h.Write(x))
	return h
}

// floats returns the elements of v.
func floats(t require.TestingT, v optim.Vec) []float32 {
	h := optim.Host{F32: make([]float32, v.Len())}
	require.NoError(t, v.Read(h))
	return h.F32
}

// TestValuesIn16BitsAnyCut: an update is the update in float32, rounded to one of the two values
// next to it. The bits do not depend on where a parameter is cut, and an average follows the
// rounded values.
func TestValuesIn16BitsAnyCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 3000).Draw(t, "n")
		c := rapid.SampledFrom([]config{
			optim.AdamW{WeightDecay: 0.1}, optim.Adam{Rules: []optim.Rule{sixteenBits}}, optim.SGD{},
			optim.SGD{Momentum: 0.9, Nesterov: true}, optim.SGD{Momentum: 0.9, Rules: []optim.Rule{sixteenBits}},
		}).Draw(t, "optimizer")
		random := rand.New(rand.NewPCG(3, uint64(n)))
		x, g := newTensor(n, false).value, newTensor(n, false).value
		fill(x, random)
		fill(g, random)
		train := func(ends ...int) (params []optim.Param, opt optim.Optimizer) {
			from := 0
			for _, to := range ends {
				params = append(params, optim.Param{
					Name: "w", Shape: []int{n}, Offset: from, Value: host16(t, x.Slice(from, to).(optim.Host)), Grad: host16(t, g.Slice(from, to).(optim.Host)),
				})
				from = to
			}
			opt, err := c.New(params)
			require.NoError(t, err)
			require.NoError(t, optim.EMA(opt, 0.5))
			require.NoError(t, opt.Step(0.01))
			return params, opt
		}
		one, whole := train(n)
		two, parts := train(rapid.IntRange(1, n-1).Draw(t, "cut"), n)
		got := floats(t, one[0].Value)
		require.Equal(t, got, append(floats(t, two[0].Value), floats(t, two[1].Value)...))
		require.Equal(t, read(t, whole), read(t, parts))
		require.Equal(t, got, read(t, whole)["ema"], "the first average is the value")

		wide := optim.Host{F32: floats(t, host16(t, x))}
		opt, err := c.New([]optim.Param{{Name: "w", Shape: []int{n}, Value: wide, Grad: optim.Host{F32: floats(t, host16(t, g))}}})
		require.NoError(t, err)
		require.NoError(t, opt.Step(0.01))
		for i, v := range wide.F32 {
			require.LessOrEqual(t, max(v-got[i], got[i]-v), max(v, -v)/128, "element %d", i)
		}
		require.NoError(t, whole.Step(0.01))
		for i, v := range floats(t, one[0].Value) {
			require.Equal(t, (got[i]+v)/2, read(t, whole)["ema"][i], "element %d", i)
			if i > 20 {
				break
			}
		}
	})
}

// TestValuesIn16BitsKeepSmallChanges: 1,000 updates of a hundredth of a bit each move the mean as
// in float32. Rounding to the nearest would lose all of them.
func TestValuesIn16BitsKeepSmallChanges(t *testing.T) {
	const n, steps, lr = 4096, 1000, 1. / 128 / 100
	x := newTensor(n, false)
	for i := range n {
		x.value.F32[i], x.grad.F32[i] = 1, -1
	}
	value := host16(t, x.value)
	opt, err := optim.SGD{}.New([]optim.Param{{Name: "w", Shape: []int{n}, Value: value, Grad: host16(t, x.grad)}})
	require.NoError(t, err)
	for range steps {
		require.NoError(t, opt.Step(lr))
	}
	mean := 0.
	for _, v := range floats(t, value) {
		mean += float64(v) / n
	}
	require.InDelta(t, 1+steps*lr, mean, 0.001)
}

// TestValuesIn16BitsRefusals names parameter and reason.
func TestValuesIn16BitsRefusals(t *testing.T) {
	x := newTensor(8192, false)
	value := host16(t, x.value)
	params := []optim.Param{{Name: "w", Shape: []int{2, 4096}, Value: value, Grad: value}}
	for want, c := range map[string]config{
		`optim: muon: parameter "w": its value is bfloat16, which muon cannot update: use AdamW, Adam or SGD, or values in float32`:   optim.Muon{},
		`optim: lion: parameter "w": its value is bfloat16, which lion cannot update: use AdamW, Adam or SGD, or values in float32`:   newLion(0.5),
		`optim: adamw: exp_avg of parameter "w": its value is bfloat16, and Bits 8 is for float32: use Bits 16, or values in float32`: optim.AdamW{Bits: 8},
		`optim: parameter "w": value is a vec.Host16, gradient a vec.Host`:                                                            swappedGrad{optim.SGD{}, x.grad},
	} {
		_, err := c.New(params)
		require.EqualError(t, err, want)
	}
	opt, err := optim.SGD{}.New(params)
	require.NoError(t, err)
	require.NoError(t, optim.EMA(opt, 0.9))
	require.EqualError(t, optim.Swap(opt), `optim: swap: parameter "w" is bfloat16, which cannot hold its average: load the averages into a model in float32`)
	require.ErrorContains(t, optim.UpdateEMA(params, params, 0.9), `parameter "w" is bfloat16, in which an average stops moving`)
	require.NoError(t, optim.UpdateEMA(params, params, 0), "a copy")
	require.ErrorContains(t, value.Write(optim.Host{F32: make([]float32, 3)}), "8192 elements of float32 in 16 bits and 3 elements of float32")
	require.ErrorContains(t, value.Read(optim.Host{F64: make([]float64, 8192)}), "8192 elements of float64")
}

// swappedGrad replaces the gradients.
type swappedGrad struct {
	config
	grad optim.Host
}

func (s swappedGrad) New(params []optim.Param) (optim.Optimizer, error) {
	p := params[0]
	p.Grad = s.grad
	return s.config.New([]optim.Param{p})
}
