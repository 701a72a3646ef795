// Package train measures training steps of a GPT: this library on one and on two cores, PyTorch,
// and the peak of the processor, in turns.
//
//	bench train [-size tiny,small,medium] [-run REGEXP] [-torch python [-compile]] [-seconds 30]
//	bench overlap [-size tiny,small] [-rounds 3] [-seconds 4] [-bandwidth 400]
//	bench formats [-size small] [-context 128] [-prefetch 2] [-bandwidth 100] [-loss 3.2] [-run REGEXP]
//	bench join [-size tiny,small] [-rounds 3] [-seconds 4]
//	bench memory
//
// With PyTorch all tables take 7 minutes on two quiet cores, without it half as long, and medium
// takes 16 GB of memory. Every way to train is one process or two, which are stopped between their
// turns:
//
//	driver ── "3" ────────────> all processes of a way     three steps
//	       <── "4.81 2.7449" ──                            their seconds, of the slowest, and the loss
//
// All start with the same weights and have the same data, and the driver compares their losses. A
// step is forward, backward, clipping and AdamW on a batch that is the same for all; two ranks
// share it. Tokens per second count the whole batch. GFLOP/s are those of a core. They count 6N +
// 12·L·d·T floating point operations per token, N without the embedding tables, and nothing for
// recomputation. The peak is measured in the same turns, see package peak. "of 1 rank" is the speed
// of a row relative to the first row, and "ours" is the speed of our fastest on as many cores
// relative to the row: medians of the ratios of neighbours.
//
// PyTorch's model is the same (directory peers), with scaled_dot_product_attention and the fused
// AdamW. MKL uses its AVX-512 code on any processor (by a shim that cc builds), and malloc keeps
// freed memory, which is as fast as tcmalloc. In bfloat16 "PyTorch" has parameters, gradients and
// AdamW's state in bfloat16, and autocast has them in float32. Both need AVX512_BF16 to be fast.
// torch.compile takes half a minute for each row, so only -compile adds its rows.
//
// Real-time priority keeps other programs away: chrt -r 10. It should be round-robin, as with chrt
// -f ranks that wait for each other may keep all cores busy for ever.
//
// On two cores of an AMD EPYC with AVX-512 and AVX512_BF16 in a virtual machine, with PyTorch 2.15,
// beside a load of 0.3 to 2.5 (2026-11-23):
//
//	tiny, float32: 4 layers, 128 channels, 4 heads, 8 x 64 tokens, 2.7 GFLOP a step
//	                             cores      ms a step (min..max, n)  tokens/s  GFLOP/s  of peak of 1 rank   ours
//	  1 rank                         1        34.0 (33.3..38.2, 31)     15054     79.9    67.6%     1.00x
//	  1 rank, 2 threads              2        20.3 (19.0..33.4, 31)     25234     67.0    56.7%     1.70x
//	  2 ranks, goroutines            2        19.7 (18.3..31.9, 31)     26039     69.1    58.5%     1.73x
//	  2 ranks, processes             2        19.0 (18.0..32.4, 31)     27000     71.7    60.6%     1.82x
//	  2 ranks, NoShard (DDP)         2        19.8 (18.9..32.9, 31)     25900     68.7    58.1%     1.73x
//	  PyTorch                        1        38.5 (36.9..45.6, 31)     13296     70.6    59.7%     0.88x  1.13x
//	  PyTorch, 2 threads             2        25.1 (22.9..41.2, 31)     20376     54.1    45.7%     1.35x  1.34x
//	  PyTorch DDP                    2        31.5 (27.7..44.4, 31)     16242     43.1    36.5%     1.10x  1.62x
//	  PyTorch FSDP2                  2        72.7 (63.4..96.9, 31)      7038     18.7    15.8%     0.46x  3.77x
//	tiny, bfloat16
//	  1 rank, float32                1        35.3 (33.5..40.0, 28)     14523     77.1    65.2%     1.00x
//	  1 rank                         1        24.0 (22.5..29.7, 28)     21335    113.3    47.9%     1.47x
//	  1 rank, 2 threads              2        16.2 (13.9..25.1, 28)     31599     83.9    35.5%     2.20x
//	  2 ranks, goroutines            2        15.3 (12.5..30.4, 28)     33491     88.9    37.7%     2.27x
//	  2 ranks, processes             2        15.2 (12.6..27.8, 28)     33651     89.3    37.8%     2.30x
//	  2 ranks, NoShard (DDP)         2        17.1 (15.5..35.2, 28)     29916     79.4    33.6%     2.11x
//	  PyTorch, autocast              1        43.1 (39.2..59.6, 28)     11888     63.1    26.7%     0.81x  1.82x
//	  PyTorch                        1        47.0 (38.3..63.2, 28)     10884     57.8    24.4%     0.79x  1.83x
//	  PyTorch, 2 threads             2       33.7 (25.3..308.6, 28)     15176     40.3    17.1%     1.06x  2.31x
//	  PyTorch DDP                    2        39.0 (28.0..83.3, 28)     13116     34.8    14.8%     0.89x  2.56x
//	  PyTorch FSDP2                  2       88.5 (65.3..166.0, 28)      5788     15.4     6.5%     0.41x  5.74x
//	small, float32: 6 layers, 384 channels, 6 heads, 8 x 256 tokens, 146.2 GFLOP a step
//	  1 rank                         1   1502.7 (1473.1..1549.7, 5)      1363     97.3    82.3%     1.00x
//	  1 rank, 2 threads              2     794.4 (762.3..1003.4, 5)      2578     92.0    77.8%     1.90x
//	  2 ranks, goroutines            2      760.7 (746.0..864.2, 5)      2692     96.1    81.3%     1.97x
//	  2 ranks, processes             2      769.1 (767.2..821.1, 5)      2663     95.0    80.4%     1.94x
//	  2 ranks, NoShard (DDP)         2      772.2 (767.4..806.8, 5)      2652     94.6    80.1%     1.92x
//	  PyTorch                        1   1604.7 (1557.7..2018.3, 5)      1276     91.1    77.0%     0.92x  1.09x
//	  PyTorch, 2 threads             2     883.7 (844.7..1212.7, 5)      2317     82.7    70.0%     1.74x  1.13x
//	  PyTorch DDP                    2     878.4 (836.2..1214.6, 5)      2331     83.2    70.4%     1.71x  1.13x
//	  PyTorch FSDP2                  2    1019.3 (976.0..1281.5, 5)      2009     71.7    60.6%     1.45x  1.37x
//	small, bfloat16
//	  1 rank, float32                1   1510.2 (1488.8..1631.5, 6)      1356     96.8    81.9%     1.00x
//	  1 rank                         1      870.2 (848.3..910.2, 6)      2354    168.0    71.0%     1.74x
//	  1 rank, 2 threads              2     490.3 (462.2..1026.8, 6)      4177    149.1    63.0%     3.09x
//	  2 ranks, goroutines            2      448.6 (437.4..739.5, 6)      4566    162.9    68.9%     3.34x
//	  2 ranks, processes             2      513.7 (431.8..923.0, 6)      3986    142.3    60.2%     2.95x
//	  2 ranks, NoShard (DDP)         2      466.6 (451.3..808.4, 6)      4389    156.6    66.2%     3.22x
//	  PyTorch, autocast              1    1054.4 (957.1..1245.2, 6)      1942    138.6    58.6%     1.49x  1.23x
//	  PyTorch                        1     988.2 (939.4..1014.2, 6)      2073    147.9    62.6%     1.54x  1.13x
//	  PyTorch, 2 threads             2     585.8 (508.9..3098.3, 6)      3496    124.8    52.8%     2.58x  1.28x
//	  PyTorch DDP                    2     594.9 (552.5..1114.7, 6)      3443    122.9    52.0%     2.54x  1.34x
//	  PyTorch FSDP2                  2     743.3 (694.7..1207.3, 6)      2755     98.3    41.6%     2.02x  1.66x
//	medium, float32: 12 layers, 768 channels, 12 heads, 2 x 256 tokens, 276.0 GFLOP a step
//	  1 rank                         1   2987.8 (2892.7..3036.4, 3)       171     92.4    78.1%     1.00x
//	  1 rank, 2 threads              2   1578.0 (1539.8..1772.1, 3)       324     87.5    74.0%     1.89x
//	  2 ranks, goroutines            2   1596.9 (1594.9..1736.0, 3)       321     86.4    73.1%     1.81x
//	  2 ranks, processes             2   1701.8 (1659.3..1783.6, 3)       301     81.1    68.6%     1.70x
//	  2 ranks, NoShard (DDP)         2   1698.7 (1698.5..1814.7, 3)       301     81.2    68.7%     1.76x
//	  PyTorch                        1   3040.5 (2909.2..3261.0, 3)       168     90.8    76.8%     0.99x  1.01x
//	  PyTorch, 2 threads             2   1841.5 (1560.8..1996.7, 3)       278     74.9    63.4%     1.65x  1.20x
//	  PyTorch DDP                    2   2037.3 (1896.4..3249.6, 3)       251     67.7    57.3%     1.49x  1.32x
//	  PyTorch FSDP2                  2   3320.3 (2858.4..4462.1, 3)       154     41.6    35.2%     0.91x  2.16x
//	medium, bfloat16
//	  1 rank, float32                1   2901.6 (2864.4..2920.0, 3)       176     95.1    80.5%     1.00x
//	  1 rank                         1   1621.1 (1596.3..1639.3, 3)       316    170.3    72.0%     1.80x
//	  1 rank, 2 threads              2     940.4 (939.1..1041.4, 3)       544    146.8    62.1%     3.05x
//	  2 ranks, goroutines            2      909.2 (892.3..916.5, 3)       563    151.8    64.2%     3.19x
//	  2 ranks, processes             2      952.7 (900.9..979.2, 3)       537    144.9    61.3%     3.01x
//	  2 ranks, NoShard (DDP)         2   1070.8 (1057.4..1071.8, 3)       478    128.9    54.5%     2.71x
//	  PyTorch, autocast              1   1924.9 (1858.1..1948.4, 3)       266    143.4    60.6%     1.51x  1.20x
//	  PyTorch                        1   1731.3 (1707.3..1850.4, 3)       296    159.4    67.4%     1.65x  1.07x
//	  PyTorch, 2 threads             2     999.3 (896.9..1053.3, 3)       512    138.1    58.4%     2.87x  1.09x
//	  PyTorch DDP                    2   1161.2 (1097.2..1216.5, 3)       441    118.9    50.3%     2.47x  1.27x
//	  PyTorch FSDP2                  2   1743.2 (1693.6..2188.4, 3)       294     79.2    33.5%     1.66x  1.92x
//	10m4s in all, load 2.5
//	the peak of a core: float32 FMA of AVX-512 118, bfloat16 VDPBF16PS 236
//
// The next table shows how much communication over a slow link is hidden (2026-11-21). "exposed" is
// the share of the link's time that a rank waits for:
//
//	small on 2 ranks over a link of 400 MB/s and 50µs a collective: communication that is not hidden behind computation
//	  prefetch     ms a step without link   MB sent  link busy ms  waiting ms   without link   exposed
//	  0                580.3        415.6      61.5         154.7       166.0           13.3       99%
//	  1                440.6        417.8      58.0         145.8        27.8            9.7       12%
//	  2                435.8        411.9      58.0         145.8        36.7           10.7       18%
//
// There, too: with even data Join costs 0.1 % of a step of 11 ms, by the medians of paired steps,
// and the exchange of flags takes 2 µs. A rank without a batch is busy for 4 to 8 % of the time of
// a normal step. JoinCalls costs one more exchange of that kind, at its end (2026-11-22).
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

	"github.com/gofsdp/gofsdp/internal/workshop/bench/stats"
)

