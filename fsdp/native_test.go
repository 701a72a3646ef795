package fsdp_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/internal/kernel"
)

// TestNativeOrWidened checks what is said of the processor: in the plan, to the logger, and as a
// warning where bfloat16 takes longer.
func TestNativeOrWidened(t *testing.T) {
	for _, native := range []bool{true, false} {
		defer fsdp.Native(native)()
		for _, p := range []fsdp.Precision{{}, fsdp.BF16(), kit.Float64s} {
			var said bytes.Buffer
			m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Precision: p, WrapPolicy: kit.Blocks, Logger: slog.New(slog.NewTextHandler(&said, nil))})
			plan, err := m.Plan(kit.GoodBatch(0)...)
			require.NoError(t, err)
			half := p.Compute == fsdp.BFloat16
			require.Equal(t, p.Compute, plan.Compute)
			kernels := kernel.Products(half)
			if half && !native {
				kernels += ", widened"
			}
			require.Equal(t, kernels, plan.Kernels)
			require.Equal(t, half, strings.Contains(plan.String(), "ranks 1, bfloat16 by "+kernels+"\n"))
			require.Regexp(t, fmt.Sprintf(" compute=%v kernels=\"?%s\"?\n", p.Compute, kernels), said.String())
			require.Equal(t, half && !native, strings.Contains(said.String(),
				"Config.Precision.Compute is bfloat16, but this processor has no instructions that multiply it: products are slower than in float32"))
		}
	}
}
