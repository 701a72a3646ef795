//go:build (amd64 || arm64) && !purego

package shm

// Pause keeps the processor idle for about n times 10 to 40 ns, for use between two polls of
// memory. It saves power, leaves the core to its hyperthread, and leaves the memory to the thread
// that is about to write it.
//
//go:noescape
func Pause(n int)

// Ticks returns the processor's clock, in its own unit. Reading it takes a third of the time of
// [time.Now]. The clocks of processors may differ, and reads are not ordered with other
// instructions.
//
//go:noescape
func Ticks() uint64
