package state

import (
	"context"
	"errors"
	"fmt"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// PlanImport opens a file of the format safetensors, or all files of an index, on every rank.
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
	list, f.own = f.n.there(list), f.n.pieces(f.own)
	if err := distinct(list, f.n.of); err != nil {
		return err
	}
	files := &tensorFiles{fs: s.Files.on(o.FS)}
	f.file = files
	var hash uint64
	err = s.Team.Busy(ctx, s.Files, func(ctx context.Context) error { return files.open(ctx, path) })
	if err == nil {
		hash, err = files.hash(), f.describe(path, files, o)
	}
	if err == nil {
		err = f.match("file "+path, list)
	}
	return s.Team.Agree(ctx, hash, err)
}

// describe lists the tensors of the files, and makes the function that reads them.
func (f *Filling) describe(path string, files *tensorFiles, o *Options) (err error) {
	var counts optimizerCounts
	for _, h := range files.headers {
		text, ok := h.Metadata[countsKey]
		if !ok {
			continue
		}
		if counts, err = parseCounts(text); err != nil && f.opt != nil {
			return fmt.Errorf("%s: metadata %q: %w", path, countsKey, err)
		}
		f.steps, f.groups = &counts.Steps, counts.Groups
		break
	}
	f.m = &matching{options: o, key: f.n.fileKey}
	type place struct {
		file   int
		tensor safetensors.Tensor
	}
	var places []place // by index in f.m.have
	for i, h := range files.headers {
		for _, t := range h.Tensors {
			steps := counts.of(t.Name)
			f.m.have = append(f.m.have, found{
				Key: checkpoint.Key{Param: t.Name, Owner: checkpoint.Shared}, Shape: t.Shape, DType: t.DType,
				Steps: steps, idle: f.opt == nil && steps >= 0,
			})
			places = append(places, place{i, t})
		}
	}
	r := &tensorReader{as: fileType(f.s.Compute)}
	f.read = func(ctx context.Context, at int, p *Piece) error {
		from := places[at]
		r.file = files.handles[from.file]
		err := replace(p.Vec, func(to []byte) error {
			if err := r.read(ctx, from.tensor, to, p.Offset, f.n.cols(&p.Tensor)); err != nil {
				return err
			}
			buffer := f.s.Layout.Model.Params[p.Index].Buffer && p.Entry == ""
			return o.values(from.tensor.Name, buffer).Check(from.tensor.Name, p.Offset, r.as, to)
		})
		if errors.Is(err, checkpoint.ErrNotFinite) {
			err = fmt.Errorf("%w, as %v in the file and %v in the model; option AllowNotFinite accepts them", err, from.tensor.DType, r.as)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", files.paths[from.file], err)
		}
		return nil
	}
	return nil
}

var errNoFile = errors.New("the path is empty: give the path of a file, an index or a directory")
