package main

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/gofsdp/gofsdp/fsdp/plan"
)

var digits = regexp.MustCompile(`[0-9]+`)

// live prints the memory of the best step at its peak, by group and call, and its memory over time.
func (r *report) live(a *answer) {
	if a.fits == 0 {
		return
	}
	st := newStep(r.query, a)
	at := st.pass.Peak()
	fmt.Fprintf(&r.text, "\n%s, %s by %s: memory at the peak, during\n%s\n", gpus(a.ranks), st.setting.Strategy, st.setting.Units, st.pass.Text(st.pass.Ops[at]))
	fmt.Fprintf(&r.text, "%20s %8s %8s %8s %8s %8s\n", "", "param,", "opti-", "gathered", "whole", "activa-")
	fmt.Fprintf(&r.text, "%20s %8s %8s %8s %8s %8s %8s\n", "", "gradient", "mizer", "params", "grads", "tions", "total")
	holders := st.pass.Holders(at)
	const rows = 16
	for i, row := 0, 0; i < len(holders); row++ {
		first, n := holders[i], 1
		for i+n < len(holders) && heldText(holders[i+n].Memory) == heldText(first.Memory) && family(holders[i+n].Name) == family(first.Name) {
			n++
		}
		if n > 1 {
			first.Name = fmt.Sprintf("%d × %s", n, family(first.Name))
		}
		if row == rows {
			fmt.Fprintf(&r.text, "… and %d more, each less than %s\n", len(holders)-i, plan.Bytes(first.Total()+1))
			break
		}
		fmt.Fprintf(&r.text, "%-20s%s\n", first.Name, heldText(first.Memory))
		i += n
	}
	fmt.Fprintf(&r.text, "%-20s%s\n", "together", heldText(st.pass.Ops[at].Live))
	r.overTime(st)
}

// family returns the common form of names of groups or calls that differ only in their numbers.
func family(name string) string { return digits.ReplaceAllString(name, "*") }

// heldText is a row of bytes.
func heldText(m plan.Memory) string {
	row := ""
	for _, n := range [...]int{m.Shard, m.State, m.Gathered, m.Gradient, m.Activation + m.Saved + m.Work, m.Total()} {
		text := "-"
		if n > 0 {
			text = plan.Bytes(n)
		}
		row += fmt.Sprintf(" %8s", text)
	}
	return row
}

// overTime prints the peak of each part of the step.
func (r *report) overTime(st *step) {
	const rows, wide = 16, 50
	fmt.Fprintf(&r.text, "\n%8s  peak until then; | is the memory of a GPU\n", "seconds")
	at := 0
	for row := range rows {
		end, most := float64(row+1)/rows*st.line.Total, 0
		for ; at < len(st.samples) && (st.samples[at].At < end || row == rows-1); at++ {
			most = max(most, st.samples[at].Live.Total())
		}
		if at > 0 { // memory held before is held into this part
			most = max(most, st.samples[at-1].Live.Total())
		}
		bar := strings.Repeat("█", min(wide, most*wide/r.memory))
		fmt.Fprintf(&r.text, "%8.3f  %-*s| %s\n", end, wide, bar, plan.Bytes(most))
	}
}
