package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// An exporter is files that rank 0 writes: the tensors, as they arrive, and the files of
// ExtraFiles. They have other names until all are complete.
type exporter struct {
	s       *Store
	o       *Options
	naming  *naming
	own     []Piece
	tensors []Tensor // in the order of the files
	sets    []tensorSet

	// rank 0 only
	path   string
	files  []*newFile
	ring   *ring // the tensor that is written, and the next one
	next   int   // index of the tensor to write
	failed error // first error of a write: all ranks continue to the end, and then get it
}

// A tensorSet is the tensors of one file.
type tensorSet struct {
	name   string // in the directory of path
	end    int    // in exporter.tensors, after the last one
	header *safetensors.Header
	file   *newFile // on rank 0
}

// A newFile is a file that has another name until it is complete.
type newFile struct {
	path, temp string            // temp is "" once the file has its own name
	handle     checkpoint.Handle // nil once it is closed
}

// Export writes the state to files.
func (s *Store) Export(ctx context.Context, path string, o *Options) error {
	watched := *o
	watched.FS = s.Files.on(o.FS)
	e := &exporter{s: s, o: &watched, path: path}
	err := e.plan(ctx)
	if err == nil {
		err = e.run(ctx)
	}
	if done, left := s.Files.Left(); left != nil { // it may have the files and the ring
		go func() {
			<-done
			_ = e.undo(left)
		}()
		return err
	}
	e.ring.close()
	return e.undo(err)
}

