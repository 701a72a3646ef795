package gpu

import (
	"errors"
	"fmt"

	"github.com/gofsdp/gofsdp/internal/device"
	"github.com/gofsdp/gofsdp/internal/exec"
)

// A Program is a program of package exec, compiled for a device.
type Program struct {
	Scratch int // bytes of scratch memory for a run, in addition to exec.Program.Work

	engine *Engine
	steps  []step
	consts []*device.Memory // by index of exec.SpaceConst
}

// A Call is the memory of a run, like exec.Call: addresses in the memory of the device. Each is
// aligned to 256 bytes, or is part of aligned memory. Addresses that the program does not use may
// be 0.
type Call struct {
	exec.Memory[uintptr]
	Saved, Work, Scratch uintptr
	Seed                 uint64
	Train                bool
}

// A step is one action that a program issues to the stream.
type step struct {
	action
	op     *exec.Op // the operation that it belongs to
	update bool     // skipped in evaluation
}

// An action is a launch, a copy, a product.
type action interface {
	issue(s *device.Stream, r *run) error
}

// run is a program that is being issued to a stream.
type run struct {
	*Call
	consts []*device.Memory
	values [maxArguments]uint64
}

// maxArguments is the largest number of arguments of a kernel.
const maxArguments = 32

// Run issues the program to a stream.
func (p *Program) Run(s *device.Stream, c *Call) error {
	r := &p.engine.run
	r.Call, r.consts = c, p.consts
	defer func() { r.Call, r.consts = nil, nil }()
	for i := range p.steps {
		st := &p.steps[i]
		if st.update && !c.Train {
			continue
		}
		if err := st.issue(s, r); err != nil {
			return fmt.Errorf("%v: %w", st.op, err)
		}
	}
	return nil
}

// Free frees the memory of the program. No stream may be running it.
func (p *Program) Free() error {
	var errs []error
	for _, m := range p.consts {
		if m != nil {
			errs = append(errs, m.Free())
		}
	}
	p.consts = nil
	return errors.Join(errs...)
}

// An address is the address of an operand, or an offset into it.
type address struct {
	space  exec.Space
	index  int
	offset int
}

// spaceScratch is memory that the steps of one instruction share.
const spaceScratch = exec.Space(255)

// plus returns the address n bytes further.
func (a address) plus(n int) address {
	a.offset += n
	return a
}

// resolve returns the value of an address in this run.
func (r *run) resolve(a address) uintptr {
	var base uintptr
	switch a.space {
	case exec.SpaceWork:
		base = r.Work
	case exec.SpaceSaved:
		base = r.Saved
	case spaceScratch:
		base = r.Scratch
	case exec.SpaceConst:
		base = r.consts[a.index].Addr()
	default:
		base = r.Of(a.space)[a.index]
	}
	return base + uintptr(a.offset)
}

// A launch is a kernel with its arguments.
type launch struct {
	function    *device.Function
	grid, block [3]int
	shared      int
	args        []argument
}

// An argument of a kernel is a constant, an address, the seed, or whether the run is in training
// (1) or evaluation (0).
type argument struct {
	kind  argumentKind
	value uint64 // its bits
	at    address
}

type argumentKind uint8

const (
	isValue argumentKind = iota
	isAddress
	isSeed
	isTrain
)

func (l *launch) issue(s *device.Stream, r *run) error {
	values := r.values[:len(l.args)]
	for i := range l.args {
		switch a := &l.args[i]; a.kind {
		case isAddress:
			values[i] = uint64(r.resolve(a.at))
		case isSeed:
			values[i] = r.Seed
		case isTrain:
			values[i] = 0
			if r.Train {
				values[i] = 1
			}
		default:
			values[i] = a.value
		}
	}
	return l.function.LaunchArgs(s, l.grid, l.block, l.shared, values)
}

// A move is a copy of bytes.
type move struct {
	to, from address
	bytes    int
}

func (m *move) issue(s *device.Stream, r *run) error {
	to, from := r.resolve(m.to), r.resolve(m.from)
	if to == from {
		return nil
	}
	return s.CopyDevice(to, from, m.bytes)
}

// A zeroing sets bytes to 0.
type zeroing struct {
	to         address
	bytes      int
	evaluation bool // only in evaluation
}

func (z *zeroing) issue(s *device.Stream, r *run) error {
	if z.evaluation && r.Train {
		return nil
	}
	return s.Set(r.resolve(z.to), 0, z.bytes)
}
