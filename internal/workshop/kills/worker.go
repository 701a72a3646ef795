package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// workerVariable is set in the environment of workers.
const workerVariable = "GOFSDP_KILLS_WORKER"

// work is the program of a worker: it is a rank of one group after the other. An order ends the
// group before.
func work(in io.Reader, out io.Writer) {
	type job struct {
		order
		ctx context.Context
	}
	jobs := make(chan job)
	go func() {
		end := func(error) {}
		for d := json.NewDecoder(in); ; {
			var j job
			if err := d.Decode(&j.order); err != nil {
				os.Exit(0) // the parent has ended
			}
			end(errors.New("the parent has made another group"))
			j.ctx, end = context.WithCancelCause(context.Background())
			jobs <- j
		}
	}()
	r := rank{say: func(e event) {
		if err := json.NewEncoder(out).Encode(e); err != nil {
			os.Exit(3)
		}
	}}
	for j := range jobs {
		r.order = j.order
		if err := r.train(j.ctx); err != nil {
			r.tell("lost", 0, err.Error())
		}
	}
}

// A rank is a worker in a group.
type rank struct {
	order
	say   func(event)
	last  fsdp.MemoryCheckpoint
	group comm.Group
	model *fsdp.Sharded
	opt   optim.Optimizer
}

func (r *rank) tell(what string, step int, text string) {
	r.say(event{What: what, Group: r.Group, Step: step, Text: text})
}

// train trains to the end, or until a rank is lost.
func (r *rank) train(ctx context.Context) error {
	former := r.group // Close waits for ranks that may be alive: it comes when the training continues
	if r.model != nil {
		_ = r.model.Close() // it says once more that a rank is lost
	}
	r.model, r.group = nil, nil
	step, err := r.begin(ctx)
	if err == nil {
		r.tell("ready", 0, "")
	}
	if former != nil {
		go func() { _ = former.Close() }() // likewise
	}
	for ; err == nil && step < steps; step++ {
		if err = r.step(ctx, step); err == nil {
			r.tell("step", step+1, "")
		}
	}
	if err != nil {
		return err
	}
	hash, err := r.hash(ctx)
	if err == nil {
		r.tell("end", 0, hash)
	}
	return err
}

// begin connects, makes the training, and returns its next step.
func (r *rank) begin(ctx context.Context) (step int, err error) {
	cfg := comm.Config{
		Rank: r.Rank, Size: r.Size, LocalRank: -1, Rendezvous: "file://" + r.Dir, Job: fmt.Sprint("kills/", r.Group),
		Secret: []byte("known to this program only"), Timeout: patience, JoinTimeout: patience, Transport: comm.TCP,
	}
	if r.Shared {
		cfg.Transport = comm.SharedMemory
	}
	if r.group, err = comm.Connect(ctx, cfg); err != nil {
		return 0, err
	}
	model := &nn.GPT{Vocab: 61, Context: 16, Layers: 2, Dim: 32, Heads: 4, Dropout: 0.1}
	if r.model, err = fsdp.Wrap(model, fsdp.Config{Group: r.group, VirtualRanks: r.Virtual, Seed: 3, WrapPolicy: fsdp.WrapEach()}); err != nil {
		return 0, err
	}
	if r.opt, err = (optim.AdamW{WeightDecay: 0.1}).New(r.model.Params()); err != nil {
		return 0, err
	}
	if r.Group == 0 {
		return 0, nil
	}
	var c *fsdp.Checkpoint
	if r.Files {
		c, err = r.model.Load(ctx, r.files(), r.opt, nil)
	} else {
		c, err = r.last.Load(ctx, r.model, r.opt)
	}
	if errors.Is(err, fsdp.ErrNoCheckpoint) {
		r.tell("anew", 0, err.Error())
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return c.Step, c.Extra("next", &step)
}

// files is the directory of checkpoints in files.
func (r *rank) files() string { return filepath.Join(filepath.Dir(r.Dir), "checkpoints") }

// step makes a step.
func (r *rank) step(ctx context.Context, step int) error {
	each := r.Virtual / r.Size
	for k := range each {
		at := k*r.Size + r.Rank
		run := func(f func() error) error { return f() }
		if r.Size&(r.Size-1) != 0 { // the order of virtual ranks depends on the number of ranks
			if at = r.Rank*each + k; k < each-1 {
				run = r.model.NoSync
			}
		}
		err := run(func() error {
			if _, err := r.model.Forward(ctx, tokens(2*(step*r.Virtual+at)), tokens(2*(step*r.Virtual+at)+1)); err != nil {
				return err
			}
			return r.model.Backward(ctx)
		})
		if err != nil {
			return err
		}
	}
	if _, err := r.model.ClipGradNorm(ctx, 0.5); err != nil {
		return err
	}
	if err := r.opt.Step(1e-3); err != nil {
		return err
	}
	r.model.ZeroGrad()
	extra := map[string]any{"next": step + 1}
	if r.Files {
		return r.model.Save(ctx, r.files(), r.opt, &fsdp.SaveOptions{KeepLast: 2, Extra: extra})
	}
	return r.last.Save(ctx, r.model, r.opt, extra)
}

// tokens returns a batch of a seed.
func tokens(seed int) *tensor.Dense {
	const rows, cols = 2, 16
	data := make([]int, rows*cols)
	for i := range data {
		data[i] = (seed*7919 + i*i*31 + i*seed) % 61
	}
	return tensor.New(tensor.WithShape(rows, cols), tensor.WithBacking(data))
}

// hash returns a hash of the whole state on rank 0, and "" on the others.
func (r *rank) hash(ctx context.Context) (string, error) {
	values, err := r.model.StateDict(ctx, nil)
	if err != nil {
		return "", err
	}
	state, err := r.model.OptimStateDict(ctx, r.opt, nil)
	if err != nil || r.Rank != 0 {
		return "", err
	}
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(values)) {
		fmt.Fprint(h, name)
		_ = binary.Write(h, binary.LittleEndian, values[name].Data()) // a hash takes all
	}
	for _, e := range state.Entries() {
		fmt.Fprint(h, e.Param, e.Name, e.Steps)
		_ = binary.Write(h, binary.LittleEndian, e.Data.(optim.Host).F32)
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8]), nil
}