// plan begins the files.
func (e *exporter) plan(ctx context.Context) error {
	s := e.s
	err := s.prepare(ctx, 0, func() (err error) {
		if _, err := s.Files.Left(); err != nil {
			return err
		}
		if e.naming, err = e.o.naming(s.Layout); err != nil {
			return err
		}
		if _, taken := e.o.Metadata[countsKey]; taken {
			return fmt.Errorf("option Metadata: the name %q is reserved: choose another", countsKey)
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
	if err == nil {
		err = s.alike(ctx, list, e.own)
	}
	if err != nil {
		return err
	}
	if err := distinct(e.naming.there(list), e.naming.of); err != nil {
		return err
	}
	err = e.describe(list, steps)
	if err == nil && s.rank() == 0 {
		e.ring, err = s.newRing(e.tensors)
	}
	return busy(ctx, s.Team, s.Files, func(context.Context) error {
		if err != nil {
			return err
		}
		return e.undo(e.create())
	})
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
	for _, t := range list {
		if !e.naming.as[t.Index].leftOut {
			e.tensors = append(e.tensors, t)
		}
	}
	slices.SortStableFunc(e.tensors, func(a, b Tensor) int { return safetensors.Order(e.inFile(&a), e.inFile(&b)) })
	return e.divide(about)
}

// divide makes the headers of the files: of one file, or of as many as MaxFileSize requires. The
// tensors of one parameter are in one file. A tensor that is larger than MaxFileSize has a file for
// itself.
func (e *exporter) divide(about map[string]string) error {
	var size int64
	e.sets = []tensorSet{{}}
	for i := range e.tensors {
		t := &e.tensors[i]
		bytes := int64(t.Len()) * int64(e.dtype(t).Size())
		last := &e.sets[len(e.sets)-1]
		if e.o.MaxFileSize > 0 && size > 0 && size+bytes > e.o.MaxFileSize {
			last.end, size = i, 0
			e.sets = append(e.sets, tensorSet{})
		}
		size += bytes
	}
	e.sets[len(e.sets)-1].end = len(e.tensors)
	at := 0
	for i := range e.sets {
		set := &e.sets[i]
		set.name = filepath.Base(e.path)
		if len(e.sets) > 1 {
			ext := filepath.Ext(set.name)
			set.name = fmt.Sprintf("%s-%05d-of-%05d%s", strings.TrimSuffix(set.name, ext), i+1, len(e.sets), ext)
		}
		var inFile []safetensors.Tensor
		for _, t := range e.naming.there(e.tensors[at:set.end]) {
			inFile = append(inFile, e.inFile(&t))
		}
		var err error
		if set.header, err = safetensors.NewHeader(inFile, about); err != nil {
			return err
		}
		at = set.end
	}
	return nil
}

// inFile returns the name, type and shape that a tensor has in the file.
func (e *exporter) inFile(t *Tensor) safetensors.Tensor {
	return safetensors.Tensor{Name: e.naming.of(t), DType: fileType(e.dtype(t)), Shape: e.naming.shape(t)}
}

// dtype returns the type in which a tensor is written.
func (e *exporter) dtype(t *Tensor) comm.DType {
	if t.Entry == "" && e.o.DType != 0 {
		return e.o.DType
	}
	return e.s.Compute
}

// create begins the files on rank 0: small ones are written whole.
func (e *exporter) create() (err error) {
	if e.s.rank() != 0 {
		return nil
	}
	if e.path == "" {
		return errNoFile
	}
	if e.o.ExtraFiles != nil {
		for _, dir := range e.dirs() {
			if err := checkpoint.MakeDir(e.o.FS, dir); err != nil {
				return err
			}
		}
	}
	e.remove(regexp.MustCompile("^(" + e.ours() + `)\.tmp-[0-9a-f]{8}$`))
	for _, name := range slices.Sorted(maps.Keys(e.o.ExtraFiles)) {
		if _, err := e.begin(name, e.o.ExtraFiles[name]); err != nil {
			return err
		}
	}
	for i := range e.sets {
		set := &e.sets[i]
		if set.file, err = e.begin(set.name, set.header.Encode()); err != nil {
			return err
		}
	}
	if len(e.sets) == 1 {
		return nil
	}
	text, err := e.index()
	if err == nil {
		_, err = e.begin(filepath.Base(e.path)+indexSuffix, text)
	}
	return err
}

// dirs returns the directory of path, and the directories in it that ExtraFiles names.
func (e *exporter) dirs() []string {
	dirs := []string{filepath.Dir(e.path)}
	for name := range e.o.ExtraFiles {
		if filepath.IsLocal(name) {
			dirs = append(dirs, filepath.Dir(filepath.Join(dirs[0], name)))
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// begin creates a file in the directory of path, with text at its beginning.
func (e *exporter) begin(name string, text []byte) (f *newFile, err error) {
	f = &newFile{path: filepath.Join(filepath.Dir(e.path), name)}
	twice := slices.ContainsFunc(e.files, func(o *newFile) bool { return o.path == f.path })
	if twice || !filepath.IsLocal(name) || name != path.Clean(name) || name == "." {
		return nil, fmt.Errorf("option ExtraFiles: %q is not a valid file name next to %s", name, e.path)
	}
	temp := fmt.Sprintf("%s.tmp-%08x", f.path, rand.Uint32())
	if f.handle, err = e.o.FS.Create(temp); err != nil {
		return nil, err
	}
	f.temp, e.files = temp, append(e.files, f)
	_, err = f.handle.Write(text)
	return f, err
}

// index encodes the index of several files.
func (e *exporter) index() ([]byte, error) {
	index := tensorIndex{WeightMap: make(map[string]string)}
	var size int64
	for _, set := range e.sets {
		for _, t := range set.header.Tensors {
			index.WeightMap[t.Name] = set.name
			size += t.Size
		}
	}
	index.Metadata = map[string]any{"total_size": size}
	return json.MarshalIndent(index, "", "  ")
}

// ours matches the names of files that an Export to this path makes.
func (e *exporter) ours() string {
	base := filepath.Base(e.path)
	ext := filepath.Ext(base)
	names := []string{regexp.QuoteMeta(base)}
	if e.o.MaxFileSize > 0 {
		names = append(names, regexp.QuoteMeta(base+indexSuffix),
			regexp.QuoteMeta(strings.TrimSuffix(base, ext))+`-\d{5}-of-\d{5}`+regexp.QuoteMeta(ext))
	}
	for name := range e.o.ExtraFiles {
		names = append(names, regexp.QuoteMeta(name))
	}
	return strings.Join(names, "|")
}

// remove removes files in the directory of path: files left by an Export to this path that was
// killed, or files that an earlier one has made and this one does not replace. An Export that is
// under way in another process loses its file, and fails: only one can have the path.
func (e *exporter) remove(match *regexp.Regexp) {
	for _, dir := range e.dirs() {
		entries, _ := e.o.FS.ReadDir(dir) // Create returns an error of the directory
		for _, f := range entries {
			path := filepath.Join(dir, f.Name())
			name, err := filepath.Rel(filepath.Dir(e.path), path)
			replaced := slices.ContainsFunc(e.files, func(f *newFile) bool { return f.path == path })
			if f.Type()&fs.ModeType == 0 && err == nil && match.MatchString(filepath.ToSlash(name)) && !replaced {
				_ = e.o.FS.RemoveAll(path) // only space is lost
			}
		}
	}
}

// slowWrite is a number of bytes whose write may take so long that other ranks would assume that
// this rank hangs.
const slowWrite = 1 << 20

// run writes the tensors, and gives the file its name.
func (e *exporter) run(ctx context.Context) error {
	s := e.s
	c := collector{
		s: s, parts: s.parts(e.own), root: 0, ahead: underWay,
		room: func(t *Tensor) []byte { return e.ring.room(t.Len() * s.Compute.Size()) },
		take: func(ctx context.Context, t *Tensor, whole []byte) error {
			at := e.next
			e.next++
			write := func(context.Context) error { return nil }
			if whole != nil && e.failed == nil { // else the file is lost already
				write = func(context.Context) error { return e.write(at, t, whole) }
			}
			var err error
			if t.Len()*s.Compute.Size() >= slowWrite {
				err = s.Team.Busy(ctx, s.Files, write) // no rank waits in vain: the next tensor is on its way
			} else if whole != nil {
				err = ranks.Run(ctx, s.Files, ranks.Limit(s.Team.Group())/2, write)
			}
			if errors.As(err, new(*ranks.LostError)) {
				return err
			}
			if e.failed == nil {
				e.failed = err
			}
			return nil
		},
	}
	if err := c.run(ctx, e.tensors); err != nil {
		return err
	}
	return busy(ctx, s.Team, s.Files, func(context.Context) error { return e.undo(e.commit()) })
}

// write writes a tensor that this rank has, at its index among all, part by part.
func (e *exporter) write(at int, t *Tensor, whole []byte) error {
	set := &e.sets[slices.IndexFunc(e.sets, func(s tensorSet) bool { return at < s.end })]
	for _, part := range e.naming.there([]Tensor{*t}) {
		rows, n := 0, part.Len()*e.s.Compute.Size()
		if e.naming.as[t.Index].transposed {
			rows = part.Shape[0]
		}
		to, from := e.inFile(&part), fileType(e.s.Compute)
		w := &valueWriter{w: set.file.handle, t: to, values: e.o.values(to.Name, e.s.Layout.Model.Params[t.Index].Buffer && t.Entry == "")}
		err := writeTensor(w, to.DType, whole[:n], from, rows)
		switch {
		case err == nil:
		case !errors.Is(err, checkpoint.ErrNotFinite):
			return fmt.Errorf("writing tensor %s: %w", to.Name, err)
		case w.values.Check(to.Name, 0, from, whole[:n]) == nil:
			return fmt.Errorf("%w: some %v values of the model are out of the range of %v, see option DType", err, from, to.DType)
		default:
			return fmt.Errorf("%w: the training has diverged; option AllowNotFinite writes them", err)
		}
		whole = whole[n:]
	}
	return nil
}

// A valueWriter writes the elements of a tensor to w, and checks their values.
type valueWriter struct {
	w      io.Writer
	t      safetensors.Tensor
	at     int // elements written
	values checkpoint.Values
}

// Write implements io.Writer, for whole elements.
func (w *valueWriter) Write(p []byte) (int, error) {
	if err := w.values.Check(w.t.Name, w.at, w.t.DType, p); err != nil {
		return 0, err
	}
	w.at += len(p) / w.t.DType.Size()
	return w.w.Write(p)
}

// commit gives the files their names once all are on disk, the index last.
func (e *exporter) commit() error {
	if e.files == nil {
		return nil
	}
	err := e.failed
	for _, f := range e.files {
		if err == nil {
			err = f.handle.Sync()
		}
		err = errors.Join(err, f.handle.Close())
		f.handle = nil
	}
	if err != nil {
		return err
	}
	if e.o.MaxFileSize > 0 {
		if e.o.ExtraFiles != nil {
			if err := e.o.FS.Mkdir(filepath.Dir(e.path)); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
		e.remove(regexp.MustCompile("^(" + e.ours() + ")$"))
	}
	for _, f := range e.files {
		if err := e.o.FS.Rename(f.temp, f.path); err != nil {
			return err
		}
		f.temp = ""
	}
	for _, dir := range e.dirs() {
		if err := e.o.FS.SyncDir(dir); err != nil {
			return err
		}
	}
	return nil
}

// undo removes files that will not be completed, if err is not nil.
func (e *exporter) undo(err error) error {
	if err == nil {
		return nil
	}
	for _, f := range e.files {
		if f.handle != nil {
			err = errors.Join(err, f.handle.Close())
			f.handle = nil
		}
		if f.temp != "" {
			err = errors.Join(err, e.o.FS.RemoveAll(f.temp))
			f.temp = ""
		}
	}
	return err
}
