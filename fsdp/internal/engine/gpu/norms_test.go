//go:build linux && cgo

package gpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/optim"
)

// TestNorms compares largest magnitudes and exact squares of random slices with those of the host,
// bit for bit, also of numbers that are not finite.
func TestNorms(t *testing.T) {
	double(t)
	d := open(t, Options{Offload: true})
	host, err := engine.NewHost(engine.HostOptions{Threads: 1})
	require.NoError(t, err)
	rapid.Check(t, func(rt *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		var near, far []optim.Vec
		for range rapid.IntRange(1, 5).Draw(rt, "vectors") {
			n := rapid.SampledFrom([]int{rapid.IntRange(0, 9000).Draw(rt, "some"), 0, 300, span + 5}).Draw(rt, "elements")
			m := newModel(rt, room(t, d), n, rapid.Bool().Draw(rt, "float64"), rng)
			if special := rapid.SampledFrom([]float64{0, math.NaN(), math.Inf(-1), math.MaxFloat32, 0x1p-149}).Draw(rt, "special"); special != 0 && n > 0 {
				if at := rng.IntN(n); m.host[1].F32 != nil {
					m.host[1].F32[at] = float32(special)
				} else {
					m.host[1].F64[at] = special
				}
				require.NoError(rt, m.vecs[1].Write(m.host[1]))
			}
			for i := range 2 {
				from := rng.IntN(n + 1)
				to := from + rng.IntN(n-from+1)
				near, far = append(near, m.host[i].Slice(from, to)), append(far, m.vecs[i].Slice(from, to))
			}
		}
		want, err := host.MaxAbs(near)
		require.NoError(rt, err)
		got, err := d.MaxAbs(far)
		require.NoError(rt, err)
		for i := range want {
			require.True(rt, want[i] == got[i] || want[i] != want[i] && got[i] != got[i], "%d: %v, %v", i, want[i], got[i])
			want[i] *= rapid.SampledFrom([]float64{1, 1, 3}).Draw(rt, "slack")
		}
		wantWords, err := host.Squares(near, want)
		require.NoError(rt, err)
		gotWords, err := d.Squares(far, want)
		require.NoError(rt, err)
		require.Equal(rt, wantWords, gotWords)
	})
	require.NoError(t, host.Close())
}

// TestManyNorms asks for more vectors than there are results.
func TestManyNorms(t *testing.T) {
	double(t)
	d := open(t, Options{})
	const n = maxPieces + 10
	m := newModel(t, room(t, d), n, false, rand.New(rand.NewPCG(1, 2)))
	var list []optim.Vec
	for i := range n {
		list = append(list, m.vecs[0].Slice(i, i+1))
	}
	got, err := d.MaxAbs(list)
	require.NoError(t, err)
	for i, x := range m.host[0].F32 {
		require.Equal(t, math.Abs(float64(x)), got[i])
	}
	got, err = d.MaxAbs(nil)
	require.NoError(t, err)
	require.Empty(t, got)
}
