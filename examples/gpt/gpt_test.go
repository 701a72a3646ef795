package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/monitor"
	"github.com/gofsdp/gofsdp/fsdp/nn/hf/tokenizer"
	lines "github.com/gofsdp/gofsdp/internal/text"
)

// mainVariable makes the test binary the program.
const mainVariable = "GPT_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainVariable) != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// smallJob returns the flags of a job that takes a moment, on a directory of little Go files, and
// more flags.
func smallJob(t *testing.T, more ...string) []string {
	files := make(map[string]string)
	for i := range 20 {
		files[fmt.Sprintf("f%02d.go", i)] = strings.Repeat(fmt.Sprintf("func f%d(x int) int {\n\treturn x + %d\n}\n\n", i, i), 10)
	}
	args := []string{"-data", writeFiles(t, files), "-holdout", "5", "-layers", "2", "-dim", "32", "-heads", "2",
		"-context", "32", "-batch", "8", "-steps", "40", "-lr", "0.01", "-eval-bytes", "512", "-sample-bytes", "50"}
	return append(args, more...)
}

// output runs the program and returns what it prints, of which nothing but names of files and what
// the model writes may be wide.
func output(t *testing.T, args []string) string {
	var b bytes.Buffer
	require.NoError(t, run(t.Context(), args, &b, io.Discard))
	ours, _, _ := strings.Cut(strings.ReplaceAll(b.String(), filepath.Dir(t.TempDir()), ""), "\nsample at")
	require.Empty(t, lines.Wider(ours, monitor.LogColumns))
	return b.String()
}

// validations returns the validation losses in the output of a run.
func validations(t *testing.T, out string) []float64 {
	var list []float64
	for _, m := range regexp.MustCompile(`validation loss (\S+) `).FindAllStringSubmatch(out, -1) {
		v, err := strconv.ParseFloat(m[1], 64)
		require.NoError(t, err)
		list = append(list, v)
	}
	return list
}

func TestRun(t *testing.T) {
	out := output(t, smallJob(t))
	position := 0
	for _, part := range []string{
		"corpus\n", "16 files,", "4 files,", "held out",
		"plan\n", "groups 3, ranks 2\n", "\n  2 × blocks.* ", "optimizer state", "\n\n",
		"step  1/40  loss 5.", "tok/s", "/rank", "left",
		"step 20  validation loss ", "step 40/40  loss ",
		"loss in nats per byte", "⠒⠒ train  ● validation", "┤", "0 steps",
		"result\n", "40 steps over 10 240 tok in ", "memory per rank: ", "validation loss: ", "bits/byte",
		"sample at temperature 0.7\nfunc ", " in all\n",
	} {
		at := strings.Index(out[position:], part)
		require.GreaterOrEqual(t, at, 0, "%q is missing or out of place in\n%s", part, out)
		position += at
	}
	require.NotContains(t, out, "\x1b", "no control sequences outside a terminal")
	losses := validations(t, out)
	require.Len(t, losses, 8)
	require.Less(t, losses[7], losses[0]-0.5, "the model learns")
	require.Less(t, losses[7], 3.0)
}

// gpt2 is a little tokenizer: bytes and some pairs of them.
const gpt2 = "../../fsdp/nn/hf/tokenizer/testdata/gpt2"

// TestTokenizer trains on tokens as well as on bytes.
func TestTokenizer(t *testing.T) {
	job := smallJob(t, "-tokenizer", gpt2+"/tokenizer.json")
	out := output(t, job)
	for _, part := range []string{" tokens of context\n", "256 tokens of text; 40 steps\n", "loss in nats per token", "40 steps over 10 240 tok in "} {
		require.Contains(t, out, part)
	}
	m := regexp.MustCompile(`result(?s:.*)validation loss: (\S+) nats/token, (\S+) nats/byte, (\S+) bits/byte`).FindStringSubmatch(out)
	require.NotNil(t, m, out)
	var loss [3]float64
	for i := range loss {
		var err error
		loss[i], err = strconv.ParseFloat(m[1+i], 64)
		require.NoError(t, err)
	}
	c, err := parse(job, io.Discard)
	require.NoError(t, err)
	data, err := load(t.Context(), c)
	require.NoError(t, err)
	require.Greater(t, data.bytesPerToken(), 1.05)
	require.InDelta(t, loss[0], loss[1]*data.bytesPerToken(), 1e-3)
	require.InDelta(t, loss[1], loss[2]*math.Ln2, 1e-3)
	require.Less(t, loss[0], 3.0, "the model learns")
	tokens := make([]int, len(data.held.tokens))
	for i, token := range data.held.tokens {
		tokens[i] = int(token)
	}
	files := 0
	tok, err := tokenizer.Open(gpt2)
	require.NoError(t, err)
	for file := range strings.SplitSeq(tok.DecodeAll(tokens), "<|endoftext|>") {
		files++
		require.True(t, file == "" || strings.HasPrefix(file, "func f"), file)
	}
	require.Equal(t, data.heldFiles+1, files)
}

