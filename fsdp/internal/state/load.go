package state

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/optim"
)

// A Loading is a Filling from a checkpoint.
type Loading struct {
	Filling
	Path   string // of the checkpoint
	World  int    // ranks that wrote it
	Step   int
	About  Meta
	reader *checkpoint.Reader
}

// PlanLoad finds the last checkpoint in dir and opens it, on every rank. The error wraps
// checkpoint.ErrNone if there is none. It tells damaged, unless that is nil, about each that is not
// whole.
func (s *Store) PlanLoad(ctx context.Context, dir string, opt optim.Optimizer, o *Options, damaged func(path string, err error)) (*Loading, error) {
	l := &Loading{Filling: Filling{s: s, opt: opt}}
	err := s.prepare(ctx, 0, func() error {
		if err := l.prepare(o); err != nil {
			return err
		}
		if dir == "" {
			return errNoDirectory
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := l.plan(ctx, dir, o, damaged); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

var errNoDirectory = errors.New("no directory is named")

func (l *Loading) plan(ctx context.Context, dir string, o *Options, damaged func(string, error)) error {
	s := l.s
	text := fmt.Sprintf("directory %s\n%s\n%s", dir, oneOrNone(l.opt), l.n.text)
	if err := s.same(ctx, "arguments of Load", text); err != nil {
		return err
	}
	if err := l.find(ctx, dir, o.FS, damaged); err != nil {
		return err
	}
	if err := busy(ctx, s.Team, func(ctx context.Context) error { return l.open(ctx, o) }); err != nil {
		return err
	}
	if err := s.same(ctx, "manifest in "+l.Path, fmt.Sprintf("CRC-32C %08x", l.reader.Sum())); err != nil {
		return err
	}
	list, _, err := s.listed(ctx, l.opt, l.own, false)
	if err != nil {
		return err
	}
	return s.Team.Agree(ctx, 0, l.match("the checkpoint "+l.Path, l.buffers(list)))
}

// find looks for the checkpoint on rank 0, and tells the others.
func (l *Loading) find(ctx context.Context, dir string, fs checkpoint.FS, damaged func(string, error)) error {
	var none string // why there is no checkpoint
	err := busy(ctx, l.s.Team, func(ctx context.Context) (err error) {
		if l.s.rank() != 0 {
			return nil
		}
		if dir, err = filepath.Abs(dir); err != nil {
			return err
		}
		l.Path, err = checkpoint.Latest(ctx, fs, dir)
		if errors.Is(err, checkpoint.ErrNone) { // the other ranks are to know it as that
			none, err = err.Error(), nil
		}
		if damaged != nil {
			list, _ := checkpoint.List(ctx, fs, dir) // what is wrong with dir, Latest says
			for _, e := range list {
				if e.Err != nil && !errors.Is(e.Err, checkpoint.ErrUnfinished) {
					damaged(e.Path, e.Err)
				}
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, text := range []*string{&none, &l.Path} {
		b, err := l.s.Team.Tell(ctx, 0, []byte(*text))
		if err != nil {
			return l.s.Team.Fail(fmt.Errorf("learning the path of the checkpoint: %w", err))
		}
		*text = string(b)
	}
	if none != "" {
		return &noneError{none}
	}
	return nil
}

// noneError is checkpoint.ErrNone in the words of the rank that has looked.
type noneError struct{ message string }

func (e *noneError) Error() string { return e.message }
func (e *noneError) Unwrap() error { return checkpoint.ErrNone }

// open opens the checkpoint with the files that this rank is going to read: from here on another
// job may remove them.
func (l *Loading) open(ctx context.Context, o *Options) (err error) {
	if l.reader, err = checkpoint.OpenReader(ctx, o.FS, l.Path); err != nil {
		return err
	}
	l.file = l.reader
	m := l.reader.Manifest()
	if l.About, err = parseMeta(m.Meta, m.World); err != nil {
		return err
	}
	l.World, l.Step, l.steps = m.World, m.Step, l.About.OptimizerSteps
	buffers := make(map[string]bool) // by name there
	for i, p := range l.s.Layout.Model.Params {
		if p.Buffer {
			buffers[l.n.names[i]] = true
		}
	}
	l.m = &matching{options: o, key: l.key}
	for _, t := range m.Tensors {
		idle := t.Entry != "" && l.opt == nil || t.Owner != checkpoint.Shared && buffers[t.Param] && t.Entry == ""
		l.m.have = append(l.m.have, found{Key: t.Key, Shape: t.Shape, DType: t.DType, Steps: t.Steps, idle: idle})
	}
	for i := range l.own {
		p := &l.own[i]
		if err := l.reader.Hold(ctx, l.key(&p.Tensor), p.Offset, p.Vec.Len()); err != nil {
			return err
		}
	}
	l.read = func(ctx context.Context, at int, p *Piece) error {
		err := replace(p.Vec, func(to []byte) error {
			return l.reader.Read(ctx, l.m.have[at].Key, p.Offset, to, fileType(l.s.Compute))
		})
		if err != nil {
			return fmt.Errorf("checkpoint %s: %w", l.Path, err)
		}
		return nil
	}
	return nil
}

// key returns what a tensor is called in the checkpoint. A rank beyond those that saved takes the
// buffers of one of these.
func (l *Loading) key(t *Tensor) checkpoint.Key {
	k := l.n.key(t)
	if k.Owner != checkpoint.Shared && l.s.Layout.Model.Params[t.Index].Buffer {
		k.Owner %= l.World
	}
	return k
}

// buffers returns a list with the buffers of every rank that saved, as far as there are ranks now.
func (l *Loading) buffers(list []Tensor) (all []Tensor) {
	for _, t := range list {
		if !l.s.Layout.Model.Params[t.Index].Buffer {
			all = append(all, t)
			continue
		}
		for t.Owner = range min(l.World, l.s.world()) {
			all = append(all, t)
		}
	}
	return all
}
