//go:build !(amd64 || arm64) || purego

package shm

// Pause keeps the processor busy for a few nanoseconds times n, without touching
// memory that others use.
func Pause(n int) {
	for range 8 * n { // the compiler keeps empty loops
	}
}
