package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/optim"
)

// A writing is one rank's part in writing a checkpoint:
//
//	rank 0                              every rank
//	begins a draft, sends its path
//	                                    writes its parts into a file there
//	                                    sends rank 0 a record of the file
//	commits the draft with the manifest
//
// After each step ranks agree that all have done it. A writing uses nothing of the model except the
// memory of the parts. So it may run while the training goes on, with a separate Team and a copy of
// the parts.
type writing struct {
	team  Team
	fs    checkpoint.FS
	files *Files
	saver *Saver            // its locks are of rank 0
	store *checkpoint.Store // likewise
	draft *checkpoint.Draft // likewise
	path  string            // of the draft, then of the checkpoint; likewise

	dir        string
	step, keep int
	own        []Piece // of this rank, until it is planned
	parts      []checkpoint.Part
	vecs       []optim.Vec // of the parts
	dtype      comm.DType  // of their elements
	about      Meta        // except RankExtra
	rankExtra  json.RawMessage
	wrote      func(bytes int) // nil, or called with the progress
	fault      error           // why this rank cannot write
}

// plan agrees on the values to save, and lists the parts that this rank writes. Nothing is copied.
// State that no checkpoint has is dropped, so that the training continues like one that loads this
// checkpoint. reserve, unless it is nil, makes room for a copy of n bytes.
func (v *Saver) plan(ctx context.Context, s *Store, call, dir string, opt optim.Optimizer, o *Options, about Meta, reserve func(n int) error) (*writing, error) {
	var w *writing
	err := s.prepare(ctx, 0, func() (err error) {
		if w, err = s.newWriting(dir, opt, o, about, v); err == nil && reserve != nil {
			err = reserve(w.room())
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf("call of %s\ndirectory %s\nstep %d\nKeepLast %d\nTrainedOnly %t\n%s\n", call, w.dir, w.step, w.keep, o.TrainedOnly, oneOrNone(opt))
	if err := s.same(ctx, "arguments of Save", text); err != nil {
		return nil, err
	}
	list, _, err := s.listed(ctx, opt, w.own, true)
	if err == nil {
		err = s.alike(ctx, list, w.own)
	}
	if err == nil && o.TrainedOnly {
		if w.about.Base, err = s.describeBase(ctx, w.own); err == nil {
			err = v.keepBase(w.about.Base)
		}
	}
	if err != nil {
		return nil, err
	}
	w.own = nil
	s.Memory.Forget()
	return w, nil
}

// oneOrNone returns a text that ranks compare: whether a rank has given an optimizer.
func oneOrNone(opt optim.Optimizer) string {
	if opt == nil {
		return "no optimizer"
	}
	return "an optimizer"
}

func (s *Store) newWriting(dir string, opt optim.Optimizer, o *Options, about Meta, saver *Saver) (*writing, error) {
	w := &writing{dtype: s.Compute, fs: s.Files.on(o.FS), files: s.Files, saver: saver, step: o.Step, keep: o.KeepLast, about: about}
	_, err := s.Files.Left()
	switch {
	case o.Err != nil:
		return nil, o.Err
	case err != nil:
		return nil, err
	case dir == "":
		return nil, errNoDirectory
	}
	if w.dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	for _, p := range s.Layout.Model.Params {
		if p.Buffer {
			w.about.Buffers = append(w.about.Buffers, p.Name)
		}
	}
	if o.TrainedOnly && !slices.ContainsFunc(s.Layout.Groups, func(g layout.Group) bool { return !g.Kind.Frozen }) {
		return nil, errors.New("option TrainedOnly: all parameters are frozen, so the checkpoint would have none: leave out the option, or change Config.Frozen")
	}
	if opt != nil {
		steps := opt.Steps()
		w.about.OptimizerSteps = &steps
		w.about.OptimizerGroups = groupsOf(opt, values(s.Layout), (*Tensor).Parameter)
		if w.step == 0 {
			w.step = steps
		}
	}
	if w.about.Extra, err = encodeExtras("Extra", o.Extra); err != nil {
		return nil, err
	}
	rankExtra, err := encodeExtras("RankExtra", o.RankExtra)
	if err == nil {
		w.rankExtra, err = json.Marshal(rankExtra)
	}
	if err != nil {
		return nil, err
	}
	if w.own, err = s.pieces(opt); err != nil {
		return nil, err
	}
	for _, p := range w.own {
		if !s.writes(&p) || o.TrainedOnly && s.frozen(p.Index) {
			continue
		}
		w.vecs = append(w.vecs, p.Vec)
		part := partOf(s.Compute, &p)
		err = ranks.Guarded("option AllowNotFinite", func() error {
			part.Values = o.values(p.Key.Name(), s.Layout.Model.Params[p.Index].Buffer && p.Entry == "")
			return nil
		})
		if err != nil {
			return nil, err
		}
		w.parts = append(w.parts, part)
	}
	return w, nil
}

// writes reports whether this rank writes a piece. One of several replicas writes it.
func (s *Store) writes(p *Piece) bool {
	i := s.Layout.Home[p.Index].Group
	r := &s.Layout.Groups[i].Ranks
	return r.Replica == i%r.Replicas
}

// partOf returns a piece as a part of a checkpoint. Data outside ordinary memory is written in
// portions.
func partOf(t comm.DType, p *Piece) checkpoint.Part {
	out := checkpoint.Part{Key: p.Key, DType: fileType(t), Shape: p.Shape, Steps: p.Steps, Offset: p.Offset}
	from(&out, t, p.Vec)
	return out
}

// from sets the elements of a part to the elements of v.
func from(out *checkpoint.Part, t comm.DType, v optim.Vec) {
	if h, ok := v.(optim.Host); ok {
		out.Data, out.Write = BytesOf(h), nil
		return
	}
	out.Len = v.Len()
	out.Write = func(ctx context.Context, w io.Writer) error {
		v := v
		if b, ok := v.(optim.Packed); ok { // the device is read once
			words := room(b.Words())
			if err := b.Words().Read(words); err != nil {
				return err
			}
			v = b.Over(words)
		}
		return portions(ctx, v, func(b []byte) error {
			_, err := w.Write(b)
			return err
		})
	}
}

// bytes returns the size of the parts in the file, and room the size of a copy of them.
func (w *writing) bytes() (n int) {
	for i := range w.parts {
		n += w.vecs[i].Len() * w.parts[i].DType.Size()
	}
	return n
}

func (w *writing) room() (n int) {
	for _, v := range w.vecs {
		n += memoryOf(v).Len() * w.dtype.Size()
	}
	return n
}

// memoryOf returns the memory of a vector in its stored form.
func memoryOf(v optim.Vec) optim.Vec {
	if b, ok := v.(optim.Packed); ok {
		return b.Words()
	}
	return v
}

// copy moves the parts to a copy.
func (w *writing) copy(to []byte) error {
	for i, v := range w.vecs {
		p, memory := &w.parts[i], memoryOf(v)
		n := memory.Len() * w.dtype.Size()
		copied := host(w.dtype, to[:n:n])
		if err := memory.Read(copied); err != nil {
			return fmt.Errorf("%s: %w", p.Name(), err)
		}
		to = to[n:]
		if b, ok := v.(optim.Packed); ok {
			from(p, w.dtype, b.Over(copied))
		} else {
			from(p, w.dtype, copied)
		}
	}
	return nil
}

// run writes the checkpoint and returns its path on rank 0, or an error on every rank.
func (w *writing) run(ctx context.Context, t Team) (path string, err error) {
	w.team = t
	if err := busy(ctx, t, w.files, w.begin); err != nil {
		return "", w.discard(err)
	}
	dir, err := w.tell(ctx)
	if err != nil {
		return "", err
	}
	var record []byte
	err = busy(ctx, t, w.files, func(ctx context.Context) (err error) {
		record, err = w.write(ctx, dir)
		return err
	})
	if err != nil {
		return "", w.discard(err)
	}
	var lists [2][][]byte
	for i, own := range [2][]byte{record, w.rankExtra} {
		if lists[i], err = gather(ctx, t.Group(), own, "records"); err != nil {
			return "", t.Fail(fmt.Errorf("reporting the written files to rank 0: %w", err))
		}
	}
	committed := make(chan string, 1) // the work may be left behind
	failed := busy(ctx, t, w.files, func(context.Context) error {
		path, err := w.commit(lists[0], lists[1])
		committed <- path
		return err
	})
	w.path = ""
	select {
	case w.path = <-committed:
	default:
	}
	if path, err = w.tell(ctx); err != nil {
		return "", errors.Join(failed, err)
	}
	return path, failed
}

// tell returns the path of rank 0 on every rank.
func (w *writing) tell(ctx context.Context) (string, error) {
	path, err := w.team.Tell(ctx, 0, []byte(w.path))
	if err != nil {
		return "", w.team.Fail(fmt.Errorf("receiving the path of the checkpoint from rank 0: %w", err))
	}
	return string(path), nil
}

// begin makes the draft, on rank 0.
func (w *writing) begin(ctx context.Context) (err error) {
	if w.team.Group().Rank() != 0 || w.fault != nil {
		return w.fault
	}
	known := w.saver.locks[w.dir] != nil
	if w.store, err = w.saver.locks.open(ctx, w.fs, w.dir); err == nil {
		w.about.Run = w.saver.meet(ctx, w.fs, w.dir, !known)
		w.draft, err = w.store.Begin(w.step)
	}
	if err == nil {
		w.path = w.draft.Dir()
	}
	return err
}

// write writes this rank's file and returns the record that rank 0 needs of it.
func (w *writing) write(ctx context.Context, dir string) (record []byte, err error) {
	if _, err := w.fs.ReadDir(dir); err != nil {
		host, _ := os.Hostname() // the error is clear without the name
		return nil, fmt.Errorf("checkpoints need a file system that all ranks share: host %q cannot read the directory of rank 0: %w", host, err)
	}
	name := checkpoint.FileName("rank", w.team.Group().Rank(), w.team.Group().Size())
	shard, err := checkpoint.WriteShard(ctx, w.fs, dir, name, w.parts, w.wrote)
	if errors.Is(err, checkpoint.ErrNotFinite) {
		return nil, fmt.Errorf("%w: the training has diverged, so nothing is saved: earlier checkpoints are kept, and Load loads the "+
			"last of them; option AllowNotFinite accepts such values", err)
	}
	if err != nil {
		return nil, err
	}
	return shard.Encode()
}

// commit makes the draft a checkpoint of the parts that the ranks have written, and removes others,
// on rank 0. It returns the path of the checkpoint if it is complete.
func (w *writing) commit(shards, extra [][]byte) (path string, err error) {
	if w.team.Group().Rank() != 0 {
		return "", nil
	}
	m, err := w.manifest(shards, extra)
	if err == nil {
		path, err = w.store.Commit(w.draft, m)
	}
	if err != nil {
		return "", errors.Join(err, w.store.Discard(w.draft))
	}
	if w.keep == 0 {
		return path, nil
	}
	spare, err := w.lastFinite()
	if err == nil {
		err = w.store.Retain(w.keep, spare, func(e checkpoint.Entry) bool { return w.saver.lineage.has(e.Meta) })
	}
	if err != nil {
		return path, fmt.Errorf("%s is complete, but older checkpoints could not be removed: %w", path, err)
	}
	return path, nil
}

// lastFinite returns the path of the last checkpoint whose values are all finite, if the one that
// has just been written has others: a training may have to go back to it.
func (w *writing) lastFinite() (path string, err error) {
	if w.about.NotFinite == 0 {
		return "", nil
	}
	entries, err := checkpoint.List(context.Background(), w.fs, w.dir)
	for _, e := range slices.Backward(entries) {
		if e.Err == nil && w.saver.lineage.has(e.Meta) && e.Meta["not_finite"] == nil {
			return e.Path, nil
		}
	}
	return "", err
}

// manifest describes the checkpoint.
func (w *writing) manifest(shards, extra [][]byte) (*checkpoint.Manifest, error) {
	m := &checkpoint.Manifest{Step: w.step, World: len(shards)}
	var all checkpoint.Merger
	w.about.RankExtra = make([]Extras, len(extra))
	for rank := range shards {
		shard, err := checkpoint.DecodeShard(shards[rank])
		if err == nil {
			err = json.Unmarshal(extra[rank], &w.about.RankExtra[rank])
		}
		if err != nil {
			return nil, fmt.Errorf("rank %d's list of written files is invalid: %w", rank, err)
		}
		if err := all.Add(rank, shard); err != nil {
			return nil, err
		}
		w.about.NotFinite += shard.Special
	}
	var err error
	if m.Files, m.Tensors, err = all.Merged(); err != nil {
		return nil, err
	}
	m.Meta, err = w.about.fields()
	return m, err
}

// discard removes the draft of a save that has failed with err, on rank 0. If the groups have
// failed, or the file system does not respond, other ranks may still be writing to the draft. Then
// the next save removes it.
func (w *writing) discard(err error) error {
	if errors.As(err, new(*ranks.LostError)) {
		return err
	}
	if _, left := w.files.Left(); left != nil || w.draft == nil {
		return err
	}
	return errors.Join(err, w.files.short(func() error { return w.store.Discard(w.draft) }))
}

// locks are the directories that rank 0 has saved to, by path: no other job saves there until
// Close.
type locks map[string]*checkpoint.Store

// open returns the store of a directory.
func (l *locks) open(ctx context.Context, fsys checkpoint.FS, dir string) (*checkpoint.Store, error) {
	if store := (*l)[dir]; store != nil {
		return store, nil
	}
	store, err := checkpoint.Open(fsys, dir)
	if err != nil {
		return nil, err
	}
	if err := store.Lock(ctx); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	if *l == nil {
		*l = make(locks)
	}
	(*l)[dir] = store
	return store, nil
}

// close unlocks the directories.
func (l *locks) close() (err error) {
	for _, store := range *l {
		err = errors.Join(err, store.Close())
	}
	*l = nil
	return err
}
