package ranks

import (
	"bytes"
	"cmp"
	"context"
	"encoding/gob"
	"fmt"
	"math"
	"slices"
	"strings"
)

// An Ask describes the call that a rank is about to make.
type Ask struct {
	Call     string  // the method, as its users name it
	Detail   string  // other facts that ranks must have alike, for messages too; usually ""
	Argument float64 // likewise; 0 is not mentioned
	Model    int     // the model of the method
	Number   int     // of the rank's collective calls
	Loops    []int   // iterations, from 1, of the loops of Join around the call, outer first
	NoSync   bool    // a training pass, or a part of it, inside NoSync
	Schedule uint64  // hash of the pass that is to run, of 63 bits; 0 if there is none
	Source   string  // in place of a schedule: the data, the same on all ranks that give it
	Absent   bool    // the rank has no batch: any schedule will do
	Round    bool    // of JoinCalls: ranks may have different schedules, and the Leader's is run
	First    int     // rank that leads if it is not Absent, or else the next one that is not
	Value    float64 // not negative; may differ between ranks
	Past     Past    // or nil
	Has      []int   // words of Agreement.Votes that this rank raises
}

// A Past is the local actions of a rank, which must be the same on all ranks.
type Past interface {
	Hash() uint64
	String() string
	// Differ describes the difference between two ranks, whose Strings are first and other.
	Differ(a, b int, first, other string) string
}

// Join is the Call of an exchange before an iteration, which is already the last of its Loops. The
// purpose may follow the name.
const Join = "Join"

// String describes the call as in "Backward as call 7 inside NoSync".
func (q *Ask) String() string {
	text := fmt.Sprintf("%s as call %d%s", q.Call, q.Number, q.Detail)
	if q.Argument != 0 {
		text += fmt.Sprintf(" with %v", q.Argument)
	}
	if q.NoSync {
		text += " inside NoSync"
	}
	return text
}

// hash returns a number from 0 on. It is the same on ranks that ask for the same call. Schedules do
// not change it.
func (q *Ask) hash() int64 {
	h := hash(hash(offset, q.Call), q.Detail)
	for _, v := range [...]uint64{math.Float64bits(q.Argument), uint64(q.Model), uint64(q.Number), uint64(word(q.NoSync)), uint64(len(q.Loops))} {
		h = mix(h, v)
	}
	for _, i := range q.Loops {
		h = mix(h, uint64(i))
	}
	return int64(h >> 1)
}

// schedule returns a number from 0 on that is the same if ranks can run the same schedule, or none
// if any will do.
func (q *Ask) schedule() int64 {
	switch {
	case q.Absent, q.joins() && q.Source == "":
		return none
	case q.Source != "":
		return int64(hash(offset, q.Source) >> 1)
	}
	return int64(q.Schedule)
}

// disagree returns an error with the call of rank measure, and the call of the first rank that has
// another number. There is such a rank.
func (a *Agreement) disagree(ctx context.Context, measure int, mine int64, q *Ask) error {
	wire, text := *q, bytes.Buffer{}
	wire.Past, wire.Has = nil, nil
	if err := gob.NewEncoder(&text).Encode(&wire); err != nil {
		return err
	}
	d, err := a.differ(ctx, measure, mine, text.String())
	if err != nil {
		return &LostError{err}
	}
	x, y := asked{rank: measure}, asked{rank: d.rank}
	for _, said := range []struct {
		by   *asked
		text string
	}{{&x, d.first}, {&y, d.other}} {
		if err := gob.NewDecoder(strings.NewReader(said.text)).Decode(&said.by.Ask); err != nil {
			return fmt.Errorf("decoding the next call of rank %d: %w", said.by.rank, err)
		}
	}
	return fmt.Errorf("ranks disagree: %s", explain(x, y))
}

