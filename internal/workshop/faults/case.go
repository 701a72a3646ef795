package main

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/commtest"
)

// Case is a world, a program and its faults. It is sent as JSON.
type Case struct {
	Seed   uint64
	Number int

	Transport string // local, shm, tcp or auto; auto is on two pretended hosts
	Ranks     int
	Sub       bool // the program runs in a group split from the world

	Collective string // of the target
	Moment     string
	Bytes      int // of the full tensor of the target

	Incident commtest.Incident // rank and numbers are counted in the group of the program
	Lag      commtest.Incident // of another rank, after the incident

	// Suspend is how long all processes are stopped after the incident, a delay, has begun. It is
	// longer than the limit of no progress.
	Suspend time.Duration

	// Steps, if not 0, replaces the program by this number of random collectives.
	Steps int
}

// These are the moments of a case. All but the last two are moments of an incident.
const (
	momentBefore  = "before"
	momentIssued  = "issued"
	momentWaiting = "waiting"
	momentFlight  = "in flight"
	momentAfter   = "after"
)

var (
	transports  = []string{"local", "shm", "tcp", "auto"}
	worlds      = []int{2, 3, 4, 8}
	sizes       = []int{4, 4, 4, 64 << 10, 64 << 10, 64 << 10, 4 << 20} // the expensive one less often
	collectives = []string{
		commtest.AllGather, commtest.ReduceScatter, commtest.AllReduce, commtest.Broadcast, commtest.Gather,
		commtest.Barrier, commtest.Split,
	}
)

// sorts are the incidents of the matrix: all whose consequence is certain. A group cannot detect a
// flip in memory.
var sorts = []commtest.What{
	commtest.Kill, commtest.Stop, commtest.Cut, commtest.Garble, commtest.Abort, commtest.Close, commtest.Cancel,
	commtest.Delay, commtest.Drop, commtest.Invalid, commtest.WrongKind, commtest.WrongType, commtest.WrongLength,
	commtest.WrongOp, commtest.WrongLabel, commtest.WrongRoot, commtest.WrongOrder,
}

// endsProcess reports whether w affects a whole process, and not one handle.
func endsProcess(w commtest.What) bool {
	switch w {
	case commtest.Kill, commtest.Stop, commtest.Cut, commtest.Garble:
		return true
	}
	return false
}

// silent reports whether w can only be detected by a timeout.
func silent(w commtest.What) bool { return w == commtest.Stop || w == commtest.Drop }

// moments returns the moments of a case with w.
func moments(w commtest.What) []string {
	switch {
	case w == commtest.WrongOrder:
		return []string{momentFlight} // it takes two
	case w == commtest.Garble:
		return []string{momentBefore, momentAfter}
	case w == commtest.Cancel || len(w.Moments()) == 3:
		return []string{momentBefore, momentIssued, momentWaiting, momentFlight, momentAfter}
	default:
		return []string{momentBefore, momentFlight, momentAfter}
	}
}

// caseOf returns a case by its number. Incidents and transports alternate, so that any range of
// cases has all of them; the rest is drawn.
func caseOf(seed uint64, number int) Case {
	rng := rand.New(rand.NewPCG(seed, uint64(number)))
	what := sorts[number%len(sorts)]
	transport := transports[number/len(sorts)%len(transports)]
	if transport == "local" && endsProcess(what) {
		transport = transports[1+rng.IntN(3)]
	}
	c := Case{
		Seed: seed, Number: number, Transport: transport,
		Ranks: worlds[rng.IntN(len(worlds))], Sub: rng.IntN(3) == 0,
		Collective: collectives[rng.IntN(len(collectives))], Bytes: sizes[rng.IntN(len(sizes))],
	}
	choice := moments(what)
	c.Moment = choice[rng.IntN(len(choice))]
	if c.Moment == momentFlight && what == commtest.WrongOrder {
		c.Collective = collectives[rng.IntN(5)] // the others cannot be held back
	}
	given := c.Collective == commtest.Broadcast || c.Collective == commtest.Gather
	if given && (c.Moment == momentWaiting || what == commtest.Cancel) {
		c.Collective = collectives[rng.IntN(3)] // a rank that only sends does not wait, so there is no wait to interrupt
	}
	c.arrange(what, rng.IntN(c.members()))
	return c
}

// suspensionOf returns a case by its number in which all processes are stopped for a while, like
// those of a closed laptop.
func suspensionOf(seed uint64, number int) Case {
	c := Case{Seed: seed, Number: number, Transport: transports[1+number%3], Suspend: 6 * time.Second}
	rng := rand.New(rand.NewPCG(seed, uint64(number)))
	c.Ranks, c.Sub = worlds[rng.IntN(len(worlds))], rng.IntN(3) == 0
	c.Collective, c.Bytes = collectives[rng.IntN(len(collectives))], sizes[rng.IntN(len(sizes))]
	choice := moments(commtest.Delay)
	c.Moment = choice[rng.IntN(len(choice))]
	c.arrange(commtest.Delay, rng.IntN(c.members()))
	return c
}

