//go:build linux && cgo

package gpudouble

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestBuild(t *testing.T) {
	libs := Build(t)
	require.Equal(t, "libcuda.so.1", filepath.Base(libs.CUDA))
	require.Equal(t, "libnccl.so.2", filepath.Base(libs.NCCL))
	require.FileExists(t, libs.CUDA)
	require.FileExists(t, libs.NCCL)
	require.FileExists(t, libs.CUBLASLT)
	require.Equal(t, libs, Build(t), "built once")
	other := Build(t, "-DSOMETHING_ELSE")
	require.NotEqual(t, libs.NCCL, other.NCCL)
	require.Equal(t, libs.CUDA, other.CUDA)
}

// TestCache checks that a second process finds what a first one built, that what nobody uses is
// removed by the next that builds, and that nothing is left of what cannot be built.
func TestCache(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	l := library{"libcuda.so.1", []string{"cuda", "ptx"}}
	built := 0
	make := func(_ library, dir string, _ []string) error {
		built++
		return os.Mkdir(dir, 0o755)
	}
	first, err := cached(l, nil, make)
	require.NoError(t, err)
	again, err := cached(l, nil, make)
	require.NoError(t, err)
	require.Equal(t, first, again)
	require.Equal(t, 1, built)

	long := time.Now().Add(-2 * unused)
	require.NoError(t, os.Chtimes(filepath.Dir(first), long, long))
	other, err := cached(l, []string{"-O0"}, make)
	require.NoError(t, err)
	require.DirExists(t, filepath.Dir(other))
	require.NoDirExists(t, filepath.Dir(first))

	_, err = cached(l, []string{"-no-such-option"}, build)
	require.ErrorContains(t, err, "-no-such-option")
	entries, err := os.ReadDir(filepath.Dir(filepath.Dir(other)))
	require.NoError(t, err)
	require.Len(t, entries, 2, "the lock and one directory")
}
