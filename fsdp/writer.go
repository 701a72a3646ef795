package fsdp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
)

// A writer is one rank's part in writing a checkpoint:
//
//	rank 0                              every rank
//	begins a draft, tells where
//	                                    writes its parts into a file there
//	                                    tells rank 0 what it has written
//	commits the draft with the manifest
//
// After each step ranks agree that all have done it. A writer uses nothing of the model but the memory of the parts, so it may
// run while the training goes on, on a group of its own and with a copy of them.
type writer struct {
	group     comm.Group
	agreement *ranks.Agreement
	steps     int // of the work, begun so far

	fs    checkpoint.FS
	open  func(context.Context) (*checkpoint.Store, error) // called on rank 0
	store *checkpoint.Store                                // of rank 0
	draft *checkpoint.Draft                                // likewise
	path  string                                           // of the draft, then of the checkpoint; likewise

	step, keep int
	parts      []checkpoint.Part
	about      checkpointMeta // but for RankExtra
	rankExtra  json.RawMessage
	wrote      func(bytes int) // nil, or told of progress
}

// bytes returns the size of the parts.
func (w *writer) bytes() (n int) {
	for _, p := range w.parts {
		n += len(p.Data)
	}
	return n
}

// run writes the checkpoint and returns its path, or an error on every rank: an ranks.LostError if the group has failed.
func (w *writer) run(ctx context.Context) (path string, err error) {
	if err := w.together(ctx, w.begin); err != nil {
		return "", w.discard(err)
	}
	dir, err := textOfFirst(ctx, w.group, w.path)
	if err != nil {
		return "", err
	}
	var record []byte
	err = w.together(ctx, func(ctx context.Context) (err error) {
		record, err = w.write(ctx, dir)
		return err
	})
	if err != nil {
		return "", w.discard(err)
	}
	shards, err := w.gather(ctx, record)
	if err != nil {
		return "", err
	}
	extra, err := w.gather(ctx, w.rankExtra)
	if err != nil {
		return "", err
	}
	failed := w.together(ctx, func(context.Context) error { return w.commit(shards, extra) })
	if path, err = textOfFirst(ctx, w.group, w.path); err != nil {
		return "", errors.Join(failed, err)
	}
	return path, failed
}

// together runs a step of the work, and is an error on every rank if it fails on any.
func (w *writer) together(ctx context.Context, step func(context.Context) error) error {
	w.steps++
	_, err := w.agreement.Agree(ctx, &ranks.Ask{Call: "Save", Number: w.steps}, w.agreement.Busy(ctx, step))
	return err
}

// begin makes the draft, on rank 0.
func (w *writer) begin(ctx context.Context) (err error) {
	if w.group.Rank() != 0 {
		return nil
	}
	if w.store, err = w.open(ctx); err == nil {
		w.draft, err = w.store.Begin(w.step)
	}
	if err == nil {
		w.path = w.draft.Dir()
	}
	return err
}

// write writes this rank's file and returns what rank 0 has to know of it.
func (w *writer) write(ctx context.Context, dir string) (record []byte, err error) {
	if _, err := w.fs.ReadDir(dir); err != nil {
		host, _ := os.Hostname() // the error says enough without
		return nil, fmt.Errorf("checkpoints need a file system that all ranks share: host %q does not see what rank 0 has made: %w", host, err)
	}
	name := fmt.Sprintf("rank-%05d-of-%05d.safetensors", w.group.Rank(), w.group.Size())
	shard, err := checkpoint.WriteShard(ctx, w.fs, filepath.Join(dir, name), w.parts, w.wrote)
	if err != nil {
		return nil, err
	}
	return shard.Encode()
}

// commit makes the draft a checkpoint of what the ranks have written, and removes others, on rank 0.
func (w *writer) commit(shards, extra [][]byte) error {
	if w.group.Rank() != 0 {
		return nil
	}
	w.path = ""
	m, err := w.manifest(shards, extra)
	if err != nil {
		return w.discard(err)
	}
	path, err := w.store.Commit(w.draft, m)
	if err != nil {
		return w.discard(err)
	}
	if w.path = path; w.keep == 0 {
		return nil
	}
	if err := w.store.Retain(w.keep); err != nil {
		return fmt.Errorf("%s is complete, but others are left: %w", path, err)
	}
	return nil
}

// manifest describes the checkpoint.
func (w *writer) manifest(shards, extra [][]byte) (*checkpoint.Manifest, error) {
	m := &checkpoint.Manifest{Step: w.step, World: w.group.Size()}
	list := make([]*checkpoint.Shard, len(shards))
	w.about.RankExtra = make([]extras, len(extra))
	for rank := range shards {
		var err error
		if list[rank], err = checkpoint.DecodeShard(shards[rank]); err == nil {
			err = json.Unmarshal(extra[rank], &w.about.RankExtra[rank])
		}
		if err != nil {
			return nil, fmt.Errorf("what rank %d says that it has written: %w", rank, err)
		}
	}
	var err error
	if m.Files, m.Tensors, err = checkpoint.Merge(list); err != nil {
		return nil, err
	}
	m.Meta, err = w.about.fields()
	return m, err
}

// discard removes the draft of a save that has failed with err, on rank 0. If the group has failed, other ranks may still be
// writing to it: then it is left to the next job that saves there.
func (w *writer) discard(err error) error {
	var lost *ranks.LostError
	if w.draft == nil || errors.As(err, &lost) {
		return err
	}
	return errors.Join(err, w.store.Discard(w.draft))
}

// gather returns the bytes of every rank.
func (w *writer) gather(ctx context.Context, mine []byte) ([][]byte, error) {
	all, err := comm.GatherBytes(ctx, w.group, mine)
	if err != nil {
		return nil, &ranks.LostError{Err: fmt.Errorf("telling what was written: %w", err)}
	}
	return all, nil
}

// textOfFirst returns the text of rank 0.
func textOfFirst(ctx context.Context, g comm.Group, text string) (string, error) {
	if g.Rank() != 0 {
		text = ""
	}
	all, err := comm.GatherBytes(ctx, g, []byte(text))
	if err != nil {
		return "", &ranks.LostError{Err: fmt.Errorf("learning the path of the checkpoint: %w", err)}
	}
	return string(all[0]), nil
}
