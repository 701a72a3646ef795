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
// at real-time priority beside a load of 2 to 8 (2026-11-22):
//
//	tiny, float32: 4 layers, 128 channels, 4 heads, 8 x 64 tokens, 2.7 GFLOP a step
//	                             cores      ms a step (min..max, n)  tokens/s  GFLOP/s  of peak of 1 rank   ours
//	  1 rank                         1        34.5 (33.7..40.9, 37)     14847     78.8    66.7%     1.00x
//	  1 rank, 2 threads              2        20.7 (18.9..30.8, 37)     24764     65.7    55.8%     1.68x
//	  2 ranks, goroutines            2        19.8 (17.6..38.5, 37)     25853     68.6    58.3%     1.82x
//	  2 ranks, processes             2        19.7 (17.8..32.7, 37)     25996     69.0    58.6%     1.81x
//	  2 ranks, NoShard (DDP)         2        21.2 (18.6..33.3, 37)     24155     64.1    54.5%     1.65x
//	  PyTorch                        1        39.3 (37.4..45.7, 37)     13039     69.2    58.5%     0.89x  1.13x
//	  PyTorch, 2 threads             2        26.9 (22.6..41.0, 37)     19047     50.6    43.0%     1.37x  1.34x
//	  PyTorch DDP                    2        28.7 (24.3..44.1, 37)     17857     47.4    40.3%     1.26x  1.45x
//	  PyTorch FSDP2                  2        52.0 (41.9..65.4, 37)      9842     26.1    22.2%     0.67x  2.70x
//	tiny, bfloat16
//	  1 rank, float32                1        34.7 (33.4..45.0, 24)     14761     78.4    66.3%     1.00x
//	  1 rank                         1        22.8 (22.3..38.4, 24)     22422    119.0    50.3%     1.51x
//	  1 rank, 2 threads              2        15.2 (13.4..22.7, 24)     33681     89.4    37.8%     2.33x
//	  2 ranks, goroutines            2        13.7 (11.9..31.3, 24)     37455     99.4    42.0%     2.65x
//	  2 ranks, processes             2        13.4 (11.5..21.5, 24)     38323    101.7    43.0%     2.64x
//	  2 ranks, NoShard (DDP)         2        14.1 (12.4..25.0, 24)     36300     96.3    40.7%     2.60x
//	  PyTorch, autocast              1        41.3 (38.8..59.3, 24)     12399     65.8    27.8%     0.85x  1.79x
//	  PyTorch                        1        40.7 (38.0..54.9, 24)     12567     66.7    28.2%     0.86x  1.77x
//	  PyTorch, 2 threads             2        27.8 (23.6..42.1, 24)     18425     48.9    20.7%     1.29x  2.08x
//	  PyTorch DDP                    2        26.6 (24.2..44.8, 24)     19273     51.2    21.6%     1.33x  2.11x
//	  PyTorch FSDP2                  2        48.9 (39.1..73.4, 24)     10474     27.8    11.8%     0.74x  3.50x
//	small, float32: 6 layers, 384 channels, 6 heads, 8 x 256 tokens, 146.2 GFLOP a step
//	  1 rank                         1   1599.9 (1542.0..1643.4, 4)      1280     91.4    77.3%     1.00x
//	  1 rank, 2 threads              2      827.7 (760.4..993.6, 4)      2474     88.3    74.7%     1.92x
//	  2 ranks, goroutines            2      828.3 (779.1..899.5, 4)      2473     88.2    74.6%     1.88x
//	  2 ranks, processes             2      833.1 (794.9..861.0, 4)      2458     87.7    74.2%     1.92x
//	  2 ranks, NoShard (DDP)         2      805.5 (765.8..811.8, 4)      2542     90.7    76.7%     1.98x
//	  PyTorch                        1   1628.7 (1600.1..1790.0, 4)      1257     89.7    75.9%     0.98x  1.03x
//	  PyTorch, 2 threads             2      907.7 (862.7..961.6, 4)      2256     80.5    68.1%     1.75x  1.14x
//	  PyTorch DDP                    2      905.7 (865.2..939.2, 4)      2261     80.7    68.3%     1.75x  1.14x
//	  PyTorch FSDP2                  2      969.8 (947.6..988.9, 4)      2112     75.4    63.7%     1.65x  1.20x
//	small, bfloat16
//	  1 rank, float32                1   1570.6 (1546.7..1575.8, 4)      1304     93.1    78.7%     1.00x
//	  1 rank                         1      917.3 (873.8..965.5, 4)      2233    159.3    67.4%     1.71x
//	  1 rank, 2 threads              2      541.4 (523.4..556.0, 4)      3783    135.0    57.1%     2.88x
//	  2 ranks, goroutines            2      445.8 (423.7..511.2, 4)      4594    163.9    69.3%     3.50x
//	  2 ranks, processes             2      427.0 (415.0..437.0, 4)      4796    171.2    72.4%     3.69x
//	  2 ranks, NoShard (DDP)         2      483.6 (477.1..501.9, 4)      4235    151.1    63.9%     3.22x
//	  PyTorch, autocast              1   1057.0 (1007.8..1221.5, 4)      1938    138.3    58.5%     1.48x  1.16x
//	  PyTorch                        1    1029.2 (956.5..1106.5, 4)      1990    142.0    60.1%     1.53x  1.13x
//	  PyTorch, 2 threads             2      587.5 (576.9..601.1, 4)      3486    124.4    52.6%     2.66x  1.38x
//	  PyTorch DDP                    2      551.5 (516.7..621.5, 4)      3714    132.5    56.0%     2.83x  1.31x
//	  PyTorch FSDP2                  2      621.3 (591.6..671.8, 4)      3296    117.6    49.7%     2.51x  1.45x
//	medium, float32: 12 layers, 768 channels, 12 heads, 2 x 256 tokens, 276.0 GFLOP a step
//	  1 rank                         1   3089.5 (3070.3..3092.9, 3)       166     89.3    75.6%     1.00x
//	  1 rank, 2 threads              2   1793.8 (1752.3..1819.5, 3)       285     76.9    65.1%     1.72x
//	  2 ranks, goroutines            2   1618.4 (1540.7..1725.7, 3)       316     85.3    72.1%     1.91x
//	  2 ranks, processes             2   1651.1 (1629.4..1714.1, 3)       310     83.6    70.7%     1.87x
//	  2 ranks, NoShard (DDP)         2   1742.0 (1687.8..1754.9, 3)       294     79.2    67.0%     1.76x
//	  PyTorch                        1   3117.3 (2977.7..3189.7, 3)       164     88.5    74.9%     0.99x  1.01x
//	  PyTorch, 2 threads             2   1680.8 (1665.8..1716.4, 3)       305     82.1    69.5%     1.84x  1.06x
//	  PyTorch DDP                    2   1989.4 (1890.8..2452.6, 3)       257     69.4    58.7%     1.55x  1.23x
//	  PyTorch FSDP2                  2   3195.9 (2634.8..3680.1, 3)       160     43.2    36.5%     0.97x  1.97x
//	medium, bfloat16
//	  1 rank, float32                1   3189.5 (3001.0..3224.1, 3)       161     86.5    73.2%     1.00x
//	  1 rank                         1   1716.5 (1645.1..1798.5, 3)       298    160.8    68.0%     1.77x
//	  1 rank, 2 threads              2    1031.8 (988.7..1059.9, 3)       496    133.8    56.6%     3.04x
//	  2 ranks, goroutines            2    1089.3 (962.9..1102.9, 3)       470    126.7    53.6%     2.93x
//	  2 ranks, processes             2     974.1 (968.6..1026.8, 3)       526    141.7    60.0%     3.14x
//	  2 ranks, NoShard (DDP)         2    1031.7 (953.8..1036.9, 3)       496    133.8    56.6%     3.11x
//	  PyTorch, autocast              1   1901.4 (1789.0..2081.1, 3)       269    145.2    61.4%     1.58x  1.11x
//	  PyTorch                        1   1834.0 (1806.8..1950.9, 3)       279    150.5    63.7%     1.66x  1.05x
//	  PyTorch, 2 threads             2   1078.2 (1051.8..1211.4, 3)       475    128.0    54.2%     2.96x  1.11x
//	  PyTorch DDP                    2   1101.8 (1093.5..1264.2, 3)       465    125.3    53.0%     2.72x  1.14x
//	  PyTorch FSDP2                  2   1387.9 (1364.6..1688.0, 3)       369     99.4    42.1%     2.20x  1.41x
//	8m11s in all, load 5.0
//	the peak of a core: float32 FMA of AVX-512 118, bfloat16 VDPBF16PS 236
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
