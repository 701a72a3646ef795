// Gpt trains a language model on your text, over bytes or tokens, sharded over several ranks. By
// default it trains on the source of the Go standard library for two minutes. It prints a plan, the
// progress, the curve of the loss and text that the model writes.
//
//	go run ./examples/gpt                        # two ranks, about two minutes
//	go run ./examples/gpt -data ~/notes -size medium -time 10m
//	go run ./examples/gpt -ranks 4 -layers 8 -dim 256 -heads 8 -context 256
//	go run ./examples/gpt -virtual 8 -steps 200   # to the last bit as on 8 ranks, or on 1 or 4
//	go run ./examples/gpt -log run                # writes run/run.svg, run/log.jsonl and events for TensorBoard
//
// With -gpu it trains on a GPU, in bfloat16 with -bf16. Without a GPU it names the libraries that
// it has tried to load, and ends with status 1:
//
//	$ go run ./examples/gpt -gpu -bf16 -size large
//
// The ranks are goroutines of one process. Under a launcher the same program is one rank of the
// launcher's job, and with -gpu each rank computes on the GPU of its place on the host:
//
//	go run ./fsdp/fsdprun -n 2 ./examples/gpt                 # processes that share memory
//	go run ./fsdp/fsdprun -n 2 -transport tcp ./examples/gpt
//	mpirun -n 2 go run ./examples/gpt
//
// Ctrl-C, SIGTERM or SIGHUP on any rank ends the training after the current step, and the program
// shows the results for the model as it is then. A second Ctrl-C or SIGTERM ends the program at
// once.
//
// On two cores of an AMD EPYC with AVX-512 (2026-11-21, with other files of the text and windows in
// another order):
//
//	$ go run ./examples/gpt
//	…
//	plan
//	3 layers of 128 channels and 4 heads, 128 bytes of context
//	16 sequences a step, 2 048 bytes of text; steps for 2m00s
//	…
//	step    1/~3430  loss 5.5550  left 2m00s  58.4k tok/s  30.2 MB/rank
//	step 1018/~4069  loss 2.0767  left 1m30s  70.9k tok/s  30.2 MB/rank
//	step 1018  validation loss 2.0572  bits_per_byte 2.968
//	…
//	step 3978/~3978  loss 1.3763  left 0s  74.7k tok/s  30.2 MB/rank
//	step 3978  validation loss 1.3932  bits_per_byte 2.01
//
//	   loss in nats per byte, logarithmic: ⠒⠒ train  ● validation
//	  4.84 ┤⡇
//	       │⡇
//	       │⢣
//	  3.63 ┤⢸
//	       │⠘⡄
//	       │ ⢣
//	  2.73 ┤  ⠑⠒⠒⠤⢄⡀
//	       │       ⠈⠒●⢄⡀
//	       │           ⠈⠑⠑⢄⣀
//	  2.05 ┤                ⠑⠒●⣀⣀
//	       │                     ⠉⠒⠒⠢⠤⣀●⣀
//	       │                           ⠈ ⠉⠉⠢⠢⠔⠴⡠●⣀⣀ ⢀
//	  1.54 ┤                                       ⠉⠉⠊⠉●⠢⠢⢄⠤⠤⣀⣀ ●⡀ ⢀
//	       │                                                   ⠉⠉⠑⠉⠁⠑⠉⠑⠒⠒●⠒⠒⠢⠢⠤⠤⡠⢤●
//	       └┬──────────────────────────────────┬──────────────────────────────────┬
//	        0 steps                          1989                              3978
//
//	result
//	  3 978 steps over 8 146 944 tok in 2m00s: 67.9k tok/s
//	  memory per rank: 30.2 MB at most, 30.2 MB planned
//	  validation loss: 1.3932 nats/byte, 2.0099 bits/byte
//
//	sample at temperature 0.7
//	func {
//		_ = err
//	}
//
//	func (ptr) Errno(ctx string) (n io.Reader) []byte {
//		return false
//	}
//	…
//
// # Tokens
//
// Each byte is a token, unless -tokenizer names a directory with a tokenizer of Hugging Face:
// tokenizer.json, and tokenizer_config.json with the eos_token that ends a file, or SentencePiece's
// tokenizer.model. Losses are then in nats per token. Validation losses are also printed per byte,
// so that a model of tokens can be compared with a model of bytes. -context counts tokens. The text
// is encoded once, at the start, at one or two megabytes a second.
//
// # Saving and resuming
//
// With -save the run writes checkpoints into a directory while the training continues, and keeps
// the last ones. A signal that ends the training writes one more: Ctrl-C, SIGHUP when the terminal
// closes, and SIGTERM from Slurm, Kubernetes, spot machines and fsdprun (see comm.Interrupt). The
// same command with -resume continues from the newest checkpoint:
//
//	go run ./examples/gpt -time 2h -save ckpt -resume
//	go run ./examples/gpt -time 2h -save ckpt -resume -ranks 4   # any number of ranks
//
// On the same number of ranks it then prints the same losses, to the last bit, as a run without a
// break. The shape of the model and its tokens must be the same. Other flags that change the result
// cause a warning. With -interrupted 143 a signal ends the program with a status that tells a
// scheduler to start it again: package examples/cluster has the files that use it.
//
// -export writes the weights to a file: safetensors with the names and layouts of GPT-2. The model
// is like GPT-2 except for its tokens, its activation ReLU, and its head, which is not tied.
//
// # Reading it
//
// Begin with train.go. It uses the library: wrap a model, then forward, backward, clip and step, on
// every rank, each with its own rows of the batch. The other files are needed by any training:
//
//	config.go  flags
//	corpus.go  text from files as tokens, and batches of it in an order that the seed decides
//	state.go   checkpoints, and the weights in a file
//
// The rows of a batch depend on the seed and the step, not on the number of ranks, and so do the
// initial parameters. Two runs with the same flags print the same losses. With -time, the machine
// decides how many steps they make.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/gpu"
	"github.com/gofsdp/gofsdp/fsdp/monitor"
)

