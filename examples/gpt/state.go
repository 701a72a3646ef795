package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/data"
	"github.com/gofsdp/gofsdp/fsdp/monitor"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// record is what a checkpoint holds of a run beside the model and the optimizer: what it takes to
// go on as if the run had never stopped.
type record struct {
	Flags   map[string]string // those that change what is learned
	History monitor.State
}

// Names in a checkpoint: of the record, and of the position in the data.
const (
	recordName   = "run"
	positionName = "data"
)

func (t *trainer) record() record { return record{t.flags(t.text), t.mon.State()} }

// flags returns what changes the course of the training, and is not seen from the shapes of the
// parameters.
func (c *config) flags(text *corpus) map[string]string {
	flags := map[string]any{
		"heads": c.heads, "dropout": c.dropout, "seed": c.seed, "steps": c.steps, "time": c.budget, "batch": c.batch, "lr": c.lr,
		"warmup": c.warmup, "data": fmt.Sprintf("text of %d bytes and checksum %08x", text.train.bytes, text.train.sum), "tokenizer": c.vocab,
	}
	if c.muon {
		flags["muon"] = true
	}
	if c.virtual > 0 {
		flags["virtual"] = c.virtual
	}
	values := make(map[string]string)
	for name, v := range flags {
		values[name] = fmt.Sprint(v)
	}
	return values
}

// differences lists the flags that are not what they were.
func differences(was, now map[string]string) (list []string) {
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if was[name] != now[name] {
			list = append(list, fmt.Sprintf("-%s is %s, it was %s", name, now[name], was[name]))
		}
	}
	return list
}

// restore gives the model the state that the run begins with: that of a checkpoint, or the weights
// in a file. Otherwise they stay random.
func (t *trainer) restore(ctx context.Context) error {
	if t.saveDir != "" {
		found, err := t.hasCheckpoint(ctx)
		switch {
		case err != nil:
			return err
		case found && t.resume:
			return t.load(ctx)
		case found:
			return fmt.Errorf("%s has checkpoints of another run: go on from them with -resume, or -save to another directory", t.saveDir)
		}
	}
	if t.importFrom != "" {
		return t.importWeights(ctx)
	}
	return nil
}

// hasCheckpoint says whether there is one to go on from. All ranks take rank 0's word for it, so
// that none goes another way.
func (t *trainer) hasCheckpoint(ctx context.Context) (bool, error) {
	found := []byte{0}
	if t.group.Rank() == 0 {
		latest, err := fsdp.LatestCheckpoint(t.saveDir)
		switch {
		case err == nil && filepath.Clean(latest) == filepath.Clean(t.saveDir):
			return false, fmt.Errorf("-save %s is a checkpoint: name the directory that it is in", t.saveDir)
		case err == nil:
			found[0] = 1
		case !errors.Is(err, fsdp.ErrNoCheckpoint):
			return false, err
		case t.resume:
			t.screen.Printf("starting anew: %v\n\n", err)
		}
	}
	err := t.group.Broadcast(comm.Of(found).Named("checkpoint found"), 0).Wait(ctx)
	return found[0] == 1, err
}

// load goes on from the newest checkpoint. It may be of any number of ranks.
func (t *trainer) load(ctx context.Context) error {
	checkpoint, err := t.model.Load(ctx, t.saveDir, t.opt, nil)
	if err != nil {
		return fmt.Errorf("a model of %v: %w", t.vocab, err)
	}
	var r record
	if err := checkpoint.Extra(recordName, &r); err != nil {
		return err
	}
	now := t.flags(t.text)
	if r.Flags["heads"] != now["heads"] { // the shapes would be the same
		return fmt.Errorf("%s: the model has %s heads, this one has %s", checkpoint.Path, r.Flags["heads"], now["heads"])
	}
	if r.Flags["tokenizer"] != now["tokenizer"] {
		return fmt.Errorf("%s: the model has learned %s, this one has %s, see -tokenizer", checkpoint.Path, r.Flags["tokenizer"], now["tokenizer"])
	}
	var at data.Position
	if err := checkpoint.Extra(positionName, &at); err != nil {
		return err
	}
	at.Source, at.Sum = t.batches.Position().Source, "" // other text is a warning below
	if err := t.batches.Resume(at); err != nil {
		return err
	}
	t.saves.last = t.opt.Steps()
	if err := t.watch(r.History); err != nil {
		return err
	}
	t.screen.Printf("resumed after step %d from %s,\n  which %d ranks saved\n", t.opt.Steps(), checkpoint.Path, checkpoint.World)
	for _, d := range differences(r.Flags, now) {
		t.screen.Printf("warning: %s\n", d)
	}
	t.screen.Printf("\n")
	return nil
}

