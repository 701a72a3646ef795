package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/safetensors"
	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/shard"
)

// A Spreading is tensors that one rank has whole: each goes to every rank, which keeps its part.
type Spreading struct {
	s    *Store
	root int
	list []Tensor // that change
	own  []Piece
	from func(t *Tensor, room []byte) []byte // on root: the elements, which may be written to room
	ring *ring

	opt   optim.Optimizer // nil if there are only values
	steps int
	regrouping
}

// rooted agrees on the root, and on the error of local.
func (s *Store) rooted(ctx context.Context, root int, local func() error) error {
	return s.prepare(ctx, 0, func() error {
		if root < 0 || root >= s.world() {
			return fmt.Errorf("rank %d is not one of the %d ranks", root, s.world())
		}
		return local()
	})
}

// PlanSet prepares to give parameters and buffers the values that rank root has. On root, check
// returns an error if they are invalid, and elements returns the elements of a tensor, or nil if it
// keeps its value.
func (s *Store) PlanSet(ctx context.Context, root int, check func(list []Tensor) error, elements func(name string) []byte) (*Spreading, error) {
	if err := s.rooted(ctx, root, func() error { return nil }); err != nil {
		return nil, err
	}
	f := &Spreading{s: s, root: root, own: s.shares(s.Memory.Value)}
	f.from = func(t *Tensor, _ []byte) []byte { return elements(t.Name()) }
	list := values(s.Layout)
	err := distinct(list, (*Tensor).Name)
	if err == nil && s.rank() == root {
		err = check(list)
	}
	if err == nil {
		f.ring, err = s.newRing(list)
	}
	if err := s.Team.Agree(ctx, 0, err); err != nil {
		f.Close()
		return nil, err
	}
	has := make([]byte, len(list))
	for i := range list {
		if s.rank() == root && elements(list[i].Name()) != nil {
			has[i] = 1
		}
	}
	if err := s.Team.Group().Broadcast(comm.Of(has).Named("names"), root).Wait(ctx); err != nil {
		f.Close()
		return nil, s.Team.Fail(err)
	}
	for i := range list {
		if has[i] != 0 {
			f.list = append(f.list, list[i])
		}
	}
	if len(f.list) == 0 { // on every rank
		if slices.ContainsFunc(list, func(t Tensor) bool { return elements(t.Name()) != nil }) {
			err = fmt.Errorf("root is rank %d, which has no tensors, but this rank has some: set root to the rank with the tensors", root)
		}
		if err := s.Team.Agree(ctx, 0, err); err != nil {
			f.Close()
			return nil, err
		}
	}
	return f, nil
}

