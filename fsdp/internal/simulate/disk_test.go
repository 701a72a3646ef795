package simulate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/checkpoint/crashfs"
	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// disk is the file system of a job as one rank sees it: what changes something takes time, and a
// process that has ended does it no more.
type disk struct {
	checkpoint.FS
	rank *rank
}

// timed does something that takes time.
func (d *disk) timed(do func() error) error {
	pass(time.Duration(d.rank.rng.Int64N(int64(20 * time.Millisecond))))
	if d.rank.ctx.Err() != nil {
		return crashfs.ErrKilled
	}
	return do()
}

func (d *disk) Mkdir(dir string) error { return d.timed(func() error { return d.FS.Mkdir(dir) }) }

func (d *disk) Create(path string) (h checkpoint.Handle, err error) {
	err = d.timed(func() (err error) { h, err = d.FS.Create(path); return err })
	return &file{h, d}, err
}

func (d *disk) Rename(from, to string) error {
	return d.timed(func() error { return d.FS.Rename(from, to) })
}

func (d *disk) SyncDir(dir string) error { return d.timed(func() error { return d.FS.SyncDir(dir) }) }

func (d *disk) Lock(path, owner string) (c io.Closer, err error) {
	err = d.timed(func() (err error) { c, err = d.FS.Lock(path, owner); return err })
	return c, err
}

// file is a file of a disk.
type file struct {
	checkpoint.Handle
	disk *disk
}

func (f *file) Write(p []byte) (n int, err error) {
	err = f.disk.timed(func() (err error) { n, err = f.Handle.Write(p); return err })
	return n, err
}

func (f *file) Sync() error { return f.disk.timed(f.Handle.Sync) }

// checkDisk loses power, and looks whether what was committed is there, and nothing is there by
// half.
func (j *job) checkDisk(o *outcome) {
	o.commits += len(j.committed)
	found, err := whole(j.disk.Crash(j.seed % 64))
	blame := func(format string, args ...any) {
		o.lost++
		o.faulty = append(o.faulty, fmt.Sprintf(format, args...))
	}
	if err != nil {
		blame("checkpoints: %v", err)
	}
	for _, step := range j.committed {
		if err, ok := found[step]; !ok || err != nil {
			blame("step %d was committed and is lost: %v, %v", step, ok, err)
		}
	}
	for step, err := range found {
		if err != nil && !errors.Is(err, checkpoint.ErrUnfinished) {
			blame("step %d is there by half: %v", step, err)
		}
	}
}

// whole reads all checkpoints, and returns what is wrong with each, by step.
func whole(fsys checkpoint.FS) (map[int]error, error) {
	ctx := context.Background()
	entries, err := checkpoint.List(ctx, fsys, folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	found := map[int]error{}
	for _, e := range entries {
		if found[e.Step] = e.Err; e.Err == nil {
			found[e.Step] = verify(ctx, fsys, e.Path, e.Step)
		}
	}
	return found, err
}

// verify compares a checkpoint with what was saved.
func verify(ctx context.Context, fsys checkpoint.FS, path string, step int) error {
	r, err := checkpoint.OpenReader(ctx, fsys, path)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	got := make([]byte, 4*share)
	for no := range r.Manifest().World {
		if err := r.Read(ctx, tensor, share*no, got, safetensors.F32); err != nil {
			return err
		}
		if !bytes.Equal(got, content(step, no)) {
			return fmt.Errorf("other values of rank %d", no)
		}
	}
	return nil
}
