// Package train measures training steps of a GPT: this library on one and on two ranks of one core
// each, and the same model on Gorgonia's own TapeMachine, interleaved in one run.
//
//	bench train [-size tiny,small] [-rounds 3] [-seconds 4] [-tape=false] [-bandwidth 400]
//	bench join [-size tiny,small] [-rounds 3] [-seconds 4]
//	bench memory
//
// Then two ranks train with FullShard beside NoShard, which is DDP: in one unit and by blocks, a step
// of each in turn. After that it trains the largest size over a link that is slowed down to a stated
// bandwidth, and prints the same, and how much of the communication is not hidden behind computation
// with each prefetch depth.
//
// The machine's model differs in its GELU, the tanh form, and its update, Gorgonia's Adam with
// element-wise clipping; its products are gonum's.
//
// A step is forward, backward, clipping and AdamW in float32 on a batch that is the same for all;
// two ranks share it. Tokens per second count the whole batch. GFLOP/s count 6N + 12·L·d·T floating
// point operations per token, N without the embedding tables, and nothing for recomputation.
//
// On two cores of an AMD EPYC with AVX-512 in a virtual machine (2026-11-21):
//
//	tiny: 4 layers, 128 channels, 4 heads, 8 sequences of 64 bytes, 2.7 GFLOP a step
//	                         cores    ms a step (min..max, n)   tokens/s GFLOP/s a core of 1 rank
//	  1 rank(s)                  1     18.3 (16.4..31.9, 650)      27902          148.1     1.00x
//	  2 rank(s)                  2     10.3 (8.9..23.2, 1168)      49950          132.6     1.79x
//	  Gorgonia TapeMachine       1   277.5 (258.5..710.4, 43)       1845            9.8     0.07x
//	small: 6 layers, 384 channels, 6 heads, 8 sequences of 256 bytes, 146.2 GFLOP a step
//	                         cores    ms a step (min..max, n)   tokens/s GFLOP/s a core of 1 rank
//	  1 rank(s)                  1   769.1 (731.6..795.6, 18)       2663          190.0     1.00x
//	  2 rank(s)                  2   405.0 (380.5..437.0, 31)       5056          180.4     1.90x
//	  Gorgonia TapeMachine       1 14361.1 (13442.6..20922.9, 3)        143           10.2     0.05x
//
// How much communication is hidden on a slow link. "exposed" is the share of the link's time that a
// rank waits for:
//
//	small on 2 ranks over a link of 400 MB/s and 50µs a collective: communication that is not hidden behind computation
//	  prefetch     ms a step without link   MB sent  link busy ms  waiting ms   without link   exposed
//	  0                580.3        415.6      61.5         154.7       166.0           13.3       99%
//	  1                440.6        417.8      58.0         145.8        27.8            9.7       12%
//	  2                435.8        411.9      58.0         145.8        36.7           10.7       18%
//
// There, too: with even data Join costs 0.1 % of a step of 11 ms, by the medians of paired steps, and
// the exchange of flags takes 2 µs. A rank without a batch is busy for 4 to 8 % of the time that a
// step takes it otherwise. JoinCalls costs one more exchange of that kind, at its end (2026-11-22).
//
// FullShard beside DDP, on that machine while others used it, so that steps took two to four times as
// long (2026-11-22, load 2 at the start and 13 at the end). The ratios of tiny are of 259 turns. Those
// of small are of 9 and of 6, too few to tell some percent from none:
//
//	tiny on 2 ranks: steps in turns
//	                              ms a step (min..max, n)     of NoShard (middle half)
//	  NoShard (DDP)               44.6 (28.5..195.4, 259)         1.000 (1.000..1.000)
//	  FullShard in one unit       43.2 (30.4..147.2, 259)         0.965 (0.924..1.004)
//	  FullShard by blocks          44.1 (36.2..87.2, 259)         0.990 (0.934..1.027)
//	small on 2 ranks: steps in turns
//	  NoShard (DDP)             1501.7 (786.4..3999.9, 9)         1.000 (1.000..1.000)
//	  FullShard in one unit     1439.4 (774.3..3123.4, 9)         0.972 (0.958..1.084)
//	  FullShard by blocks       1414.1 (765.5..3790.7, 9)         0.981 (0.958..1.422)
//	small on 2 ranks over a link of 400 MB/s and 50µs a collective: steps in turns
//	  NoShard (DDP)            1593.0 (1406.4..3324.9, 6)         1.000 (1.000..1.000)
//	  FullShard in one unit    1626.4 (1543.5..3174.7, 6)         1.053 (0.955..1.130)
//	  FullShard by blocks      1512.3 (1407.1..3131.2, 6)         0.965 (0.921..1.064)
package train

import (
	"context"
	"flag"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/internal/bench/stats"
)

// size is a model with its batch.
type size struct {
	name                                      string
	layers, dim, heads, context, batch, vocab int
	adapters                                  int // their rank; 0 means none
}

var sizes = []size{
	{name: "tiny", layers: 4, dim: 128, heads: 4, context: 64, batch: 8, vocab: 256},
	{name: "small", layers: 6, dim: 384, heads: 6, context: 256, batch: 8, vocab: 256},
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

// Run measures steps as args, the command line behind the subcommand, say, and prints tables to w.
func Run(w io.Writer, args []string) error {
	c := newCommand("bench train")
	tape := c.flags.Bool("tape", true, "measure Gorgonia's TapeMachine too")
	bandwidth := c.flags.Float64("bandwidth", 400, "MB/s of the link that the overlap is measured on; 0 leaves that out")
	if err := c.flags.Parse(args); err != nil {
		return err
	}
	return run(w, c.sizes(), c.rounds, c.seconds, *tape, *bandwidth)
}

// Join measures what Join costs with even data, and a rank without a batch.
func Join(w io.Writer, args []string) error {
	c := newCommand("bench join")
	if err := c.flags.Parse(args); err != nil {
		return err
	}
	return joining(w, c.sizes(), c.rounds, c.seconds)
}

// Memory prints what a rank holds under each sharding strategy, planned and counted. It measures no
// time.
func Memory(w io.Writer, args []string) error {
	if err := flag.NewFlagSet("bench memory", flag.ContinueOnError).Parse(args); err != nil {
		return err
	}
	return memory(w, sizes[0])
}

// command is the command line of what trains.
type command struct {
	flags   *flag.FlagSet
	names   string
	rounds  int
	seconds float64
}

func newCommand(name string) *command {
	c := &command{flags: flag.NewFlagSet(name, flag.ContinueOnError)}
	c.flags.StringVar(&c.names, "size", "tiny,small", "comma-separated sizes")
	c.flags.IntVar(&c.rounds, "rounds", 3, "interleaved rounds")
	c.flags.Float64Var(&c.seconds, "seconds", 4, "seconds for each contestant and round")
	return c
}

func (c *command) sizes() []string { return strings.Split(c.names, ",") }

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
		if err := beside(w, last, 0, rounds, seconds); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if bandwidth > 0 {
		if err := beside(w, last, bandwidth*1e6, rounds, seconds); err != nil {
			return err
		}
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
	base := stats.Median(list[0].times)
	for _, c := range list {
		t := stats.Median(c.times)
		fmt.Fprintf(w, "  %-22s %5d %26s %10.0f %14.1f %8.2fx\n", c.name, c.cores,
			stats.Spread(c.times),
			float64(s.tokens())/t.Seconds(), s.flops()/t.Seconds()/1e9/float64(c.cores), base.Seconds()/t.Seconds())
	}
}