// saves is what is known of the checkpoints of a run.
type saves struct {
	under *fsdp.Saving         // way, or nil
	step  int                  // that it is of
	took  <-chan time.Duration // gives the time to write it, once it is written
	size  int                  // bytes of this rank's part of it
	last  int                  // step of the last one that is complete, or that the run has begun with
	works bool                 // one of this run is complete
	err   error                // of the last one that ended
}

// save begins a checkpoint. The training goes on while it is written. It goes on without one that
// has failed, too, unless none has worked yet: then the directory will not do.
func (t *trainer) save(ctx context.Context) error {
	if t.settle(ctx); t.saves.err != nil && !t.saves.works {
		return t.saves.err
	}
	begin, step := time.Now(), t.opt.Steps()
	s, err := t.model.SaveAsync(ctx, t.saveDir, t.opt, &fsdp.SaveOptions{KeepLast: t.keep, Extra: map[string]any{recordName: t.record(), positionName: t.batches.Position()}})
	if err != nil {
		return fmt.Errorf("saving after step %d: %w", step, err)
	}
	took := make(chan time.Duration, 1)
	go func() {
		<-s.Done()
		took <- time.Since(begin)
	}()
	t.mon.Saving(s)
	_, size := s.Progress()
	t.saves.under, t.saves.step, t.saves.took, t.saves.size = s, step, took, int(size)
	return nil
}

// look reports the checkpoint under way if it is complete.
func (t *trainer) look(ctx context.Context) {
	if t.saves.under == nil {
		return
	}
	select {
	case <-t.saves.under.Done():
		t.settle(ctx)
	default:
	}
}

// settle waits for the checkpoint under way, if there is one, and reports it.
func (t *trainer) settle(ctx context.Context) {
	s := &t.saves
	if s.under == nil {
		return
	}
	saving := s.under
	s.under = nil
	// If ctx ends because of another rank, this one should still hear how the save ended. A failed
	// group ends it.
	if s.err = saving.Wait(context.WithoutCancel(ctx)); s.err != nil {
		t.screen.Printf("step %d  not saved: %v\n", s.step, s.err)
		return
	}
	s.last, s.works = s.step, true
	took := <-s.took
	t.screen.Printf("step %d  saved %s: %s/rank in %.2fs, %s/s;\n  training stood still for %v\n", s.step, filepath.Base(saving.Path()),
		monitor.Bytes(s.size), took.Seconds(), monitor.Bytes(int(float64(s.size)/took.Seconds())), saving.Stalled().Round(time.Millisecond))
}

// saveLast saves the state that the run ends with, unless it is, and waits for it.
func (t *trainer) saveLast(ctx context.Context) error {
	if t.saveDir == "" {
		return nil
	}
	t.settle(ctx)
	if t.saves.last == t.opt.Steps() {
		return nil
	}
	if err := t.save(ctx); err != nil {
		return err
	}
	t.settle(ctx)
	return t.saves.err
}

// importWeights gives the model the weights of a file. With GPT-2's names all but the head's may
// have a prefix.
func (t *trainer) importWeights(ctx context.Context) error {
	err := t.model.Import(ctx, t.importFrom, nn.FromGPT2(""))
	var state *fsdp.StateError
	if errors.As(err, &state) && slices.ContainsFunc(state.Extra, func(name string) bool { return strings.HasPrefix(name, prefix) }) {
		err = t.model.Import(ctx, t.importFrom, nn.FromGPT2(prefix))
	}
	if err != nil {
		return err
	}
	t.screen.Printf("weights from %s\n\n", t.importFrom)
	return nil
}

// prefix is what Hugging Face's GPT2LMHeadModel puts before the names of tensors.
const prefix = "transformer."

// export writes the weights to a file, with what their shapes do not tell.
func (t *trainer) export(ctx context.Context) error {
	opts := nn.ToGPT2("")
	opts.Metadata = map[string]string{"heads": fmt.Sprint(t.heads), "step": fmt.Sprint(t.opt.Steps())}
	if err := t.model.Export(ctx, t.exportTo, opts); err != nil {
		return err
	}
	t.screen.Printf("  weights: %s\n", t.exportTo)
	return nil
}
