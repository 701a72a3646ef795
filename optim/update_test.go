package optim

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestUpdates cuts a parameter in two, adds one that is empty, and compares what each piece is told
// with what it should be. Hashes are equal where facts are, but for the last digits of numbers.
func TestUpdates(t *testing.T) {
	var told []Update
	piece := func(name string, offset int, value ...float64) Param {
		return Param{
			Name: name, Shape: []int{4}, Offset: offset, Value: Host{F64: value}, Grad: Host{F64: make([]float64, len(value))},
			Updated: func(u Update) { told = append(told, u) },
		}
	}
	params := []Param{piece("w", 0, 1, 2, 3), piece("w", 3, 4), piece("b", 0)}
	rules := []Rule{{Match: func(p Param) bool { return p.Name == "b" }, WeightDecay: new(0.0), LRScale: new(2.0)}}
	adamw, err := AdamW{WeightDecay: 0.1, Rules: rules}.New(params)
	require.NoError(t, err)
	sgd, err := SGD{Momentum: 0.9, WeightDecay: 0.1, Rules: rules}.New(params)
	require.NoError(t, err)
	require.NoError(t, adamw.Step(0.5))
	require.NoError(t, sgd.Step(0.5))
	require.NoError(t, sgd.Step(0.5))
	require.NoError(t, sgd.Step(0.5*(1+1e-15)))
	require.NoError(t, sgd.Step(0.5*(1+1e-4)))
	require.Error(t, sgd.Step(-1))
	require.Len(t, told, 15)

	const decay = "weight decay 0.1"
	require.Equal(t, []string{"AdamW", "1 steps", "learning rate 0.5", decay, "LRScale 1", "Beta1 0.9", "Beta2 0.999", "Eps 1e-08"}, told[0].Facts())
	require.Equal(t, []string{"AdamW", "1 steps", "learning rate 0.5", "weight decay 0", "LRScale 2", "Beta1 0.9", "Beta2 0.999", "Eps 1e-08"}, told[2].Facts())
	require.Equal(t, []string{"SGD", "2 steps", "learning rate 0.5", decay, "LRScale 1", "Momentum 0.9", "Nesterov false"}, told[6].Facts())
	hashes := make(map[uint64][]int)
	for i, u := range told {
		h := u.Hash(7)
		hashes[h] = append(hashes[h], i)
		require.NotEqual(t, h, u.Hash(8))
	}
	require.Len(t, hashes, 10, "two of each step")
	for i := 0; i < len(told); i += 3 {
		require.Equal(t, told[i].Hash(7), told[i+1].Hash(7))
	}
	near := told[9]
	near.steps, near.weightDecay, near.lrScale = told[6].steps, 0.1*(1+1e-15), 1+1e-15
	require.NotEqual(t, told[6].Facts(), near.Facts())
	require.Equal(t, told[6].Hash(7), near.Hash(7))
}

// TestZeroUpdate is what a caller has before any update.
func TestZeroUpdate(t *testing.T) {
	require.Empty(t, Update{}.Facts())
	require.Equal(t, uint64(7), Update{}.Hash(7))
}
