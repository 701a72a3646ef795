package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/gofsdp/gofsdp/internal/workshop/bench/process"
	"github.com/gofsdp/gofsdp/internal/workshop/bench/stats"
	"github.com/gofsdp/gofsdp/internal/workshop/revision"
)

// prober is the package that is compiled at both commits.
const prober = "internal/workshop/bench/probe"

// sameSpeed is the largest relative difference of medians that count as the same speed.
const sameSpeed = 0.03

// against builds the probe at another commit and in the working tree and measures the same with
// both, in turns.
func against(ctx context.Context, w io.Writer, args []string) (err error) {
	f := flag.NewFlagSet("bench against", flag.ContinueOnError)
	base := f.String("base", "", "`commit` to compare the working tree with")
	rounds := f.Int("rounds", 15, "rounds, in each of which both measure once")
	only := f.String("run", "", "only measurements whose names match this regular `expression`")
	renamed := f.String("renamed", "", "public names that have changed since the base, as `new=old,new=old`")
	own := f.Bool("own", false, "compile the base's own measurements: for changes that -renamed cannot say")
	if err := f.Parse(args); err != nil {
		return err
	}
	filter, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	if *base == "" || *rounds < 1 || f.NArg() > 0 {
		return errors.New("against: want -base COMMIT, at least one round and no other arguments")
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
	if !*own {
		if err := work.Graft(old, prober, *renamed); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp("", "against")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var probes [2]*process.Process
	for i, t := range []revision.Tree{old, work} {
		bin := filepath.Join(dir, strconv.Itoa(i))
		if err := t.Build(ctx, bin, prober); err != nil {
			return fmt.Errorf("%s: %w", t.Name, err)
		}
		p, err := process.Start(exec.CommandContext(ctx, filepath.Join(bin, "probe")))
		if err != nil {
			return err
		}
		defer p.Stop()
		probes[i] = p
	}
	fmt.Fprintf(w, "base %s, working tree %s; median ms of %d rounds, the base's by the working tree's time\n",
		old.Name, work.Name, *rounds)
	return compare(w, probes[0].Ask, probes[1].Ask, *rounds, filter)
}

// asker sends a line to a probe and returns its answer.
type asker func(line string) (string, error)

// compare prints a row for each measurement: the medians of both, and the median of the ratios of
// neighbours.
func compare(w io.Writer, base, work asker, rounds int, filter *regexp.Regexp) error {
	list, err := work("list")
	if err != nil {
		return err
	}
	beyond := 0
	for _, name := range strings.Split(list, "\t") {
		if !filter.MatchString(name) {
			continue
		}
		times, err := alternate(name, [2]asker{base, work}, rounds)
		if err != nil {
			return err
		}
		speed, verdict := stats.Ratio(times[0], times[1]), ""
		if math.Abs(speed-1) > sameSpeed {
			verdict = fmt.Sprintf("  beyond %.0f %%", 100*sameSpeed)
			beyond++
		}
		_, err = fmt.Fprintf(w, "  %-36s %10.3f %10.3f %8.3fx%s\n", name,
			1e3*stats.Median(times[0]), 1e3*stats.Median(times[1]), speed, verdict)
		if err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(w, "%d beyond %.0f %%\n", beyond, 100*sameSpeed)
	return err
}

// alternate returns the seconds of both in each round. They alternate in going first; an earlier
// round warms them up.
func alternate(name string, both [2]asker, rounds int) (times [2][]float64, err error) {
	for round := -1; round < rounds; round++ {
		for turn := range both {
			i := (turn + round + 1) % 2
			text, err := both[i](name)
			if err != nil {
				return times, err
			}
			seconds, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return times, err
			}
			if round >= 0 {
				times[i] = append(times[i], seconds)
			}
		}
	}
	return times, nil
}
