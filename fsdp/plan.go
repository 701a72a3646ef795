package fsdp

import (
	"fmt"
	"io"
	"strings"

	"github.com/gofsdp/gofsdp/internal/program"
)

// A Plan says what training on a batch will take, before anything runs. Bytes are those of one rank.
type Plan struct {
	Params     int         // elements of the whole model
	Ranks      int         // that share them
	Groups     []GroupPlan // the root group first, if it has parameters
	ShardBytes int         // this rank's parameters and gradients, padding included
	PassBytes  int         // most bytes of gathered parameters, gradients, activations and scratch at once
	Traffic    int         // bytes of parameters and gradients that one rank sends in a pass
	Schedule   []string    // the operations of a pass
}

// GroupPlan describes a group of parameters.
type GroupPlan struct {
	Name   string
	Params int // parameters
	Len    int // their elements
	Bytes  int // of the gathered group, padding included
}

// Peak returns the most bytes that will be counted at once. The optimizer's state comes on top.
func (p *Plan) Peak() int { return p.ShardBytes + p.PassBytes }

// Plan plans a training pass on a batch of the shapes of these tensors, whose contents do not matter. It is not a
// collective.
func (s *Sharded) Plan(batch ...Tensor) (*Plan, error) {
	values, err := s.batchValues(batch)
	if err != nil {
		return nil, fmt.Errorf("fsdp: %w", err)
	}
	c, err := s.compiledFor(false, values)
	if err != nil {
		return nil, fmt.Errorf("fsdp: %w", err)
	}
	p := &Plan{Ranks: s.cfg.Group.Size(), PassBytes: c.plan.Peak, Traffic: c.plan.Traffic(s.cfg.Group.Size())}
	for i, g := range s.groups {
		gp := GroupPlan{Name: g.name, Params: len(g.params), Bytes: g.bytes()}
		for _, q := range g.layout.Params() {
			gp.Len += q.Len()
		}
		if i > program.Root || gp.Params > 0 {
			p.Groups = append(p.Groups, gp)
		}
		p.Params += gp.Len
		p.ShardBytes += 2 * g.shardBytes()
	}
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
		fmt.Fprintf(&b, "  %-12s %10d parameters, %8.2f MB gathered\n", g.Name, g.Len, float64(g.Bytes)/1e6)
	}
	fmt.Fprintf(&b, "per rank: %.2f MB parameters and gradients, at most %.2f MB more in a pass, %.2f MB sent per pass\n",
		float64(p.ShardBytes)/1e6, float64(p.PassBytes)/1e6, float64(p.Traffic)/1e6)
	n, err := io.WriteString(w, b.String())
	return int64(n), err
}

// Memory counts the bytes that this rank holds now.
type Memory struct {
	Live     int // parameters, gradients and buffers in use
	Peak     int // most at once since the last ResetPeak, or the beginning
	Reserved int // live, and freed buffers kept for the next step
}

// Memory returns the counts. Optimizer state and batches are not the model's and are not counted.
func (s *Sharded) Memory() Memory {
	st := s.arena.Stats()
	return Memory{Live: st.Total, Peak: st.Peak, Reserved: st.Reserved}
}

// ResetPeak makes Memory count the peak from here on.
func (s *Sharded) ResetPeak() { s.arena.ResetPeak() }
