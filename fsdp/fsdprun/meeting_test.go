package main

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/launch"
)

// stage is a meeting whose hosts and clock are those of a test.
type stage struct {
	*meeting
	clock time.Time
}

// open opens a meeting of hosts that have so many ranks each. Host 0 is there.
func open(hosts, ranks, min, restarts int) *stage {
	s := &stage{&meeting{
		hosts: hosts, min: min, restarts: restarts, patience: 5 * time.Minute, job: "j", members: make(map[int]*member),
	}, time.Unix(1000, 0)}
	s.since = s.clock
	s.come(0, ranks)
	return s
}

// elect has another host hold the meeting, which has not begun, and makes the first hosts
// candidates.
func (s *stage) elect(self, candidates, ranks int) {
	s.self, s.candidates, s.members, s.out = self, candidates, make(map[int]*member), nil
	s.come(self, ranks)
}

func (s *stage) tell(host int, r report) { s.hear(s.clock, host, r) }

func (s *stage) come(host, ranks int) {
	s.tell(host, report{Join: &offer{Ranks: ranks, Most: ranks, Min: s.min, Restarts: s.restarts, Replace: s.replace}})
}

// wait lets time pass until the meeting acts by itself, and says how long that was.
func (s *stage) wait() time.Duration {
	at := s.wake()
	waited := at.Sub(s.clock)
	s.clock = at
	s.tick(at)
	return waited
}

// orders returns what the hosts were told, in few words.
func (s *stage) orders() (all []string) {
	for _, m := range s.out {
		text := fmt.Sprint(m.to)
		switch {
		case m.Start != nil:
			text += fmt.Sprintf(" %s: ranks %d+%d of %d, host %d of %d", m.Start.Job, m.Start.First, m.Start.Ranks, m.Start.Size, m.Start.Node, m.Start.Nodes)
		case m.Stop != 0:
			text += " " + m.Stop.String()
		case m.End:
			text += fmt.Sprint(" exit ", m.Exit)
		default:
			continue
		}
		all = append(all, text)
	}
	s.out = nil
	return all
}

// said returns what host 0 was told to print, or another host.
func (s *stage) said(host ...int) string {
	var b strings.Builder
	for _, m := range s.out {
		if m.to == append(host, 0)[0] {
			b.WriteString(m.Say + "\n")
		}
	}
	return b.String()
}

// well are the endings of a host's ranks that have done their work, ask of those that were asked to
// end.
func well(first, n int) report { return all(n, ending{Rank: first, Early: true}) }

func ask(first, n int) report {
	return all(n, ending{Rank: first, Signal: syscall.SIGTERM, Asked: true})
}

func all(n int, e ending) (r report) {
	for range n {
		r.Ended = append(r.Ended, e)
		e.Rank++
	}
	return r
}

// three opens a meeting of three hosts with two ranks each, which run.
func three(t *testing.T, min, restarts int) *stage {
	s := open(3, 2, min, restarts)
	s.come(1, 2)
	require.Empty(t, s.orders())
	s.come(2, 2)
	require.Equal(t, []string{"0 j: ranks 0+2 of 6, host 0 of 3", "1 j: ranks 2+2 of 6, host 1 of 3", "2 j: ranks 4+2 of 6, host 2 of 3"}, s.orders())
	require.Zero(t, s.wake())
	return s
}

func TestMeetingEndsWell(t *testing.T) {
	s := three(t, 0, 0)
	s.tell(2, well(4, 2))
	s.tell(2, report{Gone: "its ranks have all ended"})
	s.tell(0, well(0, 2))
	require.Empty(t, s.orders())
	s.tell(1, well(2, 2))
	require.Equal(t, []string{"0 exit 0", "1 exit 0"}, s.orders())
}

