// Package comm measures the collectives of this library and of Gloo, Open MPI and MPICH,
// interleaved in one run, and compares the ratios with their targets.
//
//	bench comm [-worlds 2,4] [-ops all-gather,flag] [-max 64M] [-rounds 7]
//	           [-candidates local,gloo] [-json file]
//
// All candidates of a world size are started together. For every operation and tensor size each of
// them runs one batch of about 40 ms in every round, in turn, while the ranks of the others are
// blocked in a read from the driver:
//
//	driver ── "run all-gather 65536 800" ──> every rank of one candidate  (a Unix socket each)
//	       <── "ok 0.0391" ─────────────────                              slowest rank counts
//
// The result is the median over rounds of the time of one operation. Bytes are the bytes of the
// full tensor: the output of an all-gather or gather, the input of a reduce-scatter. GB/s are these
// bytes divided by the time. Before a candidate is timed at an operation and a size, its result for
// a test pattern must be right.
//
// The peers are small programs of ours (directory peers), built here with the compilers of the
// machine. Peers that are not installed are skipped, with a message. As root on Linux everything
// runs in a network namespace whose loopback has quickack routes and reno, because Gloo otherwise
// suffers from delayed acknowledgements: 250 ms for 1 MiB.
//
// Machines are noisy: look at the ratios, and run again before believing a miss.
//
// With 2 ranks on two cores of an AMD EPYC (2026-11-21), on a machine with other load, N times as
// fast, geometric mean over 4 KiB to 64 MiB:
//
//	                                   all-gather  reduce-scatter  all-reduce  broadcast   4-byte flag
//	shared memory / Open MPI's               1.56            4.45        4.25       5.37   0.64 (2026-11-23: 0.25 us against 0.16)
//	staged from private memory, >= 64K       1.03            2.15        1.41
//	TCP / Gloo                               4.74            4.36        2.85       1.54   8.65
//	TCP / the better of two MPIs             0.90            0.83        0.95       0.64   0.96
package comm

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/gofsdp/gofsdp/internal/workshop/bench/stats"
)

// options are the options of a run.
type options struct {
	worlds     []int
	ops        []string
	max        int // bytes of the largest tensor
	rounds     int
	candidates []string // names, empty for all
	json       string   // file to write, or ""
}

// Run measures as args say, the command line after the subcommand, and prints tables to w.
func Run(ctx context.Context, w io.Writer, args []string) error {
	opts, err := parseOptions(args, os.Stderr)
	if err != nil {
		return err
	}
	// Network namespaces, and the signal at the parent's death, belong to threads.
	runtime.LockOSThread()
	return run(ctx, w, opts)
}

// parseOptions reads the command line and refuses invalid measurements.
func parseOptions(args []string, usage io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("bench comm", flag.ContinueOnError)
	flags.SetOutput(usage)
	worlds := flags.String("worlds", "2,4", "comma-separated numbers of ranks")
	ops := flags.String("ops", strings.Join(operations, ","), "comma-separated operations")
	largest := flags.String("max", "64M", "largest tensor, in bytes or with K or M")
	names := flags.String("candidates", "", "comma-separated candidates (default all): "+strings.Join(candidateNames(), ", "))
	flags.IntVar(&o.rounds, "rounds", 7, "interleaved rounds")
	flags.StringVar(&o.json, "json", "", "also write every sample to this file")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	for _, w := range strings.Split(*worlds, ",") {
		n, err := strconv.Atoi(w)
		if err != nil || n < 2 || n > 64 {
			return o, fmt.Errorf("-worlds: %q is not a number of ranks from 2 to 64", w)
		}
		o.worlds = append(o.worlds, n)
	}
	o.ops = strings.Split(*ops, ",")
	if *names != "" {
		o.candidates = strings.Split(*names, ",")
	}
	if err := known("-ops", o.ops, operations); err != nil {
		return o, err
	}
	if err := known("-candidates", o.candidates, candidateNames()); err != nil {
		return o, err
	}
	if o.rounds < 1 {
		return o, fmt.Errorf("-rounds: %d", o.rounds)
	}
	var err error
	o.max, err = parseSize(*largest)
	return o, err
}

// known checks that all names are in the list.
func known(what string, names, list []string) error {
	for _, name := range names {
		if !slices.Contains(list, name) {
			return fmt.Errorf("%s: unknown %q, want some of %s", what, name, strings.Join(list, ", "))
		}
	}
	return nil
}

// parseSize reads a number of bytes such as 65536, 64K or 16M.
func parseSize(text string) (int, error) {
	digits, unit := text, 1
	switch {
	case strings.HasSuffix(text, "K"):
		digits, unit = text[:len(text)-1], 1<<10
	case strings.HasSuffix(text, "M"):
		digits, unit = text[:len(text)-1], 1<<20
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n < smallest/unit || n > largestTensor/unit {
		return 0, fmt.Errorf("-max: %q is not a size from 4K to 1024M", text)
	}
	return n * unit, nil
}

// run measures all worlds and reports to w.
func run(ctx context.Context, w io.Writer, opts options) (err error) {
	notes := os.Stderr
	if l := stats.Load(); l > 0.5 {
		fmt.Fprintf(notes, "load average %.1f: if something else is running, those who spin suffer most\n", l)
	}
	shop, err := openWorkshop(opts.max)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shop.close()) }()
	if err := enterNamespace(); err != nil {
		shop.plainLoopback = true
		fmt.Fprintf(notes, "%v: TCP is measured on the plain loopback, marked *; Gloo suffers there most\n", err)
	}
	entrants := shop.prepare(ctx, notes, opts)
	record := newRecord(opts)
	for _, world := range opts.worlds {
		if err := measureWorld(ctx, w, notes, shop, entrants, world, opts, record); err != nil {
			return fmt.Errorf("world %d: %w", world, err)
		}
	}
	if opts.json != "" {
		return record.write(opts.json)
	}
	return nil
}
