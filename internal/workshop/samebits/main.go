// Samebits shows that a change of the code changes no bit of a training. It builds examples/gpt and
// the program in train at a base commit and in the working tree, runs both under every
// configuration of a table, and compares their results:
//
//	go -C internal/workshop run ./samebits -base main~3
//
// It prints a line for each configuration, with hashes of the weights and of the optimizer's state,
// and exits with 1 if any differ. Examples/gpt has flags for the transports and ranks only; train,
// which has them for the rest, is compiled at both commits from the source of the working tree.
// The flag -renamed lists public names that have changed since:
//
//	go -C internal/workshop run ./samebits -base main~3 -renamed Recompute=Checkpoint
//
// If the base has train with the same flags, -own compiles the base's source instead.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"

	"github.com/gofsdp/gofsdp/internal/workshop/revision"
)

// trainer is the package whose source is copied into the base tree.
const trainer = "internal/workshop/samebits/train"

var errDifferent = errors.New("not the same bits")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "samebits:", err)
		stop()
		os.Exit(1)
	}
}

// run runs the comparison that args describe and prints the result to out.
func run(ctx context.Context, args []string, out io.Writer) (err error) {
	f := flag.NewFlagSet("samebits", flag.ContinueOnError)
	base := f.String("base", "", "`commit` to compare the working tree with")
	only := f.String("run", "", "only configurations whose names match this regular `expression`")
	renamed := f.String("renamed", "", "public names that have changed since the base, as `new=old,new=old`")
	own := f.Bool("own", false, "compile train of the base from the base's source: for changes that -renamed cannot say")
	if err := f.Parse(args); err != nil {
		return err
	}
	filter, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	if *base == "" || f.NArg() > 0 {
		return errors.New("want -base COMMIT and no other arguments")
	}
	work, err := revision.Working(ctx)
	if err != nil {
		return err
	}
	old, remove, err := work.Checkout(ctx, *base)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	dir, err := os.MkdirTemp("", "samebits")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if !*own {
		if err := work.Graft(old, trainer, *renamed); err != nil {
			return err
		}
	}
	b := &bench{dir: dir, bins: [2]string{filepath.Join(dir, "base"), filepath.Join(dir, "work")}}
	for i, t := range []revision.Tree{old, work} {
		if err := t.Build(ctx, b.bins[i], "examples/gpt", "fsdp/fsdprun", trainer); err != nil {
			return fmt.Errorf("%s: %w", t.Name, err)
		}
	}
	// One fsdpckpt reads the checkpoints of both.
	if err := work.Build(ctx, b.bins[1], "fsdp/fsdpckpt"); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "text"), text(), 0o644); err != nil {
		return err
	}
	fmt.Fprintf(out, "base %s, working tree %s\n%-34s %-25s %-25s\n", old.Name, work.Name, "", "weights", "optimizer")
	return compare(ctx, out, filter, b.both)
}

// text is the text that examples/gpt trains on: some kilobytes that are the same on every machine.
func text() []byte {
	var s strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&s, "%d times %d is %d;\n", i, i%17, i*(i%17))
	}
	return []byte(s.String())
}

// bench runs the programs.
type bench struct {
	dir  string    // for everything that they write
	bins [2]string // directories of the programs, of the base and of the working tree
}

// compare trains the configurations whose names match filter with the programs of both trees, and
// prints a line for each.
func compare(ctx context.Context, out io.Writer, filter *regexp.Regexp,
	both func(context.Context, configuration) ([2]sums, error)) error {
	ran, different := 0, 0
	for _, c := range configurations {
		if !filter.MatchString(c.name) {
			continue
		}
		ran++
		sums, err := both(ctx, c)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		verdict := "same"
		if sums[0] != sums[1] {
			verdict = "DIFFERENT"
			different++
		}
		fmt.Fprintf(out, "%-34s %s %s %s %s %s\n", c.name, sums[0].weights, sums[1].weights, sums[0].state, sums[1].state, verdict)
	}
	if ran == 0 {
		return errors.New("no such configuration")
	}
	fmt.Fprintf(out, "%d configurations, %d different\n", ran, different)
	if different > 0 {
		return fmt.Errorf("%d of %d configurations: %w", different, ran, errDifferent)
	}
	return nil
}

// both runs a configuration with the programs of both trees, side by side, and removes the files
// that they write.
func (b *bench) both(ctx context.Context, c configuration) (sums [2]sums, err error) {
	var errs [2]error
	dir := filepath.Join(b.dir, "run")
	var wait sync.WaitGroup
	for i, bin := range b.bins {
		wait.Go(func() { sums[i], errs[i] = b.one(ctx, c, bin, filepath.Join(dir, filepath.Base(bin))) })
	}
	wait.Wait()
	return sums, errors.Join(errs[0], errs[1], os.RemoveAll(dir))
}
