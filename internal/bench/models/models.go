// Package models measures forward and backward of whole models on one core: this library beside
// PyTorch, in turns.
//
//	bench models [-run REGEXP] [-torch python] [-seconds 20]
//
// A contest is one function, said in several ways: by modules of this library, by stock operations
// of Gorgonia, and by PyTorch. Each way is a process that stands still while it is not its turn:
//
//	driver ── "3" ──────────────────> a way     three passes, forward and backward
//	       <── "1.81 2.7449 0.3152" ──          their seconds, the loss, and the norm of all gradients
//
// All have the same weights, which the first of them draws, and the same batch; the driver compares
// losses and norms. Parameters stay as they are. "of the first" is how many times as fast as the
// first row a row is, "ours" how many times as fast the first row is as PyTorch: medians of the
// ratios of neighbours. FLOPs are counted by hand where a contest says so.
//
// To add a contest, append it to contests, and put the same model into directory peers, under the
// same names of parameters (see peers/peer.py).
//
// Real-time priority keeps other programs away: chrt -r 10.
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

	"github.com/gofsdp/gofsdp/internal/bench/stats"
	"github.com/gofsdp/gofsdp/internal/bench/torch"
)

// Run measures what args, the command line behind the subcommand, say, and prints tables to w.
func Run(ctx context.Context, w io.Writer, args []string) (err error) {
	f := flag.NewFlagSet("bench models", flag.ContinueOnError)
	only := f.String("run", "", "only contests whose names match this regular `expression`")
	python := f.String("torch", "", "a `python` with PyTorch, to take turns with; empty for none")
	seconds := f.Float64("seconds", 20, "seconds for each contest; there are three turns in any case")
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
	begin := time.Now()
	dir, err := os.MkdirTemp("", "models")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	fmt.Fprintf(w, "%d cores, load %.1f\n", runtime.NumCPU(), stats.Load())
	var t *torch.Torch
	if *python != "" {
		if t, err = torch.New(ctx, w, *python, dir); err != nil {
			return err
		}
		if err := os.CopyFS(dir, scripts); err != nil {
			return err
		}
	}
	for _, c := range contests {
		if !match.MatchString(c.name) {
			continue
		}
		if err := hold(ctx, w, c, t, dir, *seconds); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	_, err = fmt.Fprintf(w, "\n%v in all, load %.1f\n", time.Since(begin).Round(time.Second), stats.Load())
	return err
}
