// Package timeline writes the operations of a rank's passes as a trace for Perfetto: a file for
// each rank, all on the clock of rank 0. Joined end to end, the files are the trace of the job.
//
//	rank 1   passes   ▏forward 7            ▕▏backward 7               ▕
//	         calls    ▏wte▕▏blocks.0▕   ▏blocks.1▕▏head▕▏head▕▏blocks.1▕
//	         waits                  ▏wait▕                    ▏drain▕
//	         in flight  ▏all-gather blocks.1▕       ▏reduce-scatter head▕
//	         memory   ▁▁▂▂▃▃▃▃▄▄▄▄▄▄▆▆▆▆▆▆██████████████▆▆▆▆▃▃▃▃▂▂
package timeline

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/internal/launch"
	"github.com/gofsdp/gofsdp/internal/perfetto"
	"github.com/gofsdp/gofsdp/internal/program"
	"github.com/gofsdp/gofsdp/internal/regular"
)

// A File is the trace of one rank and model. Step is for the rank's goroutine, Flight for any.
type File struct {
	place  int           // of this rank in the group
	offset time.Duration // of this rank's clock

	rank                 perfetto.Track
	passes, calls, waits perfetto.Track
	memory               perfetto.Track

	mu         sync.Mutex // guards the following fields
	file       *os.File   // nil after Close
	w          *perfetto.Writer
	lanes      map[string][]lane // by group
	err        error             // the first
	half       string            // of the pass under way: forward, backward or evaluation
	number     int               // of the pass
	begin, end time.Time         // of the half of the pass, so far
}

// A lane is a track of collectives that do not overlap.
type lane struct {
	track perfetto.Track
	end   time.Time
}

// Open makes dir, and in it the file of this rank of g for the model of that number. It is a
// collective.
func Open(ctx context.Context, dir string, g comm.Group, model int) (*File, error) {
	o, err := offset(ctx, g, time.Now)
	if err != nil {
		return nil, fmt.Errorf("comparing clocks: %w", err)
	}
	n, err := nameOf(g, model)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	file, err := regular.Open(filepath.Join(dir, n.path+Suffix), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
	if err != nil {
		return nil, err
	}
	f := &File{place: g.Rank(), file: file, offset: o, w: perfetto.NewWriter(file, n.number), lanes: make(map[string][]lane)}
	f.rank = f.w.Process(int(n.number), n.name)
	f.passes, f.calls, f.waits = f.w.Row(f.rank, "passes"), f.w.Row(f.rank, "calls"), f.w.Row(f.rank, "waits")
	f.memory = f.w.Bytes(f.rank, "memory")
	return f, nil
}

// Beside returns the name of a file in dir for the prediction of the model, and its number among
// the files of the trace.
func Beside(dir string, g comm.Group, model int) (path string, number uint32, err error) {
	n, err := nameOf(g, model)
	return filepath.Join(dir, n.path+".predicted"+Suffix), n.number, err
}

// A naming distinguishes the files of a job.
type naming struct {
	name, path string // for people, and of the file, without Suffix
	number     uint32
}

// nameOf names another file of this rank.
func nameOf(g comm.Group, model int) (n naming, err error) {
	env, _, err := launch.Parse(os.Getenv)
	if err != nil {
		return n, err
	}
	place := g.Rank()
	n.name, n.path = fmt.Sprintf("rank %d", place), fmt.Sprintf("rank-%d", place)
	if env.Source != "" && (env.Rank != place || env.Size != g.Size()) { // a group of part of the job
		place = env.Rank
		n.name, n.path = fmt.Sprintf("%s, process %d", n.name, place), fmt.Sprintf("%s.process-%d", n.path, place)
	}
	if model > 1 {
		n.name, n.path = fmt.Sprintf("%s, model %d", n.name, model), fmt.Sprintf("%s.model-%d", n.path, model)
	}
	if env.Restart > 0 {
		n.name, n.path = fmt.Sprintf("%s, start %d", n.name, env.Restart+1), fmt.Sprintf("%s.start-%d", n.path, env.Restart+1)
	}
	n.number = uint32((env.Restart*models+int(opened.Add(1)))*places + place)
	return n, nil
}

// Suffix is the suffix of the files of ranks.
const Suffix = ".pftrace"

// opened counts the files of this process, from 1. With its place and start, the count numbers a
// file of the job.
var opened atomic.Uint32

// A start of a job most likely has fewer files per process, and fewer places.
const (
	models = 1 << 10
	places = 1 << 16
)

// Step notes an operation of a pass that is over now. A nil File notes nothing.
func (f *File) Step(s *engine.Step) {
	if f == nil {
		return
	}
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if half := f.halfOf(s); half != f.half || s.Pass != f.number {
		f.endPass()
		f.half, f.number, f.begin = half, s.Pass, s.Begin
	}
	f.end = now
	track, name := f.calls, s.Op.Kind.String()
	switch s.Op.Kind {
	case program.Wait, program.Sync, program.Drain:
		track = f.waits
	}
	switch {
	case s.Op.Call >= 0:
		name += " " + s.Model.Calls[s.Op.Call].Name
	case s.Op.Group >= 0:
		name += " " + s.Model.Groups[s.Op.Group].Name
	}
	if s.Absent {
		name += " (no batch)"
	}
	f.slice(track, name, s.Begin, now)
	f.w.Count(f.memory, now.Add(f.offset), s.Live)
}

// halfOf returns the half of a pass that a step belongs to.
func (f *File) halfOf(s *engine.Step) string {
	switch {
	case s.Eval:
		return "evaluation"
	case s.Op.Kind == program.Turn, f.half == "backward" && f.number == s.Pass:
		return "backward"
	default:
		return "forward"
	}
}

// endPass writes the half of a pass that is over, and flushes the file.
func (f *File) endPass() {
	if f.half != "" {
		f.slice(f.passes, fmt.Sprintf("%s %d", f.half, f.number), f.begin, f.end)
	}
	f.fail(f.w.Flush())
}

// fail keeps the first error, and reports at once that the trace ends.
func (f *File) fail(err error) {
	if f.err == nil && err != nil {
		f.err = err
		launch.Unrecorded(f.place, "the trace is", err)
	}
}

// Flight notes a collective that is over.
func (f *File) Flight(c transport.Flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return
	}
	track := f.lane(c)
	f.slice(track, c.Call, c.Issued, c.Done, perfetto.Arg{Name: "group", Text: c.Group},
		perfetto.Arg{Name: "number", Int: int(c.Seq)}, perfetto.Arg{Name: "bytes", Int: c.Bytes})
	f.slice(track, "moving", c.Began, c.Done)
}

// lane returns a track for a collective that does not overlap with the collectives on it.
func (f *File) lane(c transport.Flight) perfetto.Track {
	lanes := f.lanes[c.Group]
	i := slices.IndexFunc(lanes, func(l lane) bool { return !l.end.After(c.Issued) })
	if i < 0 {
		i = len(lanes)
		lanes = append(lanes, lane{track: f.w.Row(f.rank, "in flight: "+c.Group)})
	}
	lanes[i].end = c.Done
	f.lanes[c.Group] = lanes
	return lanes[i].track
}

func (f *File) slice(t perfetto.Track, name string, begin, end time.Time, args ...perfetto.Arg) {
	f.w.Slice(t, name, begin.Add(f.offset), end.Add(f.offset), args...)
}

// Close ends the file. It returns the first error of writing it.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endPass()
	f.fail(f.file.Close())
	f.file = nil
	return f.err
}
