package optim_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/optim/vec"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// eightBits has parameters of any size keep their state in 8 bits.
var eightBits = optim.Rule{Match: func(optim.Param) bool { return true }, Bits: new(8)}

// TestSmallParametersKeepTheirBits: a parameter of fewer than 4,096 elements has state of its own
// type unless a rule says otherwise, however it is cut, and Groups says what each has.
func TestSmallParametersKeepTheirBits(t *testing.T) {
	small, large, part := newTensor(4095, false), newTensor(4096, false), newTensor(10, false)
	params := append(whole("small", small), whole("large", large)...)
	params = append(params, optim.Param{Name: "part", Shape: []int{64, 64}, Offset: 3, Value: part.value, Grad: part.grad})
	bits := func(rules ...optim.Rule) map[string]int {
		opt, err := optim.AdamW{Bits: 8, Rules: rules}.New(params)
		require.NoError(t, err)
		of := make(map[string]int)
		for _, g := range optim.Groups(opt) {
			for _, name := range g.Params {
				of[name] = g.Bits
			}
		}
		for _, e := range opt.State() {
			_, narrow := e.Data.(*optim.Blockwise)
			require.Equal(t, of[e.Param] == 8, narrow, e.Param)
		}
		return of
	}
	require.Equal(t, map[string]int{"small": 0, "large": 8, "part": 8}, bits())
	require.Equal(t, map[string]int{"small": 8, "large": 8, "part": 8}, bits(eightBits))
	wide := optim.Rule{Match: func(p optim.Param) bool { return p.Name == "large" }, Bits: new(0)}
	require.Equal(t, map[string]int{"small": 8, "large": 0, "part": 8}, bits(wide, eightBits))
}

// TestBitsErrors checks what New refuses, with the name of the parameter.
func TestBitsErrors(t *testing.T) {
	f32, f64 := whole("a", newTensor(5000, false)), whole("a", newTensor(5000, true))
	none := optim.Host{F64: []float64{}}
	elsewhere := []optim.Param{{Name: "b", Shape: []int{5000}, Value: none, Grad: none}} // other ranks own it
	d := new(device)
	far := []optim.Param{{Name: "a", Shape: []int{5000}, Value: onlyAdam{trained{d.alloc(5000, false)}}, Grad: onlyAdam{trained{d.alloc(5000, false)}}}}
	plain := []optim.Param{{Name: "a", Shape: []int{5000}, Value: noBFloat16{trained{d.alloc(5000, false)}}, Grad: noBFloat16{trained{d.alloc(5000, false)}}}}
	for want, c := range map[string]struct {
		config
		params []optim.Param
	}{
		"optim: adamw: field Bits is 4: must be 8, 16, or 0 for the type of the value":                                                                         {optim.AdamW{Bits: 4}, f32},
		"optim: adam: rule 0: field Bits is 32: must be 8, 16, or 0 for the type of the value":                                                                 {optim.Adam{Rules: []optim.Rule{{Match: eightBits.Match, Bits: new(32)}}}, f32},
		"optim: sgd: field Bits is 8: must be 16, or 0 for the type of the value":                                                                              {optim.SGD{Momentum: 0.9, Bits: 8}, f32},
		"optim: sgd: field Bits needs Momentum: without it there is no state":                                                                                  {optim.SGD{Bits: 16}, f32},
		"optim: sgd: rule 0: field Bits is 8: must be 16, or 0 for the type of the value":                                                                      {optim.SGD{Momentum: 0.9, Rules: []optim.Rule{eightBits}}, f32},
		"optim: sgd: rule 0: field Bits is for Adam, AdamW and SGD with Momentum only":                                                                         {optim.SGD{Rules: []optim.Rule{sixteenBits}}, f32},
		`optim: sgd: momentum_buffer of parameter "a": its value is float64, and Bits 16 is for float32`:                                                       {optim.SGD{Momentum: 0.9, Bits: 16}, f64},
		`optim: sgd: momentum_buffer of parameter "a": a value of type optim_test.noBFloat16 cannot be updated, because it does not implement vec.BFloat16Vec`: {optim.SGD{Momentum: 0.9, Bits: 16}, plain},
		`optim: adam: exp_avg of parameter "a": its value is float64, and Bits 8 is for float32`:                                                               {optim.Adam{Bits: 8}, f64},
		`optim: adam: exp_avg of parameter "b": its value is float64, and Bits 8 is for float32`:                                                               {optim.Adam{Bits: 8}, elsewhere},
		`optim: adam: exp_avg of parameter "a": a value of type optim_test.onlyAdam cannot be updated, because it does not implement vec.Adam8Vec`:             {optim.Adam{Bits: 8}, far},
	} {
		_, err := c.New(c.params)
		require.EqualError(t, err, want)
	}
}

