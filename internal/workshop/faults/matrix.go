package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/comm/commtest"
)

// matrix runs cases, several at a time, prints the results and returns the number of failures. With
// verbose it prints everything about each.
func matrix(ctx context.Context, run *runner, out io.Writer, cases []Case, verbose bool) (failed int) {
	var mu sync.Mutex
	table := newTable()
	begin, last := time.Now(), time.Now()
	finished := func(v verdict) {
		mu.Lock()
		defer mu.Unlock()
		table.add(v)
		switch {
		case len(v.Wrong) > 0:
			failed++
			v.print(out, verbose)
		case verbose:
			v.print(out, true)
		}
		if time.Since(last) > 5*time.Second {
			last = time.Now()
			fmt.Fprintf(out, "%d of %d cases, %d failed, %v\n", table.cases, len(cases), failed, time.Since(begin).Round(time.Second))
		}
	}
	run.each(ctx, cases, finished)
	if !verbose {
		table.print(out)
	}
	if table.cases < len(cases) {
		fmt.Fprintf(out, "stopped: %d cases were not run\n", len(cases)-table.cases)
		failed++
	}
	fmt.Fprintf(out, "%d cases, %d failed, %v\n", table.cases, failed, time.Since(begin).Round(time.Millisecond))
	return failed
}

// outcome is the result of a case outside of the matrix.
type outcome struct {
	sort, what  string // for the summary, and in full
	wrong, told string // "" if the case passes, and the expected error
}

// series runs the cases of a kind one by one, prints failures (with verbose, all cases) and a
// summary, and returns the number of failures.
func series(ctx context.Context, out io.Writer, kind string, seed uint64, first, last int, verbose bool, run func(i int) outcome) (failed int) {
	begin, cases := time.Now(), map[string]int{}
	i := first
	for ; i < last && ctx.Err() == nil; i++ {
		o := run(i)
		cases[o.sort]++
		switch {
		case o.wrong != "":
			failed++
			fmt.Fprintf(out, "FAIL %s %d: %s\n     %s\n     again: go -C internal/workshop run ./faults -seed %d -%s %d\n", kind, i, o.what, o.wrong, seed, kind, i)
		case verbose:
			fmt.Fprintf(out, "ok %s %d: %s\n     was told: %s\n", kind, i, o.what, o.told)
		}
	}
	if i < last {
		failed++
		fmt.Fprintf(out, "stopped: %d %ss were not run\n", last-i, kind)
	}
	fmt.Fprintf(out, "%d %ss %v, %d failed, %v\n", i-first, kind, cases, failed, time.Since(begin).Round(time.Millisecond))
	return failed
}

// each runs cases as slots become free. It returns when all started cases have ended.
func (r *runner) each(ctx context.Context, cases []Case, finished func(verdict)) {
	var running sync.WaitGroup
	defer running.Wait()
	for _, c := range cases {
		select {
		case r.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		running.Go(func() {
			defer func() { <-r.slots }()
			finished(r.run(ctx, c))
		})
	}
}

// print writes the result of a case. With verbose it adds the errors of its ranks.
func (v verdict) print(out io.Writer, verbose bool) {
	state := "ok"
	if len(v.Wrong) > 0 {
		state = "FAIL"
	}
	fmt.Fprintf(out, "%s %v: %v\n", state, v.Case, v.Detect.Round(100*time.Microsecond))
	for _, w := range v.Wrong {
		fmt.Fprintf(out, "     %s\n", w)
	}
	for r, err := range v.Told {
		if err != "" && verbose {
			fmt.Fprintf(out, "     rank %d was told: %s\n", r, err)
		}
	}
	if len(v.Wrong) > 0 {
		fmt.Fprintf(out, "     again: %s\n", v.Case.command())
	}
}

// table sums up cases by incident and transport.
type table struct {
	cases int
	cells map[cell]*tally
}

type cell struct {
	what      commtest.What
	transport string
}

type tally struct {
	cases, failed int
	detect        []time.Duration
	worst         verdict
}

func newTable() *table { return &table{cells: map[cell]*tally{}} }

func (t *table) add(v verdict) {
	t.cases++
	at := cell{v.Case.Incident.What, v.Case.Transport}
	if t.cells[at] == nil {
		t.cells[at] = &tally{}
	}
	n := t.cells[at]
	n.cases++
	if len(v.Wrong) > 0 {
		n.failed++
	}
	if v.Detect > 0 {
		n.detect = append(n.detect, v.Detect)
		if v.Detect > n.worst.Detect {
			n.worst = v
		}
	}
}

// print writes a row for every incident and transport: cases, failures, the median and the longest
// time until the last rank detected the incident, in seconds, and the case with the longest.
func (t *table) print(out io.Writer) {
	fmt.Fprintf(out, "%-14s %-9s %6s %6s %9s %9s %6s\n", "incident", "transport", "cases", "failed", "median s", "worst s", "case")
	for _, what := range sorts {
		for _, transport := range transports {
			n := t.cells[cell{what, transport}]
			if n == nil {
				continue
			}
			fmt.Fprintf(out, "%-14s %-9s %6d %6d", what, transport, n.cases, n.failed)
			if k := len(n.detect); k > 0 {
				slices.Sort(n.detect)
				fmt.Fprintf(out, " %9.4f %9.4f %6d", n.detect[k/2].Seconds(), n.worst.Detect.Seconds(), n.worst.Case.Number)
			}
			fmt.Fprintln(out)
		}
	}
}
