package arena

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLimits reads the limits of hosts, containers and control groups of both versions, the nearest
// of which counts.
func TestLimits(t *testing.T) {
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
		"files in memory": {map[string]string{
			"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "5000", "sys/fs/cgroup/memory.current": "4900",
			"sys/fs/cgroup/memory.stat": "anon 900\nfile 4000\ninactive_file 3000\nactive_file 500\nshmem 500\nother x\n",
		}, 3600, "sys/fs/cgroup/memory.max leaves"},
		"version 1": {map[string]string{
			"proc/self/cgroup": "3:cpu:/x\n4:memory:/job\n", "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "7000\n", "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "1000\n",
		}, 6000, "memory.limit_in_bytes leaves"},
		"files in memory, version 1": {map[string]string{
			"proc/self/cgroup": "4:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "7000\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "6000\n",
			"sys/fs/cgroup/memory/memory.stat": "inactive_file 9\ntotal_inactive_file 2000\ntotal_active_file 1000\n",
		}, 4000, "memory.limit_in_bytes leaves"},
		"damaged": {map[string]string{"proc/meminfo": "MemAvailable: many", "proc/self/cgroup": "x"}, math.MaxInt, ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for path, text := range c.files {
				path = filepath.Join(root, path)
				require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
				require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
			}
			for _, enough := range []int{0, c.bytes} {
				for _, l := range limits(root, enough) {
					require.GreaterOrEqual(t, l.Left, enough)
				}
			}
			nearest := Limit{Left: math.MaxInt}
			for _, l := range limits(root, math.MaxInt) {
				if l.Left < nearest.Left {
					nearest = l
				}
			}
			require.Equal(t, c.bytes, nearest.Left)
			require.Contains(t, nearest.Name, c.limit)
		})
	}
	require.NotEmpty(t, Limits(0))
	require.Equal(t, Limits(0)[0].ID, Limits(0)[0].ID)
}

// TestLimitIDs compares the IDs of processes: equal in two containers that have a limit in common,
// under whatever path, and different for limits of other groups and hosts, and where the host is
// not known.
func TestLimitIDs(t *testing.T) {
	host := func(boot string) string {
		root := t.TempDir()
		for path, text := range map[string]string{
			"proc/meminfo": "MemAvailable: 1 kB", "proc/sys/kernel/random/boot_id": boot, "proc/self/cgroup": "0::/pod/a\n",
			"sys/fs/cgroup/pod/memory.max": "5", "sys/fs/cgroup/pod/a/memory.max": "5", "sys/fs/cgroup/pod/b/memory.max": "5",
		} {
			path = filepath.Join(root, path)
			if text != "" {
				require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
				require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
			}
		}
		return root
	}
	ids := func(root, group string) (list []uint64) {
		require.NoError(t, os.WriteFile(filepath.Join(root, "proc/self/cgroup"), []byte(group), 0o600))
		for _, l := range limits(root, math.MaxInt) {
			list = append(list, l.ID)
		}
		return list
	}
	first, second := host("first"), host("second")
	a, b := ids(first, "0::/pod/a"), ids(first, "0::/pod/b")
	require.Len(t, a, 3) // host, group, pod
	require.Len(t, b, 3)
	require.Equal(t, []uint64{a[0], a[2]}, []uint64{b[0], b[2]})
	require.NotEqual(t, a[1], b[1])
	require.Equal(t, a[2:], ids(first, "0::/pod/x/../../pod")[1:], "another path")
	for i, id := range ids(second, "0::/pod/a") {
		require.NotContains(t, a, id, i)
	}
	require.NotEqual(t, ids(first, "")[0], ids(host(""), "")[0])
	process++ // another process
	require.Equal(t, a, ids(first, "0::/pod/a"))
	unknown := ids(host(""), "")
	process++
	require.NotEqual(t, unknown, ids(host(""), ""))
}
