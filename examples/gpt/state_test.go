package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/monitor"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// savingJob returns a function that makes the flags of a job of twelve steps, all of which are
// logged, and more flags. The text is the same for all.
func savingJob(t *testing.T) func(more ...string) []string {
	job := smallJob(t, "-steps", "12", "-batch", "6", "-eval-every", "4", "-save-every", "5", "-sample-bytes", "0")
	return func(more ...string) []string { return slices.Concat(job, more) }
}

// losses returns what the output of a run says of each step: "7/12" for the smoothed loss, "8
// validation" for the other.
func losses(t *testing.T, out string) map[string]float64 {
	all := make(map[string]float64)
	for _, m := range regexp.MustCompile(`(?m)^step +(\d+/\d+|\d+  validation)  ?loss (\S+)`).FindAllStringSubmatch(out, -1) {
		v, err := strconv.ParseFloat(m[2], 64)
		require.NoError(t, err)
		all[m[1]] = v
	}
	return all
}

// interrupted runs a job until it writes a text, and one step more.
func interrupted(t *testing.T, job []string, text string) string {
	ctx, cancel := context.WithCancel(t.Context())
	w := watcher{waits: text, stop: cancel}
	require.NoError(t, run(ctx, job, &w, io.Discard))
	require.Contains(t, w.String(), "interrupted after step")
	return w.String()
}

// checkpoints lists the steps of the checkpoints in dir.
func checkpoints(t *testing.T, dir string) (steps []string) {
	found, err := filepath.Glob(filepath.Join(dir, "*-step-*"))
	require.NoError(t, err)
	for _, path := range found {
		steps = append(steps, path[strings.LastIndexByte(path, '-')+1:])
	}
	return steps
}

// TestResume compares a run that was interrupted and goes on with one that was not: to the last
// bit.
func TestResume(t *testing.T) {
	job, dir := savingJob(t), t.TempDir()
	whole := output(t, job("-dropout", "0.1", "-save", filepath.Join(dir, "whole")))
	parts := job("-dropout", "0.1", "-save", filepath.Join(dir, "parts"))
	first := interrupted(t, parts, "step  6/12")
	require.Contains(t, first, "interrupted after step 7\n")
	require.Equal(t, []string{"5", "7"}, checkpoints(t, filepath.Join(dir, "parts")))

	rest := output(t, append(parts, "-resume"))
	require.Regexp(t, `resumed after step 7 from .*-step-7,\n  which 2 ranks saved\n\n`, rest, "and no warning")
	want, got := losses(t, whole), losses(t, rest)
	require.Equal(t, []string{"10/12", "11/12", "12  validation", "12/12", "8  validation", "8/12", "9/12"}, slices.Sorted(maps.Keys(got)))
	for step, loss := range got {
		require.Equal(t, want[step], loss, step)
	}
	curve := func(out string) string {
		return out[strings.Index(out, "loss in nats per byte"):strings.Index(out, "result\n")]
	}
	require.Equal(t, curve(whole), curve(rest), "the curve begins where the run did")
	require.Contains(t, rest, "12 steps over")
	require.Equal(t, []string{"7", "10", "12"}, checkpoints(t, filepath.Join(dir, "parts")))

	again := output(t, append(parts, "-resume"))
	require.Equal(t, map[string]float64{"12  validation": want["12  validation"]}, losses(t, again), "nothing is left to train")
	require.Equal(t, []string{"7", "10", "12"}, checkpoints(t, filepath.Join(dir, "parts")), "or to save")
}

// TestResumeOnOtherRanks is the same up to the order in which sums are added.
func TestResumeOnOtherRanks(t *testing.T) {
	job, dir := savingJob(t), t.TempDir()
	want := losses(t, output(t, job()))
	saved := filepath.Join(dir, "2")
	interrupted(t, job("-save", saved), "step  4/12")
	for _, ranks := range []string{"1", "3"} {
		other := filepath.Join(dir, "on "+ranks)
		require.NoError(t, os.CopyFS(other, os.DirFS(saved)))
		out := output(t, job("-save", other, "-resume", "-ranks", ranks))
		require.Contains(t, out, "resumed after step 5")
		got := losses(t, out)
		require.Len(t, got, 7+2)
		for step, loss := range got {
			require.InDelta(t, want[step], loss, 2e-3, "%s ranks, step %s", ranks, step)
		}
	}
}