// TestRunInBFloat16 trains as well as in float32, also with everything in 16 bits.
func TestRunInBFloat16(t *testing.T) {
	wide := validations(t, output(t, smallJob(t)))
	out := output(t, smallJob(t, "-bf16"))
	require.Regexp(t, "groups [0-9]+, ranks 2, bfloat16 by [A-Za-z0-9_, -]+\n", out)
	half := validations(t, out)
	require.NotEqual(t, wide, half)
	require.InEpsilon(t, wide[7], half[7], 0.02)
	all := validations(t, output(t, smallJob(t, "-bf16", "-masters16", "-bits", "16")))
	require.NotEqual(t, half, all)
	require.InEpsilon(t, wide[7], all[7], 0.02)
}

// TestRunInInt8 trains as well as with what travels in float32, at a rate at which the end does not
// hang on roundings: the losses differ by less than 0.5 %.
func TestRunInInt8(t *testing.T) {
	job := smallJob(t, "-lr", "0.001", "-steps", "200")
	wide := validations(t, output(t, job))
	out := output(t, append(job, "-int8"))
	small := validations(t, out)
	require.NotEqual(t, wide, small)
	require.Len(t, small, len(wide))
	for i := range wide {
		require.InEpsilon(t, wide[i], small[i], 0.005)
	}
}

// TestRunInFewerBits trains as well with AdamW's state in 16 bits: the losses differ by less than
// 0.5 %.
func TestRunInFewerBits(t *testing.T) {
	job := smallJob(t, "-lr", "0.001", "-steps", "200")
	wide := validations(t, output(t, job))
	narrow := validations(t, output(t, append(job, "-bits", "16")))
	require.NotEqual(t, wide, narrow)
	require.Len(t, narrow, len(wide))
	for i := range wide {
		require.InEpsilon(t, wide[i], narrow[i], 0.005)
	}
}

// TestMemoryIsAsPlanned compares the bytes that the plan foretells with those that were counted.
func TestMemoryIsAsPlanned(t *testing.T) {
	out := output(t, smallJob(t, "-steps", "3", "-batch", "7", "-sample-bytes", "0"))
	m := regexp.MustCompile(`memory per rank: (.*) at most, (.*) planned`).FindStringSubmatch(out)
	require.NotNil(t, m)
	require.Equal(t, m[2], m[1])
	require.NotContains(t, out, "sample")
}

// TestRunsAreReproducible checks that a run has the same bits again, and on other numbers of ranks
// the same losses up to rounding.
func TestRunsAreReproducible(t *testing.T) {
	job := smallJob(t, "-steps", "8")
	job[1] = smallJob(t)[1]
	result := func(more ...string) ([]float64, string) {
		out := output(t, append(job, more...))
		sample := out[strings.Index(out, "sample at"):strings.LastIndex(out, "\n\n")]
		return validations(t, out), sample
	}
	losses, sample := result()
	again, sampleAgain := result()
	require.Equal(t, losses, again)
	require.Equal(t, sample, sampleAgain)
	for _, ranks := range []string{"1", "3"} {
		other, _ := result("-ranks", ranks)
		require.InDeltaSlice(t, losses, other, 2e-3, "%s ranks", ranks)
	}
	other, _ := result("-seed", "2")
	require.NotEqual(t, losses, other)
}

// watcher calls stop when it is written what it waits for.
type watcher struct {
	bytes.Buffer
	waits string
	stop  func()
}

func (w *watcher) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(w.waits)) {
		w.stop()
	}
	return w.Buffer.Write(b)
}

func TestInterrupt(t *testing.T) {
	for _, limit := range [][]string{{"-steps", "1000000"}, {"-steps", "0", "-time", "10h"}} {
		ctx, cancel := context.WithCancel(t.Context())
		w := watcher{waits: "step ", stop: cancel}
		require.NoError(t, run(ctx, smallJob(t, append(limit, "-sample-bytes", "5")...), &w, io.Discard))
		out := w.String()
		// The first step writes the line that interrupts, and every rank agrees to stop after the second.
		for _, part := range []string{"interrupted after step 2\n", "step 2  validation loss", "● validation", "bits/byte", "sample"} {
			require.Contains(t, out, part)
		}
	}
}

func TestInterruptBeforeTraining(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.EqualError(t, run(ctx, smallJob(t), io.Discard, io.Discard), "interrupted before training began")
}