// TestMeetingLosesHost: two of three hosts go on, and all three when the lost one comes back.
func TestMeetingLosesHost(t *testing.T) {
	s := three(t, 4, 1)
	s.tell(1, report{Gone: "it has closed the connection (10.0.0.2)"})
	require.Contains(t, s.said(), "host 1 has disconnected: it has closed the connection (10.0.0.2); ending the others\n")
	require.Equal(t, []string{"0 terminated", "2 terminated"}, s.orders())
	s.tell(2, ask(4, 2))
	require.Empty(t, s.orders())
	s.tell(0, ask(0, 2))
	require.Contains(t, s.said(), "first: host 1 has disconnected: it has closed the connection (10.0.0.2)\nthen: ranks 0-1,4-5: ended by fsdprun with SIGTERM\n")
	require.Contains(t, s.said(), "restart 1 of 1 in 1s, with 4 ranks\n")
	require.Empty(t, s.orders())
	require.Equal(t, time.Second, s.wait())
	require.Equal(t, []string{"0 j.1: ranks 0+2 of 4, host 0 of 2", "2 j.1: ranks 2+2 of 4, host 1 of 2"}, s.orders())

	s.come(1, 2)
	require.Contains(t, s.said(), "host 1 has joined: ending 4 ranks to start more\n")
	require.Equal(t, []string{"0 terminated", "2 terminated"}, s.orders())
	s.tell(0, well(0, 2)) // they saved
	s.tell(2, ask(2, 2))
	require.Equal(t, []string{"0 j.2: ranks 0+2 of 6, host 0 of 3", "1 j.2: ranks 2+2 of 6, host 1 of 3", "2 j.2: ranks 4+2 of 6, host 2 of 3"}, s.orders())

	s.tell(2, report{Gone: "no word for 20s"}) // the one restart is used up
	s.tell(0, ask(0, 2))
	s.tell(1, ask(2, 2))
	require.Equal(t, []string{"0 terminated", "1 terminated", "0 exit 1", "1 exit 1"}, s.orders())
}

// TestMeetingWaits: with too few hosts it waits, and not for ever.
func TestMeetingWaits(t *testing.T) {
	s := three(t, 5, 3)
	for _, back := range []bool{true, false} {
		s.tell(1, report{Gone: "x"})
		s.tell(0, ask(0, 2))
		s.tell(2, ask(4, 2))
		require.Contains(t, s.said(), "with more hosts: waiting for host 1\n")
		s.orders()
		if back {
			s.clock = s.clock.Add(time.Minute)
			s.come(1, 2) // long after the rest
			require.Len(t, s.orders(), 3)
		}
	}
	require.Equal(t, 5*time.Minute, s.wait())
	require.Contains(t, s.said(), "too few ranks (-min): within 5m0s there was no host 1; a silent host has not started fsdprun, cannot reach -rdzv, or has a different secret or none "+
		"(give the same -secret-file or FSDP_SECRET everywhere): see the output of its fsdprun\n")
	require.Equal(t, []string{"0 exit 1", "2 exit 1"}, s.orders())
}

// TestMeetingLastCall: the first start waits a while for hosts that it could do without.
func TestMeetingLastCall(t *testing.T) {
	s := open(3, 2, 4, 0)
	s.come(1, 2)
	require.Empty(t, s.orders())
	require.Equal(t, lastCall, s.wait())
	require.Len(t, s.orders(), 2)

	s = open(2, 2, 5, 0)
	s.come(1, 2)
	require.Contains(t, s.said(), "-min 5 is more than the ranks of all 2 hosts")
	require.Equal(t, []string{"0 exit 1", "1 exit 1"}, s.orders())

	s = open(2, 2, 0, 1)
	s.tell(1, report{Join: &offer{Ranks: 2, Most: 2}})
	require.Contains(t, s.out[0].Say, "host 1 has -min 0 -restarts 0 -replace 0, host 0 has -min 0 -restarts 1 -replace 0")
	require.Equal(t, []string{"1 exit 2"}, s.orders())
}

// TestMeetingLosesRank: the host of a rank that was killed has one less, unless -min wants it.
func TestMeetingLosesRank(t *testing.T) {
	for min, want := range map[int]string{5: "1 j.1: ranks 2+1 of 5, host 1 of 3", 6: "1 j.1: ranks 2+2 of 6, host 1 of 3"} {
		s := three(t, min, 1)
		s.tell(1, report{Failed: "rank 3: killed by SIGKILL"})
		require.Equal(t, []string{"0 terminated", "1 terminated", "2 terminated"}, s.orders())
		// Ranks of host 0 notice before they are asked, and say so.
		noticed := ending{Code: 1, Early: true, Tail: []string{`rank 3 of group "world": lost`}}
		s.tell(0, all(2, noticed))
		s.tell(2, ask(4, 2))
		s.tell(1, report{Ended: []ending{{Rank: 3, After: time.Second, Signal: syscall.SIGKILL, Early: true}, {Rank: 2, Signal: syscall.SIGTERM, Asked: true}}})
		require.Contains(t, s.said(), "first: rank 3, after 1s: killed by SIGKILL")
		require.Empty(t, s.orders())
		s.wait()
		require.Equal(t, want, s.orders()[1])
	}
}

