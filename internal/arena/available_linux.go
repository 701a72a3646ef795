package arena

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Available returns the bytes of memory that this process can still have, and the limit that is nearest:
// that of its control groups, of its address space, or memory of the host with its swap space. Beyond it
// the kernel ends processes, without a word.
func Available() (bytes int, limit string) {
	bytes, limit = available("/")
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_AS, &l) == nil && l.Cur < uint64(bytes) {
		return int(l.Cur), "the limit of this process's address space (ulimit -v)"
	}
	return bytes, limit
}

// available is Available of files below root.
func available(root string) (bytes int, limit string) {
	bytes = math.MaxInt
	take := func(n int, what string) {
		if n < bytes {
			bytes, limit = max(n, 0), what
		}
	}
	if text, err := os.ReadFile(filepath.Join(root, "proc/meminfo")); err == nil {
		memory, ok := kilobytes(string(text), "MemAvailable:")
		swap, _ := kilobytes(string(text), "SwapFree:")
		if ok {
			take(memory+swap, "memory that is available on this host")
		}
	}
	text, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) < 3 {
			continue
		}
		base, most, used := "sys/fs/cgroup", "memory.max", "memory.current"
		if fields[1] == "memory" { // version 1
			base, most, used = "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
		} else if fields[1] != "" {
			continue
		}
		for dir := fields[2]; ; dir = filepath.Dir(dir) { // inside a container only the root is there
			path := filepath.Join(root, base, dir, most)
			if n, err := number(path); err == nil {
				now, _ := number(filepath.Join(root, base, dir, used))
				take(n-now, "what "+path+" leaves")
			}
			if dir == cmp.Or(filepath.Dir(dir), dir) {
				break
			}
		}
	}
	return bytes, limit
}

// number reads a file with one number; "max" is none.
func number(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// kilobytes returns a line of /proc/meminfo in bytes.
func kilobytes(text, name string) (n int, ok bool) {
	_, line, _ := strings.Cut(text, name)
	_, err := fmt.Sscan(line, &n)
	return n << 10, err == nil
}
