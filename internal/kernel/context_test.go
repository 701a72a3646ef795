package kernel

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/kernel/gemm"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// TestInstructionSet: every set has its own name, and only AMX and BFMMLA give bfloat16 another one.
func TestInstructionSet(t *testing.T) {
	require.Len(t, slices.Compact(slices.Sorted(slices.Values(InstructionSets))), len(InstructionSets))
	names := map[string]string{"avx512": "AVX-512", "avx2": "AVX2", "neon": "NEON"}
	set := InstructionSets[InstructionSet(false)]
	if vec.InstructionSet() == "portable" {
		require.Contains(t, set, "plain Go")
	} else {
		require.Equal(t, names[vec.InstructionSet()], set)
	}
	require.Contains(t, set, Products(false))
	switch low := InstructionSets[InstructionSet(true)]; gemm.InstructionSet() {
	case "amx":
		require.Equal(t, "AVX-512 with AMX", low)
		require.Equal(t, "AMX", Products(true))
	case "neonbf16":
		require.Equal(t, "NEON with BFMMLA", low)
	default:
		require.Equal(t, set, low)
	}
}
