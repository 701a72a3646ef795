//go:build unix

package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// elect opens a meeting on one of three candidates.
func elect(self int) *stage {
	s := open(3, 2, 1, 2)
	s.elect(self, 3, 2)
	return s
}

// TestMajority: a host alone starts nothing, and names the others in the end. With another one it
// goes on at once if that is all of the last start but its holder.
func TestMajority(t *testing.T) {
	s := elect(2)
	require.Equal(t, 5*time.Minute, s.wait())
	require.Contains(t, s.said(2), "no majority of the 3 hosts in -rdzv: within 5m0s there was no hosts 0-1; ")
	require.Equal(t, []string{"2 exit 1"}, s.orders())

	s = elect(1)
	s.tell(2, report{Join: &offer{Ranks: 2, Most: 2, Min: 1, Restarts: 2, Count: 7, Failures: 2, Others: 2}})
	require.Equal(t, []string{"1 j.7: ranks 0+2 of 4, host 0 of 2", "2 j.7: ranks 2+2 of 4, host 1 of 2"}, s.orders())
	s.come(0, 2)
	s.orders()
	s.tell(1, ask(0, 2))
	s.tell(2, ask(2, 2))
	require.Equal(t, []string{"1 j.8: ranks 0+2 of 6, host 0 of 3", "2 j.8: ranks 2+2 of 6, host 1 of 3", "0 j.8: ranks 4+2 of 6, host 2 of 3"}, s.orders())
	s.tell(0, report{Gone: "x"}) // there were two failures before
	s.tell(1, ask(0, 2))
	s.tell(2, ask(2, 2))
	require.Equal(t, []string{"1 terminated", "2 terminated", "1 exit 1", "2 exit 1"}, s.orders())
}

// TestHolderLeaves: a signal to the host that holds the meeting ends only its part, after the ranks
// of the others have ended.
func TestHolderLeaves(t *testing.T) {
	for self := range 3 {
		s := elect(self)
		other := (self + 1) % 3
		s.come(other, 2)
		s.wait()
		require.Len(t, s.orders(), 2)
		s.tell(self, report{Signal: syscall.SIGTERM})
		require.Equal(t, []string{fmt.Sprint(self, " terminated"), fmt.Sprint(other, " terminated")}, s.orders())
		s.tell(self, well(0, 2))
		require.Empty(t, s.orders())
		s.tell(other, ask(2, 2))
		require.Equal(t, []string{fmt.Sprint(self, " exit 0")}, s.orders())
		require.True(t, s.over)
	}
}

// TestMajoritiesMeet draws two sets of hosts that have no host in common: they are not both a
// majority. A single candidate must be there.
func TestMajoritiesMeet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hosts := rapid.IntRange(1, 9).Draw(t, "hosts")
		parts := [2]meeting{}
		candidates := rapid.IntRange(2, max(2, hosts)).Draw(t, "candidates")
		for i := range parts {
			parts[i] = meeting{candidates: candidates, members: make(map[int]*member)}
		}
		all := meeting{candidates: candidates, members: make(map[int]*member)}
		for host := range max(hosts, candidates) {
			all.members[host] = &member{}
			if part := rapid.IntRange(0, 2).Draw(t, fmt.Sprint("part of host ", host)); part < 2 {
				parts[part].members[host] = &member{}
			}
		}
		require.True(t, all.majority())
		require.False(t, parts[0].majority() && parts[1].majority())
	})
}

// TestCandidatesDiffer: hosts with different candidates do not become one job.
func TestCandidatesDiffer(t *testing.T) {
	flags := hostFlags(t, 4, "-restarts", "1")(3)
	at := []string{freeAddress(t), freeAddress(t), freeAddress(t)}
	list := func(host string, at ...string) []string {
		return append(flags, "-node-rank", host, "-rdzv", strings.Join(at, ","), "-job", "j")
	}
	first := begin(t, "wait", strings.NewReader(""), list("0", at...))
	other := begin(t, "wait", strings.NewReader(""), list("3", at[0], at[2], at[1]))
	require.Equal(t, exitUsage, <-other.status)
	require.Contains(t, other.err.String(), fmt.Sprintf("host 3 has -rdzv %s,%s,%s, host 0 has -rdzv %s: give them all the same", at[0], at[2], at[1], strings.Join(at, ",")))
	twice := begin(t, "wait", strings.NewReader(""), append(list("1", at...), "-nnodes", "3"))
	require.Equal(t, exitError, <-twice.status)
	require.Contains(t, twice.err.String(), "host 0 has -nnodes 4, host 1 has -nnodes 3")
	first.signals <- syscall.SIGINT
	require.Equal(t, exitError, <-first.status)
}
