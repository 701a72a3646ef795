package simulate

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// stages are what a job does when all have joined, one after the other, each until every rank is
// through it.
var stages = [...]step{
	{"barrier", func(r *rank, _ int) error { return r.group.Barrier(r.ctx) }},
	{"flag", func(r *rank, k int) error { return r.allReduce(r.group, k, 1) }},
	{"agreement", func(r *rank, k int) error { return r.agree(k, 0, false) }},
	{"all-reduce", func(r *rank, k int) error { return r.allReduce(r.group, k, 10) }},
	{"save", func(r *rank, k int) error { return r.save(k) }},
	{"a death", func(r *rank, _ int) error {
		dead := r.size / 2
		if r.no == dead {
			r.host.Kill()
			r.cancel()
		}
		r.err = r.group.Barrier(r.ctx)
		if r.no == dead || r.err != nil && r.names(map[int]bool{dead: true}) {
			return nil
		}
		return fmt.Errorf("rank %d has died, and rank %d says: %v", dead, r.no, r.err)
	}},
}

// grow joins a job of size ranks, without faults, looks what is there when all have joined, and
// then has them do what stages lists. It writes a line of a table meanwhile: of a rank the
// connections that are open and that were dialed, the goroutines, and the bytes of heap and stacks;
// the simulated time from the last rank's start until all had joined, and that of each stage; and
// how long it all took.
func grow(t *testing.T, size int) {
	before, idle := memory(), runtime.NumGoroutine()
	begun := time.Now()
	synctest.Test(t, func(t *testing.T) {
		j, _ := newJob(uint64(size), size)
		together := func(do func(r *rank) error) (took time.Duration) {
			var all sync.WaitGroup
			begun := time.Now()
			for _, r := range j.ranks {
				all.Go(func() { r.err = do(r) })
			}
			all.Wait()
			for _, r := range j.ranks {
				require.NoError(t, r.err)
			}
			return time.Since(begun)
		}
		together((*rank).join)
		took, last := time.Since(j.begun), time.Duration(0)
		for _, r := range j.ranks {
			last = max(last, r.late)
		}
		fmt.Printf("%6d %12d %8d %12d %7d KiB %12v", size, 2*j.net.Open()/size, j.net.Conns()/size, (runtime.NumGoroutine()-idle)/size,
			(memory()-before)/size>>10, (took - last).Round(100*time.Microsecond))
		for i, s := range stages {
			fmt.Printf(" %12v", together(func(r *rank) error { return s.do(r, i) }).Round(100*time.Microsecond))
		}
		j.net.Kill() // each would tell all others that it leaves
		together(func(r *rank) error {
			_ = r.group.Close() // it has died
			return nil
		})
		o := outcome{}
		j.checkDisk(&o)
		require.Equal(t, 1, o.commits)
		require.Empty(t, o.faulty)
	})
	fmt.Printf(" %12v\n", time.Since(begun).Round(time.Millisecond))
}

// memory returns what is in use of the heap and of stacks.
func memory() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc + m.StackInuse)
}

// TestGrowth joins jobs of several sizes.
func TestGrowth(t *testing.T) {
	list := os.Getenv("SIMULATE_RANKS")
	if list == "" {
		list = "16"
	}
	fmt.Printf("%6s %12s %8s %12s %11s %12s", "ranks", "connections", "dials", "goroutines", "memory", "join")
	for _, s := range stages {
		fmt.Printf(" %12s", s.name)
	}
	fmt.Printf(" %12s\n", "real time")
	for _, text := range strings.Split(list, ",") {
		size, err := strconv.Atoi(text)
		require.NoError(t, err)
		grow(t, size)
	}
}
