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

// growth is what joining takes at a number of ranks.
type growth struct {
	size        int
	connections int           // of a rank, at most at a time counted at the end
	dials       int           // of a rank on average
	goroutines  int           // of a rank
	memory      int           // of a rank, bytes of heap and stacks
	took        time.Duration // from the last rank's start, simulated
	work        time.Duration // of the processor, about
	stages      [len(stages)]time.Duration
}

// stages are what a job does when all have joined, one after the other, each until every rank is through it.
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

// grow joins a job of size ranks, without faults, looks what is there when all have joined, and then has them do
// what stages lists.
func grow(t *testing.T, size int) (g growth) {
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
		g = growth{size: size, took: time.Since(j.begun), connections: 2 * j.net.Open() / size, dials: j.net.Conns() / size}
		g.goroutines = (runtime.NumGoroutine() - idle) / size
		g.memory = (memory() - before) / size
		last := time.Duration(0)
		for _, r := range j.ranks {
			last = max(last, r.late)
		}
		g.took -= last
		for i, s := range stages {
			g.stages[i] = together(func(r *rank) error { return s.do(r, i) })
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
	g.work = time.Since(begun)
	return g
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
		g := grow(t, size)
		fmt.Printf("%6d %12d %8d %12d %7d KiB %12v", g.size, g.connections, g.dials, g.goroutines, g.memory>>10, g.took.Round(100*time.Microsecond))
		for _, took := range g.stages {
			fmt.Printf(" %12v", took.Round(100*time.Microsecond))
		}
		fmt.Printf(" %12v\n", g.work.Round(time.Millisecond))
	}
}
