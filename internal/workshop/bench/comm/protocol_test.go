package comm

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSizes(t *testing.T) {
	require.Equal(t, []int{4}, sizes("flag", 64<<20))
	require.Equal(t, []int{4}, sizes("barrier", 64<<20))
	require.Equal(t, []int{4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20}, sizes("all-gather", 64<<20))
	require.Equal(t, []int{4 << 10, 64 << 10, 1 << 20, 16 << 20}, sizes("all-gather", 16<<20))
	require.Equal(t, []int{4 << 10}, sizes("all-gather", 4<<10))
}

func TestCommands(t *testing.T) {
	for line, want := range map[string]command{
		"run all-gather 65536 800": {op: "all-gather", bytes: 65536, iterations: 800},
		"check flag/ring 4":        {check: true, op: "flag/ring", bytes: 4, iterations: 1},
	} {
		require.Equal(t, line, want.String())
		got, err := parseCommand(line + "\n")
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, line := range []string{
		"", "run", "run all-gather 4", "run all-gather 4 0", "run all-gather -4 1", "run all-gather 6 1", "check flag 4 1", "stop flag 4 1",
		"run all-gather 4 1 1", "run all-gather 99999999999 1",
	} {
		_, err := parseCommand(line)
		require.Error(t, err, line)
	}
}

func TestHello(t *testing.T) {
	rank, pid, err := parseHello("hello 3 4711\n")
	require.NoError(t, err)
	require.Equal(t, 3, rank)
	require.Equal(t, 4711, pid)
	for _, line := range []string{"", "hello", "hello 3", "hello -1 4711", "hello 3 0", "hello 3 1", "hello 3 -4", "bye 3 4", "hello x 4"} {
		_, _, err := parseHello(line) // a pid of 1 or less would kill more than a rank
		require.Error(t, err, line)
	}
}

func TestReply(t *testing.T) {
	seconds, err := parseReply("ok 0.25\n")
	require.NoError(t, err)
	require.Equal(t, 0.25, seconds)

	_, err = parseReply("error element 3 is 1, want 2\n")
	require.EqualError(t, err, "element 3 is 1, want 2")
	require.True(t, refused(err))

	for _, line := range []string{"", "ok", "ok x", "ok -1", "ok NaN", "ok Inf", "yes 1", "hello 1 2"} {
		_, err := parseReply(line)
		require.Error(t, err, line)
		require.False(t, refused(err), line)
	}
}

func FuzzProtocol(f *testing.F) {
	for _, line := range []string{"run all-gather 65536 800", "check flag/ring 4", "hello 0 17", "ok 1e-3", "error no", "ok NaN"} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if c, err := parseCommand(line); err == nil {
			again, err := parseCommand(c.String())
			require.NoError(t, err)
			require.Equal(t, c, again)
			require.Positive(t, c.iterations)
			require.Positive(t, c.bytes)
		}
		if rank, pid, err := parseHello(line); err == nil {
			require.GreaterOrEqual(t, rank, 0)
			require.Greater(t, pid, 1)
		}
		if seconds, err := parseReply(line); err == nil {
			require.False(t, math.IsNaN(seconds) || math.IsInf(seconds, 0) || seconds < 0)
		}
	})
}
