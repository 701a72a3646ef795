package engine

import (
	"iter"
	"math"

	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/program"
)

// Pass returns the operations and costs of the pass on a device, as data. lasting is the memory
// before it. Buffers in files are not counted.
func (c *Compiled) Pass(l *layout.Layout, ranks int, lasting plan.Memory, dev Device) *plan.Pass {
	p := &plan.Pass{Ranks: ranks}
	sizes := l.Sizes()
	for i := range l.Groups {
		g := &l.Groups[i]
		pg := plan.Group{
			Name: g.Name, Shards: g.Ranks.Shards, Replicas: g.Ranks.Replicas,
			Params: sizes[i].ParamsWire, Grads: sizes[i].GradsWire, Sums: sizes[i].SumsWire, Stored: g.ShardBytes(),
		}
		if !g.Kind.Frozen {
			pg.Owned = g.Flat.ShardLen()
		}
		p.Groups = append(p.Groups, pg)
		p.Owned += pg.Owned
	}
	units := make(map[*exec.Unit]int)
	for i, call := range c.Model.Calls {
		u := c.Calls[i].Unit
		if _, known := units[u]; !known {
			units[u] = len(p.Units)
			p.Units = append(p.Units, unitWork(u, dev))
		}
		p.Calls = append(p.Calls, plan.Call{Name: call.Name, Unit: units[u]})
	}
	m := &meter{pass: p, live: lasting, buffers: c.Plan.Buffers, inFile: dev.InFile, held: make(map[int]int)}
	m.alloc(0, c.Plan.Inherited)
	for i := range c.Plan.Steps {
		s := &c.Plan.Steps[i]
		m.alloc(i, s.Alloc)
		live := m.live
		live.Work += s.Work
		p.Ops = append(p.Ops, plan.Op{Kind: plan.Kind(s.Kind), Group: s.Group, Call: s.Call, Second: s.Second, Live: live})
		m.free(i, s.Free)
	}
	return p
}

// meter counts the live memory.
type meter struct {
	pass    *plan.Pass
	live    plan.Memory
	buffers []program.Buffer
	inFile  func(arena.Class) bool
	held    map[int]int // of live buffers, their index in the pass
}

// alloc adds buffers that live from step i on, to the last step if no step frees them.
func (m *meter) alloc(i int, ids []int) {
	for _, id := range ids {
		b := &m.buffers[id]
		if m.inFile(b.Class) {
			continue
		}
		to := plan.Buffer{First: i, Last: math.MaxInt}
		switch b.Kind {
		case program.GroupParams, program.GroupGrads, program.GroupSecond:
			to.Name = m.pass.Groups[b.Index].Name
		default:
			to.Name = m.pass.Calls[b.Index].Name
		}
		*field(&to.Held, b.Class) = b.Bytes
		*field(&m.live, b.Class) += b.Bytes
		m.held[id] = len(m.pass.Buffers)
		m.pass.Buffers = append(m.pass.Buffers, to)
	}
}

// free removes buffers that live up to step i.
func (m *meter) free(i int, ids []int) {
	for _, id := range ids {
		if at, ok := m.held[id]; ok {
			m.pass.Buffers[at].Last = i
			*field(&m.live, m.buffers[id].Class) -= m.buffers[id].Bytes
			delete(m.held, id)
		}
	}
}

// field returns the field of m for a class of buffers.
func field(m *plan.Memory, c arena.Class) *int {
	switch c {
	case arena.Gathered:
		return &m.Gathered
	case arena.Gradient:
		return &m.Gradient
	case arena.Saved, arena.Spilled:
		return &m.Saved
	default:
		return &m.Activation
	}
}

// unitWork returns the work of a unit on a device, none for nil.
func unitWork(u *exec.Unit, dev Device) (w plan.Unit) {
	if u == nil {
		return w
	}
	w.Forward = programWork(dev.Runs(u.Forward))
	if u.Backward != nil {
		w.Backward = programWork(dev.Runs(u.Backward))
	}
	return w
}

// programWork returns the work of instructions, equal ones together.
func programWork(all iter.Seq[exec.Instr]) (list []plan.Work) {
	at := make(map[plan.Work]int)
	for in := range all {
		w := instrWork(&in)
		i, known := at[w]
		if !known {
			i = len(list)
			at[w] = i
			list = append(list, w)
		}
		list[i].Count++
	}
	return list
}

// instrWork returns the work of an instruction, without a count.
func instrWork(in *exec.Instr) plan.Work {
	cost := in.Cost()
	w := plan.Work{Op: string(in.Op.Kind), Class: plan.Other, FLOPs: cost.FLOPs, Bytes: cost.Read + cost.Written, Wide: !in.Half, Again: in.Again}
	switch {
	case in.Op.Product != nil:
		w.Class = plan.Product
		w.Rows, w.Cols, w.Depth = in.Op.Product(in.Op)
	case in.Op.Attention != nil:
		w.Class = plan.Attention
		w.Depth, w.Scores, w.Products = in.Op.Attention(in.Op)
	}
	return w
}
