package fsdp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/comm"
)

// passKind is what a rank is about to do. Ranks agree on it before the first collective of a pass.
type passKind int64

const (
	passWrap passKind = iota + 1
	passForward
	passBackward
	passEval
	passClip
	passState
	passGrads
)

// String names the method that a user called.
func (k passKind) String() string {
	names := map[passKind]string{
		passWrap: "Wrap", passForward: "Forward", passBackward: "Backward", passEval: "Eval", passClip: "ClipGradNorm", passState: "FullState", passGrads: "FullGrads",
	}
	return names[k]
}

// A PeerError is the failure of another rank before a pass, reported on this one, so that no rank waits for a rank that
// will not come.
type PeerError struct {
	Rank    int
	Message string
}

// Error implements error.
func (e *PeerError) Error() string { return fmt.Sprintf("rank %d: %s", e.Rank, e.Message) }

// exchangeError is a failure of the exchange itself: this rank cannot know what the others make of it.
type exchangeError struct{ err error }

func (e *exchangeError) Error() string { return e.err.Error() }
func (e *exchangeError) Unwrap() error { return e.err }

// agreement is the exchange that starts every pass. Each rank says what it is about to do and whether it can; if one
// cannot, all return its error, and if they are about to do different things, all say so.
type agreement struct {
	group comm.Group
	send  []int64 // words of this rank
	recv  []int64 // words of all ranks
}

// The words that a rank contributes.
const (
	wordKind = iota
	wordNumber
	wordArgument // bits of a float64
	wordFailed   // 1 if the rank cannot
	words
)

// request is what a rank is about to do.
type request struct {
	kind     passKind
	number   int     // of the pass
	argument float64 // that ranks must agree on, if the method has one
}

func (r request) String() string {
	if r.argument != 0 {
		return fmt.Sprintf("%v number %d with %v", r.kind, r.number, r.argument)
	}
	return fmt.Sprintf("%v number %d", r.kind, r.number)
}

func newAgreement(g comm.Group) *agreement {
	return &agreement{group: g, send: make([]int64, words), recv: make([]int64, words*g.Size())}
}

// messageSize bounds the error text that a rank tells the others, in bytes.
const messageSize = 1024

// on agrees to run r. err is why this rank cannot, or nil. It returns nil on every rank or an error on every rank, an
// exchangeError if the ranks could not talk.
func (a *agreement) on(ctx context.Context, r request, err error) error {
	if a.group.Size() == 1 {
		return err
	}
	a.send[wordKind], a.send[wordNumber] = int64(r.kind), int64(r.number)
	a.send[wordArgument], a.send[wordFailed] = int64(math.Float64bits(r.argument)), 0
	if err != nil {
		a.send[wordFailed] = 1
	}
	label := "agreement"
	if werr := a.group.AllGather(comm.Of(a.recv).Named(label), comm.Of(a.send).Named(label)).Wait(ctx); werr != nil {
		return &exchangeError{errors.Join(err, fmt.Errorf("agreeing with the other ranks: %w", werr))}
	}
	for rank := range a.group.Size() {
		if a.recv[words*rank+wordFailed] != 0 {
			return a.tell(ctx, err)
		}
	}
	for rank := range a.group.Size() {
		w := a.recv[words*rank:][:words]
		theirs := request{passKind(w[wordKind]), int(w[wordNumber]), math.Float64frombits(uint64(w[wordArgument]))}
		if theirs != r {
			return fmt.Errorf("ranks disagree: rank %d runs %v, rank %d runs %v", a.group.Rank(), r, rank, theirs)
		}
	}
	return nil
}

// tell exchanges the messages of the ranks that failed and joins those that say more than this rank's own.
func (a *agreement) tell(ctx context.Context, err error) error {
	var message string
	if err != nil {
		message = err.Error()
		message = message[:min(len(message), messageSize)]
	}
	all, gerr := comm.GatherBytes(ctx, a.group, []byte(message))
	if gerr != nil {
		return &exchangeError{errors.Join(err, gerr)}
	}
	errs := []error{err}
	for r, m := range all {
		if a.recv[words*r+wordFailed] != 0 && r != a.group.Rank() && (err == nil || string(m) != message) {
			errs = append(errs, &PeerError{r, string(m)})
		}
	}
	return errors.Join(errs...)
}

// sameText returns an error on every rank unless all ranks have the same text. It names the first line that differs.
func sameText(ctx context.Context, g comm.Group, what, text string) error {
	all, err := comm.GatherBytes(ctx, g, []byte(text))
	if err != nil {
		return fmt.Errorf("comparing the %s: %w", what, err)
	}
	for r := range all {
		if bytes.Equal(all[r], all[0]) {
			continue
		}
		a, b := strings.Split(string(all[0]), "\n"), strings.Split(string(all[r]), "\n")
		i := 0
		for i < len(a) && i < len(b) && a[i] == b[i] {
			i++
		}
		return fmt.Errorf("ranks disagree about the %s: rank 0 has %q, rank %d has %q", what, line(a, i), r, line(b, i))
	}
	return nil
}

func line(lines []string, i int) string {
	if i < len(lines) && !slices.Equal(lines[i:], []string{""}) {
		return lines[i]
	}
	return "nothing"
}
