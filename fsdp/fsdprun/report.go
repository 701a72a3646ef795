package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gofsdp/gofsdp/internal/launch"
	"github.com/gofsdp/gofsdp/internal/text"
)

// String returns how a rank ended.
func (e *ending) String() string {
	switch {
	case e.Replaced:
		return "replaced"
	case e.Signal != 0 && e.Asked:
		return "ended by fsdprun with " + signalName(e.Signal)
	case e.Signal != 0:
		return "killed by " + signalName(e.Signal)
	case e.Code != 0:
		return "exit status " + strconv.Itoa(e.Code)
	case e.Absent:
		return "exit status 0 without joining"
	}
	return "ended well"
}

// summary names the hosts that are gone, and the rank that failed first with its last output, and
// says how the others ended.
func summary(first *ending, ended []*ending, gone []string) string {
	var b strings.Builder
	for _, host := range gone {
		fmt.Fprintf(&b, "first: %s\n", host)
	}
	if first != nil {
		fmt.Fprintf(&b, "first: rank %d, after %v: %s\n", first.Rank, first.After.Round(10*time.Millisecond), first)
		if first.Signal == syscall.SIGKILL && !first.Asked {
			b.WriteString("fsdprun did not send it: was it the kernel, out of memory? See dmesg\n")
		}
		if len(first.Tail) > 0 {
			fmt.Fprintf(&b, "the end of its standard error:\n  | %s\n", strings.Join(first.Tail, "\n  | "))
		}
	}
	groups := make(map[string][]int)
	var order []string
	byRank := slices.SortedFunc(slices.Values(ended), func(a, b *ending) int { return cmp.Compare(a.Rank, b.Rank) })
	for _, e := range byRank {
		if e == first {
			continue
		}
		how := e.String()
		if groups[how] == nil {
			order = append(order, how)
		}
		groups[how] = append(groups[how], e.Rank)
	}
	for _, how := range order {
		fmt.Fprintf(&b, "then: %s: %s\n", text.Numbered("rank", groups[how]), how)
	}
	return b.String()
}

// hopeless returns a rank whose last lines of standard error say that it would fail again.
func hopeless(ended []*ending) *ending {
	for _, e := range ended {
		if slices.ContainsFunc(e.Tail, func(line string) bool { return strings.Contains(line, launch.NoRestart) }) {
			return e
		}
	}
	return nil
}
