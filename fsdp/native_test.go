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
			require.Equal(t, native || !half, plan.Native)
			require.Equal(t, half && native, strings.Contains(plan.String(), "ranks 1, bfloat16 natively\n"))
			require.Equal(t, half && !native, strings.Contains(plan.String(), "ranks 1, bfloat16 widened\n"))
			require.Contains(t, said.String(), fmt.Sprintf(" compute=%v native=%t\n", p.Compute, native || !half))
			require.Equal(t, half && !native, strings.Contains(said.String(),
				"Config.Precision.Compute is bfloat16, which this processor does not multiply: products widen it, and take longer than in float32"))
		}
	}
}
