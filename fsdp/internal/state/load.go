package state

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/launch"
	"github.com/gofsdp/gofsdp/optim"
)

// A Loading is a Filling from a checkpoint.
type Loading struct {
	Filling
	Path   string // of the checkpoint
	World  int    // ranks that wrote it
	Step   int
	About  Meta
	Passed []checkpoint.Entry // on rank 0, newer ones that are damaged, the newest first
	dir    string             // given to Load, as an absolute path of rank 0
	fs     checkpoint.FS
	reader *checkpoint.Reader
}

// PlanLoad finds the last checkpoint in dir and opens it, on every rank. The error wraps
// checkpoint.ErrNone if there is none.
func (s *Store) PlanLoad(ctx context.Context, dir string, opt optim.Optimizer, o *Options) (*Loading, error) {
	l := &Loading{Filling: Filling{s: s, opt: opt}, dir: dir}
	err := s.prepare(ctx, 0, func() error {
		if dir == "" {
			return errNoDirectory
		}
		if err := o.settleOlder(); err != nil {
			return err
		}
		l.fs = s.Files.on(o.FS)
		return l.prepare(o)
	})
	if err != nil {
		return nil, err
	}
	if err := l.plan(ctx, o); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

var errNoDirectory = errors.New("the directory is empty: give the directory of the checkpoints")

func (l *Loading) plan(ctx context.Context, o *Options) error {
	s := l.s
	text := fmt.Sprintf("directory %s\n%s\n%s", l.dir, oneOrNone(l.opt), l.n.text)
	if err := s.same(ctx, "arguments of Load", text); err != nil {
		return err
	}
	if err := l.choose(ctx, o); err != nil {
		return err
	}
	if err := s.same(ctx, "manifest in "+l.Path, fmt.Sprintf("CRC-32C %08x", l.reader.Sum())); err != nil {
		return err
	}
	list, _, err := s.listed(ctx, l.opt, l.own, false)
	if err == nil && len(l.About.Base) > 0 {
		err = l.sumFrozen(ctx)
	}
	if err != nil {
		return err
	}
	return s.Team.Agree(ctx, 0, l.match("the checkpoint "+l.Path, l.buffers(list)))
}

// sumFrozen computes the checksums of the model's frozen parameters that the checkpoint describes.
func (l *Loading) sumFrozen(ctx context.Context) error {
	described := make(map[checkpoint.Key]bool)
	for i := range l.About.Base {
		described[l.About.Base[i].key()] = true
	}
	list := slices.DeleteFunc(l.s.base(), func(t Tensor) bool { return !described[l.key(&t)] })
	if err := l.s.Team.Agree(ctx, 0, l.s.Draw()); err != nil {
		return err
	}
	sums, err := l.s.sumBase(ctx, list, l.own)
	if err != nil {
		return err
	}
	l.m.frozen = make(map[checkpoint.Key]uint32, len(list))
	for i := range list {
		l.m.frozen[l.key(&list[i])] = sums[i]
	}
	return nil
}

// choose opens the checkpoint that rank 0 chooses. While a rank finds damage there, and policy
// allows it, rank 0 chooses an older one.
func (l *Loading) choose(ctx context.Context, o *Options) error {
	var rejected *checkpoint.Entry
	for {
		if err := l.find(ctx, o.policy(), rejected); err != nil {
			return err
		}
		damage, err := l.inspect(ctx, o)
		if err != nil || damage == nil {
			return err
		}
		rejected = &checkpoint.Entry{Path: l.Path, Err: damage}
	}
}

// find chooses the checkpoint on rank 0, and sends the result to the others.
func (l *Loading) find(ctx context.Context, p checkpoint.Policy, rejected *checkpoint.Entry) error {
	var none string // why there is no checkpoint
	err := busy(ctx, l.s.Team, l.s.Files, func(ctx context.Context) (err error) {
		if l.s.rank() != 0 {
			return nil
		}
		if l.dir, err = filepath.Abs(l.dir); err != nil {
			return err
		}
		found, err := checkpoint.Choose(ctx, l.fs, l.dir, p, rejected)
		if errors.Is(err, checkpoint.ErrNone) { // the other ranks must get it as ErrNone
			none, err = err.Error()+": check the path; before the first Save there is none, which is fsdp.ErrNoCheckpoint", nil
		}
		l.Path, l.Passed = found.Path, append(l.Passed, found.Passed...)
		return Lasting(err)
	})
	if err != nil {
		return err
	}
	for _, text := range []*string{&none, &l.dir, &l.Path} {
		b, err := l.s.Team.Tell(ctx, 0, []byte(*text))
		if err != nil {
			return l.s.Team.Fail(fmt.Errorf("receiving the path of the checkpoint from rank 0: %w", err))
		}
		*text = string(b)
	}
	if none != "" {
		return &noneError{none}
	}
	return nil
}

// inspect opens the checkpoint on every rank. Damage that policy skips is not an error: every rank
// gets it.
func (l *Loading) inspect(ctx context.Context, o *Options) (damage, err error) {
	skip := o.policy() == checkpoint.SkipDamaged
	err = l.s.Team.Busy(ctx, l.s.Files, func(ctx context.Context) error {
		err := l.open(ctx, o)
		if !skip {
			err = l.refuse(ctx, err)
		}
		return err
	})
	if skip && damaged(err) {
		damage, err = err, nil
	}
	if err := l.s.Team.Agree(ctx, 0, err); err != nil || !skip {
		return nil, err
	}
	return l.firstDamage(ctx, damage)
}

// firstDamage returns the damage that the lowest rank has found, on every rank, or nil.
func (l *Loading) firstDamage(ctx context.Context, mine error) (damage, err error) {
	g := l.s.Team.Group()
	text, first := "", []int64{int64(g.Size())}
	if mine != nil {
		text, first[0] = mine.Error(), int64(g.Rank())
	}
	err = g.AllReduce(comm.Of(first).Named("damage"), comm.Min).Wait(ctx)
	if err == nil && first[0] == int64(g.Size()) {
		return nil, nil
	}
	var b []byte
	if err == nil {
		b, err = l.s.Team.Tell(ctx, int(first[0]), []byte(text))
	}
	if err != nil {
		return nil, l.s.Team.Fail(fmt.Errorf("exchanging reports of damage: %w", err))
	}
	return fmt.Errorf("rank %d: %s", first[0], b), nil
}

// refuse adds a remedy to an error about damage to the chosen checkpoint.
func (l *Loading) refuse(ctx context.Context, err error) error {
	if !damaged(err) {
		return err
	}
	if errors.Is(err, checkpoint.ErrNotFinite) {
		err = fmt.Errorf("%w; option AllowNotFinite accepts it", err)
	}
	_, err = checkpoint.Choose(ctx, l.fs, l.dir, checkpoint.SkipNone, &checkpoint.Entry{Path: l.Path, Err: err})
	return Lasting(err)
}

// damaged reports whether err says that the checkpoint is damaged, or that it has values that are
// not finite. Another start would get the same error.
func damaged(err error) bool {
	return errors.Is(err, checkpoint.ErrDamaged) || errors.Is(err, checkpoint.ErrNotFinite)
}

// Lasting adds advice to an error about damage: another start would get the same error, and an
// older checkpoint can be loaded.
func Lasting(err error) error {
	refused, ok := errors.AsType[*checkpoint.RefusedError](err)
	switch {
	case !ok && !damaged(err):
		return err
	case ok && refused.Older != "":
		err = fmt.Errorf("%w: to load it, set AllowOlder: new(true) or %[2]s=true, or run fsdprun -older", err, launch.AllowOlder)
	}
	return fmt.Errorf("%s: %w", launch.NoRestart, err)
}

// noneError is checkpoint.ErrNone with the message of rank 0.
type noneError struct{ message string }

func (e *noneError) Error() string { return e.message }
func (e *noneError) Unwrap() error { return checkpoint.ErrNone }

// open opens the checkpoint with the files that this rank will read: from here on another job may
// remove them.
func (l *Loading) open(ctx context.Context, o *Options) error {
	_ = l.close() // a damaged checkpoint, which was only read
	reader, err := checkpoint.OpenReader(ctx, l.fs, l.Path)
	if err != nil {
		return err
	}
	l.reader, l.file = reader, reader
	m := l.reader.Manifest()
	if l.About, err = parseMeta(m.Meta, m.World); err != nil {
		return err
	}
	l.World, l.Step, l.steps, l.groups = m.World, m.Step, l.About.OptimizerSteps, l.About.OptimizerGroups
	buffers := make(map[string]bool) // by name there
	for i, p := range l.s.Layout.Model.Params {
		if p.Buffer {
			buffers[l.n.as[i].name] = true
		}
	}
	l.m = &matching{options: o, key: l.key}
	for _, t := range m.Tensors {
		idle := t.Entry != "" && l.opt == nil || t.Owner != checkpoint.Shared && buffers[t.Param] && t.Entry == ""
		l.m.have = append(l.m.have, found{Key: t.Key, Shape: t.Shape, DType: t.DType, Steps: t.Steps, idle: idle})
	}
	for i := range l.About.Base {
		b := &l.About.Base[i]
		if _, both := m.Lookup(b.key()); both {
			return fmt.Errorf("checkpoint %s: the manifest lists %s both as saved and as frozen and not saved", l.Path, b.key().Name())
		}
		l.m.have = append(l.m.have, found{Key: b.key(), Shape: b.Shape, DType: fileType(l.s.Compute), lacked: true, sum: b.Sum})
	}
	for i := range l.own {
		p := &l.own[i]
		if o.policy() == checkpoint.SkipDamaged {
			err = l.reader.Check(ctx, l.key(&p.Tensor), p.Offset, p.Vec.Len(), l.values(o, p))
		} else {
			err = l.reader.Hold(ctx, l.key(&p.Tensor), p.Offset, p.Vec.Len())
		}
		if err != nil {
			return fmt.Errorf("checkpoint %s: %w", l.Path, err)
		}
	}
	l.read = func(ctx context.Context, at int, p *Piece) error {
		err := replace(p.Vec, func(to []byte) error {
			k, t := l.m.have[at].Key, fileType(l.s.Compute)
			if err := l.reader.Read(ctx, k, p.Offset, to, t); err != nil {
				return err
			}
			return l.values(o, p).Check(k.Name(), p.Offset, t, to)
		})
		if err != nil {
			return l.refuse(ctx, fmt.Errorf("checkpoint %s: %w", l.Path, err))
		}
		return nil
	}
	return nil
}

// values returns which values a part of the checkpoint may have.
func (l *Loading) values(o *Options, p *Piece) checkpoint.Values {
	k := l.key(&p.Tensor)
	return o.values(k.Name(), l.s.Layout.Model.Params[p.Index].Buffer && p.Entry == "")
}

// key returns the name of a tensor in the checkpoint. A rank beyond the saved ones takes the
// buffers of one of them.
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
