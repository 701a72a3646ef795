package fsdp

import (
	"fmt"
	"io"
	"strings"

	"github.com/gofsdp/gofsdp/internal/arena"
)

// A Plan says what training on a batch will take, before anything runs. Bytes are those of one rank.
type Plan struct {
	Params        int         // elements of the whole model
	Ranks         int         // that share them
	Groups        []GroupPlan // the root unit first, if it has parameters
	ShardBytes    int         // this rank's parameters and gradients, padding included
	StateBytes    int         // of the optimizers that were made so far
	SnapshotBytes int         // of what SaveAsync has copied, which is kept
	PassBytes     int         // most bytes of gathered parameters, gradients, activations and scratch at once

	// The same bytes by where they lie. The two need not be largest at the same time.
	MappedBytes int // most at once in files (Config.OffloadDir)
	RAMBytes    int // most at once elsewhere, which must fit in RAM

	Gathers    int      // all-gathers in a pass, over more than one rank
	Reduces    int      // reduce-scatters
	AllReduces int      // all-reduces
	Traffic    int      // bytes of parameters and gradients that one rank sends in a pass
	Schedule   []string // the operations of a pass
}

// GroupPlan describes a flat group: the parameters of a unit, or those of one kind if it has several.
type GroupPlan struct {
	Name     string   // of the unit, and the kind in brackets: frozen, ignored, full (precision), buffers
	Strategy Strategy // of its unit
	Params   int      // parameters
	Len      int      // their elements
	Bytes    int      // of the whole group, padding included
	Frozen   bool     // it has no gradients
	Buffers  bool     // what it has are no parameters
	Ranks    int      // that it is cut over
	Replicas int      // of each piece
}

// Peak returns the most bytes that will be counted at once, in files and elsewhere.
func (p *Plan) Peak() int { return p.ShardBytes + p.StateBytes + p.SnapshotBytes + p.PassBytes }

// Plan plans a training pass on a batch of the shapes of these tensors, whose contents do not matter: one that begins now,
// inside NoSync if it is. It is not a collective.
func (s *Sharded) Plan(batch ...Tensor) (*Plan, error) {
	if s.err == errClosed {
		return nil, fmt.Errorf("fsdp: %w", s.err)
	}
	values, err := s.batchValues(s.model.Paths[""], batch)
	if err != nil {
		return nil, fmt.Errorf("fsdp: %w", err)
	}
	c, err := s.compiledFor(s.training(), values)
	if err != nil {
		return nil, fmt.Errorf("fsdp: %w", err)
	}
	n, live := c.plan.Program.Counts(), s.arena.Stats().Live
	p := &Plan{
		Ranks: s.cfg.Group.Size(), ShardBytes: s.shardBytes(), StateBytes: live[arena.State], SnapshotBytes: live[arena.Snapshot], PassBytes: c.plan.Peak,
		Gathers: n.Gathers, Reduces: n.Reduces, AllReduces: n.Syncs, Traffic: c.plan.Traffic(),
	}
	for _, g := range s.groups {
		gp := GroupPlan{
			Name: g.Name, Strategy: s.units[g.Unit].strategy, Params: len(g.Params), Bytes: g.Bytes(),
			Frozen: g.Kind.Frozen && !g.Kind.Buffer, Buffers: g.Kind.Buffer, Ranks: g.Ranks.Shards, Replicas: g.Ranks.Replicas,
		}
		for _, q := range g.Flat.Params() {
			gp.Len += q.Len()
		}
		p.Groups = append(p.Groups, gp)
		if !gp.Buffers {
			p.Params += gp.Len
		}
	}
	s.planFiles(p, c.plan)
	for _, op := range c.plan.Program.Ops {
		p.Schedule = append(p.Schedule, c.plan.Program.Text(op))
	}
	return p, nil
}

// WriteTo writes the plan as a short table.
func (p *Plan) WriteTo(w io.Writer) (int64, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "%d parameters in %d groups over %d ranks\n", p.Params, len(p.Groups), p.Ranks)
	for _, g := range p.Groups {
		if g.Buffers {
			fmt.Fprintf(&b, "  %-20s %10d elements, %s on every rank\n", g.Name, g.Len, bytesText(g.Bytes))
			continue
		}
		fmt.Fprintf(&b, "  %-20s %10d parameters, %s whole, %v over %d", g.Name, g.Len, bytesText(g.Bytes), g.Strategy, g.Ranks)
		if g.Replicas > 1 {
			fmt.Fprintf(&b, ", %d replicas", g.Replicas)
		}
		if g.Frozen {
			fmt.Fprint(&b, ", frozen")
		}
		fmt.Fprintln(&b)
	}
	fmt.Fprintf(&b, "per rank: %s parameters and gradients, ", bytesText(p.ShardBytes))
	if p.StateBytes > 0 {
		fmt.Fprintf(&b, "%s optimizer state, ", bytesText(p.StateBytes))
	}
	if p.SnapshotBytes > 0 {
		fmt.Fprintf(&b, "%s snapshot, ", bytesText(p.SnapshotBytes))
	}
	fmt.Fprintf(&b, "at most %s more in a pass, %s sent per pass\n", bytesText(p.PassBytes), bytesText(p.Traffic))
	if p.MappedBytes > 0 {
		fmt.Fprintf(&b, "of these at most %s in files, and at most %s elsewhere\n", bytesText(p.MappedBytes), bytesText(p.RAMBytes))
	}
	n, err := io.WriteString(w, b.String())
	return int64(n), err
}

// bytesText returns n in a unit that suits it.
func bytesText(n int) string {
	switch {
	case n < 1e6:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	case n < 1e9:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	default:
		return fmt.Sprintf("%.2f GB", float64(n)/1e9)
	}
}

// Memory counts the bytes that this rank holds now.
type Memory struct {
	Live     int // parameters, gradients, optimizer state and buffers in use
	Mapped   int // of these, what lies in files (Config.OffloadDir): the system keeps in RAM what it has room for
	Peak     int // most live at once since the last ResetPeak, or the beginning
	Reserved int // live, and freed buffers kept for the next step
}

// Memory returns the counts. Batches are not the model's and are not counted.
func (s *Sharded) Memory() Memory {
	st := s.arena.Stats()
	return Memory{Live: st.Total, Mapped: s.mappedBytes(), Peak: st.Peak, Reserved: st.Reserved}
}

// ResetPeak makes Memory count the peak from here on.
func (s *Sharded) ResetPeak() { s.arena.ResetPeak() }
