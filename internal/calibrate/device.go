package calibrate

import (
	"fmt"
	"time"

	"github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/internal/exec"
)

// Kernels gathers what instructions take on a device that nothing else uses, one at a time. The
// zero value has none.
type Kernels struct{ samples map[sample][]float64 }

// Add adds a run of an instruction.
func (k *Kernels) Add(in *exec.Instr, took time.Duration) {
	if k.samples == nil {
		k.samples = make(map[sample][]float64)
	}
	s := sampleOf(in, false)
	s.ranks, s.threads = 1, 1
	k.samples[s] = append(k.samples[s], took.Seconds())
}

// Cluster returns a cluster of such devices: with a rate for each operation that was added, and
// with all else as another one has it, which the sources say.
func (k *Kernels) Cluster(name, device string, memory int, like *plan.Cluster) *plan.Cluster {
	c := *like
	c.Name, c.Device.Name, c.Device.Memory = name, device, memory
	c.Rates = rates(k.samples, &c)
	c.Sources = []string{
		fmt.Sprintf("Rates and Device.Memory: make gpu-check on %s, %s", device, time.Now().UTC().Format(time.DateOnly)),
		fmt.Sprintf("all else: not measured, as %s has it; the links are those of the part Bandwidth", like.Name),
	}
	return &c
}