// PlanSetOptim prepares to give the optimizers of all ranks the state that rank root has in full.
func (s *Store) PlanSetOptim(ctx context.Context, root int, opt optim.Optimizer, full *optim.FullState, o *Options) (*Spreading, error) {
	f := &Spreading{s: s, root: root, opt: opt}
	var n *naming
	var sheet []byte
	err := s.rooted(ctx, root, func() (err error) {
		if opt == nil {
			return errNoOptimizer
		}
		if f.own, err = s.pieces(opt); err != nil {
			return err
		}
		if n, err = o.naming(s.Layout); err == nil && s.rank() == root {
			sheet, err = newSheet(full)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := s.same(ctx, "options", n.text); err != nil {
		return nil, err
	}
	list, _, err := s.listed(ctx, opt, f.own, false)
	if err != nil {
		return nil, err
	}
	if sheet, err = s.Team.Tell(ctx, root, sheet); err != nil {
		return nil, s.Team.Fail(err)
	}
	err = f.match(entriesOf(list), sheet, n, o)
	f.from = func(t *Tensor, room []byte) []byte {
		return convert(room, s.Compute, full.Params[n.param(t)].Entries[t.Entry])
	}
	if err == nil {
		f.ring, err = s.newRing(f.list)
	}
	var chosen []string
	for i := range f.list {
		chosen = append(chosen, n.of(&f.list[i]))
	}
	if err := s.Team.Agree(ctx, Hash(chosen...), err); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// match fills list with the tensors that the full state has, and the numbers of their updates.
func (f *Spreading) match(entries []Tensor, text []byte, n *naming, o *Options) error {
	var sh sheet
	if err := json.Unmarshal(text, &sh); err != nil {
		return fmt.Errorf("rank %d's description of the full state is invalid: %w", f.root, err)
	}
	if err := distinct(entries, n.of); err != nil {
		return err
	}
	f.steps = sh.Steps
	m := &matching{options: o, naming: n, compute: f.s.Compute, counted: true, have: sh.Have, key: n.fileKey}
	var err error
	if f.regrouping, err = f.s.regroup(f.opt, sh.Groups, n, o.RestoreHyperparameters); err != nil {
		return err
	}
	at, err := m.match(fmt.Sprintf("the optimizer's state on rank %d", f.root), entries, true, f.others)
	for i, t := range entries {
		if at[i] >= 0 {
			t.Steps = m.have[at[i]].Steps
			f.list = append(f.list, t)
		}
	}
	return err
}

// Hash returns a hash of words, with 63 bits.
func Hash(words ...string) uint64 {
	h := fnv.New64a()
	for _, w := range words {
		fmt.Fprintf(h, "%q", w)
	}
	return h.Sum64() >> 1
}

// A sheet lists the content of the full state of an optimizer.
type sheet struct {
	Steps  int
	Have   []found
	Groups []optim.Group
}

// newSheet describes a full state as bytes, or returns an error if it is invalid.
func newSheet(full *optim.FullState) ([]byte, error) {
	if full == nil {
		return nil, errors.New("the full state is nil")
	}
	if full.Steps < 0 {
		return nil, fmt.Errorf("the number of steps in the full state is %d: it must not be negative", full.Steps)
	}
	sh := sheet{Steps: full.Steps, Groups: full.Groups}
	for _, name := range slices.Sorted(maps.Keys(full.Params)) {
		p := full.Params[name]
		whole := shard.Param{Name: name, Shape: p.Shape}
		if _, err := shard.New([]shard.Param{whole}, 1, 1); err != nil {
			return nil, fmt.Errorf("the full state: %w", err)
		}
		for _, entry := range slices.Sorted(maps.Keys(p.Entries)) {
			v := p.Entries[entry]
			zero := !slices.ContainsFunc(v.F32, func(x float32) bool { return x != 0 }) && !slices.ContainsFunc(v.F64, func(x float64) bool { return x != 0 })
			switch {
			case v.Len() != whole.Len() || v.F32 != nil && v.F64 != nil:
				return nil, fmt.Errorf("the full state has %d float32 and %d float64 elements of %s of parameter %s %v", len(v.F32), len(v.F64), entry, name, p.Shape)
			case p.Steps < 0 || p.Steps == 0 && !zero:
				return nil, fmt.Errorf("the full state has %s of parameter %s that is not zero after %d updates", entry, name, p.Steps)
			}
			k := checkpoint.Key{Param: name, Entry: entry, Owner: checkpoint.Shared}
			k = checkpoint.Key{Param: k.Name(), Owner: checkpoint.Shared}
			sh.Have = append(sh.Have, found{Key: k, Shape: p.Shape, DType: safetensors.F32, Steps: p.Steps})
		}
	}
	text, err := json.Marshal(sh)
	if err != nil {
		return nil, fmt.Errorf("the settings in the full state: %w", err)
	}
	return text, nil
}

// Run sends the tensors, one after the other. If an optimizer refuses a tensor, that is an error on
// every rank.
func (f *Spreading) Run(ctx context.Context) error {
	own := f.s.parts(f.own)
	var adopted []Piece
	start := func(i int) transfer { return f.send(f.list[i : i+1]) }
	err := f.s.pipeline(ctx, len(f.list), underWay, start, func(_ context.Context, tr *transfer) error {
		t := &tr.tensors[0]
		if p := own.of(t.Index, t.Entry); p != nil && mine(f.s.Layout, t) {
			if err := p.put(f.s.Compute, tr.wholes[0]); err != nil {
				return err
			}
			if t.Entry != "" {
				p.Steps = t.Steps
				adopted = append(adopted, *p)
			}
		}
		return nil
	})
	if err != nil || f.opt == nil {
		return err
	}
	return f.s.Team.Agree(ctx, 0, f.s.adopt(f.opt, f.steps, adopted, f.apply))
}

// send issues the broadcast of a tensor.
func (f *Spreading) send(one []Tensor) transfer {
	t := &one[0]
	b := f.ring.room(t.Len() * f.s.Compute.Size())
	if f.s.rank() == f.root {
		b = f.from(t, b)
	}
	return transfer{tensors: one, wholes: [][]byte{b}, work: f.s.Team.Group().Broadcast(buffer(f.s.Compute, b, t.Name()), f.root)}
}

// Close gives the memory back.
func (f *Spreading) Close() { f.ring.close() }

// adopt gives an optimizer state that is already in its memory, and the number of its steps and
// updates. settle, unless it is nil, is called on success.
func (s *Store) adopt(opt optim.Optimizer, steps int, pieces []Piece, settle func()) error {
	entries := make([]optim.Entry, len(pieces))
	for i, p := range pieces {
		entries[i] = optim.Entry{
			Param: p.Param, Name: p.Entry, Shape: p.Shape, Offset: p.Offset, Steps: p.Steps, Data: p.Vec,
		}
	}
	err := ranks.Guarded("the optimizer's Adopt", func() error {
		return s.Memory.Lend(func() error { return opt.Adopt(steps, entries) })
	})
	if err == nil && settle != nil {
		settle()
	}
	return err
}