// TestInterruptWhileJoining: a rank that is alone need not be killed.
func TestInterruptWhileJoining(t *testing.T) {
	const host = "127.0.0.1"
	port := ""
	require.Eventually(t, func() bool { // below those that the system gives to whoever asks for any
		port = strconv.Itoa(20000 + rand.IntN(12000))
		free, err := net.Listen("tcp", net.JoinHostPort(host, port))
		return err == nil && free.Close() == nil
	}, time.Minute, time.Millisecond)
	for name, value := range map[string]string{"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": host, "MASTER_PORT": port,
		"FSDP_SECRET": "nobody else knows this"} {
		t.Setenv(name, value)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var watch sync.WaitGroup
	watch.Go(func() {
		defer cancel()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for ; ctx.Err() == nil; <-tick.C {
			if c, err := net.Dial("tcp", net.JoinHostPort(host, port)); err == nil { // the rank serves the rendezvous
				c.Close()
				return
			}
		}
	})
	require.ErrorContains(t, run(ctx, smallJob(t), io.Discard, io.Discard), "interrupted before training began")
	cancel()
	watch.Wait()
}

// TestSample compares the text that two ranks write with whole forwards, byte for byte, beyond the
// context.
func TestSample(t *testing.T) {
	for _, more := range [][]string{{}, {"-tokenizer", gpt2}} {
		testSample(t, smallJob(t, append(more, "-temperature", "0")...))
	}
}

func testSample(t *testing.T, job []string) {
	c, err := parse(job, io.Discard)
	require.NoError(t, err)
	data, err := load(t.Context(), c)
	require.NoError(t, err)
	require.NoError(t, comm.Run(t.Context(), 2, func(ctx context.Context, g comm.Group) error {
		tr, err := newTrainer(ctx, c, data, g, monitor.NewScreen(io.Discard, true))
		require.NoError(t, err)
		learn(t, ctx, tr, 10)
		for _, prompt := range []string{"f", strings.Repeat("func main() {", 5)} {
			var got string
			require.NoError(t, tr.sample(ctx, prompt, 90, func(text string) { got += text }))
			want := likeliest(t, ctx, tr, prompt, 90)
			require.Greater(t, len(want), 2*c.context)
			if g.Rank() == 0 {
				require.Equal(t, want, got)
			} else {
				require.Empty(t, got)
			}
		}
		return tr.model.Close()
	}))
}

// learn makes so many steps.
func learn(t *testing.T, ctx context.Context, tr *trainer, steps int) {
	for batch, err := range tr.batches.Batches(ctx) {
		require.NoError(t, err)
		require.NoError(t, tr.pass(ctx, batch))
		require.NoError(t, tr.step(ctx, 0.01))
		if tr.opt.Steps() == steps {
			return
		}
	}
}

// bitsOf returns the weights that a run exports.
func bitsOf(t *testing.T, args []string) string {
	file := filepath.Join(t.TempDir(), "weights")
	output(t, append(args, "-export", file))
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	return fmt.Sprintf("%x", sha256.Sum256(b))
}

// TestVirtualRanks: with -virtual a training ends with the same bits on any number of ranks, also
// where that changes at a checkpoint.
func TestVirtualRanks(t *testing.T) {
	few := func(more ...string) []string {
		return smallJob(t, append([]string{"-dropout", "0.1", "-steps", "8", "-sample-bytes", "0", "-batch", "15"}, more...)...)
	}
	for virtual, ways := range map[string][][]string{
		"8": {{"-ranks", "1"}, {"-ranks", "2"}, {"-ranks", "3"}, {"-ranks", "4"}},
		"6": {{"-ranks", "2"}, {"-ranks", "3"}, {"-ranks", "4"}},
	} {
		want := bitsOf(t, few("-virtual", virtual, "-ranks", virtual))
		for _, way := range ways {
			require.Equal(t, want, bitsOf(t, few(append(way, "-virtual", virtual)...)), "%s on %v", virtual, way)
		}
	}
	require.Contains(t, output(t, few("-virtual", "8", "-ranks", "2", "-sample-bytes", "5")), "sample")
	dir := t.TempDir()
	saved := func(ranks string) []string {
		return few("-virtual", "8", "-ranks", ranks, "-save", dir, "-resume", "-save-every", "4", "-keep", "9")
	}
	want := bitsOf(t, saved("4"))
	names, err := filepath.Glob(filepath.Join(dir, "*-step-8"))
	require.NoError(t, err)
	require.Len(t, names, 1)
	require.NoError(t, os.RemoveAll(names[0]))
	require.Equal(t, want, bitsOf(t, saved("2")), "4 ranks until step 4, then 2")
	require.NotEqual(t, want, bitsOf(t, few("-virtual", "8", "-seed", "2")))
}

// likeliest returns the n bytes, and the rest of a token, with which a model continues a prompt.
// Each token takes a forward of all tokens that the model sees.
func likeliest(t *testing.T, ctx context.Context, tr *trainer, prompt string, n int) string {
	all, written := tr.vocab.encode(prompt), []int(nil)
	seen := all[max(0, len(all)-tr.context/2):]
	for len(tr.vocab.decode(written)) < n {
		if len(seen) >= tr.context {
			seen = seen[len(seen)-tr.context/2:]
		}
		tokens := tensor.New(tensor.WithShape(1, len(seen)), tensor.WithBacking(slices.Clone(seen)))
		out, err := tr.model.Eval(ctx, tokens, tokens) // the loss is not used
		require.NoError(t, err)
		logits := out[1].Data().([]float32)
		last := logits[len(logits)-tr.vocab.size:]
		next := slices.Index(last, slices.Max(last))
		if next == tr.vocab.end {
			break
		}
		seen, written = append(slices.Clone(seen), next), append(written, next)
	}
	return tr.vocab.decode(written)
}