// onlyAdam is a Vec without the update for 8 bits, and noBFloat16 one without the updates for 16.
type (
	onlyAdam   struct{ vec.AdamVec }
	noBFloat16 struct{ vec.SGDVec }
)

// TestFewerBitsFollow compares 200 steps with 200 steps whose state has 32 bits. They minimise a sum of
// squares whose gradients have different magnitudes within a block.
func TestFewerBitsFollow(t *testing.T) {
	const n = 5000
	run := func(bits int) (loss float64) {
		x, rng := newTensor(n, false), rand.New(rand.NewPCG(1, 2))
		target, scale := make([]float32, n), make([]float32, n)
		for i := range target {
			target[i], scale[i] = float32(rng.NormFloat64()), float32(math.Pow(10, -1.5*rng.Float64()))
		}
		opt, err := optim.AdamW{Bits: bits}.New(whole("x", x))
		require.NoError(t, err)
		for range 200 {
			loss = 0
			for i, v := range x.value.F32 {
				d := v - target[i]
				loss += float64(d*d) / n
				x.grad.F32[i] = scale[i] * (d + 0.1*float32(rng.NormFloat64()))
			}
			require.NoError(t, opt.Step(0.02))
		}
		return loss
	}
	wide := run(0)
	require.Less(t, wide, 0.02)
	require.InDelta(t, wide, run(8), 0.004)
	require.InDelta(t, wide, run(16), 0.0002)
}

// TestBlockwiseRestore moves state in 8 bits between optimizers that are cut elsewhere, and through
// 32 bits. What lies in blocks that no cut goes through keeps its bits.
func TestBlockwiseRestore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 2000).Draw(t, "n")
		pieces := func(label string) []optim.Param {
			x := newTensor(n, false)
			fill(x.value, rand.New(rand.NewPCG(3, 4)))
			fill(x.grad, rand.New(rand.NewPCG(5, 6)))
			cut := rapid.IntRange(1, n-1).Draw(t, label)
			return []optim.Param{
				{Name: "w", Shape: []int{n}, Value: slice(x.value, 0, cut), Grad: slice(x.grad, 0, cut)},
				{Name: "w", Shape: []int{n}, Offset: cut, Value: slice(x.value, cut, n), Grad: slice(x.grad, cut, n)},
			}
		}
		make := func(params []optim.Param, rules ...optim.Rule) optim.Optimizer {
			opt, err := optim.AdamW{Rules: rules}.New(params)
			require.NoError(t, err)
			return opt
		}
		from := pieces("cut")
		first := make(from, eightBits)
		for range rapid.IntRange(0, 3).Draw(t, "steps") {
			require.NoError(t, first.Step(0.01))
		}
		wide := make(pieces("cut in 32 bits"))
		require.NoError(t, wide.Restore(first.Steps(), first.State()))
		require.Equal(t, moments(t, first, n), moments(t, wide, n), "8 bits in 32 are exact")

		same := make([]optim.Param{from[0], from[1]}, eightBits)
		require.NoError(t, same.Restore(wide.Steps(), wide.State()))
		require.Equal(t, moments(t, first, n), moments(t, same, n), "where nothing is cut anew, they come back")

		next := pieces("another cut")
		other := make(next, eightBits)
		require.NoError(t, other.Step(0.5), "which has a say in nothing")
		require.NoError(t, other.Restore(first.Steps(), first.State()))
		want, got := moments(t, first, n), moments(t, other, n)
		for name := range want {
			for i := range want[name] {
				block := i / 256
				if block != from[1].Offset/256 && block != next[1].Offset/256 {
					require.Equal(t, want[name][i], got[name][i], "%s %d", name, i)
				}
				require.InDelta(t, want[name][i], got[name][i], 0.02, "%s %d", name, i)
			}
		}
		again := make(next, eightBits)
		require.NoError(t, again.Restore(first.Steps(), first.State()))
		require.Equal(t, got, moments(t, again, n))
	})
}