// Run measures steps as args say, the command line after the subcommand, and prints tables to w.
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

// options are the options of Run.
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
	var t *peer
	if o.python != "" {
		if t, err = newPeer(ctx, w, o.python, o.compile, dir); err != nil {
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

// processor returns Linux's name of the first processor.
func processor() string {
	text, _ := os.ReadFile("/proc/cpuinfo") // exists only on Linux
	if m := regexp.MustCompile(`(?m)^model name\s*: (.*)$`).FindSubmatch(text); m != nil {
		return string(m[1])
	}
	return runtime.GOARCH
}

// Join measures the cost of Join with even data, and with a rank without a batch.
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

// Formats trains over a slow link with several types of sent parameters and gradients, on two
// goroutine ranks, and measures the time of a step and the time to a loss.
func Formats(w io.Writer, args []string) error {
	f := flag.NewFlagSet("bench formats", flag.ContinueOnError)
	names := f.String("size", "small", "comma-separated sizes")
	only := f.String("run", "", "only formats whose names match this regular `expression`")
	bandwidth := f.Float64("bandwidth", 100, "MB/s of the link")
	batch := f.Int("batch", 2, "sequences in a step: few take the processor less time than the link")
	context := f.Int("context", 0, "`tokens` in a sequence (default by size)")
	j := journey{}
	f.IntVar(&j.prefetch, "prefetch", 1, "units that are gathered ahead")
	f.Float64Var(&j.loss, "loss", 3.2, "train until the mean `loss` of 20 steps is no larger")
	f.IntVar(&j.most, "steps", 1000, "steps after which a format has failed")
	dir := f.String("text", ".", "learn the Go files in this `directory`, byte by byte")
	if err := f.Parse(args); err != nil {
		return err
	}
	match, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	list, err := sizesOf(*names)
	if err != nil {
		return err
	}
	if j.text, err = goSource(*dir, 4<<20); err != nil {
		return err
	}
	j.bandwidth = *bandwidth * 1e6
	for _, s := range list {
		j.size, j.Batch = s, *batch
		if *context > 0 {
			j.Context = *context
		}
		if err := travel(w, j, match); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// Memory prints the memory of a rank under each sharding strategy, planned and counted. It measures
// no time.
func Memory(w io.Writer, args []string) error {
	if err := flag.NewFlagSet("bench memory", flag.ContinueOnError).Parse(args); err != nil {
		return err
	}
	return memory(w, sizes[0])
}

// command is the command line of a subcommand that trains in rounds.
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
