package ranks

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/comm"
)

// An Answer is the joint result of all ranks.
type Answer struct {
	Leader  int     // first rank that is not Absent, from Ask.First on, or -1
	Missing bool    // some rank is Absent
	Known   bool    // all ranks have asked with the leader's schedule, Absent ones too
	Largest float64 // Value
	Had     []int64 // by word of Agreement.Votes: not 0 if any rank has it in Ask.Has; valid until the next Agree
}

// An Agreement is the exchange before a collective call: each rank sends the call that it is about
// to make, and whether it can. If one cannot, all return its error. If their calls or pasts differ,
// all return an error that says so. An Agreement belongs to one goroutine.
type Agreement struct {
	Votes int // additional words in each exchange, the same number on all ranks: see Ask.Has
	group comm.Group
	peer  func(rank int, message string) error
	send  []int64
}

// These words are exchanged, and every rank gets the largest of each. If there are two words for
// one number, the second is complemented, which gives the smallest, too.
const (
	firstFailed    = iota // size - rank
	lastFailed            // rank + 1
	call                  // hash of the Ask
	callMin               // complemented
	past                  // hash of the rank's past, see Past
	pastMin               // complemented
	schedule              // hash, of ranks that have a batch
	scheduleMin           // complemented
	anySchedule           // of all ranks
	anyScheduleMin        // complemented
	firstPresent          // size - places after Ask.First
	absent                // 1
	value                 // bits of a float64, ordered as the numbers if these are not negative
	words
)

// NewAgreement returns the agreement of one rank of g. peer makes the errors for failures of other
// ranks.
func NewAgreement(g comm.Group, peer func(rank int, message string) error) *Agreement {
	return &Agreement{group: g, peer: peer}
}

// A LostError is a failure of an exchange itself: this rank has no way to learn its result on the
// others.
type LostError struct{ Err error }

func (e *LostError) Error() string { return e.Err.Error() }
func (e *LostError) Unwrap() error { return e.Err }

// Agree agrees to do q. err is the reason why this rank cannot, or nil. It returns nil on every
// rank or an error on every rank: a LostError if the exchange failed.
func (a *Agreement) Agree(ctx context.Context, q *Ask, err error) (Answer, error) {
	n := a.group.Size()
	own := fill(q, a.group.Rank(), n, err != nil)
	a.send = append(a.send[:0], own[:]...)
	if n == 1 && err != nil {
		return Answer{}, err
	}
	a.send = append(a.send, make([]int64, a.Votes)...)
	for _, word := range q.Has {
		a.send[words+word] = 1
	}
	if werr := a.reduce(ctx, a.send); werr != nil {
		return Answer{}, &LostError{errors.Join(err, fmt.Errorf("agreeing with the other ranks: %w", werr))}
	}
	w := [words]int64(a.send) // of all ranks now
	if w[firstFailed] > 0 {
		return Answer{}, a.failures(ctx, n-int(w[firstFailed]), int(w[lastFailed])-1, err)
	}
	ans := answer(q, &w, n)
	var measure int
	var mine int64
	switch {
	case w[call] != flip(w[callMin]):
		mine = q.hash()
	case w[past] != flip(w[pastMin]):
		return Answer{}, a.part(ctx, q)
	case !q.Round && w[schedule] != none && w[schedule] != flip(w[scheduleMin]):
		measure, mine = ans.Leader, q.schedule()
	default:
		if a.Votes > 0 {
			ans.Had = a.send[words:]
		}
		return ans, nil
	}
	return Answer{}, a.disagree(ctx, measure, mine, q)
}

// fill returns the words of a rank of n.
func fill(q *Ask, rank, n int, failed bool) (w [words]int64) {
	if failed {
		w[firstFailed], w[lastFailed] = int64(n-rank), int64(rank+1)
		return w
	}
	w[call] = q.hash()
	w[callMin] = flip(w[call])
	w[past] = q.past()
	w[pastMin] = flip(w[past])
	w[anySchedule], w[anyScheduleMin] = int64(q.Schedule), flip(int64(q.Schedule))
	if w[schedule], w[scheduleMin] = q.schedule(), none; w[schedule] != none {
		w[scheduleMin] = flip(w[schedule])
	}
	if q.Absent {
		w[absent] = 1
	} else {
		places := (rank - q.First + n) % n
		w[firstPresent] = int64(n - places)
	}
	w[value] = int64(math.Float64bits(q.Value))
	return w
}

// answer returns the answer from the largest words of n ranks, all of which ask for q.
func answer(q *Ask, w *[words]int64, n int) Answer {
	ans := Answer{
		Leader: -1, Missing: w[absent] != 0, Known: w[anySchedule] == flip(w[anyScheduleMin]),
		Largest: math.Float64frombits(uint64(w[value])),
	}
	if places := n - int(w[firstPresent]); places < n {
		ans.Leader = (q.First + places) % n
	}
	return ans
}

// failures returns the errors of the first and the last rank that failed, and this rank's own.
func (a *Agreement) failures(ctx context.Context, first, last int, err error) error {
	mine := ""
	if err != nil {
		mine = shortened(err.Error())
	}
	errs := []error{err}
	for _, rank := range slices.Compact([]int{first, last}) {
		theirs, terr := a.text(ctx, rank, mine)
		if terr != nil {
			return &LostError{errors.Join(err, terr)}
		}
		if rank != a.group.Rank() && (err == nil || theirs != mine) {
			errs = append(errs, a.peer(rank, theirs))
		}
	}
	return errors.Join(errs...)
}

// messageSize bounds the error text that a rank sends to the others, in bytes, without omission.
const messageSize = 1024

// omission ends a text that was cut.
const omission = "… (that rank's own error has the rest)"

// shortened returns the beginning of a text, of whole characters.
func shortened(text string) string {
	if len(text) <= messageSize {
		return text
	}
	return strings.ToValidUTF8(text[:messageSize], "") + omission
}

// Sum leaves the sum of each number over the ranks, in the canonical order of package comm. Ranks
// must have agreed to call it.
func (a *Agreement) Sum(ctx context.Context, v []float64) error {
	if err := a.group.AllReduce(comm.Of(v).Named(label), comm.Sum).Wait(ctx); err != nil {
		return &LostError{fmt.Errorf("agreeing with the other ranks: %w", err)}
	}
	return nil
}

// Missing returns the ranks for which missing is true, in order, on every rank. Ranks must have
// agreed to call it.
func (a *Agreement) Missing(ctx context.Context, missing bool) ([]int, error) {
	all := make([]uint8, a.group.Size())
	if err := a.group.AllGather(comm.Of(all).Named(label), comm.Of([]uint8{uint8(word(missing))}).Named(label)).Wait(ctx); err != nil {
		return nil, &LostError{err}
	}
	var ranks []int
	for rank, is := range all {
		if is != 0 {
			ranks = append(ranks, rank)
		}
	}
	return ranks, nil
}

// label names the exchanges in errors of the group.
const label = "agreement"

// reduce leaves the largest of each word of all ranks.
func (a *Agreement) reduce(ctx context.Context, w []int64) error {
	return a.group.AllReduce(comm.Of(w).Named(label), comm.Max).Wait(ctx)
}

// none is the number of a rank that does not take part.
const none = -1

// flip maps numbers from 0 on so that their order is reversed. It is its own inverse.
func flip(w int64) int64 { return math.MaxInt64 - w }

func word(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
