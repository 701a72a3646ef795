package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/launch"
)

func init() {
	scripts["cores"] = func(launch.Env) int {
		cores, err := allowedCores()
		fmt.Println(cores, err)
		return 0
	}
}

// TestPin reads back the cores of each rank, and checks that fsdprun keeps its own.
func TestPin(t *testing.T) {
	before, err := allowedCores()
	require.NoError(t, err)
	n := min(2, len(before))
	status, r := finish(t, "cores", "-n", fmt.Sprint(n), "-pin")
	require.Zero(t, status, &r.err)
	for i, line := range r.out.sorted() {
		require.Equal(t, fmt.Sprintf("[%d] %v <nil>\n", i, share(before, i, n)), line)
	}
	after, err := allowedCores()
	require.NoError(t, err)
	require.Equal(t, before, after)
}

// TestThreadIsNobodyElses occupies many threads, none of which may be the one that starts ranks: it
// has cores of its own.
func TestThreadIsNobodyElses(t *testing.T) {
	th := newThread()
	defer th.close()
	var own int
	th.do(func() { own = unix.Gettid() })
	const others = 64
	seen, leave := make(chan int, others), make(chan struct{})
	for range others {
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			seen <- unix.Gettid()
			<-leave
		}()
	}
	for range others {
		require.NotEqual(t, own, <-seen)
	}
	close(leave)
	th.do(func() { require.Equal(t, own, unix.Gettid()) })
}

func TestShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cores := rapid.SliceOfNDistinct(rapid.IntRange(0, 1000), 1, 100, rapid.ID[int]).Draw(t, "cores")
		n := rapid.IntRange(1, 150).Draw(t, "ranks")
		var all []int
		shortest, longest := len(cores), 0
		for i := range n {
			s := share(cores, i, n)
			all = append(all, s...)
			shortest, longest = min(shortest, len(s)), max(longest, len(s))
		}
		if longest-shortest > 1 || shortest < 1 {
			t.Fatalf("%d to %d cores", shortest, longest)
		}
		if n <= len(cores) && !slices.Equal(all, cores) || n > len(cores) && !slices.Equal(slices.Compact(all), cores) {
			t.Fatalf("%v of %v", all, cores)
		}
	})
}

// TestNoOrphans kills a launcher and waits until its ranks, which hold a pipe, are gone.
func TestNoOrphans(t *testing.T) {
	pipe := fifo(t, t.TempDir(), "ranks")
	cmd, lines := process(t, "hold", "-n", "3", os.Args[0], pipe)
	f, err := os.Open(pipe)
	require.NoError(t, err)
	defer f.Close()
	_, err = io.ReadFull(f, make([]byte, 3))
	require.NoError(t, err)
	require.NoError(t, cmd.Process.Kill())
	rest, err := io.ReadAll(f)
	require.NoError(t, err)
	require.Empty(t, rest)
	for range lines {
	}
	require.Error(t, cmd.Wait())
}

func TestMoreRanksThanCores(t *testing.T) {
	before, err := allowedCores()
	require.NoError(t, err)
	status, r := finish(t, "cores", "-n", fmt.Sprint(len(before)+1), "-pin")
	require.Zero(t, status, &r.err)
	require.Equal(t, len(before)+1, strings.Count(r.out.String(), "<nil>"))
}
