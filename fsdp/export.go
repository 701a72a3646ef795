package fsdp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"

	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// Export writes the whole parameters and buffers to one file in the format safetensors, which Python reads and [Sharded.Import]
// does. Rank 0 writes it as they arrive, in the order of the model, and needs memory for about two of them; the other ranks need
// none. The path is rank 0's. It gets the new file when all of it is on disk: before that, and after an error, which every rank
// returns, there is what was there.
//
// [Rename] and [Transpose] give names and layouts, [As] the type. [WithOptimizer] adds the state of an optimizer, with names such
// as "exp_avg:wte.weight", transposed as its parameter is. [Metadata] adds text. Buffers are rank 0's. Parameters of units with
// groups of their own are named as in [Sharded.FullState].
func (s *Sharded) Export(ctx context.Context, path string, opts ...StateOption) error {
	e := &exporter{s: s, path: path}
	defer e.close()
	return e.undo(e.export(ctx, opts))
}

// optimizerKey is where a file's metadata has the counts of an optimizer, as JSON.
const optimizerKey = "gofsdp.optimizer"

// optimizerCounts is what is there.
type optimizerCounts struct {
	Steps   int            `json:"steps"`   // calls of Step
	Updates map[string]int `json:"updates"` // by parameter, with its name in the file
}

// An exporter is a file that is written.
type exporter struct {
	stateOptions
	s       *Sharded
	path    string
	parts   map[key][]byte
	naming  naming
	tensors []stateTensor // in the order of the file
	header  *safetensors.Header

	// of rank 0
	temp   string // name of the file until it is complete
	file   checkpoint.Handle
	blocks [2]*arena.Block // for the tensor that is written, and the next one
	next   int             // block
	failed error           // first error of a write: all ranks go on to the end, and are told then
}

func (e *exporter) export(ctx context.Context, opts []StateOption) error {
	s, r := e.s, ranks.Ask{Call: "Export"}
	if err := s.agree(ctx, r, e.prepare(opts)); err != nil {
		return err
	}
	l, err := s.listed(ctx, r.Call, &e.naming, e.opt)
	if err != nil {
		return err
	}
	if err = e.describe(l); err == nil {
		err = e.undo(e.create())
	}
	if err := s.agree(ctx, r, err); err != nil {
		return err
	}
	c := collector{s: s, holdings: l.holdings, parts: e.parts, root: 0, ahead: len(e.blocks), room: e.room, take: e.take}
	if err := c.run(ctx, e.tensors); err != nil {
		return err
	}
	err = s.team.Busy(ctx, func(context.Context) error { return e.undo(e.commit()) })
	return s.agree(ctx, r, err)
}

// prepare does what needs no other rank.
func (e *exporter) prepare(opts []StateOption) (err error) {
	s := e.s
	if e.stateOptions, err = s.stateOptions(opts, "As", "Rename", "Transpose", "WithOptimizer", "Metadata"); err != nil {
		return err
	}
	if err := s.usableWith(e.opt); err != nil {
		return err
	}
	if e.dtype.inFile() == "" {
		return fmt.Errorf("As(%v): want Float32, Float64, BFloat16 or Float16", e.dtype)
	}
	if _, taken := e.metadata[optimizerKey]; taken {
		return fmt.Errorf("Metadata: the name %q is taken", optimizerKey)
	}
	if e.naming, err = s.naming(&e.stateOptions); err != nil {
		return err
	}
	e.parts, err = s.memory(e.opt)
	return err
}

// describe makes the header.
func (e *exporter) describe(l *listing) error {
	about := map[string]string{"format": "pt"} // without which Python's transformers does not take a file
	maps.Copy(about, e.metadata)
	if e.opt != nil {
		counts := optimizerCounts{Steps: l.steps, Updates: make(map[string]int)}
		for i := range l.tensors {
			if t := &l.tensors[i]; t.Entry != "" {
				counts.Updates[e.naming.param(t)] = t.steps
			}
		}
		text, err := json.Marshal(counts)
		if err != nil {
			return err
		}
		about[optimizerKey] = string(text)
	}
	e.tensors = slices.Clone(l.tensors)
	slices.SortStableFunc(e.tensors, func(a, b stateTensor) int { return safetensors.Order(e.inFile(&a), e.inFile(&b)) })
	list := make([]safetensors.Tensor, len(e.tensors))
	for i := range e.tensors {
		list[i] = e.inFile(&e.tensors[i])
	}
	var err error
	e.header, err = safetensors.NewHeader(list, about)
	return err
}

// inFile describes a tensor.
func (e *exporter) inFile(t *stateTensor) safetensors.Tensor {
	dtype := e.dtype
	if t.Entry != "" {
		dtype = e.s.cfg.Precision.Compute
	}
	return safetensors.Tensor{Name: e.naming.of(t), DType: dtype.inFile(), Shape: e.naming.shape(t)}
}

// create begins the file on rank 0.
func (e *exporter) create() (err error) {
	if e.s.cfg.Group.Rank() != 0 {
		return nil
	}
	if e.path == "" {
		return errors.New("no file is named")
	}
	size := 0
	for i := range e.tensors {
		size = max(size, e.tensors[i].len()*e.s.cfg.Precision.Compute.size())
	}
	for i := range e.blocks {
		if e.blocks[i], err = e.s.arena.Alloc(size, arena.Gathered); err != nil {
			return err
		}
	}
	temp := fmt.Sprintf("%s.tmp-%08x", e.path, rand.Uint32())
	if e.file, err = e.fs.Create(temp); err != nil {
		return err
	}
	e.temp = temp
	_, err = e.file.Write(e.header.Encode())
	return err
}

// room is the memory of the tensor before the last, which has been written.
func (e *exporter) room(t *stateTensor) []byte {
	e.next = 1 - e.next
	n := t.len() * e.s.cfg.Precision.Compute.size()
	return e.blocks[e.next].Data[:n:n]
}

// slowWrite is how many bytes may take a disk so long that the other ranks would take this one for one that hangs.
const slowWrite = 1 << 20

// take writes a tensor. Nobody waits in vain meanwhile: the next one is on its way.
func (e *exporter) take(ctx context.Context, t *stateTensor, whole []byte) error {
	if t.len()*e.s.cfg.Precision.Compute.size() < slowWrite {
		e.write(t, whole)
		return nil
	}
	return e.s.team.Busy(ctx, func(context.Context) error {
		e.write(t, whole)
		return nil
	})
}

// write writes a tensor that this rank has, unless there is no use in it any more.
func (e *exporter) write(t *stateTensor, whole []byte) {
	if whole == nil || e.failed != nil {
		return
	}
	rows := 0
	if e.naming.transposed[t.param] {
		rows = t.shape[0]
	}
	to := e.inFile(t)
	if err := writeTensor(e.file, to.DType, whole, e.s.cfg.Precision.Compute.inFile(), rows); err != nil {
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
	if err := e.fs.Rename(e.temp, e.path); err != nil {
		return err
	}
	e.temp = ""
	return e.fs.SyncDir(filepath.Dir(e.path))
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
		err = errors.Join(err, e.fs.RemoveAll(e.temp))
		e.temp = ""
	}
	return err
}

// close gives the memory back.
func (e *exporter) close() {
	if e.s.err != nil { // after a failure buffers stay where they are
		return
	}
	for _, b := range e.blocks {
		e.s.arena.Free(b)
	}
}
