package arena

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAvailable reads the limits of hosts, containers and control groups of both versions, the nearest of
// which counts.
func TestAvailable(t *testing.T) {
	const meminfo = "MemTotal: 900 kB\nMemAvailable:     500 kB\nSwapFree: 100 kB\n"
	for name, c := range map[string]struct {
		files map[string]string
		bytes int
		limit string
	}{
		"nothing is known": {nil, math.MaxInt, ""},
		"host":             {map[string]string{"proc/meminfo": meminfo}, 600 << 10, "available on this host"},
		"no limit": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/a/memory.current": "1\n",
		}, 600 << 10, "available on this host"},
		"of a group above": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "400000\n",
			"sys/fs/cgroup/a/memory.max": "300000\n", "sys/fs/cgroup/a/memory.current": "100000\n",
		}, 200000, "sys/fs/cgroup/a/memory.max leaves"},
		"a container": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "5000", "sys/fs/cgroup/memory.current": "9000",
		}, 0, "sys/fs/cgroup/memory.max leaves"},
		"version 1": {map[string]string{
			"proc/self/cgroup": "3:cpu:/x\n4:memory:/job\n", "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "7000\n", "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "1000\n",
		}, 6000, "memory.limit_in_bytes leaves"},
		"damaged": {map[string]string{"proc/meminfo": "MemAvailable: many", "proc/self/cgroup": "x"}, math.MaxInt, ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for path, text := range c.files {
				path = filepath.Join(root, path)
				require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
				require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
			}
			bytes, limit := available(root)
			require.Equal(t, c.bytes, bytes)
			require.Contains(t, limit, c.limit)
		})
	}
	bytes, _ := Available()
	require.Positive(t, bytes)
}
