// Fsdpdiff finds where two trainings begin to differ: the first step, and in it
// the first parameter, batch, result of a call or gradient that differs, bit by
// bit.
//
//	fsdpdiff A B
//
// A and B are directories that ranks have filled, with fsdprun -hashes DIR,
// FSDP_HASHES=DIR or fsdp.HashDir among Config.Observers. A second start of the job has its own
// run in start-2, and the second model of a process in model-2. Each is
// compared with the run of the same name. Runs may use different numbers of
// ranks and different strategies:
//
//   - Parameters and the sums of gradients are compared as a whole, however the
//     ranks share them.
//   - Passes are compared by virtual rank, with fsdp.Config.VirtualRanks.
//     Otherwise they are compared rank by rank on the same number of ranks. On
//     another number, they are compared in the order of ranks, and of a rank's
//     passes, if a step has the same total number of passes.
//   - A run that resumed from a checkpoint is compared from its first step.
//
// It stops at the end of the shorter run, and prints where both end, or at the
// first step with a difference. Then it lists all differences of this step, in
// the order of computation, so the first line mostly shows the cause:
//
//	$ fsdpdiff ./a ./b
//	the same: steps 0 to 11, 5640 hashes
//	step 12 differs:
//	  micro-batch 1: forward of blocks.3, output 0
//	    a: rank 1 has 1f2e3d4c in 65536 bytes
//	    b: rank 1 has 00112233 in 65536 bytes
//
// If a parameter differs before a step, and nothing earlier does, it was
// updated in different ways: by the optimizer, its learning rate, or clipping.
// A line above the list reports this.
//
// The exit status is 0 if nothing differs, 1 if something does, 2 after an
// error, and 3 if nothing differs but one run has more steps, or a record ends
// in the middle of a pass: a rank was killed, or its disk was full.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/gofsdp/gofsdp/internal/hashes"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

const (
	same = iota
	different
	failed
	shorter
)

func run(args []string, out, errs io.Writer) int {
	if len(args) != 2 {
		fmt.Fprintln(errs, "usage: fsdpdiff A B, two directories of hashes; see go doc")
		return failed
	}
	status := same
	_, err := os.Stat(args[0])
	_, oerr := os.Stat(args[1])
	if err = errors.Join(err, oerr); err != nil {
		fmt.Fprintln(errs, "fsdpdiff:", err)
		return failed
	}
	below, err := hashes.Runs(args[0])
	other, oerr := hashes.Runs(args[1])
	if below = append(below, other...); len(below) == 0 {
		below = []string{"."} // whose error names the missing records
	}
	err = errors.Join(err, oerr)
	slices.Sort(below)
	below = slices.Compact(below)
	for _, name := range below {
		if len(below) > 1 {
			fmt.Fprintf(out, "%s:\n", name)
		}
		a, b := filepath.Join(args[0], name), filepath.Join(args[1], name)
		report, failure := compare(a, b)
		if failure == nil {
			failure = print(out, report, a, b)
		}
		switch {
		case failure != nil:
		case len(report.Differences) > 0:
			status = different
		case report.Ends != "" && status == same:
			status = shorter
		}
		err = errors.Join(err, failure)
	}
	if err != nil {
		fmt.Fprintln(errs, "fsdpdiff:", err)
		return failed
	}
	return status
}

func compare(a, b string) (*hashes.Report, error) {
	x, err := hashes.Open(a)
	y, other := hashes.Open(b)
	if err = errors.Join(err, other); err != nil {
		return nil, errors.Join(err, x.Close(), y.Close())
	}
	report, err := hashes.Compare(x, y)
	return report, errors.Join(err, x.Close(), y.Close())
}

// most is the largest number of listed differences.
const most = 20

func print(out io.Writer, r *hashes.Report, a, b string) error {
	w := bufio.NewWriter(out)
	if r.Steps > 0 {
		fmt.Fprintf(w, "the same: steps %d to %d, %d hashes\n", r.First, r.First+r.Steps-1, r.Same)
	}
	if r.Ends != "" {
		fmt.Fprintf(w, "then one ends: %s\n", r.Ends)
	}
	if r.Unlike != "" {
		fmt.Fprintf(w, "calls are not compared: %s\n", r.Unlike)
	}
	for i := range r.Differences {
		d := &r.Differences[i]
		if i == 0 {
			fmt.Fprintf(w, "step %d differs:\n", d.Step)
			if d.Kind == hashes.Param && r.Steps > 0 {
				fmt.Fprintln(w, "  Nothing before these parameters differs, so they were updated in different ways:\n"+
					"  by the optimizer, its learning rate, or clipping.")
			}
		}
		if i == most {
			fmt.Fprintf(w, "  … and %d others\n", len(r.Differences)-most)
			break
		}
		fmt.Fprintf(w, "  %v\n    %s: %s\n    %s: %s\n", d, a, d.A, b, d.B)
	}
	return w.Flush()
}
