package fsdp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/safetensors"
	"github.com/gofsdp/gofsdp/optim"
)

// Import gives parameters and buffers the values in a file of the format safetensors, of [Sharded.Export] or another program. Every
// rank opens it and reads no more than the parts that it owns, or, of a matrix that lies transposed there, what is between them. Any
// type of floats is converted to that of the computation.
//
// [Rename] and [Transpose] say how the model's parameters appear in the file. Names, shapes and types are checked first: what does
// not fit is a *StateError on every rank, which names all of it, and changes nothing; [AllowMissing] and [AllowExtra] make
// exceptions. An error in the middle of reading leaves the model with a part of the values: it refuses passes, steps and Save
// until an Import or Load succeeds, and the optimizer until one with it does.
//
// [WithOptimizer] reads the state of an optimizer, too, which an Export with that option has written. The entries of one parameter
// are there together or not at all; where they may be missing the optimizer keeps its own. The number of its steps goes by the
// name "optimizer" there.
//
// Buffers of all ranks become those of the file. Gradients are dropped, and a Forward that waits for its Backward; while Hold has
// put one aside Import fails.
func (s *Sharded) Import(ctx context.Context, path string, opts ...StateOption) error {
	m := &importer{s: s, path: path}
	return errors.Join(m.run(ctx, opts), m.close())
}

// An importer is a file that is read.
type importer struct {
	stateOptions
	s      *Sharded
	path   string
	naming naming
	pieces []statePiece
	file   checkpoint.Handle
	header *safetensors.Header
	counts *optimizerCounts // nil if the file has none
	found  map[string]bool  // names of the tensors that are read, by any rank
}

func (m *importer) run(ctx context.Context, opts []StateOption) error {
	s, r := m.s, ranks.Ask{Call: "Import"}
	if err := s.agree(ctx, r, m.prepare(opts)); err != nil {
		return err
	}
	l, err := s.listed(ctx, r.Call, &m.naming, m.opt)
	if err != nil {
		return err
	}
	if err = m.open(); err == nil {
		err = ranks.Guarded(func() error { return m.match(l) })
	}
	r.Schedule = m.sum()
	if err := s.agree(ctx, r, err); err != nil {
		return err
	}
	if err := s.discardLast(ctx); err != nil { // gathers for its backward may be reading what is about to change
		return err
	}
	s.ZeroGrad()
	s.tear("an Import of "+m.path, m.counts != nil)
	err = s.team.Busy(ctx, m.read)
	if err := s.agree(ctx, ranks.Ask{Call: "Import"}, err); err != nil {
		s.torn = fmt.Errorf("%w: %w", s.torn, err)
		return err
	}
	s.mend(m.counts != nil)
	return nil
}

// prepare does what needs neither another rank nor the file.
func (m *importer) prepare(opts []StateOption) (err error) {
	s := m.s
	if s.err != nil {
		return s.err
	}
	if err := s.noneHeld(); err != nil {
		return err
	}
	if m.stateOptions, err = s.stateOptions(opts, "Rename", "Transpose", "AllowMissing", "AllowExtra", "WithOptimizer"); err != nil {
		return err
	}
	if m.naming, err = s.naming(&m.stateOptions); err != nil {
		return err
	}
	if _, err = s.memory(m.opt); err != nil {
		return err
	}
	m.pieces, err = s.pieces(m.opt)
	return err
}

// open reads the header.
func (m *importer) open() (err error) {
	if m.path == "" {
		return errors.New("no file is named")
	}
	if m.file, err = m.fs.Open(m.path); err != nil {
		return err
	}
	size, err := m.file.Size()
	if err != nil {
		return err
	}
	if m.header, err = safetensors.ReadHeader(m.file, size); err != nil {
		return fmt.Errorf("%s: %w", m.path, err)
	}
	if text, ok := m.header.Metadata[optimizerKey]; ok && m.opt != nil {
		if m.counts, err = parseCounts(text); err != nil {
			return fmt.Errorf("%s: metadata %q: %w", m.path, optimizerKey, err)
		}
	}
	return nil
}

// has tells whether there is a count for a parameter.
func (c *optimizerCounts) has(param string) bool {
	_, ok := c.Updates[param]
	return ok
}

// parseCounts decodes the metadata of an optimizer.
func parseCounts(text string) (*optimizerCounts, error) {
	var c optimizerCounts
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return nil, err
	}
	least := c.Steps
	for _, n := range c.Updates {
		least = min(least, n)
	}
	if least < 0 {
		return nil, fmt.Errorf("an optimizer has made %d steps", least)
	}
	return &c, nil
}

