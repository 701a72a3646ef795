// Package train measures training steps of a GPT: this library on one and on two cores, beside
// PyTorch and what the processor can do at most, in turns.
//
//	bench train [-size tiny,small,medium] [-run REGEXP] [-torch python [-compile]] [-seconds 30]
//	bench overlap [-size tiny,small] [-rounds 3] [-seconds 4] [-bandwidth 400]
//	bench join [-size tiny,small] [-rounds 3] [-seconds 4]
//	bench memory
//
// With PyTorch all tables take 7 minutes on two quiet cores, without it half as long, and medium
// takes 16 GB of memory. Every way to train is one process or two, which stand still while it is
// not their turn:
//
//	driver ── "3" ────────────> all processes of a way     three steps
//	       <── "4.81 2.7449" ──                            their seconds, of the slowest, and the loss
//
// All start with the same weights and have the same data, and the driver compares their losses. A
// step is forward, backward, clipping and AdamW on a batch that is the same for all; two ranks
// share it. Tokens per second count the whole batch. GFLOP/s are those of a core. They count 6N +
// 12·L·d·T floating point operations per token, N without the embedding tables, and nothing for
// recomputation. The peak is measured in the same turns, see package peak. "of 1 rank" is how many
// times as fast as the first row a row is, "ours" how many times as fast the fastest of ours on as
// many cores: medians of the ratios of neighbours.
//
// PyTorch's model is the same (directory peers), with scaled_dot_product_attention and the fused
// AdamW. MKL takes its way for AVX-512 on any processor (a shim that cc builds), and malloc keeps
// what is freed, which is as good as tcmalloc. In bfloat16 "PyTorch" has parameters, gradients and
// AdamW's state in bfloat16, and autocast those in float32. Both need AVX512_BF16 to be fast.
// torch.compile takes half a minute for each row, so only -compile adds its rows.
//
// Real-time priority keeps other programs away: chrt -r 10. It should be round-robin, as with chrt
// -f ranks that wait for each other may keep all cores busy for ever.
//
// On two cores of an AMD EPYC with AVX-512 and AVX512_BF16 in a virtual machine, with PyTorch 2.15,
// at real-time priority beside loads of 15 to 30 (2026-11-22):
//
//	tiny, float32: 4 layers, 128 channels, 4 heads, 8 x 64 tokens, 2.7 GFLOP a step
//	                             cores      ms a step (min..max, n)  tokens/s  GFLOP/s  of peak of 1 rank   ours
//	  1 rank                         1        40.4 (37.8..51.2, 14)     12666     67.2    57.1%     1.00x
//	  2 ranks, goroutines            2        22.2 (20.2..34.8, 14)     23037     61.1    52.0%     1.85x
//	  2 ranks, processes             2        22.2 (20.2..24.0, 14)     23099     61.3    52.1%     1.85x
//	  2 ranks, NoShard (DDP)         2        22.9 (20.9..27.0, 14)     22386     59.4    50.5%     1.75x
//	  PyTorch                        1        47.8 (44.9..63.6, 14)     10709     56.8    48.3%     0.84x  1.19x
//	  PyTorch, 2 threads             2        30.1 (27.6..45.8, 14)     17037     45.2    38.5%     1.34x  1.40x
//	  PyTorch DDP                    2        32.6 (28.9..40.9, 14)     15684     41.6    35.4%     1.26x  1.47x
//	  PyTorch FSDP2                  2        66.7 (53.2..89.0, 14)      7672     20.4    17.3%     0.66x  2.93x
//	small, float32: 6 layers, 384 channels, 6 heads, 8 x 256 tokens, 146.2 GFLOP a step
//	  1 rank                         1   1714.5 (1572.8..1766.1, 4)      1195     85.3    72.1%     1.00x
//	  2 ranks, goroutines            2      815.9 (802.2..875.2, 4)      2510     89.6    76.0%     2.02x
//	  2 ranks, processes             2      888.9 (812.3..994.6, 4)      2304     82.2    69.7%     1.88x
//	  2 ranks, NoShard (DDP)         2      886.1 (855.7..903.7, 4)      2311     82.5    70.0%     1.95x
//	  PyTorch                        1   1674.1 (1614.8..1718.0, 4)      1223     87.3    73.9%     1.02x  0.98x
//	  PyTorch, 2 threads             2      940.0 (894.3..977.7, 4)      2179     77.7    65.9%     1.85x  1.15x
//	  PyTorch DDP                    2      925.4 (876.4..963.6, 4)      2213     79.0    67.0%     1.88x  1.10x
//	  PyTorch FSDP2                  2   1057.3 (1006.2..1249.2, 4)      1937     69.1    58.6%     1.56x  1.28x
//	small, bfloat16
//	  1 rank, float32                1   1590.8 (1551.7..1796.0, 6)      1287     91.9    77.7%     1.00x
//	  PyTorch, autocast              1   1081.4 (1006.2..1126.7, 6)      1894    135.2    57.2%     1.53x
//	  PyTorch                        1    1013.4 (980.1..1087.0, 6)      2021    144.2    61.0%     1.58x
//	  PyTorch, 2 threads             2      607.0 (531.7..627.9, 6)      3374    120.4    51.1%     2.80x
//	  PyTorch DDP                    2      582.6 (571.3..692.0, 6)      3515    125.4    53.2%     2.71x
//	  PyTorch FSDP2                  2      711.5 (675.6..745.9, 6)      2878    102.7    43.6%     2.30x
//	medium, float32: 12 layers, 768 channels, 12 heads, 2 x 256 tokens, 276.0 GFLOP a step
//	  1 rank                         1   3066.4 (3025.6..3131.8, 5)       167     90.0    76.1%     1.00x
//	  PyTorch                        1   3022.6 (2999.4..3203.6, 5)       169     91.3    77.2%     1.02x  0.98x
//	medium, bfloat16
//	  PyTorch, autocast              1   1925.9 (1815.9..1974.9, 5)       266    143.3    60.6%     1.62x
//	  PyTorch                        1   1853.0 (1766.7..1932.1, 5)       276    149.0    63.0%     1.69x
//	the peak of a core: float32 FMA of AVX-512 118, bfloat16 VDPBF16PS 236
//
// One rank with 2 threads took 894 ms for small in float32 in another run, where 1 rank took 1615
// and PyTorch with 2 threads 949.
//
// How much communication is hidden on a slow link (2026-11-21). "exposed" is the share of the
// link's time that a rank waits for:
//
//	small on 2 ranks over a link of 400 MB/s and 50µs a collective: communication that is not hidden behind computation
//	  prefetch     ms a step without link   MB sent  link busy ms  waiting ms   without link   exposed
//	  0                580.3        415.6      61.5         154.7       166.0           13.3       99%
//	  1                440.6        417.8      58.0         145.8        27.8            9.7       12%
//	  2                435.8        411.9      58.0         145.8        36.7           10.7       18%
//
// There, too: with even data Join costs 0.1 % of a step of 11 ms, by the medians of paired steps,
// and the exchange of flags takes 2 µs. A rank without a batch is busy for 4 to 8 % of the time
// that a step takes it otherwise. JoinCalls costs one more exchange of that kind, at its end
// (2026-11-22).
package train

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/internal/bench/stats"
)