// TestMeetingNoRestart: what one rank says counts on all hosts.
func TestMeetingNoRestart(t *testing.T) {
	s := three(t, 0, 5)
	s.tell(2, report{Failed: "rank 5: exit status 6"})
	s.tell(2, report{Ended: []ending{{Rank: 5, Code: 6, Early: true, Tail: []string{launch.NoRestart}}, {Rank: 4}}})
	s.tell(0, ask(0, 2))
	s.tell(1, ask(2, 2))
	require.Contains(t, s.said(), "not restarting: rank 5 reports that "+launch.NoRestart)
	require.Equal(t, []string{"0 terminated", "1 terminated", "2 terminated", "0 exit 6", "1 exit 6", "2 exit 6"}, s.orders())
}

// TestMeetingSignals: a host that is asked to leave does; with host 0 all end.
func TestMeetingSignals(t *testing.T) {
	s := three(t, 4, 1)
	s.tell(2, report{Signal: syscall.SIGTERM})
	s.tell(2, report{Signal: syscall.SIGTERM})
	s.tell(2, well(4, 2)) // saved
	s.tell(2, report{Gone: "it has closed the connection"})
	require.Equal(t, []string{"0 terminated", "1 terminated", "2 terminated", "2 exit 0"}, s.orders())
	s.tell(0, well(0, 2))
	s.tell(1, well(2, 2))
	s.wait()
	require.Len(t, s.orders(), 2)

	s.tell(0, report{Signal: syscall.SIGINT})
	s.tell(0, report{Signal: syscall.SIGINT})
	s.tell(1, ask(2, 2))
	s.tell(0, well(0, 2))
	require.Equal(t, []string{"0 interrupt", "1 interrupt", "0 killed", "1 killed", "0 exit 143", "1 exit 143"}, s.orders())

	s = three(t, 0, 1) // for all hosts
	s.tell(1, report{Signal: syscall.SIGTERM})
	s.tell(0, report{Signal: syscall.SIGTERM})
	for h := range 3 {
		s.tell(h, well(2*h, 2))
	}
	require.Equal(t, []string{
		"0 terminated", "1 terminated", "2 terminated", "0 terminated", "1 terminated", "2 terminated", "1 exit 0", "0 exit 0", "2 exit 0",
	}, s.orders())

	s = three(t, 4, 0) // which cannot go on
	s.tell(1, report{Signal: syscall.SIGTERM})
	for h := range 3 {
		s.tell(h, well(2*h, 2))
	}
	require.Equal(t, []string{"0 terminated", "1 terminated", "2 terminated", "1 exit 0", "0 exit 0", "2 exit 0"}, s.orders())

	s = three(t, 0, 1) // for host 0 after the others
	s.tell(1, report{Signal: syscall.SIGTERM})
	for h := range 3 {
		s.tell(h, well(2*h, 2))
	}
	s.tell(0, report{Signal: syscall.SIGTERM})
	require.Equal(t, []string{"0 terminated", "1 terminated", "2 terminated", "1 exit 0", "0 exit 0", "2 exit 0"}, s.orders())

	s = three(t, 0, 1) // in a rest
	s.tell(1, report{Gone: "x"})
	s.tell(0, ask(0, 2))
	s.tell(2, ask(4, 2))
	s.tell(2, report{Signal: syscall.SIGHUP})
	s.tell(0, report{Signal: syscall.SIGHUP})
	require.Equal(t, []string{"0 terminated", "2 terminated", "2 exit 0", "0 exit 1"}, s.orders())
}

// TestMeetingSignalMeetsStart: a signal that comes before a host has been told to start its ranks
// ends these as well.
func TestMeetingSignalMeetsStart(t *testing.T) {
	for host := range 3 {
		s := three(t, 0, 0)
		s.tell(host, report{Signal: syscall.SIGTERM})
		require.Contains(t, s.orders(), fmt.Sprint(host, " terminated"))
	}
}

