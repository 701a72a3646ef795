package calibrate

import (
	"context"
	"fmt"
	"math"
	"math/bits"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/internal/peak"
)

// Transports are the ways in which ranks of one host exchange data, by name: goroutines of a
// process, or processes over shared memory or TCP. Calibration always runs the ranks in one
// process.
var Transports = map[string]comm.Transport{"goroutines": comm.Auto, "shm": comm.SharedMemory, "tcp": comm.TCP}

// Groups returns the handles of n ranks in this process over a transport.
func Groups(ctx context.Context, n int, transport string) (groups []comm.Group, err error) {
	if transport == "goroutines" || n == 1 {
		return comm.Local(n), nil
	}
	dir, err := os.MkdirTemp("", "calibrate")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) // the ranks have met; leftover files do no harm
	groups = make([]comm.Group, n)
	err = Each(n, func(i int) (err error) {
		groups[i], err = comm.Connect(ctx, comm.Config{
			Rank: i, Size: n, Rendezvous: "file://" + dir, Job: "calibrate", Transport: Transports[transport], Secret: []byte("ranks of this process alone know"),
		})
		return err
	})
	return groups, err
}

// Cluster returns a cluster of this machine, computed from the samples so far. memory is the memory
// of a rank, in bytes. The network between hosts is assumed to have 10 Gb/s; it is not measured.
func (c *Calibration) Cluster(name string, memory int) *plan.Cluster {
	cpu := processor()
	cluster := &plan.Cluster{
		Name: name, PerHost: c.Ranks, Cores: runtime.NumCPU(),
		Sources: []string{
			fmt.Sprintf("Rates, Device.Bandwidth and Software: fsdpplan -calibrate on %s, %d cores, %d ranks over %s, and one of %d threads, %s",
				cpu, runtime.NumCPU(), c.Ranks, c.Transport, c.Threads, time.Now().UTC().Format(time.DateOnly)),
			"Inside: no limit, as the cores move the bytes: see the rates of gather, wait, reduce and drain",
			"Between: an assumption, 10 Gb/s with 50 microseconds a collective; not measured",
		},
		Device:   plan.Device{Name: "core of " + cpu, Memory: memory, Multiprocessors: 1, Cache: lastCache()},
		Inside:   plan.Link{Bandwidth: 1e15},
		Between:  plan.Link{Bandwidth: 1.25e9, Latency: 50e-6},
		Software: plan.Software{SmallHead: 1, Memory: 1, Traffic: 1, Link: 1},
	}
	list := rates(c.samples, cluster)
	d, s := &cluster.Device, &cluster.Software
	cluster.Rates, d.Bandwidth = list, 1/find(list, "add", 'B')
	product, attention := 1/find(list, "linear", 'F'), 1/find(list, "attention", 'F')
	d.PeakWide, d.Peak = product, product // unless a better number is known
	const source = "Device.%s: of a core, %s in registers, measured then"
	if k, ok := peak.Kernels()[false]; ok {
		d.PeakWide = max(product, k.Rate(1))
		cluster.Sources = append(cluster.Sources, fmt.Sprintf(source, "PeakWide", k.Name))
	}
	if k, ok := peak.Kernels()[true]; ok {
		d.Peak = k.Rate(1)
		cluster.Sources = append(cluster.Sources, fmt.Sprintf(source, "Peak", k.Name))
	}
	s.Product, s.Attention = product/d.PeakWide, min(1, attention/d.PeakWide)
	for _, x := range []*float64{&d.Peak, &d.PeakWide, &d.Bandwidth, &s.Product, &s.Attention} {
		digits := math.Pow(10, 3-math.Floor(math.Log10(*x)))
		*x = math.Round(*x*digits) / digits
	}
	return cluster
}

// find returns the time of a float32 operation on one rank for each FLOP or byte.
func find(list []plan.Rate, op string, of rune) float64 {
	const least = 1e-15 // if it was not measured
	i := slices.IndexFunc(list, func(r plan.Rate) bool { return r.Op == op && r.Wide && r.Ranks == 1 && r.Threads <= 1 })
	switch {
	case i < 0:
		return least
	case of == 'F':
		return max(least, list[i].FLOP)
	default:
		return max(least, list[i].Byte)
	}
}

// processor returns Linux's name of the first processor.
func processor() string {
	text, _ := os.ReadFile("/proc/cpuinfo") // exists only on Linux
	if m := regexp.MustCompile(`(?m)^model name\s*: (.*)$`).FindSubmatch(text); m != nil {
		return strings.TrimSpace(string(m[1]))
	}
	return runtime.GOARCH
}

// lastCache returns the last cache before memory of the first processor, or nil if it is unknown.
func lastCache() (last *plan.Cache) {
	const dir = "/sys/devices/system/cpu/cpu0/cache/index%d/%s" // exists only on Linux
	for i := 0; ; i++ {                                         // from the first level to the last
		size, err := os.ReadFile(fmt.Sprintf(dir, i, "size"))
		if err != nil {
			return last
		}
		cores, _ := os.ReadFile(fmt.Sprintf(dir, i, "shared_cpu_map")) // one bit for each core
		kb, sharing := 0, 0
		for _, r := range string(cores) {
			digit, _ := strconv.ParseUint(string(r), 16, 64) // 0 for commas
			sharing += bits.OnesCount64(digit)
		}
		if _, err := fmt.Sscanf(string(size), "%dK", &kb); err == nil && kb > 0 && sharing > 0 {
			last = &plan.Cache{Bytes: kb << 10, Cores: sharing}
		}
	}
}

// Memory returns the bytes of RAM for each of the given number of ranks on this machine, or 0 if
// the total is unknown.
func Memory(ranks int) int {
	text, _ := os.ReadFile("/proc/meminfo") // exists only on Linux
	var kb int
	if m := regexp.MustCompile(`(?m)^MemTotal:\s*(.*) kB$`).FindSubmatch(text); m != nil {
		fmt.Sscan(string(m[1]), &kb)
	}
	return kb << 10 / ranks
}
