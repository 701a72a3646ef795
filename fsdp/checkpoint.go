package fsdp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/fsdp/internal/state"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/launch"
	"github.com/gofsdp/gofsdp/internal/phase"
	"github.com/gofsdp/gofsdp/optim"
)

// Save writes a checkpoint into a directory of dir: parameters and buffers, the state of opt unless
// it is nil, the count that keys dropout, and the values of the options Extra and RankExtra. Each
// rank writes its shards into a separate file. One of several replicas writes. All ranks must see
// dir. Gradients are not saved, so it is best called after ZeroGrad.
//
//	err := m.Save(ctx, "ckpt", opt, &fsdp.SaveOptions{KeepLast: 3, Extra: map[string]any{"scaler": scaler.State()}})
//	c, err := m.Load(ctx, "ckpt", opt, nil) // on any number of ranks
//	err = c.Extra("scaler", &state)
//
// A checkpoint gets its name once all of it is on disk. A crash at any time, or a full disk, leaves
// the earlier ones, and nothing that Load would take for a checkpoint. An error of one rank is an
// error on all, and the training may continue. If optimizers of ranks differ for a parameter, such
// as in the bits of moments or in the number of steps, that is an error on all ranks, too. From the
// first Save until Close a lock keeps other jobs, and other models of this job, from saving in dir.
// If dir has checkpoints that this training has neither saved nor loaded, the first Save there is a
// warning on rank 0, and KeepLast does not remove them. A training that loads a checkpoint and then
// saves in the same directory continues the training that saved it. If it saves in another
// directory, it is a new training.
//
// With SaveOptions.TrainedOnly the checkpoint lacks the frozen parameters. It is then as small as
// the part of the model that is trained.
//
// Save does not change the training, with one exception: gradients that travel as [Int8] lose their
// pending rounding errors. The training and a training that loads the checkpoint then continue with
// the same bits.
//
// If the file system stops responding, Save returns an error that names the file: when ctx ends, or
// when one operation has taken as long as the timeout of the group (FSDP_TIMEOUT). A warning comes
// after half of it, or 30 s. The next Save is refused until that operation has ended.
//
// Values that are NaN or infinite are an error that names the rank and the tensor, and nothing is
// saved: a training that has diverged does not replace its last good checkpoint. See
// SaveOptions.AllowNotFinite.
//
// If several ranks have the same parameters (NoShard, HybridShard, Config.Ignored), Save compares
// checksums of them and of the optimizer's state. If replicas have diverged, such as by damaged
// memory or different processors, that is an error that names the tensor and the ranks, and nothing
// is saved. Buffers that differ between ranks are a warning, see AverageBuffers.
func (s *Sharded) Save(ctx context.Context, dir string, opt optim.Optimizer, opts *SaveOptions) error {
	if err := s.busy.enter("Save"); err != nil {
		return err
	}
	defer s.busy.leave()
	defer phase.Begin("fsdp: saving in "+dir, 0).End()
	st, about := s.saving(ctx, opt, opts)
	return st.end(s.saver.Save(ctx, &st.Store, dir, opt, opts.state(ctx), about))
}

// SaveAsync is Save that writes while the training continues: it copies this rank's data and
// returns, and the optimizer may step at once. The copy takes memory, or files if
// Config.Offload.Dir is set. The memory is kept for the next SaveAsync until Close. ctx bounds the
// copy only.
//
// One checkpoint is written at a time: the next Save, SaveAsync or Load waits for it. If it has
// failed and no Wait has returned the error, the next Save returns it instead of saving, and so
// does Close. A pass that fails does not stop the write: it is completed as long as no rank is
// gone. A program that ends without Wait or Close may end in the middle of the write, and that
// checkpoint does not count.
func (s *Sharded) SaveAsync(ctx context.Context, dir string, opt optim.Optimizer, opts *SaveOptions) (*Saving, error) {
	if err := s.busy.enter("SaveAsync"); err != nil {
		return nil, err
	}
	defer s.busy.leave()
	st, about := s.saving(ctx, opt, opts)
	v, err := s.saver.SaveAsync(ctx, &st.Store, dir, opt, opts.state(ctx), about)
	if err != nil {
		return nil, st.end(err)
	}
	return &Saving{v, s.team.Rank()}, nil
}

