//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/launch"
)

// TestNoRankJoins: copies of a program that know nothing of each other are no job, and end well.
func TestNoRankJoins(t *testing.T) {
	const warning = "fsdprun: no rank joined: the program ran 2 times independently; does it call comm.Run or comm.FromEnv?\n"
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	for _, c := range []struct{ script, n, want string }{
		{"place", "2", warning},
		{"place", "1", ""},
		{"join", "2", ""},
	} {
		status, r := finish(t, c.script, "-n", c.n)
		require.Zero(t, status, &r.err)
		require.Equal(t, c.want, r.err.String(), c.script)
	}
	statuses, all := together(t, "place", 2, "-n", "1", "-secret-file", secretFile(t))
	require.Equal(t, []int{0, 0}, statuses)
	for _, r := range all {
		require.Contains(t, r.err.String(), warning)
	}
	left, err := filepath.Glob(filepath.Join(temporary, "fsdprun*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestRankEndsBeforeItJoins: others do not wait for a rank that has ended well.
func TestRankEndsBeforeItJoins(t *testing.T) {
	const failure = "rank 1 ended with status 0 without joining, so rank 0 cannot join: does every rank call comm.Run or comm.FromEnv?; ending the others\n"
	flags := []string{"-join-timeout", "1h", "-restarts", "1"}
	r := begin(t, "join", strings.NewReader(""), append(flags, "-n", "2"), "1")
	require.Equal(t, exitError, <-r.status, &r.err)
	require.Equal(t, 2, strings.Count(r.err.String(), failure), &r.err)
	require.Regexp(t, `first: rank 1, after \S+: exit status 0 without joining\nfsdprun: then: rank 0: ended by fsdprun with SIGTERM\n`, r.err.String())

	hosts := hostFlags(t, 2, flags...)
	first, second := begin(t, "join", strings.NewReader(""), hosts(0)), begin(t, "place", strings.NewReader(""), hosts(1))
	for _, r := range []*running{first, second} {
		require.Equal(t, exitError, <-r.status, &r.err)
		require.Equal(t, 2, strings.Count(r.err.String(), failure), &r.err)
	}
}

// TestMeetingUnjoined: ranks that ended well and ranks that wait are reported in any order, and only
// both together are a failure.
func TestMeetingUnjoined(t *testing.T) {
	for _, early := range []bool{false, true} {
		s := three(t, 0, 0)
		left := func() {
			s.tell(1, report{Joins: &joins{Left: []int{2, 3}}})
			r := well(2, 2)
			for i := range r.Ended {
				r.Ended[i].Join = launch.JoinNever
			}
			s.tell(1, r)
		}
		if early {
			left()
			require.Empty(t, s.orders())
		}
		s.tell(2, report{Joins: &joins{Wait: []int{4}}})
		s.tell(2, report{Joins: &joins{}}) // it waits no more
		s.tell(0, report{Joins: &joins{Wait: []int{0, 1}}})
		if early {
			require.Equal(t, []string{"0 terminated", "2 terminated"}, s.orders())
		} else {
			require.Empty(t, s.orders())
			left()
			require.Contains(t, s.said(), "ranks 2-3 ended with status 0 without joining, so ranks 0-1 cannot join")
			require.Equal(t, []string{"0 terminated", "1 terminated", "2 terminated"}, s.orders())
		}
		s.tell(0, ask(0, 2))
		s.tell(2, ask(4, 2))
		require.Contains(t, s.said(), "first: rank 2, after 0s: exit status 0 without joining\nthen: ranks 0-1,4-5: ended by fsdprun with SIGTERM\nthen: rank 3: exit status 0 without joining\n")
		require.Len(t, s.orders(), 3)
		require.Equal(t, exitError, s.status)
	}
}

// TestJoinsWithoutDirectory: where ranks cannot leave files fsdprun says so, and nothing is
// concluded from their absence.
func TestJoinsWithoutDirectory(t *testing.T) {
	t.Setenv("TMPDIR", filepath.Join(os.Args[0], "none"))
	status, r := finish(t, "place", "-n", "2")
	require.Zero(t, status, &r.err)
	require.Contains(t, r.err.String(), "cannot detect whether ranks join: ")
	require.NotContains(t, r.err.String(), "no rank joined")
}
