package fsdp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/safetensors"
	"github.com/gofsdp/gofsdp/optim"
)

// Save writes a checkpoint into a directory of dir: parameters and buffers, the state of opt unless it is nil, the count that
// keys dropout, and what the options Extra and RankExtra add. Each rank writes what it owns into a file of its own; of replicas
// one does. All ranks must see dir. Gradients are no part of it, so it is best called after ZeroGrad.
//
//	err := m.Save(ctx, "ckpt", opt, fsdp.KeepLast(3), fsdp.Extra("scaler", scaler.State()))
//	c, err := m.Load(ctx, "ckpt", opt) // on any number of ranks
//	err = c.Extra("scaler", &state)
//
// A checkpoint has its name only once all of it is on disk: a crash at any time, or a full disk, leaves the earlier ones and
// nothing that Load would take for another. An error of one rank is one on all, and the training may go on. From the first Save
// until Close a lock keeps other jobs, and other models of this one, from saving in dir.
//
// Options: AtStep, KeepLast, Extra, RankExtra.
func (s *Sharded) Save(ctx context.Context, dir string, opt optim.Optimizer, opts ...StateOption) error {
	w, err := s.startSave(ctx, dir, opt, opts, false)
	if err != nil {
		return err
	}
	w.group, w.agreement = s.cfg.Group, s.team.Agreement
	_, err = w.run(ctx)
	var lost *ranks.LostError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &lost):
		return s.broken(fmt.Errorf("Save: %w", err))
	default:
		return fmt.Errorf("fsdp: rank %d: Save: %w", s.cfg.Group.Rank(), err)
	}
}

// startSave agrees with the other ranks on what to save. If it is to be asynchronous, there is room for a snapshot then.
func (s *Sharded) startSave(ctx context.Context, dir string, opt optim.Optimizer, opts []StateOption, asynchronous bool) (*writer, error) {
	err := s.settleSaving(ctx)
	if err == nil {
		err = s.usableWith(opt)
	}
	var w *writer
	if err == nil {
		w, err = s.newWriter(dir, opt, opts)
	}
	if err == nil && asynchronous {
		err = s.async.room(s.arena, w)
	}
	if err := s.agree(ctx, ranks.Ask{Call: "Save"}, err); err != nil {
		return nil, err
	}
	call := "Save"
	if asynchronous {
		call = "SaveAsync"
	}
	text := fmt.Sprintf("call of %s\ndirectory %s\nstep %d\nKeepLast %d\n%s\n", call, dir, w.step, w.keep, oneOrNone(opt))
	if err := s.team.Same(ctx, "arguments of Save", text); err != nil {
		return nil, fmt.Errorf("fsdp: rank %d: Save: %w", s.cfg.Group.Rank(), err)
	}
	return w, nil
}

// oneOrNone says whether a rank has given an optimizer.
func oneOrNone(opt optim.Optimizer) string {
	if opt == nil {
		return "no optimizer"
	}
	return "an optimizer"
}

// newWriter lists what this rank writes. Nothing is copied.
func (s *Sharded) newWriter(dir string, opt optim.Optimizer, opts []StateOption) (*writer, error) {
	o, err := s.stateOptions(opts, "AtStep", "KeepLast", "Extra", "RankExtra")
	switch {
	case err != nil:
		return nil, err
	case dir == "":
		return nil, errors.New("no directory is named")
	case slices.Contains(o.given, "AtStep") && o.step < 0:
		return nil, fmt.Errorf("AtStep(%d): steps count from 0", o.step)
	case slices.Contains(o.given, "KeepLast") && o.keep < 1:
		return nil, fmt.Errorf("KeepLast(%d): want at least 1", o.keep)
	}
	if dir, err = filepath.Abs(dir); err != nil { // other ranks may have other working directories
		return nil, err
	}
	w := &writer{
		fs: o.fs, step: o.step, keep: o.keep,
		open:  func(ctx context.Context) (*checkpoint.Store, error) { return s.lockedStore(ctx, o.fs, dir) },
		about: checkpointMeta{Seed: s.cfg.Seed, Forwards: s.forwards, Config: strings.Split(strings.TrimSpace(s.manifest(s.units)), "\n")},
	}
	for _, p := range s.trace.params {
		if p.Buffer {
			w.about.Buffers = append(w.about.Buffers, p.Name)
		}
	}
	if opt != nil {
		steps := opt.Steps()
		w.about.OptimizerSteps = &steps
		if w.step < 0 {
			w.step = steps
		}
	}
	w.step = max(w.step, 0)
	if w.about.Extra, err = encodeExtras("Extra", o.extra); err != nil {
		return nil, err
	}
	rankExtra, err := encodeExtras("RankExtra", o.rankExtra)
	if err == nil {
		w.rankExtra, err = json.Marshal(rankExtra)
	}
	if err != nil {
		return nil, err
	}
	w.parts, err = s.parts(opt)
	return w, err
}

// parts returns the pieces that this rank writes: of those that replicas hold too, its turn.
func (s *Sharded) parts(opt optim.Optimizer) ([]checkpoint.Part, error) {
	pieces, err := s.pieces(opt)
	if err != nil {
		return nil, err
	}
	parts := make([]checkpoint.Part, 0, len(pieces))
	for _, p := range pieces {
		g := s.groups[p.group]
		if r := g.mesh.Replica; r != nil && r.Rank() != p.group%r.Size() {
			continue
		}
		parts = append(parts, checkpoint.Part{Key: p.Key, DType: s.cfg.Precision.Compute.inFile(), Shape: p.shape, Steps: p.steps, Offset: p.offset, Data: p.data})
	}
	return parts, nil
}

// inFile returns the type's name in files.
func (d DType) inFile() safetensors.DType {
	return map[DType]safetensors.DType{Float32: safetensors.F32, Float64: safetensors.F64, BFloat16: safetensors.BF16, Float16: safetensors.F16}[d]
}

// lockedStore returns the store of dir, which rank 0 keeps until Close.
func (s *Sharded) lockedStore(ctx context.Context, fsys checkpoint.FS, dir string) (*checkpoint.Store, error) {
	if store := s.stores[dir]; store != nil {
		return store, nil
	}
	store, err := checkpoint.Open(fsys, dir)
	if err != nil {
		return nil, err
	}
	if err := store.Lock(ctx); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	set(&s.stores, dir, store)
	return store, nil
}
