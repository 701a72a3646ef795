package state

import (
	"bytes"
	"fmt"
	"os"
)

// memoryWatch has the memory of the process at its beginning.
type memoryWatch struct{ before float64 }

// watchMemory begins to watch. Writing 5 to clear_refs resets the peak VmHWM to the present
// resident memory (man 5 proc).
func watchMemory() memoryWatch {
	if os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) != nil {
		return memoryWatch{-1}
	}
	return memoryWatch{statusBytes("VmRSS")}
}

// rise returns the increase of peak resident memory in bytes, or -1 if it is unknown. Memory shared
// by ranks counts in each.
func (m memoryWatch) rise() float64 {
	peak := statusBytes("VmHWM")
	if m.before < 0 || peak < 0 {
		return -1
	}
	return max(0, peak-m.before)
}

// statusBytes returns a line of /proc/self/status, or -1.
func statusBytes(name string) float64 {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return -1
	}
	for line := range bytes.Lines(text) {
		var kb float64
		if n, _ := fmt.Sscanf(string(line), name+": %f kB", &kb); n == 1 {
			return kb * 1024
		}
	}
	return -1
}
