//go:build linux && cgo

package nccl

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/gpudouble"
)

func init() { scripts["overhead"] = overhead }

const overheadCalls = 1_000_000

// cpu is the processor time that this process has taken.
func cpu() time.Duration {
	var u syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// overhead prints the nanoseconds of a collective.
func overhead() error {
	return caught(func() error {
		dev := must(OpenDevice(0))
		c := must(NewCommunicator(context.Background(), dev, 1, must(NewUniqueID()), 0, Config{}))
		start := cpu()
		for range overheadCalls {
			check(c.AllReduce(0, 0, 16, Float32, Sum, 0))
		}
		fmt.Printf("%.1f\n", float64((cpu()-start).Nanoseconds())/overheadCalls)
		return c.Destroy()
	})
}

// BenchmarkOverhead compares a collective of this package with one in C, both over a
// libnccl that does nothing, in time of the processor.
func BenchmarkOverhead(b *testing.B) {
	dir := b.TempDir()
	null, raw := filepath.Join(dir, "libnccl.so.2"), filepath.Join(dir, "raw")
	for _, args := range [][]string{{"-shared", "-fPIC", "-o", null, "testdata/null.c"}, {"-o", raw, "testdata/raw.c", "-ldl"}} {
		out, err := exec.Command("cc", append([]string{"-O2", "-w"}, args...)...).CombinedOutput()
		require.NoError(b, err, "%s", out)
	}
	cuda := gpudouble.Build(b).CUDA
	measure := func(c *exec.Cmd) float64 {
		c.Stderr = os.Stderr
		out, err := c.Output()
		require.NoError(b, err)
		ns, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
		require.NoError(b, err)
		return ns
	}
	var inGo, inC, ratio []float64
	for range 7 {
		g := measure(child(b, "overhead", EnvLibrary+"="+null))
		c := measure(exec.Command(raw, cuda, null, strconv.Itoa(overheadCalls)))
		inGo, inC, ratio = append(inGo, g), append(inC, c), append(ratio, g/c)
	}
	median := func(x []float64) float64 { slices.Sort(x); return x[len(x)/2] }
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(inGo), "Go-ns/call")
	b.ReportMetric(median(inC), "C-ns/call")
	b.ReportMetric(median(ratio), "Go/C")
}
