package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gofsdp/gofsdp/internal/launch"
)

// String says how a rank ended.
func (e ending) String() string {
	switch {
	case e.signal != 0 && e.asked:
		return "ended by fsdprun with " + signalName(e.signal)
	case e.signal != 0:
		return "killed by " + signalName(e.signal)
	case e.code != 0:
		return "exit status " + strconv.Itoa(e.code)
	}
	return "ended well"
}

// summary says who failed first, what it wrote last, and what became of the others.
func (a *attempt) summary() string {
	var b strings.Builder
	first := a.culprit()
	fmt.Fprintf(&b, "first: rank %d, after %v: %s\n", first.number, first.end.after.Round(10*time.Millisecond), first.end)
	if first.end.signal == syscall.SIGKILL && !first.end.asked {
		b.WriteString("fsdprun did not send it: was it the kernel, out of memory? See dmesg\n")
	}
	if lines := first.tail.last(); len(lines) > 0 {
		fmt.Fprintf(&b, "the end of its standard error:\n  | %s\n", strings.Join(lines, "\n  | "))
	}
	groups := make(map[string][]int)
	var order []string
	for _, r := range a.ranks { // by number, so that lists of ranks are in order
		if r == first {
			continue
		}
		how := r.end.String()
		if groups[how] == nil {
			order = append(order, how)
		}
		groups[how] = append(groups[how], r.number)
	}
	for _, how := range order {
		ranks := "rank"
		if len(groups[how]) > 1 {
			ranks = "ranks"
		}
		fmt.Fprintf(&b, "then: %s %s: %s\n", ranks, list(groups[how]), how)
	}
	return b.String()
}

// hopeless returns a rank that says, in the end of its standard error, that it would fail again.
func (a *attempt) hopeless() *rank {
	for _, r := range a.ranks {
		if slices.ContainsFunc(r.tail.last(), func(line string) bool { return strings.Contains(line, launch.NoRestart) }) {
			return r
		}
	}
	return nil
}

// list writes ascending numbers as 0-2,5.
func list(numbers []int) string {
	var spans []string
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		span := strconv.Itoa(numbers[i])
		if j > i {
			span += "-" + strconv.Itoa(numbers[j])
		}
		spans = append(spans, span)
		i = j + 1
	}
	return strings.Join(spans, ",")
}