// newSaver returns a Saver whose fields no later method changes: a save that the file system delays
// may still read them.
func newSaver(team *ranks.Team, logger *slog.Logger) state.Saver {
	return state.Saver{
		Side: func(ctx context.Context) (state.Team, error) { return newSideTeam(ctx, team) },
		Strange: func(dir, last string, err error) {
			cmp.Or(logger, slog.Default()).Warn("fsdp: Save writes to a directory with checkpoints that this training has neither saved nor loaded: "+
				"Load the last one, or give each training its own directory. KeepLast does not remove them", "directory", dir, "last", last, "error", err)
		},
	}
}

// saving prepares for Save, and returns the description of the model for a checkpoint.
func (s *Sharded) saving(ctx context.Context, opt optim.Optimizer, opts *SaveOptions) (*store, state.Meta) {
	err := s.saver.Settle(ctx)
	if err == nil {
		err = s.checkOptim("Save", opt)
	}
	if err == nil && opts != nil && opts.TrainedOnly && s.life.moved != "" {
		err = fmt.Errorf("option TrainedOnly: the frozen parameter %s has changed by optim.UpdateEMA, and the checkpoint would lack it: leave out the option", s.life.moved)
	}
	about := state.Meta{Seed: s.cfg.Seed, Forwards: s.forwards}
	if s.engine.MidStep() > 0 { // the step begins anew: gradients are not saved
		about.Forwards--
	}
	if err == nil {
		text := manifest(&s.cfg, s.trace, s.layout.Model, s.units)
		about.Config = strings.Split(strings.TrimSpace(text), "\n")
	}
	return s.store(ranks.Ask{Call: "Save"}, err), about
}

