package comm

import (
	"cmp"
	"context"
	"github.com/gofsdp/gofsdp/comm/transport"
	"slices"
)

// Report says what the ranks of an in-process group have under way. It keeps no
// record of what is complete, nor of time: that would cost every operation more
// than the operation costs.
func (l *local) Report(context.Context) ([]Status, error) {
	t := l.team
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]Status, len(t.members))
	for r, m := range t.members {
		all[r] = Status{Group: t.name, Rank: r, Issued: m.issued, Completed: m.issued}
	}
	for _, o := range t.live {
		state := o.state.Load()
		seq := state >> tagShift
		for r, m := range t.members {
			if m.issued < seq || phase(state&valueMask) == done {
				continue
			}
			name := "issued"
			if phase(state&valueMask) == ready {
				name = "running"
			}
			all[r].Completed = min(all[r].Completed, seq-1)
			all[r].Recent = append(all[r].Recent, transport.Record{Seq: seq, Call: o.calls[r].String(), State: name})
		}
	}
	for r := range all {
		slices.SortFunc(all[r].Recent, func(a, b transport.Record) int { return cmp.Compare(a.Seq, b.Seq) })
	}
	return all, nil
}