// TestSave looks at what is left in the directory, and at what is said about it.
func TestSave(t *testing.T) {
	job, dir := savingJob(t), t.TempDir()
	out := output(t, job("-save", dir, "-save-every", "1", "-keep", "2", "-resume"))
	require.Contains(t, out, "starting anew: ")
	require.Equal(t, []string{"11", "12"}, checkpoints(t, dir))
	require.Len(t, regexp.MustCompile(`step \d+  saved \d{6}-step-\d+: \S+ kB/rank; training waited for `).FindAllString(out, -1), 12)

	err := run(t.Context(), job("-save", dir), io.Discard, io.Discard)
	require.ErrorContains(t, err, "has checkpoints of another run: continue from them with -resume, or -save to another directory")

	latest, err := fsdp.LatestCheckpoint(dir)
	require.NoError(t, err)
	err = run(t.Context(), job("-save", latest, "-resume"), io.Discard, io.Discard)
	require.ErrorContains(t, err, "is a checkpoint: name the directory that it is in")
}

// TestResumeByTime goes on with the time that is left.
func TestResumeByTime(t *testing.T) {
	job := append(savingJob(t)("-save", t.TempDir(), "-resume"), "-steps", "0", "-time", "10h")
	asRank(t, job, func(ctx context.Context, tr *trainer) error {
		require.NoError(t, tr.restore(ctx))
		require.Zero(t, tr.mon.Elapsed())
		learn(t, ctx, tr, 1)
		require.NoError(t, tr.watch(monitor.State{Step: 1, Elapsed: time.Hour}))
		return tr.saveLast(ctx)
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // ends after a step
	var out bytes.Buffer
	asRank(t, job, func(_ context.Context, tr *trainer) error {
		tr.screen = monitor.NewScreen(&out, true)
		require.NoError(t, tr.restore(t.Context()))
		require.Equal(t, time.Hour, tr.mon.Elapsed())
		over, err := tr.run(t.Context(), ctx)
		require.NoError(t, err)
		require.False(t, over)
		require.Greater(t, tr.mon.Elapsed(), time.Hour)
		require.Less(t, tr.mon.Elapsed(), 2*time.Hour)
		return nil
	})
	require.Regexp(t, `step +2/~20  .* left (9h00m|8h59m)`, out.String())
}

// TestFailedSave spoils the directory in the middle of a run. The run goes on if it has saved
// before, and ends with an error in any case.
func TestFailedSave(t *testing.T) {
	for _, c := range []struct {
		spoilt, fails, last string
		begun               bool
	}{
		{spoilt: "step 3  saved", fails: "step 6  not saved: ", last: "step 12"},
		{spoilt: "step  1/12", fails: "step 3  not saved: ", last: "step 3"},
		{spoilt: "step  5/12", fails: "step 6  not saved: ", last: "step 12", begun: true},
	} {
		dir := filepath.Join(t.TempDir(), "checkpoints")
		job := savingJob(t)("-save", dir, "-save-every", "3", "-resume")
		if c.begun {
			interrupted(t, job, "step  3/12")
		}
		w := watcher{waits: c.spoilt, stop: func() {
			require.NoError(t, os.RemoveAll(dir))
			require.NoError(t, os.WriteFile(dir, nil, 0o600))
		}}
		err := run(t.Context(), job, &w, io.Discard)
		require.ErrorContains(t, err, c.last+": ")
		require.ErrorContains(t, err, dir)
		require.Contains(t, w.String(), c.fails)
		require.Equal(t, c.last == "step 12", strings.Contains(w.String(), "step 12/12"))
	}
}

// TestResumeWithOtherFlags refuses another model, and says what else has changed.
func TestResumeWithOtherFlags(t *testing.T) {
	job, dir := savingJob(t), t.TempDir()
	output(t, job("-save", dir))
	out := output(t, job("-save", dir, "-resume", "-lr", "0.02", "-seed", "7", "-steps", "13"))
	require.Contains(t, out, "warning: -lr is 0.02, it was 0.01\nwarning: -seed is 7, it was 1\nwarning: -steps is 13, it was 12\n")
	require.Contains(t, out, "step 13/13")
	require.Contains(t, output(t, append(savingJob(t)("-save", dir, "-resume", "-max-bytes", "2000"), "-steps", "14")),
		"warning: -data is CRC-32 ")
	for _, c := range [][]string{{"-heads", "4", "it is a model of heads 2, want 4"}, {"-layers", "3", "blocks.2."}, {"-context", "16", "wpe.weight"}} {
		err := run(t.Context(), job("-save", dir, "-resume", c[0], c[1]), io.Discard, io.Discard)
		require.ErrorContains(t, err, c[2])
	}
}

// TestResumeWithAnotherTokenizer refuses other tokens than those that the model has learned.
func TestResumeWithAnotherTokenizer(t *testing.T) {
	job, dir, other := savingJob(t), t.TempDir(), t.TempDir()
	text, err := os.ReadFile(filepath.Join(gpt2, "tokenizer.json"))
	require.NoError(t, err)
	require.NoError(t, os.CopyFS(other, os.DirFS(gpt2)))
	saved := job("-save", dir, "-tokenizer", gpt2)
	output(t, saved)
	require.NotContains(t, output(t, append(saved, "-resume", "-tokenizer", other)), "warning", "a copy is the same")

	swapped := strings.Replace(string(text), `"!":1,"\"":2`, `"!":2,"\"":1`, 1)
	require.NoError(t, os.WriteFile(filepath.Join(other, "tokenizer.json"), []byte(swapped), 0o600))
	err = run(t.Context(), append(saved, "-resume", "-tokenizer", other), io.Discard, io.Discard)
	require.ErrorContains(t, err, filepath.Join(dir, ""))
	require.Regexp(t, `: it is a model of tokenizer (\d+) tokens with checksum [0-9a-f]{8}, want (\d+) tokens with checksum [0-9a-f]{8}`, err.Error())
	err = run(t.Context(), job("-save", dir, "-resume"), io.Discard, io.Discard)
	require.ErrorContains(t, err, "a model of bytes: ")
	require.ErrorContains(t, err, "wte.weight")
}

// TestSentencePiece opens a directory that has a model of SentencePiece and no other file.
func TestSentencePiece(t *testing.T) {
	v, err := openVocabulary("../../fsdp/nn/hf/tokenizer/testdata/pieces")
	require.NoError(t, err)
	require.Regexp(t, "^460 tokens with checksum ", v.name)
	require.Equal(t, 2, v.end)
}

// TestResumeWithoutPosition refuses a checkpoint of the time when none had a position in the data.
func TestResumeWithoutPosition(t *testing.T) {
	job := savingJob(t)("-save", t.TempDir(), "-resume")
	asRank(t, job, func(ctx context.Context, tr *trainer) error {
		require.NoError(t, tr.restore(ctx))
		return tr.model.Save(ctx, tr.saveDir, tr.opt, &fsdp.SaveOptions{Extra: map[string]any{recordName: record{tr.flags(), tr.mon.State()}}})
	})
	require.ErrorContains(t, run(t.Context(), job, io.Discard, io.Discard), `Extra "data": not in the checkpoint`)
}

// asRank runs f with the trainer of a job on one rank.
func asRank(t *testing.T, args []string, f func(context.Context, *trainer) error) {
	c, err := parse(args, io.Discard)
	require.NoError(t, err)
	c.ranks = 1
	data, err := load(t.Context(), c)
	require.NoError(t, err)
	require.NoError(t, comm.Run(t.Context(), 1, func(ctx context.Context, g comm.Group) error {
		tr, err := newTrainer(ctx, c, data, g, monitor.NewScreen(io.Discard, true))
		if err != nil {
			return err
		}
		return errors.Join(f(ctx, tr), tr.model.Close())
	}))
}

// TestExport compares the file with the weights of the last checkpoint.
func TestExport(t *testing.T) {
	dir := t.TempDir()
	job, file := savingJob(t)("-save", dir, "-resume"), filepath.Join(dir, "weights")
	require.Contains(t, output(t, append(job, "-export", file)), "weights: "+file)
	asRank(t, job, func(ctx context.Context, tr *trainer) error {
		require.NoError(t, tr.restore(ctx))
		want, err := tr.model.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
		require.NoError(t, err)
		require.NoError(t, tr.model.Import(ctx, file, nn.FromGPT2("")))
		got, err := tr.model.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
		require.NoError(t, err)
		require.Equal(t, want, got)
		return nil
	})
}

// TestLog: the records of a run that was interrupted and resumed have each step once.
func TestLog(t *testing.T) {
	dir := t.TempDir()
	logs := filepath.Join(dir, "log")
	job := savingJob(t)("-save", filepath.Join(dir, "saved"), "-resume", "-log", logs)
	interrupted(t, job, "step  6/12")
	output(t, job)
	text, err := os.ReadFile(filepath.Join(logs, "log.jsonl"))
	require.NoError(t, err)
	var steps []string
	for _, m := range regexp.MustCompile(`"step":(\d+),"time":"[^"]*","loss"`).FindAllStringSubmatch(string(text), -1) {
		steps = append(steps, m[1])
	}
	require.Equal(t, []string{"1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12"}, steps)
	picture, err := os.ReadFile(filepath.Join(logs, "run.svg"))
	require.NoError(t, err)
	require.Contains(t, string(picture), ">12</text>")
	require.NoDirExists(t, filepath.Join(logs, "earlier-1"))
}