// match compares the file with what the model and the optimizer have. It returns a *StateError if they do not fit.
func (m *importer) match(l *listing) error {
	e := &StateError{Where: "file " + m.path}
	m.found = make(map[string]bool)
	used, entries := make(map[string]bool), false
	for rest := l.tensors; len(rest) > 0; {
		n := 1 // what belongs together: a value, or all that the optimizer keeps for a parameter
		for rest[0].Entry != "" && n < len(rest) && rest[n].Entry != "" {
			n++
		}
		m.want(rest[:n], e, used)
		entries = entries || rest[0].Entry != "" && m.found[m.naming.of(&rest[0])]
		rest = rest[n:]
	}
	if m.opt != nil && m.counts == nil && (entries || !m.mayMiss(optimizerName)) {
		e.Missing = append(e.Missing, optimizerName)
	}
	for _, t := range m.header.Tensors {
		if !used[t.Name] && !m.mayBeExtra(t.Name) {
			e.Extra = append(e.Extra, t.Name)
		}
	}
	return e.orNil()
}

// want looks for tensors that are there together or not at all.
func (m *importer) want(tensors []stateTensor, e *StateError, used map[string]bool) {
	var missing []string
	forbidden := false
	for i := range tensors {
		t := &tensors[i]
		name, shape := m.naming.of(t), m.naming.shape(t)
		have, ok := m.header.Lookup(name)
		used[name] = true
		switch {
		case !ok:
			missing = append(missing, name)
			forbidden = forbidden || !allowed(m.mayMiss, checkpoint.Key{Param: m.naming.names[t.param], Entry: t.Entry, Owner: t.Owner})
		case !slices.Equal(squeezed(have.Shape), squeezed(shape)):
			e.Reshaped = append(e.Reshaped, fmt.Sprintf("%s %v -> %v", name, have.Shape, shape))
		case !isFloat(have.DType):
			e.Reshaped = append(e.Reshaped, fmt.Sprintf("%s of %s -> of floats", name, have.DType))
		case t.Entry != "" && m.counts != nil && !m.counts.has(m.naming.param(t)):
			e.Missing = append(e.Missing, fmt.Sprintf("%s's number of updates", name))
		default:
			m.found[name] = true
		}
	}
	if len(missing) > 0 && (forbidden || len(missing) < len(tensors)) {
		e.Missing = append(e.Missing, missing...)
	}
}

// isFloat tells whether elements of a type can be converted.
func isFloat(t safetensors.DType) bool {
	return t == safetensors.F32 || t == safetensors.F64 || t == safetensors.BF16 || t == safetensors.F16
}

// sum is a number that ranks share if they have the same file before them and are about to read the same of it.
func (m *importer) sum() uint64 {
	if m.header == nil {
		return 0
	}
	words := []string{string(m.header.Encode())}
	for _, t := range m.header.Tensors {
		if m.found[t.Name] {
			words = append(words, t.Name)
		}
	}
	return textHash(words)
}

// read reads this rank's parts: values to where they lie, and the entries of one parameter at a time to memory of their own, for
// the optimizer to adopt.
func (m *importer) read(ctx context.Context) error {
	r := &tensorReader{file: m.file, as: m.s.cfg.Precision.Compute.inFile()}
	for rest := m.pieces; len(rest) > 0; {
		n := 1
		for rest[0].Entry != "" && n < len(rest) && rest[n].Param == rest[0].Param {
			n++
		}
		var entries []optim.Entry
		for i := range rest[:n] {
			p := &rest[i]
			t, ok := m.header.Lookup(m.naming.of(m.tensor(p)))
			if !ok {
				continue // match has let it pass
			}
			dst := p.data
			if p.Entry != "" {
				v := m.s.vec(len(p.data) / r.as.Size())
				dst = elementBytes(v)
				entries = append(entries, optim.Entry{
					Param: p.Param, Name: p.Entry, Shape: p.shape, Offset: p.offset, Steps: m.counts.Updates[m.naming.param(m.tensor(p))], Data: v,
				})
			}
			if err := r.read(ctx, t, dst, p.offset, m.naming.cols(m.tensor(p))); err != nil {
				return fmt.Errorf("%s: %w", m.path, err)
			}
		}
		if len(entries) > 0 {
			if err := m.opt.Adopt(m.counts.Steps, entries); err != nil {
				return err
			}
		}
		rest = rest[n:]
	}
	if m.counts != nil {
		return m.opt.Adopt(m.counts.Steps, nil) // also where this rank owns nothing, or the optimizer has no entries
	}
	return nil
}

// tensor returns the tensor that a piece of this rank is of. A buffer has the plain name in files, which every rank reads.
func (m *importer) tensor(p *statePiece) *stateTensor {
	t := &stateTensor{Key: p.Key, param: m.s.trace.byName[p.Param], shape: p.shape}
	if m.s.groups[p.group].Kind.Buffer {
		t.Owner = checkpoint.Shared
	}
	return t
}

// close closes the file.
func (m *importer) close() error {
	if m.file == nil {
		return nil
	}
	if err := m.file.Close(); err != nil {
		return fmt.Errorf("fsdp: rank %d: Import: %w", m.s.cfg.Group.Rank(), err)
	}
	return nil
}
