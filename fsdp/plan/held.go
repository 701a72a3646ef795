package plan

import (
	"cmp"
	"slices"
)

// A Buffer is memory that a pass holds for a group or a call.
type Buffer struct {
	Name        string // of the group or the call
	First, Last int    // first and last operation that hold it, indices into Pass.Ops
	Held        Memory
}

// A Holder is a group or a call with the memory held for it. A call with the name of a group shares
// its Holder.
type Holder struct {
	Name string
	Memory
}

// Holders returns the memory held while operation op, an index into Ops, runs, by group and call,
// the largest first. The sum over all holders is the operation's Live. For the optimizer's state
// only the sum is known: each group gets a part in proportion to the elements that the optimizer
// updates.
func (p *Pass) Holders(op int) (list []Holder) {
	at := make(map[string]int)
	add := func(name string, m *Memory) {
		if m.Total() == 0 {
			return
		}
		i, known := at[name]
		if !known {
			i = len(list)
			at[name] = i
			list = append(list, Holder{Name: name})
		}
		list[i].add(m, 1)
	}
	live, owned, given := &p.Ops[op].Live, 0, 0
	for i := range p.Groups {
		g := &p.Groups[i]
		m := Memory{Shard: g.Held}
		owned += g.Owned
		if p.Owned > 0 {
			m.State = int(float64(owned)/float64(p.Owned)*float64(live.State)) - given
			given += m.State
		}
		add(g.Name, &m)
	}
	for i := range p.Buffers {
		if b := &p.Buffers[i]; b.First <= op && op <= b.Last {
			add(b.Name, &b.Held)
		}
	}
	if call := p.Ops[op].Call; call >= 0 {
		add(p.Calls[call].Name, &Memory{Work: live.Work})
	}
	slices.SortStableFunc(list, func(a, b Holder) int { return cmp.Compare(b.Total(), a.Total()) })
	return list
}

// A Sample is the memory held from a time on.
type Sample struct {
	At   float64 // seconds
	Live Memory
}

// Samples returns the memory held in the first two passes of a step that Time has played, and the
// memory that remains after them. A pass without operations has no samples.
func (p *Pass) Samples(t *Timeline) (list []Sample) {
	if len(p.Ops) == 0 {
		return nil
	}
	now, last := 0.0, p.Ops[len(p.Ops)-1].Live
	events := t.Events
	for pass := 0; len(events) > 0 && events[0].Op >= 0; pass++ {
		for i, op := range p.Ops {
			list = append(list, Sample{now, op.Live})
			for len(events) > 0 && events[0].Pass == pass && events[0].Op == i {
				if events[0].Stream == Computing {
					now = events[0].End
				}
				events = events[1:]
			}
		}
	}
	return append(list, Sample{now, Memory{Shard: last.Shard, State: last.State}})
}
