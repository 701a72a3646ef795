package fsdp

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// What a checkpoint has and what a model wants are compared by names. Of parameters and buffers every rank knows all. Of an
// optimizer's state it knows what belongs to the parameters that it owns a piece of, so the ranks put together what they know.

// saved returns what the checkpoint calls a tensor that is about a parameter, or buffer, of the model.
func (s *Sharded) saved(l *loading, param int, k checkpoint.Key) checkpoint.Key {
	k.Param = l.naming.names[param]
	if s.trace.params[param].Buffer {
		k.Owner %= l.reader.Manifest().World
	}
	return k
}

// param returns the parameter of the model that a piece is about.
func (s *Sharded) param(p *statePiece) int { return s.groups[p.group].Params[p.index] }

// matchCheckpoint returns a *StateError on every rank unless the checkpoint has what the ranks want, and no more.
func (s *Sharded) matchCheckpoint(ctx context.Context, l *loading) error {
	m := newMatching(s, l)
	err := ranks.Guarded(func() error { m.want(); return nil }) // AllowMissing is the user's
	if err := s.agree(ctx, ranks.Ask{Call: "Load"}, err); err != nil {
		return err
	}
	if err := m.exchange(ctx, s.cfg.Group); err != nil {
		return s.broken(fmt.Errorf("Load: comparing names with those of the checkpoint: %w", err))
	}
	if err = ranks.Guarded(func() error { m.leave(); return nil }); err == nil {
		err = m.wrong.orNil()
	}
	return s.agree(ctx, ranks.Ask{Call: "Load"}, err)
}

// A matching compares names and shapes.
type matching struct {
	s *Sharded
	*loading
	index map[checkpoint.Key]int // in the manifest
	used  []byte                 // by tensor of the manifest: 1 if a rank reads some of it
	wrong StateError
}

func newMatching(s *Sharded, l *loading) *matching {
	tensors := l.reader.Manifest().Tensors
	m := &matching{s: s, loading: l, index: make(map[checkpoint.Key]int, len(tensors)), used: make([]byte, len(tensors))}
	m.wrong.Where = "the checkpoint " + l.path
	for i, t := range tensors {
		m.index[t.Key] = i
	}
	return m
}

// want looks for what this rank wants.
func (m *matching) want() {
	for i, p := range m.s.trace.params {
		k := m.s.saved(m.loading, i, checkpoint.Key{Param: p.Name, Owner: m.s.groups[m.s.layout.Home[i].Group].Owner(m.s.cfg.Group.Rank())})
		if !m.find(k, p.Shape) && p.Len() > 0 {
			m.missing(k)
		}
	}
	state := false
	for rest := m.pieces; len(rest) > 0; {
		p := rest[0]
		n := 1 // what belongs to one piece of a parameter is together
		for n < len(rest) && rest[n].Param == p.Param && (rest[n].Entry == "") == (p.Entry == "") {
			n++
		}
		if p.Entry != "" && m.wantEntries(rest[:n]) {
			state = true
		}
		rest = rest[n:]
	}
	if m.opt != nil && m.about.OptimizerSteps == nil && (state || !m.mayMiss(optimizerName)) {
		m.wrong.Missing = append(m.wrong.Missing, optimizerName)
	}
}

// optimizerName stands for the number of steps of an optimizer, which plain SGD has although it keeps no tensors.
const optimizerName = "optimizer"

// wantEntries looks for what an optimizer keeps for a parameter, and tells whether any of it is there. All of it may be missing,
// but not a part.
func (m *matching) wantEntries(entries []statePiece) bool {
	var missing []checkpoint.Key
	for i := range entries {
		e := &entries[i]
		if k := m.s.saved(m.loading, m.s.param(e), e.Key); !m.find(k, e.shape) {
			missing = append(missing, k)
		}
	}
	for _, k := range missing {
		if len(missing) == len(entries) {
			m.missing(k)
		} else {
			m.wrong.Missing = append(m.wrong.Missing, k.Name())
		}
	}
	return len(missing) < len(entries)
}

// missing notes a tensor that is not there.
func (m *matching) missing(k checkpoint.Key) {
	if !allowed(m.mayMiss, k) {
		m.wrong.Missing = append(m.wrong.Missing, k.Name())
	}
}

// find tells whether the checkpoint has a tensor, and compares shape and type with what they are to be.
func (m *matching) find(k checkpoint.Key, shape []int) bool {
	i, ok := m.index[k]
	if !ok {
		return false
	}
	m.used[i] = 1
	t := m.reader.Manifest().Tensors[i]
	floats := []safetensors.DType{safetensors.F64, safetensors.F32, safetensors.F16, safetensors.BF16}
	switch {
	case !slices.Equal(t.Shape, shape):
		m.wrong.Reshaped = append(m.wrong.Reshaped, fmt.Sprintf("%s %v -> %v", t.Name(), t.Shape, shape))
	case !slices.Contains(floats, t.DType):
		m.wrong.Reshaped = append(m.wrong.Reshaped, fmt.Sprintf("%s %v -> %v", t.Name(), t.DType, m.s.cfg.Precision.Compute))
	}
	return true
}

// exchange puts together what the ranks want, and what of it they have not found.
func (m *matching) exchange(ctx context.Context, g comm.Group) error {
	if err := g.AllReduce(comm.Of(m.used).Named("tensors in use"), comm.Max).Wait(ctx); err != nil {
		return err
	}
	mine, err := json.Marshal(m.wrong)
	if err != nil {
		return err
	}
	all, err := comm.GatherBytes(ctx, g, mine)
	if err != nil {
		return err
	}
	m.wrong.Missing, m.wrong.Reshaped = nil, nil
	for rank, text := range all {
		var theirs StateError
		if err := json.Unmarshal(text, &theirs); err != nil {
			return fmt.Errorf("what rank %d has not found: %w", rank, err)
		}
		m.wrong.Missing = union(m.wrong.Missing, theirs.Missing)
		m.wrong.Reshaped = union(m.wrong.Reshaped, theirs.Reshaped)
	}
	return nil
}

// union appends to a what of b is not in it.
func union(a, b []string) []string {
	known := make(map[string]bool, len(a))
	for _, name := range a {
		known[name] = true
	}
	for _, name := range b {
		if !known[name] {
			a = append(a, name)
		}
	}
	return a
}

// leave looks for tensors that no rank wants. Without an optimizer, nobody expects that its state is of use, and where there were
// more ranks than now, nor that their buffers are.
func (m *matching) leave() {
	buffers := make(map[string]bool)
	for i, p := range m.s.trace.params {
		if p.Buffer {
			buffers[m.naming.names[i]] = true
		}
	}
	for i, t := range m.reader.Manifest().Tensors {
		switch {
		case m.used[i] != 0, t.Entry != "" && m.opt == nil, t.Owner != checkpoint.Shared && buffers[t.Param] && t.Entry == "":
		case !allowed(m.mayBeExtra, t.Key):
			m.wrong.Extra = append(m.wrong.Extra, t.Name())
		}
	}
}

// allowed asks a function of AllowMissing or AllowExtra about a tensor of a checkpoint: by its name there, and by the name
// without the rank whose tensor it is.
func allowed(match func(string) bool, k checkpoint.Key) bool {
	name := k.Name()
	k.Owner = checkpoint.Shared
	return match(name) || match(k.Name())
}
