package local

import (
	"cmp"
	"context"
	"github.com/gofsdp/gofsdp/comm/transport"
	"slices"
)

// Report returns the operations in progress of the ranks of an in-process group. It keeps no record
// of complete operations, nor of time: that would cost more than the operations.
func (l *local) Report(context.Context) ([]transport.Status, error) {
	t := l.team
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]transport.Status, len(t.members))
	for r, m := range t.members {
		all[r] = transport.Status{Group: t.name, Rank: r, Issued: m.issued, Completed: m.issued}
	}
	for _, o := range t.live {
		state := o.state.Load()
		seq := state >> transport.TagShift
		for r, m := range t.members {
			if m.issued < seq || phase(state&transport.ValueMask) == done {
				continue
			}
			name := "issued"
			if phase(state&transport.ValueMask) == ready {
				name = "running"
			}
			all[r].Completed = min(all[r].Completed, seq-1)
			all[r].Recent = append(all[r].Recent, transport.Record{Seq: seq, Call: o.Calls[r].String(), State: name})
		}
	}
	for r := range all {
		slices.SortFunc(all[r].Recent, func(a, b transport.Record) int { return cmp.Compare(a.Seq, b.Seq) })
	}
	return all, nil
}