// part returns an error with the Past of rank 0 and the Past of the first rank that differs. There
// is such a rank.
func (a *Agreement) part(ctx context.Context, q *Ask) error {
	d, err := a.differ(ctx, 0, q.past(), q.Past.String())
	if err != nil {
		return &LostError{err}
	}
	return fmt.Errorf("ranks disagree: %s", q.Past.Differ(0, d.rank, d.first, d.other))
}

// past returns a hash of the Past, from 0 on.
func (q *Ask) past() int64 {
	if q.Past == nil {
		return 0
	}
	return int64(q.Past.Hash() >> 1)
}

// asked is the Ask that a rank has sent.
type asked struct {
	rank int
	Ask
}

// explain describes the difference between the calls of two ranks, with advice if it is a mistake
// in a loop over Join.
func explain(x, y asked) string {
	if x.Model != y.Model {
		return fmt.Sprintf("rank %d runs %s, rank %d runs %s of another model: all ranks must call the methods of their models in the same order",
			x.rank, &x.Ask, y.rank, &y.Ask)
	}
	for _, p := range [][2]asked{{x, y}, {y, x}} {
		a, b := p[0], p[1]
		if a.skipped(b) {
			advice := fmt.Sprintf("call %s there, too", b.Call)
			if b.Call == "Forward" || b.Call == "Eval" {
				advice = fmt.Sprintf("call %s with the empty batch, too", b.Call)
			}
			return fmt.Sprintf("rank %d runs %s, and rank %d has gone on to the next iteration of Join without it: "+
				"the loop body must make the same calls on every rank: %s", b.rank, &b.Ask, a.rank, advice)
		}
		if i, left := a.left(b); left {
			return fmt.Sprintf("rank %d has left the loop of Join and runs %s, but rank %d runs %s in iteration %d: "+
				"leave the loop in the same iteration on every rank", a.rank, &a.Ask, b.rank, &b.Ask, i)
		}
	}
	first, other := x.String(), y.String()
	switch {
	case first != other:
	case x.Source != y.Source:
		return fmt.Sprintf("rank %d reads %s, rank %d reads %s: some samples would be used twice and others never, "+
			"so give all ranks the same files, seed, position and batch size", x.rank, cmp.Or(x.Source, "something else"), y.rank, cmp.Or(y.Source, "something else"))
	case !slices.Equal(x.Loops, y.Loops):
		first, other = fmt.Sprintf("%s in iteration %v of Join", first, x.Loops), fmt.Sprintf("%s in iteration %v of Join", other, y.Loops)
	default:
		first, other = fmt.Sprintf("%s by schedule %016x", first, x.Schedule), fmt.Sprintf("%s by schedule %016x", other, y.Schedule)
	}
	return fmt.Sprintf("rank %d runs %s, rank %d runs %s: all ranks must make the same calls in the same order, with the same arguments", x.rank, first, y.rank, other)
}

// joins reports whether q is the exchange before an iteration of Join.
func (q *Ask) joins() bool { return !q.Round && strings.HasPrefix(q.Call, Join) }

// around returns the iterations of the loops around q.
func (q *Ask) around() []int {
	if q.joins() {
		return q.Loops[:len(q.Loops)-1]
	}
	return q.Loops
}

// skipped reports whether a is about to begin the iteration after b's.
func (a asked) skipped(b asked) bool {
	at := len(a.around())
	return a.joins() && len(b.around()) > at && slices.Equal(a.Loops[:at], b.Loops[:at]) && a.Loops[at] == b.Loops[at]+1
}

// left reports whether a is outside of a loop that b is in, and returns the iteration of b. A loop
// that a is about to begin has replaced it.
func (a asked) left(b asked) (iteration int, is bool) {
	at := len(a.around())
	if len(b.Loops) <= at || !slices.Equal(a.Loops[:at], b.Loops[:at]) {
		return 0, false
	}
	begun := b.Loops[at] > 1 || len(b.around()) > at
	return b.Loops[at], begun && (!a.joins() || a.Loops[at] == 1)
}