// Run measures steps as args, the command line behind the subcommand, say, and prints tables to w.
func Run(ctx context.Context, w io.Writer, args []string) error {
	f := flag.NewFlagSet("bench train", flag.ContinueOnError)
	names := f.String("size", "tiny,small,medium", "comma-separated sizes")
	only := f.String("run", "", "only rows whose names match this regular `expression`, and the first")
	python := f.String("torch", "", "a `python` with PyTorch, to train in turns with; empty for none")
	compile := f.Bool("compile", false, "train with torch.compile too")
	seconds := f.Float64("seconds", 30, "seconds for each table; there are three turns in any case")
	if err := f.Parse(args); err != nil {
		return err
	}
	match, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	list, err := sizesOf(*names)
	if err != nil {
		return err
	}
	return run(ctx, w, options{list, match, *python, *compile, *seconds})
}

// options is what Run measures.
type options struct {
	sizes   []size
	match   *regexp.Regexp // of the names of rows
	python  string         // with PyTorch, or ""
	compile bool
	seconds float64
}

func run(ctx context.Context, w io.Writer, o options) (err error) {
	begin := time.Now()
	dir, err := os.MkdirTemp("", "train")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	fmt.Fprintf(w, "%s, %d cores, load %.1f\n", processor(), runtime.NumCPU(), stats.Load())
	var t *torch
	if o.python != "" {
		if t, err = newTorch(ctx, w, o.python, o.compile, dir); err != nil {
			return err
		}
	}
	for _, s := range o.sizes {
		for _, p := range []precision{float32s, bfloat16s} {
			ways := lineup(p, t, o.match)
			if p != float32s && len(ways) == 1 {
				continue
			}
			if err := hold(ctx, w, s, p, ways, t, o.seconds); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	_, err = fmt.Fprintf(w, "\n%v in all, load %.1f\n", time.Since(begin).Round(time.Second), stats.Load())
	return err
}

// processor returns what Linux calls the first processor.
func processor() string {
	text, _ := os.ReadFile("/proc/cpuinfo") // is only there on Linux
	if m := regexp.MustCompile(`(?m)^model name\s*: (.*)$`).FindSubmatch(text); m != nil {
		return string(m[1])
	}
	return runtime.GOARCH
}

// Join measures what Join costs with even data, and a rank without a batch.
func Join(w io.Writer, args []string) error {
	c := newCommand("bench join")
	if err := c.flags.Parse(args); err != nil {
		return err
	}
	list, err := sizesOf(c.names)
	if err != nil {
		return err
	}
	return joining(w, list, c.rounds, c.seconds)
}

// Overlap measures how much communication over a slow link is hidden.
func Overlap(w io.Writer, args []string) error {
	c := newCommand("bench overlap")
	bandwidth := c.flags.Float64("bandwidth", 400, "MB/s of the link")
	if err := c.flags.Parse(args); err != nil {
		return err
	}
	list, err := sizesOf(c.names)
	if err != nil {
		return err
	}
	for _, s := range list {
		if err := overlap(w, s, *bandwidth*1e6, c.rounds, c.seconds); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// Memory prints what a rank holds under each sharding strategy, planned and counted. It measures no
// time.
func Memory(w io.Writer, args []string) error {
	if err := flag.NewFlagSet("bench memory", flag.ContinueOnError).Parse(args); err != nil {
		return err
	}
	return memory(w, sizes[0])
}

// command is the command line of what trains in rounds.
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

// sizesOf returns the sizes that a text lists.
func sizesOf(names string) (list []size, err error) {
	for _, name := range strings.Split(names, ",") {
		i := slices.IndexFunc(sizes, func(s size) bool { return s.name == name })
		if i < 0 {
			return nil, fmt.Errorf("unknown size %q", name)
		}
		list = append(list, sizes[i])
	}
	return list, nil
}
