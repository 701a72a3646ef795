package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// TestConfigurations checks that the table has what a change can break: strategies, ranks,
// transports.
func TestConfigurations(t *testing.T) {
	seen := make(map[string]bool)
	for _, c := range configurations {
		require.False(t, seen[c.name], c.name)
		seen[c.name] = true
		seen["on "+c.transport] = true
		seen[c.program] = true
		seen[string(rune('0'+c.ranks))+" ranks"] = true
		for _, flag := range strings.Fields(c.args) {
			seen[flag] = true
		}
	}
	for _, want := range []string{
		gpt, train, "on ", "on shm", "on tcp", "1 ranks", "2 ranks", "3 ranks", "4 ranks",
		"ShardGradOp", "NoShard", "HybridShard", "HybridGradOp", "SecondaryShard", "-frozen", "-thaw", "-offload", "-spill", "-recompute", "-uneven",
		"-gather", "-accumulate", "-hold", "-experts", "-resume", "-reshape", "-lora", "-ignored", "-tied", "-sgd", "-by-rows",
	} {
		require.True(t, seen[want], want)
	}
}

func TestCompare(t *testing.T) {
	same := sums{weights: "a", state: "b"}
	for _, c := range []struct {
		name  string
		other sums
		err   error
		want  error
	}{
		{"same", same, nil, nil},
		{"other weights", sums{weights: "c", state: "b"}, nil, errDifferent},
		{"other state", sums{weights: "a", state: "c"}, nil, errDifferent},
		{"failed", same, os.ErrDeadlineExceeded, os.ErrDeadlineExceeded},
	} {
		var out strings.Builder
		err := compare(t.Context(), &out, regexp.MustCompile("^offloaded$"), func(_ context.Context, got configuration) ([2]sums, error) {
			require.Equal(t, "offloaded", got.name)
			return [2]sums{same, c.other}, c.err
		})
		require.ErrorIs(t, err, c.want, c.name)
		require.Equal(t, errors.Is(c.want, errDifferent), strings.Contains(out.String(), "DIFFERENT"), c.name)
	}
	err := compare(t.Context(), new(strings.Builder), regexp.MustCompile("no such"), nil)
	require.ErrorContains(t, err, "no such configuration")
}

// TestSum checks that a hash depends on every part of a tensor and on the optimizer's counts, and
// on nothing else.
func TestSum(t *testing.T) {
	type content struct {
		order    []string
		metadata map[string]string
		a        string // 4 bytes
		dtype    safetensors.DType
		shape    []int
	}
	write := func(change func(*content)) string {
		c := content{order: []string{"a", "b"}, a: "1234", dtype: safetensors.F32, shape: []int{1}}
		change(&c)
		var list []safetensors.Tensor
		var data string
		for _, name := range c.order {
			tensor := safetensors.Tensor{Name: name, DType: safetensors.F32, Shape: []int{1}, Size: 4}
			if name == "a" {
				tensor.DType, tensor.Shape = c.dtype, c.shape
				data += c.a
			} else {
				data += "5678"
			}
			list = append(list, tensor)
		}
		h, err := safetensors.NewHeader(list, c.metadata)
		require.NoError(t, err)
		path := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(path, append(h.Encode(), data...), 0o600))
		hash, err := sum(path)
		require.NoError(t, err)
		return hash
	}
	base := write(func(*content) {})
	require.Len(t, base, 12)
	require.Equal(t, base, write(func(c *content) { c.order = []string{"b", "a"} }))
	require.Equal(t, base, write(func(c *content) { c.metadata = map[string]string{"made": "today"} }))
	require.NotEqual(t, base, write(func(c *content) { c.metadata = map[string]string{counts: `{"steps":1}`} }))
	counted := write(func(c *content) { c.metadata = map[string]string{counts: `{"updates":{"a":1}}`} })
	require.NotEqual(t, base, counted)
	require.Equal(t, counted, write(func(c *content) { c.metadata = map[string]string{counts: `{"updates":{"a":1},"groups":[]}`} }))
	require.NotEqual(t, base, write(func(c *content) { c.order = c.order[:1] }))
	require.NotEqual(t, base, write(func(c *content) { c.a = "1235" }))
	require.NotEqual(t, base, write(func(c *content) { c.shape = []int{1, 1} }))
	require.NotEqual(t, base, write(func(c *content) { c.dtype, c.shape = safetensors.BF16, []int{2} }))
	_, err := sum(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
