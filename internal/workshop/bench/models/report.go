package models

import (
	"fmt"
	"io"
	"strings"

	"github.com/gofsdp/gofsdp/internal/workshop/bench/stats"
)

// report prints a row for each candidate: the median of its passes and their range, its rate, and
// ratios to the first.
func report(w io.Writer, c contest, list []*candidate) {
	fmt.Fprintf(w, "\n%s: %s\n  %-32s %28s %8s %12s %6s\n", c.name, c.doc, "", "ms a pass (min..max, n)", "GFLOP/s", "of the first", "ours")
	for _, next := range list {
		rate, ours := "-", ""
		if c.flops > 0 {
			rate = fmt.Sprintf("%.1f", c.flops/stats.Median(next.times[0]).Seconds()/1e9)
		}
		if next.torch {
			ours = fmt.Sprintf("%.2fx", stats.Ratio(next.times[0], list[0].times[0]))
		}
		fmt.Fprintf(w, "  %-32s %28s %8s %11.2fx %6s\n", next.name, stats.Spread(next.times[0]), rate,
			stats.Ratio(list[0].times[0], next.times[0]), ours)
	}
}

// summary returns a row of the table of all contests.
func summary(c contest, list []*candidate) string {
	name, single := strings.CutPrefix(c.name, opPrefix)
	if single {
		name += " " + c.doc
	}
	row := fmt.Sprintf("%-44s", name)
	for _, half := range []bool{false, true} {
		ours, torch := fastest(list, half, false), fastest(list, half, true)
		if ours == nil {
			continue
		}
		if half {
			row += fmt.Sprintf(" %8.2f", stats.Ms(stats.Median(ours.times[0])))
		} else {
			row += fmt.Sprintf(" %7.2f %8.2f", stats.Ms(stats.Median(ours.times[1])), stats.Ms(stats.Median(ours.times[2])))
		}
		if torch == nil {
			continue
		}
		if !half {
			row += fmt.Sprintf("  %5.2f %5.2f", stats.Ratio(torch.times[1], ours.times[1]), stats.Ratio(torch.times[2], ours.times[2]))
		}
		row += fmt.Sprintf(" %5.2f", stats.Ratio(torch.times[0], ours.times[0]))
	}
	return row
}

// summarise prints the table of all contests: the time of our first way, and its speed relative to
// PyTorch's fastest way.
func summarise(w io.Writer, rows []string) {
	const line = "%-44s %7s %8s  %5s %5s %5s %8s %5s\n"
	fmt.Fprintf(w, "\n"+line, "", "forward", "backward", "times", "PyTorch", "", "bfloat16", "times")
	fmt.Fprintf(w, line, "", "ms", "ms", "forw.", "back.", "both", "ms", "PyT.")
	for _, row := range rows {
		fmt.Fprintln(w, row)
	}
}

// fastest returns the first of our ways, or the fastest of PyTorch's, in float32 or bfloat16.
func fastest(list []*candidate, half, torch bool) (best *candidate) {
	for _, next := range list {
		if next.half != half || next.torch != torch {
			continue
		}
		if best == nil || torch && stats.Median(next.times[0]) < stats.Median(best.times[0]) {
			best = next
		}
	}
	return best
}
