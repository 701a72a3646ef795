package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/data"
	"github.com/gofsdp/gofsdp/fsdp/monitor"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// record is the part of a checkpoint that is neither model, optimizer nor position in the data.
type record struct {
	Flags   map[string]string // those that change the result of the training
	History monitor.State
}

// Names in a checkpoint: of the record, and of the position in the data.
const (
	recordName   = "run"
	positionName = "data"
)

// flags returns the flags that change the result of the training and that the shapes of the
// parameters do not show.
func (t *trainer) flags() map[string]string {
	flags := make(map[string]string)
	for name, v := range map[string]any{
		"heads": t.heads, "dropout": t.dropout, "seed": t.seed, "steps": t.steps, "time": t.budget, "batch": t.batch, "lr": t.lr,
		"warmup": t.warmup, "virtual": t.virtual, "tokenizer": t.vocab.name,
		"data": fmt.Sprintf("CRC-32 %08x", t.text.train.sum),
	} {
		flags[name] = fmt.Sprint(v)
	}
	return flags
}

// restore gives the model its initial state: a checkpoint, or the weights in a file. Otherwise the
// weights stay random.
func (t *trainer) restore(ctx context.Context) error {
	found := []byte{0}
	if t.saveDir != "" && t.group.Rank() == 0 {
		latest, err := fsdp.LatestCheckpoint(t.saveDir)
		switch {
		case err == nil && filepath.Clean(latest) == filepath.Clean(t.saveDir):
			return fmt.Errorf("-save %s is a checkpoint: name the directory that it is in", t.saveDir)
		case err == nil:
			found[0] = 1
		case !errors.Is(err, fsdp.ErrNoCheckpoint):
			return err
		case t.resume:
			t.screen.Printf("starting anew: %v\n\n", err)
		}
	}
	if err := t.group.Broadcast(comm.Of(found).Named("checkpoint found"), 0).Wait(ctx); err != nil {
		return err
	}
	switch {
	case found[0] == 1 && t.resume:
		return t.load(ctx)
	case found[0] == 1:
		return fmt.Errorf("%s has checkpoints of another run: continue from them with -resume, or -save to another directory", t.saveDir)
	}
	return t.watch(monitor.State{})
}

// load continues from the newest checkpoint, which any number of ranks may have saved.
func (t *trainer) load(ctx context.Context) error {
	checkpoint, err := t.model.Load(ctx, t.saveDir, t.opt, nil)
	if err != nil {
		return fmt.Errorf("a model of %s: %w", t.vocab.name, err)
	}
	var r record
	var at data.Position
	if err := errors.Join(checkpoint.Extra(recordName, &r), checkpoint.Extra(positionName, &at)); err != nil {
		return err
	}
	now := t.flags()
	for _, name := range []string{"heads", "tokenizer"} { // the shapes may be the same
		if r.Flags[name] != now[name] {
			return fmt.Errorf("%s: it is a model of %s %s, want %s", checkpoint.Path, name, r.Flags[name], now[name])
		}
	}
	at.Source, at.Sum = t.batches.Position().Source, "" // another text is a warning below
	if err := t.batches.Resume(at); err != nil {
		return err
	}
	t.saved = t.opt.Steps()
	if err := t.watch(r.History); err != nil {
		return err
	}
	t.screen.Printf("resumed after step %d from %s,\n  which %d ranks saved\n", t.opt.Steps(), checkpoint.Path, checkpoint.World)
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if was, ok := r.Flags[name]; ok && was != now[name] {
			t.screen.Printf("warning: -%s is %s, it was %s\n", name, now[name], was)
		}
	}
	t.screen.Printf("\n")
	return nil
}

// save begins to write a checkpoint, and the training continues meanwhile. If the last checkpoint
// has failed, save returns its error only if none was complete so far, because then the directory
// may be unusable.
func (t *trainer) save(ctx context.Context) error {
	if t.finishSave(ctx); t.saveErr != nil && t.saved == 0 {
		return t.saveErr
	}
	s, err := t.model.SaveAsync(ctx, t.saveDir, t.opt, &fsdp.SaveOptions{KeepLast: t.keep, Extra: map[string]any{
		recordName: record{t.flags(), t.mon.State()}, positionName: t.batches.Position(),
	}})
	if err != nil {
		return fmt.Errorf("saving after step %d: %w", t.opt.Steps(), err)
	}
	t.saving, t.savingStep = s, t.opt.Steps()
	t.mon.Saving(s)
	return nil
}

// finishSave waits for the checkpoint that is being written, if there is one, and reports it.
func (t *trainer) finishSave(ctx context.Context) {
	if t.saving == nil {
		return
	}
	s := t.saving
	t.saving = nil
	// If another rank has ended ctx, this rank still reports how the save ended. A failed group ends
	// it.
	if t.saveErr = s.Wait(context.WithoutCancel(ctx)); t.saveErr != nil {
		t.screen.Printf("step %d  not saved: %v\n", t.savingStep, t.saveErr)
		return
	}
	t.saved = t.savingStep
	_, size := s.Progress()
	t.screen.Printf("step %d  saved %s: %s/rank; training waited for %v\n", t.saved, filepath.Base(s.Path()), monitor.Bytes(int(size)), s.Stalled().Round(time.Millisecond))
}

// reportSave reports the checkpoint that is being written if it is complete.
func (t *trainer) reportSave(ctx context.Context) {
	if t.saving == nil {
		return
	}
	select {
	case <-t.saving.Done():
		t.finishSave(ctx)
	default:
	}
}

// saveLast saves the last state of the run, unless that is saved, and waits for it.
func (t *trainer) saveLast(ctx context.Context) error {
	if t.saveDir == "" {
		return nil
	}
	t.finishSave(ctx)
	if t.saved == t.opt.Steps() {
		return nil
	}
	if err := t.save(ctx); err != nil {
		return err
	}
	t.finishSave(ctx)
	return t.saveErr
}

// export writes the weights to a file, with facts that their shapes do not show.
func (t *trainer) export(ctx context.Context) error {
	opts := nn.ToGPT2("")
	opts.Metadata = map[string]string{"heads": fmt.Sprint(t.heads), "step": fmt.Sprint(t.opt.Steps())}
	err := t.model.Export(ctx, t.exportTo, opts)
	if err == nil {
		t.screen.Printf("  weights: %s\n", t.exportTo)
	}
	return err
}
