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
}

// grow joins a job of size ranks, without faults, and looks what is there when all have joined.
func grow(t *testing.T, size int) (g growth) {
	before, idle := memory(), runtime.NumGoroutine()
	begun := time.Now()
	synctest.Test(t, func(t *testing.T) {
		j, _ := newJob(uint64(size), size)
		var joining, all sync.WaitGroup
		leave := make(chan struct{})
		joining.Add(size)
		for _, r := range j.ranks {
			all.Go(func() {
				r.err = r.join()
				joining.Done()
				<-leave
				if r.group != nil {
					_ = r.group.Close()
				}
			})
		}
		joining.Wait()
		g = growth{size: size, took: time.Since(j.begun), connections: 2 * j.net.Open() / size, dials: j.net.Conns() / size}
		g.goroutines = (runtime.NumGoroutine() - idle) / size
		g.memory = (memory() - before) / size
		last := time.Duration(0)
		for _, r := range j.ranks {
			last = max(last, r.late)
		}
		g.took -= last
		close(leave)
		all.Wait()
		for _, r := range j.ranks {
			require.NoError(t, r.err)
		}
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
	fmt.Printf("%6s %12s %8s %12s %10s %12s %10s\n", "ranks", "connections", "dials", "goroutines", "memory", "join", "real time")
	for _, text := range strings.Split(list, ",") {
		size, err := strconv.Atoi(text)
		require.NoError(t, err)
		g := grow(t, size)
		fmt.Printf("%6d %12d %8d %12d %7d KiB %12v %10v\n", g.size, g.connections, g.dials, g.goroutines, g.memory>>10, g.took.Round(100*time.Microsecond), g.work.Round(time.Millisecond))
	}
}
