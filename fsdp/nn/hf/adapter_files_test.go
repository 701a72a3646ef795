package hf

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAdapterCut ends replaceAdapter before each of its renames, as a kill does. The directory has
// the old adapter, the new one, or none that can be opened.
func TestAdapterCut(t *testing.T) {
	files := func(name string) (weights, config []byte) {
		weights, err := os.ReadFile(filepath.Join("testdata/peft", name, adapterWeights))
		require.NoError(t, err)
		config, err = os.ReadFile(filepath.Join("testdata/peft", name, adapterConfig))
		require.NoError(t, err)
		return weights, config
	}
	oldWeights, oldConfig := files("llama-qv")
	newWeights, newConfig := files("llama-all")
	cut := errors.New("cut")
	for _, c := range []struct {
		cuts   int // the rename that fails
		config []byte
		want   string // "old", "new", or the error of OpenAdapter
	}{
		{0, newConfig, "adapter_config.json: no such file"},
		{1, newConfig, "adapter_config.json: no such file"},
		{2, newConfig, "new"},
		{0, oldConfig, "old"}, // the settings stay
		{1, oldConfig, "new"},
	} {
		dir := filepath.Join(t.TempDir(), "adapter")
		require.NoError(t, replaceAdapter(dir, oldWeights, oldConfig, os.Rename))
		renames := 0
		err := replaceAdapter(dir, newWeights, c.config, func(from, to string) error {
			if renames++; renames > c.cuts {
				return cut
			}
			return os.Rename(from, to)
		})
		if c.want == "new" {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, cut)
		}
		now, err := os.ReadFile(filepath.Join(dir, adapterWeights))
		require.NoError(t, err)
		m, err := Open("testdata/llama")
		require.NoError(t, err)
		switch err := m.OpenAdapter(dir); c.want {
		case "old":
			require.NoError(t, err)
			require.Equal(t, oldWeights, now)
		case "new":
			require.Equal(t, newWeights, now)
			there, err := os.ReadFile(filepath.Join(dir, adapterConfig))
			require.NoError(t, err)
			require.Equal(t, c.config, there)
		default:
			require.ErrorContains(t, err, c.want)
		}
		// A further call repairs the directory and leaves no other files.
		require.NoError(t, replaceAdapter(dir, newWeights, newConfig, os.Rename))
		require.NoError(t, m.OpenAdapter(dir))
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, entries, 2)
	}
}

// TestAdapterChanges replaces an adapter while it is read.
func TestAdapterChanges(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "adapter")
	require.NoError(t, os.CopyFS(dir, os.DirFS("testdata/peft/llama-qv")))
	m, err := Open("testdata/llama")
	require.NoError(t, err)
	err = m.openAdapter(dir, func(path string) (map[string]matrix, error) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, adapterConfig), []byte("{}"), 0o600))
		return decode(path)
	})
	require.ErrorContains(t, err, "adapter_config.json changed while the adapter was read: another program replaces the adapter, so open it again")
}
