package hf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/checkpoint/crashfs"
	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// TestAdapterCut ends replaceAdapter before each of its operations: by an error, by a kill, and by
// a power failure with several outcomes. The directory has the old adapter, the new one, or no
// adapter_config.json. A complete call survives a power failure.
func TestAdapterCut(t *testing.T) {
	const dir = "adapter"
	type files struct{ weights, config string }
	replace := func(fsys checkpoint.FS, f files) error {
		return replaceAdapter(fsys, dir, []byte(f.weights), []byte(f.config))
	}
	text := func(fsys checkpoint.FS, name string) string {
		f, err := fsys.Open(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			return ""
		}
		require.NoError(t, err)
		size, err := f.Size()
		require.NoError(t, err)
		b := make([]byte, size)
		require.NoError(t, safetensors.ReadFull(f, b, 0))
		require.NoError(t, f.Close())
		return string(b)
	}
	old, none := files{strings.Repeat("old weights", 20), "old config"}, files{}
	for _, after := range []files{{strings.Repeat("new weights", 30), "new config"}, {strings.Repeat("new weights", 30), old.config}, {old.weights, "new config"}} {
		for _, before := range []files{none, old} {
			begin := func() *crashfs.FS {
				f := crashfs.New()
				if before != none {
					require.NoError(t, replace(f, before))
				}
				return f
			}
			whole := func(f *crashfs.FS, what string) {
				if now := (files{text(f, adapterWeights), text(f, adapterConfig)}); now.config != "" {
					require.Contains(t, []files{before, after}, now, what)
				}
				require.NoError(t, replace(f, after), what) // repairs the directory
				require.Equal(t, after, files{text(f, adapterWeights), text(f, adapterConfig)})
			}
			f := begin()
			from := len(f.Ops())
			require.NoError(t, replace(f, after))
			operations := len(f.Ops()) - from
			crashed := f.Crash(crashfs.Nothing)
			require.Equal(t, after, files{text(crashed, adapterWeights), text(crashed, adapterConfig)})
			for n := range operations {
				f := begin()
				f.Inject(crashfs.Fault{At: n, Err: errors.New("disk full")})
				require.ErrorContains(t, replace(f, after), "disk full", "%v", f.Ops()[from+n])
				f.Inject(crashfs.Fault{})
				whole(f, fmt.Sprint("error at ", n))
				entries, err := f.ReadDir(dir)
				require.NoError(t, err)
				require.Len(t, entries, 2, "%d: no other files", n)

				f = begin()
				f.Kill(n)
				require.ErrorIs(t, replace(f, after), crashfs.ErrKilled)
				for seed := range uint64(20) {
					whole(f.Crash(seed), fmt.Sprintf("power failure at %d, seed %d", n, seed))
				}
				whole(f.Restart(), fmt.Sprint("kill at ", n))
			}
		}
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
