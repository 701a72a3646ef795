//go:build linux && cgo

package gpu_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/gpu"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/op"
)

// TestGPUNotOpen: a device that is not open is an error on all ranks.
func TestGPUNotOpen(t *testing.T) {
	kit.CleanGPU(t)
	closed, err := gpu.Open(0)
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	for _, v := range []struct {
		dev  *gpu.Device
		want string
	}{
		{nil, "Config.Device: gpu: the Device was not returned by Open"},
		{new(gpu.Device), "Config.Device: gpu: the Device was not returned by Open"},
		{closed, "Config.Device: "},
	} {
		for _, err := range kit.ErrorsOf(t, 2, func(ctx context.Context, g comm.Group) error {
			cfg := fsdp.Config{Group: g, Device: v.dev}
			if g.Rank() == 1 {
				dev, err := gpu.Open(1)
				require.NoError(t, err)
				defer func() { require.NoError(t, dev.Close()) }()
				cfg.Device = dev
			}
			_, err := fsdp.Wrap(kit.TinyGPT(1), cfg)
			return err
		}) {
			require.ErrorContains(t, err, v.want)
		}
	}
}

// picking is a model that adds up the rows of a table that integers name: those of the batch in another
// shape, constant ones, or ones that it computes.
func picking(how string) fsdp.Model {
	pick := &kit.Module{Parameters: []fsdp.Param{{Name: "table", Shape: []int{4, 2}, Init: fsdp.Normal(1)}}}
	pick.Graph = func(b *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
		rows, err := gorgonia.Reshape(in[0], tensor.Shape{2})
		switch {
		case err != nil:
			return nil, err
		case how == "constant":
			rows, err = b.ConstTensor(tensor.New(tensor.WithShape(2), tensor.WithBacking([]int{1, 4})))
		case how == "computed":
			rows, err = gorgonia.Add(rows, rows)
		}
		if err != nil {
			return nil, err
		}
		table, err := b.Param("table")
		if err != nil {
			return nil, err
		}
		y, err := op.Embedding(table, rows)
		if err != nil {
			return nil, err
		}
		y, err = gorgonia.Sum(y)
		return gorgonia.Nodes{y}, err
	}
	return kit.Model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		return []fsdp.Ref{t.Call("pick", pick, in[0])}, nil
	})
}

// TestGPUIntegers: integers that point nowhere are an error before any kernel reads by them, which names
// the rank, the operation and the integer. There are no kernels for integers that a model computes.
func TestGPUIntegers(t *testing.T) {
	onGPU(t, func() {
		for how, want := range map[string]string{
			"another shape": "batch tensor 0: call pick: embedding: index -5 at position 0 is outside the table of 4 rows, 0 to 3: tokens need a model with the Vocab of their tokenizer, positions one with a longer Context",
			"constant":      "call pick (*kit.Module): embedding: constant: index 4 at position 1 is outside the table of 4 rows, 0 to 3: tokens need a model with the Vocab of their tokenizer, positions one with a longer Context",
			"computed":      "call pick (*kit.Module): + false on the GPU: there are no kernels for it",
		} {
			kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
				m := kit.Wrap(t, picking(how), fsdp.Config{Group: g})
				rows := []int{3, 0}
				_, err := m.Forward(ctx, tensor.New(tensor.WithShape(1, 2), tensor.WithBacking(rows)))
				if how == "another shape" {
					require.NoError(t, err)
					require.NoError(t, m.Backward(ctx))
					rows[0] -= 8 * g.Rank()
					_, err = m.Forward(ctx, tensor.New(tensor.WithShape(1, 2), tensor.WithBacking(rows)))
				}
				require.ErrorContains(t, err, want)
				require.Regexp(t, `rank \d: `, err.Error())
				require.NoError(t, m.Close())
			})
		}
	})
}

// TestGPUBatchIsCopied: a pass has its batch from the beginning, also if its plan changes on the way.
func TestGPUBatchIsCopied(t *testing.T) {
	onGPU(t, func() {
		var want kit.Bits
		for _, spoiled := range []bool{false, true} {
			m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{WrapPolicy: kit.Blocks})
			batch := kit.GoodBatch(0)
			_, err := m.Forward(t.Context(), batch...)
			require.NoError(t, err)
			if spoiled {
				batch[0].(*tensor.Dense).Ints()[0] = 1 << 40
			}
			require.NoError(t, m.NoSync(func() error { return m.Backward(t.Context()) }))
			require.NoError(t, m.SyncGrads(t.Context()))
			if got := kit.GradBits(t, t.Context(), m); spoiled {
				kit.RequireSameBits(t, want, got)
			} else {
				want = got
			}
			require.NoError(t, m.Close())
		}
	})
}
