package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// An exporter is a file that rank 0 writes, tensor by tensor as they arrive. It has another name
// until it is complete.
type exporter struct {
	s       *Store
	o       *Options
	naming  *naming
	own     []Piece
	tensors []Tensor // in the order of the file
	header  *safetensors.Header

	// of rank 0
	path, temp string // temp is the name of the file until it is complete
	file       checkpoint.Handle
	ring       *ring // the tensor that is written, and the next one
	failed     error // first error of a write: all ranks go on to the end, and are told then
}

// Export writes the state to a file.
func (s *Store) Export(ctx context.Context, path string, o *Options) error {
	e := &exporter{s: s, o: o, path: path}
	defer func() { e.ring.close() }()
	err := e.plan(ctx)
	if err == nil {
		err = e.run(ctx)
	}
	return e.undo(err)
}

// plan begins the file.
func (e *exporter) plan(ctx context.Context) error {
	s := e.s
	err := s.prepare(ctx, 0, func() (err error) {
		if e.naming, err = e.o.naming(s.Layout); err != nil {
			return err
		}
		if _, taken := e.o.Metadata[countsKey]; taken {
			return fmt.Errorf("option Metadata: the name %q is taken", countsKey)
		}
		e.own, err = s.pieces(e.o.Optimizer)
		return err
	})
	if err != nil {
		return err
	}
	if err := s.same(ctx, "options", e.naming.text); err != nil {
		return err
	}
	list, steps, err := s.listed(ctx, e.o.Optimizer, e.own, true)
	if err != nil {
		return err
	}
	if err := distinct(list, e.naming.of); err != nil {
		return err
	}
	if err = e.describe(list, steps); err == nil {
		err = e.undo(e.create())
	}
	return s.Team.Agree(ctx, 0, err)
}

// describe makes the header.
func (e *exporter) describe(list []Tensor, steps int) error {
	about := map[string]string{"format": "pt"} // Python's transformers asks for it
	maps.Copy(about, e.o.Metadata)
	if e.o.Optimizer != nil {
		counts := optimizerCounts{Steps: steps, Updates: make(map[string]int), Groups: groupsOf(e.o.Optimizer, list, e.naming.param)}
		for i := range list {
			if t := &list[i]; t.Entry != "" {
				counts.Updates[e.naming.param(t)] = t.Steps
			}
		}
		text, err := json.Marshal(counts)
		if err != nil {
			return err
		}
		about[countsKey] = string(text)
	}
	e.tensors = list
	slices.SortStableFunc(e.tensors, func(a, b Tensor) int { return safetensors.Order(e.inFile(&a), e.inFile(&b)) })
	inFile := make([]safetensors.Tensor, len(list))
	for i := range list {
		inFile[i] = e.inFile(&list[i])
	}
	var err error
	e.header, err = safetensors.NewHeader(inFile, about)
	return err
}

// inFile describes a tensor.
func (e *exporter) inFile(t *Tensor) safetensors.Tensor {
	dtype := e.s.Compute
	if t.Entry == "" && e.o.As != 0 {
		dtype = e.o.As
	}
	return safetensors.Tensor{Name: e.naming.of(t), DType: fileType(dtype), Shape: e.naming.shape(t)}
}

// create begins the file on rank 0.
func (e *exporter) create() (err error) {
	if e.s.rank() != 0 {
		return nil
	}
	if e.path == "" {
		return errNoFile
	}
	if e.ring, err = e.s.newRing(e.tensors); err != nil {
		return err
	}
	e.sweep()
	temp := fmt.Sprintf("%s.tmp-%08x", e.path, rand.Uint32())
	if e.file, err = e.o.FS.Create(temp); err != nil {
		return err
	}
	e.temp = temp
	_, err = e.file.Write(e.header.Encode())
	return err
}

// sweep removes what an Export to this path has left that was killed. One that is under way in
// another process loses its file, and fails: only one can have the path.
func (e *exporter) sweep() {
	dir := filepath.Dir(e.path)
	ours := regexp.MustCompile("^" + regexp.QuoteMeta(filepath.Base(e.path)) + `\.tmp-[0-9a-f]{8}$`)
	entries, _ := e.o.FS.ReadDir(dir) // what is wrong with it, Create says
	for _, f := range entries {
		if f.Type()&fs.ModeType == 0 && ours.MatchString(f.Name()) {
			_ = e.o.FS.RemoveAll(filepath.Join(dir, f.Name())) // it is only room that is lost
		}
	}
}

// slowWrite is how many bytes may take a disk so long that the other ranks would take this one for
// one that hangs.
const slowWrite = 1 << 20

// run writes the tensors, and gives the file its name.
func (e *exporter) run(ctx context.Context) error {
	s := e.s
	c := collector{
		s: s, parts: s.parts(e.own), root: 0, ahead: underWay,
		room: func(t *Tensor) []byte { return e.ring.room(t.Len() * s.Compute.Size()) },
		take: func(ctx context.Context, t *Tensor, whole []byte) error {
			write := func(context.Context) error {
				e.write(t, whole)
				return nil
			}
			if t.Len()*s.Compute.Size() < slowWrite {
				return write(ctx)
			}
			return s.Team.Busy(ctx, write) // nobody waits in vain: the next tensor is on its way
		},
	}
	if err := c.run(ctx, e.tensors); err != nil {
		return err
	}
	return busy(ctx, s.Team, func(context.Context) error { return e.undo(e.commit()) })
}

// write writes a tensor that this rank has, unless there is no use in it any more.
func (e *exporter) write(t *Tensor, whole []byte) {
	if whole == nil || e.failed != nil {
		return
	}
	rows := 0
	if e.naming.transposed[t.Index] {
		rows = t.Shape[0]
	}
	to := e.inFile(t)
	if err := writeTensor(e.file, to.DType, whole, fileType(e.s.Compute), rows); err != nil {
		e.failed = fmt.Errorf("writing tensor %s: %w", to.Name, err)
	}
}

// commit gives the file its name once it is on disk.
func (e *exporter) commit() error {
	if e.file == nil {
		return nil
	}
	err := e.failed
	if err == nil {
		err = e.file.Sync()
	}
	err = errors.Join(err, e.file.Close())
	e.file = nil
	if err != nil {
		return err
	}
	if err := e.o.FS.Rename(e.temp, e.path); err != nil {
		return err
	}
	e.temp = ""
	return e.o.FS.SyncDir(filepath.Dir(e.path))
}

// undo removes a file that is not going to be complete, if err says so.
func (e *exporter) undo(err error) error {
	if err == nil {
		return nil
	}
	if e.file != nil {
		err = errors.Join(err, e.file.Close())
		e.file = nil
	}
	if e.temp != "" {
		err = errors.Join(err, e.o.FS.RemoveAll(e.temp))
		e.temp = ""
	}
	return err
}
