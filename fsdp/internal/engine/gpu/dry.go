package gpu

import (
	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/exec"
	compute "github.com/gofsdp/gofsdp/internal/gpu"
	"iter"
)

// dry is a Device without memory, for plans. Its counts do not depend on the GPU, and it needs
// none.
type dry struct {
	*engine.Dry
	scratch map[*exec.Program]int
}

// NewDry returns a device that counts memory like a Device, and allocates none.
func NewDry() engine.Device {
	d := &dry{engine.NewDry(engine.HostOptions{Threads: 1}), make(map[*exec.Program]int)}
	d.Far = true
	return d
}

// Apart implements engine.Device.
func (d *dry) Apart() bool { return true }

// Copies implements engine.Device.
func (d *dry) Copies() bool { return true }

// Rounds implements engine.Device.
func (d *dry) Rounds() bool { return true }

// Work implements engine.Device.
func (d *dry) Work(p *exec.Program) (int, error) {
	n, known := d.scratch[p]
	if !known {
		var err error
		if n, err = compute.Scratch(p); err != nil {
			return 0, err
		}
		d.scratch[p] = n
	}
	return withScratch(p, n), nil
}

// Runs implements engine.Device.
func (d *dry) Runs(p *exec.Program) iter.Seq[exec.Instr] { return compute.Runs(p) }

// Slow implements engine.Device.
func (d *dry) Slow(in *exec.Instr) string { return new(compute.Engine).Slow(in) }

// Prepare implements engine.Device. The order of the streams is not part of a plan.
func (d *dry) Prepare(c *engine.Compiled) (any, error) { return newWriter(c, false, false).script, nil }

// Reserve implements engine.Device.
func (d *dry) Reserve(c *engine.Compiled, _ func(arena.Class) bool) int { return reserve(c) }
