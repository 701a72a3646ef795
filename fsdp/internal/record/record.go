// Package record writes hashes of a rank's results in training passes, for fsdpdiff. Package hashes
// has the format.
package record

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/internal/checksum"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/hashes"
	"github.com/gofsdp/gofsdp/internal/launch"
	"github.com/gofsdp/gofsdp/internal/program"
	"github.com/gofsdp/gofsdp/optim"
)

// A File is the record of one rank and model. It is for the rank's goroutine. The methods of a nil
// File do nothing.
type File struct {
	file    *os.File
	place   int // this rank's among ranks
	ranks   int
	w       *hashes.Writer
	err     error // the first
	step    int   // updates so far
	updated bool  // since the last pass
	params  int   // pass of this step that has the hashes of the parameters, 0 if none has
	pass    int   // current pass of the writer
	heads   map[int]hashes.Head
	host    optim.Host // scratch memory
	bytes   []byte     // likewise
}

// Open makes the file of this rank of g in dir, or below it: for the second start of a job in
// start-2, for the second model of a process in model-2.
func Open(dir string, g comm.Group, model int) (*File, error) {
	env, _, err := launch.Parse(os.Getenv)
	switch {
	case err != nil:
		return nil, err
	case env.Source != "" && (env.Rank != g.Rank() || env.Size != g.Size()):
		return nil, fmt.Errorf("rank %d of a group of %d is process %d of %d: hashes need a group of all processes of the job", g.Rank(), g.Size(), env.Rank, env.Size)
	}
	if env.Restart > 0 {
		dir = filepath.Join(dir, fmt.Sprintf("start-%d", env.Restart+1))
	}
	name := fmt.Sprintf("rank-%d%s", g.Rank(), hashes.Suffix)
	if model > 1 {
		dir = filepath.Join(dir, fmt.Sprintf("model-%d", model))
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, err
	}
	return &File{file: file, place: g.Rank(), ranks: g.Size(), w: hashes.NewWriter(file, g.Rank(), g.Size()), heads: make(map[int]hashes.Head)}, nil
}

// At notes that a checkpoint of a step was loaded.
func (f *File) At(step int) {
	if f != nil {
		f.step, f.updated, f.params = step, false, 0
	}
}

// Updated notes that an optimizer has stepped.
func (f *File) Updated() {
	if f != nil {
		f.updated = true
	}
}

// Begin notes the batch of a training pass, and in the first pass of a step the parameters before
// it. It ignores evaluations.
func (f *File) Begin(p *engine.Pass, l *layout.Layout, s engine.Shards) {
	if f == nil || p.Compiled.Eval {
		return
	}
	if f.updated {
		f.step, f.updated, f.params = f.step+1, false, 0
	}
	head := hashes.Head{Number: p.Number, Step: f.step, Virtual: -1}
	if p.Turn.Of > 0 && !p.Turn.Missing {
		head.Virtual = p.Turn.VirtualRank(f.place, f.ranks)
	}
	_, open := f.heads[f.params] // and may get no backward, which would end it
	f.heads[p.Number] = head
	f.beginPass(p.Number)
	if f.params == 0 || open {
		for g := range l.Groups {
			f.shard(hashes.Param, &l.Groups[g], s.Value(g))
		}
		f.params = p.Number
	}
	for i, v := range p.Batch {
		f.w.Entry(hashes.Entry{Kind: hashes.Batch, From: i, Bytes: len(v.Bytes), Sum: checksum.Update(0, v.Bytes)})
	}
}

// beginPass begins the given pass in the writer.
func (f *File) beginPass(pass int) {
	if f.pass != pass {
		f.w.Pass(f.heads[pass])
		f.pass = pass
	}
}

// shard notes this rank's part of a group.
func (f *File) shard(k hashes.Kind, g *layout.Group, v optim.Vec) {
	for _, seg := range g.Segments() {
		b, err := f.read(v.Slice(seg.At, seg.At+seg.Len))
		if err != nil {
			f.fail(err)
			return
		}
		f.w.Entry(hashes.Entry{
			Kind: k, Name: g.Stream(seg.Name), From: seg.Offset, To: seg.Offset + seg.Len, Bytes: len(b), Sum: checksum.Update(0, b),
		})
	}
}

// read returns the bytes of v, valid until its next call.
func (f *File) read(v optim.Vec) ([]byte, error) {
	if h, ok := v.(interface{ Elements() optim.Host }); ok {
		return bytesOf(h.Elements()), nil
	}
	n, to := v.Len(), optim.Host{}
	if v.Float64() {
		f.host.F64 = append(f.host.F64[:0], make([]float64, n)...)
		to.F64 = f.host.F64
	} else {
		f.host.F32 = append(f.host.F32[:0], make([]float32, n)...)
		to.F32 = f.host.F32
	}
	return bytesOf(to), v.Read(to)
}

func bytesOf(h optim.Host) []byte {
	if h.F64 != nil {
		return exec.Bytes(h.F64)
	}
	return exec.Bytes(h.F32)
}

// Step notes the results of an operation, and writes the pass with its last one.
func (f *File) Step(s *engine.Step, l *layout.Layout, shards engine.Shards) {
	if f == nil || s.Eval {
		return
	}
	f.beginPass(s.Pass)
	switch s.Op.Kind {
	case program.Forward, program.Backward:
		k := hashes.Forward
		if s.Op.Kind == program.Backward {
			k = hashes.Backward
		}
		f.fail(s.Results(&f.bytes, func(i int, b []byte) {
			f.w.Entry(hashes.Entry{Kind: k, Name: s.Model.Calls[s.Op.Call].Name, From: i, Bytes: len(b), Sum: checksum.Update(0, b)})
		}))
	case program.Drain:
		f.shard(hashes.Grad, &l.Groups[s.Op.Group], shards.Grad(s.Op.Group))
	}
	if s.Last {
		f.fail(f.w.End())
		delete(f.heads, s.Pass)
		f.pass = 0
	}
}

// fail keeps the first error, and reports at once that the record ends.
func (f *File) fail(err error) {
	if f.err == nil && err != nil {
		f.err = err
		launch.Unrecorded(f.place, fmt.Sprintf("from step %d on hashes are", f.step), err)
	}
}

// Close closes the file, and returns the first error of writing it.
func (f *File) Close() error {
	if f == nil {
		return nil
	}
	f.fail(f.file.Close())
	return f.err
}
