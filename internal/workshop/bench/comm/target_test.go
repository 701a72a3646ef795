package comm

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func find(t *testing.T, list []verdict, candidate, against, op string) verdict {
	i := slices.IndexFunc(list, func(v verdict) bool { return v.Candidate == candidate && v.Against == against && v.Op == op })
	require.GreaterOrEqual(t, i, 0, "%s against %s at %s in %v", candidate, against, op, list)
	return list[i]
}

func TestVerdicts(t *testing.T) {
	r := results{}
	r[cell{2, "all-gather", 4 << 10}] = map[string][]float64{"local": {1, 2, 9}, "ompi-shm": {4}, "memcpy": {1}, "tcp": {10}, "ompi-tcp": {9}, "mpich-tcp": {5}}
	r[cell{2, "all-gather", 16 << 20}] = map[string][]float64{"local": {20}, "ompi-shm": {10}, "memcpy": {18}, "tcp": {100}, "ompi-tcp": {100}}
	r[cell{2, "flag", 4}] = map[string][]float64{"local": {2}, "ompi-shm": {1}, "shm-staged": {1}}
	r[cell{2, "barrier", 4}] = map[string][]float64{"local": {2}, "ompi-shm": {1}}
	r[cell{4, "flag", 4}] = map[string][]float64{"local": {2}, "ompi-shm": {2}}
	list := judgeTargets(r, 2, operations)

	v := find(t, list, "local", "Open MPI shm", "all-gather")
	require.InDelta(t, 1, v.Ratio, 1e-12, "the mean of 4/2 and 10/20")
	require.Equal(t, 2, v.Sizes)
	require.Equal(t, "miss", v.String(), "1.4 is wanted")
	require.InDelta(t, math.Sqrt2, v.Best, 1e-12, "the mean of 4/1 and 10/20")

	v = find(t, list, "local", "memcpy, 16M", "all-gather")
	require.InDelta(t, 0.9, v.Ratio, 1e-12, "the small size does not count")
	require.Equal(t, "PASS", v.String())

	v = find(t, list, "tcp", "best MPI tcp", "all-gather")
	require.InDelta(t, math.Sqrt(0.5), v.Ratio, 1e-12, "the fastest anchor of each size counts")

	v = find(t, list, "local", "Open MPI shm", "barrier")
	require.Equal(t, 0.5, v.Ratio)
	require.Empty(t, v.String(), "no target is set")

	v = find(t, list, "shm-staged", "Open MPI shm, from 64K", "flag")
	require.Equal(t, 1.0, v.Ratio, "a flag has no size to be too small")

	for _, v := range list {
		require.NotEqual(t, "gloo", v.Candidate)
		require.NotEqual(t, "Gloo", v.Against, "it was not measured")
	}
	v = find(t, judgeTargets(r, 4, operations), "local", "Open MPI shm", "flag")
	require.Equal(t, "PASS", v.String(), "1 is wanted, and is met")
}

// TestTargetsNameCandidates guards the table of targets against names that nothing measures.
func TestTargetsNameCandidates(t *testing.T) {
	names := candidateNames()
	for _, target := range targets {
		require.Contains(t, names, target.candidate)
		require.Subset(t, names, target.anchors)
		require.NotEmpty(t, target.anchors)
		for op := range target.factors {
			require.Contains(t, operations, op)
		}
	}
}