// moments returns the state of a parameter of n elements by entry.
func moments(t require.TestingT, opt optim.Optimizer, n int) map[string][]float32 {
	all := map[string][]float32{"exp_avg": make([]float32, n), "exp_avg_sq": make([]float32, n)}
	for _, e := range opt.State() {
		require.NoError(t, e.Data.Read(optim.Host{F32: all[e.Name][e.Offset : e.Offset+e.Data.Len()]}))
	}
	return all
}

// TestBlockwiseIsAVec holds state to the contract of a Vec, with numbers that 8 bits can say.
func TestBlockwiseIsAVec(t *testing.T) {
	opt, err := optim.Adam{Rules: []optim.Rule{eightBits}}.New(whole("w", newTensor(1000, false)))
	require.NoError(t, err)
	v := opt.State()[0].Data
	want := make([]float32, 1000)
	for i := range want {
		want[i] = float32([]float64{-1, 1, 0.5, 0}[i%4]) // 1 is in every block
	}
	read := func(v optim.Vec) []float32 {
		h := optim.Host{F32: make([]float32, v.Len())}
		require.NoError(t, v.Read(h))
		return h.F32
	}
	require.NoError(t, v.Write(optim.Host{F32: want}))
	require.InDeltaSlice(t, want, read(v), 0.0071)
	part := v.Slice(100, 900).Slice(10, 20)
	require.Equal(t, read(v)[110:120], read(part))
	before := read(v)
	require.NoError(t, part.Write(optim.Host{F32: []float32{0, 1, 0, 1, 0, 1, 0, 1, 0, 1}}))
	copy(before[110:], []float32{0, 1, 0, 1, 0, 1, 0, 1, 0, 1})
	require.Equal(t, before, read(v), "nothing else")
	require.NoError(t, part.Zero())
	clear(before[110:120])
	require.Equal(t, before, read(v))
	require.NoError(t, v.Zero())
	require.Equal(t, make([]float32, 1000), read(v))
	require.EqualError(t, v.Read(optim.Host{F64: make([]float64, 1000)}), "optim: cannot copy between 1000 elements of float32 in 8 bits and 1000 elements of float64")
	require.Error(t, part.Write(optim.Host{F32: make([]float32, 11)}))
	require.Panics(t, func() { part.Slice(0, 11) })
}

// TestPackedMemory counts the memory of the state: 2.03 or 4 bytes an element in place of 8.
func TestPackedMemory(t *testing.T) {
	x := newTensor(1<<20, false)
	count := func(bits int) (bytes int) {
		params := whole("w", x)
		params[0].Alloc = func(n int) (optim.Vec, error) {
			bytes += 4 * n
			return optim.Host{F32: make([]float32, n)}, nil
		}
		_, err := optim.AdamW{Bits: bits}.New(params)
		require.NoError(t, err)
		return bytes
	}
	require.Equal(t, 8<<20, count(0))
	require.Equal(t, 2*(1<<20+4<<20/256), count(8))
	require.Equal(t, 4<<20, count(16))
}

// TestBitsInSettings: JSON has them, an update tells of them, and Regroup leaves them alone.
func TestBitsInSettings(t *testing.T) {
	x := newTensor(5000, false)
	params := whole("w", x)
	var told optim.Update
	params[0].Updated = func(u optim.Update) { told = u }
	opt, err := optim.AdamW{Bits: 8}.New(params)
	require.NoError(t, err)
	require.NoError(t, opt.Step(0.1))
	narrow := told
	require.Equal(t, "AdamW8bit", told.Facts()[0])
	text, err := json.Marshal(optim.Groups(opt))
	require.NoError(t, err)
	require.Contains(t, string(text), `"bits":8`)

	wide, err := optim.AdamW{}.New(params)
	require.NoError(t, err)
	apply, err := optim.Regroup(wide, optim.Groups(opt))
	require.NoError(t, err)
	apply()
	require.Zero(t, optim.Groups(wide)[0].Bits)
	require.NoError(t, wide.Step(0.1))
	require.Equal(t, "AdamW", told.Facts()[0])
	require.NotEqual(t, narrow.Hash(1), told.Hash(1))
}
