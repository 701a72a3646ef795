package simulate

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// number returns a number from the environment.
func number(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

// sizes are those of jobs, the small ones more often.
var sizes = []int{8, 8, 8, 8, 8, 16, 8, 8, 8, 8, 32, 8, 8, 8, 8, 8, 16, 16, 8, 8, 64, 8, 8, 8, 16, 8, 16, 32, 8, 8}

func sizeOf(seed uint64) int { return sizes[seed%uint64(len(sizes))] }

// TestFaults runs jobs with random faults until SIMULATE_FAULTS have been injected, from
// SIMULATE_SEED on. A seed that fails is repeated by SIMULATE_SEED=n SIMULATE_FAULTS=1.
func TestFaults(t *testing.T) {
	want, seed := number("SIMULATE_FAULTS", 500), uint64(number("SIMULATE_SEED", 1))
	var mu sync.Mutex
	var total tally
	begun, said := time.Now(), time.Now()
	next := func() (uint64, bool) {
		mu.Lock()
		defer mu.Unlock()
		seed++
		return seed - 1, total.injected() < want
	}
	note := func(t *testing.T, seed uint64, o *outcome) {
		mu.Lock()
		defer mu.Unlock()
		total.add(&o.tally)
		if len(o.faulty) > 0 {
			t.Errorf("seed %d, %d ranks:\n\t%s", seed, o.ranks, strings.Join(o.faulty, "\n\t"))
		}
		if time.Since(said) > time.Minute {
			said = time.Now()
			t.Logf("%d faults, up to seed %d", total.injected(), seed)
		}
	}
	t.Run("jobs", func(t *testing.T) {
		for w := range runtime.GOMAXPROCS(0) {
			t.Run(fmt.Sprint(w), func(t *testing.T) {
				t.Parallel()
				for seed, more := next(); more; seed, more = next() {
					note(t, seed, simulate(t, seed, sizeOf(seed)))
				}
			})
		}
	})
	t.Logf("seeds %d to %d in %v\n%v", number("SIMULATE_SEED", 1), seed-1, time.Since(begun).Round(time.Second), &total)
	require.Zero(t, total.hangs)
	require.Zero(t, total.lost)
	require.Zero(t, total.wrong+total.late+total.alarms)
}

// TestSeed runs jobs again: they have the same faults, and every rank ends in the same step.
func TestSeed(t *testing.T) {
	for seed := range uint64(6) {
		a, b := simulate(t, seed, 8), simulate(t, seed, 8)
		require.Equal(t, a.injected(), b.injected(), "seed %d", seed)
		require.Equal(t, a.ends, b.ends, "seed %d", seed)
	}
}

// TestKilledWhileIsolated: others hear of it when the host is back, or else see its silence.
func TestKilledWhileIsolated(t *testing.T) {
	dead := &fault{kind: kill, at: 1500 * time.Millisecond}
	for at, want := range map[time.Duration]time.Duration{
		2*time.Second + resent:     unanswered + slack,
		2*time.Second + resent + 1: slack,
	} {
		j := &job{struck: []*fault{{kind: isolate, at: time.Second, how: time.Second}, dead, {kind: cutOff, at: at, how: time.Hour}}}
		require.Equal(t, want, j.within(dead), "%v", at)
	}
}