// suspensions returns the first n of them.
func suspensions(seed uint64, n int) (list []Case) {
	for i := range n {
		list = append(list, suspensionOf(seed, i))
	}
	return list
}

// arrange sets the incident of a rank.
func (c *Case) arrange(what commtest.What, rank int) {
	i := commtest.Incident{What: what, When: commtest.Before, Rank: rank, At: commtest.Call{Seq: 1}}
	switch c.Moment {
	case momentIssued:
		i.When = commtest.Issued
	case momentWaiting:
		i.When, i.After = commtest.Waiting, 20*time.Millisecond
	case momentFlight:
		i.At.Seq = 3
	case momentAfter:
		i.At.Seq = 2
	}
	if what == commtest.Delay {
		i.After = 300 * time.Millisecond
	}
	c.Incident = i
	// Issued means waiting.
	blocks := c.Collective == commtest.Barrier || c.Collective == commtest.Split
	if i.When == commtest.Waiting || i.When == commtest.Issued && blocks || what == commtest.Cancel {
		c.Lag = commtest.Incident{
			What: commtest.Delay, When: commtest.Before, Rank: (rank + 1) % c.members(), At: i.At, After: 250 * time.Millisecond,
		}
	}
}

// members is the size of the group of the program: a group split from a world of more than three
// ranks omits the last rank.
func (c *Case) members() int {
	if c.Sub && c.Ranks > 3 {
		return c.Ranks - 1
	}
	return c.Ranks
}

// place is the rank in the group of the program for a rank of the world, or -1 if it is not a
// member.
func (c *Case) place(world int) int {
	switch {
	case !c.Sub:
		return world
	case world >= c.members():
		return -1
	default:
		return c.members() - 1 - world
	}
}

// world is the rank in the world for a rank of the group of the program.
func (c *Case) world(place int) int {
	if c.Sub {
		return c.members() - 1 - place
	}
	return place
}

// culprit is the rank of the world with the incident.
func (c *Case) culprit() int { return c.world(c.Incident.Rank) }

// breaks reports whether the incident certainly breaks connections.
func (c *Case) breaks() bool {
	switch c.Incident.What {
	case commtest.Cut, commtest.Garble:
		// The operation of a rank that waits at an incident may end before.
		return c.Steps == 0 || c.Incident.When != commtest.Waiting
	}
	return false
}

// trial is a collective of the given sort, of about c.Bytes in all.
func (c *Case) trial(kind string, seq int) commtest.Trial {
	t := commtest.Trial{Kind: kind, Type: comm.Float32, Len: c.Bytes / 4, Seed: c.Seed<<32 + uint64(c.Number)<<8 + uint64(seq)}
	switch kind {
	case commtest.AllGather, commtest.ReduceScatter:
		t.Len = max(1, t.Len/c.members())
	case commtest.Gather:
		t.Len = max(1, t.Len/c.members())
		t.Root = (c.Number + seq) % c.members()
	case commtest.Broadcast:
		t.Root = (c.Number + seq) % c.members()
	}
	return t
}

// limit returns how long the groups may make no progress. It matters only if the culprit is silent.
func (c *Case) limit() time.Duration {
	if c.Suspend > 0 {
		return c.Suspend / 2
	}
	if silent(c.Incident.What) { // a rank that is just late must not be taken for silent
		return 1500*time.Millisecond + min(spare, 1500*time.Millisecond)
	}
	return 20*time.Second + spare
}

// deadline is the time after the incident in which every rank must detect it.
func (c *Case) deadline() time.Duration {
	if silent(c.Incident.What) {
		return c.limit() + 1500*time.Millisecond + spare
	}
	return 2*time.Second + spare
}

// spare is added to all limits, which assume an idle machine. Tests run while others do.
var spare time.Duration

// command returns the command that runs c again.
func (c *Case) command() string {
	if c.Steps > 0 {
		return fmt.Sprintf("go -C internal/workshop run ./faults -seed %d -round %d -transport %s", c.Seed, c.Number, c.Transport)
	}
	if c.Suspend > 0 {
		return fmt.Sprintf("go -C internal/workshop run ./faults -seed %d -suspension %d", c.Seed, c.Number)
	}
	return fmt.Sprintf("go -C internal/workshop run ./faults -seed %d -case %d", c.Seed, c.Number)
}

// String describes c in a line.
func (c Case) String() string {
	group := "world"
	if c.Sub {
		group = fmt.Sprintf("group of %d", c.members())
	}
	if c.Steps > 0 {
		return fmt.Sprintf("round %d: %s, %d ranks, %s, %d collectives, %v", c.Number, c.Transport, c.Ranks, group, c.Steps, c.Incident)
	}
	kind := "case"
	if c.Suspend > 0 {
		kind = "suspension"
	}
	return fmt.Sprintf("%s %d: %s %s %s of %d B, %s, %d ranks, %s; %v",
		kind, c.Number, c.Incident.What, c.Moment, c.Collective, c.Bytes, c.Transport, c.Ranks, group, c.Incident)
}
