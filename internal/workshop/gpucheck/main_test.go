//go:build gpu && linux && cgo

package gpucheck

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/internal/device"
	"github.com/gofsdp/gofsdp/nccl"
)

// noGPU is the exit status on a machine without a GPU.
const noGPU = 3

var (
	largest = flag.Int("largest", 1024, "the largest buffer whose bandwidth is measured, in MiB")
	batch   = flag.Int("batch", 0, "how many sequences a step of Training has, if not those of the scale: 16 fit into 80 GiB")
	cluster = flag.String("cluster", "", "write what Rates measures to a `file`, as a cluster for fsdpplan")
	like    = flag.String("like", "", "`name` of the cluster that it is like in all that is not measured: "+strings.Join(slices.Sorted(maps.Keys(plan.Clusters())), ", "))
)

func TestMain(m *testing.M) {
	flag.Parse()
	if c := plan.Clusters()[*like]; *cluster != "" && (c == nil || c.Cores > 0) {
		fmt.Fprintf(os.Stderr, "gpucheck: -cluster needs -like: there is no cluster of GPUs %q\n", *like)
		os.Exit(1)
	}
	if _, ok := scales[*scaleName]; !ok {
		fmt.Fprintf(os.Stderr, "gpucheck: there is no -scale %s\n", *scaleName)
		os.Exit(1)
	}
	if !isRank() {
		if err := survey(os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "gpucheck:", err)
			if errors.Is(err, errNoGPU) {
				os.Exit(noGPU)
			}
			os.Exit(1)
		}
	}
	goleak.VerifyTestMain(m)
}

var errNoGPU = errors.New("there is no GPU on this machine")

// What survey finds.
var (
	gpus    int
	version nccl.VersionCode
)

// survey prints what there is to check.
func survey(w io.Writer) (err error) {
	gpus, err = nccl.Devices()
	if errors.Is(err, nccl.ErrUnavailable) || err == nil && gpus == 0 {
		return errors.Join(errNoGPU, err)
	}
	if err != nil {
		return err
	}
	cuda, err := device.Version()
	if err != nil {
		return err
	}
	if version, err = nccl.Version(); err != nil {
		return err
	}
	fmt.Fprintf(w, "driver  CUDA %d.%d (%s)\n", cuda/1000, cuda%1000/10, cmp.Or(os.Getenv(nccl.EnvCUDA), "libcuda.so.1"))
	fmt.Fprintf(w, "NCCL    %v (%s)\n", version, cmp.Or(os.Getenv(nccl.EnvLibrary), "libnccl.so.2"))
	for i := range gpus {
		if err := describe(w, i); err != nil {
			return err
		}
	}
	return nil
}

// describe prints a line about a GPU.
func describe(w io.Writer, ordinal int) error {
	d, err := nccl.OpenDevice(ordinal)
	if err != nil {
		return err
	}
	free, total, err := d.Memory()
	if err == nil {
		_, err = fmt.Fprintf(w, "GPU %d   %s, %.1f GiB, %.1f GiB free\n", ordinal, d.Name(), gib(total), gib(free))
	}
	return errors.Join(err, d.Close())
}

func gib(bytes int) float64 { return float64(bytes) / (1 << 30) }