// Load continues from the last complete checkpoint in dir, or from dir if it is a checkpoint
// itself: parameters and buffers, the state of opt unless it is nil, and the count that keys
// dropout. The returned Checkpoint has the user's saved values. The number of ranks, the
// strategies, the units and the precision may differ from those at Save: each rank reads the shards
// that it owns now. A buffer belongs to a rank, so a rank beyond the saved ones takes the buffer of
// rank mod World. Without a checkpoint the error is ErrNoCheckpoint, on every rank.
//
// Names, shapes and options are checked first. Any mismatch is a *StateError on every rank, which
// names all of them, and nothing has changed. That includes state of an optimizer that was not
// saved, or that belongs to parameters which are frozen now, unless AllowMissing or AllowExtra
// accepts it. If ranks differ in a tensor, such as a buffer, these options are asked for its name
// with the rank and without. A later error, such as a damaged file, leaves parameters that are only
// partly loaded: the model refuses passes, steps and Save until another Load or Import succeeds. If
// that Load or Import is without the optimizer, the optimizer still refuses to step and to be
// saved: load it again, or make a new one.
//
// Frozen parameters that the checkpoint lacks (SaveOptions.TrainedOnly) keep their values. They
// must be frozen here, too, and have the values of the time of Save, which Load checks by
// checksums: load the base model first. Adapters of another base would make another model.
//
// An optimizer of another kind than the saved one does not fit, unless AllowMissing and AllowExtra
// accept that no entry is loaded. If other settings differ, such as betas or weight decay, the
// optimizer keeps its current ones, and rank 0 logs a warning to Config.Logger or [slog.Default].
// RestoreHyperparameters takes the saved ones. Checkpoints of earlier versions do not have
// settings, and nothing is compared. The learning rate is an argument of every Step: the schedule
// continues with Steps, and the checkpoint has the last rate, see [optim.Settings]. State in 8 or
// 16 bits is saved as the float32 numbers that it stands for. Optimizers with other numbers of bits
// can load it, with the same warning. 16-bit state comes back to the bit, and 8-bit state does on
// as many ranks as saved it.
//
// If the manifest or a file of a checkpoint is damaged, cut short or missing, Load takes an older
// checkpoint. Rank 0 logs a warning to Config.Logger or [slog.Default], with the reason and the
// steps that are lost. Damage that shows only when the data is read is an error on every rank, with
// the file, the tensor, the bytes, the checksums, and the older checkpoint if there is one. Values
// that are NaN or infinite are an error, too, unless AllowNotFinite accepts them. AllowOlder
// changes all of this.
//
// If the file system stops responding, Load and Import return an error that names the file, as Save
// does. The next Load or Import is refused until that operation has ended, as it may still change
// parameters.
//
// Load drops the gradients, and a Forward that waits for its Backward. It fails while a pass is put
// aside by Hold.
func (s *Sharded) Load(ctx context.Context, dir string, opt optim.Optimizer, opts *LoadOptions) (*Checkpoint, error) {
	if err := s.busy.enter("Load"); err != nil {
		return nil, err
	}
	defer s.busy.leave()
	defer phase.Begin("fsdp: loading "+dir, 0).End()
	err := s.checkReplace("Load", opt)
	if err == nil {
		err = s.saver.Await(ctx) // it may be about to become the latest
	}
	st := s.store(ranks.Ask{Call: "Load"}, err)
	l, err := st.PlanLoad(ctx, dir, opt, opts.state(ctx))
	if err != nil {
		return nil, st.end(err)
	}
	defer l.Close() // which was only read: there is nothing to lose by it
	for _, e := range l.Passed {
		cmp.Or(s.cfg.Logger, slog.Default()).Warn("fsdp: Load skips a damaged checkpoint and loads an older one",
			"damaged", e.Path, "error", e.Err, "taken", l.Path, "steps lost", e.Step-l.Step)
	}
	if err := st.replace(ctx, "a Load of "+l.Path, &l.Filling); err != nil {
		return nil, err
	}
	st.differ(l.Differ)
	s.forwards = l.About.Forwards
	s.saver.Took(&l.About)
	s.hashes.At(l.Step)
	return &Checkpoint{Path: l.Path, Step: l.Step, World: l.World, about: l.About}, nil
}

// A MemoryCheckpoint keeps the last step of a training in the memory of its ranks: each rank keeps
// its own shards and optimizer state, and a copy of another rank's. After the loss of a rank the
// others connect a new group, with a spare rank or without, and continue from that step. The zero
// MemoryCheckpoint is empty. A spare rank begins with one. It belongs to one goroutine.
//
//	var last fsdp.MemoryCheckpoint
//	for step < steps {
//		err := train(step) // ends with last.Save(ctx, m, opt, nil), after Step and ZeroGrad
//		if err == nil {
//			step++
//			continue
//		}
//		if lost := new(comm.RankError); !errors.As(err, &lost) {
//			return err // another try would fail, too
//		}
//		group, m, opt = begin() // the program's: comm.Reconnect, Wrap and New
//		c, err := last.Load(ctx, m, opt)
//		if err != nil {
//			return err
//		}
//		step = c.Step
//	}
//
// A rank keeps three shares of parameters and optimizer state: its own, its neighbour's, and memory
// for the next copy. It keeps two shares of frozen parameters, which are sent again only if a
// program may have changed them. Ranks with the same shards, as in NoShard, need no copies of them.
// The memory does not belong to a model: Close may come before Load. [Plan].MemoryBytes counts it.
type MemoryCheckpoint struct {
	// Distance says whose copy a rank keeps: rank r keeps the copy of rank r+Distance, modulo their
	// number. 0 means 1. If it is the number of ranks of a host, all ranks of one host may be lost. It
	// is the same on all ranks.
	Distance int

	kept state.Kept
}

// These are the names of its methods.
const (
	saveMemory = "MemoryCheckpoint.Save"
	loadMemory = "MemoryCheckpoint.Load"
)

