package fsdp

import (
	"time"

	"github.com/gofsdp/gofsdp/internal/program"
)

// An Event is one operation of a pass, as Config.Trace sees it.
type Event struct {
	Rank     int
	Pass     int       // number of the pass
	Kind     string    // gather, wait, forward, turn, free, backward, reduce, sync or drain
	Group    string    // for gather, wait, free, reduce, sync and drain
	Call     string    // for forward and backward
	Begin    time.Time // of the operation on this rank
	Duration time.Duration
	Shadow   bool // the rank has no batch and takes part without computing
	Live     int  // bytes of counted memory when it ends, with what it is about to free, scratch excluded
}

func (s *Sharded) event(p *pass, step *program.Step, begin time.Time) Event {
	e := Event{
		Rank: s.cfg.Group.Rank(), Pass: p.number, Kind: step.Kind.String(), Shadow: p.shadow,
		Begin: begin, Duration: time.Since(begin), Live: s.arena.Stats().Total,
	}
	if step.Group >= 0 {
		e.Group = s.groups[step.Group].Name
	}
	if step.Call >= 0 {
		e.Call = p.model.Calls[step.Call].Name
	}
	return e
}
