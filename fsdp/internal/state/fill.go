package state

import (
	"context"
	"io"

	"github.com/gofsdp/gofsdp/optim"
)

// A Filling is a checkpoint or file that state is read from. Every rank reads what it has a part
// of, straight to where it belongs.
type Filling struct {
	s    *Store
	opt  optim.Optimizer // nil if no optimizer is read
	own  []Piece
	n    *naming
	m    *matching
	read func(ctx context.Context, at int, p *Piece) error // reads a part of tensor at in m.have
	file io.Closer

	steps  *int          // of the optimizer, nil if they are not there
	groups []optim.Group // of the optimizer, as far as they are there
	regrouping
}

// Optimizer tells whether Run changes an optimizer, too.
func (f *Filling) Optimizer() bool { return f.opt != nil && f.steps != nil }

// prepare does what needs neither another rank nor the file.
func (f *Filling) prepare(o *Options) (err error) {
	if f.n, err = o.naming(f.s.Layout); err == nil {
		f.own, err = f.s.pieces(f.opt)
	}
	return err
}

// match compares what is there with what the model and the optimizer have.
func (f *Filling) match(where string, list []Tensor) (err error) {
	f.m.naming, f.m.compute, f.m.counted = f.n, f.s.Compute, f.steps != nil
	if f.opt != nil {
		f.regrouping, err = f.s.regroup(f.opt, f.groups, f.n, f.m.options.TakeSettings)
	}
	if err == nil {
		_, err = f.m.match(where, list, f.opt != nil, f.others)
	}
	return err
}

// Run reads the state. An error is one on every rank: then some of it may have changed.
func (f *Filling) Run(ctx context.Context) error { return busy(ctx, f.s.Team, nil, f.fill) }

// fill reads this rank's parts.
func (f *Filling) fill(ctx context.Context) error {
	var adopted []Piece
	for i := range f.own {
		p := &f.own[i]
		at, ok := f.m.index[f.m.key(&p.Tensor)]
		if !ok {
			continue // it may be missing
		}
		if err := f.read(ctx, at, p); err != nil {
			return err
		}
		if p.Entry != "" {
			p.Steps = f.m.have[at].Steps
			adopted = append(adopted, *p)
		}
	}
	if !f.Optimizer() {
		return nil
	}
	return f.s.adopt(f.opt, *f.steps, adopted, f.apply)
}

// Close closes the file.
func (f *Filling) Close() error {
	if f.file == nil {
		return nil
	}
	err := f.file.Close()
	f.file = nil
	return err
}
