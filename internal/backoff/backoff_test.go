package backoff

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// looks returns how often w rests before it is time to sleep.
func looks(w *Waiter) (n int) {
	for w.Rest() {
		n++
	}
	return n
}

func TestRestCountsLooks(t *testing.T) {
	for name, p := range map[string]Policy{
		"both":    {Spins: 300, Yields: 100},
		"yields":  {Yields: 400},
		"nothing": {},
	} {
		t.Run(name, func(t *testing.T) {
			w := Waiter{Policy: &p}
			require.Equal(t, p.Spins+p.Yields, looks(&w))
			require.Zero(t, looks(&w), "it stays time to sleep")
			w.Reset()
			require.Equal(t, p.Spins+p.Yields, looks(&w))
		})
	}
}

// TestYieldsToProcesses: where yields take long, there may be fewer of them.
func TestYieldsToProcesses(t *testing.T) {
	w := Waiter{Policy: &Policy{Spins: 5, Yields: 10, Processes: true}}
	n := looks(&w)
	require.True(t, 6 <= n && n <= 15, "%d looks", n)
	require.Zero(t, looks(&w))
}

// TestAlone: for some time at first it yields to no other process, and after one that has kept the
// processor it sleeps instead.
func TestAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := Waiter{Policy: &Policy{Yields: 1, Eager: 10 * time.Millisecond, Processes: true, Alone: time.Millisecond}}
		wait := func(kept bool) {
			w.Reset()
			require.False(t, w.shares())
			for range 2 { // one is of those that are counted
				require.True(t, w.Rest())
				require.False(t, w.shares())
			}
			time.Sleep(time.Millisecond)
			require.Equal(t, !kept, w.Rest()) // it sleeps
			require.True(t, w.shares())
		}
		wait(false)
		wait(false)
		begin := time.Now()
		w.yielded(begin, begin, begin.Add(longYield))
		wait(false)
		w.yielded(begin, begin.Add(9*longYield), begin.Add(10*longYield)) // most of it was our own
		wait(false)
		w.yielded(time.Now(), time.Now(), time.Now().Add(2*longYield))
		wait(true)
		time.Sleep(cooldown)
		wait(true)
		time.Sleep(2 * longYield)
		wait(false)
	})
}

func TestRestIsEagerForSomeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := Waiter{Policy: &Policy{Eager: time.Millisecond}}
		require.True(t, w.Rest())
		time.Sleep(time.Millisecond - 1)
		require.True(t, w.Rest())
		time.Sleep(time.Nanosecond)
		require.False(t, w.Rest())
		time.Sleep(time.Second)
		require.Equal(t, time.Second+time.Millisecond, w.Idle())
		w.Progress()
		require.False(t, w.Rest())
		require.Equal(t, time.Millisecond, w.Idle())
		w.Reset()
		require.True(t, w.Rest())
		require.Zero(t, w.Idle())
	})
}

// TestIdleWhileStopped: of the time in which a waiter does not look, as one does not that is
// stopped, no more counts than a second.
func TestIdleWhileStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := Waiter{Policy: &Policy{}}
		require.Zero(t, w.Idle())
		for range 20 {
			time.Sleep(100 * time.Millisecond)
			w.Idle()
		}
		time.Sleep(12 * time.Hour)
		require.Equal(t, 3*time.Second, w.Idle())
		time.Sleep(time.Second)
		require.Equal(t, 4*time.Second, w.Idle())
		w.Progress()
		time.Sleep(time.Hour)
		require.Equal(t, time.Second, w.Idle())
	})
}

// TestSleepsGrow checks how long each sleep lasts.
func TestSleepsGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var naps []time.Duration
		w := Waiter{
			Policy: &Policy{Fraction: 2, Shortest: 400 * time.Microsecond, Longest: 2 * time.Millisecond},
			nap: func(d time.Duration) {
				naps = append(naps, d)
				time.Sleep(d)
			},
		}
		for range 2 {
			var slept []time.Duration
			for range 7 {
				begin := time.Now()
				w.Pause(nil, nil)
				slept = append(slept, time.Since(begin))
			}
			us := time.Microsecond
			require.Equal(t, []time.Duration{400 * us, 400 * us, 400 * us, 600 * us, 900 * us, 1350 * us, 2000 * us}, slept)
			require.Equal(t, slept[:5], naps, "sleeps that timers of Go would make longer")
			naps = nil
			w.Reset()
		}
	})
}

func TestSleepEndsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := Waiter{Policy: &Policy{Fraction: 1, Shortest: time.Hour, Longest: time.Hour}}
		begin, closed := time.Now(), make(chan struct{})
		close(closed)
		w.Sleep(closed, nil)
		w.Sleep(nil, closed)
		require.Zero(t, time.Since(begin))
		w.Sleep(nil, nil)
		require.Equal(t, time.Hour, time.Since(begin))
	})
}

// BenchmarkSleep reports how late a sleep of 50 µs ends, by a Waiter and by a timer of Go.
func BenchmarkSleep(b *testing.B) {
	const d = 50 * time.Microsecond
	w := Waiter{Policy: &Policy{Fraction: 1, Shortest: d, Longest: d}}
	for name, sleep := range map[string]func(){"waiter": func() { w.Sleep(nil, nil) }, "timer": func() { <-time.After(d) }} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				sleep()
			}
			b.ReportMetric(float64(b.Elapsed()/time.Duration(b.N)-d)/float64(time.Microsecond), "µs-late")
		})
	}
}
