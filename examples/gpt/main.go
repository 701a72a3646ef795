// Gpt trains a language model, over bytes or tokens, sharded over several ranks, while one watches:
//
//	go run ./examples/gpt                        # the Go standard library's source, two ranks, about two minutes
//	go run ./examples/gpt -data ~/notes -size medium -time 10m
//	go run ./examples/gpt -ranks 4 -layers 8 -dim 256 -heads 8 -context 256
//	go run ./examples/gpt -virtual 8 -steps 200   # to the last bit as on 8 ranks, or on 1 or 4
//
// The ranks are goroutines of the one process. Under a launcher the same program is one rank of the
// launcher's job:
//
//	go run ./fsdp/fsdprun -n 2 ./examples/gpt                 # processes that share memory
//	go run ./fsdp/fsdprun -n 2 -transport tcp ./examples/gpt
//	mpirun -n 2 go run ./examples/gpt
//
// It prints the plan before it runs anything, trains with a progress line, and ends with the loss
// curve, the loss on text that was held out, and text that the model writes. Ctrl-C, SIGTERM or
// SIGHUP on any rank ends the training after the step under way, and the program shows the same for the
// model as it is then. A second Ctrl-C or SIGTERM ends the program.
//
// On two cores of an AMD EPYC with AVX-512 (2026-11-21, when windows came in another order):
//
//	$ go run ./examples/gpt
//	…
//	check: 2 ranks equal 1 rank: largest gradient difference 7.5e-08
//	       over 676 992 elements (largest gradient 3.1e-01)
//
//	plan
//	3 layers of 128 channels and 4 heads, 128 bytes of context
//	16 sequences a step, 2 048 bytes of text; steps for 2m00s
//	parameters 676992, groups 4, ranks 2
//	  group                        parameters     whole  strategy     ranks
//	  root                              82176  328.7 kB  ShardGradOp  2
//	  3 × blocks.*                     198272  793.1 kB  FullShard    2
//	each rank
//	     2.7 MB  parameters and gradients
//	     2.7 MB  optimizer state
//	    24.8 MB  buffers of a pass, at most: groups, gradients, activations
//	    30.2 MB  together
//	    38.8 MB  in RAM: buffers, freed ones included, and 674.6 kB beside
//	     3.1 MB  sent in a pass, in 9 collectives
//
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
// Each byte is a token, unless -tokenizer names a directory of a tokenizer as Hugging Face's
// libraries write it: tokenizer.json, and tokenizer_config.json with the eos_token that ends a file;
// or SentencePiece's tokenizer.model. A BPE can be trained on one's own text so:
//
//	t = tokenizers.ByteLevelBPETokenizer()
//	t.train(files, vocab_size=2048, special_tokens=["<|endoftext|>"])
//	t.save("bpe/tokenizer.json")
//	json.dump({"eos_token": "<|endoftext|>"}, open("bpe/tokenizer_config.json", "w"))
//
// Losses are then in nats per token. Those on text that was held out are printed per byte too, by the
// bytes of all of it, and can be compared to those of a model of bytes. -context counts tokens.
// The text is encoded once, at the start, on one core, at one or two megabytes a second.
//
// # Saving and resuming
//
// With -save the run leaves checkpoints in a directory, written while the training goes on; the
// last ones are kept, and Ctrl-C writes one more. So do SIGHUP, when the terminal closes, and SIGTERM,
// which Slurm, Kubernetes and spot machines send before they take a machine away, and fsdprun before
// it starts more ranks: see comm.Interrupt. The same command with -resume goes on from the newest,
// wherever the run has stopped:
//
//	go run ./examples/gpt -time 2h -save ckpt -resume
//	go run ./examples/gpt -time 2h -save ckpt -resume -ranks 4   # any number of ranks
//
// A scheduler takes exit status 0 for the end of the job. With -interrupted 143 a training that a
// signal has ended says that it is not over: package examples/cluster has the files that use it.
//
// On as many ranks it prints the losses that a run which was never stopped would have, to the last
// bit. The shape of the model and its tokens must be what they were; of other flags that change what is learned a
// warning is printed.
//
// The weights alone go to a file with -export, and initial ones come from a file with -import:
// safetensors with the names and layouts of GPT-2. The model is like GPT-2 but for its tokens,
// its activation, ReLU, and its head, which is not tied.
//
// # Reading it
//
// The code that uses the library is in train.go: wrap a model, then forward, backward, clip and
// step, on every rank, each with its own rows of the batch. The rest is what surrounds any
// training:
//
//	config.go      flags
//	vocabulary.go  bytes or tokens
//	corpus.go      text from files, split into training and held-out text
//	batch.go       windows of it, in an order that the seed decides
//	check.go       proof that N ranks compute what one does
//	state.go       checkpoints, and weights in files
//	sample.go      text from the model
//	report.go      what is printed
//
// # Reproducing a run
//
// The rows of a batch depend on the seed and the step only, never on the number of ranks, and so do
// the initial parameters. Two runs with the same flags print the same losses, on any schedule of the
// ranks; with -time, how far they get depends on the machine.
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

// run is the program. It ends early, in good order, when interrupt ends.
func run(interrupt context.Context, args []string, stdout, stderr io.Writer) error {
	begin := time.Now()
	c, err := parse(args, stderr)
	if err != nil {
		return err
	}
	data, err := load(interrupt, c)
	if err != nil {
		return c.ended(early(interrupt, err), false)
	}
	// Until all ranks are there interrupt ends the wait for them. Then they have a context of their
	// own: one that ended in the middle of a step would fail the group instead.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(interrupt))
	defer cancel(nil)
	joined := context.AfterFunc(interrupt, func() { cancel(errEarly) })
	var stopped atomic.Bool
	err = comm.Run(ctx, c.ranks, func(ctx context.Context, g comm.Group) error {
		if !joined() && interrupt.Err() != nil {
			return errEarly
		}
		c := c
		if err := c.runs(g.Size()); err != nil {
			return err
		}
		screen := monitor.NewScreen(stdout, c.plain)
		if g.Rank() != 0 { // the others do the same unseen
			screen = monitor.NewScreen(io.Discard, true)
		}
		screen.Printf("%s\n%s\n", screen.Title("corpus"), data.describe(time.Since(begin)))
		if c.check {
			line, err := check(ctx, c, data, g)
			if err != nil {
				return err
			}
			screen.Printf("%s\n\n", line)
		}
		over, err := train(ctx, interrupt, c, data, g, screen)
		if err != nil {
			return err
		}
		if !over {
			stopped.Store(true)
		}
		screen.Printf("\n%s in all\n", monitor.Duration(time.Since(begin)))
		return nil
	})
	return c.ended(err, stopped.Load())
}

// exitStatus is the end of a training that a signal has stopped: what -interrupted asks for.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("interrupted: exit status %d", int(s)) }

// ended returns err, unless an interruption is the reason and -interrupted says what that means.
func (c *config) ended(err error, stopped bool) error {
	if c.status != 0 && (errors.Is(err, errEarly) || err == nil && stopped) {
		return exitStatus(c.status)
	}
	return err
}

// errEarly is the end of a program that has learned nothing.
var errEarly = errors.New("interrupted before training began")

// early returns what to say about an error before the training: if the user ended the program,
// that.
func early(interrupt context.Context, err error) error {
	if interrupt.Err() != nil {
		return errEarly
	}
	return err
}
