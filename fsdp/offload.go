package fsdp

import (
	"fmt"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/mapped"
	"github.com/gofsdp/gofsdp/internal/program"
)

// What lives in files is memory to everybody who reads and writes it: the schedule, the collectives and the optimizer are the
// same, and so are the bits. The system decides what of it is in RAM, and the schedule tells it what comes next: see readAhead.
// It does not say what is done with, as package mapped could. Writing pages back after each use made a pass three to six times
// as long where there was RAM for all of them, and half as long again where every page came from the disk.

// sources opens the files, if there are to be any, and says where which memory comes from.
func (s *Sharded) sources() (from arena.Sources, err error) {
	if shared, ok := s.cfg.Group.(comm.Allocator); ok {
		from.Collective = shared
	}
	if s.cfg.OffloadDir == "" {
		return from, nil
	}
	if s.files, err = mapped.Open(s.cfg.OffloadDir); err != nil {
		return from, fmt.Errorf("Config.OffloadDir: %w", err)
	}
	from.Shard, from.Spill = s.files, s.files
	return from, nil
}

// readAhead has the system read what step at of a pass is not the one to wait for: the shard of the next gather while this one
// is under way, and the gradients that a reduction will be added to. Passes that found no page in RAM were 10 to 30 % shorter
// for it; those that found all of them took the same time.
func (s *Sharded) readAhead(p *pass, at int) {
	if s.files == nil {
		return
	}
	switch step := &p.plan.Steps[at]; step.Kind {
	case program.Gather:
		for _, next := range p.plan.Steps[at+1:] {
			if next.Kind == program.Gather {
				_ = s.files.WillNeed(s.groups[next.Group].value.Data) // what fails now will be read when it is touched
				return
			}
		}
	case program.Reduce:
		_ = s.files.WillNeed(s.groups[step.Group].grad.Data)
	}
}

// inFile tells whether memory of a class lies in files.
func (s *Sharded) inFile(c arena.Class) bool {
	return s.files != nil && (c == arena.Shard || c == arena.State || c == arena.Spilled || c == arena.Snapshot)
}

// mappedBytes returns how many of the bytes that are live lie in files.
func (s *Sharded) mappedBytes() int {
	n := 0
	for c, live := range s.arena.Stats().Live {
		if s.inFile(arena.Class(c)) {
			n += live
		}
	}
	return n
}

// planFiles divides the bytes of a plan between files and RAM. What was live before the pass is there all through it.
func (s *Sharded) planFiles(p *Plan, pass *program.Plan) {
	p.MappedBytes = mostLive(pass, s.inFile)
	p.RAMBytes = mostLive(pass, func(c arena.Class) bool { return !s.inFile(c) })
	if lasting := p.ShardBytes + p.StateBytes + p.SnapshotBytes; s.files != nil {
		p.MappedBytes += lasting
	} else {
		p.RAMBytes += lasting
	}
}

// mostLive walks a pass and returns the most bytes of some classes that are live at once.
func mostLive(p *program.Plan, counts func(arena.Class) bool) int {
	live, most := 0, 0
	add := func(ids []int, sign int) {
		for _, id := range ids {
			if b := p.Buffers[id]; counts(b.Class) {
				live += sign * b.Bytes
			}
		}
	}
	add(p.Inherited, 1)
	for _, step := range p.Steps {
		add(step.Alloc, 1)
		work := 0
		if counts(arena.Work) {
			work = step.Work
		}
		most = max(most, live+work)
		add(step.Free, -1)
	}
	return most
}
