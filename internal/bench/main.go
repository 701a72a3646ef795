// Command bench measures training steps of a GPT: this library on one and on two ranks of one core each, and the same model
// on Gorgonia's own TapeMachine, interleaved in one run.
//
//	go run ./internal/bench [-size tiny,small] [-rounds 3] [-seconds 4] [-tape=false] [-bandwidth 400]
//	go run ./internal/bench -memory
//	go run ./internal/bench -join [-size tiny,small] [-rounds 3] [-seconds 4]
//	go run ./internal/bench -state [-models 30M,300M] [-ranks 2,4] [-rounds 3] [-tcp] [-dir directory]
//
// After that it trains the largest size over a link that is slowed down to a stated bandwidth, and prints how much of the
// communication is not hidden behind computation with each prefetch depth. With -memory it prints instead what a rank holds
// under each sharding strategy, planned and counted; with -join, what Join costs with even data, and a rank without a batch.
//
// With -state it starts processes as ranks and measures what becomes of the state of a training: AdamW's state made whole on
// rank 0, by a broadcast of every rank's and by what the library does, beside what the transport and a plain copy take; and
// checkpoints beside plain files in a directory that is removed afterwards. Memory is the rise of the peak of resident memory.
// The model 300M needs 15 GB of memory, and 9 GB in the directory.
//
// The machine's model differs in its GELU, the tanh form, and its update, Gorgonia's Adam with element-wise clipping; its
// products are gonum's.
//
// A step is forward, backward, clipping and AdamW in float32 on a batch that is the same for all; two ranks share it.
// Tokens per second count the whole batch. GFLOP/s count 6N + 12·L·d·T floating point operations per token, N without the
// embedding tables, and nothing for recomputation. Machines are noisy: look at the ratios.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// size is a model with its batch.
type size struct {
	name                                      string
	layers, dim, heads, context, batch, vocab int
}

var sizes = []size{
	{"tiny", 4, 128, 4, 64, 8, 256},
	{"small", 6, 384, 6, 256, 8, 256},
}

// tokens returns the tokens of a batch.
func (s size) tokens() int { return s.batch * s.context }

// flops returns the floating point operations of a step.
func (s size) flops() float64 {
	n := s.layers*12*s.dim*s.dim + s.vocab*s.dim
	return float64(s.tokens()) * float64(6*n+12*s.layers*s.dim*s.context)
}

// contestant is a way to train; step runs one step.
type contestant struct {
	name  string
	cores int
	step  func() error
	close func() error
	times []time.Duration
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == stateRankCommand {
		exit(serveState(context.Background(), os.Stdout, os.Args[2]))
		return
	}
	names := flag.String("size", "tiny,small", "comma-separated sizes")
	rounds := flag.Int("rounds", 3, "interleaved rounds")
	seconds := flag.Float64("seconds", 4, "seconds for each contestant and round")
	tape := flag.Bool("tape", true, "measure Gorgonia's TapeMachine too")
	bandwidth := flag.Float64("bandwidth", 400, "MB/s of the link that the overlap is measured on; 0 leaves that out")
	onlyMemory := flag.Bool("memory", false, "print the memory of the strategies, and measure nothing")
	onlyJoin := flag.Bool("join", false, "measure only Join")
	onlyState := flag.Bool("state", false, "measure only the consolidation of optimizer state, and checkpoints")
	models := flag.String("models", "30M,300M", "comma-separated models for -state")
	ranks := flag.String("ranks", "2,4", "comma-separated numbers of processes for -state")
	tcp := flag.Bool("tcp", false, "let the processes of -state talk over TCP, not shared memory")
	dir := flag.String("dir", "", "directory for the checkpoints of -state (default that of temporary files)")
	flag.Parse()
	err := error(nil)
	switch {
	case *onlyState:
		err = runStates(os.Stdout, *models, *ranks, stateOptions{rounds: *rounds, dir: *dir, tcp: *tcp})
	case *onlyMemory:
		err = memory(os.Stdout, sizes[0])
	case *onlyJoin:
		err = joining(os.Stdout, strings.Split(*names, ","), *rounds, *seconds)
	default:
		err = run(os.Stdout, strings.Split(*names, ","), *rounds, *seconds, *tape, *bandwidth)
	}
	exit(err)
}

// exit ends the program if err is an error.
func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, names []string, rounds int, seconds float64, tape bool, bandwidth float64) error {
	if rounds < 1 {
		return fmt.Errorf("%d rounds: there must be at least one", rounds)
	}
	var last size
	for _, name := range names {
		var err error
		if last, err = sizeOf(name); err != nil {
			return err
		}
		if err := measure(w, last, rounds, seconds, tape); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if bandwidth > 0 {
		return overlap(w, last, bandwidth*1e6, rounds, seconds)
	}
	return nil
}

func sizeOf(name string) (size, error) {
	i := slices.IndexFunc(sizes, func(s size) bool { return s.name == name })
	if i < 0 {
		return size{}, fmt.Errorf("unknown size %q", name)
	}
	return sizes[i], nil
}

// measure runs all contestants on one size.
func measure(w io.Writer, s size, rounds int, seconds float64, tape bool) error {
	ctx := context.Background()
	var list []*contestant
	for _, ranks := range []int{1, 2} {
		c, err := newSharded(ctx, s, ranks)
		if err != nil {
			return err
		}
		list = append(list, c)
	}
	if tape {
		c, err := newTape(s)
		if err != nil {
			return err
		}
		list = append(list, c)
	}
	for round := range rounds {
		for _, c := range list {
			if err := c.race(seconds, round == 0); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	report(w, s, list)
	for _, c := range list {
		if err := c.close(); err != nil {
			return err
		}
	}
	return nil
}

// race runs steps for some seconds, at least one. The first round warms up with one more.
func (c *contestant) race(seconds float64, first bool) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(c.cores))
	if first {
		if err := c.step(); err != nil {
			return err
		}
	}
	for begin := time.Now(); ; {
		t := time.Now()
		if err := c.step(); err != nil {
			return err
		}
		c.times = append(c.times, time.Since(t))
		if time.Since(begin).Seconds() > seconds {
			return nil
		}
	}
}

// report prints a row for each contestant: median step and its range, and ratios to the first.
func report(w io.Writer, s size, list []*contestant) {
	fmt.Fprintf(w, "%s: %d layers, %d channels, %d heads, %d sequences of %d bytes, %.1f GFLOP a step\n",
		s.name, s.layers, s.dim, s.heads, s.batch, s.context, s.flops()/1e9)
	fmt.Fprintf(w, "  %-22s %5s %26s %10s %14s %9s\n", "", "cores", "ms a step (min..max, n)", "tokens/s", "GFLOP/s a core", "of 1 rank")
	base := median(list[0].times)
	for _, c := range list {
		t := median(c.times)
		fmt.Fprintf(w, "  %-22s %5d %26s %10.0f %14.1f %8.2fx\n", c.name, c.cores,
			fmt.Sprintf("%.1f (%.1f..%.1f, %d)", ms(t), ms(slices.Min(c.times)), ms(slices.Max(c.times)), len(c.times)),
			float64(s.tokens())/t.Seconds(), s.flops()/t.Seconds()/1e9/float64(c.cores), base.Seconds()/t.Seconds())
	}
}

func median(times []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[len(sorted)/2]
}

func ms(t time.Duration) float64 { return t.Seconds() * 1e3 }
