//go:build (amd64 || arm64) && !purego

package shm

// Pause keeps the processor idle for about n times 10 to 40 ns, as somebody who
// polls memory should between looks: it saves power, leaves the core to its
// hyperthread, and the memory to whoever is about to write it.
//
//go:noescape
func Pause(n int)

// Ticks returns the processor's clock, in its own unit. To read it takes a third of the time of
// [time.Now], and says no more than that: processors may differ, and nothing is in order around it.
//
//go:noescape
func Ticks() uint64