// TestMeetingGoesOn: with -replace, a host that is gone or leaves ends no other one, once all ranks
// have joined. Ranks of a host that is gone may still run: there is no restart.
func TestMeetingGoesOn(t *testing.T) {
	joined := report{Joins: &joins{Joined: true}}
	for _, late := range []bool{false, true} {
		s := three(t, 2, 3)
		s.replace, s.members[0].Replace = 1, 1
		if late {
			s.tell(1, joined)
		}
		s.tell(2, report{Gone: "x"})
		require.Equal(t, late, len(s.orders()) == 0)
	}

	s := three(t, 2, 3)
	s.replace, s.members[0].Replace = 1, 1
	s.tell(1, joined)
	s.tell(1, report{Signal: syscall.SIGTERM})
	s.tell(1, ask(2, 2)) // they do not catch the signal
	require.Contains(t, s.said(), "host 1 leaves: SIGTERM; the ranks of the other hosts go on\n")
	s.come(1, 2)
	s.members[1].Most = 3
	s.tell(1, report{Signal: growSignal}) // stops no rank
	s.tell(1, well(6, 2))
	require.Equal(t, []string{"1 exit 143", "1 j: ranks 6+2 of 8, host 1 of 3", "1 exit 0"}, s.orders())
	s.tell(2, report{Gone: "x"})
	require.Contains(t, s.said(), "host 2 has disconnected: x; the ranks of the other hosts go on\n")
	s.tell(0, report{Signal: growSignal})
	require.Contains(t, s.said(), "asked to grow, but ranks of a host that has disconnected may still run\n")
	s.tell(0, report{Failed: "rank 0"})
	s.tell(0, report{Ended: []ending{{Code: 7, Early: true}, {Rank: 1}}})
	require.Contains(t, s.said(), "not restarting: ranks of a host that has disconnected may still run\n")
	require.Equal(t, []string{"0 terminated", "0 exit 7"}, s.orders())

	s = three(t, 0, 0) // a rank of a host that has come back joins, and fails
	s.replace, s.members[0].Replace = 1, 1
	s.tell(2, joined)
	s.tell(1, report{Signal: syscall.SIGTERM})
	s.tell(1, ask(2, 2))
	s.come(1, 1)
	s.tell(1, report{Failed: "rank 6"})
	s.tell(1, report{Ended: []ending{{Rank: 6, Code: 7, Early: true}}})
	s.tell(0, well(0, 2))
	s.tell(2, well(4, 2))
	require.Equal(t, []string{"1 exit 143", "1 j: ranks 6+1 of 7, host 1 of 3", "0 terminated", "1 terminated", "2 terminated", "0 exit 7", "1 exit 7", "2 exit 7"}, s.orders())

	s = three(t, 0, 0)
	s.replace, s.members[0].Replace = 1, 1
	s.tell(2, joined)
	s.tell(1, well(2, 2)) // its ranks have left
	s.tell(0, report{Signal: syscall.SIGTERM})
	s.tell(0, report{Signal: syscall.SIGTERM})
	s.tell(0, well(0, 2))
	require.Equal(t, []string{"0 exit 0"}, s.orders())
	require.True(t, s.over)
}

// TestMeetingElsewhere: host 0 was replaced. The next start has a number that no host has seen.
func TestMeetingElsewhere(t *testing.T) {
	s := open(2, 1, 0, 0)
	s.tell(1, report{Join: &offer{Ranks: 3, Most: 3, Count: 7}})
	require.Equal(t, []string{"0 j.7: ranks 0+1 of 4, host 0 of 2", "1 j.7: ranks 1+3 of 4, host 1 of 2"}, s.orders())
}

