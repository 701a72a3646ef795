package calibrate

import (
	"fmt"
	"slices"
	"time"

	"github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/internal/exec"
)

// Kernels collects the times of instructions on an otherwise idle device, one at a time. The zero
// value is empty.
type Kernels struct{ samples map[sample][]float64 }

// Add adds a run of an instruction.
func (k *Kernels) Add(in *exec.Instr, took time.Duration) {
	k.add(sampleOf(in, false), took)
}

// AddWork adds a run of work that is not an instruction: the update, or a rank's work for an
// operation on a group, by the names in [plan.Rate].
func (k *Kernels) AddWork(w plan.Work, took time.Duration) {
	k.add(sample{op: w.Op, wide: w.Wide, flops: w.FLOPs, bytes: w.Bytes}, took)
}

func (k *Kernels) add(s sample, took time.Duration) {
	if k.samples == nil {
		k.samples = make(map[sample][]float64)
	}
	s.ranks, s.threads = 1, 1
	k.samples[s] = append(k.samples[s], took.Seconds())
}

// Cluster returns a cluster of such devices. It has a rate for each operation that was added, and
// everything else from like, which the sources mention. If the update was added, its rate replaces
// Software.Step.
func (k *Kernels) Cluster(name, device string, memory int, like *plan.Cluster) *plan.Cluster {
	c := *like
	c.Name, c.Device.Name, c.Device.Memory = name, device, memory
	c.Rates = rates(k.samples, &c)
	if slices.ContainsFunc(c.Rates, func(r plan.Rate) bool { return r.Op == "update" }) {
		c.Software.Step = 0
	}
	c.Sources = []string{
		fmt.Sprintf("Rates and Device.Memory: internal/workshop/gpucheck on %s, %s", device, time.Now().UTC().Format(time.DateOnly)),
		fmt.Sprintf("all else: not measured, as %s has it; the links are those of the part Bandwidth", like.Name),
	}
	return &c
}
