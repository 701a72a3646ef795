package faults_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/optim/optimtest"
)

// make far runs all tests of this package on a device that is not the host's. These are a few of
// them that run always.

// TestFarDevice trains on it, and has passes fail there, whose errors the caller gets late.
func TestFarDevice(t *testing.T) {
	kit.Needs(t, kit.OwnOperations)
	model, cfg := kit.TinyGPT(2), fsdp.Config{WrapPolicy: kit.Blocks, Poison: true}
	model.Dropout = 0.1
	want := kit.Train(t, model, 3, 3, 2, cfg)
	defer kit.UseFarDevice()()
	kit.RequireSameBits(t, want, kit.Train(t, model, 3, 3, 2, cfg))
	t.Run("an error", TestErrorInsideAPass)
	t.Run("a panic", TestPanicInsideBackward)
	t.Run("a context", TestContextEndsInsideAPass)
}

// TestFarVec holds the vectors of its shards to the contract of optim.Vec.
func TestFarVec(t *testing.T) {
	defer kit.UseFarDevice()()
	wide := kit.Wrap(t, kit.Shapes["chain"], fsdp.Config{Precision: kit.Float64s}).Params()[0]
	narrow := kit.Wrap(t, kit.Shapes["chain"], fsdp.Config{}).Params()[0]
	optimtest.TestVec(t, func(n int, float64s bool) optim.Vec {
		p := narrow
		if float64s {
			p = wide
		}
		v, err := p.Alloc(n)
		require.NoError(t, err)
		_, near := v.(optim.Host)
		require.False(t, near)
		return v
	})
}