// Save replaces the step in memory: parameters and buffers, the state of opt unless it is nil, the
// count that keys dropout, and extra, which is encoded as JSON. It is a collective: call it after
// Step and ZeroGrad, as gradients are not saved. Each rank sends its share to the rank that keeps
// the copy. The former step stays until all ranks have the new one, so a rank may be lost at any
// moment.
func (c *MemoryCheckpoint) Save(ctx context.Context, s *Sharded, opt optim.Optimizer, extra map[string]any) error {
	if err := s.busy.enter(saveMemory); err != nil {
		return err
	}
	defer s.busy.leave()
	return c.save(ctx, s, opt, state.Meta{Run: s.saver.Name(), Seed: s.cfg.Seed, Forwards: s.forwards}, extra)
}

// save is Save for a caller that holds the lock. about has Extra if extra is nil.
func (c *MemoryCheckpoint) save(ctx context.Context, s *Sharded, opt optim.Optimizer, about state.Meta, extra map[string]any) error {
	err := s.checkOptim(saveMemory, opt)
	if c.Distance < 0 && err == nil {
		err = fmt.Errorf("the Distance of the MemoryCheckpoint is %d: want a number of ranks, or 0 for 1", c.Distance)
	}
	c.kept.Distance = max(1, c.Distance)
	st := s.store(ranks.Ask{Call: saveMemory, Detail: fmt.Sprintf(" with Distance %d", c.kept.Distance)}, err)
	stamp := state.Stamp{Layout: s.layout, Changes: s.life.frozen.changes, Always: s.life.frozen.lent}
	err = c.kept.Keep(ctx, &st.Store, opt, about, extra, stamp)
	s.life.kept = c.kept.Bytes()
	return st.end(err)
}

// Load gives a training the latest step of which the ranks of its group have all shares, and then
// saves it there. Ranks that were not in the lost group have an empty MemoryCheckpoint. The number
// of ranks, the strategies, the units and the precision may differ, as for [Sharded.Load]. With
// Config.VirtualRanks the training continues with the same bits as if no rank had been lost. A rank
// keeps its own buffers, and a rank that joins gets the buffers of a lost one.
//
// Step of the Checkpoint is the optimizer's number of steps. After an error of a lost rank the
// program may connect again and call Load again, with another model. If a rank is lost together
// with the rank that has its copy, or if no rank has a step in memory, the error names the ranks
// and wraps ErrNoCheckpoint. Then nothing has changed, and the program may call [Sharded.Load].
func (c *MemoryCheckpoint) Load(ctx context.Context, s *Sharded, opt optim.Optimizer) (*Checkpoint, error) {
	if err := s.busy.enter(loadMemory); err != nil {
		return nil, err
	}
	defer s.busy.leave()
	st := s.store(ranks.Ask{Call: loadMemory}, s.checkReplace(loadMemory, opt))
	plan, err := c.kept.PlanRestore(ctx, &st.Store, opt)
	if err != nil {
		return nil, st.end(err)
	}
	defer plan.Close()
	if err := st.replace(ctx, "a MemoryCheckpoint.Load", plan); err != nil {
		return nil, err
	}
	s.forwards = plan.About.Forwards
	if plan.About.Run != "" {
		s.saver.Took(&plan.About)
	}
	s.hashes.At(plan.Step())
	if err := c.save(ctx, s, opt, plan.About, nil); err != nil {
		return nil, err
	}
	return &Checkpoint{Path: "in memory", Step: plan.Step(), World: plan.World, about: plan.About}, nil
}

// A Checkpoint describes the checkpoint that Load has loaded.
type Checkpoint struct {
	Path  string // directory of the checkpoint, in the one of all checkpoints; "in memory" for a MemoryCheckpoint
	Step  int    // of the training
	World int    // number of ranks that wrote it
	about state.Meta
}

// ErrNoCheckpoint is wrapped by the error of Load and LatestCheckpoint if no save has been
// completed yet, as at the start of a first run. On every rank it is an [fs.ErrNotExist], too. If
// there are checkpoints and all of them are damaged, the error is another one, so that no training
// starts over unnoticed.
var ErrNoCheckpoint error = checkpoint.ErrNone