// TestMeetingNeverSticks does anything in any order. No start overlaps another, every one has
// enough ranks in the order of hosts, and in the end all hosts are told to end.
func TestMeetingNeverSticks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := func(name string, lo, hi int) int { return rapid.IntRange(lo, hi).Draw(t, name) }
		hosts := number("hosts", 1, 4)
		a := &actors{t: t, hosts: make([]actor, hosts), number: -1}
		each := number("ranks", 1, 3)
		a.stage = open(hosts, each, number("min", 0, hosts*each), number("restarts", 0, 3))
		a.replace = number("replace", 0, 1)
		a.members[0].Replace = a.replace
		if hosts > 2 && a.replace == 0 {
			candidates := number("candidates", 3, hosts)
			a.elect(number("self", 0, candidates-1), candidates, each)
		}
		a.hosts[a.self].here = true
		a.obey()
		for range number("steps", 0, 60) {
			host := number("host", 0, hosts-1)
			a.act(host, number("what", 0, 9))
			a.obey()
		}
		for range 100 { // nobody comes or fails any more
			if a.over {
				break
			}
			if at := a.wake(); !at.IsZero() {
				a.wait()
			}
			for host := range a.hosts {
				a.act(host, 0)
				a.obey()
			}
		}
		require.True(t, a.over)
		for _, h := range a.hosts {
			require.False(t, h.here)
		}
	})
}

// actors are the hosts of a meeting.
type actors struct {
	*stage
	t      *rapid.T
	hosts  []actor
	number int // of the last start
	starts int
	left   bool // the holder has
}

type actor struct {
	here   bool
	runs   *start
	failed bool
	asked  bool
}

// act lets a host do something, if it is in a state to do it.
func (a *actors) act(host, what int) {
	h := &a.hosts[host]
	switch {
	case !h.here:
		if what == 1 || what == 2 {
			*h = actor{here: true}
			a.come(host, what)
		}
	case what == 0 && h.runs != nil: // its ranks end
		s := h.runs
		h.runs = nil
		switch {
		case h.failed:
			a.tell(host, report{Ended: []ending{{Rank: s.First, Code: 1, Early: true}}})
		case h.asked:
			a.tell(host, ask(s.First, s.Ranks))
		default:
			a.tell(host, well(s.First, s.Ranks))
		}
	case what <= 2 && h.runs != nil && !h.asked && !h.failed:
		h.failed = true
		a.tell(host, report{Failed: "rank"})
	case what == 3 && host != a.self:
		*h = actor{}
		a.tell(host, report{Gone: "gone"})
	case what == 4:
		a.tell(host, report{Signal: growSignal})
	case what == 5:
		h.asked = h.runs != nil
		a.tell(host, report{Signal: syscall.SIGTERM})
	case what == 6 && !a.wake().IsZero():
		a.wait()
	case what >= 7 && h.runs != nil:
		a.tell(host, report{Joins: &joins{Joined: true}})
	}
}

// obey takes what was ordered to the hosts.
func (a *actors) obey() {
	var begun []*start
	for _, m := range a.out {
		h := &a.hosts[m.to]
		require.True(a.t, h.here)
		switch {
		case m.Start != nil:
			require.Nil(a.t, h.runs)
			*h = actor{here: true, runs: m.Start}
			if !m.Start.Late {
				begun = append(begun, m.Start)
			} else {
				require.Equal(a.t, []int{a.number, a.size}, []int{m.Start.Count, m.Start.First + m.Start.Ranks})
			}
		case m.Stop != 0 && h.runs != nil:
			h.asked = true
		case m.End:
			require.Nil(a.t, h.runs)
			h.here = false
		}
	}
	a.out = nil
	if a.over && !a.left && a.members[a.self] == nil { // the other hosts go on alone
		a.left = true
		clear(a.hosts)
	}
	if len(begun) == 0 {
		return
	}
	a.starts++
	size := 0
	for i, s := range begun {
		require.Equal(a.t, []int{size, i, len(begun)}, []int{s.First, s.Node, s.Nodes})
		require.Positive(a.t, s.Ranks)
		require.Greater(a.t, s.Count, a.number)
		require.Equal(a.t, begun[0].Job, s.Job)
		size += s.Ranks
	}
	a.number = begun[0].Count
	for _, s := range begun {
		require.Equal(a.t, size, s.Size)
	}
	require.GreaterOrEqual(a.t, size, a.min)
	require.True(a.t, a.majority())
	require.LessOrEqual(a.t, a.failures, a.restarts)
	running := slices.DeleteFunc(slices.Clone(a.hosts), func(h actor) bool { return h.runs == nil })
	require.Len(a.t, running, len(begun), "ranks of another start run")
}
