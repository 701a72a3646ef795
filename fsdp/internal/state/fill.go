package state

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/gofsdp/gofsdp/optim"
)

// A Filling is a checkpoint or file that state is read from. Every rank reads the parts that it
// owns, directly into their place.
type Filling struct {
	s    *Store
	opt  optim.Optimizer // nil if no optimizer is read
	own  []Piece
	n    *naming
	m    *matching
	read func(ctx context.Context, at int, p *Piece) error // reads a part of tensor at in m.have
	file io.Closer

	steps  *int          // of the optimizer, nil if the file has none
	groups []optim.Group // of the optimizer, as far as the file has them
	regrouping
}

// Optimizer reports whether Run changes an optimizer, too.
func (f *Filling) Optimizer() bool { return f.opt != nil && f.steps != nil }

// prepare does the work that needs neither another rank nor the file.
func (f *Filling) prepare(o *Options) (err error) {
	if o.RestoreHyperparameters && f.opt == nil {
		return errors.New("option RestoreHyperparameters needs an optimizer: give the call the optimizer whose settings are to be restored")
	}
	if f.n, err = o.naming(f.s.Layout); err == nil {
		f.own, err = f.s.pieces(f.opt)
	}
	return err
}

// match compares the file with the model and the optimizer.
func (f *Filling) match(where string, list []Tensor) (err error) {
	f.m.naming, f.m.compute, f.m.counted = f.n, f.s.Compute, f.steps != nil
	if f.opt != nil {
		f.regrouping, err = f.s.regroup(f.opt, f.groups, f.n, f.m.options.RestoreHyperparameters)
	}
	if err == nil {
		_, err = f.m.match(where, list, f.opt != nil, f.others)
	}
	return err
}

// Run reads the state. An error is an error on every rank: some of the state may have changed then.
func (f *Filling) Run(ctx context.Context) error {
	var adopted []Piece
	err := busy(ctx, f.s.Team, f.s.Files, func(ctx context.Context) (err error) {
		adopted, err = f.fill(ctx)
		return err
	})
	if err != nil || !f.Optimizer() {
		return err
	}
	return busy(ctx, f.s.Team, nil, func(context.Context) error { return f.s.adopt(f.opt, *f.steps, adopted, f.apply) })
}

// fill reads this rank's parts, and returns the parts of the optimizer.
func (f *Filling) fill(ctx context.Context) (adopted []Piece, err error) {
	for i := range f.own {
		p := &f.own[i]
		at, ok := f.m.index[f.m.key(&p.Tensor)]
		if !ok || f.m.have[at].lacked { // it may be missing
			if err := f.make(ctx, p); err != nil {
				return nil, err
			}
			continue
		}
		if err := f.read(ctx, at, p); err != nil {
			return nil, err
		}
		if p.Entry != "" {
			p.Steps = f.m.have[at].Steps
			adopted = append(adopted, *p)
		}
	}
	return adopted, nil
}

// make computes this rank's part of a tensor that the file lacks, if it has a Maker.
func (f *Filling) make(ctx context.Context, p *Piece) error {
	name := f.n.of(&p.Tensor)
	maker := f.m.options.Make[name]
	if maker == nil || p.Entry != "" {
		return nil
	}
	return replace(p.Vec, func(b []byte) error {
		var made [1 << 12]float64
		to := host(f.s.Compute, b)
		for at := 0; at < to.Len(); {
			part := made[:min(len(made), to.Len()-at)]
			if err := errors.Join(context.Cause(ctx), maker(p.Offset+at, part)); err != nil {
				return fmt.Errorf("making %s: %w", name, err)
			}
			for i, x := range part {
				if to.F64 != nil {
					to.F64[at+i] = x
				} else {
					to.F32[at+i] = float32(x)
				}
			}
			at += len(part)
		}
		return nil
	})
}

// Close closes the file. It was only read, so nothing is lost if closing does not end in time.
func (f *Filling) Close() error {
	if done, left := f.s.Files.Left(); left != nil { // it may have the file
		go func() {
			<-done
			_ = f.close()
		}()
		return nil
	}
	if f.file == nil {
		return nil
	}
	return f.s.Files.short(f.close)
}

func (f *Filling) close() error {
	if f.file == nil {
		return nil
	}
	err := f.file.Close()
	f.file = nil
	return err
}