// ErrNoExtra is wrapped by the error of Checkpoint.Extra and RankExtra if nothing was saved under
// the name.
var ErrNoExtra = errors.New("not in the checkpoint")

// LatestCheckpoint returns the directory of the last checkpoint in dir that is complete, or dir if
// it is one itself. Like Load it skips checkpoints whose damage shows without the data, but it does
// not warn. If the file system stops responding, it returns an error after FSDP_TIMEOUT, or 10
// minutes.
func LatestCheckpoint(dir string) (path string, err error) {
	return latest(checkpoint.OS(), dir)
}

func latest(fsys checkpoint.FS, dir string) (path string, err error) {
	limit, err := launch.Timeout(os.Getenv)
	if err == nil {
		limit = cmp.Or(limit, 10*time.Minute)
		ctx, cancel := context.WithTimeoutCause(context.Background(), limit,
			fmt.Errorf("the file system does not answer within %v (FSDP_TIMEOUT)", limit))
		defer cancel()
		path, err = checkpoint.Latest(ctx, fsys, dir)
	}
	if err != nil {
		return "", fmt.Errorf("fsdp: %w", state.Lasting(err))
	}
	return path, nil
}

// Extra decodes into v, a pointer, the value that the option Extra has saved under that name.
func (c *Checkpoint) Extra(name string, v any) error {
	return c.decode("Extra %q", name, c.about.Extra, v)
}

// RankExtra decodes into v the value that the option RankExtra has saved under that name on a rank
// of the World that saved.
func (c *Checkpoint) RankExtra(name string, rank int, v any) error {
	if rank < 0 || rank >= len(c.about.RankExtra) {
		return fmt.Errorf("fsdp: checkpoint %s: RankExtra %q of rank %d: the checkpoint was written by %d ranks", c.Path, name, rank, c.World)
	}
	return c.decode(fmt.Sprintf("RankExtra %%q of rank %d", rank), name, c.about.RankExtra[rank], v)
}

// decode decodes the value of a name. format describes the name in an error.
func (c *Checkpoint) decode(format, name string, values map[string]json.RawMessage, v any) error {
	text, ok := values[name]
	err := fmt.Errorf("%w, which has %q there", ErrNoExtra, slices.Sorted(maps.Keys(values)))
	if ok {
		if err = json.Unmarshal(text, v); err == nil {
			return nil
		}
		var saved bytes.Buffer
		if json.Compact(&saved, text) == nil {
			err = fmt.Errorf("%w: it was saved as %.100s", err, saved.String())
		}
	}
	return fmt.Errorf("fsdp: checkpoint %s: %s: %w", c.Path, fmt.Sprintf(format, name), err)
}

// A Saving is a checkpoint that is being written while the training goes on. Its methods may be
// called from any goroutine.
type Saving struct {
	saving *state.Saving
	rank   int
}

// Wait returns when the checkpoint is complete on disk, or the error that it ended with on every
// rank.
func (v *Saving) Wait(ctx context.Context) error {
	var err error
	select {
	case <-v.saving.Done:
		v.saving.Seen.Store(true)
		err = v.saving.Err
	case <-ctx.Done():
		err = fmt.Errorf("waiting for a checkpoint to be written: %w", context.Cause(ctx))
	}
	if err != nil {
		return fmt.Errorf("fsdp: rank %d: %w", v.rank, err)
	}
	return nil
}

// Done is closed when Wait does not have to wait.
func (v *Saving) Done() <-chan struct{} { return v.saving.Done }

// Progress returns how many bytes of this rank's part are written, and the size of the part.
func (v *Saving) Progress() (done, total int64) { return v.saving.Written.Load(), v.saving.Total }

// Stalled returns how long SaveAsync has kept the training waiting.
func (v *Saving) Stalled() time.Duration { return v.saving.Stalled }

// Path returns the directory of the checkpoint, or "" until it is complete.
func (v *Saving) Path() string {
	select {
	case <-v.saving.Done:
		return v.saving.Path
	default:
		return ""
	}
}
