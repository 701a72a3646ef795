package arena

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits returns the bounds of the memory that this process can still allocate: memory and swap
// space of the host, its control groups, and its address space. The kernel kills processes that
// exceed them. A control group that leaves enough bytes may leave even more than its limit says,
// since cached files in its memory are not subtracted in that case.
func Limits(enough int) []Limit {
	list := limits("/", enough)
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_AS, &l) == nil && l.Cur < math.MaxInt {
		list = append(list, Limit{process, int(l.Cur), "the limit of this process's address space (ulimit -v)"})
	}
	return list
}

// process is the ID of limits that apply only to this process.
var process = rand.Uint64()

// id returns the ID of a limit of this host. Processes in other containers compute the same ID.
func id(root string, parts ...any) uint64 {
	boot, err := os.ReadFile(filepath.Join(root, "proc/sys/kernel/random/boot_id"))
	if err != nil { // another host might have the same parts
		parts = append(parts, process)
	}
	h := fnv.New64a()
	fmt.Fprint(h, string(boot), parts)
	return h.Sum64()
}

// limits returns the limits in files below root.
func limits(root string, enough int) (list []Limit) {
	if text, err := os.ReadFile(filepath.Join(root, "proc/meminfo")); err == nil {
		memory, ok := kilobytes(string(text), "MemAvailable:")
		swap, _ := kilobytes(string(text), "SwapFree:")
		if ok {
			list = append(list, Limit{id(root, "host"), memory + swap, "memory that is available on this host"})
		}
	}
	text, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) < 3 {
			continue
		}
		base, most, used, below := "sys/fs/cgroup", "memory.max", "memory.current", ""
		if fields[1] == "memory" { // version 1
			base, most, used, below = "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
		} else if fields[1] != "" {
			continue
		}
		for dir := fields[2]; ; dir = filepath.Dir(dir) { // inside a container only the root exists
			path := filepath.Join(root, base, dir, most)
			var stat unix.Stat_t // of the group's directory, whose path differs between containers
			if n, err := number(path); err == nil && unix.Stat(filepath.Dir(path), &stat) == nil {
				now, _ := number(filepath.Join(root, base, dir, used))
				left := n - now
				if left < enough { // reading the counts of files takes longest
					left = min(left+cached(filepath.Dir(path), below), n)
				}
				list = append(list, Limit{id(root, stat.Dev, stat.Ino), max(left, 0), "what " + path + " leaves"})
			}
			if dir == cmp.Or(filepath.Dir(dir), dir) {
				break
			}
		}
	}
	return list
}

// cached returns the bytes of cached files of a control group and its children, which the kernel
// drops when memory is needed. In version 1 the counts have a prefix.
func cached(dir, below string) (bytes int) {
	text, _ := os.ReadFile(filepath.Join(dir, "memory.stat"))
	for line := range strings.Lines(string(text)) {
		if name, count, _ := strings.Cut(strings.TrimSpace(line), " "); name == below+"active_file" || name == below+"inactive_file" {
			n, _ := strconv.Atoi(count)
			bytes += n
		}
	}
	return bytes
}

// number reads a file with one number. "max" is an error.
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
