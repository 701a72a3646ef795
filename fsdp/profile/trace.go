package profile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/internal/perfetto"
)

// WriteTrace writes a step that Time of a plan has played as a trace for Perfetto: the two streams,
// and memory. The trace begins at begin. process names its group of rows, and number distinguishes
// it from other files of the same trace.
func WriteTrace(to io.Writer, p *plan.Pass, t *plan.Timeline, process string, number uint32, begin time.Time) error {
	at := func(seconds float64) time.Time { return begin.Add(time.Duration(1e9 * seconds)) }
	w := perfetto.NewWriter(to, number)
	rank := w.Process(int(number), process)
	rows := [...]perfetto.Track{plan.Computing: w.Row(rank, "compute"), plan.Communicating: w.Row(rank, "communication")}
	memory := w.Bytes(rank, "memory")
	for _, e := range t.Events {
		name, args := "optimizer", []perfetto.Arg{{Name: "pass", Int: e.Pass}}
		if e.Op >= 0 {
			op := p.Ops[e.Op]
			name, args = p.Text(op), append(args, perfetto.Arg{Name: "live", Text: op.Live.String()})
		}
		w.Slice(rows[e.Stream], name, at(e.Begin), at(e.End), args...)
	}
	for _, s := range p.Samples(t) {
		w.Count(memory, at(s.At), s.Live.Total())
	}
	return w.Flush()
}

// Traced reports whether the model has a TraceDir.
func (p *Profile) Traced() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.to.Trace != ""
}

// AddTrace writes the pass, as predicted for a cluster, into the model's TraceDir, next to the last
// real one. Perfetto shows both in files that are joined as fsdprun -trace does. Only rank 0 may
// call it, as all files follow its clock. It returns the name of the file. Another call replaces
// the file.
func (p *Profile) AddTrace(pass *plan.Pass, c *plan.Cluster) (path string, err error) {
	p.mu.Lock()
	to, begin := p.to, p.started
	p.mu.Unlock()
	switch {
	case to.Trace == "":
		return "", errors.New("profile: AddTrace: the model has no TraceDir in Config.Observers")
	case begin.IsZero():
		return "", errNoPass
	}
	f, err := os.Create(to.Trace)
	if err != nil {
		return "", err
	}
	name := fmt.Sprintf("rank %d, predicted for %s", to.Group.Rank(), c.Name)
	return to.Trace, errors.Join(WriteTrace(f, pass, pass.Time(c, 1), name, to.Number, begin), f.Close())
}
