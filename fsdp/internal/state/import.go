package state

import (
	"context"
	"errors"
	"fmt"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// PlanImport opens a file of the format safetensors on every rank.
func (s *Store) PlanImport(ctx context.Context, path string, o *Options) (*Filling, error) {
	f := &Filling{s: s, opt: o.Optimizer}
	if err := s.prepare(ctx, 0, func() error { return f.prepare(o) }); err != nil {
		return nil, err
	}
	if err := f.planImport(ctx, path, o); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (f *Filling) planImport(ctx context.Context, path string, o *Options) error {
	s := f.s
	if err := s.same(ctx, "options", f.n.text); err != nil {
		return err
	}
	list, _, err := s.listed(ctx, f.opt, f.own, false)
	if err != nil {
		return err
	}
	if err := distinct(list, f.n.of); err != nil {
		return err
	}
	var hash uint64
	h, err := f.openFile(path, o)
	if err == nil {
		hash = Hash(string(h.Encode()))
		err = f.match("file "+path, list)
	}
	return s.Team.Agree(ctx, hash, err)
}

// openFile reads the header.
func (f *Filling) openFile(path string, o *Options) (*safetensors.Header, error) {
	if path == "" {
		return nil, errNoFile
	}
	file, err := o.FS.Open(path)
	if err != nil {
		return nil, err
	}
	f.file = file
	size, err := file.Size()
	if err != nil {
		return nil, err
	}
	h, err := safetensors.ReadHeader(file, size)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var counts optimizerCounts
	if text, ok := h.Metadata[countsKey]; ok {
		if counts, err = parseCounts(text); err != nil && f.opt != nil {
			return nil, fmt.Errorf("%s: metadata %q: %w", path, countsKey, err)
		}
		f.steps, f.groups = &counts.Steps, counts.Groups
	}
	f.m = &matching{options: o, key: f.n.fileKey}
	for _, t := range h.Tensors {
		steps := counts.of(t.Name)
		f.m.have = append(f.m.have, found{
			Key: checkpoint.Key{Param: t.Name, Owner: checkpoint.Shared}, Shape: t.Shape, DType: t.DType,
			Steps: steps, idle: f.opt == nil && steps >= 0,
		})
	}
	r := &tensorReader{file: file, as: fileType(f.s.Compute)}
	f.read = func(ctx context.Context, at int, p *Piece) error {
		err := replace(p.Vec, func(to []byte) error { return r.read(ctx, h.Tensors[at], to, p.Offset, f.n.cols(&p.Tensor)) })
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return nil
	}
	return h, nil
}

var errNoFile = errors.New("no file is named")
