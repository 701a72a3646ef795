//go:build (amd64 || arm64) && !purego

package shm

// Pause keeps the processor idle for about n times 10 to 40 ns, as somebody who
// polls memory should between looks: it saves power, leaves the core to its
// hyperthread, and the memory to whoever is about to write it.
//
//go:noescape
func Pause(n int)
