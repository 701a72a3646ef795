// Package models measures forward and backward of whole models and of single operations on one
// core: this library and PyTorch, in turns.
//
//	bench models [-run REGEXP] [-torch python] [-seconds 20] [-bfloat16]
//	bench models -run ^op/       operations alone
//	bench models -run '^[^/]+$'  models alone
//
// A contest is one function, implemented in several ways: by modules of this library, by stock
// operations of Gorgonia, and by PyTorch. Each way is a process that is stopped between its turns:
//
//	driver ── "3" ───────────────────────> a way     three passes, forward and backward
//	       <── "0.60 1.21 2.7449 0.3152" ──          the seconds of each, the loss, and the norm of all gradients
//
// All have the same weights, which the first of them draws, and the same batch; the driver compares
// losses and norms. Parameters do not change. "of the first" is the speed of a row relative to the
// first row, and "ours" is the speed of the first row relative to PyTorch: medians of the ratios of
// neighbours. FLOPs are counted by hand where a contest says so. The last table has a row for each
// contest, which compares with PyTorch's fastest way.
//
// Package exec runs an operation like a module: its result and the gradients of all arguments have
// planned memory. PyTorch uses autograd.grad.
//
// To add a contest, append it to contests, and put the same model into directory peers, under the
// same names of parameters (see peers/peer.py). An operation is a line in ops.go and in
// peers/ops.py.
//
// Real-time priority keeps other programs away: chrt -r 10.
//
// On a core of an AMD EPYC with AVX-512, with a load of 1 and PyTorch 2.15 whose MKL uses the code
// for Intel's processors (2026-11-23; the peak of the core is 118 GFLOP/s):
//
//	gpt256: 2 layers, 4 sequences of 128 tokens
//	                                  ms a pass (min..max, n)  GFLOP/s of the first   ours
//	  nn                                62.5 (60.0..66.7, 12)     86.9        1.00x
//	  PyTorch                           70.8 (65.0..73.0, 12)     76.8        0.89x  1.12x
//	gpt512: 2 layers, 4 sequences of 128 tokens
//	  nn                             225.8 (214.0..238.2, 13)     91.0        1.00x
//	  PyTorch                        231.0 (218.2..250.0, 13)     88.9        0.98x  1.02x
//	gpt1024: 2 layers, 4 sequences of 128 tokens
//	  nn                              836.8 (829.7..870.0, 4)     95.3        1.00x
//	  PyTorch                         806.4 (795.7..814.3, 4)     98.9        1.05x  0.96x
//	llama256: 2 layers, 4 sequences of 128 tokens
//	  nn                                59.2 (58.0..65.2, 12)     91.8        1.00x
//	  stock operations                  66.1 (64.9..74.4, 12)     82.3        0.90x
//	  PyTorch joined                    70.3 (66.9..91.7, 12)     77.3        0.86x  1.17x
//	  PyTorch apart                     68.4 (65.1..94.3, 12)     79.5        0.87x  1.15x
//	llama512: 2 layers, 4 sequences of 128 tokens
//	  nn                              220.7 (215.9..237.1, 7)     93.0        1.00x
//	  stock operations                250.1 (236.6..275.1, 7)     82.1        0.90x
//	  PyTorch joined                  240.7 (228.6..255.2, 7)     85.3        0.93x  1.07x
//	  PyTorch apart                   229.3 (224.9..277.5, 7)     89.6        0.95x  1.05x
//	llama1024: 2 layers, 4 sequences of 128 tokens
//	  nn                              821.0 (817.2..851.7, 3)     97.1        1.00x
//	  stock operations                865.8 (832.8..865.8, 3)     92.1        0.95x
//	  PyTorch joined                  832.2 (826.2..847.8, 3)     95.8        0.99x  1.01x
//	  PyTorch apart                   827.1 (798.6..843.2, 3)     96.4        1.02x  0.98x
//	vit256: 2 layers, 8 images of 64·64 pixels
//	  nn                                60.2 (58.4..65.0, 10)     87.5        1.00x
//	  PyTorch                           65.8 (63.9..74.8, 10)     80.0        0.91x  1.10x
//
// The convolutional nets were measured with a load of 7, which makes PyTorch's passes of digits
// vary:
//
//	digits: 32 and 64 channels of 3x3, a dense layer of 128, 32 images of 28x28
//	  nn                                11.6 (11.0..14.2, 10)     68.9        1.00x
//	  Gorgonia's operations             13.5 (12.2..14.5, 10)     59.3        0.86x
//	  PyTorch                           22.1 (20.3..25.9, 10)     36.1        0.53x  1.87x
//	  PyTorch channels last             15.5 (13.1..17.7, 10)     51.7        0.77x  1.29x
//	residual: a stem and a block of 64 channels of 3x3 with BatchNorm, 8 images of 32x32
//	  nn                                44.0 (43.5..50.5, 10)     83.6        1.00x
//	  PyTorch                           49.0 (46.3..60.1, 10)     75.1        0.91x  1.10x
//	  PyTorch channels last             47.1 (43.3..53.0, 10)     78.2        0.95x  1.05x
package models

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"time"

	"github.com/gofsdp/gofsdp/internal/workshop/bench/stats"
	"github.com/gofsdp/gofsdp/internal/workshop/bench/torch"
)

// options are the options of the command line.
type options struct {
	only    *regexp.Regexp
	torch   *torch.Torch // or nil
	seconds float64
	halves  []bool // whether passes are in bfloat16
	dir     string // for files
}

// Run measures as args say, the command line after the subcommand, and prints tables to w.
func Run(ctx context.Context, w io.Writer, args []string) (err error) {
	f := flag.NewFlagSet("bench models", flag.ContinueOnError)
	only := f.String("run", "", "only contests whose names match this regular `expression`")
	python := f.String("torch", "", "a `python` with PyTorch, to take turns with; empty for none")
	seconds := f.Float64("seconds", 20, "seconds for each contest; there are three turns in any case")
	bfloat16 := f.Bool("bfloat16", false, "passes in bfloat16 as well")
	if err := f.Parse(args); err != nil {
		return err
	}
	o := options{seconds: *seconds, halves: []bool{false}}
	if *bfloat16 {
		o.halves = append(o.halves, true)
	}
	if o.only, err = regexp.Compile(*only); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if o.dir, err = os.MkdirTemp("", "models"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(o.dir)) }()
	begin := time.Now()
	fmt.Fprintf(w, "%d cores, load %.1f\n", runtime.NumCPU(), stats.Load())
	if *python != "" {
		if o.torch, err = torch.New(ctx, w, *python, o.dir); err != nil {
			return err
		}
		if err := os.CopyFS(o.dir, scripts); err != nil {
			return err
		}
	}
	if err := holdAll(ctx, w, o); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "\n%v in all, load %.1f\n", time.Since(begin).Round(time.Second), stats.Load())
	return err
}

func holdAll(ctx context.Context, w io.Writer, o options) error {
	var rows []string
	for _, c := range contests {
		if !o.only.MatchString(c.name) {
			continue
		}
		list, err := hold(ctx, c, o)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		report(w, c, list)
		rows = append(rows, summary(c, list))
	}
	summarise(w, rows)
	return nil
}