func main() {
	ctx, stop := comm.Interrupt(context.Background())
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	var status exitStatus
	switch {
	case errors.As(err, &status):
		os.Exit(int(status))
	case errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		fmt.Fprintln(os.Stderr, "gpt:", err)
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "gpt:", err)
		os.Exit(1)
	}
}

// exitStatus is the end of a training that a signal has stopped, with -interrupted.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("interrupted: exit status %d", int(s)) }

// errEarly is the end of a program that has learned nothing.
var errEarly = errors.New("interrupted before training began")

// run is the program. It ends early, with a checkpoint and a summary, when interrupt ends.
func run(interrupt context.Context, args []string, stdout, stderr io.Writer) error {
	begin := time.Now()
	c, err := parse(args, stderr)
	if err != nil {
		return err
	}
	var stopped atomic.Bool
	// Until all ranks have joined, interrupt ends the wait for them. Then they have a context of their
	// own: one that ended in the middle of a step would fail the group instead.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(interrupt))
	defer cancel(nil)
	joined := context.AfterFunc(interrupt, func() { cancel(errEarly) })
	text, err := load(interrupt, c)
	if interrupt.Err() != nil {
		err = errEarly
	}
	if err == nil {
		err = comm.Run(ctx, c.ranks, func(ctx context.Context, g comm.Group) error {
			if !joined() && interrupt.Err() != nil {
				return errEarly
			}
			over, err := rank(ctx, interrupt, c, text, g, stdout, begin)
			if err == nil && !over {
				stopped.Store(true)
			}
			return err
		})
	}
	if c.status != 0 && (errors.Is(err, errEarly) || err == nil && stopped.Load()) {
		return exitStatus(c.status)
	}
	return err
}

// rank is the program on one rank. Ranks other than 0 do the same unseen.
func rank(ctx, interrupt context.Context, c config, text *corpus, g comm.Group, stdout io.Writer, begin time.Time) (over bool, err error) {
	if err := c.runs(g.Size()); err != nil {
		return false, err
	}
	if c.gpu {
		device, err := gpu.OpenLocal(g)
		if err != nil {
			return false, fmt.Errorf("-gpu: %w", err)
		}
		defer func() { err = errors.Join(err, device.Close()) }()
		c.device = device
	}
	screen := monitor.NewScreen(stdout, c.plain)
	if g.Rank() != 0 {
		screen = monitor.NewScreen(io.Discard, true)
	}
	screen.Printf("%s\n%s  (%.1fs)\n\n", screen.Title("corpus"), text, time.Since(begin).Seconds())
	if over, err = train(ctx, interrupt, c, text, g, screen); err == nil {
		screen.Printf("\n%s in all\n", monitor.Duration(time.Since(begin)))
	}
	return over, err
}
